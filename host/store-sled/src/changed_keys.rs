//! The keys that change while a backup reads the store.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ostraca_store::StoreError;

/// Collects the full keys of records that batches change, while a backup wants to know.
#[derive(Debug)]
pub(crate) struct ChangedKeys {
    are_wanted: AtomicBool,
    most: usize,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    keys: BTreeSet<Vec<u8>>,
    are_too_many: bool,
}

impl ChangedKeys {
    pub(crate) fn new(most: usize) -> Self {
        Self { are_wanted: AtomicBool::new(false), most, keys: Mutex::default() }
    }

    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted.load(Ordering::Acquire)
    }

    /// Begins to collect; `false` if another backup does so already.
    pub(crate) fn begin(&self) -> bool {
        let began = !self.are_wanted.swap(true, Ordering::AcqRel);
        if began {
            *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Keys::default();
        }
        began
    }

    /// Ends the collection.
    pub(crate) fn end(&self) {
        self.are_wanted.store(false, Ordering::Release);
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Keys::default();
    }

    /// Adds the keys of a batch. Must be called while the batch is being applied.
    pub(crate) fn add(&self, changed: Vec<Vec<u8>>) {
        if changed.is_empty() || !self.are_wanted() {
            return;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.are_too_many {
            return;
        }
        keys.keys.extend(changed);
        if keys.keys.len() > self.most {
            *keys = Keys { keys: BTreeSet::new(), are_too_many: true };
        }
    }

    /// Takes the keys that were collected since the last call, in order.
    pub(crate) fn take(&self) -> Result<BTreeSet<Vec<u8>>, StoreError> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match keys.are_too_many {
            false => Ok(std::mem::take(&mut keys.keys)),
            true => Err(StoreError::LimitExceeded(format!(
                "more than {} records changed during the backup (`store.backup-changes`)",
                self.most
            ))),
        }
    }
}
