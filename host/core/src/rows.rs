//! The rows of the `ClusterStore`, as the core reads and writes them: leases, leadership, assignments.
//!
//! The node encodes them. The core writes whole rows, and only by compare-and-set on the revision that the store gave
//! them (R5, R7, R10).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::pools::{HOST_ROLE_PREFIX, Pool, Pools};

/// The number of shards in an assignment row.
pub const SHARDS_PER_CHUNK: u32 = 64;

/// One incarnation of a node: the owner of shards, never an address (R5, R7).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// One registration of the node.
    pub incarnation: Incarnation,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.node, self.incarnation.counter)
    }
}

/// What a node does for its cluster, in any combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles {
    /// It keeps the cluster's store and serves it to the others.
    pub store: bool,
    /// It may become the manager.
    pub manager: bool,
    /// It owns shards and runs entities.
    pub host: bool,
    /// It accepts clients.
    pub gateway: bool,
}

impl Roles {
    /// Every role.
    pub const ALL: Self = Self { store: true, manager: true, host: true, gateway: true };

    /// The names of these roles, in the protocol and for people, in a fixed order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let Self { store, manager, host, gateway } = self;
        let all = [(store, "store"), (manager, "manager"), (host, "host"), (gateway, "gateway")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name)
    }

    /// The roles with these names; other names are ignored.
    #[must_use]
    pub fn from_names(names: &[String]) -> Self {
        let has = |role: &str| names.iter().any(|name| name == role);
        Self {
            store: has("store"),
            manager: has("manager"),
            host: has("host"),
            gateway: has("gateway"),
        }
    }
}

/// The status of a node's incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeStatus {
    /// It renews its lease.
    #[default]
    Live,
    /// It was marked dead, and can never renew again (R7).
    Dead,
    /// It left voluntarily and no longer serves anything.
    Left,
}

/// `nodes/<node>`: a node's incarnation and its lease. Death and renewal compete for this one row (R7).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRow {
    /// The incarnation that the row describes.
    pub incarnation: Incarnation,
    /// Raised at each renewal: observers of the lease compare this number, not a time (R8).
    pub renewals: u64,
    /// Whether the incarnation is alive, dead or has left.
    pub status: NodeStatus,
    /// Whether an operator is draining the node (R12). The mark outlives the node's restarts.
    pub draining: bool,
    /// Whether the `EntityStore` answered this node within the last lease (R9).
    pub store_available: bool,
    /// The node's roles.
    pub roles: Roles,
    /// The version of its program as a number: shards go only to nodes with the highest version (S16.2, S16.5).
    pub version: u64,
    /// Cluster time of its registration, in milliseconds: candidates are ordered by age (K21).
    pub registered_at: u64,
    /// The addresses at which clients and nodes reach it.
    pub addresses: Vec<String>,
    /// The highest format of records and rows that it reads.
    pub format: u32,
    /// How long this incarnation relies on a renewal, in milliseconds. Observers use this value and not a setting of
    /// their own. It is raised before the incarnation relies on a longer lease, and lowered after it relies on a
    /// shorter one (R8).
    pub lease: u64,
    /// The revision of the cluster's settings that this incarnation uses.
    pub settings_revision: u64,
    /// Fields of later releases.
    pub extensions: Extensions<NodeRow>,
}

impl Extensible for NodeRow {
    const NAME: &'static str = "NodeRow";
    const FIELDS: &'static [u32] = &[
        Self::LEAVING,
        Self::REGISTERED,
        Self::PROCESS,
        Self::POOL_ROLES,
        Self::HOST_PROCESS,
        Self::WEIGHT,
        Self::CONNECTIVITY,
    ];
}

impl NodeRow {
    const LEAVING: u32 = 6;
    const REGISTERED: u32 = 8;
    const PROCESS: u32 = 10;
    const POOL_ROLES: u32 = 12;
    const HOST_PROCESS: u32 = 14;
    const WEIGHT: u32 = 16;
    const CONNECTIVITY: u32 = 18;

    /// The row of a live node with all roles and no addresses, with a lease of 3 s.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn for_tests(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            renewals: 0,
            status: NodeStatus::Live,
            draining: false,
            store_available: true,
            roles: Roles::ALL,
            version: 1,
            registered_at: 0,
            addresses: Vec::new(),
            format: 3,
            lease: 3_000,
            settings_revision: 1,
            extensions: Extensions::default(),
        }
    }

    /// Whether this incarnation is leaving voluntarily, and is handing off its shards.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        // Bytes that do not decode as a flag count as no flag.
        self.extensions.get(Self::LEAVING).ok().flatten().unwrap_or(false)
    }

    /// Marks this incarnation as leaving.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for the mark.
    pub fn set_leaving(&mut self) -> Result<(), CodecError> {
        self.extensions.set(Self::LEAVING, &true)
    }

    /// Whether the node's shards must move to other nodes, because an operator is draining it or it is leaving.
    #[must_use]
    pub fn is_draining_or_leaving(&self) -> bool {
        self.draining || self.is_leaving()
    }

    /// Whether the node may be given shards of a pool, as far as its row says: it is live, hosts the pool, reaches its
    /// store, and need not give its shards away.
    #[must_use]
    pub fn may_get_shards(&self, pool: &Pool) -> bool {
        self.status == NodeStatus::Live
            && self.hosts(pool)
            && self.store_available
            && !self.is_draining_or_leaving()
    }

    /// When this incarnation registered, according to its own wall clock, in milliseconds since 1970. For display only:
    /// no decision uses it.
    #[must_use]
    pub fn registered_unix_ms(&self) -> Option<u64> {
        self.extensions.get(Self::REGISTERED).ok().flatten()
    }

    /// Returns the row with this registration time. A row without space for it is returned unchanged.
    #[must_use]
    pub fn with_registered_unix_ms(mut self, unix_ms: u64) -> Self {
        // The time is only displayed.
        let _ = self.extensions.set(Self::REGISTERED, &unix_ms);
        self
    }

    /// What follows `host.` in the node's other roles (K39).
    #[must_use]
    pub fn pool_roles(&self) -> Vec<String> {
        // Bytes that do not decode as roles count as none.
        self.extensions.get(Self::POOL_ROLES).ok().flatten().unwrap_or_default()
    }

    /// Returns the row with these roles.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for them.
    pub fn with_pool_roles(mut self, roles: &[String]) -> Result<Self, CodecError> {
        self.extensions.set(Self::POOL_ROLES, &roles.to_vec())?;
        Ok(self)
    }

    /// How much load the node should have, in relation to other hosts: at least 1, and usually 1.
    #[must_use]
    pub fn weight(&self) -> u32 {
        // Bytes that do not decode as a number count as the usual weight.
        self.extensions.get(Self::WEIGHT).ok().flatten().unwrap_or(1).max(1)
    }

    /// Returns the row with this weight.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for it.
    pub fn with_weight(mut self, weight: u32) -> Result<Self, CodecError> {
        match weight {
            0 | 1 => drop(self.extensions.take::<u32>(Self::WEIGHT)?),
            _ => self.extensions.set(Self::WEIGHT, &weight)?,
        }
        Ok(self)
    }

    /// Whether the node sends and answers keep-alives (E12).
    #[must_use]
    pub fn answers_keep_alives(&self) -> bool {
        self.connectivity().is_some()
    }

    /// Whether the node takes part in arbitrations: it ends itself if it loses one (E13).
    #[must_use]
    pub fn follows_arbiter(&self) -> bool {
        self.connectivity() == Some(true)
    }

    fn connectivity(&self) -> Option<bool> {
        // Bytes that do not decode as a flag count as none.
        self.extensions.get(Self::CONNECTIVITY).ok().flatten()
    }

    /// Returns the row of a node that answers keep-alives, and that may take part in arbitrations. A row without space
    /// for this is returned unchanged.
    #[must_use]
    pub fn with_keep_alives(mut self, follows_arbiter: bool) -> Self {
        // Without the field, other nodes neither count keep-alives to the node nor end it.
        let _ = self.extensions.set(Self::CONNECTIVITY, &follows_arbiter);
        self
    }

    /// Whether the node's release knows that there may be several pools.
    #[must_use]
    pub fn knows_pools(&self) -> bool {
        matches!(self.extensions.get::<Vec<String>>(Self::POOL_ROLES), Ok(Some(_)))
    }

    /// The names of all its roles, in the protocol and for people.
    #[must_use]
    pub fn role_names(&self) -> Vec<String> {
        let pools = self.pool_roles();
        let of_pools = pools.iter().map(|role| format!("{HOST_ROLE_PREFIX}{role}"));
        self.roles.names().map(str::to_owned).chain(of_pools).collect()
    }

    /// Whether the node owns shards of any pool.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.roles.host || !self.pool_roles().is_empty()
    }

    /// Whether the node may own shards of a pool (K39).
    #[must_use]
    pub fn hosts(&self, pool: &Pool) -> bool {
        !pool.is_closed()
            && match &pool.role {
                None => self.roles.host,
                Some(role) => self.pool_roles().contains(role),
            }
    }

    /// How a health check in Kubernetes finds the process of this incarnation.
    #[must_use]
    pub fn process(&self) -> Option<PodProcess> {
        self.extensions.get(Self::PROCESS).ok().flatten()
    }

    /// Returns the row with this process. A row without space for it is returned unchanged.
    #[must_use]
    pub fn with_process(mut self, process: &PodProcess) -> Self {
        // Without it, the lease alone decides.
        let _ = self.extensions.set(Self::PROCESS, process);
        self
    }

    /// How other health checks find the process of this incarnation.
    #[must_use]
    pub fn host_process(&self) -> Option<HostProcess> {
        self.extensions.get(Self::HOST_PROCESS).ok().flatten()
    }

    /// Returns the row with this process. A row without space for it is returned unchanged.
    #[must_use]
    pub fn with_host_process(mut self, process: &HostProcess) -> Self {
        // Without it, a health check knows only the node's name and incarnation.
        let _ = self.extensions.set(Self::HOST_PROCESS, process);
        self
    }
}

/// How a health check finds the process of a node (S7): a container of a pod in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodProcess {
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: another pod may get the same name.
    pub uid: String,
    /// What the process has written into the termination log of its container: another process may run in the same
    /// pod later.
    pub mark: String,
}

/// How a health check finds the process of a node on a machine (S7): no other process ever has the same values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostProcess {
    /// The machine's name, as `hostname` prints it.
    pub host: String,
    /// The machine's boot: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The namespace of the process id, that is, its container: the inode of `/proc/self/ns/pid`.
    pub pid_namespace: u64,
    /// Its process id there.
    pub pid: u32,
    /// When it started, in clock ticks since the machine's boot: field 22 of `/proc/PID/stat`. Another process may get
    /// the same id later.
    pub start_ticks: u64,
}

/// `manager`: which node is the manager, and in which term. Leadership has no lease other than the holder's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ManagerRow {
    /// Rises with each new holder (R10).
    pub term: u64,
    /// The manager.
    pub holder: Member,
    /// Fields of later releases.
    pub extensions: Extensions<ManagerRow>,
}

impl Extensible for ManagerRow {
    const NAME: &'static str = "ManagerRow";
    const FIELDS: &'static [u32] = &[Self::CONSECUTIVE_STEP_DOWNS];
}

impl ManagerRow {
    const CONSECUTIVE_STEP_DOWNS: u32 = 2;

    /// How many managers in a row, including the last one, stepped down because no other host reported to them.
    #[must_use]
    pub fn consecutive_step_downs(&self) -> u32 {
        // Bytes that do not decode as a number count as 0.
        self.extensions.get(Self::CONSECUTIVE_STEP_DOWNS).ok().flatten().unwrap_or(0)
    }

    /// Returns the row with this number. A row without space for it is returned unchanged.
    #[must_use]
    pub fn with_consecutive_step_downs(mut self, terms: u32) -> Self {
        // Without the number, the leadership rotates sooner.
        let _ = match terms {
            0 => self.extensions.take::<u32>(Self::CONSECUTIVE_STEP_DOWNS).map(drop),
            _ => self.extensions.set(Self::CONSECUTIVE_STEP_DOWNS, &terms),
        };
        self
    }
}

/// `arbiter`: which node took the arbiter's lease last, during a partition in which both sides reach this store (E13).
/// The row ends only the incarnations that it names, so it says nothing to any other that reads it later.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArbiterRow {
    /// Rises with each arbitration. One node wins each number, by compare-and-set.
    pub number: u64,
    /// The incarnation that took the lease.
    pub winner: Member,
    /// The live incarnations that the winner could not reach. Each ends itself unless the winner reaches it after all.
    pub unreachable: Vec<Member>,
    /// Fields of later releases.
    pub extensions: Extensions<ArbiterRow>,
}

impl Extensible for ArbiterRow {
    const NAME: &'static str = "ArbiterRow";
}

/// `shards/default/<chunk>`: who owns [`SHARDS_PER_CHUNK`] shards, whatever their pools, with the term of its writer (R10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AssignmentsRow {
    /// The term of the manager that wrote it.
    pub term: u64,
    /// The shards in order; the first one is shard `chunk * SHARDS_PER_CHUNK + 1`.
    pub assignments: Vec<Assignment>,
    /// Fields of later releases.
    pub extensions: Extensions<AssignmentsRow>,
}

impl Extensible for AssignmentsRow {
    const NAME: &'static str = "AssignmentsRow";
}

/// One shard's owner, and its hand-off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    /// Raised at each change of owner.
    pub epoch: Epoch,
    /// The owner; `None` before the first assignment.
    pub owner: Option<Member>,
    /// The hand-off in progress, which is written before it begins (S15).
    pub hand_off: Option<HandOffIntent>,
    /// Fields of later releases.
    pub extensions: Extensions<Assignment>,
}

impl Extensible for Assignment {
    const NAME: &'static str = "Assignment";
    const FIELDS: &'static [u32] = &[Self::LEASE];
}

impl Assignment {
    const LEASE: u32 = 4;

    /// The lease under which the owner has the shard. `None`: the shard's pool has a manager (E8).
    #[must_use]
    pub fn lease(&self) -> Option<ShardLease> {
        // Bytes that do not decode as a lease count as none.
        self.extensions.get(Self::LEASE).ok().flatten()
    }

    /// Sets or clears the lease.
    ///
    /// # Errors
    /// [`CodecError`] if the extension block has no space for it.
    pub fn set_lease(&mut self, lease: Option<ShardLease>) -> Result<(), CodecError> {
        match lease {
            Some(lease) => self.extensions.set(Self::LEASE, &lease),
            None => self.extensions.take::<ShardLease>(Self::LEASE).map(drop),
        }
    }
}

/// The lease of one shard in a pool without a manager (E8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardLease {
    /// Raised at each renewal: observers compare this number, not a time (R8).
    pub renewals: u64,
    /// How long the owner relies on a renewal, in milliseconds.
    pub lease: u64,
}

/// `numbers/<pool>`: which node has which number in a pool without a manager (E5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NumbersRow {
    /// In the order of their numbers. Each number, and each node, occurs once.
    pub holders: Vec<NumberHolder>,
    /// Fields of later releases.
    pub extensions: Extensions<NumbersRow>,
}

impl Extensible for NumbersRow {
    const NAME: &'static str = "NumbersRow";
}

impl NumbersRow {
    /// The place of an incarnation among all holders, in the order of their numbers.
    #[must_use]
    pub fn place_of(&self, member: &Member) -> Option<usize> {
        self.holders.iter().position(|holder| holder.member == *member)
    }

    /// Gives the smallest number that nobody has to an incarnation that has none.
    pub fn add(&mut self, member: Member) {
        if self.place_of(&member).is_some() {
            return;
        }
        let taken = |number: &u32| self.holders.iter().any(|holder| holder.number == *number);
        // The pigeonhole principle: one of these is free.
        let count = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        let number = (0..=count).find(|number| !taken(number)).unwrap_or(count);
        let place = self.holders.partition_point(|holder| holder.number < number);
        self.holders.insert(place, NumberHolder { number, member });
    }
}

/// Who has a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NumberHolder {
    /// From 0 on.
    pub number: u32,
    /// Who has it.
    pub member: Member,
}

/// A hand-off in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandOffIntent {
    /// Its unique id: the term of the manager that began it, and a count (R11).
    pub id: HandOffId,
    /// The next owner, if that node may still own shards by then.
    pub target: Option<NodeId>,
}

/// The id of a hand-off.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct HandOffId {
    /// The manager's term.
    pub term: u64,
    /// Counts the manager's hand-offs in that term.
    pub number: u64,
}

/// The key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowKey {
    /// The row of a node.
    Node(NodeId),
    /// The row of the manager.
    Manager,
    /// A chunk of the assignments.
    Assignments(u32),
    /// The row of the arbiter's lease.
    Arbiter,
    /// The numbers of the hosts of a pool without a manager, by the pool's name.
    Numbers(String),
}

impl RowKey {
    /// The row that contains a shard.
    #[must_use]
    pub fn for_shard(shard: ShardId) -> Self {
        Self::Assignments(chunk_of(shard))
    }
}

/// A row's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Row {
    /// The value of [`RowKey::Node`].
    Node(NodeRow),
    /// The value of [`RowKey::Manager`].
    Manager(ManagerRow),
    /// The value of [`RowKey::Assignments`].
    Assignments(AssignmentsRow),
    /// The value of [`RowKey::Arbiter`].
    Arbiter(ArbiterRow),
    /// The value of [`RowKey::Numbers`].
    Numbers(NumbersRow),
}

/// The chunk that contains a shard.
#[must_use]
pub fn chunk_of(shard: ShardId) -> u32 {
    shard.0.saturating_sub(1) / SHARDS_PER_CHUNK
}

/// A shard's index in its chunk.
#[must_use]
pub fn index_in_chunk(shard: ShardId) -> usize {
    (shard.0.saturating_sub(1) % SHARDS_PER_CHUNK) as usize
}

/// The shard at an index in a chunk.
#[must_use]
pub fn shard_at(chunk: u32, place: usize) -> ShardId {
    ShardId(chunk * SHARDS_PER_CHUNK + u32::try_from(place).unwrap_or(0) + 1)
}

/// Whether the manager decides about no shard of a chunk (E5).
#[must_use]
pub fn is_stateless_chunk(pools: &Pools, chunk: u32) -> bool {
    let first = shard_at(chunk, 0);
    let last = ShardId((first.0 + SHARDS_PER_CHUNK - 1).min(pools.shard_count()));
    let mut managed = pools.iter().filter(|pool| !pool.is_stateless());
    first <= last && !managed.any(|pool| pool.first <= last && pool.last() >= first)
}

/// How many chunks this number of shards has.
#[must_use]
pub fn chunk_count(shards: u32) -> u32 {
    shards.div_ceil(SHARDS_PER_CHUNK)
}
