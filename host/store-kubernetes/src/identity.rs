//! The store's own object: what the store is, and its last openings (R5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ostraca_core::ids::ClusterId;
use ostraca_store::StoreIdentity;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::Api;
use crate::attempts::Attempts;
use crate::error::{CallError, OpenError};
use crate::layout::{IDENTITY, Layout, Lease, OPENINGS, revision};
use crate::options::Options;

const FORMAT: u32 = 1;
/// How many openings are remembered: 104 KiB in base64. A node that does not know a later one than the oldest of them
/// can no longer tell whether the store is the one that it used.
const OPENINGS_KEPT: usize = 10_000;

/// What the store is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StoreValue {
    format: u32,
    store: String,
    cluster: String,
    cluster_name: String,
    open_count: u64,
    /// The uid of the object at the first opening. A tool that restores objects gives them other uids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
}

/// A value of any format.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

/// The store's object, as it was read.
struct StoreObject {
    value: StoreValue,
    openings: Vec<u64>,
    uid: String,
    revision: u64,
}

/// An opened store.
pub(crate) struct Opened {
    pub(crate) identity: StoreIdentity,
    pub(crate) openings: Vec<u64>,
    /// The version of the opening.
    pub(crate) revision: u64,
}

impl StoreValue {
    fn decode(name: &str, text: &str) -> Result<Self, OpenError> {
        let corrupt = |error: serde_json::Error| unreadable(name, error.to_string());
        let AnyFormat { format } = serde_json::from_str(text).map_err(corrupt)?;
        if format > FORMAT {
            return Err(OpenError::NewerFormat { found: format, known: FORMAT });
        }
        let value: Self = serde_json::from_str(text).map_err(corrupt)?;
        for id in [&value.store, &value.cluster] {
            if u128::from_str_radix(id, 16).is_err() {
                return Err(unreadable(name, format!("`{id}` is no id")));
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

impl StoreObject {
    fn decode(lease: &Lease) -> Result<Self, OpenError> {
        let metadata = &lease.metadata;
        let name = &metadata.name;
        let text = metadata.annotations.get(IDENTITY);
        let text =
            text.ok_or_else(|| unreadable(name, format!("it has no annotation {IDENTITY}")))?;
        let value = StoreValue::decode(name, text)?;
        let openings = metadata.annotations.get(OPENINGS).map(String::as_str).unwrap_or_default();
        let openings = STANDARD.decode(openings).ok().and_then(|bytes| nonces(&bytes));
        let openings =
            openings.ok_or_else(|| unreadable(name, "its openings are not nonces".into()))?;
        let version = &metadata.resource_version;
        let revision = revision(version);
        let revision = revision.ok_or_else(|| OpenError::Version { found: version.clone() })?;
        Ok(Self { value, openings, uid: metadata.uid.clone(), revision })
    }

    fn encode(&self, layout: &Layout) -> Result<Lease, OpenError> {
        let text = serde_json::to_string(&self.value);
        let text = text.map_err(|error| OpenError::Refused(error.to_string()))?;
        let mut lease = layout.store_object();
        let bytes: Vec<u8> = self.openings.iter().flat_map(|nonce| nonce.to_be_bytes()).collect();
        lease.metadata.annotations =
            [(IDENTITY.into(), text), (OPENINGS.into(), STANDARD.encode(bytes))].into();
        lease.metadata.uid.clone_from(&self.uid);
        if self.revision > 0 {
            lease.metadata.resource_version = self.revision.to_string();
        }
        Ok(lease)
    }
}

fn nonces(bytes: &[u8]) -> Option<Vec<u64>> {
    let (nonces, []) = bytes.as_chunks::<8>() else { return None };
    Some(nonces.iter().map(|nonce| u64::from_be_bytes(*nonce)).collect())
}

/// An id that [`StoreValue::decode`] has checked.
fn id(text: &str) -> u128 {
    u128::from_str_radix(text, 16).unwrap_or_default()
}

fn unreadable(name: &str, why: String) -> OpenError {
    OpenError::Corrupt { name: name.into(), why }
}

/// Opens and creates stores.
pub(crate) struct StoreOpening<'a> {
    options: &'a Options,
    api: &'a Api,
    layout: &'a Layout,
    attempts: Attempts,
}

/// What is written for a new store.
fn new_store(cluster: ClusterId, cluster_name: &str) -> StoreObject {
    let value = StoreValue {
        format: FORMAT,
        store: format!("{:032x}", rand::random::<u128>()),
        cluster: format!("{:032x}", cluster.0),
        cluster_name: cluster_name.into(),
        open_count: 0,
        uid: None,
    };
    StoreObject { value, openings: Vec::new(), uid: String::new(), revision: 0 }
}

impl<'a> StoreOpening<'a> {
    pub(crate) fn new(options: &'a Options, api: &'a Api, layout: &'a Layout) -> Self {
        let limit = options.call_timeout;
        let attempts = Attempts::new(Instant::now() + limit, limit);
        Self { options, api, layout, attempts }
    }

    /// Waits before the next attempt, or fails with the reason.
    async fn again(&mut self, error: CallError) -> Result<(), OpenError> {
        match error {
            CallError::Refused(error) => Err(error),
            CallError::NotSent(error @ (OpenError::Login(_) | OpenError::Unreachable(_)), _) => {
                Err(error)
            }
            error => {
                let unreachable =
                    |why: ostraca_store::StoreError| OpenError::Unreachable(why.to_string());
                self.attempts.after(error).await.map_err(unreachable)
            }
        }
    }

    /// Creates the object of a new store.
    pub(crate) async fn create(
        &mut self,
        cluster: ClusterId,
        cluster_name: &str,
    ) -> Result<(), OpenError> {
        let new = new_store(cluster, cluster_name);
        let (store, new) = (new.value.store.clone(), new.encode(self.layout)?);
        loop {
            let error = match self.api.create(&new).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error {
                CallError::Conflict(_) => {}
                error => {
                    self.again(error).await?;
                    continue;
                }
            }
            // An answer may have been lost: then the store is this one.
            let Some(found) = self.find().await? else { continue };
            if found.value.store == store {
                return Ok(());
            }
            return Err(self.exists(found));
        }
    }

    fn exists(&self, found: StoreObject) -> OpenError {
        let (place, cluster) = (self.options.place(), found.value.cluster());
        OpenError::Exists { place, cluster, name: found.value.cluster_name }
    }

    /// Checks that there is no store, and that one could be created.
    pub(crate) async fn check_missing(&mut self) -> Result<(), OpenError> {
        // A namespace that does not exist has no leases: only the attempt to create one tells.
        let new = new_store(ClusterId(0), "").encode(self.layout)?;
        loop {
            if let Some(found) = self.find().await? {
                return Err(self.exists(found));
            }
            match self.api.try_create(&new).await {
                Ok(()) => return Ok(()),
                Err(error) => self.again(error).await?,
            }
        }
    }

    /// Checks whose store it is, and counts an opening.
    pub(crate) async fn open(&mut self) -> Result<Opened, OpenError> {
        let nonce: u64 = rand::random();
        loop {
            let mut object = self.read().await?;
            // An answer may have been lost.
            if object.openings.last() != Some(&nonce) {
                object.value.open_count += 1;
                object.value.uid.get_or_insert_with(|| object.uid.clone());
                let forgotten = (object.openings.len() + 1).saturating_sub(OPENINGS_KEPT);
                object.openings.drain(..forgotten);
                object.openings.push(nonce);
                match self.api.replace(&object.encode(self.layout)?).await {
                    Ok(lease) => object = StoreObject::decode(&lease)?,
                    // A conflict: another process opened it at the same moment.
                    Err(error) => {
                        self.again(error).await?;
                        continue;
                    }
                }
            }
            let StoreObject { value, openings, revision, .. } = object;
            return Ok(Opened { identity: value.identity(nonce, revision), openings, revision });
        }
    }

    /// Says whose store it is, without opening it.
    pub(crate) async fn probe(&mut self) -> Result<StoreIdentity, OpenError> {
        let StoreObject { value, revision, .. } = self.read().await?;
        Ok(value.identity(0, revision))
    }

    async fn find(&mut self) -> Result<Option<StoreObject>, OpenError> {
        loop {
            match self.api.read(&self.layout.store()).await {
                Ok((found, _)) => return found.as_ref().map(StoreObject::decode).transpose(),
                Err(error) => self.again(error).await?,
            }
        }
    }

    /// Reads what the store is, and checks it.
    async fn read(&mut self) -> Result<StoreObject, OpenError> {
        let place = || self.options.place();
        let missing = OpenError::Missing { place: place() };
        let found = self.find().await?.ok_or(missing)?;
        let cluster = found.value.cluster();
        if self.options.cluster.is_some_and(|wanted| wanted != cluster) {
            let (place, name) = (self.options.place(), found.value.cluster_name);
            return Err(OpenError::OtherCluster { place, cluster, name });
        }
        if found.value.uid.as_ref().is_some_and(|first| *first != found.uid) {
            return Err(OpenError::Recreated { name: self.layout.store() });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = r#"{"format":1,"store":"00000000000000000000000000000007","cluster":"00000000000000000000000000000008","cluster-name":"c","open-count":2,"uid":"u"}"#;

    fn lease(text: &str, openings: &str) -> Lease {
        let mut lease = Layout::new("s", "").store_object();
        lease.metadata.uid = "u".into();
        lease.metadata.resource_version = "5".into();
        lease.metadata.annotations =
            [(IDENTITY.into(), text.into()), (OPENINGS.into(), openings.into())].into();
        lease
    }

    #[test]
    fn the_stores_object_has_a_format_that_people_can_read() {
        let stored = lease(GOLDEN, "AAAAAAAAAAEAAAAAAAAAAg==");
        let object = StoreObject::decode(&stored).expect("decoded");
        assert_eq!((object.value.cluster(), &object.openings[..]), (ClusterId(8), &[1, 2][..]));
        assert_eq!((object.uid.as_str(), object.revision), ("u", 5));
        let encoded = object.encode(&Layout::new("s", "")).expect("encoded");
        assert_eq!(encoded.metadata, stored.metadata);
    }

    #[test]
    fn objects_that_are_no_store_are_refused() {
        let refused = |text: &str, openings: &str| match StoreObject::decode(&lease(text, openings))
        {
            Err(error) => error,
            Ok(_) => panic!("decoded"),
        };
        let newer = refused(r#"{"format":2,"x":1}"#, "");
        assert!(matches!(newer, OpenError::NewerFormat { found: 2, known: 1 }));
        assert!(matches!(refused("x", ""), OpenError::Corrupt { .. }));
        let no_id =
            r#"{"format":1,"store":"7","cluster":"what?","cluster-name":"c","open-count":2}"#;
        assert!(refused(no_id, "").to_string().contains("`what?` is no id"));
        assert!(refused(GOLDEN, "AAAA").to_string().contains("openings"));
    }

    #[test]
    fn the_openings_fit_into_the_annotations_of_an_object() {
        // "Annotations": 256 KiB in all.
        let text = STANDARD.encode(vec![0; OPENINGS_KEPT * 8]);
        assert!(text.len() + 1024 < 256 << 10, "{} bytes", text.len());
    }
}
