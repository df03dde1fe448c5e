//! The cluster's namespaces: their rows, and which of them a node knows.
//!
//! A namespace keeps the types of one tenant apart from those of others. Its types have names of their own (see
//! [`names`]); nothing else distinguishes them from types in the namespace `default`. A namespace is
//! only added: types and entities may refer to it for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_core::codec::CodecError;
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::names::{self, DEFAULT_NAMESPACE};
use ostraca_core::quota::Quotas;
use ostraca_store::StoredRow;
use serde::{Deserialize, Serialize};

use crate::rows;

/// Maximum number of namespaces beside `default`. Each node keeps all their rows in memory.
pub const MAX_NAMESPACES: usize = 1_000;

/// What the keys of namespaces begin with.
pub const NAMESPACES: &str = "namespaces/";

/// `namespaces/<namespace>`: a namespace beside `default`; or the quotas of `default`, which needs no row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRow {
    /// When it was created, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who created it.
    pub by: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for NamespaceRow {
    const NAME: &'static str = "NamespaceRow";
    const FIELDS: &'static [u32] = &[Self::QUOTAS];
}

impl NamespaceRow {
    const QUOTAS: u32 = 2;

    /// What its entities may use.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        self.extensions.get(Self::QUOTAS).ok().flatten().unwrap_or_default()
    }

    /// Sets what its entities may use.
    ///
    /// # Errors
    /// [`CodecError`] if a later release has filled the row with its own fields.
    pub fn set_quotas(&mut self, quotas: Quotas) -> Result<(), CodecError> {
        self.extensions.set(Self::QUOTAS, &quotas)
    }
}

/// The key of a namespace.
#[must_use]
pub fn namespace_key(name: &str) -> String {
    format!("{NAMESPACES}{name}")
}

/// The namespace whose row has this key.
#[must_use]
pub fn namespace_name(key: &str) -> Option<&str> {
    key.strip_prefix(NAMESPACES).filter(|name| names::check_namespace(name).is_ok())
}

/// The namespaces that a node knows. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KnownNamespaces(Arc<RwLock<BTreeMap<Arc<str>, Known>>>);

/// A namespace, as of a revision of the store. A deleted row is kept, so that no older row brings it back.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: u64,
    exists: bool,
    quotas: Quotas,
}

impl KnownNamespaces {
    /// Whether the cluster has a namespace, as far as this node knows.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        name == DEFAULT_NAMESPACE || known.get(name).is_some_and(|it| it.exists)
    }

    /// The namespaces with a quota.
    #[must_use]
    pub fn quotas(&self) -> BTreeMap<Arc<str>, Quotas> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let limited = known.iter().filter(|(_, it)| it.exists && !it.quotas.is_unlimited());
        limited.map(|(name, it)| (name.clone(), it.quotas)).collect()
    }

    /// Handles a row from a watch or a list. Rows of anything else, and rows older than the last observed one, are
    /// ignored. Returns whether the row is a namespace's.
    pub fn on_row_changed(&self, row: &StoredRow) -> bool {
        let Some(name) = namespace_name(&row.key) else { return false };
        // Even a row that this program cannot decode says that the namespace exists.
        self.set(
            name,
            row.revision,
            true,
            rows::decode(row).ok().as_ref().map(NamespaceRow::quotas),
        );
        true
    }

    /// Handles the deletion of a row at the given store revision.
    pub fn on_row_deleted(&self, key: &str, revision: u64) {
        if let Some(name) = namespace_name(key) {
            self.set(name, revision, false, None);
        }
    }

    /// Handles a full list of rows as of the given revision: namespaces without a row are gone.
    pub fn on_rows_listed(&self, listed: &[StoredRow], revision: u64) {
        let known: Vec<_> = {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            known.keys().map(|name| namespace_key(name)).collect()
        };
        for key in known.iter().filter(|key| !listed.iter().any(|row| row.key == **key)) {
            self.on_row_deleted(key, revision);
        }
        for row in listed {
            self.on_row_changed(row);
        }
    }

    /// Without quotas, those that are known stay in force.
    fn set(&self, name: &str, at: u64, exists: bool, quotas: Option<Quotas>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(name).copied();
        if before.is_some_and(|it| it.at >= at) {
            return;
        }
        let quotas = quotas.or(before.map(|it| it.quotas)).unwrap_or_default();
        known.insert(name.into(), Known { at, exists, quotas });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, revision: u64) -> StoredRow {
        StoredRow { key: namespace_key(name), revision, value: bytes::Bytes::new() }
    }

    #[test]
    fn a_node_follows_the_rows_of_namespaces() {
        let known = KnownNamespaces::default();
        assert!(known.contains("default") && !known.contains("acme"));
        assert!(known.on_row_changed(&row("acme", 3)));
        assert!(known.contains("acme"));
        known.on_row_deleted(&namespace_key("acme"), 2);
        assert!(known.contains("acme"), "deleted before");
        known.on_rows_listed(&[row("other", 4)], 5);
        assert!(known.contains("other") && !known.contains("acme"));
        known.on_row_changed(&row("acme", 4));
        assert!(!known.contains("acme"), "deleted by then");
        let type_row = StoredRow { key: "types/acme/counter".into(), ..row("x", 1) };
        assert!(!known.on_row_changed(&type_row));
        assert!(!known.on_row_changed(&row("No-Name", 1)));
    }

    #[test]
    fn a_node_follows_the_quotas_of_namespaces() {
        let known = KnownNamespaces::default();
        let with = |name: &str, revision, entities| {
            let mut content = NamespaceRow::default();
            let quotas = Quotas { entities, ..Quotas::default() };
            content.set_quotas(quotas).expect("a small row");
            let value = rows::encode_value(&content).expect("encodes");
            known.on_row_changed(&StoredRow { value, ..row(name, revision) });
        };
        let limits = || {
            let quotas = known.quotas().into_iter();
            quotas.map(|(name, it)| (name.to_string(), it.entities)).collect::<Vec<_>>()
        };
        with("acme", 3, Some(10));
        with("default", 4, Some(20));
        with("free", 5, None);
        assert_eq!(limits(), [("acme".into(), Some(10)), ("default".into(), Some(20))]);
        with("acme", 2, Some(11));
        // A later release wrote it.
        known.on_row_changed(&row("acme", 6));
        assert_eq!(limits()[0].1, Some(10), "an older row, and one that cannot be read");
        with("acme", 7, None);
        known.on_row_deleted(&namespace_key("default"), 8);
        assert_eq!(limits(), []);
    }
}
