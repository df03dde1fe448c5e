//! The rows that a node keeps in the `ClusterStore`, and how they lie there: a version byte, then postcard.

use bytes::Bytes;
use ostraca_sharding::ids::{Epoch, Incarnation, NodeId};
use ostraca_store::{Cas, ClusterStore, Conflict, Row};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::NodeError;

/// Bumped when a row's shape changes; a higher one than this is refused.
const VERSION: u8 = 1;

/// Shards a row of assignments.
pub(crate) const CHUNK: u32 = 64;

/// `cluster`: what is fixed for the cluster's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterRow {
    /// The format version of all records; raised by command when all nodes can read it.
    pub(crate) format: u32,
}

/// `manager`: who assigns, and in which term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManagerRow {
    pub(crate) term: u64,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
}

/// `nodes/<node>`: its life and its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRow {
    pub(crate) incarnation: Incarnation,
    /// Raised at each renewal: who judges the lease looks at this, not at a time.
    pub(crate) renewals: u64,
    /// Whether this incarnation was marked dead (R7).
    pub(crate) dead: bool,
    /// Whether it said goodbye.
    pub(crate) stopped: bool,
    pub(crate) addresses: Vec<String>,
}

/// `time`: cluster time in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimeRow(pub(crate) u64);

/// `pools/<pool>`: fixed while state exists (R23).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolRow {
    pub(crate) hash: String,
    pub(crate) shards: u32,
}

/// `shards/<pool>/<chunk>`: who owns [`CHUNK`] shards, under the term of who wrote it (R10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardsRow {
    pub(crate) term: u64,
    pub(crate) shards: Vec<ShardRow>,
}

/// One shard's owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRow {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<(NodeId, Incarnation)>,
}

/// `types/<namespace>/<type>`: what is deployed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TypeRow {
    pub(crate) revision: u64,
    pub(crate) manifest: String,
    pub(crate) component: [u8; 32],
    pub(crate) component_size: u64,
}

fn encode<T: Serialize>(row: &T) -> Result<Bytes, NodeError> {
    let mut bytes = vec![VERSION];
    let body = postcard::to_stdvec(row).map_err(|error| NodeError::Row(error.to_string()))?;
    bytes.extend(body);
    Ok(bytes.into())
}

/// Reads a row's value.
pub(crate) fn decode<T: DeserializeOwned>(row: &Row) -> Result<T, NodeError> {
    match row.value.split_first() {
        Some((&VERSION, body)) => postcard::from_bytes(body)
            .map_err(|error| NodeError::Row(format!("`{}` cannot be read: {error}", row.key))),
        Some((version, _)) => Err(NodeError::Row(format!(
            "`{}` has version {version}, and this program reads {VERSION}: use a newer one",
            row.key
        ))),
        None => Err(NodeError::Row(format!("`{}` is empty", row.key))),
    }
}

/// Reads a row, with the revision to expect when it is written.
pub(crate) async fn read<T: DeserializeOwned>(
    store: &dyn ClusterStore,
    key: &str,
) -> Result<Option<(T, u64)>, NodeError> {
    match store.get(key).await? {
        Some(row) => Ok(Some((decode(&row)?, row.revision))),
        None => Ok(None),
    }
}

/// Writes a row that must have the revision `expected`.
pub(crate) async fn write<T: Serialize>(
    store: &dyn ClusterStore,
    key: &str,
    expected: Option<u64>,
    row: &T,
) -> Result<u64, NodeError> {
    let cas = Cas { key: key.into(), expected, value: Some(encode(row)?) };
    store.compare_and_set(cas).await.map_err(|conflict| match conflict {
        Conflict::Changed(_) => NodeError::Conflict(key.into()),
        Conflict::Store(error) => NodeError::Store(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_golden_bytes() {
        let node = Incarnation { counter: 3, nonce: 200 };
        let row = ShardsRow {
            term: 2,
            shards: vec![ShardRow { epoch: Epoch(5), owner: Some(("n1".into(), node)) }],
        };
        let bytes = encode(&row).expect("encodes");
        assert_eq!(bytes.as_ref(), [1, 2, 1, 5, 1, 2, b'n', b'1', 3, 200, 1]);
        let row = Row { key: "shards/default/0".into(), revision: 1, value: bytes };
        assert_eq!(decode::<ShardsRow>(&row).expect("decodes").shards[0].epoch, Epoch(5));
        let time = encode(&TimeRow(300)).expect("encodes");
        assert_eq!(time.as_ref(), [1, 172, 2]);
    }

    #[test]
    fn a_row_of_a_newer_version_is_refused_by_name() {
        let row = Row { key: "time".into(), revision: 1, value: Bytes::from_static(&[9, 1]) };
        let error = decode::<TimeRow>(&row).expect_err("a newer version").to_string();
        assert!(error.contains("`time` has version 9"), "{error}");
    }
}
