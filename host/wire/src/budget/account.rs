//! Levels, who is charged, and what for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message as _;
use tokio::sync::Notify;

use super::OVERHEAD;
use super::principals::{Budgets, Principal};
use crate::error::problem;
use crate::limits::Limits;
use crate::proto::{Kind, Outcome, Problem, Reply};

/// Replies that wait on one link between nodes, of all principals together.
#[derive(Debug)]
pub(crate) struct LinkBudget {
    most: u64,
    replies: AtomicU64,
}

impl LinkBudget {
    pub(crate) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, replies: AtomicU64::new(0) })
    }

    /// What nobody holds.
    fn free(&self) -> u64 {
        self.most.saturating_sub(self.replies.load(Ordering::Acquire))
    }
}

/// One budget: what it holds now, and the most that it takes.
#[derive(Debug)]
pub(super) struct Level {
    setting: &'static str,
    whose: Arc<str>,
    most: u64,
    messages: AtomicU64,
    replies: AtomicU64,
    /// What it is a share of. Such a level is never full.
    shared: Option<Arc<LinkBudget>>,
    /// Told when the level is no longer full.
    freed: Notify,
}

impl Level {
    pub(super) fn new(setting: &'static str, whose: Arc<str>, most: u64) -> Self {
        let (messages, replies) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { setting, whose, most, messages, replies, shared: None, freed: Notify::new() }
    }

    /// A principal's share of a link between nodes: as much as it leaves free there. So one principal has half of it
    /// at most, two have a third each, and there is always room for one more.
    pub(super) fn share(shared: Arc<LinkBudget>, principal: &str) -> Self {
        let whose = format!("{principal} on a link between two nodes").into();
        let level = Self::new("peer_message_bytes", whose, shared.most);
        Self { shared: Some(shared), ..level }
    }

    pub(super) fn held(&self) -> u64 {
        self.messages.load(Ordering::Acquire).saturating_add(self.replies.load(Ordering::Acquire))
    }

    fn is_full(&self) -> bool {
        self.shared.is_none() && self.held() >= self.most
    }

    /// Whether replies alone reach the limit, without so many bytes of them.
    fn is_clogged_beside(&self, own: u64) -> bool {
        let replies = self.replies.load(Ordering::Acquire).saturating_sub(own);
        match &self.shared {
            None => replies >= self.most,
            // Whoever has none may always have one.
            Some(shared) => replies > 0 && replies >= shared.free().saturating_add(own),
        }
    }

    fn is_clogged(&self) -> bool {
        self.is_clogged_beside(0)
    }

    fn hold_reply(&self, bytes: u64) {
        self.replies.fetch_add(bytes, Ordering::AcqRel);
        if let Some(shared) = &self.shared {
            shared.replies.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    fn release(&self, messages: u64, replies: u64) {
        let was_full = self.is_full();
        if messages > 0 {
            self.messages.fetch_sub(messages, Ordering::AcqRel);
        }
        if replies > 0 {
            self.replies.fetch_sub(replies, Ordering::AcqRel);
            if let Some(shared) = &self.shared {
                shared.replies.fetch_sub(replies, Ordering::AcqRel);
            }
        }
        if was_full && !self.is_full() {
            self.freed.notify_waiters();
        }
    }

    async fn room(&self) {
        while self.is_full() {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // From here on no notice is missed.
            freed.as_mut().enable();
            if self.is_full() {
                freed.await;
            }
        }
    }

    fn told(&self) -> Full {
        Full { setting: self.setting, whose: self.whose.clone(), most: self.most }
    }
}

/// Which budget is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    setting: &'static str,
    whose: Arc<str>,
    most: u64,
}

impl Full {
    /// The code of what is refused because of it.
    pub const CODE: &str = "overloaded";
    /// Milliseconds after which there may be room.
    pub const RETRY_AFTER: u32 = 100;

    /// The refusal of whatever finds it so.
    #[must_use]
    pub fn problem(&self, what: &str) -> Problem {
        let mut told = problem(Self::CODE, format!("{what}: {self}"));
        told.help = "read the replies that have come, have fewer messages without a reply, and send it again".into();
        told.retryable = true;
        told.retry_after_ms = Self::RETRY_AFTER.into();
        told.details.insert("setting".into(), self.setting.into());
        told.details.insert("limit".into(), self.most.to_string());
        told
    }
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { setting, whose, most } = self;
        write!(f, "as many bytes are held for {whose} as `{setting}` ({most}) allows")
    }
}

/// Who is charged for what comes on a connection.
#[derive(Debug)]
pub struct Account {
    /// Of what another node passes on: the principal's share of the link, if there is one.
    connection: Option<Level>,
    pub(super) principal: Arc<Principal>,
    node: Arc<Level>,
}

impl Account {
    pub(super) fn new(
        connection: Option<Level>,
        principal: Arc<Principal>,
        node: Arc<Level>,
    ) -> Arc<Self> {
        Arc::new(Self { connection, principal, node })
    }

    fn levels(&self) -> impl Iterator<Item = &Level> {
        self.connection.iter().chain([&self.principal.bytes, &*self.node])
    }

    /// Whether the connection's own budget is used up: then nothing more of it is read.
    #[must_use]
    pub fn connection_is_full(&self) -> bool {
        self.connection.as_ref().is_some_and(Level::is_full)
    }

    /// Waits until the connection's own budget has room.
    pub(crate) async fn connection_room(&self) {
        if let Some(level) = &self.connection {
            level.room().await;
        }
    }

    /// Waits until every level has room.
    pub(crate) async fn room(&self) {
        while self.full().is_some() {
            for level in self.levels() {
                level.room().await;
            }
        }
    }

    /// The first level that takes no further message.
    pub(crate) fn full(&self) -> Option<Full> {
        self.levels().find(|level| level.is_full()).map(Level::told)
    }

    /// Charges a message of so many bytes, whether there is room or not.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        let message = bytes.saturating_add(OVERHEAD);
        for level in self.levels() {
            level.messages.fetch_add(message, Ordering::AcqRel);
        }
        Arc::new(Charge { account: Arc::clone(self), message, reply: AtomicU64::new(0) })
    }

    /// Charges a message of so many bytes; and why it is not taken, if there is no room for it.
    #[must_use]
    pub fn admit(self: &Arc<Self>, bytes: u64) -> (Arc<Charge>, Option<Problem>) {
        let full = self.full();
        (self.charge(bytes), full.map(|full| full.problem("the message was not taken")))
    }

    /// Whose.
    #[must_use]
    pub fn principal(&self) -> &Arc<str> {
        self.principal.name()
    }
}

/// What one message and its reply cost, until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    message: u64,
    reply: AtomicU64,
}

impl Charge {
    /// One that counts for nobody, and finds room always: for what no client has sent.
    #[must_use]
    pub fn free() -> Arc<Self> {
        Budgets::new(&Limits::default()).passed_on("").charge(0)
    }

    /// Which budget has no room for any further reply. To be asked before a turn starts.
    #[must_use]
    pub fn clogged(&self) -> Option<Full> {
        self.account.levels().find(|level| level.is_clogged()).map(Level::told)
    }

    /// Who is charged.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Whether it is this account that is charged.
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(&self.account, account)
    }

    /// A turn has made a reply of so many bytes.
    pub fn made(&self, bytes: u64) {
        let now = counted(bytes);
        let former = self.reply.swap(now, Ordering::AcqRel);
        if now == former {
            return;
        }
        for level in self.account.levels() {
            level.hold_reply(now);
            level.release(0, former);
        }
    }

    /// The reply as it is sent, which is told to have been given up if there is no room for it.
    #[must_use]
    pub fn pay_for(&self, reply: Reply) -> Reply {
        let size = reply.encoded_len() as u64;
        match self.answer(size) {
            Ok(()) => reply,
            Err(full) => given_up(&reply, size, &full),
        }
    }

    /// The reply is about to wait for its sender. One that was not charged when it was made needs room.
    ///
    /// # Errors
    ///
    /// The budget that is used up: the reply is to be given up.
    pub(crate) fn answer(&self, bytes: u64) -> Result<(), Full> {
        let former = self.reply.load(Ordering::Acquire);
        self.made(bytes);
        if counted(bytes) <= former {
            return Ok(());
        }
        // A copy of the message may have told another size meanwhile.
        let over = |level: &&Level| level.is_clogged_beside(counted(bytes));
        match self.account.levels().find(over).map(Level::told) {
            Some(full) => {
                self.made(0);
                Err(full)
            }
            None => Ok(()),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let reply = *self.reply.get_mut();
        for level in self.account.levels() {
            level.release(self.message, reply);
        }
    }
}

/// A reply for which there is no room. A query may be asked again; of a command the outcome is on record, and its
/// next copy is told.
fn given_up(reply: &Reply, size: u64, full: &Full) -> Reply {
    let query = reply.kind() == Kind::Query && reply.outcome() != Outcome::Unknown;
    let outcome = if query { Outcome::NotRun } else { Outcome::Unknown };
    Reply {
        outcome: outcome.into(),
        problem: Some(full.problem(&format!("a reply of {size} bytes was given up"))),
        epoch: reply.epoch,
        kind: reply.kind,
        ..Reply::default()
    }
}

/// A short reply is paid for with its message.
fn counted(bytes: u64) -> u64 {
    if bytes <= OVERHEAD { 0 } else { bytes }
}
