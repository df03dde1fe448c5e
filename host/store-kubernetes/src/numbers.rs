//! Small numbers for the members of a cluster: each holds the smallest one that was free (E4, E5).
//!
//! A number is a row that its holder renews. A member lists the rows and competes for the smallest number without one,
//! or whose row has lapsed; if another member was faster, it lists them again. A number says nothing about shards: the
//! manager alone writes their owners. Numbers keep the order of members when some of them leave, and name nodes that
//! have no stable name.
//!
//! Nobody compares times of different machines (R8). An observer times on its own clock how long a row keeps its
//! revision, from the end of one read to the start of another. The clock must count the time in which the machine is
//! suspended.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, StoreError, StoredRow};
use serde::{Deserialize, Serialize};

/// What the keys of the rows start with.
pub const PREFIX: &str = "numbers/";

/// A clock that never goes back, and counts suspension.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The value of a row.
#[derive(Serialize, Deserialize)]
struct NumberValue {
    holder: String,
    /// Random, for each acquisition.
    nonce: u64,
    renewals: u64,
}

/// Times the rows of numbers, and acquires one.
pub struct Numbers {
    store: Arc<dyn ClusterStore>,
    clock: Clock,
    holder: String,
    lease: Duration,
    margin: Duration,
    /// The revision of each row, and when it was seen first.
    seen: HashMap<String, (u64, Duration)>,
    /// When the rows were listed last.
    listed: Option<Duration>,
}

/// A number that this process holds.
pub struct Number {
    store: Arc<dyn ClusterStore>,
    clock: Clock,
    lease: Duration,
    number: u32,
    row: StoredRow,
    value: NumberValue,
    /// When the last successful renewal was sent.
    renewed: Duration,
}

/// Why a number could not be renewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewError {
    /// Another member holds it now: it had lapsed.
    #[error("the number {0} is held by another member")]
    Lost(u32),
    /// The store failed; the number is held until the lease ends.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbers").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Number").field("number", &self.number).finish_non_exhaustive()
    }
}

fn key(number: u32) -> String {
    format!("{PREFIX}{number:05}")
}

fn encode(value: &NumberValue) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Corrupt(error.to_string()))
}

impl Numbers {
    /// Numbers of `lease`, of which others wait for `margin` more before they take one.
    pub fn new(
        store: Arc<dyn ClusterStore>,
        clock: Clock,
        holder: impl Into<String>,
        lease: Duration,
        margin: Duration,
    ) -> Self {
        let holder = holder.into();
        Self { store, clock, holder, lease, margin, seen: HashMap::new(), listed: None }
    }

    /// Acquires the smallest free number. Call it again at each renewal until it succeeds: only an observer knows which
    /// rows have lapsed.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed. A number may then be held in vain until its lease ends.
    pub async fn acquire(&mut self) -> Result<Number, StoreError> {
        loop {
            let (number, expected) = self.observe().await?;
            let value =
                NumberValue { holder: self.holder.clone(), nonce: rand::random(), renewals: 0 };
            let bytes = encode(&value)?;
            let renewed = (self.clock)();
            let change =
                CompareAndSet { key: key(number), expected, value: Some(bytes.clone().into()) };
            match self.store.compare_and_set(change).await {
                Ok(revision) => {
                    let row = StoredRow { key: key(number), revision, value: bytes.into() };
                    let (store, clock, lease) =
                        (self.store.clone(), self.clock.clone(), self.lease);
                    return Ok(Number { store, clock, lease, number, row, value, renewed });
                }
                // Another member was faster.
                Err(CompareAndSetError::RevisionMismatch(_)) => {}
                Err(CompareAndSetError::Store(error)) => return Err(error),
            }
        }
    }

    /// Lists the rows, and finds the smallest number without one or with a lapsed one.
    async fn observe(&mut self) -> Result<(u32, Option<u64>), StoreError> {
        let before = (self.clock)();
        let (rows, _) = self.store.list(PREFIX).await?;
        let after = (self.clock)();
        // An observer that was late counts every lease as just renewed.
        let late = self.listed.is_none_or(|listed| before.saturating_sub(listed) > self.lease / 2);
        let known = std::mem::take(&mut self.seen);
        let mut lapsed = HashMap::new();
        for row in &rows {
            let first = match known.get(&row.key) {
                Some((revision, first)) if *revision == row.revision && !late => *first,
                _ => after,
            };
            if before.saturating_sub(first) >= self.lease + self.margin {
                lapsed.insert(row.key.as_str(), row.revision);
            }
            self.seen.insert(row.key.clone(), (row.revision, first));
        }
        self.listed = Some(after);
        let free = (0..).find_map(|number| {
            let key = key(number);
            match lapsed.get(key.as_str()) {
                Some(revision) => Some((number, Some(*revision))),
                None => (!self.seen.contains_key(&key)).then_some((number, None)),
            }
        });
        free.ok_or_else(|| StoreError::LimitExceeded("every number is held".into()))
    }
}

impl Number {
    /// The number, from 0.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether this process still holds it: less than 80 % of the lease has passed since the last successful renewal
    /// was sent (R8).
    #[must_use]
    pub fn is_held(&self) -> bool {
        (self.clock)().saturating_sub(self.renewed) < self.lease * 4 / 5
    }

    /// Renews it.
    ///
    /// # Errors
    /// [`RenewError`].
    pub async fn renew(&mut self) -> Result<(), RenewError> {
        let sent = (self.clock)();
        self.value.renewals += 1;
        let value = encode(&self.value)?;
        let change = self.change(Some(value.clone()));
        match self.store.compare_and_set(change).await {
            Ok(revision) => {
                self.row.revision = revision;
                self.row.value = value.into();
                self.renewed = sent;
                Ok(())
            }
            Err(CompareAndSetError::RevisionMismatch(found)) => match found {
                // An earlier renewal of this process, whose answer was lost. The next one counts.
                Some(row) if self.is_own(&row) => {
                    self.row = row;
                    Err(StoreError::Unavailable("the answer to the last renewal was lost".into())
                        .into())
                }
                _ => Err(RenewError::Lost(self.number)),
            },
            Err(CompareAndSetError::Store(error)) => Err(error.into()),
        }
    }

    /// Gives it up, so that another member need not wait until it lapses.
    ///
    /// # Errors
    /// [`RenewError`].
    pub async fn release(self) -> Result<(), RenewError> {
        match self.store.compare_and_set(self.change(None)).await {
            Ok(_) => Ok(()),
            Err(CompareAndSetError::RevisionMismatch(_)) => Err(RenewError::Lost(self.number)),
            Err(CompareAndSetError::Store(error)) => Err(error.into()),
        }
    }

    fn change(&self, value: Option<Vec<u8>>) -> CompareAndSet {
        let (key, expected) = (self.row.key.clone(), Some(self.row.revision));
        CompareAndSet { key, expected, value: value.map(Into::into) }
    }

    /// Whether a row is of this acquisition.
    fn is_own(&self, row: &StoredRow) -> bool {
        let value = serde_json::from_slice::<NumberValue>(&row.value);
        value.is_ok_and(|value| value.nonce == self.value.nonce)
    }
}
