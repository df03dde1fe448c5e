//! Follows the secrets and settings of types: opens them with the node's keys, for the guests of this node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_core::ids::ClusterId;
use ostraca_core::names;
use ostraca_secrets::{SealError, SecretKeys, SecretName};
use ostraca_store::StoredRow;
use ostraca_wasm::{TypeVariables, VariablesRegistry};

use crate::rows::{self, VariablesRow};

/// What the text says of a secret on a node that has no key.
const NO_KEY: &str = "this node has no key for secrets (`identity.secret-keys`)";

/// The node's keys for secrets, and what its guests read. Clones share everything.
#[derive(Clone, Debug)]
pub struct VariablesReader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cluster: ClusterId,
    keys: Option<SecretKeys>,
    registry: VariablesRegistry,
    /// The store revision of the last observed row of each type.
    seen: Mutex<HashMap<String, u64>>,
}

impl VariablesReader {
    /// Creates a reader, which waits for rows. A node without `keys` cannot open secrets.
    #[must_use]
    pub fn new(cluster: ClusterId, keys: Option<SecretKeys>, registry: VariablesRegistry) -> Self {
        Self(Arc::new(Shared { cluster, keys, registry, seen: Mutex::default() }))
    }

    /// Handles a row from a watch. Rows of anything else, and rows older than the last observed one, are ignored.
    pub fn on_row_changed(&self, row: &StoredRow) {
        let Some(entity_type) = rows::variables_type(&row.key) else { return };
        self.update(&entity_type, row.revision, || match rows::decode::<VariablesRow>(row) {
            Ok(variables) => self.opened(&entity_type, &variables),
            Err(error) => {
                tracing::error!(%error, "cannot read the secrets and settings of a type");
                TypeVariables { unreadable: Some(error.to_string()), ..TypeVariables::default() }
            }
        });
    }

    /// Handles the deletion of a row at the given store revision.
    pub fn on_row_deleted(&self, key: &str, revision: u64) {
        let Some(entity_type) = rows::variables_type(key) else { return };
        self.update(&entity_type, revision, TypeVariables::default);
    }

    /// Handles a full list of rows as of the given revision: types without a row have no values.
    pub fn on_rows_listed(&self, listed: &[StoredRow], revision: u64) {
        let missing: Vec<_> = self.seen().keys().map(|it| rows::variables_key(it)).collect();
        for key in missing.iter().filter(|key| !listed.iter().any(|row| row.key == **key)) {
            self.on_row_deleted(key, revision);
        }
        for row in listed {
            self.on_row_changed(row);
        }
    }

    /// Seals the text of a secret, as a row keeps it; `None` on a node without a key.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(
        &self,
        entity_type: &str,
        name: &str,
        text: &str,
    ) -> Option<Result<Vec<u8>, SealError>> {
        Some(self.0.keys.as_ref()?.seal(self.name(entity_type, name), text))
    }

    fn name<'a>(&self, entity_type: &'a str, name: &'a str) -> SecretName<'a> {
        let (namespace, entity_type) = names::split(entity_type);
        SecretName { cluster: self.0.cluster, namespace, entity_type, name }
    }

    /// The id of the key that sealed a secret.
    #[must_use]
    pub fn key_of(sealed: &[u8]) -> Option<String> {
        ostraca_secrets::key_of(sealed)
    }

    /// Calls `read` and publishes the result, unless a newer row was observed.
    fn update(&self, entity_type: &str, revision: u64, read: impl FnOnce() -> TypeVariables) {
        let mut seen = self.seen();
        let last = seen.entry(entity_type.to_owned()).or_default();
        if revision > *last {
            *last = revision;
            // Under the lock: rows take effect in their order.
            self.0.registry.set(entity_type, read());
        }
    }

    fn opened(&self, entity_type: &str, row: &VariablesRow) -> TypeVariables {
        let mut unopened = None;
        let secrets = row.secrets.iter().map(|entry| {
            let name = self.name(entity_type, &entry.name);
            let opened = match &self.0.keys {
                Some(keys) => keys.open(name, &entry.value).map_err(|error| error.to_string()),
                None => Err(NO_KEY.to_owned()),
            };
            if let Err(why) = &opened {
                unopened.get_or_insert_with(|| format!("{name}: {why}"));
            }
            (entry.name.clone(), opened)
        });
        let settings = row
            .settings
            .iter()
            .map(|entry| (entry.name.clone(), String::from_utf8_lossy(&entry.value).into_owned()));
        let (secrets, settings) = (secrets.collect(), settings.collect());
        if let Some(first) = unopened {
            tracing::warn!(r#type = entity_type, %first, "cannot open a secret, and perhaps others");
        }
        TypeVariables { secrets, settings, unreadable: None }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::extensions::Extensions;

    use super::*;
    use crate::rows::VariableEntry;

    const CLUSTER: ClusterId = ClusterId(1);

    fn reader(keys: Option<SecretKeys>) -> (VariablesReader, VariablesRegistry) {
        let registry = VariablesRegistry::default();
        (VariablesReader::new(CLUSTER, keys, registry.clone()), registry)
    }

    fn keys() -> SecretKeys {
        SecretKeys::parse(&SecretKeys::generate().expect("a key")).expect("parsed")
    }

    fn entry(name: &str, value: Vec<u8>) -> VariableEntry {
        VariableEntry {
            name: name.into(),
            value,
            at_ms: 1,
            by: "client/admin".into(),
            extensions: Extensions::default(),
        }
    }

    fn stored(entity_type: &str, revision: u64, row: &VariablesRow) -> StoredRow {
        let value = rows::encode_value(row).expect("encoded");
        StoredRow { key: rows::variables_key(entity_type), revision, value }
    }

    fn greeting(text: &str) -> VariablesRow {
        VariablesRow { settings: vec![entry("greeting", text.into())], ..VariablesRow::default() }
    }

    fn read(registry: &VariablesRegistry) -> Option<String> {
        registry.of("shop").settings.get("greeting").cloned()
    }

    #[test]
    fn only_newer_rows_count() {
        let (reader, registry) = reader(None);
        reader.on_row_changed(&stored("shop", 5, &greeting("new")));
        reader.on_row_changed(&stored("shop", 4, &greeting("old")));
        reader.on_row_deleted(&rows::variables_key("shop"), 4);
        reader.on_rows_listed(&[], 3);
        assert_eq!(read(&registry).as_deref(), Some("new"));
        reader.on_rows_listed(&[stored("cart", 6, &greeting("another"))], 6);
        assert_eq!(read(&registry), None);
        reader.on_row_changed(&stored("shop", 7, &greeting("again")));
        assert_eq!(read(&registry).as_deref(), Some("again"));
        reader.on_row_deleted(&rows::variables_key("shop"), 8);
        assert_eq!(read(&registry), None);
        // A row that nobody can read neither leaves the values of before, nor counts as one without values.
        reader.on_row_changed(&stored("shop", 9, &greeting("again")));
        let key = rows::variables_key("shop");
        reader.on_row_changed(&StoredRow { key, revision: 10, value: "\u{1}damaged".into() });
        assert_eq!(read(&registry), None);
        assert!(registry.of("shop").unreadable.is_some());
        reader.on_row_changed(&stored("shop", 11, &greeting("fixed")));
        assert_eq!(read(&registry).as_deref(), Some("fixed"));
    }

    #[test]
    fn a_secret_is_read_with_the_nodes_key_only() {
        let (own, keys) = (keys(), keys());
        let (sealer, _) = reader(Some(keys.clone()));
        let sealed = sealer.seal("shop", "api-key", "hidden").expect("a key").expect("sealed");
        let row = VariablesRow { secrets: vec![entry("api-key", sealed)], ..Default::default() };
        let opened = |keys: Option<SecretKeys>, entity_type: &str| {
            let (reader, registry) = reader(keys);
            reader.on_row_changed(&stored(entity_type, 1, &row));
            let secret = registry.of(entity_type).secrets.get("api-key").cloned().expect("set");
            secret.map(|it| it.reveal().to_owned())
        };
        assert_eq!(opened(Some(keys.clone()), "shop").as_deref(), Ok("hidden"));
        // Nobody can use it in another type's row.
        assert!(opened(Some(keys), "other").expect_err("refused").contains("belongs to another"));
        assert!(opened(Some(own), "shop").expect_err("refused").contains("does not have"));
        assert!(opened(None, "shop").expect_err("refused").contains("identity.secret-keys"));
        assert!(reader(None).0.seal("shop", "api-key", "hidden").is_none());
    }
}
