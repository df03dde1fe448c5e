//! Who may do what on this node: the cluster's policy and its revocations, as the node last read them.
//!
//! Both are rows of the cluster. The control thread passes on what it lists and watches, so a change takes effect on
//! every node within moments. A watch says nothing while nothing changes, so the node also reads both rows now and
//! then: a node that could not do so for longer than the policy's `revocation-staleness` refuses clients, because it
//! might not know of a revocation.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ostraca_codes::codes;
use ostraca_config::Policy;
use ostraca_config::policy::Permissions;
use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, StoredRow};
use ostraca_token::VerifiedToken;
use ostraca_wire::clock::BootInstant;
use ostraca_wire::outcome::permanent_problem;
use ostraca_wire::proto::Problem;
use ostraca_wire::server::TokenRefused;
use tokio::sync::watch;

use crate::clock::wall_millis;
use crate::error::Error;
use crate::rows::{self, PolicyRow, RevocationsRow};

/// Maximum number of principals whose permissions are kept; beyond that, all are computed anew.
const PRINCIPALS: usize = 10_000;

/// What the principals of nodes begin with.
const NODES: &str = "node/";

/// The longest and the shortest time between two reads of the rows.
const READS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_millis(200));

/// Why a principal may do nothing now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefused {
    /// The credential was revoked.
    #[error("{0} is revoked")]
    Revoked(String),
    /// The rows were not read recently enough.
    #[error(
        "this node has not been able to read the policy and the revocations for {} s (`revocation-staleness` = {} s)",
        age.as_secs(), limit.as_secs()
    )]
    Stale {
        /// How long.
        age: Duration,
        /// The limit in the policy.
        limit: Duration,
    },
    /// The rows were not read yet, or cannot be understood.
    #[error("{0}")]
    Unknown(String),
}

impl AccessRefused {
    /// The refusal of a request of this principal.
    #[must_use]
    pub fn problem(&self, principal: &str) -> Problem {
        match self {
            Self::Revoked(_) => permanent_problem(
                codes::ACCESS_DENIED,
                format!("`{principal}` may do nothing: {self}"),
                "get another credential from an operator of the cluster",
            ),
            Self::Stale { .. } | Self::Unknown(_) => {
                let help =
                    "use another node; `ostraca status` shows whether this one reaches its store";
                let mut unknown = permanent_problem(codes::ACCESS_UNKNOWN, self.to_string(), help);
                unknown.retryable = true;
                unknown
            }
        }
    }
}

/// The refusal of something that the policy does not permit: `principal` may not `what`.
#[must_use]
pub fn denied(principal: &str, permissions: &Permissions, what: &str) -> Problem {
    let help = match permissions.roles() {
        [] => "it has no role; an operator can grant it one (`ostraca policy`)".to_owned(),
        roles => format!(
            "its roles are: {}; an operator can grant it another (`ostraca policy`)",
            roles.join(", ")
        ),
    };
    permanent_problem(codes::ACCESS_DENIED, format!("`{principal}` may not {what}"), &help)
}

/// The node's knowledge of the policy and the revocations. Clones share it.
#[derive(Clone, Debug)]
pub struct AccessRegistry(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: RwLock<Arc<Access>>,
    /// When both rows were last known to be in force; `None` if they never were.
    confirmed: Mutex<Option<Confirmed>>,
    /// Whether both rows were read since the node's start. Until then, it knows at most those of its previous run.
    was_read: AtomicBool,
    changed: watch::Sender<u64>,
}

/// A moment, and how long before it both rows were in force.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    at: BootInstant,
    before: Duration,
}

impl Confirmed {
    fn age(self) -> Duration {
        self.at.elapsed().saturating_add(self.before)
    }
}

/// The rows as of one moment.
#[derive(Debug)]
struct Access {
    policy: Result<Arc<Policy>, String>,
    /// The rows of the policy and of the revocations, if there are any.
    rows: [Option<StoredRow>; 2],
    /// Subjects as in a [`Revocation`](rows::Revocation).
    revoked: Result<Arc<HashSet<String>>, String>,
    /// The last ones that could be understood.
    last_revoked: Arc<HashSet<String>>,
    permissions: Mutex<HashMap<String, Arc<Permissions>>>,
}

impl Default for AccessRegistry {
    /// Knows nothing yet.
    fn default() -> Self {
        let unread = || "this node has not read the cluster's policy yet".to_owned();
        let access = Access {
            policy: Err(unread()),
            rows: [None, None],
            revoked: Ok(Arc::default()),
            last_revoked: Arc::default(),
            permissions: Mutex::default(),
        };
        Self(Arc::new(Shared {
            current: RwLock::new(Arc::new(access)),
            confirmed: Mutex::default(),
            was_read: AtomicBool::new(false),
            changed: watch::Sender::new(0),
        }))
    }
}

impl AccessRegistry {
    /// What a principal may do now. `subjects` are what revocations may name: the principal and its credential.
    ///
    /// # Errors
    /// [`AccessRefused`] if it may do nothing.
    pub fn permissions(
        &self,
        principal: &str,
        subjects: &[String],
    ) -> Result<Arc<Permissions>, AccessRefused> {
        let access = self.current();
        access.check_revocations(principal, subjects)?;
        let policy = access.policy.as_ref().map_err(|why| AccessRefused::Unknown(why.clone()))?;
        self.check_age(policy.revocation_staleness())?;
        let mut known = lock(&access.permissions);
        if let Some(permissions) = known.get(principal) {
            return Ok(permissions.clone());
        }
        if known.len() >= PRINCIPALS {
            known.clear();
        }
        let permissions = Arc::new(policy.permissions(principal));
        known.insert(principal.to_owned(), permissions.clone());
        Ok(permissions)
    }

    /// Refuses a credential that was revoked.
    ///
    /// # Errors
    /// [`AccessRefused::Revoked`]; [`AccessRefused::Unknown`] if the revocations cannot be understood.
    pub fn check_revocations(
        &self,
        principal: &str,
        subjects: &[String],
    ) -> Result<(), AccessRefused> {
        self.current().check_revocations(principal, subjects)
    }

    /// Checks a token, at `utc_ms` of the cluster's UTC.
    ///
    /// # Errors
    /// [`TokenRefused::NotReady`] while the policy is not known, and instead of [`TokenRefused::Invalid`] while only
    /// that of the node's previous run is: the policy in force may have another issuer or other keys.
    pub fn check_token(
        &self,
        token: &str,
        cluster: ClusterId,
        utc_ms: u64,
    ) -> Result<VerifiedToken, TokenRefused> {
        let not_ready = |refused: AccessRefused| TokenRefused::NotReady(refused.to_string());
        let policy = self.policy().map_err(not_ready)?;
        self.check_age(policy.revocation_staleness()).map_err(not_ready)?;
        ostraca_token::verify(policy.issuers(), token, cluster, utc_ms, policy.token_ttl())
            .map_err(|error| match self.0.was_read.load(Ordering::Acquire) {
                true => TokenRefused::Invalid(error.to_string()),
                false => TokenRefused::NotReady(format!(
                    "this node knows only the policy of its previous run, in which the token is not valid: {error}"
                )),
            })
    }

    /// Like [`AccessRegistry::permissions`], but as of whenever the rows were last read; by the default policy if they
    /// never were. For requests that show why a node cannot read them.
    ///
    /// # Errors
    /// [`AccessRefused::Revoked`]; [`AccessRefused::Unknown`] if the policy was read and cannot be understood.
    pub fn last_known_permissions(
        &self,
        principal: &str,
        subjects: &[String],
    ) -> Result<Arc<Permissions>, AccessRefused> {
        match self.permissions(principal, subjects) {
            Err(AccessRefused::Stale { .. } | AccessRefused::Unknown(_)) => {
                let access = self.current();
                let known = |subject: &&String| access.last_revoked.contains(*subject);
                if let Some(subject) = subjects.iter().find(known)
                    && !principal.starts_with(NODES)
                {
                    return Err(AccessRefused::Revoked(subject.clone()));
                }
                let policy = match &access.rows[0] {
                    Some(_) => access.policy.clone(),
                    None => default_policy().map(Arc::new),
                };
                let permissions = policy.map(|policy| Arc::new(policy.permissions(principal)));
                permissions.map_err(AccessRefused::Unknown)
            }
            known => known,
        }
    }

    /// The policy in force.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn policy(&self) -> Result<Arc<Policy>, AccessRefused> {
        self.current().policy.clone().map_err(AccessRefused::Unknown)
    }

    /// Changes whenever the policy or the revocations change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Handles a row from a watch. Other rows, and rows older than the last observed one, are ignored.
    pub fn on_row_changed(&self, row: &StoredRow) {
        let changed = {
            let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
            match current.with(row) {
                Some(changed) => {
                    *current = Arc::new(changed);
                    true
                }
                None => false,
            }
        };
        if changed {
            self.0.changed.send_modify(|count| *count += 1);
        }
    }

    /// Handles both rows as of `read_at`. A row that does not exist was never written: these rows are never deleted.
    pub fn on_rows_read(&self, rows: &[StoredRow], read_at: BootInstant) {
        self.confirm(rows, Confirmed { at: read_at, before: Duration::ZERO });
        self.0.was_read.store(true, Ordering::Release);
    }

    /// Handles what the node remembers from its previous run: both rows, and when they were last known to be in force,
    /// by the wall clock in milliseconds. They count for as long as they would have without the restart.
    pub fn load_cached(&self, rows: &[StoredRow], read_ms: u64) {
        // If the clock was set back, the age is unknown.
        if let Some(before) = wall_millis().checked_sub(read_ms) {
            let before = Duration::from_millis(before);
            self.confirm(rows, Confirmed { at: BootInstant::now(), before });
        }
    }

    /// What a node remembers for its next start: when both rows were last known to be in force, and the rows. `None` if
    /// they are not known.
    #[must_use]
    pub fn to_cache(&self) -> Option<(u64, Vec<StoredRow>)> {
        let age = (*lock(&self.0.confirmed))?.age();
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let rows = self.current().rows.iter().flatten().cloned().collect();
        Some((wall_millis().saturating_sub(age), rows))
    }

    fn confirm(&self, rows: &[StoredRow], read: Confirmed) {
        for row in rows {
            self.on_row_changed(row);
        }
        let first = {
            let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
            let first = current.policy.is_err() && current.rows[0].is_none();
            if first {
                *current = Arc::new(current.with_default_policy());
            }
            first
        };
        if first {
            self.0.changed.send_modify(|count| *count += 1);
        }
        let mut confirmed = lock(&self.0.confirmed);
        if confirmed.is_none_or(|before| read.age() < before.age()) {
            *confirmed = Some(read);
        }
    }

    /// Reads both rows now and then, for as long as the node runs.
    pub async fn keep_fresh(&self, store: &dyn ClusterStore) {
        let mut failing = false;
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            let staleness =
                self.policy().map_or(Duration::ZERO, |policy| policy.revocation_staleness());
            match self.read(store).await {
                Ok(()) => failing = false,
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "cannot read the policy and the revocations; retrying");
                }
                Err(_) => {}
            }
            let pause = (staleness / 8).clamp(READS.1, READS.0);
            // A new policy may have a shorter limit.
            let _ = tokio::time::timeout(pause, changes.changed()).await;
        }
    }

    /// Reads both rows.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn read(&self, store: &dyn ClusterStore) -> Result<(), Error> {
        let read_at = BootInstant::now();
        let (policy, revocations) =
            tokio::join!(store.get(rows::POLICY), store.get(rows::REVOCATIONS));
        let rows: Vec<_> = [policy?, revocations?].into_iter().flatten().collect();
        self.on_rows_read(&rows, read_at);
        Ok(())
    }

    fn current(&self) -> Arc<Access> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check_age(&self, limit: Duration) -> Result<(), AccessRefused> {
        let Some(confirmed) = *lock(&self.0.confirmed) else {
            return Err(AccessRefused::Unknown(
                "this node has not read the cluster's policy yet".into(),
            ));
        };
        let age = confirmed.age();
        if age > limit { Err(AccessRefused::Stale { age, limit }) } else { Ok(()) }
    }
}

impl Access {
    fn check_revocations(&self, principal: &str, subjects: &[String]) -> Result<(), AccessRefused> {
        // A node cannot be revoked: whoever has its key can change the rows, and it is the way back.
        if principal.starts_with(NODES) {
            return Ok(());
        }
        let revoked = self.revoked.as_ref().map_err(|why| AccessRefused::Unknown(why.clone()))?;
        match subjects.iter().find(|subject| revoked.contains(*subject)) {
            Some(subject) => Err(AccessRefused::Revoked(subject.clone())),
            None => Ok(()),
        }
    }

    /// The state after a row has changed; `None` if that changes nothing.
    fn with(&self, row: &StoredRow) -> Option<Self> {
        let mut after = Self {
            policy: self.policy.clone(),
            rows: self.rows.clone(),
            revoked: self.revoked.clone(),
            last_revoked: self.last_revoked.clone(),
            permissions: Mutex::default(),
        };
        let is_newer = |known: &Option<StoredRow>| {
            known.as_ref().is_none_or(|known| row.revision > known.revision)
        };
        match row.key.as_str() {
            rows::POLICY if is_newer(&self.rows[0]) => {
                after.rows[0] = Some(row.clone());
                // A policy of a later release may restrict what this one cannot express: then this node refuses
                // clients.
                after.policy = read_policy(row)
                    .inspect_err(|error| tracing::error!(%error, "cannot read the policy"))
                    .map(Arc::new);
            }
            rows::REVOCATIONS if is_newer(&self.rows[1]) => {
                after.rows[1] = Some(row.clone());
                let subjects = |row: RevocationsRow| {
                    Arc::new(row.entries.into_iter().map(|entry| entry.subject).collect())
                };
                after.revoked = rows::decode(row)
                    .map(subjects)
                    .map_err(|error| error.to_string())
                    .inspect_err(|error| tracing::error!(%error, "cannot read the revocations"));
                if let Ok(revoked) = &after.revoked {
                    after.last_revoked = revoked.clone();
                }
            }
            _ => return None,
        }
        Some(after)
    }

    fn with_default_policy(&self) -> Self {
        Self {
            policy: default_policy().map(Arc::new),
            rows: self.rows.clone(),
            revoked: self.revoked.clone(),
            last_revoked: self.last_revoked.clone(),
            permissions: Mutex::default(),
        }
    }
}

fn default_policy() -> Result<Policy, String> {
    Policy::parse(Policy::default_toml(), "default policy").map_err(|error| error.to_string())
}

fn read_policy(row: &StoredRow) -> Result<Policy, String> {
    let text = rows::decode::<PolicyRow>(row).map_err(|error| error.to_string())?.text;
    Policy::parse(&text, "policy").map_err(|error| {
        format!("this node cannot understand the cluster's policy ({error}); it may be of a later release")
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each value is replaced as a whole, so it is consistent wherever a panic can occur.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
