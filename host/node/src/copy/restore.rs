//! Restores a backup. The result is another store, in which all counters are above those that the cluster may have used
//! after the backup: an owner, a manager or a node of that time is never mistaken for one of now (R5, R7, R13).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ostraca_catalog::rows::{self, AuthoritiesRow, CertificateRow};
use ostraca_config::Config;
use ostraca_core::ids::Epoch;
use ostraca_core::rows::{NodeStatus, Row};
use ostraca_store::backup::BackupContents;
use ostraca_store::transfer::{Item, Progress};
use ostraca_store::{StoreError, StoredRow};
use ostraca_store_postgres::PostgresStore;

use super::{CopiedStores, Opening, StorePlace, copy_to, name_store};
use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::probe::ProbedStore;

/// The binary logarithm of how often a cluster raises an epoch, a term or an incarnation in a second, at the very most.
const RAISES_A_SECOND: u32 = 20;

/// Restores the backup of this name in a directory, or the newest, to a place without a store. Returns what was restored,
/// and the name. Continues an interrupted restore. Blocks.
///
/// # Errors
/// [`NodeError::Backup`] if the backup cannot be read, [`NodeError::Copy`] if the restore cannot go on, and the errors of
/// creating a store.
pub fn restore_backup(
    dir: &Path,
    name: Option<&str>,
    to: &StorePlace,
    progress: &mut Progress<'_>,
) -> Result<(CopiedStores, String), NodeError> {
    let target = Opening::new(to)?;
    let mut source = BackupContents::open(dir, name)?;
    let name = source.name().to_owned();
    let taken = source.manifest().taken_unix_s;
    let rewrite =
        |item, from, to, began| raise(name_store(item, from, to)?, least_counter(taken.max(began)));
    let restoring = async { copy_to(&mut source, target, &rewrite, progress).await };
    Ok((block_on_own_thread(restoring)?, name))
}

/// Makes the cluster whose database was restored from a backup another store, with all counters above those of before.
/// Blocks.
///
/// # Errors
/// [`NodeError::InvalidValue`] if the state or the rows are not in PostgreSQL, [`NodeError::Settings`] if the node's
/// certificate cannot be used, [`NodeError::OpenPostgres`] if the database cannot be used.
pub fn renew_database(config: &Config) -> Result<ProbedStore, NodeError> {
    let no_database = || {
        let why = "the configuration names no PostgreSQL server (`postgres.url`)";
        NodeError::InvalidValue(why.into())
    };
    if config.postgres_options().is_none() {
        return Err(no_database());
    }
    if let Some(rows) = config.rows_store() {
        let why = format!(
            "the rows of this cluster are in {}, and are not restored with the database: run `ostraca store accept` \
             without `--restored`, then remove `postgres.witness` from the directory of every node",
            rows.place()
        );
        return Err(NodeError::InvalidValue(why));
    }
    let place = StorePlace::Config(Box::new(config.clone()));
    let Opening::Postgres(options) = Opening::new(&place)? else { return Err(no_database()) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let least = least_counter(now.map_or(0, |now| now.as_secs()));
    let rewrite = |key: &str, value, from, to| {
        let item = Item::Row { key: key.into(), value };
        match raise(name_store(item, from, to)?, least)? {
            Item::Row { value, .. } => Ok(value),
            _ => Err(StoreError::Corrupt("a row became something else".into())),
        }
    };
    block_on_own_thread(async {
        let identity = PostgresStore::renew(&options, &rewrite).await?;
        Ok(ProbedStore { holds: "state and rows", place: options.place(), identity })
    })
}

/// More than any counter that the cluster can have used until this time, in seconds since 1970.
fn least_counter(unix_s: u64) -> u64 {
    unix_s << RAISES_A_SECOND
}

/// Raises the counters of a row to at least `least`, marks nodes as dead, since their processes are of before, and empties
/// the rows of authorities: what the nodes trust and present is in their files, and a backup may name an authority that has
/// been replaced since.
fn raise(item: Item, least: u64) -> Result<Item, StoreError> {
    let Item::Row { key, value } = item else { return Ok(item) };
    let damaged = |error: ostraca_catalog::Error| StoreError::Corrupt(error.to_string());
    if key == rows::AUTHORITIES || key.starts_with(rows::CERTIFICATES) {
        let empty = match key == rows::AUTHORITIES {
            true => rows::encode_value(&AuthoritiesRow::default()),
            false => rows::encode_value(&CertificateRow::default()),
        };
        return Ok(Item::Row { key, value: empty.map_err(damaged)? });
    }
    let stored = StoredRow { key: key.clone(), revision: 0, value: value.clone() };
    let Some((_, mut row, _)) = rows::decode_row(&stored).map_err(damaged)? else {
        return Ok(Item::Row { key, value });
    };
    let raised = |number: u64| least.max(number + 1);
    match &mut row {
        Row::Node(node) => {
            node.incarnation.counter = raised(node.incarnation.counter);
            if node.status == NodeStatus::Live {
                node.status = NodeStatus::Dead;
            }
        }
        Row::Manager(manager) => manager.term = raised(manager.term),
        Row::Arbiter(arbiter) => {
            arbiter.number = raised(arbiter.number);
            arbiter.unreachable.clear();
        }
        Row::Assignments(chunk) => {
            chunk.term = raised(chunk.term);
            for assignment in &mut chunk.assignments {
                assignment.epoch = Epoch(raised(assignment.epoch.0));
                assignment.hand_off = None;
            }
        }
        // It names incarnations that have ended: nodes correct it.
        Row::Numbers(_) => {}
    }
    Ok(Item::Row { key, value: rows::encode_row(&row).map_err(damaged)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_core::ids::{Incarnation, NodeId};
    use ostraca_core::rows::{Assignment, AssignmentsRow, ManagerRow, Member, NodeRow, RowKey};

    fn restored(key: &RowKey, row: &Row, least: u64) -> Row {
        let (key, value) = (rows::key_text(key), rows::encode_row(row).expect("encoded"));
        let Item::Row { key, value } = raise(Item::Row { key, value }, least).expect("raised")
        else {
            panic!("a row")
        };
        let stored = StoredRow { key, revision: 1, value };
        rows::decode_row(&stored).expect("decoded").expect("a row of the core").1
    }

    #[test]
    fn rows_elsewhere_are_not_restored_with_the_database() {
        let database = "node = \"n1\"\n[postgres]\nurl = \"host=localhost\"\n";
        let text = format!("{database}[etcd]\nendpoints = [\"localhost:2379\"]\n");
        let config = Config::parse(&text, "n1/ostraca.toml").expect("a configuration");
        let refused = renew_database(&config).expect_err("refused").to_string();
        assert!(refused.contains("`ostraca store accept` without `--restored`"), "{refused}");
    }

    #[test]
    fn r5_a_restore_raises_every_counter_above_those_before() {
        let owner = |counter| Member {
            node: NodeId::from("n1"),
            incarnation: Incarnation { counter, nonce: 7 },
        };
        for least in [3, 1000] {
            let (epochs, above) = ([0, 2, 500], |number: u64| least.max(number + 1));
            let assignments = epochs.map(|epoch| Assignment {
                epoch: Epoch(epoch),
                owner: Some(owner(2)),
                ..Assignment::default()
            });
            let (assignments, extensions) = (assignments.to_vec(), Default::default());
            let row = AssignmentsRow { term: 9, assignments, extensions };
            let Row::Assignments(found) =
                restored(&RowKey::Assignments(0), &Row::Assignments(row), least)
            else {
                panic!("assignments")
            };
            let found_epochs: Vec<_> = found.assignments.iter().map(|it| it.epoch.0).collect();
            assert_eq!(found_epochs, epochs.map(above));
            assert_eq!(found.term, above(9));
            let row = ManagerRow { term: 9, holder: owner(2), extensions: Default::default() };
            let Row::Manager(found) = restored(&RowKey::Manager, &Row::Manager(row), least) else {
                panic!("a manager")
            };
            assert_eq!(found.term, above(9));
            for (status, expected) in
                [(NodeStatus::Live, NodeStatus::Dead), (NodeStatus::Left, NodeStatus::Left)]
            {
                let row = NodeRow {
                    status,
                    draining: true,
                    ..NodeRow::for_tests(Incarnation { counter: 5, nonce: 7 })
                };
                let key = RowKey::Node(NodeId::from("n1"));
                let Row::Node(found) = restored(&key, &Row::Node(row), least) else {
                    panic!("a node")
                };
                assert_eq!(found.incarnation.counter, above(5));
                assert_eq!((found.status, found.draining), (expected, true));
            }
        }
        let emptied = |key: String, value| {
            let Ok(Item::Row { key, value }) = raise(Item::Row { key, value }, 9) else {
                panic!("a row")
            };
            StoredRow { key, revision: 1, value }
        };
        let presented = CertificateRow { presented: "a former one".into(), ..Default::default() };
        let value = rows::encode_value(&presented).expect("encoded");
        let stored = emptied(rows::certificate_key("n1"), value);
        assert_eq!(
            rows::decode::<CertificateRow>(&stored).expect("a row"),
            CertificateRow::default()
        );
        let trusted = AuthoritiesRow { trusted: "a former one".into(), ..Default::default() };
        let value = rows::encode_value(&trusted).expect("encoded");
        let stored = emptied(rows::AUTHORITIES.into(), value);
        assert_eq!(
            rows::decode::<AuthoritiesRow>(&stored).expect("a row"),
            AuthoritiesRow::default()
        );
        let other = Item::Row { key: "settings".into(), value: "any".into() };
        assert_eq!(raise(other.clone(), 9), Ok(other));
    }
}
