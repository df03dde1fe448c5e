//! The items that a turn emits on channels.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// Bytes charged for each item in addition to its data.
pub const ITEM_CHARGE: u64 = 100;

/// An item that a turn emits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestEmit {
    /// The channel.
    pub channel: Arc<str>,
    /// The guest's own bytes.
    pub data: Bytes,
}

/// The channels that an entity has emitted on before a turn.
pub trait ChannelNames: fmt::Debug + Send + Sync {
    /// Their number.
    fn count(&self) -> u64;
    /// Whether a channel is one of them.
    fn contains(&self, channel: &str) -> bool;
}

/// The channels during a turn.
#[derive(Default)]
pub(crate) struct TurnChannels {
    /// `None` if the entity has not emitted on any channel yet.
    before: Option<Arc<dyn ChannelNames>>,
    /// The channels that the turn emits on for the first time.
    added: BTreeSet<Arc<str>>,
    emits: Vec<GuestEmit>,
    bytes: u64,
}

impl TurnChannels {
    pub(crate) fn begin(before: Option<Arc<dyn ChannelNames>>) -> TurnChannels {
        TurnChannels { before, ..TurnChannels::default() }
    }

    /// Bytes that the turn has emitted, with a charge for each item.
    pub(crate) fn written(&self) -> u64 {
        self.bytes
    }

    /// Fails if an item of this size would exceed a limit. `beside` is the number of bytes that the turn has written
    /// elsewhere. Checked before the data is copied out of the guest.
    pub(crate) fn may_emit(
        &self,
        channel: &str,
        bytes: u64,
        beside: u64,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        if bytes > limits.item {
            return Err(HostTrap::ItemTooLarge { bytes, limit: limits.item });
        }
        if self.emits.len() as u64 >= limits.items {
            let (what, setting, limit) = ("items", "items", limits.items);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        if beside + self.bytes + bytes + ITEM_CHARGE > limits.turn_bytes {
            let (what, setting, limit) = ("bytes", "turn-bytes", limits.turn_bytes);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        if self.is_new(channel) {
            let before = self.before.as_ref().map_or(0, |before| before.count());
            if before + self.added.len() as u64 >= limits.channels {
                return Err(HostTrap::TooManyChannels { limit: limits.channels });
            }
        }
        Ok(())
    }

    fn is_new(&self, channel: &str) -> bool {
        !self.added.contains(channel)
            && !self.before.as_ref().is_some_and(|before| before.contains(channel))
    }

    pub(crate) fn emit(&mut self, channel: Arc<str>, data: Bytes) {
        if self.is_new(&channel) {
            self.added.insert(channel.clone());
        }
        self.bytes += data.len() as u64 + ITEM_CHARGE;
        self.emits.push(GuestEmit { channel, data });
    }

    /// Takes the items, in order.
    pub(crate) fn take(&mut self) -> Vec<GuestEmit> {
        std::mem::take(self).emits
    }
}
