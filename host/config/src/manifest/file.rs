//! The manifest as written in its file.

use std::time::Duration;

use ostraca_core::hash::ShardKeyRule;
use ostraca_core::names;
use ostraca_core::shard::OnFailure;
use serde::{Deserialize, Serialize};

use super::Manifest;
use crate::user_file::units;

/// The default of `limits.subscriptions`.
const SUBSCRIPTIONS: u32 = 1_000;

/// Whether a limit is the default one, which is not written: older nodes do not know the key.
fn is_default_subscriptions(subscriptions: &u32) -> bool {
    *subscriptions == SUBSCRIPTIONS
}

/// The values of `reentrant`.
pub(super) const NOTHING: &str = "nothing";
pub(super) const QUERIES: &str = "queries";

/// Whether nothing is re-entrant, which is the default and is not written: older nodes do not know the key.
fn is_nothing(reentrant: &str) -> bool {
    reentrant == NOTHING
}

/// Whether the strategy after a failure is the default one, which is not written: older nodes do not know the key.
fn is_restart(strategy: &str) -> bool {
    strategy == OnFailure::Restart.name()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ManifestFile {
    #[serde(rename = "type")]
    pub(super) entity_type: String,
    /// Not written for `default`: older nodes do not know the key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) component: String,
    pub(super) pool: String,
    pub(super) shard_key: String,
    #[serde(skip_serializing_if = "is_nothing")]
    pub(super) reentrant: String,
    pub(super) limits: LimitsSection,
    pub(super) lifecycle: LifecycleSection,
    pub(super) channels: ChannelsSection,
    pub(super) grants: GrantsSection,
    pub(super) access: AccessSection,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct LimitsSection {
    #[serde(with = "units::size")]
    pub(super) memory: u64,
    pub(super) table_elements: u32,
    #[serde(with = "units::duration")]
    pub(super) turn_time: Duration,
    #[serde(with = "units::duration")]
    pub(super) activation_time: Duration,
    #[serde(with = "units::size")]
    pub(super) state: u64,
    pub(super) keys: u32,
    pub(super) turn_keys: u32,
    #[serde(with = "units::size")]
    pub(super) turn_bytes: u64,
    pub(super) timers: u32,
    #[serde(with = "units::size")]
    pub(super) timer_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) timer_interval: Duration,
    pub(super) outbox: u32,
    #[serde(with = "units::size")]
    pub(super) outbox_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) journal: u64,
    pub(super) channels: u32,
    pub(super) items: u32,
    #[serde(with = "units::size")]
    pub(super) item: u64,
    pub(super) asks: u32,
    #[serde(with = "units::size")]
    pub(super) ask_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) ask_timeout: Duration,
    pub(super) http_calls: u32,
    #[serde(with = "units::size")]
    pub(super) http_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) http_timeout: Duration,
    #[serde(with = "units::size")]
    pub(super) message: u64,
    #[serde(with = "units::size")]
    pub(super) reply: u64,
    pub(super) mailbox: u32,
    #[serde(skip_serializing_if = "is_default_subscriptions")]
    pub(super) subscriptions: u32,
    pub(super) log_lines_per_second: u32,
    #[serde(with = "units::size")]
    pub(super) log_line_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct LifecycleSection {
    #[serde(with = "units::duration")]
    pub(super) idle_timeout: Duration,
    pub(super) remember_entities: bool,
    #[serde(with = "units::duration", skip_serializing_if = "Duration::is_zero")]
    pub(super) time_to_live: Duration,
    #[serde(skip_serializing_if = "is_restart")]
    pub(super) on_failure: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ChannelsSection {
    pub(super) keep_items: u32,
    #[serde(with = "units::size")]
    pub(super) keep_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GrantsSection {
    pub(super) ask: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tell: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) http: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) secrets: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) settings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) topics: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct AccessSection {
    pub(super) send: Vec<String>,
}

impl Default for ManifestFile {
    fn default() -> Self {
        Self {
            entity_type: String::new(),
            namespace: String::new(),
            component: String::new(),
            pool: "default".into(),
            shard_key: "id".into(),
            reentrant: NOTHING.into(),
            limits: LimitsSection::default(),
            lifecycle: LifecycleSection::default(),
            channels: ChannelsSection::default(),
            grants: GrantsSection::default(),
            access: AccessSection::default(),
        }
    }
}

impl Default for LimitsSection {
    fn default() -> Self {
        let wasm = ostraca_wasm::InstanceLimits::default();
        Self {
            memory: wasm.memory,
            table_elements: u32::try_from(wasm.table_elements).unwrap_or(u32::MAX),
            turn_time: wasm.turn_time,
            activation_time: wasm.activation_time,
            state: wasm.state,
            keys: u32::try_from(wasm.keys).unwrap_or(u32::MAX),
            turn_keys: u32::try_from(wasm.turn_keys).unwrap_or(u32::MAX),
            turn_bytes: wasm.turn_bytes,
            timers: u32::try_from(wasm.timers).unwrap_or(u32::MAX),
            timer_bytes: wasm.timer_bytes,
            timer_interval: Duration::from_millis(wasm.timer_interval),
            outbox: u32::try_from(wasm.outbox).unwrap_or(u32::MAX),
            outbox_bytes: wasm.outbox_bytes,
            journal: wasm.journal,
            channels: u32::try_from(wasm.channels).unwrap_or(u32::MAX),
            items: u32::try_from(wasm.items).unwrap_or(u32::MAX),
            item: wasm.item,
            asks: u32::try_from(wasm.asks).unwrap_or(u32::MAX),
            ask_bytes: wasm.ask_bytes,
            ask_timeout: wasm.ask_timeout,
            http_calls: u32::try_from(wasm.http_calls).unwrap_or(u32::MAX),
            http_bytes: wasm.http_bytes,
            http_timeout: wasm.http_timeout,
            message: 1 << 20,
            reply: wasm.reply,
            mailbox: 1_000,
            subscriptions: SUBSCRIPTIONS,
            log_lines_per_second: wasm.log_lines_per_second,
            log_line_bytes: wasm.log_line_bytes as u64,
        }
    }
}

impl Default for LifecycleSection {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(120),
            remember_entities: false,
            time_to_live: Duration::ZERO,
            on_failure: OnFailure::Restart.name().into(),
        }
    }
}

impl Default for ChannelsSection {
    fn default() -> Self {
        Self { keep_items: 0, keep_bytes: 1 << 20 }
    }
}

impl Default for AccessSection {
    fn default() -> Self {
        Self { send: vec!["*".into()] }
    }
}

/// What the principals of entities begin with.
const ENTITY: &str = "entity/";

/// A pattern of senders, as the cluster names entities: those that a manifest names are of its own namespace.
pub(super) fn in_namespace(namespace: &str, rule: String) -> String {
    match rule.strip_prefix(ENTITY) {
        Some(local) => format!("{ENTITY}{}", names::qualified(namespace, local)),
        None => rule,
    }
}

/// The reverse of [`in_namespace`].
fn as_written(namespace: &str, rule: String) -> String {
    let qualifier = names::qualified(namespace, "");
    match rule.strip_prefix(ENTITY).and_then(|name| name.strip_prefix(&*qualifier)) {
        Some(local) => format!("{ENTITY}{local}"),
        None => rule,
    }
}

impl ManifestFile {
    pub(super) fn from_manifest(from: Manifest) -> Self {
        let limits = from.limits;
        let (namespace, local) = match from.entity_type.split_once(names::SEPARATOR) {
            Some((namespace, local)) => (namespace.to_owned(), local.to_owned()),
            None => (String::new(), from.entity_type),
        };
        let send = from.access.send.into_iter().map(|rule| as_written(&namespace, rule)).collect();
        Self {
            entity_type: local,
            namespace,
            component: from.component,
            pool: from.pool,
            shard_key: match from.shard_key {
                ShardKeyRule::Id => "id".into(),
                ShardKeyRule::Until(separator) => format!("until:{separator}"),
            },
            reentrant: if from.reentrant_queries { QUERIES } else { NOTHING }.into(),
            limits: LimitsSection {
                memory: limits.memory,
                table_elements: limits.table_elements,
                turn_time: limits.turn_time,
                activation_time: limits.activation_time,
                state: limits.state,
                keys: limits.keys,
                turn_keys: limits.turn_keys,
                turn_bytes: limits.turn_bytes,
                timers: limits.timers,
                timer_bytes: limits.timer_bytes,
                timer_interval: limits.timer_interval,
                outbox: limits.outbox,
                outbox_bytes: limits.outbox_bytes,
                journal: limits.journal,
                channels: limits.channels,
                items: limits.items,
                item: limits.item,
                asks: limits.asks,
                ask_bytes: limits.ask_bytes,
                ask_timeout: limits.ask_timeout,
                http_calls: limits.http_calls,
                http_bytes: limits.http_bytes,
                http_timeout: limits.http_timeout,
                message: limits.message,
                reply: limits.reply,
                mailbox: limits.mailbox,
                subscriptions: limits.subscriptions,
                log_lines_per_second: limits.log_lines_per_second,
                log_line_bytes: limits.log_line_bytes,
            },
            lifecycle: LifecycleSection {
                idle_timeout: from.lifecycle.idle_timeout,
                remember_entities: from.lifecycle.remember_entities,
                time_to_live: from.lifecycle.time_to_live,
                on_failure: from.lifecycle.on_failure.name().into(),
            },
            channels: ChannelsSection {
                keep_items: from.channels.keep_items,
                keep_bytes: from.channels.keep_bytes,
            },
            grants: GrantsSection {
                ask: from.grants.ask,
                tell: from.grants.tell,
                http: from.grants.http,
                secrets: from.grants.secrets,
                settings: from.grants.settings,
                ..GrantsSection::default()
            },
            access: AccessSection { send },
        }
    }

    pub(super) fn text(&self) -> String {
        // Serialization cannot fail: these are plain values in plain tables.
        toml::to_string(self).unwrap_or_default()
    }
}
