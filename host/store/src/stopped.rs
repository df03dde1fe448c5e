//! Whether a store that several tasks use has stopped for good (R5).

use std::sync::{Arc, Mutex, PoisonError};

use crate::StoreError;

/// Why a store has stopped; the first reason counts. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stopped(Arc<Mutex<Option<String>>>);

impl Stopped {
    /// Fails if the store has stopped.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] with the reason.
    pub fn check(&self) -> Result<(), StoreError> {
        let stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.clone().map_or(Ok(()), |why| Err(StoreError::Stopped(why)))
    }

    /// Stops the store. Returns the error that every call gets from then on.
    pub fn stop(&self, why: impl Into<String>) -> StoreError {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        StoreError::Stopped(stopped.get_or_insert_with(|| why.into()).clone())
    }
}
