//! Where the entities of a type live: fixed from its first deployment, in a row of its own (R23).
//!
//! The row is written before the type's, by compare-and-set, and never changes. So whatever revisions race, and
//! whenever a first entity comes, all of them agree in which shard it is.

use ostraca_core::extensions::Extensions;
use ostraca_store::{CompareAndSet, CompareAndSetError};

use super::*;
use crate::ownership::HASH;
use crate::rows::BindingRow;

fn wanted(manifest: &Manifest) -> BindingRow {
    BindingRow {
        pool: manifest.pool.clone(),
        shard_key: manifest.shard_key.clone(),
        hash: HASH.into(),
        extensions: Extensions::default(),
    }
}

impl Deployer {
    /// Whether the type may be deployed like this, as far as is known now.
    pub(super) async fn check_binding(&self, manifest: &Manifest) -> Result<(), Problem> {
        let key = rows::binding_key(&manifest.kind);
        match rows::read::<BindingRow>(&*self.cluster, &key).await.map_err(store_problem)? {
            Some((fixed, _)) => agrees(&fixed, manifest),
            None => Ok(()),
        }
    }

    /// Fixes it, if nobody has yet.
    pub(super) async fn bind(&self, manifest: &Manifest) -> Result<(), Problem> {
        let key = rows::binding_key(&manifest.kind);
        let value = Some(rows::encode_value(&wanted(manifest)).map_err(store_problem)?);
        let cas = CompareAndSet { key: key.clone(), expected: None, value };
        match self.cluster.compare_and_set(cas).await {
            Ok(_) => Ok(()),
            Err(CompareAndSetError::RevisionMismatch(Some(row))) => {
                agrees(&rows::decode(&row).map_err(store_problem)?, manifest)
            }
            Err(CompareAndSetError::RevisionMismatch(None)) => {
                Err(store_problem(NodeError::Conflict(key)))
            }
            Err(CompareAndSetError::Store(error)) => Err(store_problem(error.into())),
        }
    }
}

fn agrees(fixed: &BindingRow, manifest: &Manifest) -> Result<(), Problem> {
    let wanted = wanted(manifest);
    let differs = [
        ("pool", fixed.pool.clone(), wanted.pool),
        ("shard-key", fixed.shard_key.to_string(), wanted.shard_key.to_string()),
        ("hash", fixed.hash.clone(), wanted.hash),
    ];
    let Some((what, fixed, wanted)) = differs.into_iter().find(|(_, a, b)| a != b) else {
        return Ok(());
    };
    let kind = &manifest.kind;
    Err(problem(
        "binding-fixed",
        format!(
            "`{what}` of `{kind}` is {fixed:?} since its first deployment, and cannot become {wanted:?}"
        ),
        "keep it, or deploy under another type name",
    ))
}
