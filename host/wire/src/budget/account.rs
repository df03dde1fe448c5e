//! Levels, who is charged, and what for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message as _;
use tokio::sync::Notify;

use super::OVERHEAD;
use super::principals::{Budgets, PrincipalUsage};
use crate::error::problem;
use crate::limits::Limits;
use crate::proto::{MessageKind, Outcome, Problem, Reply};

/// Replies that wait on one link between nodes, of all principals together.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    limit: u64,
    replies: AtomicU64,
}

impl ReplyBudget {
    pub(crate) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { limit: most, replies: AtomicU64::new(0) })
    }

    /// What nobody holds.
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.replies.load(Ordering::Acquire))
    }
}

/// One budget: what it holds now, and the most that it takes.
#[derive(Debug)]
pub(super) struct Budget {
    setting: &'static str,
    scope: Arc<str>,
    limit: u64,
    messages: AtomicU64,
    replies: AtomicU64,
    /// What it is a share of. Such a level is never full.
    reply_budget: Option<Arc<ReplyBudget>>,
    /// Told when the level is no longer full.
    freed: Notify,
}

impl Budget {
    pub(super) fn new(setting: &'static str, whose: Arc<str>, most: u64) -> Self {
        let (messages, replies) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            setting,
            scope: whose,
            limit: most,
            messages,
            replies,
            reply_budget: None,
            freed: Notify::new(),
        }
    }

    /// A principal's share of a link between nodes: as much as it leaves free there. So one principal has half of it
    /// at most, two have a third each, and there is always room for one more.
    pub(super) fn share(shared: Arc<ReplyBudget>, principal: &str) -> Self {
        let whose = format!("{principal} on a link between two nodes").into();
        let level = Self::new("peer_message_bytes", whose, shared.limit);
        Self { reply_budget: Some(shared), ..level }
    }

    pub(super) fn charged_bytes(&self) -> u64 {
        self.messages.load(Ordering::Acquire).saturating_add(self.replies.load(Ordering::Acquire))
    }

    fn is_full(&self) -> bool {
        self.reply_budget.is_none() && self.charged_bytes() >= self.limit
    }

    /// Whether replies alone reach the limit, without so many bytes of them.
    fn replies_exceed_limit_without(&self, own: u64) -> bool {
        let replies = self.replies.load(Ordering::Acquire).saturating_sub(own);
        match &self.reply_budget {
            None => replies >= self.limit,
            // Whoever has none may always have one.
            Some(shared) => replies > 0 && replies >= shared.free().saturating_add(own),
        }
    }

    fn replies_exceed_limit(&self) -> bool {
        self.replies_exceed_limit_without(0)
    }

    fn hold_reply(&self, bytes: u64) {
        self.replies.fetch_add(bytes, Ordering::AcqRel);
        if let Some(shared) = &self.reply_budget {
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
            if let Some(shared) = &self.reply_budget {
                shared.replies.fetch_sub(replies, Ordering::AcqRel);
            }
        }
        if was_full && !self.is_full() {
            self.freed.notify_waiters();
        }
    }

    async fn wait_for_room(&self) {
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

    fn exceeded_error(&self) -> BudgetExceeded {
        BudgetExceeded { setting: self.setting, scope: self.scope.clone(), limit: self.limit }
    }
}

/// Which budget is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    setting: &'static str,
    scope: Arc<str>,
    limit: u64,
}

impl BudgetExceeded {
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
        told.details.insert("limit".into(), self.limit.to_string());
        told
    }
}

impl std::fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { setting, scope: whose, limit: most } = self;
        write!(f, "as many bytes are held for {whose} as `{setting}` ({most}) allows")
    }
}

/// Who is charged for what comes on a connection.
#[derive(Debug)]
pub struct Account {
    /// Of what another node passes on: the principal's share of the link, if there is one.
    connection: Option<Budget>,
    pub(super) principal: Arc<PrincipalUsage>,
    node: Arc<Budget>,
}

impl Account {
    pub(super) fn new(
        connection: Option<Budget>,
        principal: Arc<PrincipalUsage>,
        node: Arc<Budget>,
    ) -> Arc<Self> {
        Arc::new(Self { connection, principal, node })
    }

    fn levels(&self) -> impl Iterator<Item = &Budget> {
        self.connection.iter().chain([&self.principal.bytes, &*self.node])
    }

    /// Whether the connection's own budget is used up: then nothing more of it is read.
    #[must_use]
    pub fn connection_is_full(&self) -> bool {
        self.connection.as_ref().is_some_and(Budget::is_full)
    }

    /// Waits until the connection's own budget has room.
    pub(crate) async fn connection_room(&self) {
        if let Some(level) = &self.connection {
            level.wait_for_room().await;
        }
    }

    /// Waits until every level has room.
    pub(crate) async fn wait_for_room(&self) {
        while self.exceeded_budget().is_some() {
            for level in self.levels() {
                level.wait_for_room().await;
            }
        }
    }

    /// The first level that takes no further message.
    pub(crate) fn exceeded_budget(&self) -> Option<BudgetExceeded> {
        self.levels().find(|level| level.is_full()).map(Budget::exceeded_error)
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
        let full = self.exceeded_budget();
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
    pub fn unmetered() -> Arc<Self> {
        Budgets::new(&Limits::default()).forwarded_account("").charge(0)
    }

    /// Which budget has no room for any further reply. To be asked before a turn starts.
    #[must_use]
    pub fn exceeded_reply_budget(&self) -> Option<BudgetExceeded> {
        self.account.levels().find(|level| level.replies_exceed_limit()).map(Budget::exceeded_error)
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
    pub fn set_reply_size(&self, bytes: u64) {
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
    pub fn admit_reply(&self, reply: Reply) -> Reply {
        let size = reply.encoded_len() as u64;
        match self.try_charge_reply(size) {
            Ok(()) => reply,
            Err(full) => overloaded_reply(&reply, size, &full),
        }
    }

    /// The reply is about to wait for its sender. One that was not charged when it was made needs room.
    ///
    /// # Errors
    ///
    /// The budget that is used up: the reply is to be given up.
    pub(crate) fn try_charge_reply(&self, bytes: u64) -> Result<(), BudgetExceeded> {
        let former = self.reply.load(Ordering::Acquire);
        self.set_reply_size(bytes);
        if counted(bytes) <= former {
            return Ok(());
        }
        // A copy of the message may have told another size meanwhile.
        let over = |level: &&Budget| level.replies_exceed_limit_without(counted(bytes));
        match self.account.levels().find(over).map(Budget::exceeded_error) {
            Some(full) => {
                self.set_reply_size(0);
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
fn overloaded_reply(reply: &Reply, size: u64, full: &BudgetExceeded) -> Reply {
    let query = reply.kind() == MessageKind::Query && reply.outcome() != Outcome::Unknown;
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
