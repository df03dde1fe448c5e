//! The store's own keys: what the store is, and its last openings (R5).

use bytes::Bytes;
use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use serde::{Deserialize, Serialize};

use crate::batch;
use crate::error::{CallError, OpenError};
use crate::layout::Layout;
use crate::members::{Member, Members};
use crate::options::Options;
use crate::proto::{KeyValue, RangeRequest, ResponseHeader};

const FORMAT: u32 = 1;
/// How many openings are remembered. A node that does not know a later one than the oldest of them can no longer tell
/// whether the store is the one that it used.
const OPENINGS: u64 = 10_000;
/// The oldest release of etcd whose transactions may be nested and whose watches can send large changes in parts.
const OLDEST: (u32, u32) = (3, 4);

/// The value of the store's key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StoreValue {
    format: u32,
    store: String,
    cluster: String,
    cluster_name: String,
    open_count: u64,
}

/// A value of any format.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

/// An opened store.
pub(crate) struct Opened {
    pub(crate) identity: StoreIdentity,
    pub(crate) openings: Vec<u64>,
    /// The id of the etcd cluster.
    pub(crate) etcd: u64,
    /// Its revision.
    pub(crate) revision: u64,
}

impl StoreValue {
    fn encode(&self) -> Result<Bytes, OpenError> {
        let text = serde_json::to_vec(self);
        Ok(text.map_err(|error| OpenError::Refused(error.to_string()))?.into())
    }

    fn decode(stored: &KeyValue) -> Result<Self, OpenError> {
        let corrupt = |error: serde_json::Error| unreadable(stored, error.to_string());
        let AnyFormat { format } = serde_json::from_slice(&stored.value).map_err(corrupt)?;
        if format > FORMAT {
            return Err(OpenError::NewerFormat { found: format, known: FORMAT });
        }
        let value: Self = serde_json::from_slice(&stored.value).map_err(corrupt)?;
        for id in [&value.store, &value.cluster] {
            if u128::from_str_radix(id, 16).is_err() {
                return Err(unreadable(stored, format!("`{id}` is no id")));
            }
        }
        Ok(value)
    }

    fn cluster(&self) -> ClusterId {
        ClusterId(id(&self.cluster))
    }

    fn identity(&self, open_nonce: u64, durable_sequence: u64) -> StoreIdentity {
        StoreIdentity {
            store_id: id(&self.store),
            cluster: self.cluster(),
            cluster_name: self.cluster_name.clone(),
            open_count: self.open_count,
            open_nonce,
            durable_sequence,
        }
    }
}

/// An id that [`StoreValue::decode`] has checked.
fn id(text: &str) -> u128 {
    u128::from_str_radix(text, 16).unwrap_or_default()
}

/// Creates the key of a new store.
pub(crate) async fn create(
    options: &Options,
    members: &mut Members,
    cluster: ClusterId,
    cluster_name: &str,
) -> Result<(), OpenError> {
    let member = members.member().await?;
    check_version(&member).await?;
    let key = Layout::new(&options.prefix).store();
    let value = StoreValue {
        format: FORMAT,
        store: format!("{:032x}", rand::random::<u128>()),
        cluster: format!("{:032x}", cluster.0),
        cluster_name: cluster_name.into(),
        open_count: 0,
    };
    let request = batch::put_if(key, 0, value.encode()?);
    let answer = member.transact(request).await.map_err(CallError::into_open_error)?;
    refuse_existing(options, batch::found(answer))
}

/// Checks that there is no store, and that one could be created. Nothing is written.
pub(crate) async fn check_missing(
    options: &Options,
    members: &mut Members,
) -> Result<(), OpenError> {
    let member = members.member().await?;
    check_version(&member).await?;
    let key = Layout::new(&options.prefix).store();
    // No key has this revision, so etcd only checks whether the user may write.
    let request = batch::put_if(key, i64::MAX, Bytes::new());
    let answer = member.transact(request).await.map_err(CallError::into_open_error)?;
    refuse_existing(options, batch::found(answer))
}

fn refuse_existing(options: &Options, found: Option<KeyValue>) -> Result<(), OpenError> {
    let Some(stored) = found else { return Ok(()) };
    let found = StoreValue::decode(&stored)?;
    Err(OpenError::Exists {
        prefix: options.prefix.clone(),
        cluster: found.cluster(),
        name: found.cluster_name,
    })
}

/// Checks whose store it is, and counts an opening.
pub(crate) async fn open(options: &Options, members: &mut Members) -> Result<Opened, OpenError> {
    let member = members.member().await?;
    check_version(&member).await?;
    let layout = Layout::new(&options.prefix);
    loop {
        let (mut value, mod_revision) = read(options, &member).await?;
        let nonce: u64 = rand::random();
        value.open_count += 1;
        let number = value.open_count;
        let request = batch::put_if(layout.store(), mod_revision, value.encode()?);
        let request = batch::and_put(request, layout.opening(number), hex(nonce));
        let forgotten = layout.opening(number.saturating_sub(OPENINGS));
        let request = batch::and_delete(request, forgotten);
        let answer = member.transact(request).await.map_err(CallError::into_open_error)?;
        let header = answer.header.unwrap_or_default();
        if batch::found(answer).is_some() {
            // Another process opened it at the same moment.
            continue;
        }
        let ResponseHeader { cluster_id: etcd, revision } = header;
        let openings = read_openings(&layout, &member, number).await?;
        let revision = revision.cast_unsigned();
        return Ok(Opened { identity: value.identity(nonce, revision), openings, etcd, revision });
    }
}

/// Says whose store it is, without opening it.
pub(crate) async fn probe(
    options: &Options,
    members: &mut Members,
) -> Result<StoreIdentity, OpenError> {
    let member = members.member().await?;
    check_version(&member).await?;
    let (value, mod_revision) = read(options, &member).await?;
    Ok(value.identity(0, mod_revision.cast_unsigned()))
}

/// Reads what the store is, and the `mod_revision` of that.
async fn read(options: &Options, member: &Member) -> Result<(StoreValue, i64), OpenError> {
    let key = Layout::new(&options.prefix).store();
    let reading = member.range(RangeRequest { key, ..RangeRequest::default() });
    let answer = reading.await.map_err(CallError::into_open_error)?;
    let missing = || OpenError::Missing { prefix: options.prefix.clone() };
    let stored = answer.kvs.into_iter().next().ok_or_else(missing)?;
    let value = StoreValue::decode(&stored)?;
    let cluster = value.cluster();
    if options.cluster.is_some_and(|wanted| wanted != cluster) {
        let (prefix, name) = (options.prefix.clone(), value.cluster_name);
        return Err(OpenError::OtherCluster { prefix, cluster, name });
    }
    Ok((value, stored.mod_revision))
}

/// Reads the nonces of the openings up to `number`, newest last.
async fn read_openings(
    layout: &Layout,
    member: &Member,
    number: u64,
) -> Result<Vec<u64>, OpenError> {
    let (key, range_end) = (layout.opening(0), layout.opening(number.saturating_add(1)));
    let reading = member.range(RangeRequest { key, range_end, ..RangeRequest::default() });
    let answer = reading.await.map_err(CallError::into_open_error)?;
    answer
        .kvs
        .iter()
        .map(|stored| {
            let text = std::str::from_utf8(&stored.value).unwrap_or_default();
            u64::from_str_radix(text, 16).map_err(|_| unreadable(stored, "it is no nonce".into()))
        })
        .collect()
}

fn hex(nonce: u64) -> Bytes {
    format!("{nonce:016x}").into()
}

fn unreadable(stored: &KeyValue, why: String) -> OpenError {
    OpenError::Corrupt { key: String::from_utf8_lossy(&stored.key).into_owned(), why }
}

async fn check_version(member: &Member) -> Result<(), OpenError> {
    let found = member.version().await.map_err(CallError::into_open_error)?;
    match is_known(&found) {
        true => Ok(()),
        false => Err(OpenError::OldServer { found }),
    }
}

fn is_known(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= OLDEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_recognised() {
        for good in ["3.4.0", "3.4.23", "3.5.9", "3.10.1", "4.0.0-rc.1"] {
            assert!(is_known(good), "{good}");
        }
        for bad in ["3.3.27", "2.3.8", "", "x"] {
            assert!(!is_known(bad), "{bad}");
        }
    }

    #[test]
    fn the_stores_key_has_a_format_that_people_can_read() {
        let value = StoreValue {
            format: 1,
            store: format!("{:032x}", 7),
            cluster: format!("{:032x}", 8),
            cluster_name: "c".into(),
            open_count: 2,
        };
        let golden = r#"{"format":1,"store":"00000000000000000000000000000007","cluster":"00000000000000000000000000000008","cluster-name":"c","open-count":2}"#;
        assert_eq!(value.encode().expect("encoded"), golden);
        let stored = |value: &'static str| KeyValue {
            key: "k".into(),
            mod_revision: 1,
            value: value.into(),
        };
        assert_eq!(StoreValue::decode(&stored(golden)).expect("decoded").cluster(), ClusterId(8));
        let newer = StoreValue::decode(&stored(r#"{"format":2,"x":1}"#));
        assert!(matches!(newer, Err(OpenError::NewerFormat { found: 2, known: 1 })));
        assert!(matches!(StoreValue::decode(&stored("x")), Err(OpenError::Corrupt { .. })));
        let no_id =
            r#"{"format":1,"store":"7","cluster":"what?","cluster-name":"c","open-count":2}"#;
        let refused = StoreValue::decode(&stored(no_id)).expect_err("refused");
        assert!(refused.to_string().contains("`what?` is no id"), "{refused}");
    }
}
