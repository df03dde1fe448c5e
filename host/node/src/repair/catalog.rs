//! Checks the rows that say what the cluster is, which the core does not know.
//!
//! Most of them exist nowhere else, so a damaged one is only reported. Two can be written anew: the certificate of a
//! node, and the name of the store of the state, if that is the store that has the rows, too. Pins and placements are
//! removed: without them, shards are where the strategy wants them. So is the row of the arbiter.

use ostraca_catalog::Error;
use ostraca_catalog::namespaces::{NamespaceRow, namespace_name};
use ostraca_catalog::placement::{PinsRow, PlacementRow, placed_pool};
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{
    self, AUDIT, AUTHORITIES, AuditRow, AuthoritiesRow, CERTIFICATES, CertificateRow, ClusterRow,
    PINS, POLICY, POOLS, PolicyRow, PoolRow, REVOCATIONS, RevocationsRow, RowValue, SECRET,
    SETTINGS, SecretRow, SettingsRow, StoreRange, StoresRow, TIME, TimeRow, VariablesRow,
};
use ostraca_config::config::MAX_SHARDS;
use ostraca_config::policy::Policy;
use ostraca_core::extensions::Extensions;
use ostraca_core::rows::{ArbiterRow, RowKey};
use ostraca_store::{CompareAndSet, StoredRow};

use super::contradiction::{ContradictionKind, Findings, RESTORE, Remedy};
use super::snapshot::{HIGHEST, Snapshot};

/// Checks these rows, except those of types and bindings.
///
/// # Errors
/// [`Error::InvalidRow`] if a newer release wrote one of them.
pub(super) fn check(snapshot: &Snapshot, findings: &mut Findings) -> Result<(), Error> {
    for key in ["cluster", SETTINGS, TIME, &rows::pool_key()] {
        if snapshot.other(key).is_none() {
            let what = "every cluster has this row, but it is missing";
            let kind = ContradictionKind::MissingRow;
            findings.report(kind, key, what, Remedy::manual(RESTORE));
        }
    }
    for row in &snapshot.others {
        if row.key == rows::stores_key() {
            check_stores(snapshot, row, findings)?;
        } else if rows::type_name(&row.key).is_none() && rows::binding_type(&row.key).is_none() {
            check_other(snapshot, row, findings)?;
        }
    }
    let unknown = &snapshot.facts.unknown_shards;
    if let (Some(pools), false) = (&snapshot.pools, unknown.is_empty()) {
        let shards = pools.iter().next().map_or(0, |pool| pool.shards);
        let what = format!("it has {shards} shards, but {} more were claimed", unknown.len());
        let kind = ContradictionKind::UnknownShard;
        findings.report(kind, &rows::pool_key(), what, Remedy::manual(RESTORE));
    }
    Ok(())
}

fn check_other(snapshot: &Snapshot, row: &StoredRow, findings: &mut Findings) -> Result<(), Error> {
    match row.key.as_str() {
        "cluster" => {
            let valid = |row: &ClusterRow| row.readable().map_err(|error| error.to_string());
            snapshot.contents(row, RESTORE, findings, valid).map(drop)
        }
        SETTINGS => {
            let valid = |row: &SettingsRow| row.settings().check();
            snapshot.contents(row, RESTORE, findings, valid).map(drop)
        }
        TIME => snapshot.contents(row, RESTORE, findings, valid_time).map(drop),
        SECRET => snapshot.contents::<SecretRow>(row, RESTORE, findings, |_| Ok(())).map(drop),
        POLICY => {
            let help = "restore a backup; until then, nodes permit nothing to clients";
            snapshot.contents(row, help, findings, valid_policy).map(drop)
        }
        REVOCATIONS => {
            let help = "restore a backup, or replace the authority: what was revoked is not known";
            snapshot.contents::<RevocationsRow>(row, help, findings, |_| Ok(())).map(drop)
        }
        AUTHORITIES => {
            snapshot.contents::<AuthoritiesRow>(row, RESTORE, findings, |_| Ok(())).map(drop)
        }
        POOLS => {
            let valid = |row: &PoolsRow| valid_pools(snapshot, row);
            snapshot.contents(row, RESTORE, findings, valid).map(drop)
        }
        key if key == rows::pool_key() => {
            snapshot.contents(row, RESTORE, findings, valid_pool).map(drop)
        }
        key if key.strip_prefix(CERTIFICATES).is_some_and(|node| !node.contains('/')) => {
            check_certificate(snapshot, row, findings)
        }
        key if key == rows::key_text(&RowKey::Arbiter) => {
            let does = "removes the row: the next arbitration writes it again";
            removable::<ArbiterRow>(snapshot, row, does, findings, |_| Ok(()))
        }
        PINS => {
            removable(snapshot, row, "removes the row: pin the shards again", findings, valid_pins)
        }
        key if placed_pool(key).is_some_and(|pool| !pool.contains('/')) => {
            let does = "removes the row: the program that places shards writes it again";
            removable(snapshot, row, does, findings, valid_placement)
        }
        key if rows::parse_audit_key(key).is_some() => {
            let help = "restore a backup: until then, operators' changes are refused";
            snapshot.contents::<AuditRow>(row, help, findings, |_| Ok(())).map(drop)
        }
        key if namespace_name(key).is_some() => {
            let help = "restore a backup";
            snapshot.contents::<NamespaceRow>(row, help, findings, |_| Ok(())).map(drop)
        }
        key if rows::variables_type(key).is_some() => {
            let help = "set the type's secrets and settings again, after a backup was restored";
            snapshot.contents::<VariablesRow>(row, help, findings, |_| Ok(())).map(drop)
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

/// Checks a row without which the cluster works, and whose author can write it again.
fn removable<T: RowValue>(
    snapshot: &Snapshot,
    row: &StoredRow,
    does: &str,
    findings: &mut Findings,
    check: fn(&T) -> Result<(), String>,
) -> Result<(), Error> {
    let (kind, what) = match snapshot.read::<T>(row)? {
        Err(why) => (ContradictionKind::UnreadableRow, format!("it cannot be decoded: {why}")),
        Ok(value) => match check(&value) {
            Ok(()) => return Ok(()),
            Err(why) => (ContradictionKind::InvalidRow, why),
        },
    };
    findings.report(kind, &row.key, what, Remedy::Fix(does.into()));
    let (key, expected) = (row.key.clone(), Some(row.revision));
    findings.change(CompareAndSet { key, expected, value: None });
    Ok(())
}

fn valid_pins(row: &PinsRow) -> Result<(), String> {
    match row.pins.windows(2).find(|pins| pins[0].shard >= pins[1].shard) {
        None => Ok(()),
        Some(pins) => Err(format!("the shard {} follows {}", pins[1].shard, pins[0].shard)),
    }
}

fn valid_placement(row: &PlacementRow) -> Result<(), String> {
    let named = row.nodes.len();
    match row.shards.iter().find(|place| **place as usize > named) {
        None => Ok(()),
        Some(place) => Err(format!("it names node {place} of {named}, which does not exist")),
    }
}

/// Checks the row of a node's certificate, which is empty after a restore, too: the node writes it when it starts.
fn check_certificate(
    snapshot: &Snapshot,
    row: &StoredRow,
    findings: &mut Findings,
) -> Result<(), Error> {
    let Err(why) = snapshot.read::<CertificateRow>(row)? else { return Ok(()) };
    let what = format!("it cannot be decoded: {why}");
    let does = "empties it: the node writes its certificate when it starts";
    findings.report(ContradictionKind::UnreadableRow, &row.key, what, Remedy::Fix(does.into()));
    let value = Some(rows::encode_value(&CertificateRow::default())?);
    findings.change(CompareAndSet { key: row.key.clone(), expected: Some(row.revision), value });
    Ok(())
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
        findings.report(kind, &row.key, what, Remedy::manual(help));
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
