//! A node's roles, and its sections about other nodes: gateway, peers, hand-off, rebalance. Defaults come from the
//! libraries. Settings that all nodes share are in `cluster_settings.rs`; network, entities and store in `file.rs`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

use ostraca_core::assign::{
    AllocationStrategy, BuiltinStrategy, LeastShard, MeasuredLoad, StrategySettings,
};
use ostraca_core::pools::{HOST_ROLE, HOST_ROLE_PREFIX, parse_host_role};
use ostraca_core::rows::Roles;
use ostraca_core::{node, route};
use ostraca_wire::PeerLimits;
use ostraca_wire::envelope::TimeoutLimits;
use serde::de::{DeserializeSeed, EnumAccess, Error, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::numbers::{millis, saturating_u32, saturating_usize};
use crate::user_file::units;

/// Default of `manager-silence-leases`.
pub(super) const DEFAULT_MANAGER_SILENCE_LEASES: u32 = 2;

/// How a node measures the loads of its shards (A4). Only proportions matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSettings {
    /// Interval between two measurements; a shard counts once it has been served for that long. Default 10 s.
    pub interval: Duration,
    /// The load of one turn a second. Default 10.
    pub per_turn: u32,
    /// The load of a live entity. Default 1.
    pub per_entity: u32,
    /// The load of a MiB of the memory of instances. Default 1.
    pub per_mebibyte: u32,
}

/// Limits of a node's inbox of control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlInboxLimits {
    /// Total number of messages from all nodes (`peers.control-messages`). Default 4,096.
    pub messages: usize,
    /// Total bytes of these messages (`peers.control-message-bytes`); a larger message is accepted when the inbox is
    /// empty. Default 16 MiB.
    pub bytes: usize,
}

impl Default for ControlInboxLimits {
    fn default() -> Self {
        Self { messages: 4_096, bytes: 16 << 20 }
    }
}

/// A role of a node in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keeps the cluster's store and serves it to the other nodes.
    Store,
    /// May become the manager.
    Manager,
    /// Owns shards and runs entities.
    Host,
    /// Accepts clients' messages.
    Gateway,
    /// `host.NAME`: owns shards of the pools that name this role, and runs their entities (K39).
    PoolHost(String),
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As an enum, so that an error in a list marks the element.
        deserializer.deserialize_enum("Role", &Self::NAMES, RoleVisitor)
    }
}

/// Reads the name of a role.
struct RoleVisitor;

impl<'de> Visitor<'de> for RoleVisitor {
    type Value = Role;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a role: {}", Role::NAMES.join(", "))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Role, A::Error> {
        let (role, variant) = data.variant_seed(Self)?;
        variant.unit_variant()?;
        Ok(role)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Role, E> {
        text.parse().map_err(|why| match text.starts_with(HOST_ROLE_PREFIX) {
            true => E::custom(why),
            false => E::unknown_variant(text, &Role::NAMES),
        })
    }
}

impl<'de> DeserializeSeed<'de> for RoleVisitor {
    type Value = Role;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Role, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|role| role.to_string() == text);
        match (known, parse_host_role(text)) {
            (Some(role), _) => Ok(role),
            (None, Ok(Some(name))) => Ok(Self::PoolHost(name.into())),
            (None, Err(why)) if text.starts_with(HOST_ROLE_PREFIX) => {
                Err(format!("the role {text:?}: {why}"))
            }
            _ => Err(format!("{text:?} is no role; use one of {}", Self::NAMES.join(", "))),
        }
    }
}

/// The role's name in a configuration.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str("store"),
            Self::Manager => f.write_str("manager"),
            Self::Host => f.write_str(HOST_ROLE),
            Self::Gateway => f.write_str("gateway"),
            Self::PoolHost(name) => write!(f, "{HOST_ROLE_PREFIX}{name}"),
        }
    }
}

impl Role {
    /// All roles that need no pool, in display order.
    pub const ALL: [Self; 4] = [Self::Store, Self::Manager, Self::Host, Self::Gateway];

    /// What roles look like.
    const NAMES: [&'static str; 5] = ["store", "manager", "host", "gateway", "host.NAME"];

    /// Converts roles to the core's representation, without those of [`Role::to_pool_roles`].
    #[must_use]
    pub fn to_roles(roles: &[Self]) -> Roles {
        let has = |role| roles.contains(&role);
        Roles {
            store: has(Self::Store),
            manager: has(Self::Manager),
            host: has(Self::Host),
            gateway: has(Self::Gateway),
        }
    }
}

impl Role {
    /// What follows `host.` in these roles.
    #[must_use]
    pub fn to_pool_roles(roles: &[Self]) -> Vec<String> {
        let names = roles.iter().filter_map(|role| match role {
            Self::PoolHost(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ClusterSection {
    pub(super) shards: Option<u32>,
    pub(super) hash: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HandOffSection {
    #[serde(with = "units::duration")]
    pub(super) ack_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) stop_resend_interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) timeout: Duration,
    pub(super) max_drain_hand_offs: u32,
    #[serde(with = "units::duration")]
    pub(super) shard_start_timeout: Duration,
    pub(super) max_relocations: u32,
    pub(super) max_escalations: u32,
    #[serde(with = "units::duration")]
    pub(super) escalation_period: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RebalanceSection {
    pub(super) strategy: String,
    pub(super) min_hosts: u32,
    #[serde(with = "units::duration")]
    pub(super) interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) retry_interval: Duration,
    pub(super) max_hand_offs: u32,
    pub(super) max_pins: u32,
    pub(super) least_shard_threshold: u32,
    pub(super) least_shard_max_moving: u32,
    pub(super) load_tolerance: u32,
    #[serde(with = "units::duration")]
    pub(super) load_interval: Duration,
    pub(super) load_per_turn: u32,
    pub(super) load_per_entity: u32,
    pub(super) load_per_mebibyte: u32,
    #[serde(with = "units::duration")]
    pub(super) external_timeout: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GatewaySection {
    pub(super) buffered_messages: u32,
    #[serde(with = "units::size")]
    pub(super) buffered_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) buffer_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) max_backoff: Duration,
    #[serde(with = "units::duration")]
    pub(super) default_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) max_timeout: Duration,
    pub(super) link_messages: u32,
    #[serde(with = "units::size")]
    pub(super) link_bytes: u64,
    pub(super) max_channel_feeds: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PeersSection {
    #[serde(with = "units::duration")]
    pub(super) keep_alive_interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) idle_timeout: Duration,
    pub(super) max_connections: u32,
    #[serde(with = "units::size")]
    pub(super) max_frame: u64,
    pub(super) in_flight_messages: u32,
    #[serde(with = "units::size")]
    pub(super) in_flight_message_bytes: u64,
    pub(super) in_flight_requests: u32,
    #[serde(with = "units::size")]
    pub(super) in_flight_request_bytes: u64,
    pub(super) control_messages: u32,
    #[serde(with = "units::size")]
    pub(super) control_message_bytes: u64,
}

impl Default for HandOffSection {
    fn default() -> Self {
        let node = node::Settings::default();
        Self {
            ack_timeout: Duration::from_millis(node.ack_timeout),
            stop_resend_interval: Duration::from_millis(node.stop_resend_interval),
            timeout: Duration::from_millis(node.hand_off_timeout),
            max_drain_hand_offs: saturating_u32(node.max_drain_hand_offs),
            shard_start_timeout: Duration::from_millis(node.shard_start_timeout),
            max_relocations: saturating_u32(node.max_relocations),
            max_escalations: saturating_u32(node.max_escalations),
            escalation_period: Duration::from_millis(node.escalation_period),
        }
    }
}

impl Default for RebalanceSection {
    fn default() -> Self {
        let node = node::Settings::default();
        Self {
            strategy: BuiltinStrategy::default().name().into(),
            min_hosts: saturating_u32(node.min_hosts),
            interval: Duration::from_millis(node.rebalance_interval),
            retry_interval: Duration::from_millis(node.rebalance_retry_interval),
            max_hand_offs: saturating_u32(node.max_rebalance_hand_offs),
            max_pins: 512,
            least_shard_threshold: LeastShard::default().threshold().get(),
            least_shard_max_moving: saturating_u32(LeastShard::default().limit().get()),
            load_tolerance: MeasuredLoad::default().tolerance(),
            load_interval: Duration::from_secs(10),
            load_per_turn: 10,
            load_per_entity: 1,
            load_per_mebibyte: 1,
            external_timeout: Duration::from_millis(node.external_timeout),
        }
    }
}

impl RebalanceSection {
    /// The configured strategy. Its name and its numbers were validated when the file was read.
    pub(super) fn strategy(&self) -> Box<dyn AllocationStrategy> {
        let strategy = BuiltinStrategy::from_name(&self.strategy).unwrap_or_default();
        strategy.build_with(&self.strategies())
    }

    /// The settings of strategies.
    pub(super) fn strategies(&self) -> StrategySettings {
        let load = MeasuredLoad::new(self.load_tolerance);
        StrategySettings { least_shard: self.least_shard(), load }
    }

    /// How loads are measured.
    pub(super) fn load_settings(&self) -> LoadSettings {
        LoadSettings {
            interval: self.load_interval,
            per_turn: self.load_per_turn,
            per_entity: self.load_per_entity,
            per_mebibyte: self.load_per_mebibyte,
        }
    }

    fn least_shard(&self) -> LeastShard {
        let threshold = NonZeroU32::new(self.least_shard_threshold).unwrap_or(NonZeroU32::MIN);
        let limit =
            NonZeroUsize::new(self.least_shard_max_moving as usize).unwrap_or(NonZeroUsize::MIN);
        LeastShard::new(threshold, limit)
    }
}

impl Default for GatewaySection {
    fn default() -> Self {
        let route = route::Settings::default();
        Self {
            buffered_messages: saturating_u32(route.buffered_messages),
            buffered_bytes: route.buffered_bytes as u64,
            buffer_timeout: Duration::from_millis(route.buffer_timeout),
            max_backoff: Duration::from_millis(route.max_backoff),
            default_timeout: Duration::from_secs(60),
            max_timeout: Duration::from_secs(600),
            link_messages: saturating_u32(route.link_messages),
            link_bytes: route.link_bytes as u64,
            max_channel_feeds: 1_024,
        }
    }
}

impl GatewaySection {
    /// In milliseconds; both are at least 1.
    pub(super) fn timeout_limits(&self) -> TimeoutLimits {
        let longest = millis(self.max_timeout);
        TimeoutLimits { default_ms: millis(self.default_timeout).min(longest), max_ms: longest }
    }

    pub(super) fn settings(&self) -> route::Settings {
        route::Settings {
            buffered_messages: self.buffered_messages as usize,
            buffered_bytes: saturating_usize(self.buffered_bytes),
            buffer_timeout: millis(self.buffer_timeout),
            max_backoff: millis(self.max_backoff),
            link_messages: self.link_messages as usize,
            link_bytes: saturating_usize(self.link_bytes),
            mutations: Vec::new(),
        }
    }
}

impl Default for PeersSection {
    fn default() -> Self {
        let (peers, inbox) = (PeerLimits::default(), ControlInboxLimits::default());
        Self {
            keep_alive_interval: peers.keep_alive_interval,
            idle_timeout: peers.idle_timeout,
            max_connections: saturating_u32(peers.max_connections),
            max_frame: peers.max_frame.into(),
            in_flight_messages: peers.in_flight_messages,
            in_flight_message_bytes: peers.in_flight_message_bytes,
            in_flight_requests: peers.in_flight_requests,
            in_flight_request_bytes: peers.in_flight_request_bytes,
            control_messages: saturating_u32(inbox.messages),
            control_message_bytes: inbox.bytes as u64,
        }
    }
}

impl PeersSection {
    pub(super) fn limits(&self) -> PeerLimits {
        PeerLimits {
            keep_alive_interval: self.keep_alive_interval,
            idle_timeout: self.idle_timeout,
            max_connections: self.max_connections as usize,
            max_frame: saturating_u32(saturating_usize(self.max_frame)),
            in_flight_messages: self.in_flight_messages,
            in_flight_message_bytes: self.in_flight_message_bytes,
            in_flight_requests: self.in_flight_requests,
            in_flight_request_bytes: self.in_flight_request_bytes,
        }
    }

    /// Limits of the control inbox.
    pub(super) fn control_inbox_limits(&self) -> ControlInboxLimits {
        ControlInboxLimits {
            messages: self.control_messages as usize,
            bytes: saturating_usize(self.control_message_bytes),
        }
    }
}
