//! The rows of a cluster as they were found, decoded as far as possible, and what the store of the state says.
//!
//! A row that a newer release wrote is not damaged: then nothing is checked at all. The cluster's format distinguishes
//! the two, since no node writes a higher one.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_catalog::Error;
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{self, ClusterRow, POOLS, PoolRow, RowValue};
use ostraca_config::config::MAX_SHARDS;
use ostraca_core::codec::{self, CodecError};
use ostraca_core::extensions::ExtensionError;
use ostraca_core::format;
use ostraca_core::ids::{Entity, Incarnation, NodeId, ShardId};
use ostraca_core::pools::Pools;
use ostraca_core::records::Claim;
use ostraca_core::rows::{AssignmentsRow, ManagerRow, Member, NodeRow, NumbersRow, RowKey};
use ostraca_store::StoredRow;

use super::contradiction::{ContradictionKind, Findings, Remedy};

/// No cluster reaches a higher epoch, term or incarnation, not even after restores, which raise them to about 2^51. A
/// higher number is damage.
pub(super) const HIGHEST: u64 = 1 << 60;

/// Added to the highest number that is known if the row with the true one is lost: nodes may have written higher ones
/// into it, and may remember them in their caches of routes (R13).
pub(super) const LOST_RAISES: u64 = 1_000;

/// A decoded row, or why it cannot be decoded.
#[derive(Clone, Debug)]
pub(super) struct FoundRow<T> {
    pub(super) key: String,
    pub(super) revision: u64,
    pub(super) row: Result<T, String>,
}

/// Incarnations of each node.
pub(super) type Incarnations = BTreeMap<NodeId, BTreeSet<Incarnation>>;

/// What the check needs to know besides the rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateFacts {
    /// The node whose configuration was named.
    pub(crate) node: String,
    /// The id of the store that has both the rows and the state, if it is one store in a node.
    pub(crate) embedded: Option<u128>,
    /// The ids of the stores that have state.
    pub(crate) state_stores: BTreeSet<u128>,
    /// The current claims (R1).
    pub(crate) claims: BTreeMap<ShardId, Claim>,
    /// Claimed shards that the pool `default` would have if it were larger.
    pub(crate) unknown_shards: Vec<ShardId>,
    /// Some of the entities of each claimed shard.
    pub(crate) entities: Vec<(ShardId, Entity)>,
    /// Types whose component is not in the store.
    pub(crate) without_component: BTreeSet<String>,
}

/// Rows and facts.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(super) nodes: BTreeMap<NodeId, FoundRow<NodeRow>>,
    pub(super) manager: Option<FoundRow<ManagerRow>>,
    pub(super) chunks: BTreeMap<u32, FoundRow<AssignmentsRow>>,
    /// The numbers of hosts, by pool.
    pub(super) numbers: BTreeMap<String, FoundRow<NumbersRow>>,
    /// The rows that the core does not know, and that of the arbiter, without which the cluster works.
    pub(super) others: Vec<StoredRow>,
    /// `None` if the rows do not say which pools there are.
    pub(super) pools: Option<Pools>,
    pub(super) facts: StateFacts,
    /// The incarnations that other rows name: owners, and the manager.
    pub(super) named_in_rows: Incarnations,
    /// The incarnations that claims name.
    pub(super) named_in_claims: Incarnations,
    reader: RowReader,
}

impl Snapshot {
    /// Decodes rows.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if a newer release wrote one of them.
    pub(crate) fn new(stored: Vec<StoredRow>, facts: StateFacts) -> Result<Self, Error> {
        let reader = RowReader::new(&stored)?;
        let pools = reader.pools(&stored)?;
        let mut snapshot = Self {
            nodes: BTreeMap::new(),
            manager: None,
            chunks: BTreeMap::new(),
            numbers: BTreeMap::new(),
            others: Vec::new(),
            pools,
            named_in_rows: BTreeMap::new(),
            named_in_claims: incarnations(facts.claims.values().map(|claim| &claim.owner)),
            facts,
            reader,
        };
        for row in stored {
            match rows::parse_key(&row.key) {
                Some(RowKey::Node(node)) => {
                    let found = reader.found(&row, node_is_plausible)?;
                    snapshot.nodes.insert(node, found);
                }
                Some(RowKey::Manager) => {
                    snapshot.manager = Some(reader.found(&row, manager_is_plausible)?);
                }
                Some(RowKey::Assignments(chunk)) => {
                    snapshot.chunks.insert(chunk, reader.found(&row, assignments_are_plausible)?);
                }
                Some(RowKey::Numbers(pool)) => {
                    snapshot.numbers.insert(pool, reader.found(&row, |_| Ok(()))?);
                }
                Some(RowKey::Arbiter) | None => snapshot.others.push(row),
            }
        }
        let chunks = snapshot.chunks.values().filter_map(|found| found.row.as_ref().ok());
        let owners = chunks.flat_map(|row| &row.assignments).filter_map(|it| it.owner.as_ref());
        let manager = snapshot.manager.iter().filter_map(|found| found.row.as_ref().ok());
        snapshot.named_in_rows = incarnations(owners.chain(manager.map(|row| &row.holder)));
        Ok(snapshot)
    }

    /// Decodes a row that the core does not know.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if a newer release wrote it.
    pub(super) fn read<T: RowValue>(&self, row: &StoredRow) -> Result<Result<T, String>, Error> {
        self.reader.read(row)
    }

    /// Checks that a row decodes, and its contents. Returns them if they are good.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if a newer release wrote it.
    pub(super) fn contents<T: RowValue>(
        &self,
        row: &StoredRow,
        help: &str,
        findings: &mut Findings,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Result<Option<T>, Error> {
        match self.read::<T>(row)? {
            Err(why) => {
                let what = format!("it cannot be decoded: {why}");
                findings.report(
                    ContradictionKind::UnreadableRow,
                    &row.key,
                    what,
                    Remedy::manual(help),
                );
                Ok(None)
            }
            Ok(value) => match check(&value) {
                Ok(()) => Ok(Some(value)),
                Err(why) => {
                    findings.report(
                        ContradictionKind::InvalidRow,
                        &row.key,
                        why,
                        Remedy::manual(help),
                    );
                    Ok(None)
                }
            },
        }
    }

    /// A row that the core does not know, by its key.
    pub(super) fn other(&self, key: &str) -> Option<&StoredRow> {
        self.others.iter().find(|row| row.key == key)
    }

    /// The incarnations of a node that rows and claims name.
    pub(super) fn named<'a>(&'a self, node: &NodeId) -> impl Iterator<Item = &'a Incarnation> {
        let all = [self.named_in_rows.get(node), self.named_in_claims.get(node)];
        all.into_iter().flatten().flatten()
    }

    /// The highest counter of the incarnations of a node that rows and claims name.
    pub(super) fn highest_named(&self, node: &NodeId) -> Option<u64> {
        self.named(node).map(|incarnation| incarnation.counter).max()
    }

    /// The highest counter of any node's incarnation, as far as rows and claims show it; 0 if none does.
    pub(super) fn highest_counter(&self) -> u64 {
        let own = self.nodes.values().filter_map(|found| found.row.as_ref().ok());
        let own = own.map(|row| row.incarnation.counter);
        let named = self.named_in_rows.values().chain(self.named_in_claims.values()).flatten();
        own.chain(named.map(|incarnation| incarnation.counter)).max().unwrap_or(0)
    }

    /// The highest term that a row names; 0 if none does.
    pub(super) fn highest_term(&self) -> u64 {
        let chunks = self.chunks.values().filter_map(|found| found.row.as_ref().ok());
        let terms = chunks.flat_map(|row| {
            let hand_offs = row.assignments.iter().filter_map(|it| it.hand_off.as_ref());
            hand_offs.map(|intent| intent.id.term).chain([row.term])
        });
        let manager = self.manager.iter().filter_map(|found| found.row.as_ref().ok());
        let terms = terms.chain(manager.map(|row| row.term));
        terms.filter(|term| *term <= HIGHEST).max().unwrap_or(0)
    }
}

/// The pools that rows describe; `None` if they do not.
///
/// # Errors
/// [`Error::InvalidRow`] if a newer release wrote them.
pub(crate) fn pools_of(stored: &[StoredRow]) -> Result<Option<Pools>, Error> {
    RowReader::new(stored)?.pools(stored)
}

/// The row that says which formats the cluster's nodes write; `None` if it cannot be decoded.
///
/// # Errors
/// [`Error::InvalidRow`] if they write a newer one than this program reads.
pub(crate) fn cluster_row(stored: &[StoredRow]) -> Result<Option<ClusterRow>, Error> {
    let Some(row) = stored.iter().find(|row| row.key == "cluster") else { return Ok(None) };
    let any = RowReader { highest_format: u32::MAX };
    let Ok(cluster) = any.read::<ClusterRow>(row)? else { return Ok(None) };
    cluster.readable()?;
    Ok(Some(cluster))
}

/// Decodes rows of this cluster.
#[derive(Clone, Copy, Debug)]
struct RowReader {
    /// The highest format that a node of the cluster may write.
    highest_format: u32,
}

impl RowReader {
    fn new(stored: &[StoredRow]) -> Result<Self, Error> {
        let cluster = cluster_row(stored)?;
        // Without that row, any format may be one of a newer release.
        let highest = |row: ClusterRow| row.format.max(row.target_format);
        Ok(Self { highest_format: cluster.map_or(u32::MAX, highest) })
    }

    fn read<T: RowValue>(self, row: &StoredRow) -> Result<Result<T, String>, Error> {
        let key = &row.key;
        let newer = |why: String| Err(Error::InvalidRow(format!("`{key}` cannot be read: {why}")));
        let Some((&found, body)) = row.value.split_first() else {
            return Ok(Err("it is empty".into()));
        };
        match format::check(found) {
            Err(why) if found > format::newest() && u32::from(found) <= self.highest_format => {
                return newer(why);
            }
            Err(_) => return Ok(Err(format!("it has format {found}, which no node writes"))),
            Ok(()) => {}
        }
        match codec::decode(body) {
            Ok(row) => Ok(Ok(row)),
            Err(CodecError::Extension(error @ ExtensionError::UnknownRequiredField { .. })) => {
                newer(error.to_string())
            }
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn found<T: RowValue>(
        self,
        row: &StoredRow,
        check: fn(&T) -> Result<(), String>,
    ) -> Result<FoundRow<T>, Error> {
        let decoded = self.read::<T>(row)?.and_then(|value| check(&value).map(|()| value));
        Ok(FoundRow { key: row.key.clone(), revision: row.revision, row: decoded })
    }

    fn pools(self, stored: &[StoredRow]) -> Result<Option<Pools>, Error> {
        let find = |key: &str| stored.iter().find(|row| row.key == key);
        let Some(first) = find(&rows::pool_key()) else { return Ok(None) };
        let Ok(first) = self.read::<PoolRow>(first)? else { return Ok(None) };
        let Ok(first) = first.pools() else { return Ok(None) };
        let pools = match find(POOLS) {
            None => first,
            Some(row) => match self.read::<PoolsRow>(row)?.map(|row| row.add_to(&first)) {
                Ok(Ok(pools)) => pools,
                _ => return Ok(None),
            },
        };
        Ok(Some(pools).filter(|pools| pools.shard_count() <= MAX_SHARDS))
    }
}

fn incarnations<'a>(members: impl Iterator<Item = &'a Member>) -> Incarnations {
    let mut named = Incarnations::new();
    // A higher counter is damage.
    for member in members.filter(|member| member.incarnation.counter <= HIGHEST) {
        match named.get_mut(&member.node) {
            Some(known) => drop(known.insert(member.incarnation)),
            None => drop(named.insert(member.node.clone(), [member.incarnation].into())),
        }
    }
    named
}

fn limit(what: &str, number: u64) -> Result<(), String> {
    match number <= HIGHEST {
        true => Ok(()),
        false => Err(format!("its {what} is {number}, which no cluster reaches")),
    }
}

fn node_is_plausible(row: &NodeRow) -> Result<(), String> {
    limit("incarnation", row.incarnation.counter)
}

fn manager_is_plausible(row: &ManagerRow) -> Result<(), String> {
    limit("term", row.term)?;
    limit("manager's incarnation", row.holder.incarnation.counter)
}

fn assignments_are_plausible(row: &AssignmentsRow) -> Result<(), String> {
    limit("term", row.term)
}
