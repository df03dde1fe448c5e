//! The manifest, `entity.toml`: what a type's entities are and what they may do.
//!
//! Everything but the first two keys has a default. The grammar contains some keys that this release does not
//! support yet. They are refused as `not-supported-yet` rather than ignored, since silently ignoring a grant or
//! a promise is worse than refusing it.

use std::time::Duration;

use ostraca_codes::{Code, codes};
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::shard::OnFailure;

use crate::policy::pattern_matches;
use crate::user_file::SourceText;
pub use crate::user_file::UserFileError as ManifestError;

mod check;

pub use check::is_variable_name;
mod file;
#[cfg(test)]
mod tests;

use file::ManifestFile;

/// The longest manifest that is accepted, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;

/// A checked manifest, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The entity type: 1 to 64 letters, digits, dots, dashes, underscores; after `NAMESPACE:` if `namespace` names one
    /// (see [`names`](ostraca_core::names)). Its grants name types of the same namespace, without it.
    pub entity_type: String,
    /// Path of the component, relative to the manifest's directory. Only the deployer reads it.
    pub component: String,
    /// The pool of the type's entities. Default `default`. Fixed while state exists (R23).
    pub pool: String,
    /// Which part of an id determines the shard. Default: the whole id. Fixed while state exists (R23).
    pub shard_key: ShardKeyRule,
    /// Whether an entity's queries run on a second instance while a turn waits for an ask or an HTTP call (R20):
    /// `reentrant = "queries"`. Default `"nothing"`.
    pub reentrant_queries: bool,
    /// Limits of an instance, an entity or a message.
    pub limits: ManifestLimits,
    /// When instances start and stop.
    pub lifecycle: Lifecycle,
    /// What channels keep.
    pub channels: ChannelsKeep,
    /// What the type may use besides its own state.
    pub grants: Grants,
    /// Who may send messages to the type.
    pub access: Access,
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestLimits {
    /// Maximum bytes of an instance's memory. Default 16 MiB. Error `memory-limit`.
    pub memory: u64,
    /// Maximum number of elements in an instance's tables. Default 10,000. Error `table-limit`.
    pub table_elements: u32,
    /// Maximum time in the guest per message, timer or stop hook (R22). Default 100 ms. Error `turn-time-limit`.
    pub turn_time: Duration,
    /// Maximum time in the guest for instantiation and start. Default 1 s. Error `activation-time-limit`.
    pub activation_time: Duration,
    /// Maximum bytes of an entity's keys and values, plus 100 per key. Default 1 MiB. Error `state-too-large`.
    pub state: u64,
    /// Maximum number of keys per entity. Default 10,000. Error `too-many-keys`.
    pub keys: u32,
    /// Maximum number of keys that one turn may write or delete. Default 1,000. Error `turn-too-large`.
    pub turn_keys: u32,
    /// Maximum bytes of keys and values that one turn may write, counted as for `state`. Default 4 MiB; limited to
    /// what every store accepts in one turn. Error `turn-too-large`.
    pub turn_bytes: u64,
    /// Maximum number of timers per entity. Default 100, at most 1,000. Error `too-many-timers`.
    pub timers: u32,
    /// Maximum bytes of the names and payloads of an entity's timers, plus 100 per timer. Default 64 KiB. Error
    /// `timers-too-large`.
    pub timer_bytes: u64,
    /// The shortest interval of a timer. Default 1 s. Error `timer-interval-too-short`.
    pub timer_interval: Duration,
    /// Maximum number of tells in an entity's outbox, including dead letters. Default 1,000, at most 5,000. Error
    /// `outbox-full`.
    pub outbox: u32,
    /// Maximum bytes of the methods and bodies of the tells in an entity's outbox. Default 1 MiB, at most 4 MiB. Error
    /// `outbox-too-large`.
    pub outbox_bytes: u64,
    /// Maximum bytes of the events and the snapshot in an entity's journal, including 100 bytes for each. Default 16
    /// MiB, at most 1,024 GiB. Error `journal-too-large`.
    pub journal: u64,
    /// Maximum number of channels that an entity may emit on. Default 16, at most 64. Error `too-many-channels`.
    pub channels: u32,
    /// Maximum number of items that one turn may emit. Default 256, at most 1,000. Error `turn-too-large`.
    pub items: u32,
    /// Maximum bytes of one item. Default 64 KiB, at most 1 MiB. Error `item-too-large`.
    pub item: u64,
    /// Maximum number of asks that one turn may start. Default 64, at most 10,000. Error `too-many-asks`.
    pub asks: u32,
    /// Maximum bytes of the methods and bodies of one turn's asks, and of their answers. Default 1 MiB, at most 64 MiB.
    /// Error `asks-too-large`.
    pub ask_bytes: u64,
    /// How long a turn waits for one answer: the maximum, and the default for asks without a timeout. Default 5 s, from
    /// 1 ms to 5 min. After that, the ask ends as unknown.
    pub ask_timeout: Duration,
    /// Maximum number of HTTP calls that one turn may make. Default 16, at most 1,000. Error `too-many-http-calls`.
    pub http_calls: u32,
    /// Maximum bytes of one turn's HTTP requests and responses, headers included. Default 1 MiB, at most 64 MiB. Error
    /// `http-too-large` for a request; for a response, `HTTP-response-body-size` of `wasi:http`.
    pub http_bytes: u64,
    /// How long one HTTP call may take, from its start to the end of its response. Default 5 s, from 1 ms to 5 min.
    /// Errors `connection-timeout` and `HTTP-response-timeout` of `wasi:http`.
    pub http_timeout: Duration,
    /// Maximum bytes of a message's body; the node's `max-message` applies as well. Default 1 MiB. Error
    /// `message-too-large`.
    pub message: u64,
    /// Maximum bytes of a reply. Default 1 MiB. Error `reply-too-large`.
    pub reply: u64,
    /// Maximum number of messages queued for one entity. Default 1,000. Error `mailbox-full`.
    pub mailbox: u32,
    /// Maximum number of subscriptions of other entities to one entity's channels (R27). Default 1,000, at most
    /// 100,000. Error `too-many-subscriptions`.
    pub subscriptions: u32,
    /// Maximum number of log lines per second from one instance. Default 100. Excess lines are counted and dropped.
    pub log_lines_per_second: u32,
    /// Maximum bytes of a log line. Default 4 KiB. Longer lines are truncated.
    pub log_line_bytes: u64,
}

/// Upper bounds that a node sets for a manifest's limits. Interruption cannot enforce them, since a guest that
/// fills its memory with one instruction runs until that instruction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    /// For `limits.memory`, in bytes. Default 1 GiB. Error `memory-ceiling`.
    pub memory: u64,
    /// For `limits.turn-time`. Default 30 s. Error `turn-time-ceiling`.
    pub turn_time: Duration,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { memory: 1 << 30, turn_time: Duration::from_secs(30) }
    }
}

/// `[lifecycle]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// An instance without messages for this long is dropped; its state is kept. Default 2 min.
    pub idle_timeout: Duration,
    /// Whether each turn of a message or a timer makes its entity a remembered one, which is started without a message
    /// wherever its shard moves (K31). Default false.
    pub remember_entities: bool,
    /// How long after its last committed turn of a message or a timer an entity is deleted; zero for never (E17).
    /// Default zero.
    pub time_to_live: Duration,
    /// What follows a failure of the guest (K33): `restart` or `stop`. Default `restart`.
    pub on_failure: OnFailure,
}

/// `[channels]`: how many of its last items each channel keeps, for subscribers that come late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelsKeep {
    /// Maximum number of items. Default 0, which keeps none; at most 100,000.
    pub keep_items: u32,
    /// Maximum bytes of these items, including 100 bytes for each. Default 1 MiB, at most 1 GiB.
    pub keep_bytes: u64,
}

/// `[grants]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Types to which its entities may send asks. Default: none. Error `ask-not-granted`.
    pub ask: Vec<String>,
    /// Types to which its entities may send tells. Default: none. Error `tell-not-granted`.
    pub tell: Vec<String>,
    /// Hosts that its entities may call over HTTP: `example.com` on the scheme's default port, `example.com:8443` on that
    /// port. Default: none. Error `http-not-granted`.
    pub http: Vec<String>,
    /// Secrets that its entities may read (`ostraca secret set`). Default: none. Error `secret-not-granted`.
    pub secrets: Vec<String>,
    /// Settings that its entities may read (`ostraca setting set`). Default: none. Error `setting-not-granted`.
    pub settings: Vec<String>,
}

/// `[access]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Principals that may message the type: `*`, `client/NAME`, `token/ISSUER/SUBJECT`, `entity/TYPE`, or the beginning of
    /// one followed by `*`, as in `client/*`. Default `*`.
    pub send: Vec<String>,
}

impl Access {
    /// Whether `principal`, written `client/alice`, may message the type.
    #[must_use]
    pub fn allows(&self, principal: &str) -> bool {
        self.send.iter().any(|rule| pattern_matches(rule, principal))
    }
}

/// Keys that had another name in an earlier version, each with its current one.
const RENAMED: &[(&str, &str)] = &[
    ("life.idle", "lifecycle.idle-timeout"),
    ("life.remember", "lifecycle.remember-entities"),
    ("life", "lifecycle"),
];

impl Manifest {
    /// Parses a manifest. Errors refer to it as `name`.
    ///
    /// # Errors
    /// [`ManifestError`] with `invalid-manifest` or `not-supported-yet`, and the line marked.
    pub fn parse(text: &str, name: &str) -> Result<Self, ManifestError> {
        let input = SourceText { code: codes::INVALID_MANIFEST, name, text, renamed: RENAMED };
        if text.len() > MAX_MANIFEST_BYTES {
            let why = format!("{} bytes exceed the limit of {MAX_MANIFEST_BYTES}", text.len());
            return Err(input.at(&[], why, None));
        }
        check::manifest(&input, input.parse::<ManifestFile>()?)
    }

    /// An error about the file that `component` names, for the caller that reads that file: the line is marked as in
    /// the errors of [`Manifest::parse`]. `text` and `name` are the arguments of that call.
    #[must_use]
    pub fn component_error(
        code: Code,
        text: &str,
        name: &str,
        why: String,
        help: String,
    ) -> ManifestError {
        SourceText { code, name, text, renamed: RENAMED }.at(&["component"], why, Some(help))
    }

    /// The limits that the sandbox enforces.
    #[must_use]
    pub fn wasm_limits(&self) -> ostraca_wasm::InstanceLimits {
        let limits = &self.limits;
        let count = |of: u64| usize::try_from(of).unwrap_or(usize::MAX);
        ostraca_wasm::InstanceLimits {
            memory: limits.memory,
            table_elements: count(limits.table_elements.into()),
            turn_time: limits.turn_time,
            activation_time: limits.activation_time,
            state: limits.state,
            keys: limits.keys.into(),
            turn_keys: limits.turn_keys.into(),
            turn_bytes: limits.turn_bytes,
            timers: limits.timers.into(),
            timer_bytes: limits.timer_bytes,
            timer_interval: u64::try_from(limits.timer_interval.as_millis()).unwrap_or(u64::MAX),
            tell: self.grants.tell.clone(),
            ask: self.grants.ask.clone(),
            journal: limits.journal,
            channels: limits.channels.into(),
            items: limits.items.into(),
            item: limits.item,
            asks: limits.asks.into(),
            ask_bytes: limits.ask_bytes,
            ask_timeout: limits.ask_timeout,
            http: self.grants.http.clone(),
            secrets: self.grants.secrets.clone(),
            settings: self.grants.settings.clone(),
            http_calls: limits.http_calls.into(),
            http_bytes: limits.http_bytes,
            http_timeout: limits.http_timeout,
            outbox: limits.outbox.into(),
            outbox_bytes: limits.outbox_bytes,
            reply: limits.reply,
            log_lines_per_second: limits.log_lines_per_second,
            log_line_bytes: count(limits.log_line_bytes),
        }
    }

    /// The whole manifest with its defaults, as TOML.
    #[must_use]
    pub fn effective_toml(&self) -> String {
        ManifestFile::from_manifest(self.clone()).text()
    }
}
