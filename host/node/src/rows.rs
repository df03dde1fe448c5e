//! The rows that a node keeps in the `ClusterStore`, and how they lie there: a version byte, then postcard.
//!
//! What is confusing: there are two types named `Row`. The store's has a key and bytes; the core's
//! ([`ostraca_sharding::rows`]) is what the bytes of nodes, manager and shards say. The rows that the core
//! never sees (the cluster, its pool, its time, its types) are defined here.

use bytes::Bytes;
use ostraca_sharding::rows::{Key, ManagerRow, NodeRow, Row, ShardsRow};
use ostraca_store::{Cas, ClusterStore, Conflict, Row as Stored};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::NodeError;
use crate::ownership::{NAMESPACE, POOL};

/// The highest record format that this program reads, and the one that it writes.
pub(crate) const FORMAT: u32 = 1;

/// What stands in a row. A row of another version than this program's is refused.
pub(crate) trait Value: Serialize + DeserializeOwned {
    /// Raised when the shape of the row changes.
    const VERSION: u8;
}

/// `cluster`: what is fixed for the cluster's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterRow {
    /// The format version of all records; raised by command when all nodes can read it.
    pub(crate) format: u32,
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

/// `types/<namespace>/<type>`: what is deployed. Nodes that run no entities send to it by what stands here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TypeRow {
    pub(crate) revision: u64,
    pub(crate) manifest: String,
    pub(crate) component: [u8; 32],
    pub(crate) component_size: u64,
    /// What the component said when it was deployed.
    pub(crate) methods: Vec<MethodRow>,
}

/// A method of a deployed type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MethodRow {
    pub(crate) name: String,
    pub(crate) query: bool,
}

impl Value for ClusterRow {
    const VERSION: u8 = 1;
}

impl Value for TimeRow {
    const VERSION: u8 = 1;
}

impl Value for PoolRow {
    const VERSION: u8 = 1;
}

/// Version 2 has the methods.
impl Value for TypeRow {
    const VERSION: u8 = 2;
}

/// Version 2 has standing, roles, draining and age.
impl Value for NodeRow {
    const VERSION: u8 = 2;
}

/// The holder is a [`Member`](ostraca_sharding::rows::Member) now, whose bytes are those of its parts.
impl Value for ManagerRow {
    const VERSION: u8 = 1;
}

/// Version 2 has hand-offs.
impl Value for ShardsRow {
    const VERSION: u8 = 2;
}

/// The key of what is fixed for the pool's life.
pub(crate) fn pool_key() -> String {
    format!("pools/{POOL}")
}

/// The key of a type.
pub(crate) fn type_key(name: &str) -> String {
    format!("types/{NAMESPACE}/{name}")
}

/// The type whose key that is.
pub(crate) fn type_name(key: &str) -> Option<&str> {
    let name = key.strip_prefix("types/")?.strip_prefix(NAMESPACE)?.strip_prefix('/')?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The key of one of the core's rows, as the store has it.
pub(crate) fn key_text(key: &Key) -> String {
    match key {
        Key::Node(node) => format!("nodes/{node}"),
        Key::Manager => "manager".into(),
        Key::Shards(chunk) => format!("shards/{POOL}/{chunk:05}"),
    }
}

/// Which of the core's rows has that key; none: it is a row of another kind.
pub(crate) fn parse_key(text: &str) -> Option<Key> {
    let key = match text.split_once('/') {
        None if text == "manager" => Key::Manager,
        Some(("nodes", node)) if !node.is_empty() && !node.contains('/') => Key::Node(node.into()),
        Some(("shards", rest)) => {
            let chunk = rest.strip_prefix(POOL)?.strip_prefix('/')?;
            Key::Shards(chunk.parse().ok()?)
        }
        _ => return None,
    };
    // A number can be written in more than one way; a row cannot.
    (key_text(&key) == text).then_some(key)
}

/// The bytes of one of the core's rows.
///
/// # Errors
/// [`NodeError::Row`] if it cannot be encoded.
pub(crate) fn encode_core(row: &Row) -> Result<Bytes, NodeError> {
    match row {
        Row::Node(row) => encode_value(row),
        Row::Manager(row) => encode_value(row),
        Row::Shards(row) => encode_value(row),
    }
}

/// One of the core's rows with its revision; none for a row of another kind.
///
/// # Errors
/// [`NodeError::Row`] names the row that cannot be read.
pub(crate) fn decode_core(row: &Stored) -> Result<Option<(Key, Row, u64)>, NodeError> {
    let Some(key) = parse_key(&row.key) else { return Ok(None) };
    let value = match &key {
        Key::Node(_) => Row::Node(decode(row)?),
        Key::Manager => Row::Manager(decode(row)?),
        Key::Shards(_) => Row::Shards(decode(row)?),
    };
    Ok(Some((key, value, row.revision)))
}

/// A row's bytes.
pub(crate) fn encode_value<T: Value>(row: &T) -> Result<Bytes, NodeError> {
    let mut bytes = vec![T::VERSION];
    let body = postcard::to_stdvec(row).map_err(|error| NodeError::Row(error.to_string()))?;
    bytes.extend(body);
    Ok(bytes.into())
}

/// Reads a row's value.
pub(crate) fn decode<T: Value>(row: &Stored) -> Result<T, NodeError> {
    let key = &row.key;
    match row.value.split_first() {
        Some((&version, body)) if version == T::VERSION => postcard::from_bytes(body)
            .map_err(|error| NodeError::Row(format!("`{key}` cannot be read: {error}"))),
        Some((&version, _)) => {
            let ours = T::VERSION;
            let help = if version > ours {
                "use a newer one"
            } else {
                "an unreleased program wrote it; make the cluster again with `ostraca init`"
            };
            Err(NodeError::Row(format!(
                "`{key}` has version {version}, and this program reads {ours}: {help}"
            )))
        }
        None => Err(NodeError::Row(format!("`{key}` is empty"))),
    }
}

/// Reads a row, with the revision to expect when it is written.
pub(crate) async fn read<T: Value>(
    store: &dyn ClusterStore,
    key: &str,
) -> Result<Option<(T, u64)>, NodeError> {
    match store.get(key).await? {
        Some(row) => Ok(Some((decode(&row)?, row.revision))),
        None => Ok(None),
    }
}

/// Writes a row that must have the revision `expected`.
pub(crate) async fn write<T: Value>(
    store: &dyn ClusterStore,
    key: &str,
    expected: Option<u64>,
    row: &T,
) -> Result<u64, NodeError> {
    let cas = Cas { key: key.into(), expected, value: Some(encode_value(row)?) };
    store.compare_and_set(cas).await.map_err(|conflict| match conflict {
        Conflict::Changed(_) => NodeError::Conflict(key.into()),
        Conflict::Store(error) => NodeError::Store(error),
    })
}

#[cfg(test)]
mod tests {
    use ostraca_sharding::ids::{Epoch, Incarnation};
    use ostraca_sharding::rows::{HandOffId, Member, Moving, Roles, ShardRow, Standing};

    use super::*;

    const LIFE: Incarnation = Incarnation { counter: 3, nonce: 200 };

    fn stored(key: &str, value: Bytes) -> Stored {
        Stored { key: key.into(), revision: 7, value }
    }

    fn holds(key: &Key, row: &Row, golden: &[u8]) {
        let bytes = encode_core(row).expect("encodes");
        assert_eq!(bytes.as_ref(), golden);
        let found = decode_core(&stored(&key_text(key), bytes)).expect("decodes");
        assert_eq!(found, Some((key.clone(), row.clone(), 7)));
    }

    #[test]
    fn the_cores_rows_have_golden_bytes() {
        let holder = Member { node: "n1".into(), incarnation: LIFE };
        let moving = Moving { id: HandOffId { term: 2, number: 9 }, to: Some("n2".into()) };
        let shards = ShardsRow {
            term: 2,
            shards: vec![
                ShardRow { epoch: Epoch(5), owner: Some(holder.clone()), moving: Some(moving) },
                ShardRow::default(),
            ],
        };
        let shards_bytes =
            [2, 2, 2, 5, 1, 2, b'n', b'1', 3, 200, 1, 1, 2, 9, 1, 2, b'n', b'2', 0, 0, 0];
        holds(&Key::Shards(0), &Row::Shards(shards), &shards_bytes);
        let manager = ManagerRow { term: 4, holder };
        holds(&Key::Manager, &Row::Manager(manager), &[1, 4, 2, b'n', b'1', 3, 200, 1]);
        let node = NodeRow {
            incarnation: LIFE,
            renewals: 6,
            standing: Standing::Stopped,
            draining: true,
            store_answers: false,
            roles: Roles { store: false, manager: true, host: true, gateway: false },
            version: 1,
            since: 300,
            addresses: vec!["a:1".into()],
        };
        let node_bytes = [2, 3, 200, 1, 6, 2, 1, 0, 0, 1, 1, 0, 1, 172, 2, 1, 3, b'a', b':', b'1'];
        holds(&Key::Node("n1".into()), &Row::Node(node), &node_bytes);
    }

    #[test]
    fn the_other_rows_have_golden_bytes() {
        let bytes = encode_value(&TimeRow(300)).expect("encodes");
        assert_eq!(bytes.as_ref(), [1, 172, 2]);
        let bytes = encode_value(&ClusterRow { format: 1 }).expect("encodes");
        assert_eq!(bytes.as_ref(), [1, 1]);
        let pool = PoolRow { hash: "h".into(), shards: 256 };
        assert_eq!(encode_value(&pool).expect("encodes").as_ref(), [1, 1, b'h', 128, 2]);
        let row = TypeRow {
            revision: 4,
            manifest: "m".into(),
            component: [9; 32],
            component_size: 5,
            methods: vec![MethodRow { name: "get".into(), query: true }],
        };
        let bytes = encode_value(&row).expect("encodes");
        let golden = [&[2, 4, 1, b'm'][..], &[9; 32], &[5, 1, 3, b'g', b'e', b't', 1]].concat();
        assert_eq!(bytes.as_ref(), golden);
        assert_eq!(decode::<TypeRow>(&stored("types/default/a", bytes)).expect("decodes"), row);
    }

    #[test]
    fn a_row_of_another_version_is_refused_by_name() {
        let row = stored("time", Bytes::from_static(&[9, 1]));
        let error = decode::<TimeRow>(&row).expect_err("a newer version").to_string();
        assert!(error.contains("`time` has version 9") && error.contains("newer"), "{error}");
        // As version 1 had them: they are refused, not read as something else.
        for (key, old) in [("nodes/n1", vec![1, 3, 200, 1]), ("shards/default/00000", vec![1, 2])] {
            let error = decode_core(&stored(key, old.into())).expect_err("an old one").to_string();
            assert!(error.contains("has version 1") && error.contains("init"), "{error}");
        }
        assert!(decode_core(&stored("manager", Bytes::new())).is_err());
    }

    #[test]
    fn a_key_names_one_row_and_a_row_has_one_key() {
        for key in [Key::Node("n-1.x".into()), Key::Manager, Key::Shards(0), Key::Shards(1_023)] {
            assert_eq!(parse_key(&key_text(&key)), Some(key));
        }
        assert_eq!(key_text(&Key::Shards(3)), "shards/default/00003");
        for other in [
            "cluster",
            "time",
            "manager/",
            "nodes/",
            "nodes/a/b",
            "shards/default/3",
            "shards/default/000003",
            "shards/other/00003",
            "types/default/counter",
        ] {
            assert_eq!(parse_key(other), None, "{other}");
            let row = stored(other, Bytes::from_static(&[1]));
            assert_eq!(decode_core(&row).expect("not ours"), None);
        }
        assert_eq!(type_name(&type_key("counter")), Some("counter"));
        assert_eq!(type_name("types/default/"), None);
        assert_eq!(type_name("types/other/counter"), None);
    }
}
