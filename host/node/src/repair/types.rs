//! Checks the rows of types and of their bindings, and that both fit the entities in the store.
//!
//! A binding can be derived from the manifest that was checked against it at each deployment.

use std::collections::BTreeSet;

use ostraca_catalog::Error;
use ostraca_catalog::rows::{self, BindingRow, POOLS, TypeRow};
use ostraca_config::manifest::Manifest;
use ostraca_core::extensions::Extensions;
use ostraca_core::pools::{Pool, PoolUse, Pools};
use ostraca_store::{CompareAndSet, StoredRow};

use super::contradiction::{ContradictionKind, Findings, RESTORE, Remedy};
use super::snapshot::Snapshot;

/// Checks these rows. Returns whether every type's pool is known.
///
/// # Errors
/// [`Error::InvalidRow`] if a newer release wrote one of them.
pub(super) fn check(snapshot: &Snapshot, findings: &mut Findings) -> Result<bool, Error> {
    let mut types = Vec::new();
    for row in &snapshot.others {
        if let Some(name) = rows::type_name(&row.key) {
            let usable = check_type(snapshot, row, &name, findings)?;
            types.extend(usable.map(|manifest| (name.into_owned(), manifest)));
        }
    }
    let pools_are_complete = check_bindings(snapshot, &types, findings)?;
    check_copies(snapshot, findings);
    check_entities(snapshot, findings)?;
    Ok(pools_are_complete)
}

/// Checks a deployed type. Returns its manifest.
fn check_type(
    snapshot: &Snapshot,
    row: &StoredRow,
    name: &str,
    findings: &mut Findings,
) -> Result<Option<Manifest>, Error> {
    let mut parsed = None;
    let valid = |row: &TypeRow| {
        let manifest = Manifest::parse(&row.manifest, "manifest").map_err(|error| {
            format!(
                "its manifest cannot be understood, perhaps since it is of a later release: {error}"
            )
        })?;
        if manifest.entity_type != name {
            return Err(format!("it is the row of the type `{}`", manifest.entity_type));
        }
        parsed = Some(manifest);
        Ok(())
    };
    snapshot.contents(row, RESTORE, findings, valid)?;
    if parsed.is_some() && snapshot.facts.without_component.contains(name) {
        let what = "the store does not have the component of its current revision";
        let help = "deploy the type again, with the same component";
        findings.report(ContradictionKind::MissingComponent, &row.key, what, Remedy::manual(help));
    }
    Ok(parsed)
}

/// The binding that a manifest implies.
fn implied(pools: &Pools, manifest: &Manifest) -> Option<BindingRow> {
    Some(BindingRow {
        pool: manifest.pool.clone(),
        shard_key: manifest.shard_key.clone(),
        hash: pools.get(&manifest.pool)?.hash.name().into(),
        extensions: Extensions::default(),
    })
}

/// Checks the bindings of deployed and of undeployed types. Returns whether the pools of all are known.
fn check_bindings(
    snapshot: &Snapshot,
    types: &[(String, Manifest)],
    findings: &mut Findings,
) -> Result<bool, Error> {
    let Some(pools) = &snapshot.pools else { return Ok(false) };
    let mut are_complete = true;
    let mut unknown_pool = |key: &str, pool: &str, findings: &mut Findings| {
        are_complete = false;
        let what = format!("it names the pool `{pool}`, which the cluster does not have");
        findings.report(ContradictionKind::UnknownPool, key, what, Remedy::manual(RESTORE));
    };
    for (name, manifest) in types {
        let key = rows::binding_key(name);
        let found = snapshot.other(&key);
        let bound = found.map(|row| snapshot.read::<BindingRow>(row)).transpose()?;
        let Some(implied) = implied(pools, manifest) else {
            unknown_pool(&key, &manifest.pool, findings);
            continue;
        };
        match bound {
            Some(Ok(bound)) => {
                let differs = (&bound.pool, &bound.shard_key, &bound.hash)
                    != (&implied.pool, &implied.shard_key, &implied.hash);
                // The name of a pool that was copied to another one stands for that one.
                let home = |name: &str| pools.home(name).map(|pool| &pool.name);
                let is_same = home(&bound.pool).is_some()
                    && home(&bound.pool) == home(&implied.pool)
                    && bound.shard_key == implied.shard_key
                    && pools.get(&bound.pool).is_some_and(|pool| pool.hash.name() == bound.hash);
                if differs && !is_same {
                    let what = "it does not agree with the manifest of its type";
                    findings.report(
                        ContradictionKind::BindingDiffers,
                        &key,
                        what,
                        Remedy::manual(RESTORE),
                    );
                }
            }
            Some(Err(_)) | None => {
                let what = format!("the type `{name}` has no binding that can be decoded");
                let remedy = Remedy::Fix("rebuilds it from the type's manifest".into());
                findings.report(ContradictionKind::MissingBinding, &key, what, remedy);
                let value = Some(rows::encode_value(&implied)?);
                let expected = found.map(|row| row.revision);
                findings.change(CompareAndSet { key, expected, value });
            }
        }
    }
    let deployed: BTreeSet<_> = types.iter().map(|(name, _)| name.as_str()).collect();
    // Types whose pool cannot be determined, since neither the type's row nor its binding can be used.
    let mut unknown =
        snapshot.others.iter().filter_map(|row| rows::type_name(&row.key)).any(|name| {
            !deployed.contains(&*name) && snapshot.other(&rows::binding_key(&name)).is_none()
        });
    for row in &snapshot.others {
        let Some(name) = rows::binding_type(&row.key) else { continue };
        if deployed.contains(&*name) {
            continue;
        }
        match snapshot.read::<BindingRow>(row)? {
            Ok(bound) if pools.get(&bound.pool).is_none() => {
                unknown_pool(&row.key, &bound.pool, findings);
            }
            Ok(_) => {}
            Err(why) => {
                unknown = true;
                let what = format!("it cannot be decoded: {why}");
                let kind = ContradictionKind::UnreadableRow;
                findings.report(kind, &row.key, what, Remedy::manual(RESTORE));
            }
        }
    }
    Ok(are_complete && !unknown)
}

/// Reports copies of pools that were begun and are unfinished.
fn check_copies(snapshot: &Snapshot, findings: &mut Findings) {
    for pool in snapshot.pools.iter().flat_map(Pools::iter) {
        let PoolUse::Leaving(to) = &pool.usage else { continue };
        let from = &pool.name;
        let what = format!("the copy of the pool `{from}` to `{to}` is unfinished");
        let help = format!("repeat `ostraca pool copy` from `{from}` to `{to}`");
        let kind = ContradictionKind::UnfinishedCopy;
        findings.report(kind, POOLS, what, Remedy::manual(&help));
    }
}

/// Checks that entities are where their ids belong, and that their types are deployed. In pools that are closed, both are
/// the matter of a copy.
fn check_entities(snapshot: &Snapshot, findings: &mut Findings) -> Result<(), Error> {
    let Some(pools) = &snapshot.pools else { return Ok(()) };
    let mut checked = BTreeSet::new();
    for (shard, entity) in &snapshot.facts.entities {
        if pools.of(*shard).is_some_and(Pool::is_closed) {
            continue;
        }
        let name = &*entity.entity_type;
        let key = rows::type_key(name);
        if snapshot.other(&key).is_none() {
            if checked.insert(name) {
                let what = format!("{entity} exists, but its type is not deployed");
                findings.report(
                    ContradictionKind::MissingType,
                    &key,
                    what,
                    Remedy::manual(RESTORE),
                );
            }
            continue;
        }
        let key = rows::binding_key(name);
        let Some(row) = snapshot.other(&key) else { continue };
        let Ok(bound) = snapshot.read::<BindingRow>(row)? else { continue };
        let Some(pool) = pools.home(&bound.pool) else { continue };
        let belongs = pool.shard_of(bound.shard_key.shard_key(&entity.id));
        if belongs != *shard && checked.insert(name) {
            let what = format!("{entity} is in shard {shard}, but belongs to shard {belongs}");
            let help =
                "restore a backup: the binding, or the number of shards of its pool, is wrong";
            findings.report(ContradictionKind::MisplacedEntity, &key, what, Remedy::manual(help));
        }
    }
    Ok(())
}
