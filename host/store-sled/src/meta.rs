//! The store's records about itself: who it is, how often it was opened, its sequence.

use ostraca_core::ids::ClusterId;
use ostraca_store::record::{Body, Kind};
use serde::{Deserialize, Serialize};

/// Openings that are remembered, so that a witness from some openings ago still tells a fork.
const REMEMBERED: usize = 128;

pub(crate) const IDENTITY: &[u8] = b"identity";
pub(crate) const SEQUENCE: &[u8] = b"sequence";

/// Who the store is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) store: u128,
    pub(crate) cluster: ClusterId,
    pub(crate) cluster_name: String,
    pub(crate) opened: u64,
    /// The nonces of the last openings, the newest last.
    pub(crate) nonces: Vec<u64>,
}

impl Body for Identity {
    const KIND: Kind = Kind::Meta;
}

impl Identity {
    pub(crate) fn new(cluster: ClusterId, cluster_name: &str) -> Self {
        let cluster_name = cluster_name.into();
        Self { store: rand::random(), cluster, cluster_name, opened: 0, nonces: vec![] }
    }

    /// Counts one more opening; gives its nonce.
    pub(crate) fn open(&mut self) -> u64 {
        let nonce = rand::random();
        self.opened += 1;
        self.nonces.push(nonce);
        let forgotten = self.nonces.len().saturating_sub(REMEMBERED);
        self.nonces.drain(..forgotten);
        nonce
    }
}

/// The highest sequence given to any write; written with every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequence(pub(crate) u64);

impl Body for Sequence {
    const KIND: Kind = Kind::Meta;
}

/// A row of the `ClusterStore`, whose key is the record's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowBody {
    pub(crate) revision: u64,
    pub(crate) value: bytes::Bytes,
}

impl Body for RowBody {
    const KIND: Kind = Kind::Row;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_store::record::Codec;
    use ostraca_store::witness::Found;

    #[test]
    fn the_bytes_of_the_stores_own_records_do_not_change() {
        let codec = Codec::default();
        let identity = Identity {
            store: 300,
            cluster: ClusterId(2),
            cluster_name: "c".into(),
            opened: 3,
            nonces: vec![4, 5],
        };
        let golden = [33, 3, 0, 0, 0, 0xac, 2, 2, 1, b'c', 3, 2, 4, 5];
        assert_eq!(codec.encode(b"", &identity).unwrap(), golden);
        assert_eq!(codec.decode::<Identity>(b"", &golden).unwrap(), identity);
        let golden = [33, 3, 0, 0, 0, 0x80, 1];
        assert_eq!(codec.encode(b"", &Sequence(128)).unwrap(), golden);
        let row = RowBody { revision: 128, value: "v".into() };
        let golden = [32, 3, 0, 0, 0, 0x80, 1, 1, b'v'];
        assert_eq!(codec.encode(b"", &row).unwrap(), golden);
        assert_eq!(codec.decode::<RowBody>(b"", &golden).unwrap(), row);
    }

    #[test]
    fn openings_are_told_apart_as_far_back_as_they_are_remembered() {
        let mut identity = Identity::new(ClusterId(1), "c");
        let given: Vec<_> = (0..200).map(|_| identity.open()).collect();
        let Identity { store, opened, ref nonces, .. } = identity;
        let found = Found { store, opened, openings: nonces, sequence: 0 };
        for (number, nonce) in (1..).zip(given) {
            assert_eq!(found.was_opened(number, nonce), number > 200 - REMEMBERED as u64);
            assert!(!found.was_opened(number, nonce ^ 1));
        }
        assert!(!found.was_opened(201, 0));
    }
}
