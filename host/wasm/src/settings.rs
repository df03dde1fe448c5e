//! What the host of guests is set to, and what one type's guests may use.
//!
//! Two different things are easy to take for one: [`Settings`] are the node's and fixed at its start; [`Limits`] are one
//! deployment's, from its manifest, and bound each of its instances.

use std::path::PathBuf;
use std::time::Duration;

/// Where instances get their memories, tables and stacks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Allocator {
    /// A pool sized at start. Where it cannot be had, start fails and names the limit.
    Pooling,
    /// A pool; where it cannot be had, on demand, with a warning and shown in [`crate::Shape`].
    #[default]
    Auto,
    /// Mapped for each instance when it starts.
    OnDemand,
}

impl Allocator {
    /// The name that configuration and status use.
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
    /// The most live instances. Default 8,000, lowered with a warning where `vm.max_map_count` does not allow them;
    /// a number that was set and does not fit is an error at start.
    pub max_live_instances: Option<u32>,
    /// The largest memory in bytes that an instance in the pool may have. Default 16 MiB. A type whose limit is higher
    /// runs on a second engine, outside the pool.
    pub pooled_instance_memory: u64,
    /// Where compiled components are kept; must be private to this node. Default none: each start compiles again.
    pub cache_dir: Option<PathBuf>,
    /// The most bytes that the cache keeps; the oldest files go first. Default 1 GiB.
    pub compile_cache_limit: u64,
    /// How often a running guest is looked at. Default 5 ms.
    pub tick_interval: Duration,
    /// The largest component in bytes. Default 64 MiB; compiling takes about 20 times its size in memory.
    pub component_limit: u64,
    /// The stack in bytes that a guest's calls may use. Default 512 KiB.
    pub wasm_stack: usize,
    /// What any component may make.
    pub component: ComponentLimits,
    /// Where and within which bounds components are compiled.
    pub compiler: CompilerSettings,
}

/// How much one instantiation of a component may make, nested components included. Counted before anything is compiled.
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
        }
    }
}

/// The compiler: a process of its own, so that neither its memory nor its crash is the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerSettings {
    /// What is run. Default [`Compiler::ThisProgram`].
    pub program: CompilerProgram,
    /// The most address space in bytes of one compilation. Default 0: a quarter of the memory that the machine or this
    /// process's control group has, from 256 MiB to 2 GiB. Error `compile-memory-limit`.
    pub max_memory: u64,
    /// How long one compilation may take. Default 90 s. Error `compile-time-limit`.
    pub timeout: Duration,
    /// How many compile at the same time; others wait. Default 2.
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
    /// This one: its `main` calls [`crate::compiler_main`] before anything else.
    #[default]
    CurrentExecutable,
    /// Another one of the same release that does so.
    Executable(PathBuf),
    /// None: compiles in this process, without any bounds. For tests of other things, and for programs that compile only
    /// what they have made themselves.
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
        }
    }
}

/// Bytes that may go with the largest value in one call: keys, method names, log lines.
const HOSTCALL_FUEL_OVERHEAD: usize = 64 << 10;

/// What each instance of one deployment may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Linear memory in bytes. Default 16 MiB. Error `memory-limit`.
    pub memory: u64,
    /// Elements of all tables together. Default 10,000. Error `table-limit`.
    pub table_elements: usize,
    /// Time in the guest for a message or the stop hook (R22). Default 100 ms. Error `turn-time-limit`.
    pub turn_time: Duration,
    /// Time in the guest for instantiation and `start` together. Default 1 s. Error `activation-time-limit`.
    pub activation_time: Duration,
    /// Keys and values in bytes, 100 for each key included. Default 1 MiB. Error `state-too-large`.
    pub state: u64,
    /// Keys. Default 10,000. Error `too-many-keys`.
    pub keys: u64,
    /// Keys that one turn may write or delete. Default 1,000. Error `turn-too-large`.
    pub turn_keys: u64,
    /// Bytes of keys and values that one turn may write, counted as for `state`. Default 4 MiB. Error
    /// `turn-too-large`.
    pub turn_bytes: u64,
    /// A reply in bytes. Default 1 MiB. Error `reply-too-large`.
    pub reply: u64,
    /// Log lines a second, with bursts of as many. Default 100. What is beyond is counted and dropped.
    pub log_lines_per_second: u32,
    /// Bytes of one log line. Default 4 KiB. What is beyond is cut.
    pub log_line_bytes: usize,
}

impl InstanceLimits {
    /// Bytes of texts and values that a guest may pass to the host in one call, or return from one: as much as any of
    /// them may be, and what goes with it. Error `value-too-large`. The host copies them before it can look at them, on
    /// a thread that other entities wait for.
    pub(crate) fn hostcall_fuel(&self) -> usize {
        let most = self.state.max(self.turn_bytes).max(self.reply);
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
            reply: 1 << 20,
            log_lines_per_second: 100,
            log_line_bytes: 4 << 10,
        }
    }
}
