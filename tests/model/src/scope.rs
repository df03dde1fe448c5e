//! The scope of a run of the model: the initial cluster, and how many faults may occur.

use ostraca_core::ids::ShardId;
use ostraca_core::node::{Mutation, Settings};

/// How often each kind of fault may still occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Crashes of processes.
    pub crashes: u8,
    /// Restarts of dead processes.
    pub restarts: u8,
    /// Control messages that are duplicated; the copy may arrive at any later time.
    pub duplicates: u8,
    /// Control messages, requests or responses that are lost, and messages or requests that arrive at any later time.
    pub losses: u8,
    /// Nodes that are cut off from the `ClusterStore`, for any length of time.
    pub cuts: u8,
    /// Watches that lag, for any length of time.
    pub lags: u8,
    /// Processes that are paused by a signal, for any length of time.
    pub pauses: u8,
    /// Drains, by an operator, of the node that owns the first shard.
    pub drains: u8,
}

impl Budget {
    /// No faults.
    pub const NOTHING: Self = Self {
        crashes: 0,
        restarts: 0,
        duplicates: 0,
        losses: 0,
        cuts: 0,
        lags: 0,
        pauses: 0,
        drains: 0,
    };
}

/// The initial state of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Three processes without state, and an empty store.
    Cold,
    /// At rest: the node that cannot be the manager owns the shard.
    OwnerHosts,
    /// At rest: the manager owns the shard.
    OwnerManages,
    /// At rest: the node that would be the next manager owns the shard.
    OwnerStandsBy,
}

/// The scope of one run.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The number of shards.
    pub shards: u32,
    /// The initial states.
    pub starts: Vec<Start>,
    /// The fault budget.
    pub budget: Budget,
    /// Whether the shards are in a pool without a manager, which has two hosts.
    pub stateless: bool,
    /// Disabled rules.
    pub mutations: Vec<Mutation>,
    /// Whether each step checks that discarded state has no effect: see [`crate::proof`].
    pub proof: bool,
}

impl Scope {
    /// A scope with one shard, from every initial state at rest.
    pub fn one_shard(budget: Budget) -> Self {
        let starts = vec![Start::OwnerHosts, Start::OwnerManages, Start::OwnerStandsBy];
        Self { shards: 1, starts, budget, stateless: false, mutations: Vec::new(), proof: false }
    }

    /// A scope with two shards in a pool without a manager, whose two hosts each own one at the start.
    pub fn without_manager(budget: Budget) -> Self {
        let starts = vec![Start::OwnerHosts];
        Self { shards: 2, starts, stateless: true, ..Self::one_shard(budget) }
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        if self.stateless { 2 } else { 3 }
    }

    /// Replaces the initial states.
    #[must_use]
    pub fn from(mut self, starts: &[Start]) -> Self {
        self.starts = starts.to_vec();
        self
    }

    /// Sets the number of shards.
    #[must_use]
    pub fn of_shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// Enables the checks of discarded state.
    #[must_use]
    pub fn with_proof(mut self) -> Self {
        self.proof = true;
        self
    }

    /// Disables a rule.
    #[must_use]
    pub fn without(mut self, mutation: Mutation) -> Self {
        self.mutations.push(mutation);
        self
    }

    /// All shards.
    pub fn all_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        // The first one of a cluster without a manager belongs to a pool that nobody hosts.
        let first = if self.stateless { 2 } else { 1 };
        (first..first + self.shards).map(ShardId)
    }

    /// The settings of the machines. The unit of time is one renewal interval. A timeout of 1,000,000 never elapses.
    pub fn settings(&self) -> Settings {
        Settings {
            settings_revision: 0,
            lease: 3,
            renew_interval: 1,
            lease_margin: 1,
            store_retry_interval: 1,
            ack_timeout: 1,
            stop_resend_interval: 1,
            hand_off_timeout: 1_000_000,
            rebalance_interval: 1_000_000,
            shard_start_timeout: 1_000_000,
            rebalance_retry_interval: 1,
            report_delay: 0,
            manager_silence_timeout: 1_000_000,
            campaign_stagger: 1,
            mutations: self.mutations.clone(),
            ..Settings::default()
        }
    }
}
