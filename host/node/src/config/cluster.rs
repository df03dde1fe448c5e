//! The configuration's sections about the cluster. Defaults are those of the libraries, taken from them.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use ostraca_core::assign::{AllocationStrategy, BuiltinStrategy, LeastShard};
use ostraca_core::rows::Roles;
use ostraca_core::{node, route};
use ostraca_wire::PeerLimits;
use ostraca_wire::envelope::TimeoutLimits;
use serde::{Deserialize, Serialize};

use super::file::{File, large, millis, small};
use crate::control::WordBounds;
use crate::input::units;

/// How many leases a node's words may go unheard.
pub(super) const UNHEARD_LEASES: u32 = 2;

/// What a node may do for its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It keeps the cluster's store and serves it to the others.
    Store,
    /// It may become the manager.
    Manager,
    /// It owns shards and runs entities.
    Host,
    /// It takes clients.
    Gateway,
}

impl Role {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Store, Self::Manager, Self::Host, Self::Gateway];

    /// Its name in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Manager => "manager",
            Self::Host => "host",
            Self::Gateway => "gateway",
        }
    }

    /// These roles, as the core knows them.
    #[must_use]
    pub fn set(roles: &[Self]) -> Roles {
        let has = |role| roles.contains(&role);
        Roles {
            store: has(Self::Store),
            manager: has(Self::Manager),
            host: has(Self::Host),
            gateway: has(Self::Gateway),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub(super) shards: Option<u32>,
    pub(super) hash: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Handoff {
    #[serde(with = "units::time")]
    pub(super) ack_wait: Duration,
    #[serde(with = "units::time")]
    pub(super) say_again: Duration,
    #[serde(with = "units::time")]
    pub(super) timeout: Duration,
    pub(super) parallel_drains: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Rebalance {
    pub(super) strategy: String,
    #[serde(with = "units::time")]
    pub(super) interval: Duration,
    #[serde(with = "units::time")]
    pub(super) retry: Duration,
    pub(super) parallel: u32,
    pub(super) threshold: u32,
    pub(super) limit: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Gateway {
    pub(super) held_messages: u32,
    #[serde(with = "units::size")]
    pub(super) held_bytes: u64,
    #[serde(with = "units::time")]
    pub(super) hold_wait: Duration,
    #[serde(with = "units::time")]
    pub(super) retry: Duration,
    #[serde(with = "units::time")]
    pub(super) default_deadline: Duration,
    #[serde(with = "units::time")]
    pub(super) max_deadline: Duration,
    pub(super) link_messages: u32,
    #[serde(with = "units::size")]
    pub(super) link_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Peers {
    #[serde(with = "units::time")]
    pub(super) keep_alive: Duration,
    #[serde(with = "units::time")]
    pub(super) idle_timeout: Duration,
    pub(super) connections: u32,
    #[serde(with = "units::size")]
    pub(super) max_frame: u64,
    pub(super) messages: u32,
    #[serde(with = "units::size")]
    pub(super) message_bytes: u64,
    pub(super) calls: u32,
    #[serde(with = "units::size")]
    pub(super) call_bytes: u64,
    pub(super) pushes: u32,
    pub(super) words: u32,
    #[serde(with = "units::size")]
    pub(super) word_bytes: u64,
}

impl Default for Handoff {
    fn default() -> Self {
        let node = node::Settings::default();
        Self {
            ack_wait: Duration::from_millis(node.ack_timeout),
            say_again: Duration::from_millis(node.stop_resend_interval),
            timeout: Duration::from_millis(node.hand_off_timeout),
            parallel_drains: small(node.max_drain_hand_offs),
        }
    }
}

impl Default for Rebalance {
    fn default() -> Self {
        let node = node::Settings::default();
        Self {
            strategy: BuiltinStrategy::default().name().into(),
            interval: Duration::from_millis(node.rebalance_interval),
            retry: Duration::from_millis(node.rebalance_retry_interval),
            parallel: small(node.max_rebalance_hand_offs),
            threshold: LeastShard::default().threshold().get(),
            limit: small(LeastShard::default().limit().get()),
        }
    }
}

impl Rebalance {
    /// The strategy that is named; its name and its numbers were checked when the file was read.
    pub(super) fn strategy(&self) -> Box<dyn AllocationStrategy> {
        let threshold = NonZeroU32::new(self.threshold).unwrap_or(NonZeroU32::MIN);
        let limit = NonZeroUsize::new(self.limit as usize).unwrap_or(NonZeroUsize::MIN);
        let strategy = BuiltinStrategy::from_name(&self.strategy).unwrap_or_default();
        strategy.build_with(LeastShard::new(threshold, limit))
    }
}

impl Default for Gateway {
    fn default() -> Self {
        let route = route::Settings::default();
        Self {
            held_messages: small(route.buffered_messages),
            held_bytes: route.buffered_bytes as u64,
            hold_wait: Duration::from_millis(route.buffer_timeout),
            retry: Duration::from_millis(route.max_backoff),
            default_deadline: Duration::from_secs(60),
            max_deadline: Duration::from_secs(600),
            link_messages: small(route.link_messages),
            link_bytes: route.link_bytes as u64,
        }
    }
}

impl Gateway {
    /// Milliseconds; a setting is at least one.
    pub(super) fn deadlines(&self) -> TimeoutLimits {
        let longest = millis(self.max_deadline);
        TimeoutLimits { default_ms: millis(self.default_deadline).min(longest), max_ms: longest }
    }

    pub(super) fn settings(&self) -> route::Settings {
        route::Settings {
            buffered_messages: self.held_messages as usize,
            buffered_bytes: large(self.held_bytes),
            buffer_timeout: millis(self.hold_wait),
            max_backoff: millis(self.retry),
            link_messages: self.link_messages as usize,
            link_bytes: large(self.link_bytes),
            mutations: Vec::new(),
        }
    }
}

impl Default for Peers {
    fn default() -> Self {
        let (peers, words) = (PeerLimits::default(), WordBounds::default());
        Self {
            keep_alive: peers.keep_alive_interval,
            idle_timeout: peers.idle_timeout,
            connections: small(peers.max_connections),
            max_frame: peers.max_frame.into(),
            messages: peers.in_flight_messages,
            message_bytes: peers.in_flight_message_bytes,
            calls: peers.in_flight_requests,
            call_bytes: peers.in_flight_request_bytes,
            pushes: small(peers.pushes),
            words: small(words.words),
            word_bytes: words.bytes as u64,
        }
    }
}

impl Peers {
    pub(super) fn limits(&self) -> PeerLimits {
        PeerLimits {
            keep_alive_interval: self.keep_alive,
            idle_timeout: self.idle_timeout,
            max_connections: self.connections as usize,
            max_frame: small(large(self.max_frame)),
            in_flight_messages: self.messages,
            in_flight_message_bytes: self.message_bytes,
            in_flight_requests: self.calls,
            in_flight_request_bytes: self.call_bytes,
            pushes: self.pushes as usize,
        }
    }

    /// How much of what other nodes say may wait.
    pub(super) fn words(&self) -> WordBounds {
        WordBounds { words: self.words as usize, bytes: large(self.word_bytes) }
    }
}

/// Settings of the node's machine.
pub(super) fn node_settings(file: &File) -> node::Settings {
    node::Settings {
        settings_revision: 0,
        lease: millis(file.lease),
        renew_interval: millis(file.renew),
        lease_margin: millis(file.margin),
        store_retry_interval: millis(file.store.retry),
        ack_timeout: millis(file.handoff.ack_wait),
        stop_resend_interval: millis(file.handoff.say_again),
        hand_off_timeout: millis(file.handoff.timeout),
        max_drain_hand_offs: file.handoff.parallel_drains as usize,
        max_rebalance_hand_offs: file.rebalance.parallel as usize,
        rebalance_interval: millis(file.rebalance.interval),
        rebalance_retry_interval: millis(file.rebalance.retry),
        report_delay: millis(file.report_delay),
        manager_silence_timeout: unheard(file),
        campaign_stagger: millis(file.candidate_step),
        // The lock of the store's directory proves that no other life of this node has it open (R7).
        embedded_store: file.roles.contains(&Role::Store),
        mutations: Vec::new(),
    }
}

/// How long a node's words may go unheard, in milliseconds.
pub(super) fn unheard(file: &File) -> u64 {
    millis(file.lease).saturating_mul(file.unheard_leases.into())
}
