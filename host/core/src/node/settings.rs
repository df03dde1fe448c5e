//! What a node's machine is told once.

use serde::{Deserialize, Serialize};

/// Bounds and intervals of a node. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Which revision of the cluster's settings these are. Default 0: none was read yet.
    pub revision: u64,
    /// How long a lease is to last after its last renewal was sent. Default 3,000.
    pub lease: u64,
    /// How often it is renewed. Default 750.
    pub renew: u64,
    /// What a judge of other leases adds to theirs, for clocks that differ. Default 600.
    pub margin: u64,
    /// How long before a store that did not answer is asked again. Default 250.
    pub retry: u64,
    /// How long a begin-hand-off waits for its acknowledgements (S15.2 `pingTimeout`; R12). Default 1,000.
    pub ack_wait: u64,
    /// How often a hand-off is said again to an owner that has not stopped. Default 500.
    pub say_again: u64,
    /// How long a hand-off may take before it is given up (K40 `handoff-timeout`). Default 60,000.
    pub handoff_timeout: u64,
    /// Hand-offs of drains that may be under way at once (R12). Default 32.
    pub drain_parallel: usize,
    /// Hand-offs of one balancing that may be under way at once (K23, K40). Default 32.
    pub rebalance_parallel: usize,
    /// How often the manager balances (S13, A1). Default 10,000.
    pub rebalance_interval: u64,
    /// How soon it tries again after something failed (S15.8). Default 2,000.
    pub rebalance_retry: u64,
    /// How soon after a change a node reports what it holds; it reports with each renewal anyway. Default 20.
    pub report_delay: u64,
    /// How long a live node may seem not to hear another's words, two leases: then a node ends its own life if rows
    /// wait for what it cannot tell the manager, and the manager gives a node whose reports do not come nothing that
    /// others can have. Default 6,000.
    pub unheard: u64,
    /// Steps between candidates for the leadership, in order of age (K21). Default 150.
    pub candidate_step: u64,
    /// Whether the store's directory lock proves that no former life of this node runs (R7): only where the
    /// cluster's store is embedded in this very process.
    pub embedded: bool,
    /// Rules that are switched off, to see the oracle fail. Empty in production.
    pub mutations: Vec<Mutation>,
}

impl Settings {
    /// How often a machine looks at what time alone changes.
    pub(super) fn beat(&self) -> u64 {
        (self.renew / 4).max(1)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            revision: 0,
            lease: 3_000,
            renew: 750,
            margin: 600,
            retry: 250,
            ack_wait: 1_000,
            say_again: 500,
            handoff_timeout: 60_000,
            drain_parallel: 32,
            rebalance_parallel: 32,
            rebalance_interval: 10_000,
            rebalance_retry: 2_000,
            report_delay: 20,
            unheard: 6_000,
            candidate_step: 150,
            embedded: false,
            mutations: Vec::new(),
        }
    }
}

/// The cluster's settings that a node's machine goes by. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreed {
    /// Rises with each change.
    pub revision: u64,
    /// As [`Settings::lease`].
    pub lease: u64,
    /// As [`Settings::margin`].
    pub margin: u64,
    /// As [`Settings::renew`]: at most two fifths of the lease.
    pub renew: u64,
    /// As [`Settings::unheard`].
    pub unheard: u64,
}

/// A rule of the node's machine that a test can switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mutation {
    /// A new owner is written without marking the old one dead (R7).
    AssignWithoutDeath,
    /// A node registers over a live lease at once (R7).
    RegisterAtOnce,
    /// Leases are judged at once by an observer that has just started or slept (R8).
    TrustOldObservations,
    /// A lapsed node goes on without a look at its claims (R9).
    ResumeBlindly,
    /// A node whose store does not answer keeps its shards (R9).
    KeepWithoutStore,
    /// A node that gives its shards up again and again is on probation no longer than the first time (R9).
    ForgetProbation,
    /// A host that cannot run a deployed type keeps the shards that it has (R24).
    KeepUnfit,
    /// A new manager decides before it has sealed every row (R10).
    NoSeal,
    /// Answers of hand-offs count whatever their epoch or id (R11).
    NoMatching,
    /// A shard that its owner does not list stays assigned to it (R11).
    TrustSilence,
    /// A hand-off waits for every acknowledgement (R12).
    AcksVeto,
    /// A shard is handed on before its owner said that it stopped (R7, A16).
    DontAwaitStop,
    /// The new owner's epoch is the old one's (R5).
    SameEpoch,
    /// A node does not stop its shards on its own clock when its lease lapses (R9, E14).
    NoSuspend,
    /// A node that the manager does not hear goes on for ever (R11).
    StayUnheard,
    /// A manager that hears no other host goes on for ever (decision 0051).
    LeadInSilence,
    /// Another lease is relied on before the row says so, and told by the row before it is relied on (R8).
    LeaseAtOnce,
    /// What is to be done is not written ahead: the owner is told before the row says so (S15).
    NotAhead,
    /// A lease counts from when the answer to its renewal came (R8).
    RenewedByAnswer,
    /// A lease counts from when the answer to its registration came (R8).
    RegisteredByAnswer,
}
