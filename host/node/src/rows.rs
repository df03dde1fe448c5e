//! The rows that a node keeps in the `ClusterStore`, and their encoding: a byte for the format, then postcard.
//!
//! Two kinds of row are easy to confuse. The store's [`StoredRow`] has a key and bytes; the core's
//! ([`ostraca_core::rows`]) are the decoded contents of the rows of nodes, manager and shards. The rows that
//! the core never sees (the cluster, its pool, its time, its types) are defined here.

use std::time::Duration;

use bytes::Bytes;
use ostraca_config::config::ClusterSettings;
use ostraca_core::codec;
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::rows::{Row, RowKey};
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, StoredRow};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::NodeError;
use crate::pool::{NAMESPACE, POOL};

/// The highest format of records and rows that this program reads.
pub(crate) const FORMAT: u32 = codec::FORMAT as u32;
/// The lowest format that this program reads.
pub(crate) const OLDEST_FORMAT: u32 = codec::OLDEST_FORMAT as u32;

/// The value of a row. A row in a format that this program does not read is refused.
pub(crate) trait RowValue: Serialize + DeserializeOwned + Extensible {}

impl<T: Serialize + DeserializeOwned + Extensible> RowValue for T {}

/// `cluster`: what never changes during the cluster's life, and its format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterRow {
    /// The format in which records and rows may be written; raised by command once all nodes can read it.
    pub(crate) format: u32,
    /// The format that is being raised to, otherwise equal to `format`: a node that cannot read it does not
    /// start.
    pub(crate) target_format: u32,
    pub(crate) extensions: Extensions<Self>,
}

impl ClusterRow {
    /// The row of a new cluster.
    pub(crate) fn new(format: u32) -> Self {
        Self { format, target_format: format, extensions: Extensions::default() }
    }

    /// Checks that this program can read what the cluster's nodes write, now and after the format is raised.
    ///
    /// # Errors
    /// [`NodeError::InvalidRow`] with both numbers.
    pub(crate) fn readable(&self) -> Result<(), NodeError> {
        for format in [self.format, self.target_format] {
            if !(OLDEST_FORMAT..=FORMAT).contains(&format) {
                let which = if format > FORMAT { "a newer" } else { "an older" };
                let text = format!(
                    "the cluster writes format {format}, and this program reads {OLDEST_FORMAT} to {FORMAT}: use {which} release"
                );
                return Err(NodeError::InvalidRow(text));
            }
        }
        Ok(())
    }
}

/// `settings`: the cluster-wide settings that promises depend on. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingsRow {
    /// Rises with each change.
    pub(crate) revision: u64,
    pub(crate) lease: u64,
    pub(crate) lease_margin: u64,
    pub(crate) lane_ttl: u64,
    pub(crate) extensions: Extensions<Self>,
}

impl SettingsRow {
    /// The row of these settings, which keeps what a later release wrote into the row `before`.
    pub(crate) fn new(settings: &ClusterSettings, revision: u64, before: Option<Self>) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            revision,
            lease: millis(settings.lease),
            lease_margin: millis(settings.lease_margin),
            lane_ttl: millis(settings.lane_ttl),
            extensions: before.map_or_else(Extensions::default, |row| row.extensions),
        }
    }

    /// The settings that the row holds.
    pub(crate) fn settings(&self) -> ClusterSettings {
        let time = Duration::from_millis;
        ClusterSettings {
            lease: time(self.lease),
            lease_margin: time(self.lease_margin),
            lane_ttl: time(self.lane_ttl),
        }
    }
}

/// The key of the cluster's settings.
pub(crate) const SETTINGS: &str = "settings";

/// `time`: cluster time in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimeRow {
    pub(crate) cluster_time_ms: u64,
    pub(crate) extensions: Extensions<Self>,
}

/// `pools/<pool>`: fixed while state exists (R23).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolRow {
    pub(crate) hash: String,
    pub(crate) shards: u32,
    pub(crate) extensions: Extensions<Self>,
}

/// `types/<namespace>/<type>`: the current deployment. Nodes that run no entities route messages by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TypeRow {
    pub(crate) revision: u64,
    pub(crate) manifest: String,
    pub(crate) component_digest: [u8; 32],
    pub(crate) component_size: u64,
    /// The component's methods at the time of its deployment.
    pub(crate) methods: Vec<MethodEntry>,
    pub(crate) extensions: Extensions<Self>,
}

/// `bindings/<namespace>/<type>`: what decides the shards of the type's entities; never changes (R23).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BindingRow {
    pub(crate) pool: String,
    pub(crate) shard_key: ShardKeyRule,
    pub(crate) hash: String,
    pub(crate) extensions: Extensions<Self>,
}

/// A method of a deployed type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MethodEntry {
    pub(crate) name: String,
    pub(crate) query: bool,
    pub(crate) extensions: Extensions<Self>,
}

/// Maximum bytes stored of a method's summary: it is one line for people.
const MAX_SUMMARY: usize = 512;
/// The field of a [`MethodEntry`]'s extension block that holds the summary.
const SUMMARY: u32 = 4;

impl MethodEntry {
    pub(crate) fn new(name: &str, query: bool, summary: &str) -> Result<Self, NodeError> {
        let mut extensions = Extensions::default();
        if !summary.is_empty() {
            let summary = &summary[..summary.floor_char_boundary(MAX_SUMMARY)];
            let failed = |error| NodeError::InvalidRow(format!("a method's summary: {error}"));
            extensions.set(SUMMARY, &summary).map_err(failed)?;
        }
        Ok(Self { name: name.into(), query, extensions })
    }

    /// One line for people; empty if the component has none.
    pub(crate) fn summary(&self) -> String {
        // Nothing depends on the summary: one that cannot be decoded is not shown.
        self.extensions.get(SUMMARY).ok().flatten().unwrap_or_default()
    }
}

impl Extensible for MethodEntry {
    const NAME: &'static str = "MethodRow";
    const FIELDS: &'static [u32] = &[SUMMARY];
}

macro_rules! extensible {
    ($($row:ident),*) => {
        $(impl Extensible for $row {
            const NAME: &'static str = stringify!($row);
        })*
    };
}

extensible!(ClusterRow, SettingsRow, TimeRow, PoolRow, BindingRow, TypeRow);

/// The key of the pool's row.
pub(crate) fn pool_key() -> String {
    format!("pools/{POOL}")
}

/// Whether the key is of a row that applies to every node: the format or the settings.
pub(crate) fn is_cluster_wide(key: &str) -> bool {
    key == "cluster" || key == SETTINGS
}

/// The key of a type's binding.
pub(crate) fn binding_key(name: &str) -> String {
    format!("bindings/{NAMESPACE}/{name}")
}

/// The key of a type's row.
pub(crate) fn type_key(name: &str) -> String {
    format!("types/{NAMESPACE}/{name}")
}

/// The type whose row has that key.
pub(crate) fn type_name(key: &str) -> Option<&str> {
    let name = key.strip_prefix("types/")?.strip_prefix(NAMESPACE)?.strip_prefix('/')?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// The store's key of one of the core's rows.
pub(crate) fn key_text(key: &RowKey) -> String {
    match key {
        RowKey::Node(node) => format!("nodes/{node}"),
        RowKey::Manager => "manager".into(),
        RowKey::Assignments(chunk) => format!("shards/{POOL}/{chunk:05}"),
    }
}

/// The core's row with that key; `None` for a row of another kind.
pub(crate) fn parse_key(text: &str) -> Option<RowKey> {
    let key = match text.split_once('/') {
        None if text == "manager" => RowKey::Manager,
        Some(("nodes", node)) if !node.is_empty() && !node.contains('/') => {
            RowKey::Node(node.into())
        }
        Some(("shards", rest)) => {
            let chunk = rest.strip_prefix(POOL)?.strip_prefix('/')?;
            RowKey::Assignments(chunk.parse().ok()?)
        }
        _ => return None,
    };
    // A number can be written in several ways, but a row's key in only one.
    (key_text(&key) == text).then_some(key)
}

/// Encodes one of the core's rows.
///
/// # Errors
/// [`NodeError::InvalidRow`] if it cannot be encoded.
pub(crate) fn encode_row(row: &Row) -> Result<Bytes, NodeError> {
    match row {
        Row::Node(row) => encode_value(row),
        Row::Manager(row) => encode_value(row),
        Row::Assignments(row) => encode_value(row),
    }
}

/// Decodes one of the core's rows, with its revision; `None` for a row of another kind.
///
/// # Errors
/// [`NodeError::InvalidRow`] names the row that cannot be decoded.
pub(crate) fn decode_row(row: &StoredRow) -> Result<Option<(RowKey, Row, u64)>, NodeError> {
    let Some(key) = parse_key(&row.key) else { return Ok(None) };
    let value = match &key {
        RowKey::Node(_) => Row::Node(decode(row)?),
        RowKey::Manager => Row::Manager(decode(row)?),
        RowKey::Assignments(_) => Row::Assignments(decode(row)?),
    };
    Ok(Some((key, value, row.revision)))
}

/// Encodes a row's value.
pub(crate) fn encode_value<T: RowValue>(row: &T) -> Result<Bytes, NodeError> {
    let bytes = codec::append_encoded(vec![codec::FORMAT], row);
    Ok(bytes.map_err(|error| NodeError::InvalidRow(error.to_string()))?.into())
}

/// Decodes a row's value.
pub(crate) fn decode<T: RowValue>(row: &StoredRow) -> Result<T, NodeError> {
    let key = &row.key;
    let bad = |why: String| NodeError::InvalidRow(format!("`{key}` cannot be read: {why}"));
    let Some((&format, body)) = row.value.split_first() else {
        return Err(bad("it is empty".into()));
    };
    codec::check_format(format).map_err(bad)?;
    codec::decode(body).map_err(|error| bad(error.to_string()))
}

/// Reads a row, with the revision to expect when writing it.
pub(crate) async fn read<T: RowValue>(
    store: &dyn ClusterStore,
    key: &str,
) -> Result<Option<(T, u64)>, NodeError> {
    match store.get(key).await? {
        Some(row) => Ok(Some((decode(&row)?, row.revision))),
        None => Ok(None),
    }
}

/// Writes a row that must have the revision `expected`.
pub(crate) async fn write<T: RowValue>(
    store: &dyn ClusterStore,
    key: &str,
    expected: Option<u64>,
    row: &T,
) -> Result<u64, NodeError> {
    let cas = CompareAndSet { key: key.into(), expected, value: Some(encode_value(row)?) };
    store.compare_and_set(cas).await.map_err(|conflict| match conflict {
        CompareAndSetError::RevisionMismatch(_) => NodeError::RowConflict(key.into()),
        CompareAndSetError::Store(error) => NodeError::Store(error),
    })
}

#[cfg(test)]
mod tests;
