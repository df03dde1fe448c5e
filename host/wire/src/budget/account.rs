//! The levels of the budgets, and the charges against them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ostraca_codes::{Code, codes};
use prost::Message as _;
use tokio::sync::Notify;

use super::OVERHEAD;
use crate::error::problem;
use crate::proto::{MessageKind, Outcome, Problem, Reply};

/// Budget for the replies that are queued on one link between nodes, shared by all principals.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    limit: u64,
    replies: AtomicU64,
}

impl ReplyBudget {
    pub(crate) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { limit: most, replies: AtomicU64::new(0) })
    }

    /// Bytes still available.
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.replies.load(Ordering::Acquire))
    }
}

/// One level of the budget: the bytes charged to it now, and its limit.
#[derive(Debug)]
pub(super) struct Budget {
    setting: &'static str,
    scope: Arc<str>,
    limit: u64,
    messages: AtomicU64,
    replies: AtomicU64,
    /// The link's budget, if this one is a share of it. Such a level never refuses messages.
    reply_budget: Option<Arc<ReplyBudget>>,
    /// Notified when the level has capacity again.
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

    /// A principal's share of the reply budget of a link: at most the bytes that are still free there. So one principal
    /// gets at most half of it, two get a third each, and there is always capacity for another one.
    pub(super) fn share(shared: Arc<ReplyBudget>, principal: &str) -> Self {
        let whose = format!("{principal} on a link between two nodes").into();
        let level = Self::new("peers.in-flight-message-bytes", whose, shared.limit);
        Self { reply_budget: Some(shared), ..level }
    }

    /// Whether a page of a channel may be charged. If nothing is charged yet, a page of any size may.
    pub(super) fn has_room_for_page(&self, bytes: u64) -> bool {
        let charged = self.charged_bytes();
        charged == 0 || charged.saturating_add(bytes) <= self.limit / 2
    }

    pub(super) fn charged_bytes(&self) -> u64 {
        self.messages.load(Ordering::Acquire).saturating_add(self.replies.load(Ordering::Acquire))
    }

    fn is_full(&self) -> bool {
        self.reply_budget.is_none() && self.charged_bytes() >= self.limit
    }

    /// Whether replies alone reach the limit, not counting `own` bytes of them.
    fn replies_exceed_limit_without(&self, own: u64) -> bool {
        let replies = self.replies.load(Ordering::Acquire).saturating_sub(own);
        match &self.reply_budget {
            None => replies >= self.limit,
            // A principal without queued replies may always queue one.
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
            // From here on no notification is missed.
            freed.as_mut().enable();
            if self.is_full() {
                freed.await;
            }
        }
    }

    pub(super) fn exceeded_error(&self) -> BudgetExceeded {
        BudgetExceeded { setting: self.setting, scope: self.scope.clone(), limit: self.limit }
    }
}

/// A budget that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    setting: &'static str,
    scope: Arc<str>,
    limit: u64,
}

impl BudgetExceeded {
    /// The error code of a refusal because of this.
    pub const CODE: Code = codes::OVERLOADED;
    /// Milliseconds after which a retry is worthwhile.
    pub const RETRY_AFTER: u32 = 100;

    /// The refusal of `what` because this budget is used up.
    #[must_use]
    pub fn problem(&self, what: &str) -> Problem {
        let mut details = problem(Self::CODE, format!("{what}: {self}"));
        details.help = "read pending replies, send fewer messages at once, and retry".into();
        details.retryable = true;
        details.retry_after_ms = Self::RETRY_AFTER;
        details.details.insert("setting".into(), self.setting.into());
        details.details.insert("limit".into(), self.limit.to_string());
        details
    }
}

impl std::fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { setting, scope: whose, limit: most } = self;
        write!(f, "{whose} reached `{setting}` ({most} bytes)")
    }
}

/// What one principal uses on this node. Kept as long as anything is held for the principal.
#[derive(Debug)]
pub(super) struct PrincipalUsage {
    pub(super) name: Arc<str>,
    pub(super) bytes: Budget,
    pub(super) connections: AtomicUsize,
    pub(super) streams: AtomicUsize,
    pub(super) uploads: AtomicUsize,
}

/// The budgets to which the traffic of a connection is charged.
#[derive(Debug)]
pub struct Account {
    /// The connection's own budget. For forwarded messages, the principal's share of the link's, if it has one.
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

    /// An account for what this node reads for several of its clients: it is charged to the node only.
    #[must_use]
    pub fn of_node(&self, name: &str) -> Arc<Self> {
        let name: Arc<str> = name.into();
        let principal = PrincipalUsage {
            bytes: Budget::new(self.node.setting, name.clone(), self.node.limit),
            name,
            connections: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
        };
        Self::new(None, principal.into(), self.node.clone())
    }

    pub(super) fn levels(&self) -> impl Iterator<Item = &Budget> {
        self.connection.iter().chain([&self.principal.bytes, &*self.node])
    }

    /// Whether the connection's own budget is used up. If so, the node reads nothing more from the connection.
    #[must_use]
    pub fn connection_is_full(&self) -> bool {
        self.connection.as_ref().is_some_and(Budget::is_full)
    }

    /// Waits until the connection's own budget has capacity.
    pub(crate) async fn connection_room(&self) {
        if let Some(level) = &self.connection {
            level.wait_for_room().await;
        }
    }

    /// Waits until every level has capacity.
    pub(crate) async fn wait_for_room(&self) {
        while self.exceeded_budget().is_some() {
            for level in self.levels() {
                level.wait_for_room().await;
            }
        }
    }

    /// The first level that accepts no further message.
    pub(crate) fn exceeded_budget(&self) -> Option<BudgetExceeded> {
        self.levels().find(|level| level.is_full()).map(Budget::exceeded_error)
    }

    /// Charges a message of `bytes` bytes, even if that exceeds a limit.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Arc<Charge> {
        let message = bytes.saturating_add(OVERHEAD);
        for level in self.levels() {
            level.messages.fetch_add(message, Ordering::AcqRel);
        }
        Arc::new(Charge { account: Arc::clone(self), message, reply: AtomicU64::new(0) })
    }

    /// Charges a message of `bytes` bytes, and returns a refusal if a level was already full.
    #[must_use]
    pub fn admit(self: &Arc<Self>, bytes: u64) -> (Arc<Charge>, Option<Problem>) {
        let full = self.exceeded_budget();
        (self.charge(bytes), full.map(|full| full.problem("message refused")))
    }

    /// The principal that is charged.
    #[must_use]
    pub fn principal(&self) -> &Arc<str> {
        &self.principal.name
    }
}

/// The charge for one message and its reply, or for a page of a channel, held until it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    message: u64,
    reply: AtomicU64,
}

impl Charge {
    /// The budget that has no capacity for another reply, if any. Check it before a turn starts.
    #[must_use]
    pub fn exceeded_reply_budget(&self) -> Option<BudgetExceeded> {
        self.account.levels().find(|level| level.replies_exceed_limit()).map(Budget::exceeded_error)
    }

    /// The account that is charged.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Whether `account` is the account that is charged.
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(&self.account, account)
    }

    /// Records that a turn has made a reply of `bytes` bytes.
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

    /// Returns the reply, or an `overloaded` refusal if a budget has no capacity for it.
    #[must_use]
    pub fn admit_reply(&self, reply: Reply) -> Reply {
        let size = reply.encoded_len() as u64;
        match self.try_charge_reply(size) {
            Ok(()) => reply,
            Err(full) => overloaded_reply(&reply, size, &full),
        }
    }

    /// Charges a reply that is about to be queued for its sender. If the reply was not charged when it was made, every
    /// budget must have capacity for it.
    ///
    /// # Errors
    ///
    /// The budget that is used up: drop the reply.
    pub(crate) fn try_charge_reply(&self, bytes: u64) -> Result<(), BudgetExceeded> {
        let former = self.reply.load(Ordering::Acquire);
        self.set_reply_size(bytes);
        if counted(bytes) <= former {
            return Ok(());
        }
        // Another copy of the message may have set another size in the meantime.
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

/// Replaces a reply for which a budget has no capacity. A query can be sent again. The outcome of a command is
/// recorded, and the next copy of the command gets it.
fn overloaded_reply(reply: &Reply, size: u64, full: &BudgetExceeded) -> Reply {
    let query = reply.kind() == MessageKind::Query && reply.outcome() != Outcome::Unknown;
    let outcome = if query { Outcome::NotRun } else { Outcome::Unknown };
    Reply {
        outcome: outcome.into(),
        problem: Some(full.problem(&format!("reply of {size} bytes dropped"))),
        epoch: reply.epoch,
        kind: reply.kind,
        ..Reply::default()
    }
}

/// The bytes of a reply that count: a short one is included in the charge of its message.
fn counted(bytes: u64) -> u64 {
    if bytes <= OVERHEAD { 0 } else { bytes }
}
