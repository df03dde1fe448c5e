//! The witness of a store that is in no node: what this node knows of it (R5).

use std::path::PathBuf;

use ostraca_store::StoreIdentity;
use ostraca_store::witness::{ObservedStore, ReadError, Witness};
use ostraca_store_peer::ConnectError;

use crate::blocking::blocking;
use crate::error::NodeError;

/// The file with what this node knows of a store.
#[derive(Clone, Debug)]
pub(super) struct WitnessFile {
    pub(super) path: PathBuf,
    /// The store, as errors name it.
    pub(super) store: &'static str,
}

impl WitnessFile {
    /// The number of this node's last opening of the store; `None` if it has never opened it.
    ///
    /// # Errors
    /// [`NodeError::StoreConnect`] if the file cannot be read.
    pub(super) async fn last_opening(&self) -> Result<Option<u64>, NodeError> {
        let file = self.clone();
        let known = blocking(move || file.read()).await??;
        Ok(known.map(|witness| witness.open_count))
    }

    fn read(&self) -> Result<Option<Witness>, ConnectError> {
        Witness::read(&self.path).map_err(|error| match error {
            ReadError::InvalidFormat => ConnectError::InvalidWitness(self.path.clone()),
            ReadError::Io(source) => ConnectError::Io { path: self.path.clone(), source },
        })
    }

    /// Compares the store with the file, and writes the file anew.
    ///
    /// # Errors
    /// [`NodeError::StoreConnect`] if the store must not be used, or if the file cannot be read or written.
    pub(super) async fn update(
        &self,
        identity: StoreIdentity,
        openings: Vec<u64>,
    ) -> Result<(), NodeError> {
        let file = self.clone();
        Ok(blocking(move || file.update_now(&identity, &openings)).await??)
    }

    fn update_now(&self, identity: &StoreIdentity, openings: &[u64]) -> Result<(), ConnectError> {
        let Self { path, store } = self;
        let io = |source| ConnectError::Io { path: path.clone(), source };
        let known = self.read()?;
        if let Some(known) = known {
            let found = ObservedStore {
                store_id: identity.store_id,
                open_count: identity.open_count,
                open_nonces: openings,
                sequence: identity.durable_sequence,
            };
            known.check(found).map_err(|difference| {
                ConnectError::Refused(format!(
                    "{store} is not the one that this node used before: {difference}; use or restore that one, or \
                     remove the witness {} to accept this one, which may lack acknowledged changes",
                    path.display()
                ))
            })?;
        }
        let fresh = Witness::from_identity(identity);
        let witness = known.map_or(fresh, |known| known.merge(fresh));
        witness.write(path).map_err(io)
    }
}
