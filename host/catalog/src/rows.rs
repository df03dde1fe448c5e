//! The rows that a node keeps in the `ClusterStore`, and their encoding: a byte for the format, then postcard.
//!
//! Two kinds of row are easy to confuse. The store's [`StoredRow`] has a key and bytes; the core's
//! ([`ostraca_core::rows`]) are the decoded contents of the rows of nodes, manager and shards. The rows that
//! the core never sees (the cluster, its pool, its time, its types) are defined here.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use ostraca_config::config::ClusterSettings;
use ostraca_core::codec;
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::format;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::message::MessageKind;
use ostraca_core::names;
use ostraca_core::rows::{Row, RowKey};
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, StoredRow};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::Error;
use ostraca_core::pools::DEFAULT_POOL as POOL;

/// The value of a row. A row in a format that this program does not read is refused.
pub trait RowValue: Serialize + DeserializeOwned + Extensible {}

impl<T: Serialize + DeserializeOwned + Extensible> RowValue for T {}

/// `cluster`: what never changes during the cluster's lifetime, and its format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRow {
    /// The format in which records and rows may be written; raised by command once all nodes can read it.
    pub format: u32,
    /// The format to which the cluster is being raised, otherwise equal to `format`. A node that cannot read it does
    /// not start.
    pub target_format: u32,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl ClusterRow {
    /// The row of a new cluster.
    pub fn new(format: u32) -> Self {
        Self { format, target_format: format, extensions: Extensions::default() }
    }

    /// Checks that this program can read what the cluster's nodes write, now and after the format is raised. For a
    /// node that starts or has just registered.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] with both numbers.
    pub fn readable(&self) -> Result<(), Error> {
        check_format(self.format)?;
        check_format(self.target_format)
    }

    /// Lets this process write the cluster's format from now on. A node that runs does not end while the format is
    /// being raised: the command that raises it sees the node's row, and is refused.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot read that format.
    pub fn adopt_format(&self) -> Result<(), Error> {
        check_format(self.format)?;
        format::raise_written(self.format);
        Ok(())
    }
}

fn check_format(format: u32) -> Result<(), Error> {
    let (oldest, newest) = (format::OLDEST.into(), format::newest().into());
    if (oldest..=newest).contains(&format) {
        return Ok(());
    }
    let which = if format > newest { "a newer" } else { "an older" };
    let text = format!(
        "the cluster writes format {format}, but this program reads {oldest} to {newest}: use {which} release"
    );
    Err(Error::InvalidRow(text))
}

/// `settings`: the cluster-wide settings that promises depend on. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsRow {
    /// Rises with each change.
    pub revision: u64,
    /// How long a lease lasts without a renewal (R7, R8).
    pub lease: u64,
    /// Added to another node's lease before it counts as expired (R8).
    pub lease_margin: u64,
    /// How long a client's session is remembered after its last use (R17).
    pub lane_ttl: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl SettingsRow {
    /// Creates the row of these settings. It keeps what a later release wrote into the row `before`.
    pub fn new(settings: &ClusterSettings, revision: u64, before: Option<Self>) -> Self {
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
    pub fn settings(&self) -> ClusterSettings {
        let time = Duration::from_millis;
        ClusterSettings {
            lease: time(self.lease),
            lease_margin: time(self.lease_margin),
            lane_ttl: time(self.lane_ttl),
        }
    }
}

/// The key of the cluster's settings.
pub const SETTINGS: &str = "settings";

/// `time`: cluster time and UTC, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRow {
    /// The last written value; nodes continue counting from it.
    pub cluster_time_ms: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The key of the row of times.
pub const TIME: &str = "time";
/// The field of a [`TimeRow`]'s extension block that holds UTC.
const UTC: u32 = 2;

impl TimeRow {
    /// The last written UTC, in milliseconds since 1970; never goes back (R25). `None` if none was written yet.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot be decoded.
    pub fn utc_ms(&self) -> Result<Option<u64>, Error> {
        let failed = |error| Error::InvalidRow(format!("the UTC of the row `{TIME}`: {error}"));
        self.extensions.get(UTC).map_err(failed)
    }

    /// Sets UTC.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot be encoded.
    pub fn set_utc_ms(&mut self, utc_ms: u64) -> Result<(), Error> {
        let failed = |error| Error::InvalidRow(format!("the UTC of the row `{TIME}`: {error}"));
        self.extensions.set(UTC, &utc_ms).map_err(failed)
    }
}

impl Extensible for TimeRow {
    const NAME: &'static str = "TimeRow";
    const FIELDS: &'static [u32] = &[UTC];
}

/// `secret`: values that every node knows and nobody outside the cluster does. Written once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRow {
    /// The key from which the random numbers of turns are derived.
    pub random_key: [u8; 32],
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The key of the row of secrets.
pub const SECRET: &str = "secret";

/// `policy`: who may do what. Missing in a cluster that never set one: then the
/// [default](ostraca_config::Policy::default_toml) applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Rises with each change, from 1.
    pub revision: u64,
    /// The policy as TOML.
    pub text: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The key of the policy.
pub const POLICY: &str = "policy";

/// `revocations`: the credentials that no node accepts any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationsRow {
    /// Rises with each change, from 1.
    pub revision: u64,
    /// In the order in which they were revoked.
    pub entries: Vec<Revocation>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// One revoked credential, or all credentials of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// A principal (`client/alice`), a certificate (`certificate/` and the SHA-256 of its TBSCertificate in hexadecimal), or a
    /// token (`token-id/ISSUER/ID`).
    pub subject: String,
    /// When it was revoked, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who revoked it.
    pub by: String,
    /// Why; may be empty.
    pub reason: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The key of the revocations.
pub const REVOCATIONS: &str = "revocations";

/// `authorities`: whose certificates nodes and clients have. Missing until `ostraca ca rotate` writes it, and empty after a
/// restore: each node trusts the authorities in its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthoritiesRow {
    /// Rises with each change, from 1.
    pub revision: u64,
    /// The certificates of the authorities, in PEM.
    pub trusted: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The key of the authorities.
pub const AUTHORITIES: &str = "authorities";

/// `certificates/<node>`: the certificate that a node presents, and the one that it should.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRow {
    /// The one that it presents, in PEM, with those that connect it to authorities. Only the node writes it.
    pub presented: String,
    /// The last one that an operator has issued to it, likewise, for the same key; may be empty.
    pub issued: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// What the keys of the nodes' certificates begin with.
pub const CERTIFICATES: &str = "certificates/";

/// The key of a node's certificate.
pub fn certificate_key(node: &str) -> String {
    format!("{CERTIFICATES}{node}")
}

/// `audit/<log>/<node>/<number>`: what operators have asked this node to change, in order. The row with the highest number
/// is the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// In order.
    pub entries: Vec<AuditEntry>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// A change that an operator has asked for, and was permitted to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// The operator.
    pub principal: String,
    /// The change, as its command is called: `drain`, `deploy`, `delete`.
    pub action: String,
    /// The node, type or entity that it concerns; may be empty.
    pub target: String,
    /// Further arguments, for people; may be empty.
    pub details: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// What the keys of the audit log begin with.
pub const AUDIT: &str = "audit/";

/// The key of a part of a node's audit log.
pub fn audit_key(log: &str, node: &str, number: u64) -> String {
    format!("{AUDIT}{log}/{node}/{number:010}")
}

/// The node and the number of a part of an audit log.
pub fn parse_audit_key(key: &str) -> Option<(&str, u64)> {
    let (log, rest) = key.strip_prefix(AUDIT)?.split_once('/')?;
    let (node, number) = rest.split_once('/')?;
    let number = number.parse().ok()?;
    (audit_key(log, node, number) == key).then_some((node, number))
}

/// `variables/<namespace>/<type>`: the secrets and settings of a type, which may not be deployed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariablesRow {
    /// Ordered by name. Their values are sealed with the key that the nodes have.
    pub secrets: Vec<VariableEntry>,
    /// Ordered by name. Their values are UTF-8.
    pub settings: Vec<VariableEntry>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// A secret or a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableEntry {
    /// The name by which a manifest grants it.
    pub name: String,
    /// Its text, sealed or not.
    pub value: Vec<u8>,
    /// When it was set, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who set it.
    pub by: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// What the keys of types' secrets and settings begin with.
pub const VARIABLES: &str = "variables/";

/// The key of a type's secrets and settings.
pub fn variables_key(entity_type: &str) -> String {
    format!("{VARIABLES}{}", path_of(entity_type))
}

/// The type whose secrets and settings the row with this key has.
pub fn variables_type(key: &str) -> Option<Cow<'_, str>> {
    type_at(key.strip_prefix(VARIABLES)?)
}

/// Whether the key names a row that decides who may do what.
pub fn is_about_access(key: &str) -> bool {
    key == POLICY || key == REVOCATIONS
}

/// `pools/<pool>`: fixed while state exists (R23).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRow {
    /// The hash that maps entities to shards.
    pub hash: String,
    /// The number of shards.
    pub shards: u32,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// `stores/<pool>`: which stores have the state of the pool's shards. Missing in clusters that were created before it
/// existed: their state is in the store of the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoresRow {
    /// In ascending order of shards; the first begins at shard 0.
    pub ranges: Vec<StoreRange>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// The shards of a pool whose state is in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRange {
    /// The first of them; the last is the one before the next range.
    pub first_shard: u32,
    /// The store's id (R5).
    pub store_id: u128,
}

/// `types/<namespace>/<type>`: the current deployment. Nodes that run no entities use it to route messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeRow {
    /// Rises with each deployment, from 1.
    pub revision: u64,
    /// The manifest as TOML.
    pub manifest: String,
    /// BLAKE3 of the component, under which the `EntityStore` keeps it.
    pub component_digest: [u8; 32],
    /// In bytes.
    pub component_size: u64,
    /// The component's methods at the time of its deployment.
    pub methods: Vec<MethodEntry>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// `bindings/<namespace>/<type>`: what decides the shards of the type's entities; never changes (R23).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRow {
    /// The pool that its entities live in.
    pub pool: String,
    /// Which part of an id is hashed.
    pub shard_key: ShardKeyRule,
    /// The hash that maps entities to shards.
    pub hash: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

/// A method of a deployed type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodEntry {
    /// The name that messages use.
    pub name: String,
    /// Whether it is a query; otherwise it is a command.
    pub query: bool,
    /// The schemas, the summary, and fields of later releases.
    pub extensions: Extensions<Self>,
}

/// Maximum number of bytes stored of a method's summary, which is one line for display.
const MAX_SUMMARY: usize = 512;
/// The field of a [`MethodEntry`]'s extension block that holds the schemas.
const SCHEMA: u32 = 2;
/// The field of a [`MethodEntry`]'s extension block that holds the summary.
const SUMMARY: u32 = 4;

/// The JSON Schemas of a method, as texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodSchema {
    /// The schema of the message's body.
    pub arguments: String,
    /// The schema of the result.
    pub result: String,
}

impl MethodEntry {
    /// Creates a method with its summary, which is truncated to 512 bytes.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if the summary cannot be encoded.
    pub fn new(name: &str, kind: MessageKind, summary: &str) -> Result<Self, Error> {
        let mut extensions = Extensions::default();
        if !summary.is_empty() {
            let summary = &summary[..summary.floor_char_boundary(MAX_SUMMARY)];
            let failed = |error| Error::InvalidRow(format!("a method's summary: {error}"));
            extensions.set(SUMMARY, &summary).map_err(failed)?;
        }
        let query = kind == MessageKind::Query;
        Ok(Self { name: name.into(), query, extensions })
    }

    /// Adds the method's schemas.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if they cannot be encoded.
    pub fn with_schema(mut self, schema: &MethodSchema) -> Result<Self, Error> {
        let failed = |error| Error::InvalidRow(format!("a method's schemas: {error}"));
        self.extensions.set(SCHEMA, schema).map_err(failed)?;
        Ok(self)
    }

    /// Its schemas; `None` if the component has none for it.
    pub fn schema(&self) -> Option<MethodSchema> {
        // Only tools depend on the schemas: those that cannot be decoded are not shown.
        self.extensions.get(SCHEMA).ok().flatten()
    }

    /// Whether it is a command or a query.
    pub fn kind(&self) -> MessageKind {
        if self.query { MessageKind::Query } else { MessageKind::Command }
    }

    /// One line for display; empty if the component has none.
    pub fn summary(&self) -> String {
        // Nothing depends on the summary: one that cannot be decoded is not shown.
        self.extensions.get(SUMMARY).ok().flatten().unwrap_or_default()
    }
}

impl Extensible for MethodEntry {
    const NAME: &'static str = "MethodEntry";
    const FIELDS: &'static [u32] = &[SCHEMA, SUMMARY];
}

macro_rules! extensible {
    ($($row:ident),*) => {
        $(impl Extensible for $row {
            const NAME: &'static str = stringify!($row);
        })*
    };
}

extensible!(
    ClusterRow,
    SettingsRow,
    SecretRow,
    PoolRow,
    PolicyRow,
    RevocationsRow,
    Revocation,
    AuthoritiesRow,
    CertificateRow,
    AuditRow,
    AuditEntry,
    VariablesRow,
    VariableEntry
);

/// The field of a [`BindingRow`]'s extension block that holds the last revision of a type that was undeployed.
const LAST_REVISION: u32 = 60;

impl Extensible for BindingRow {
    const NAME: &'static str = "BindingRow";
    const FIELDS: &'static [u32] = &[LAST_REVISION];
}

impl BindingRow {
    /// The last revision of the type before it was undeployed; 0 if it never was.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot be decoded.
    pub fn last_revision(&self) -> Result<u64, Error> {
        let failed = |error| Error::InvalidRow(format!("the last revision of a binding: {error}"));
        Ok(self.extensions.get(LAST_REVISION).map_err(failed)?.unwrap_or_default())
    }

    /// Sets it.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot be encoded.
    pub fn set_last_revision(&mut self, revision: u64) -> Result<(), Error> {
        let failed = |error| Error::InvalidRow(format!("the last revision of a binding: {error}"));
        self.extensions.set(LAST_REVISION, &revision).map_err(failed)
    }
}

impl Extensible for TypeRow {
    const NAME: &'static str = "TypeRow";
    const FIELDS: &'static [u32] =
        &[TypeRow::SCHEMA, TypeRow::EARLIER, TypeRow::INACTIVE, TypeRow::ROLLOUT];
}

impl TypeRow {
    /// The field with the component's schema and the highest one from which it migrates (u32, u32); absent if both are
    /// 0.
    pub(crate) const SCHEMA: u32 = 2;
    /// The field with the earlier revisions that are kept, in ascending order; absent if there are none.
    pub(crate) const EARLIER: u32 = 4;
    /// The field with the revisions that are stored and were never active, in ascending order; absent if there are none.
    pub(crate) const INACTIVE: u32 = 6;
    /// The field with the rollout of the current revision ([`StoredRollout`](crate::rollout::StoredRollout)); absent if all entities run it.
    pub(crate) const ROLLOUT: u32 = 8;
}

/// The key of the row that says which stores have the state of the pool's shards.
pub fn stores_key() -> String {
    format!("stores/{POOL}")
}

/// The key of the pool's row.
pub fn pool_key() -> String {
    format!("pools/{POOL}")
}

/// The key of the row of the pools beside `default` ([`PoolsRow`](crate::pool::PoolsRow)).
pub const POOLS: &str = "pools";

/// The key of the row of pinned shards ([`PinsRow`](crate::placement::PinsRow)).
pub const PINS: &str = "pins";

/// What begins the keys of placements of pools ([`PlacementRow`](crate::placement::PlacementRow)).
pub const PLACEMENTS: &str = "placements/";

/// Whether the key names a row that applies to every node: the format, the settings, the pools, or where their shards
/// are wanted.
pub fn is_cluster_wide(key: &str) -> bool {
    key == "cluster"
        || key == SETTINGS
        || key == POOLS
        || key == PINS
        || key.starts_with(PLACEMENTS)
}

/// The key of a type's binding.
pub fn binding_key(name: &str) -> String {
    format!("{BINDINGS}{}", path_of(name))
}

/// The key of a type's row.
pub fn type_key(name: &str) -> String {
    format!("{TYPES}{}", path_of(name))
}

/// The type whose row has this key.
pub fn type_name(key: &str) -> Option<Cow<'_, str>> {
    type_at(key.strip_prefix(TYPES)?)
}

/// The type whose binding has this key.
pub fn binding_type(key: &str) -> Option<Cow<'_, str>> {
    type_at(key.strip_prefix(BINDINGS)?)
}

/// What the keys of all bindings start with.
pub const BINDINGS: &str = "bindings/";
const TYPES: &str = "types/";

/// A type in the keys of rows: `<namespace>/<type>`.
fn path_of(name: &str) -> String {
    let (namespace, local) = names::split(name);
    format!("{namespace}/{local}")
}

/// The type with this path. A type has one path.
fn type_at(path: &str) -> Option<Cow<'_, str>> {
    let (namespace, local) = path.split_once('/')?;
    let is_local = !local.is_empty() && !local.contains(['/', names::SEPARATOR]);
    (is_local && names::check_namespace(namespace).is_ok())
        .then(|| names::qualified(namespace, local))
}

/// The store's key for one of the core's rows.
pub fn key_text(key: &RowKey) -> String {
    match key {
        RowKey::Node(node) => format!("nodes/{node}"),
        RowKey::Manager => "manager".into(),
        RowKey::Arbiter => "arbiter".into(),
        RowKey::Assignments(chunk) => format!("shards/{POOL}/{chunk:05}"),
        RowKey::Numbers(pool) => format!("numbers/{pool}"),
    }
}

/// The core's key with this text; `None` for a row of another kind.
pub fn parse_key(text: &str) -> Option<RowKey> {
    let key = match text.split_once('/') {
        None if text == "manager" => RowKey::Manager,
        None if text == "arbiter" => RowKey::Arbiter,
        Some(("nodes", node)) if !node.is_empty() && !node.contains('/') => {
            RowKey::Node(node.into())
        }
        Some(("shards", rest)) => {
            let chunk = rest.strip_prefix(POOL)?.strip_prefix('/')?;
            RowKey::Assignments(chunk.parse().ok()?)
        }
        Some(("numbers", pool)) if !pool.is_empty() && !pool.contains('/') => {
            RowKey::Numbers(pool.into())
        }
        _ => return None,
    };
    // A number has several spellings (`7`, `007`), but a row has exactly one key.
    (key_text(&key) == text).then_some(key)
}

/// Encodes one of the core's rows.
///
/// # Errors
/// [`Error::InvalidRow`] if it cannot be encoded.
pub fn encode_row(row: &Row) -> Result<Bytes, Error> {
    match row {
        Row::Node(row) => encode_value(row),
        Row::Manager(row) => encode_value(row),
        Row::Arbiter(row) => encode_value(row),
        Row::Assignments(row) => encode_value(row),
        Row::Numbers(row) => encode_value(row),
    }
}

/// Decodes one of the core's rows, with its revision; `None` for a row of another kind.
///
/// # Errors
/// [`Error::InvalidRow`] names the row that cannot be decoded.
pub fn decode_row(row: &StoredRow) -> Result<Option<(RowKey, Row, u64)>, Error> {
    let Some(key) = parse_key(&row.key) else { return Ok(None) };
    let value = match &key {
        RowKey::Node(_) => Row::Node(decode(row)?),
        RowKey::Manager => Row::Manager(decode(row)?),
        RowKey::Arbiter => Row::Arbiter(decode(row)?),
        RowKey::Assignments(_) => Row::Assignments(decode(row)?),
        RowKey::Numbers(_) => Row::Numbers(decode(row)?),
    };
    Ok(Some((key, value, row.revision)))
}

/// Encodes a row's value.
///
/// # Errors
/// [`Error::InvalidRow`] if it cannot be encoded.
pub fn encode_value<T: RowValue>(row: &T) -> Result<Bytes, Error> {
    let bytes = codec::append_encoded(vec![format::written()], row);
    Ok(bytes.map_err(|error| Error::InvalidRow(error.to_string()))?.into())
}

/// Decodes a row's value.
///
/// # Errors
/// [`Error::InvalidRow`] names the row that cannot be decoded.
pub fn decode<T: RowValue>(row: &StoredRow) -> Result<T, Error> {
    let key = &row.key;
    let bad = |why: String| Error::InvalidRow(format!("`{key}` cannot be read: {why}"));
    let Some((&format, body)) = row.value.split_first() else {
        return Err(bad("it is empty".into()));
    };
    format::check(format).map_err(bad)?;
    codec::decode(body).map_err(|error| bad(error.to_string()))
}

/// Reads a row, with the revision to expect when writing it.
///
/// # Errors
/// [`Error::Store`], or [`Error::InvalidRow`] if it cannot be decoded.
pub async fn read<T: RowValue>(
    store: &dyn ClusterStore,
    key: &str,
) -> Result<Option<(T, u64)>, Error> {
    match store.get(key).await? {
        Some(row) => Ok(Some((decode(&row)?, row.revision))),
        None => Ok(None),
    }
}

/// Removes a row as it is now, if it exists. One that somebody writes at the same moment may stay.
///
/// # Errors
/// [`Error::Store`].
pub async fn remove(store: &dyn ClusterStore, key: &str) -> Result<(), Error> {
    let Some(row) = store.get(key).await? else { return Ok(()) };
    let removal = CompareAndSet { key: key.into(), expected: Some(row.revision), value: None };
    match store.compare_and_set(removal).await {
        Ok(_) | Err(CompareAndSetError::RevisionMismatch(_)) => Ok(()),
        Err(CompareAndSetError::Store(error)) => Err(Error::Store(error)),
    }
}

/// Writes a row that must have the revision `expected`, or must not exist if that is `None`. Returns the new revision.
///
/// # Errors
/// [`Error::RowConflict`] if the row has another revision; [`Error::Store`].
pub async fn write<T: RowValue>(
    store: &dyn ClusterStore,
    key: &str,
    expected: Option<u64>,
    row: &T,
) -> Result<u64, Error> {
    let cas = CompareAndSet { key: key.into(), expected, value: Some(encode_value(row)?) };
    store.compare_and_set(cas).await.map_err(|conflict| match conflict {
        CompareAndSetError::RevisionMismatch(_) => Error::RowConflict(key.into()),
        CompareAndSetError::Store(error) => Error::Store(error),
    })
}

#[cfg(test)]
mod tests;
