//! The principals for which a node holds anything.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::account::{Account, Budget, Charge, PrincipalUsage, ReplyBudget};
use crate::limits::Limits;

/// Number of names at which unused ones are first purged.
const PURGE_THRESHOLD: usize = 64;

#[derive(Debug)]
struct PrincipalTable {
    by_name: HashMap<Arc<str>, Weak<PrincipalUsage>>,
    /// Number of names at which unused ones are purged.
    purge_at: usize,
}

/// All budgets of a node.
#[derive(Debug)]
pub struct Budgets {
    pub(super) limits: Limits,
    node: Arc<Budget>,
    principals: Mutex<PrincipalTable>,
    /// Number of client connections.
    pub(super) connections: AtomicUsize,
    pub(super) uploads: AtomicUsize,
}

impl Budgets {
    /// The budgets of a node with these limits, with nothing charged yet.
    #[must_use]
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            limits: limits.clone(),
            node: Arc::new(Budget::new(
                "network.node-bytes",
                "this node's clients".into(),
                limits.node_bytes,
            )),
            principals: Mutex::new(PrincipalTable {
                by_name: HashMap::new(),
                purge_at: PURGE_THRESHOLD,
            }),
            connections: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    fn lock_principals(&self) -> MutexGuard<'_, PrincipalTable> {
        // A panic leaves the map consistent, so a poisoned lock is safe to use.
        self.principals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usage of a principal, shared by everything that holds it at the same time.
    pub(super) fn principal(&self, name: &str) -> Arc<PrincipalUsage> {
        let mut known = self.lock_principals();
        if let Some(principal) = known.by_name.get(name).and_then(Weak::upgrade) {
            return principal;
        }
        if known.by_name.len() >= known.purge_at {
            known.by_name.retain(|_, principal| principal.strong_count() > 0);
            known.purge_at = PURGE_THRESHOLD.max(known.by_name.len() * 2);
        }
        let name: Arc<str> = name.into();
        let bytes =
            Budget::new("network.principal-bytes", name.clone(), self.limits.principal_bytes);
        let principal = Arc::new(PrincipalUsage {
            name: name.clone(),
            bytes,
            connections: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
        });
        known.by_name.insert(name, Arc::downgrade(&principal));
        principal
    }

    /// The account of a client's connection.
    pub(super) fn connection(&self, principal: Arc<PrincipalUsage>) -> Arc<Account> {
        let most = self.limits.connection_bytes;
        let level = Budget::new("network.connection-bytes", "this connection".into(), most);
        Account::new(Some(level), principal, self.node.clone())
    }

    /// The account for what another node forwards for a principal.
    #[must_use]
    pub fn forwarded_account(&self, principal: &str) -> Arc<Account> {
        Account::new(None, self.principal(principal), self.node.clone())
    }

    /// Like [`Budgets::forwarded_account`], with a share of the link's reply budget.
    pub(crate) fn on_link(&self, principal: &str, link: &Arc<ReplyBudget>) -> Arc<Account> {
        let level = Budget::share(link.clone(), principal);
        Account::new(Some(level), self.principal(principal), self.node.clone())
    }

    /// Bytes charged for all clients.
    #[must_use]
    pub fn charged_bytes(&self) -> u64 {
        self.node.charged_bytes()
    }
}

impl Charge {
    /// A charge against none of the node's budgets, for messages that do not come from a client. It is never refused.
    #[must_use]
    pub fn unmetered() -> Arc<Self> {
        Budgets::new(&Limits::default()).forwarded_account("").charge(0)
    }
}
