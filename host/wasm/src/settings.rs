//! The node's settings for guests, and the limits of one type's guests.
//!
//! Two types are easy to confuse. [`RuntimeSettings`] belong to the node and are fixed at its start.
//! [`InstanceLimits`] belong to one deployment, come from its manifest, and apply to each of its instances.

use std::path::PathBuf;
use std::time::Duration;

use crate::AddressRange;
use crate::http_answers::HttpAnswers;

/// Where instances get their memories, tables and stacks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Allocator {
    /// A pool, sized at start. If it cannot be created, the start fails with an error that names the settings to lower.
    Pooling,
    /// A pool; if it cannot be created, falls back to on-demand allocation with a warning. [`crate::RuntimeStatus`]
    /// shows which one is used.
    #[default]
    Auto,
    /// Memory is mapped for each instance when it starts.
    OnDemand,
}

impl Allocator {
    /// The name in configuration and status.
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Pooling => "pooling",
            Allocator::Auto => "auto",
            Allocator::OnDemand => "on-demand",
        }
    }
}

/// The node's settings for guests.
#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    /// Default [`Allocator::Auto`].
    pub allocator: Allocator,
    /// Maximum number of live instances. Default 8,000, lowered with a warning if `vm.max_map_count` does not allow
    /// that many. A number that was set explicitly and does not fit is an error at start.
    pub max_live_instances: Option<u32>,
    /// Maximum memory in bytes of an instance in the pool. Default 16 MiB. A type with a higher limit runs on a
    /// second engine, outside the pool.
    pub pooled_instance_memory: u64,
    /// Where compiled components are cached; must be private to this node. Default `None`: each start compiles again.
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the cache in bytes; the oldest files are removed first. Default 1 GiB.
    pub compile_cache_limit: u64,
    /// The interval at which running guests yield and their time limits are checked. Default 5 ms.
    pub tick_interval: Duration,
    /// Maximum size of a component in bytes. Default 64 MiB; compiling needs about 20 times the size in memory.
    pub component_limit: u64,
    /// Stack size in bytes for a guest's calls. Default 512 KiB. Error `stack-overflow`.
    pub wasm_stack: usize,
    /// How much any component may create.
    pub component: ComponentLimits,
    /// Where components are compiled, and within which limits.
    pub compiler: CompilerSettings,
    /// How guests call HTTP servers.
    pub outgoing_http: OutgoingHttpSettings,
}

/// The node's settings for the HTTP calls of guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingHttpSettings {
    /// Addresses that may be called although they are not public. Default: none. Error `destination-IP-prohibited` of
    /// `wasi:http`.
    pub allow_addresses: Vec<AddressRange>,
    /// A PEM file with certificates of authorities that are trusted in addition to the public ones. Default: none.
    pub ca_file: Option<PathBuf>,
    /// Maximum number of connections at the same time; further calls wait, within their time limit. Default 1,024.
    /// Error `connection-timeout` of `wasi:http`.
    pub max_connections: usize,
    /// Answers all calls in place of the network, in tests. Default: none.
    pub answers: Option<HttpAnswers>,
}

impl Default for OutgoingHttpSettings {
    fn default() -> Self {
        OutgoingHttpSettings {
            allow_addresses: Vec::new(),
            ca_file: None,
            max_connections: 1_024,
            answers: None,
        }
    }
}

/// How much one instantiation of a component may create, nested components included. Counted before anything is
/// compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentLimits {
    /// Default 64. Error `too-many-core-instances`.
    pub core_instances: u32,
    /// Default 256. Error `too-many-component-instances`.
    pub component_instances: u32,
    /// Default 4. Error `too-many-memories`.
    pub memories: u32,
    /// Default 32. Error `too-many-tables`.
    pub tables: u32,
    /// Functions of core modules. Default 500,000. Error `too-many-functions`.
    pub functions: u32,
    /// Default 100,000. Error `too-many-types`.
    pub types: u32,
    /// Imports, exports, aliases, arguments and canonical functions. Default 500,000. Error `too-many-definitions`.
    pub definitions: u32,
    /// Total size in bytes of the JSON Schemas of its methods, which the type's row stores. Default 32 KiB. Error
    /// `schemas-too-large`.
    pub schema_bytes: u64,
}

impl Default for ComponentLimits {
    fn default() -> Self {
        ComponentLimits {
            core_instances: 64,
            component_instances: 256,
            memories: 4,
            tables: 32,
            functions: 500_000,
            types: 100_000,
            definitions: 500_000,
            schema_bytes: 32 << 10,
        }
    }
}

/// The compiler: a separate process, so that its memory use and its crashes do not affect the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerSettings {
    /// The program that compiles. Default [`CompilerProgram::CurrentExecutable`].
    pub program: CompilerProgram,
    /// Maximum address space in bytes of one compilation. Default 0: a quarter of the memory of the machine or of this
    /// process's control group, whichever is less, but at least 256 MiB and at most 2 GiB. Error
    /// `compile-memory-limit`.
    pub max_memory: u64,
    /// How long one compilation may take. Default 90 s. Error `compile-time-limit`.
    pub timeout: Duration,
    /// Maximum number of components compiled at the same time; others wait. Default 2.
    pub max_concurrent: usize,
}

impl Default for CompilerSettings {
    fn default() -> Self {
        CompilerSettings {
            program: CompilerProgram::CurrentExecutable,
            max_memory: 0,
            timeout: Duration::from_secs(90),
            max_concurrent: 2,
        }
    }
}

/// Which program compiles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CompilerProgram {
    /// This program: its `main` calls [`crate::compiler_main`] before anything else.
    #[default]
    CurrentExecutable,
    /// Another program of the same release whose `main` does so.
    Executable(PathBuf),
    /// Compiles in this process, without any limits. For tests that are not about the compiler, and for programs
    /// that compile only components that they built themselves.
    InProcess,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        RuntimeSettings {
            allocator: Allocator::Auto,
            max_live_instances: None,
            pooled_instance_memory: 16 << 20,
            cache_dir: None,
            compile_cache_limit: 1 << 30,
            tick_interval: Duration::from_millis(5),
            component_limit: 64 << 20,
            wasm_stack: 512 << 10,
            component: ComponentLimits::default(),
            compiler: CompilerSettings::default(),
            outgoing_http: OutgoingHttpSettings::default(),
        }
    }
}

/// Bytes that may accompany the largest value in one call: keys, method names, log lines.
const HOSTCALL_FUEL_OVERHEAD: usize = 64 << 10;

/// The limits of each instance of one deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Linear memory in bytes. Default 16 MiB. Error `memory-limit`.
    pub memory: u64,
    /// Elements of all tables together. Default 10,000. Error `table-limit`.
    pub table_elements: usize,
    /// Time in the guest for a message, a timer's firing or the stop hook (R22). Default 100 ms. Error
    /// `turn-time-limit`.
    pub turn_time: Duration,
    /// Time in the guest for instantiation and `start` together. Default 1 s. Error `activation-time-limit`.
    pub activation_time: Duration,
    /// Size of keys and values in bytes, including 100 bytes per key. Default 1 MiB. Error `state-too-large`.
    pub state: u64,
    /// Number of keys. Default 10,000. Error `too-many-keys`.
    pub keys: u64,
    /// Number of keys that one turn may write or delete. Timers that it changes, tells that it sends, and records
    /// of the journal that it writes or deletes are each limited to the same number. Default 1,000. Error
    /// `turn-too-large`.
    pub turn_keys: u64,
    /// Size in bytes of keys, values, events, snapshots and items that one turn may write, counted as for `state` and
    /// `journal`. Tells that it sends are limited to the same size, with 100 bytes added for each. Default 4 MiB. Error
    /// `turn-too-large`.
    pub turn_bytes: u64,
    /// Number of timers, including delayed tells. Default 100. Error `too-many-timers`.
    pub timers: u64,
    /// Size in bytes of the names and payloads of all timers and delayed tells, including 100 bytes for each. Default
    /// 64 KiB. Error `timers-too-large`.
    pub timer_bytes: u64,
    /// The shortest interval of a timer, in milliseconds. Default 1,000. Error `timer-interval-too-short`.
    pub timer_interval: u64,
    /// Entity types to which it may send tells. Default: none. Error `tell-not-granted`.
    pub tell: Vec<String>,
    /// Number of tells in an entity's outbox, including dead letters and delayed tells. Default 1,000. Error
    /// `outbox-full`.
    pub outbox: u64,
    /// Size in bytes of the methods and bodies of these tells. Default 1 MiB. Error `outbox-too-large`.
    pub outbox_bytes: u64,
    /// Size in bytes of the events and the snapshot in an entity's journal, including 100 bytes for each. Default 16
    /// MiB. Error `journal-too-large`.
    pub journal: u64,
    /// Number of channels that an entity may emit on. Default 16. Error `too-many-channels`.
    pub channels: u64,
    /// Number of items that one turn may emit. Default 256. Error `turn-too-large`.
    pub items: u64,
    /// Size in bytes of one item that is emitted on a channel. Default 64 KiB. Error `item-too-large`.
    pub item: u64,
    /// Entity types to which it may send asks. Default: none. Error `ask-not-granted`.
    pub ask: Vec<String>,
    /// Number of asks that one turn may start. Default 64. Error `too-many-asks`.
    pub asks: u64,
    /// Size in bytes of the methods and bodies of one turn's asks, and of their answers. Default 1 MiB. Error
    /// `asks-too-large`.
    pub ask_bytes: u64,
    /// How long a turn waits for one answer: the maximum, and the default for asks without a timeout. Default 5 s.
    /// After that, the answer is `unknown`.
    pub ask_timeout: Duration,
    /// Hosts that it may call over HTTP: `example.com` on the scheme's default port, `example.com:8443` on that port.
    /// Default: none. Error `http-not-granted`.
    pub http: Vec<String>,
    /// Names of the secrets that it may read. Default: none. Error `secret-not-granted`.
    pub secrets: Vec<String>,
    /// Names of the settings that it may read. Default: none. Error `setting-not-granted`.
    pub settings: Vec<String>,
    /// Number of HTTP calls that one turn may make. Default 16. Error `too-many-http-calls`.
    pub http_calls: u64,
    /// Size in bytes of one turn's HTTP requests and responses, headers included. Default 1 MiB. Error
    /// `http-too-large` for a request; for a response, `HTTP-response-body-size` of `wasi:http`.
    pub http_bytes: u64,
    /// How long one HTTP call may take, from its start to the end of its response. Default 5 s. Errors
    /// `connection-timeout` and `HTTP-response-timeout` of `wasi:http`.
    pub http_timeout: Duration,
    /// Size of a reply in bytes. Default 1 MiB. Error `reply-too-large`.
    pub reply: u64,
    /// Maximum number of log lines per second, and in one burst. Default 100. Excess lines are counted and dropped.
    pub log_lines_per_second: u32,
    /// Maximum size in bytes of one log line. Default 4 KiB. Longer lines are truncated.
    pub log_line_bytes: usize,
}

impl InstanceLimits {
    /// Maximum size in bytes of the strings and values that a guest may pass to the host in one call, or return from
    /// one: the largest of the limits on state, a turn's writes, replies, the outbox and asks, plus an overhead. Error
    /// `value-too-large`. The host copies them before it can examine them, on a thread that also serves other entities.
    pub(crate) fn hostcall_fuel(&self) -> usize {
        let sizes = [self.turn_bytes, self.reply, self.outbox_bytes, self.ask_bytes];
        let most = sizes.into_iter().fold(self.state, u64::max);
        usize::try_from(most).unwrap_or(usize::MAX).saturating_add(HOSTCALL_FUEL_OVERHEAD)
    }
}

impl Default for InstanceLimits {
    fn default() -> Self {
        InstanceLimits {
            memory: 16 << 20,
            table_elements: 10_000,
            turn_time: Duration::from_millis(100),
            activation_time: Duration::from_secs(1),
            state: 1 << 20,
            keys: 10_000,
            turn_keys: 1_000,
            turn_bytes: 4 << 20,
            timers: 100,
            timer_bytes: 64 << 10,
            timer_interval: 1_000,
            tell: Vec::new(),
            outbox: 1_000,
            outbox_bytes: 1 << 20,
            journal: 16 << 20,
            channels: 16,
            items: 256,
            item: 64 << 10,
            ask: Vec::new(),
            asks: 64,
            ask_bytes: 1 << 20,
            ask_timeout: Duration::from_secs(5),
            http: Vec::new(),
            secrets: Vec::new(),
            settings: Vec::new(),
            http_calls: 16,
            http_bytes: 1 << 20,
            http_timeout: Duration::from_secs(5),
            reply: 1 << 20,
            log_lines_per_second: 100,
            log_line_bytes: 4 << 10,
        }
    }
}
