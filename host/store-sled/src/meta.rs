//! The store's records about itself (its identity, its openings, its sequence), and the body of a row.

use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use ostraca_store::record::{Body, RecordKind};
use serde::{Deserialize, Serialize};

/// Number of remembered openings, so that a witness from a few openings ago still detects a fork.
const REMEMBERED: usize = 128;

pub(crate) const IDENTITY: &[u8] = b"identity";
pub(crate) const SEQUENCE: &[u8] = b"sequence";

/// Identifies the store and its cluster, and records its openings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdentityRecord {
    pub(crate) store_id: u128,
    pub(crate) cluster: ClusterId,
    pub(crate) cluster_name: String,
    pub(crate) open_count: u64,
    /// The nonces of the last openings, newest last.
    pub(crate) open_nonces: Vec<u64>,
}

impl Body for IdentityRecord {
    const KIND: RecordKind = RecordKind::Meta;
}

impl IdentityRecord {
    pub(crate) fn new(cluster: ClusterId, cluster_name: &str) -> Self {
        let cluster_name = cluster_name.into();
        Self { store_id: rand::random(), cluster, cluster_name, open_count: 0, open_nonces: vec![] }
    }

    /// The identity as of the last opening.
    pub(crate) fn store_identity(self, durable_sequence: u64) -> StoreIdentity {
        let open_nonce = self.open_nonces.last().copied().unwrap_or_default();
        let Self { store_id, cluster, cluster_name, open_count, .. } = self;
        StoreIdentity { store_id, cluster, cluster_name, open_count, open_nonce, durable_sequence }
    }

    /// Counts another opening, and returns its nonce.
    pub(crate) fn record_opening(&mut self) -> u64 {
        let nonce = rand::random();
        self.open_count += 1;
        self.open_nonces.push(nonce);
        let forgotten = self.open_nonces.len().saturating_sub(REMEMBERED);
        self.open_nonces.drain(..forgotten);
        nonce
    }
}

/// The highest sequence of any write; part of every batch that writes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreSequence(pub(crate) u64);

impl Body for StoreSequence {
    const KIND: RecordKind = RecordKind::Meta;
}

/// A row of the `ClusterStore`; its key is the record's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowBody {
    pub(crate) revision: u64,
    pub(crate) value: bytes::Bytes,
}

impl Body for RowBody {
    const KIND: RecordKind = RecordKind::Row;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_store::record::Codec;
    use ostraca_store::witness::ObservedStore;

    #[test]
    fn the_bytes_of_the_stores_own_records_do_not_change() {
        let codec = Codec::default();
        let identity = IdentityRecord {
            store_id: 300,
            cluster: ClusterId(2),
            cluster_name: "c".into(),
            open_count: 3,
            open_nonces: vec![4, 5],
        };
        let golden = [33, 3, 0, 0, 0, 0xac, 2, 2, 1, b'c', 3, 2, 4, 5];
        assert_eq!(codec.encode(b"", &identity).unwrap(), golden);
        assert_eq!(codec.decode::<IdentityRecord>(b"", &golden).unwrap(), identity);
        let golden = [33, 3, 0, 0, 0, 0x80, 1];
        assert_eq!(codec.encode(b"", &StoreSequence(128)).unwrap(), golden);
        let row = RowBody { revision: 128, value: "v".into() };
        let golden = [32, 3, 0, 0, 0, 0x80, 1, 1, b'v'];
        assert_eq!(codec.encode(b"", &row).unwrap(), golden);
        assert_eq!(codec.decode::<RowBody>(b"", &golden).unwrap(), row);
    }

    #[test]
    fn openings_are_distinguished_as_far_back_as_remembered() {
        let mut identity = IdentityRecord::new(ClusterId(1), "c");
        let given: Vec<_> = (0..200).map(|_| identity.record_opening()).collect();
        let IdentityRecord { store_id: store, open_count: opened, open_nonces: ref nonces, .. } =
            identity;
        let found =
            ObservedStore { store_id: store, open_count: opened, open_nonces: nonces, sequence: 0 };
        for (number, nonce) in (1..).zip(given) {
            assert_eq!(found.opening_has_nonce(number, nonce), number > 200 - REMEMBERED as u64);
            assert!(!found.opening_has_nonce(number, nonce ^ 1));
        }
        assert!(!found.opening_has_nonce(201, 0));
    }
}
