//! Settings of a node's machine.

use serde::{Deserialize, Serialize};

use crate::assign::StrategySettings;

/// Bounds and intervals of a node. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The revision of the cluster's settings that these come from. Default 0: none has been read yet.
    pub settings_revision: u64,
    /// How long a lease lasts after its last renewal was sent. Default 3,000.
    pub lease: u64,
    /// Interval between renewals of the lease. Default 750.
    pub renew_interval: u64,
    /// What an observer adds to the leases of others, for clocks that run at different speeds. Default 600.
    pub lease_margin: u64,
    /// How long to wait before repeating a request that the store did not answer. Default 250.
    pub store_retry_interval: u64,
    /// How long a begin-hand-off waits for its acknowledgements (S15.2 `pingTimeout`; R12). Default 1,000.
    pub ack_timeout: u64,
    /// Interval at which a hand-off is sent again to an owner that has not stopped. Default 500.
    pub stop_resend_interval: u64,
    /// How long a hand-off may take before it is abandoned (K40). Default 60,000.
    pub hand_off_timeout: u64,
    /// Maximum number of hand-offs for drains in progress at the same time (R12). Default 32.
    pub max_drain_hand_offs: usize,
    /// Maximum number of hand-offs for balancing in progress at the same time (K23, K40). Default 32.
    pub max_rebalance_hand_offs: usize,
    /// The settings of strategies, for pools that name one (K23). Default: their own.
    pub strategies: StrategySettings,
    /// How long what an outside program wants counts after it was last said (E9). Default 60,000.
    pub external_timeout: u64,
    /// How long the owner of a shard may take until it serves it, before the shard goes elsewhere (K14). Default 10,000.
    pub shard_start_timeout: u64,
    /// How many hosts there must be before shards are allocated for the first time (K27). Default 1.
    pub min_hosts: usize,
    /// How often a shard moves because a failure is escalated, within [`Settings::escalation_period`] (K33). Default 3.
    pub max_escalations: usize,
    /// The period within which such moves are counted. Default 600,000.
    pub escalation_period: u64,
    /// Maximum number of shards that are relocated to another database at the same time: from the start of their
    /// hand-off until they are served again (R26). Default 4.
    pub max_relocations: usize,
    /// Interval at which the manager balances (S13, A1). Default 10,000.
    pub rebalance_interval: u64,
    /// How soon the manager retries after a failure (S15.8). Default 2,000.
    pub rebalance_retry_interval: u64,
    /// How soon after a change a node reports what it holds; it also reports with each renewal. Default 20.
    pub report_delay: u64,
    /// How long messages between two live nodes may be lost before the nodes act: two leases. Then a node ends its own
    /// incarnation if rows wait for something that it cannot report to the manager, and the manager gives no shards
    /// that others can own to a node whose reports do not arrive. Default 6,000.
    pub manager_silence_timeout: u64,
    /// Delay between successive candidates for the leadership, in order of age (K21). Default 150.
    pub campaign_stagger: u64,
    /// Interval at which the process of a node that does not renew its lease is checked (S7). Default `None`: there is
    /// no health check.
    pub health_check_interval: Option<u64>,
    /// Interval between keep-alives to each live member (E12). Default `None`: none are sent.
    pub keep_alive_interval: Option<u64>,
    /// After how many keep-alives in a row without an answer a member counts as unreachable. Default 5.
    pub keep_alive_failures: u32,
    /// Whether this node takes part in arbitrations (E13). Default: it does not.
    pub arbiter: bool,
    /// How long a node that reaches every member would wait before it takes the arbiter's lease; one that reaches fewer
    /// waits longer in inverse proportion (E13). Default 5,000.
    pub arbiter_timeout: u64,
    /// How long a member that the winner could not reach waits for the winner's flag before it ends itself (E13).
    /// Default 3,000.
    pub arbiter_flag_timeout: u64,
    /// Whether the store's directory lock proves that no earlier incarnation of this node runs (R7): only if the
    /// cluster's store is embedded in this very process.
    pub embedded_store: bool,
    /// Rules that tests disable to check that the oracle fails. Ignored without the feature `testing`.
    pub mutations: Vec<Mutation>,
}

impl Settings {
    /// How often a machine checks for changes that time alone causes.
    pub(super) fn tick_interval(&self) -> u64 {
        (self.renew_interval / 4).max(1)
    }

    /// Whether a test disabled a rule. Without the feature `testing`, all rules apply.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn has_mutation(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }

    #[cfg(not(any(test, feature = "testing")))]
    pub(super) const fn has_mutation(&self, _: Mutation) -> bool {
        false
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            settings_revision: 0,
            lease: 3_000,
            renew_interval: 750,
            lease_margin: 600,
            store_retry_interval: 250,
            ack_timeout: 1_000,
            stop_resend_interval: 500,
            hand_off_timeout: 60_000,
            max_drain_hand_offs: 32,
            max_rebalance_hand_offs: 32,
            strategies: StrategySettings::default(),
            external_timeout: 60_000,
            shard_start_timeout: 10_000,
            min_hosts: 1,
            max_escalations: 3,
            escalation_period: 600_000,
            max_relocations: 4,
            rebalance_interval: 10_000,
            rebalance_retry_interval: 2_000,
            report_delay: 20,
            manager_silence_timeout: 6_000,
            campaign_stagger: 150,
            health_check_interval: None,
            keep_alive_interval: None,
            keep_alive_failures: 5,
            arbiter: false,
            arbiter_timeout: 5_000,
            arbiter_flag_timeout: 3_000,
            embedded_store: false,
            mutations: Vec::new(),
        }
    }
}

/// The cluster's settings that a node's machine follows. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseSettings {
    /// Rises with each change.
    pub revision: u64,
    /// As [`Settings::lease`].
    pub lease: u64,
    /// As [`Settings::lease_margin`].
    pub lease_margin: u64,
    /// As [`Settings::renew_interval`]: at most two fifths of the lease.
    pub renew_interval: u64,
    /// As [`Settings::manager_silence_timeout`].
    pub manager_silence_timeout: u64,
}

/// A rule of the node's machine that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mutation {
    /// A new owner is written without marking the old one dead (R7).
    AssignWithoutDeath,
    /// A node registers over a live lease without waiting (R7).
    RegisterOverLiveLease,
    /// An observer that has just started or slept treats leases as expired without waiting (R8).
    TrustStaleObservations,
    /// A lapsed node resumes without reading its claims (R9).
    ResumeWithoutClaimCheck,
    /// A node whose store does not respond keeps its shards (R9).
    KeepShardsWithoutStore,
    /// A node that repeatedly releases its shards is on probation no longer than the first time (R9).
    ConstantProbation,
    /// A host that cannot run a deployed type keeps its shards (R24).
    IgnoreUnrunnableTypes,
    /// Shards of a pool go to nodes without its role (K39).
    IgnorePoolRoles,
    /// A shard that is not served in time stays where it is (K14).
    IgnoreLateStarts,
    /// Strategies move pinned shards like any other.
    IgnorePins,
    /// What an outside program wants counts for ever (E9).
    TrustOldPlacements,
    /// A new manager decides before it has sealed every row (R10).
    SkipSeal,
    /// Answers to hand-offs count whatever their epoch or id (R11).
    SkipHandOffMatching,
    /// A shard that its owner does not report remains assigned to it (R11).
    KeepUnreportedAssignments,
    /// A hand-off waits for every acknowledgement (R12).
    RequireAllAcks,
    /// A shard gets a new owner before the old one reported that it stopped (R7, A16).
    AssignBeforeStopped,
    /// The new owner's epoch is the old one's (R5).
    ReuseEpoch,
    /// A node does not stop its shards on its own clock when its lease lapses (R9, E14).
    SkipSuspend,
    /// A node whose messages do not reach the manager continues forever (R11).
    IgnoreManagerSilence,
    /// A manager that gets no report from another host remains the manager forever (decision 0051).
    NeverStepDown,
    /// A longer lease is relied on before the row shows it, and a shorter one is shown before it is relied on (R8).
    ApplyLeaseImmediately,
    /// The first allocation does not wait for enough hosts (K27).
    AllocateEarly,
    /// A shard moves however often the failures of its entities are escalated (K33).
    UnboundedEscalations,
    /// The manager does not hand off shards whose state is in the wrong database (R26).
    IgnoreMisplacedShards,
    /// The intent is not written ahead: the owner gets the hand-off before the row shows it (S15).
    SkipWriteAhead,
    /// A lease is counted from when the answer to its renewal arrived (R8).
    LeaseFromRenewalResponse,
    /// A lease is counted from when the answer to its registration arrived (R8).
    LeaseFromRegistrationResponse,
    /// A node that lost an arbitration goes on (E13).
    IgnoreLostArbitration,
    /// A row that is older than the known one replaces it.
    AcceptOlderRows,
    /// In a pool without a manager, a host takes a shard although its lease has not lapsed (E8).
    TakeUnlapsedShardLease,
    /// In a pool without a manager, an owner does not renew the leases of its shards (E8).
    NeverRenewShardLeases,
}
