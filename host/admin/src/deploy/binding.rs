//! A type's binding, which decides the shard of each of its entities: fixed by the type's first deployment, in a
//! separate row (R23).
//!
//! The binding's row is written before the type's row, by compare-and-set, and never changes. If the pool is copied to
//! another one, its name stands for that one from then on, in bindings and manifests. So all revisions agree
//! on every entity's shard, no matter how deploys race or when the first entity is activated.

use ostraca_catalog as catalog;
use ostraca_catalog::pool::HASH;
use ostraca_catalog::rows::{self, BindingRow};
use ostraca_codes::codes;
use ostraca_config::manifest::Manifest;
use ostraca_core::extensions::Extensions;
use ostraca_core::pools::Pools;
use ostraca_store::{CompareAndSet, CompareAndSetError};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::Problem;

use super::super::catalog_problem::to_problem;
use super::Deployer;

fn wanted(pools: &Pools, manifest: &Manifest) -> BindingRow {
    BindingRow {
        pool: manifest.pool.clone(),
        shard_key: manifest.shard_key.clone(),
        hash: pools.get(&manifest.pool).map_or(HASH, |pool| pool.hash.name()).into(),
        extensions: Extensions::default(),
    }
}

impl Deployer {
    /// Checks that the manifest agrees with the type's binding, as far as it is known now.
    pub(crate) async fn check_binding(&self, manifest: &Manifest) -> Result<(), Problem> {
        let key = rows::binding_key(&manifest.entity_type);
        match rows::read::<BindingRow>(&*self.cluster_store, &key).await.map_err(to_problem)? {
            Some((fixed, _)) => check_binding_matches(&self.pools.get(), &fixed, manifest),
            None => Ok(()),
        }
    }

    /// Writes the binding unless it exists.
    pub(super) async fn bind(&self, manifest: &Manifest) -> Result<(), Problem> {
        let key = rows::binding_key(&manifest.entity_type);
        let value =
            Some(rows::encode_value(&wanted(&self.pools.get(), manifest)).map_err(to_problem)?);
        let cas = CompareAndSet { key: key.clone(), expected: None, value };
        match self.cluster_store.compare_and_set(cas).await {
            Ok(_) => Ok(()),
            Err(CompareAndSetError::RevisionMismatch(Some(row))) => {
                let fixed = rows::decode(&row).map_err(to_problem)?;
                check_binding_matches(&self.pools.get(), &fixed, manifest)
            }
            Err(CompareAndSetError::RevisionMismatch(None)) => {
                Err(to_problem(catalog::Error::RowConflict(key)))
            }
            Err(CompareAndSetError::Store(error)) => Err(to_problem(error.into())),
        }
    }
}

fn check_binding_matches(
    pools: &Pools,
    fixed: &BindingRow,
    manifest: &Manifest,
) -> Result<(), Problem> {
    let wanted = wanted(pools, manifest);
    let home = |name: &str| pools.home(name).map(|pool| &pool.name);
    // The hash is a property of the pool.
    if home(&fixed.pool).is_some()
        && home(&fixed.pool) == home(&wanted.pool)
        && fixed.shard_key == wanted.shard_key
    {
        return Ok(());
    }
    let differs = [
        ("pool", fixed.pool.clone(), wanted.pool),
        ("shard-key", fixed.shard_key.to_string(), wanted.shard_key.to_string()),
        ("hash", fixed.hash.clone(), wanted.hash),
    ];
    let Some((what, fixed, wanted)) = differs.into_iter().find(|(_, a, b)| a != b) else {
        return Ok(());
    };
    let kind = &manifest.entity_type;
    Err(problem(
        codes::BINDING_IMMUTABLE,
        format!(
            "`{what}` of `{kind}` was fixed as {fixed:?} by its first deployment and cannot become {wanted:?}"
        ),
        "keep it, or deploy under another type name",
    ))
}
