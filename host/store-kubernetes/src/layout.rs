//! How the store uses objects of Kubernetes: each row is a `Lease`.
//!
//! | Part of the object | Content |
//! |---|---|
//! | name | STORE`.`WORDS`.`DIGEST for a row, STORE`.store` for the store itself |
//! | label `ostraca.dev/store` | the store's name |
//! | label `ostraca.dev/rows` | the first part of the row's key, or a digest if that is no label; rows only |
//! | annotation `ostraca.dev/key` | the row's key |
//! | annotation `ostraca.dev/row` | in base64: format (1 byte), 1 if deleted (1 byte), nonce (16 bytes), value |
//! | annotation `ostraca.dev/store` | JSON: what the store is, and how often it was opened |
//! | annotation `ostraca.dev/openings` | in base64: the nonces of the last openings, newest last, 8 bytes each |
//! | `spec.holderIdentity`, `spec.renewTime` | the last writer and its wall clock: for people only (R8) |
//!
//! A row's revision is the object's `resourceVersion`. The nonce shows a writer whose answer was lost that the write is
//! its own. A deleted row is a *tombstone* first, whose resource version is the revision of the deletion: the answer to
//! the deletion of an object has none. The object of a tombstone is deleted later.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes};
use ostraca_store::{StoreError, StoredRow};
use serde::{Deserialize, Serialize};

const FORMAT: u8 = 1;
const NONCE: usize = size_of::<u128>();
/// The bytes of a row before its value.
const HEAD: usize = 2 + NONCE;
/// The longest part of an object's name that repeats the key.
const MAX_WORDS: usize = 60;
/// The longest label that Kubernetes accepts.
const MAX_LABEL: usize = 63;

const STORE: &str = "ostraca.dev/store";
const ROWS: &str = "ostraca.dev/rows";
const KEY: &str = "ostraca.dev/key";
const ROW: &str = "ostraca.dev/row";
/// The annotation with the last openings of the store.
pub(crate) const OPENINGS: &str = "ostraca.dev/openings";
/// The annotation with what the store is.
pub(crate) const IDENTITY: &str = STORE;

/// An object of the kind `Lease`, as far as it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Lease {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: LeaseSpec,
}

/// The metadata of an object, or of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) resource_version: String,
    /// In a list: where the next page begins, if there is one.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renew_time: Option<String>,
}

/// A page of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseList {
    pub(crate) metadata: Metadata,
    /// Some servers write an empty list as `null`.
    pub(crate) items: Option<Vec<Lease>>,
}

/// The object of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowObject {
    pub(crate) key: String,
    pub(crate) revision: u64,
    pub(crate) uid: String,
    pub(crate) nonce: u128,
    /// `None`: a tombstone.
    pub(crate) value: Option<Bytes>,
}

impl RowObject {
    /// The row, unless it is deleted.
    pub(crate) fn row(&self) -> Option<StoredRow> {
        let value = self.value.clone()?;
        Some(StoredRow { key: self.key.clone(), revision: self.revision, value })
    }
}

/// The names and labels of a store's objects.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    name: String,
    holder: String,
}

impl Layout {
    pub(crate) fn new(name: &str, holder: &str) -> Self {
        Self { name: name.into(), holder: holder.into() }
    }

    /// The name of the object of the store itself.
    pub(crate) fn store(&self) -> String {
        format!("{}.store", self.name)
    }

    /// The name of a row's object: words of the key for people, and a digest of the store's name and the key.
    pub(crate) fn object_name(&self, key: &str) -> String {
        let mut digest = blake3::Hasher::new();
        digest.update(self.name.as_bytes()).update(&[0]).update(key.as_bytes());
        let digest = &digest.finalize().to_hex()[..32];
        let words: String = key
            .bytes()
            .take(MAX_WORDS)
            .map(|it| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase().into() } else { '-' })
            .collect();
        match words.trim_matches('-') {
            "" => format!("{}.{digest}", self.name),
            words => format!("{}.{words}.{digest}", self.name),
        }
    }

    /// The label selector of the rows whose keys start with `prefix`, and perhaps of others.
    pub(crate) fn selector(&self, prefix: &str) -> String {
        match prefix.split_once('/') {
            Some((first, _)) => format!("{STORE}={},{ROWS}={}", self.name, label(first)),
            None => format!("{STORE}={},{ROWS}", self.name),
        }
    }

    /// The object of the store itself.
    pub(crate) fn store_object(&self) -> Lease {
        self.object(self.store(), [(STORE.into(), self.name.clone())].into())
    }

    /// The object of a row with this value, or its tombstone.
    pub(crate) fn row_object(&self, key: &str, nonce: u128, value: Option<&[u8]>) -> Lease {
        let first = key.split_once('/').map_or(key, |(first, _)| first);
        let labels = [(STORE.into(), self.name.clone()), (ROWS.into(), label(first))].into();
        let mut object = self.object(self.object_name(key), labels);
        let mut bytes = Vec::with_capacity(HEAD + value.map_or(0, <[u8]>::len));
        bytes.put_u8(FORMAT);
        bytes.put_u8(u8::from(value.is_none()));
        bytes.put_u128(nonce);
        bytes.put_slice(value.unwrap_or_default());
        let annotations = [(KEY.into(), key.into()), (ROW.into(), STANDARD.encode(bytes))];
        object.metadata.annotations = annotations.into();
        object
    }

    fn object(&self, name: String, labels: BTreeMap<String, String>) -> Lease {
        let metadata = Metadata { name, labels, ..Metadata::default() };
        let holder = Some(self.holder.clone()).filter(|holder| !holder.is_empty());
        let spec = LeaseSpec { holder_identity: holder, renew_time: Some(wall_clock()) };
        Lease { api_version: "coordination.k8s.io/v1".into(), kind: "Lease".into(), metadata, spec }
    }

    /// The row in an object.
    pub(crate) fn decode(&self, object: &Lease) -> Result<RowObject, StoreError> {
        let Metadata { name, uid, resource_version, annotations, .. } = &object.metadata;
        let corrupt = |why: &str| {
            StoreError::Corrupt(format!(
                "the lease {name} cannot be read as a row: {why}; restore or delete it"
            ))
        };
        let annotation = |key| {
            annotations.get(key).ok_or_else(|| corrupt(&format!("it has no annotation {key}")))
        };
        let key = annotation(KEY)?;
        if *name != self.object_name(key) {
            return Err(corrupt("its key belongs to another object"));
        }
        let revision = revision(resource_version).ok_or_else(|| corrupt("it has no version"))?;
        let bytes = STANDARD.decode(annotation(ROW)?).map_err(|_| corrupt("it is not base64"))?;
        let (nonce, deleted) = match &bytes[..] {
            [FORMAT, deleted @ (0 | 1), rest @ ..] => {
                let nonce =
                    rest.first_chunk::<NONCE>().ok_or_else(|| corrupt("it is too short"))?;
                (u128::from_be_bytes(*nonce), *deleted == 1)
            }
            [format, ..] if *format != FORMAT => {
                let why = format!("it has format {format}, and this release knows {FORMAT}");
                return Err(corrupt(&why));
            }
            _ => return Err(corrupt("it is too short")),
        };
        let value = (!deleted).then(|| Bytes::from(bytes).slice(HEAD..));
        Ok(RowObject { key: key.clone(), revision, uid: uid.clone(), nonce, value })
    }
}

/// A resource version as a number. From Kubernetes 1.35 on, all servers have decimal numbers without leading zeros,
/// that rise with each change of objects of one resource (KEP-5504); the servers before have them, too.
pub(crate) fn revision(resource_version: &str) -> Option<u64> {
    let decimal = resource_version.bytes().all(|it| it.is_ascii_digit());
    if !decimal || resource_version.starts_with('0') {
        return None;
    }
    resource_version.parse().ok()
}

/// The text as a label's value: itself, or a digest if Kubernetes does not accept it.
fn label(text: &str) -> String {
    let inner = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.');
    let ends = |it: Option<u8>| it.is_some_and(|it| it.is_ascii_alphanumeric());
    let accepted = text.bytes().all(inner)
        && ends(text.bytes().next())
        && ends(text.bytes().last())
        // The form of a digest is not used for anything else.
        && text.len() < MAX_LABEL;
    match accepted {
        true => text.into(),
        false => blake3::hash(text.as_bytes()).to_hex()[..MAX_LABEL].to_owned(),
    }
}

/// The time of this machine's wall clock, in the form of Kubernetes. It is for people: nothing compares it.
fn wall_clock() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time_text(since.as_secs(), since.subsec_micros())
}

/// Seconds since 1970 as `YYYY-MM-DDThh:mm:ss.ffffffZ`.
fn time_text(seconds: u64, micros: u32) -> String {
    // Years begin in March here, so that the day that not every year has is the last one.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(layout: &Layout, key: &str, value: Option<&[u8]>) -> Lease {
        let mut object = layout.row_object(key, 3, value);
        object.metadata.uid = "u".into();
        object.metadata.resource_version = "5".into();
        object
    }

    #[test]
    fn a_row_is_a_lease_that_people_can_read() {
        let layout = Layout::new("ostraca", "n1");
        let object = stored(&layout, "nodes/N_1", Some(b"v"));
        let name = "ostraca.nodes-n-1.00766a02578b07ee526cf078462f1236";
        assert_eq!(object.metadata.name, name);
        let annotation = |key: &str| object.metadata.annotations[key].as_str();
        assert_eq!(annotation("ostraca.dev/key"), "nodes/N_1");
        assert_eq!(annotation("ostraca.dev/row"), "AQAAAAAAAAAAAAAAAAAAAAADdg==");
        assert_eq!(object.metadata.labels["ostraca.dev/rows"], "nodes");
        assert_eq!(object.metadata.labels["ostraca.dev/store"], "ostraca");
        assert_eq!(object.spec.holder_identity.as_deref(), Some("n1"));
        let row = StoredRow { key: "nodes/N_1".into(), revision: 5, value: "v".into() };
        let decoded = layout.decode(&object).expect("a row");
        assert_eq!((decoded.row(), decoded.nonce, decoded.uid.as_str()), (Some(row), 3, "u"));
        let tombstone = layout.decode(&stored(&layout, "a", None)).expect("a tombstone");
        assert_eq!((tombstone.row(), tombstone.revision), (None, 5));
    }

    #[test]
    fn every_key_has_a_name_and_labels_of_its_own() {
        let (layout, other) = (Layout::new("a", ""), Layout::new("a.b", ""));
        let keys = [
            "x/y",
            "x-y",
            "X/y",
            "x/y/",
            "",
            "é",
            "/",
            "x\u{0}",
            &"k".repeat(512),
            &"k".repeat(511),
        ];
        let mut names: Vec<_> = keys.iter().map(|key| layout.object_name(key)).collect();
        names.extend(keys.iter().map(|key| other.object_name(key)));
        for name in &names {
            let part = |part: &str| {
                let inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
                !part.is_empty() && part.bytes().all(inner) && part.trim_matches('-') == part
            };
            assert!(name.split('.').all(part) && name.len() <= 253, "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 2 * keys.len());
        for (key, expected) in
            [("nodes", true), ("a.b_c-1", true), ("", false), ("-a", false), ("é", false)]
        {
            let found = label(key);
            assert!(found.len() <= 63 && (found == key) == expected, "{found}");
        }
        let digest = label("é");
        assert_ne!(label(&digest), digest, "a text that looks like a digest is not taken for one");
    }

    #[test]
    fn objects_that_others_wrote_are_refused_by_name() {
        let layout = Layout::new("s", "");
        let change = |change: fn(&mut Metadata)| {
            let mut object = stored(&layout, "k", Some(b"v"));
            change(&mut object.metadata);
            layout.decode(&object).expect_err("refused").to_string()
        };
        let row = |bytes: &[u8]| {
            let mut object = stored(&layout, "k", Some(b"v"));
            object.metadata.annotations.insert(ROW.into(), STANDARD.encode(bytes));
            layout.decode(&object).expect_err("refused").to_string()
        };
        for (refused, expected) in [
            (change(|it| drop(it.annotations.remove(KEY))), "no annotation ostraca.dev/key"),
            (change(|it| drop(it.annotations.remove(ROW))), "no annotation ostraca.dev/row"),
            (change(|it| it.name = "s.k.0".into()), "another object"),
            (change(|it| it.resource_version = "x".into()), "no version"),
            (change(|it| drop(it.annotations.insert(ROW.into(), "?".into()))), "base64"),
            (row(b""), "too short"),
            (row(&[1, 0, 0]), "too short"),
            (row(&[1, 2]), "too short"),
            (row(&[2, 0, 0]), "format 2"),
        ] {
            assert!(refused.contains(expected), "{expected}: {refused}");
        }
    }

    #[test]
    fn versions_are_decimal_numbers() {
        assert_eq!(revision("1"), Some(1));
        assert_eq!(revision("18446744073709551615"), Some(u64::MAX));
        for bad in ["", "0", "01", "-1", "+1", "1.0", "x", "18446744073709551616"] {
            assert_eq!(revision(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_are_in_the_form_of_kubernetes() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (1_709_251_200, "2024-03-01T00:00:00"),
            (4_102_444_799, "2099-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(time_text(seconds, 7), format!("{expected}.000007Z"));
        }
    }
}
