//! Charges for pages of channels on their way to subscribers.
//!
//! A page can be read again, unlike a message. So pages use at most half of each budget, and subscribers that read
//! nothing leave room for messages and replies.

use std::sync::Arc;

use prost::Message;

use super::account::{Account, BudgetExceeded, Charge};
use crate::proto::ChannelItems;

impl Account {
    /// Charges a page of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// The budget of which more than half would be in use: read the page later.
    pub fn charge_page(self: &Arc<Self>, bytes: u64) -> Result<Arc<Charge>, BudgetExceeded> {
        match self.levels().find(|level| !level.has_room_for_page(bytes)) {
            Some(level) => Err(level.exceeded_error()),
            None => Ok(self.charge(bytes)),
        }
    }

    /// Charges these items.
    ///
    /// # Errors
    ///
    /// As [`Account::charge_page`].
    pub fn charge_items(
        self: &Arc<Self>,
        items: &ChannelItems,
    ) -> Result<Arc<Charge>, BudgetExceeded> {
        self.charge_page(items.encoded_len() as u64)
    }
}
