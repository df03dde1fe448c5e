//! The scope of a run of the model: the initial cluster, and how many faults may occur.

use ostraca_core::ids::ShardId;
use ostraca_core::node::{Mutation, Settings};

/// How often each kind of fault may still occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Processes that die.
    pub crashes: u8,
    /// Dead processes that are started again.
    pub restarts: u8,
    /// Control messages that arrive a second time, at any later time.
    pub duplicates: u8,
    /// Control messages, requests or answers that are lost, and requests that come at any later time.
    pub losses: u8,
    /// Nodes cut off from the `ClusterStore` for as long as it takes.
    pub cuts: u8,
    /// Watches that fall behind for as long as it takes.
    pub lags: u8,
    /// Processes stopped by a signal for as long as it takes.
    pub pauses: u8,
    /// Drains that an operator asks for; of the node that has the first shard.
    pub drains: u8,
}

/// How the cluster begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Three processes without state, and an empty store.
    Cold,
    /// At rest: the shard is with the node that may not manage.
    OwnerHosts,
    /// At rest: the shard is with the manager.
    OwnerManages,
    /// At rest: the shard is with the node that would manage next.
    OwnerStandsBy,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Shards of the pool.
    pub shards: u32,
    /// Beginnings.
    pub starts: Vec<Start>,
    /// What may happen.
    pub budget: Budget,
    /// Rules that are switched off.
    pub mutations: Vec<Mutation>,
    /// Checks at each step that what was discarded has no effect: see [`crate::proof`].
    pub proof: bool,
}

impl Scope {
    /// One shard, from every beginning at rest.
    pub fn one_shard(budget: Budget) -> Self {
        let starts = vec![Start::OwnerHosts, Start::OwnerManages, Start::OwnerStandsBy];
        Self { shards: 1, starts, budget, mutations: Vec::new(), proof: false }
    }

    /// With other beginnings.
    #[must_use]
    pub fn from(mut self, starts: &[Start]) -> Self {
        self.starts = starts.to_vec();
        self
    }

    /// With this many shards.
    #[must_use]
    pub fn of_shards(mut self, shards: u32) -> Self {
        self.shards = shards;
        self
    }

    /// With checks of what is discarded.
    #[must_use]
    pub fn with_proof(mut self) -> Self {
        self.proof = true;
        self
    }

    /// With a rule switched off.
    #[must_use]
    pub fn without(mut self, mutation: Mutation) -> Self {
        self.mutations.push(mutation);
        self
    }

    /// Every shard.
    pub fn all_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (1..=self.shards).map(ShardId)
    }

    /// The unit of time is one renewal's interval. Intervals that bound nothing but work never end.
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
            rebalance_retry_interval: 1,
            report_delay: 0,
            manager_silence_timeout: 1_000_000,
            campaign_stagger: 1,
            mutations: self.mutations.clone(),
            ..Settings::default()
        }
    }
}
