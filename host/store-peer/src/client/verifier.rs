//! Remembers the cluster's store, to detect when it is replaced or rolled back (R5).
//!
//! A store's sequence rises while a hello is in progress, and two links may observe it in any order. So a hello is
//! compared with what was known when it was *sent*.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use ostraca_store::witness::{ObservedStore, ReadError, Witness, WitnessMismatch};

use crate::error::ConnectError;

/// What is known about the store: shared by all links of a process, and saved in a file for the next one.
#[derive(Debug)]
pub struct StoreVerifier {
    cluster: ClusterId,
    path: Option<PathBuf>,
    verified: Mutex<Verified>,
    /// The highest sequence seen in any response.
    sequence: AtomicU64,
    /// Why the store was refused, as last reported.
    refused: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Verified {
    witness: Option<Witness>,
    identity: Option<StoreIdentity>,
}

impl StoreVerifier {
    /// Reads the witness file `path`, if it exists. Without a path, nothing is remembered beyond this process. Blocks.
    ///
    /// # Errors
    /// [`ConnectError::InvalidWitness`], [`ConnectError::Io`].
    pub fn open(cluster: ClusterId, path: Option<PathBuf>) -> Result<Arc<Self>, ConnectError> {
        let witness = match &path {
            None => None,
            Some(path) => Witness::read(path).map_err(|error| match error {
                ReadError::InvalidFormat => ConnectError::InvalidWitness(path.clone()),
                ReadError::Io(source) => ConnectError::Io { path: path.clone(), source },
            })?,
        };
        let sequence = witness.map_or(0, |witness| witness.sequence);
        let met = Mutex::new(Verified { witness, identity: None });
        let refused = Mutex::default();
        Ok(Arc::new(Self { cluster, path, verified: met, sequence: sequence.into(), refused }))
    }

    /// Writes the newest durable sequence to the file. Call it periodically: after this process has ended, a
    /// rollback of the store is detected only if the store falls behind the last sequence in the file. Blocks.
    ///
    /// # Errors
    /// [`ConnectError::Io`].
    pub fn persist(&self) -> Result<(), ConnectError> {
        let (Some(path), Some(witness)) = (&self.path, self.witness()) else { return Ok(()) };
        let written = witness.write(path);
        written.map_err(|source| ConnectError::Io { path: path.clone(), source })
    }

    /// The cluster that the store must belong to.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The state that the store must not fall behind from now on.
    pub(crate) fn witness(&self) -> Option<Witness> {
        let witness = self.lock_verified().witness?;
        let sequence = witness.sequence.max(self.sequence.load(Ordering::Acquire));
        Some(Witness { sequence, ..witness })
    }

    /// Records the sequence from a store's response.
    pub(crate) fn saw(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Checks the identity that a store reported; `seen` is what was known when the hello was sent. Returns
    /// whether the file needs to be written.
    ///
    /// # Errors
    /// Why the store must not be used, and how to fix it.
    pub(crate) fn verify(
        &self,
        seen: Option<Witness>,
        identity: StoreIdentity,
        openings: &[u64],
    ) -> Result<bool, String> {
        if identity.cluster != self.cluster {
            return Err(format!(
                "the store belongs to cluster {} (\"{}\"), this node to cluster {}: fix the addresses that this node joins",
                identity.cluster, identity.cluster_name, self.cluster
            ));
        }
        let StoreIdentity {
            store_id: store, open_count: opened, durable_sequence: sequence, ..
        } = identity;
        if let Some(seen) = seen {
            let found = ObservedStore {
                store_id: store,
                open_count: opened,
                open_nonces: openings,
                sequence,
            };
            seen.check(found).map_err(|difference| self.advise(&difference))?;
        }
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.saw(sequence);
        let mut met = self.lock_verified();
        let fresh = Witness::from_identity(&identity);
        let witness = met.witness.map_or(fresh, |old| old.merge(fresh));
        let news = met.witness.is_none_or(|old| old.open_count != witness.open_count);
        met.witness = Some(witness);
        if met.identity.as_ref().is_none_or(|old| old.open_count <= opened) {
            met.identity = Some(identity);
        }
        Ok(news)
    }

    fn advise(&self, difference: &WitnessMismatch) -> String {
        let accept = match &self.path {
            Some(path) => format!("remove the witness {} and restart this node", path.display()),
            None => "restart this node".into(),
        };
        let (what, do_it) = match difference {
            WitnessMismatch::DifferentStore { .. } => {
                ("restore the former store", "accept this one")
            }
            WitnessMismatch::Forked { .. } => {
                ("use the original", "accept that this copy may lack acknowledged turns")
            }
            WitnessMismatch::RolledBack { .. } => {
                ("acknowledged turns are missing: restore the newer copy", "accept their loss")
            }
        };
        format!(
            "the store is not the one that this node used before: {difference}; {what}, or {accept} to {do_it}"
        )
    }

    /// Records a refusal, and returns whether it differs from the last one. Links retry forever, so it may recur often.
    pub(crate) fn record_refusal(&self, why: &str) -> bool {
        // The message contains the store's sequence, which rises.
        let why: String = why.chars().filter(|c| !c.is_ascii_digit()).collect();
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let news = refused.as_ref() != Some(&why);
        *refused = Some(why);
        news
    }

    /// The store's identity; `None` before the first hello.
    pub(crate) fn identity(&self) -> Option<StoreIdentity> {
        let identity = self.lock_verified().identity.clone()?;
        let sequence = identity.durable_sequence.max(self.sequence.load(Ordering::Acquire));
        Some(StoreIdentity { durable_sequence: sequence, ..identity })
    }

    fn lock_verified(&self) -> MutexGuard<'_, Verified> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(opened: u64, nonce: u64, sequence: u64) -> StoreIdentity {
        let (cluster, cluster_name) = (ClusterId(1), "one".into());
        StoreIdentity {
            store_id: 7,
            cluster,
            cluster_name,
            open_count: opened,
            open_nonce: nonce,
            durable_sequence: sequence,
        }
    }

    fn meet(
        known: &StoreVerifier,
        identity: StoreIdentity,
        openings: &[u64],
    ) -> Result<bool, String> {
        known.verify(known.witness(), identity, openings)
    }

    #[test]
    fn the_witness_refuses_other_forked_and_rolled_back_stores() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("witness");
        let known = StoreVerifier::open(ClusterId(1), Some(path.clone())).unwrap();
        assert_eq!(meet(&known, store(1, 10, 5), &[10]), Ok(true));
        known.saw(9);
        known.persist().unwrap();
        for known in [known, StoreVerifier::open(ClusterId(1), Some(path.clone())).unwrap()] {
            let other = StoreIdentity { store_id: 8, ..store(1, 10, 9) };
            for (identity, openings, expected_text) in [
                (other, vec![10], "another store"),
                (store(1, 10, 8), vec![10], "rolled back"),
                (store(1, 11, 9), vec![11], "forked"),
                (store(2, 20, 9), vec![11, 20], "forked"),
            ] {
                let why = meet(&known, identity, &openings).unwrap_err();
                assert!(why.contains(expected_text) && why.contains("remove the witness"), "{why}");
            }
            assert_eq!(meet(&known, store(2, 20, 9), &[10, 20]), Ok(true));
            assert_eq!(meet(&known, store(2, 20, 9), &[10, 20]), Ok(false));
        }
        std::fs::write(&path, "rubbish").unwrap();
        let bad = StoreVerifier::open(ClusterId(1), Some(path));
        assert!(matches!(bad, Err(ConnectError::InvalidWitness(_))));
    }

    #[test]
    fn a_hello_is_compared_with_the_state_when_it_was_sent() {
        let known = StoreVerifier::open(ClusterId(1), None).unwrap();
        let sent = known.witness();
        meet(&known, store(1, 10, 50), &[10]).unwrap();
        assert_eq!(
            known.verify(sent, store(1, 10, 49), &[10]),
            Ok(false),
            "the hello was sent earlier"
        );
        assert!(meet(&known, store(1, 10, 49), &[10]).is_err());
        assert_eq!(known.identity().unwrap().durable_sequence, 50);
    }

    #[test]
    fn a_refusal_is_reported_once_until_the_store_is_accepted() {
        let known = StoreVerifier::open(ClusterId(1), None).unwrap();
        meet(&known, store(1, 10, 5), &[10]).unwrap();
        let older = meet(&known, store(1, 10, 4), &[10]).unwrap_err();
        assert!(known.record_refusal(&older) && !known.record_refusal(&older));
        let still = meet(&known, store(1, 10, 3), &[10]).unwrap_err();
        assert_ne!(older, still);
        assert!(!known.record_refusal(&still), "only the sequence differs");
        let other =
            meet(&known, StoreIdentity { store_id: 8, ..store(1, 10, 5) }, &[10]).unwrap_err();
        assert!(known.record_refusal(&other));
        meet(&known, store(1, 10, 6), &[10]).unwrap();
        assert!(known.record_refusal(&other));
    }

    #[test]
    fn another_clusters_store_is_refused_by_name() {
        let known = StoreVerifier::open(ClusterId(2), None).unwrap();
        let why = meet(&known, store(1, 10, 5), &[10]).unwrap_err();
        assert!(why.contains("\"one\"") && why.contains(&ClusterId(2).to_string()), "{why}");
    }
}
