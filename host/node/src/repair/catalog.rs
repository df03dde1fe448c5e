//! Checks the rows that the core does not know: what the cluster is, and what is deployed.
//!
//! Most of them exist nowhere else, so a damaged one is only reported. Two can be derived: the binding of a type, from
//! the manifest that was checked against it at each deployment, and the row that names the store of the state, if that
//! is the store that has the rows, too.

use std::collections::BTreeSet;

use ostraca_catalog::Error;
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{
    self, AUDIT, AUTHORITIES, AuditRow, AuthoritiesRow, BindingRow, CERTIFICATES, CertificateRow,
    ClusterRow, POLICY, POOLS, PolicyRow, PoolRow, REVOCATIONS, RevocationsRow, RowValue, SECRET,
    SETTINGS, SecretRow, SettingsRow, StoreRange, StoresRow, TIME, TimeRow, TypeRow, VariablesRow,
};
use ostraca_config::config::MAX_SHARDS;
use ostraca_config::manifest::Manifest;
use ostraca_config::policy::Policy;
use ostraca_core::extensions::Extensions;
use ostraca_core::pools::Pools;
use ostraca_store::{CompareAndSet, StoredRow};

use super::contradiction::{ContradictionKind, Findings, Remedy};
use super::snapshot::{HIGHEST, Snapshot};

const RESTORE: &str = "restore a backup";

/// Checks these rows. Returns whether every type's pool is known.
///
/// # Errors
/// [`Error::InvalidRow`] if a newer release wrote one of them.
pub(super) fn check(snapshot: &Snapshot, findings: &mut Findings) -> Result<bool, Error> {
    for key in ["cluster", SETTINGS, TIME, &rows::pool_key()] {
        if snapshot.other(key).is_none() {
            let what = "every cluster has this row, but it is missing";
            findings.report(ContradictionKind::MissingRow, key, what, manual(RESTORE));
        }
    }
    let mut types = Vec::new();
    for row in &snapshot.others {
        if let Some(name) = rows::type_name(&row.key) {
            let usable = check_type(snapshot, row, name, findings)?;
            types.extend(usable.map(|manifest| (name.to_owned(), manifest)));
        } else if row.key == rows::stores_key() {
            check_stores(snapshot, row, findings)?;
        } else if binding_type(&row.key).is_none() {
            check_other(snapshot, row, findings)?;
        }
    }
    if let (Some(pools), false) = (&snapshot.pools, snapshot.facts.unknown_shards.is_empty()) {
        let unknown = &snapshot.facts.unknown_shards;
        let what = format!(
            "it has {} shards, but {} more were claimed",
            pools.iter().next().map_or(0, |pool| pool.shards),
            unknown.len()
        );
        let kind = ContradictionKind::UnknownShard;
        findings.report(kind, &rows::pool_key(), what, manual(RESTORE));
    }
    let pools_are_complete = check_bindings(snapshot, &types, findings)?;
    check_entities(snapshot, findings)?;
    Ok(pools_are_complete)
}

fn manual(text: &str) -> Remedy {
    Remedy::Manual(text.into())
}

/// The type whose binding has this key.
fn binding_type(key: &str) -> Option<&str> {
    key.strip_prefix(rows::binding_key("").as_str())
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

/// Checks that a row decodes, and its contents.
fn contents<T: RowValue>(
    snapshot: &Snapshot,
    row: &StoredRow,
    help: &str,
    findings: &mut Findings,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<Option<T>, Error> {
    match snapshot.read::<T>(row)? {
        Err(why) => {
            let what = format!("it cannot be decoded: {why}");
            findings.report(ContradictionKind::UnreadableRow, &row.key, what, manual(help));
            Ok(None)
        }
        Ok(value) => match check(&value) {
            Ok(()) => Ok(Some(value)),
            Err(why) => {
                findings.report(ContradictionKind::InvalidRow, &row.key, why, manual(help));
                Ok(None)
            }
        },
    }
}

fn check_other(snapshot: &Snapshot, row: &StoredRow, findings: &mut Findings) -> Result<(), Error> {
    match row.key.as_str() {
        "cluster" => {
            let valid = |row: &ClusterRow| row.readable().map_err(|error| error.to_string());
            contents(snapshot, row, RESTORE, findings, valid).map(drop)
        }
        SETTINGS => {
            let valid = |row: &SettingsRow| row.settings().check();
            contents(snapshot, row, RESTORE, findings, valid).map(drop)
        }
        TIME => contents(snapshot, row, RESTORE, findings, valid_time).map(drop),
        SECRET => contents::<SecretRow>(snapshot, row, RESTORE, findings, |_| Ok(())).map(drop),
        POLICY => {
            let help = "restore a backup; until then, nodes permit nothing to clients";
            contents(snapshot, row, help, findings, valid_policy).map(drop)
        }
        REVOCATIONS => {
            let help = "restore a backup, or replace the authority: what was revoked is not known";
            contents::<RevocationsRow>(snapshot, row, help, findings, |_| Ok(())).map(drop)
        }
        AUTHORITIES => {
            contents::<AuthoritiesRow>(snapshot, row, RESTORE, findings, |_| Ok(())).map(drop)
        }
        POOLS => {
            let valid = |row: &PoolsRow| valid_pools(snapshot, row);
            contents(snapshot, row, RESTORE, findings, valid).map(drop)
        }
        key if key == rows::pool_key() => {
            contents(snapshot, row, RESTORE, findings, valid_pool).map(drop)
        }
        key if key.strip_prefix(CERTIFICATES).is_some_and(|node| !node.contains('/')) => {
            contents::<CertificateRow>(snapshot, row, RESTORE, findings, |_| Ok(())).map(drop)
        }
        key if rows::parse_audit_key(key).is_some() => {
            let help = "nothing depends on it: read the rest with `ostraca audit`";
            contents::<AuditRow>(snapshot, row, help, findings, |_| Ok(())).map(drop)
        }
        key if rows::variables_type(key).is_some() => {
            let help = "set the type's secrets and settings again, after a backup was restored";
            contents::<VariablesRow>(snapshot, row, help, findings, |_| Ok(())).map(drop)
        }
        key => {
            let what = match key.starts_with(AUDIT) {
                true => "it is no key of the audit log",
                false => "nothing is known about this key",
            };
            let remedy = Remedy::Ignore("it is left alone".into());
            findings.report(ContradictionKind::UnknownKey, key, what, remedy);
            Ok(())
        }
    }
}

fn valid_time(row: &TimeRow) -> Result<(), String> {
    let utc = row.utc_ms().map_err(|error| error.to_string())?.unwrap_or_default();
    match row.cluster_time_ms.max(utc) <= HIGHEST {
        true => Ok(()),
        false => Err("its time is beyond what a cluster reaches".into()),
    }
}

fn valid_policy(row: &PolicyRow) -> Result<(), String> {
    Policy::parse(&row.text, "policy").map(drop).map_err(|error| error.to_string())
}

fn valid_pool(row: &PoolRow) -> Result<(), String> {
    if row.shards > MAX_SHARDS {
        return Err(format!(
            "it has {} shards, but a cluster has at most {MAX_SHARDS}",
            row.shards
        ));
    }
    row.pools().map(drop).map_err(|error| error.to_string())
}

fn valid_pools(snapshot: &Snapshot, row: &PoolsRow) -> Result<(), String> {
    let Some(first) = snapshot.other(&rows::pool_key()) else { return Ok(()) };
    let Ok(Ok(first)) = snapshot.read::<PoolRow>(first) else { return Ok(()) };
    // A first pool that cannot be used is reported itself.
    let Ok(first) = first.pools() else { return Ok(()) };
    let pools = row.add_to(&first).map_err(|error| error.to_string())?;
    match pools.shard_count() <= MAX_SHARDS {
        true => Ok(()),
        false => Err(format!("the cluster has more than {MAX_SHARDS} shards with these pools")),
    }
}

/// Checks the row that names the store of the state.
fn check_stores(
    snapshot: &Snapshot,
    row: &StoredRow,
    findings: &mut Findings,
) -> Result<(), Error> {
    let found = snapshot.read::<StoresRow>(row)?;
    let map = found.and_then(|row| row.map().map_err(|error| error.to_string()));
    let known = &snapshot.facts.state_stores;
    let (kind, what) = match &map {
        Err(why) => (ContradictionKind::UnreadableRow, format!("it cannot be decoded: {why}")),
        Ok(map) => match map.stores().find(|store| !known.contains(store)) {
            Some(other) => {
                let what = format!("it names the store {other:032x}, which is not one of these");
                (ContradictionKind::OtherStateStore, what)
            }
            None if map.ranges.first().is_some_and(|(first, _)| *first == 0) => return Ok(()),
            None => {
                let what = "it names no store for the first shards".into();
                (ContradictionKind::OtherStateStore, what)
            }
        },
    };
    let Some(store_id) = snapshot.facts.embedded else {
        let help = "check which stores the configuration names; else restore a backup";
        findings.report(kind, &row.key, what, manual(help));
        return Ok(());
    };
    let remedy = Remedy::Fix("names this store: it has the rows and the state".into());
    findings.report(kind, &row.key, what, remedy);
    let ranges = vec![StoreRange { first_shard: 0, store_id }];
    let value = rows::encode_value(&StoresRow { ranges, extensions: Extensions::default() })?;
    let (key, expected) = (row.key.clone(), Some(row.revision));
    findings.change(CompareAndSet { key, expected, value: Some(value) });
    Ok(())
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
    contents(snapshot, row, RESTORE, findings, valid)?;
    if parsed.is_some() && snapshot.facts.without_component.contains(name) {
        let what = "the store does not have the component of its current revision";
        let help = "deploy the type again, with the same component";
        findings.report(ContradictionKind::MissingComponent, &row.key, what, manual(help));
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

/// Checks the bindings of deployed types and of types that were. Returns whether the pools of all are known.
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
        findings.report(ContradictionKind::UnknownPool, key, what, manual(RESTORE));
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
                if differs {
                    let what = "it does not agree with the manifest of its type";
                    findings.report(ContradictionKind::BindingDiffers, &key, what, manual(RESTORE));
                }
            }
            Some(Err(_)) | None => {
                let what = format!("the type `{name}` has no binding that can be decoded");
                let remedy = Remedy::Fix("writes it as the type's manifest says".into());
                findings.report(ContradictionKind::MissingBinding, &key, what, remedy);
                let value = Some(rows::encode_value(&implied)?);
                let expected = found.map(|row| row.revision);
                findings.change(CompareAndSet { key, expected, value });
            }
        }
    }
    let deployed: BTreeSet<_> = types.iter().map(|(name, _)| name.as_str()).collect();
    for row in &snapshot.others {
        let Some(name) = binding_type(&row.key) else { continue };
        if deployed.contains(name) {
            continue;
        }
        match snapshot.read::<BindingRow>(row)? {
            Ok(bound) if pools.get(&bound.pool).is_none() => {
                unknown_pool(&row.key, &bound.pool, findings);
            }
            Ok(_) => {}
            Err(why) => {
                let what = format!("it cannot be decoded: {why}");
                let kind = ContradictionKind::UnreadableRow;
                findings.report(kind, &row.key, what, manual(RESTORE));
            }
        }
    }
    Ok(are_complete)
}

/// Checks that entities are where their ids belong, and that their types are deployed.
fn check_entities(snapshot: &Snapshot, findings: &mut Findings) -> Result<(), Error> {
    let Some(pools) = &snapshot.pools else { return Ok(()) };
    let mut checked = BTreeSet::new();
    for (shard, entity) in &snapshot.facts.entities {
        let name = &*entity.entity_type;
        let key = rows::type_key(name);
        if snapshot.other(&key).is_none() {
            if checked.insert(name) {
                let what = format!("{entity} exists, but its type is not deployed");
                findings.report(ContradictionKind::MissingType, &key, what, manual(RESTORE));
            }
            continue;
        }
        let key = rows::binding_key(name);
        let Some(row) = snapshot.other(&key) else { continue };
        let Ok(bound) = snapshot.read::<BindingRow>(row)? else { continue };
        let Some(pool) = pools.get(&bound.pool) else { continue };
        let belongs = pool.shard_of(bound.shard_key.shard_key(&entity.id));
        if belongs != *shard && checked.insert(name) {
            let what = format!("{entity} is in shard {shard}, but belongs to shard {belongs}");
            let help =
                "restore a backup: the binding, or the number of shards of its pool, is wrong";
            findings.report(ContradictionKind::MisplacedEntity, &key, what, manual(help));
        }
    }
    Ok(())
}
