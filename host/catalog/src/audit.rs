//! The audit log: what operators have asked nodes to change.
//!
//! Each node keeps a log of its own in rows of the cluster, so that no two nodes write the same row and the log outlives
//! them. An entry is durable before the change is carried out. So a change without an entry cannot happen, but an entry
//! may be of a change that then failed.
//!
//! A node has two logs, so that those who may change some types cannot push out what concerns the whole cluster, nor
//! delay it ([`Log`]). Each is bounded: a node keeps its newest [`PARTS`] rows of [`PART_BYTES`] each.

use std::sync::Arc;

use ostraca_core::extensions::Extensions;
use ostraca_store::{ClusterStore, CompareAndSet};
use tokio::sync::Mutex;

use crate::clock::ClusterClock;
use crate::error::Error;
use crate::rows::{self, AuditEntry, AuditRow};

/// Maximum size of a row in bytes.
pub const PART_BYTES: usize = 32 << 10;
/// How many rows a node keeps.
pub const PARTS: u64 = 32;
/// Maximum length of each text of an entry in bytes; longer ones are cut.
pub const MAX_TEXT_BYTES: usize = 1 << 10;

/// How often an append is tried if another process writes the same row.
const ATTEMPTS: u32 = 3;

/// Where a change is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Changes that need a permission on the whole cluster.
    Cluster,
    /// Changes that need a permission on a type only.
    Types,
}

impl Log {
    fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Types => "types",
        }
    }
}

/// A change that somebody asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The command that asks for it.
    pub action: &'static str,
    /// The node, type or entity that it concerns; may be empty.
    pub target: String,
    /// Further arguments, for people; may be empty.
    pub details: String,
}

/// The logs of one node.
pub struct AuditLog {
    node: String,
    store: Arc<dyn ClusterStore>,
    clock: Arc<ClusterClock>,
    /// The current row of each log; `None` until it was read.
    cluster: Mutex<Option<Part>>,
    types: Mutex<Option<Part>>,
}

#[derive(Default)]
struct Part {
    number: u64,
    /// The row's revision in the store; `None` if it does not exist yet.
    revision: Option<u64>,
    row: AuditRow,
    /// The lowest number that may still exist.
    oldest: u64,
}

impl Part {
    /// Adds the first of these entries, as many as fit, and returns how many. At least one fits into an empty part.
    fn add(&mut self, entries: &[AuditEntry]) -> Result<usize, Error> {
        let mut bytes = rows::encode_value(&self.row)?.len();
        for (at, entry) in entries.iter().enumerate() {
            bytes += rows::encode_value(entry)?.len();
            if bytes > PART_BYTES && !self.row.entries.is_empty() {
                return Ok(at);
            }
            self.row.entries.push(entry.clone());
        }
        Ok(entries.len())
    }
}

impl AuditLog {
    /// The logs of this node.
    #[must_use]
    pub fn new(node: &str, store: Arc<dyn ClusterStore>, clock: Arc<ClusterClock>) -> Self {
        let (cluster, types) = Default::default();
        Self { node: node.into(), store, clock, cluster, types }
    }

    /// Appends changes that a principal asks for. They are durable when this returns.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::InvalidRow`]; then the changes must not be carried out.
    pub async fn append(
        &self,
        log: Log,
        principal: &str,
        changes: Vec<Change>,
    ) -> Result<(), Error> {
        let at_ms = self.clock.utc_ms();
        let entry = |change: Change| AuditEntry {
            at_ms,
            principal: cut(principal),
            action: change.action.into(),
            target: cut(&change.target),
            details: cut(&change.details),
            extensions: Extensions::default(),
        };
        let entries: Vec<_> = changes.into_iter().map(entry).collect();
        let mut rest = &entries[..];
        let mut current = match log {
            Log::Cluster => self.cluster.lock().await,
            Log::Types => self.types.lock().await,
        };
        let mut attempt = 1;
        while !rest.is_empty() {
            let part = match current.take() {
                Some(part) => part,
                None => self.newest(log).await?,
            };
            match self.write(log, part, rest).await {
                Ok((part, written)) => {
                    *current = Some(part);
                    rest = &rest[written..];
                    attempt = 1;
                }
                // Another process of this node, or an answer that was lost: read again what is there.
                Err(Error::RowConflict(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the current part.
    async fn newest(&self, log: Log) -> Result<Part, Error> {
        let prefix = format!("{}{}/{}/", rows::AUDIT, log.name(), self.node);
        let (all, _) = self.store.list(&prefix).await?;
        let numbers = all.iter().filter_map(|row| rows::parse_audit_key(&row.key));
        let oldest = numbers.map(|(_, number)| number).min().unwrap_or(1);
        match all.last() {
            Some(row) => {
                let number = rows::parse_audit_key(&row.key).map_or(oldest, |(_, number)| number);
                let revision = Some(row.revision);
                Ok(Part { number, revision, row: rows::decode(row)?, oldest })
            }
            None => Ok(Part { number: 1, oldest, ..Part::default() }),
        }
    }

    /// Writes the first of these entries, as many as fit into a row, and returns how many.
    async fn write(
        &self,
        log: Log,
        mut part: Part,
        entries: &[AuditEntry],
    ) -> Result<(Part, usize), Error> {
        let mut written = part.add(entries)?;
        if written == 0 {
            part = Part { number: part.number + 1, oldest: part.oldest, ..Part::default() };
            written = part.add(entries)?;
        }
        let key = rows::audit_key(log.name(), &self.node, part.number);
        let revision = rows::write(&*self.store, &key, part.revision, &part.row).await?;
        part.revision = Some(revision);
        while part.oldest + PARTS <= part.number {
            self.remove(log, part.oldest).await;
            part.oldest += 1;
        }
        Ok((part, written))
    }

    /// Removes an old part. If that fails, the next start of the node tries again.
    async fn remove(&self, log: Log, number: u64) {
        let key = rows::audit_key(log.name(), &self.node, number);
        let Ok(Some(row)) = self.store.get(&key).await else { return };
        let removal = CompareAndSet { key, expected: Some(row.revision), value: None };
        if let Err(error) = self.store.compare_and_set(removal).await {
            tracing::debug!(%error, "cannot remove an old part of the audit log");
        }
    }
}

/// All entries of all nodes, each with its node, ordered by time.
///
/// # Errors
/// [`Error::Store`], [`Error::InvalidRow`].
pub async fn read(store: &dyn ClusterStore) -> Result<Vec<(String, AuditEntry)>, Error> {
    let (all, _) = store.list(rows::AUDIT).await?;
    let mut entries = Vec::new();
    for row in &all {
        let Some((node, _)) = rows::parse_audit_key(&row.key) else { continue };
        let part: AuditRow = rows::decode(row)?;
        entries.extend(part.entries.into_iter().map(|entry| (node.to_owned(), entry)));
    }
    // Stable: entries of one node and time stay in their order.
    entries.sort_by_key(|(_, entry)| entry.at_ms);
    Ok(entries)
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::ClusterId;
    use ostraca_store::MemoryStore;

    use super::*;

    fn log(store: &Arc<MemoryStore>, node: &str) -> AuditLog {
        AuditLog::new(node, store.clone(), Arc::new(ClusterClock::new(0)))
    }

    fn store() -> Arc<MemoryStore> {
        Arc::new(MemoryStore::new(9, ClusterId(1), "test"))
    }

    fn change(target: &str) -> Vec<Change> {
        vec![Change { action: "drain", target: target.into(), details: String::new() }]
    }

    async fn targets(store: &MemoryStore, node: &str) -> Vec<String> {
        let all = read(store).await.expect("read");
        let own = all.into_iter().filter(|(of, _)| of == node);
        own.map(|(_, entry)| entry.target).collect()
    }

    #[tokio::test]
    async fn each_node_has_a_log_that_outlives_it() {
        let store = store();
        let (one, two) = (log(&store, "n1"), log(&store, "n2"));
        one.append(Log::Cluster, "client/a", change("x")).await.expect("appended");
        two.append(Log::Cluster, "client/b", change("y")).await.expect("appended");
        one.append(Log::Cluster, "client/a", change("z")).await.expect("appended");
        // The next process of the first node.
        log(&store, "n1").append(Log::Cluster, "client/c", change("w")).await.expect("appended");
        // And the former one, which has not noticed it.
        one.append(Log::Cluster, "client/a", change("v")).await.expect("appended");
        assert_eq!(targets(&store, "n1").await, ["x", "z", "w", "v"]);
        assert_eq!(targets(&store, "n2").await, ["y"]);
        let all = read(&*store).await.expect("read");
        let principals: Vec<_> = all.iter().map(|(_, it)| it.principal.as_str()).collect();
        assert_eq!(principals.iter().filter(|it| **it == "client/a").count(), 3);
    }

    #[tokio::test]
    async fn the_log_is_bounded_and_keeps_the_newest() {
        let store = store();
        let log = log(&store, "n1");
        // Each takes a quarter of a part.
        let long = |at: usize| format!("{at:06}{}", "x".repeat(10 * MAX_TEXT_BYTES));
        let many = 200_usize;
        for at in 0..many {
            let changes = (0..8).map(|_| change(&long(at)).remove(0)).collect();
            log.append(Log::Cluster, "client/a", changes).await.expect("appended");
        }
        let (rows, _) = store.list(rows::AUDIT).await.expect("listed");
        assert!(rows.len() as u64 <= PARTS, "{}", rows.len());
        assert!(rows.iter().all(|row| row.value.len() <= PART_BYTES));
        let kept = targets(&store, "n1").await;
        assert!(kept.iter().all(|it| it.len() == MAX_TEXT_BYTES));
        let numbers: Vec<usize> =
            kept.iter().map(|it| it[..6].parse().expect("a number")).collect();
        let first = numbers[0];
        assert!(first > 0 && numbers.len() >= 24 * 31, "{first} {}", numbers.len());
        // Of the changes that were appended together, the first ones may be in a row that is gone.
        let rest: Vec<_> = numbers.into_iter().filter(|at| *at > first).collect();
        let expected: Vec<_> = (first + 1..many).flat_map(|at| [at; 8]).collect();
        assert_eq!(rest, expected, "the newest, in order, without a gap");
    }

    #[tokio::test]
    async fn changes_of_types_push_out_none_of_the_cluster() {
        let store = store();
        let log = log(&store, "n1");
        log.append(Log::Cluster, "client/a", change("x")).await.expect("appended");
        let long = "y".repeat(MAX_TEXT_BYTES);
        let changes = || (0..31).map(|_| change(&long).remove(0)).collect();
        for _ in 0..2 * PARTS {
            log.append(Log::Types, "client/b", changes()).await.expect("appended");
        }
        let kept = targets(&store, "n1").await;
        assert_eq!(kept.iter().filter(|it| *it == "x").count(), 1);
        assert!(kept.len() < 40 * PARTS as usize, "the other log is bounded: {}", kept.len());
    }

    #[tokio::test]
    async fn many_changes_at_once_take_several_rows() {
        let store = store();
        let log = log(&store, "n1");
        let long = |at: usize| format!("{at:06}{}", "x".repeat(MAX_TEXT_BYTES));
        let changes = |from: usize| (from..from + 100).map(|at| change(&long(at)).remove(0));
        log.append(Log::Cluster, "client/a", changes(0).collect()).await.expect("appended");
        log.append(Log::Cluster, "client/a", changes(100).collect()).await.expect("appended");
        let (rows, _) = store.list(rows::AUDIT).await.expect("listed");
        assert!(rows.iter().all(|row| row.value.len() <= PART_BYTES));
        assert!((6..10).contains(&rows.len()), "{} rows", rows.len());
        let kept = targets(&store, "n1").await;
        assert_eq!(
            kept,
            (0..200).map(|at| long(at)[..MAX_TEXT_BYTES].to_owned()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn keys_of_audit_rows_have_one_spelling() {
        assert_eq!(rows::parse_audit_key("audit/types/n1/0000000007"), Some(("n1", 7)));
        for other in ["types/n1/7", "types/n1", "types/", "x", "types/n1/0000000007/x"] {
            assert_eq!(rows::parse_audit_key(&format!("audit/{other}")), None, "{other}");
        }
    }
}
