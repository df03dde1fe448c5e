//! The manifest as it is written.

use std::time::Duration;

use ostraca_core::hash::ShardKeyRule;
use serde::{Deserialize, Serialize};

use super::Manifest;
use crate::input::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) component: String,
    pub(super) pool: String,
    pub(super) shard_key: String,
    pub(super) limits: Limits,
    pub(super) life: Life,
    pub(super) grants: Grants,
    pub(super) access: Access,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Limits {
    #[serde(with = "units::size")]
    pub(super) memory: u64,
    pub(super) table_elements: u32,
    #[serde(with = "units::time")]
    pub(super) turn_time: Duration,
    #[serde(with = "units::time")]
    pub(super) activation_time: Duration,
    #[serde(with = "units::size")]
    pub(super) state: u64,
    pub(super) keys: u32,
    pub(super) turn_keys: u32,
    #[serde(with = "units::size")]
    pub(super) turn_bytes: u64,
    #[serde(with = "units::size")]
    pub(super) message: u64,
    #[serde(with = "units::size")]
    pub(super) reply: u64,
    pub(super) mailbox: u32,
    pub(super) log_lines: u32,
    #[serde(with = "units::size")]
    pub(super) log_line: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Life {
    #[serde(with = "units::time")]
    pub(super) idle: Duration,
    pub(super) remember: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Grants {
    pub(super) ask: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) http: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) topics: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Access {
    pub(super) send: Vec<String>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            kind: String::new(),
            component: String::new(),
            pool: "default".into(),
            shard_key: "id".into(),
            limits: Limits::default(),
            life: Life::default(),
            grants: Grants::default(),
            access: Access::default(),
        }
    }
}

impl Default for Limits {
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
            message: 1 << 20,
            reply: wasm.reply,
            mailbox: 1_000,
            log_lines: wasm.log_lines_per_second,
            log_line: wasm.log_line_bytes as u64,
        }
    }
}

impl Default for Life {
    fn default() -> Self {
        Self { idle: Duration::from_secs(120), remember: false }
    }
}

impl Default for Access {
    fn default() -> Self {
        Self { send: vec!["*".into()] }
    }
}

impl File {
    pub(super) fn from_manifest(from: Manifest) -> Self {
        let limits = from.limits;
        Self {
            kind: from.kind,
            component: from.component,
            pool: from.pool,
            shard_key: match from.shard_key {
                ShardKeyRule::Id => "id".into(),
                ShardKeyRule::Until(separator) => format!("until:{separator}"),
            },
            limits: Limits {
                memory: limits.memory,
                table_elements: limits.table_elements,
                turn_time: limits.turn_time,
                activation_time: limits.activation_time,
                state: limits.state,
                keys: limits.keys,
                turn_keys: limits.turn_keys,
                turn_bytes: limits.turn_bytes,
                message: limits.message,
                reply: limits.reply,
                mailbox: limits.mailbox,
                log_lines: limits.log_lines,
                log_line: limits.log_line,
            },
            life: Life { idle: from.life.idle, remember: from.life.remember },
            grants: Grants { ask: from.grants.ask, ..Grants::default() },
            access: Access { send: from.access.send },
        }
    }

    pub(super) fn text(&self) -> String {
        // Plain values in plain tables: there is nothing in it that TOML cannot say.
        toml::to_string(self).unwrap_or_default()
    }
}
