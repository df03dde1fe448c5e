//! The sections about running, checking and compiling guests, as written in the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_wasm::{CompilerSettings, ComponentLimits, OutgoingHttpSettings, RuntimeSettings};
use serde::{Deserialize, Serialize};

use super::numbers::{saturating_u32, saturating_usize};
use super::pool_limits::PoolLimits;
use crate::manifest::Ceilings;
use crate::user_file::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GuestsSection {
    pub(super) allocator: Allocator,
    pub(super) max_live_instances: Option<u32>,
    #[serde(with = "units::size")]
    pub(super) max_live_memory: u64,
    pub(super) pools: BTreeMap<String, PoolLimits>,
    #[serde(with = "units::size")]
    pub(super) pooled_instance_memory: u64,
    #[serde(with = "units::size")]
    pub(super) compile_cache_limit: u64,
    #[serde(with = "units::duration")]
    pub(super) tick_interval: Duration,
    #[serde(with = "units::size")]
    pub(super) component_limit: u64,
    #[serde(with = "units::size")]
    pub(super) wasm_stack: u64,
    #[serde(with = "units::size")]
    pub(super) memory_ceiling: u64,
    #[serde(with = "units::duration")]
    pub(super) turn_time_ceiling: Duration,
    #[serde(with = "units::duration")]
    pub(super) deploy_wait_timeout: Duration,
}

/// `[components]`: limits on what a component may define and instantiate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ComponentsSection {
    pub(super) core_instances: u32,
    pub(super) component_instances: u32,
    pub(super) memories: u32,
    pub(super) tables: u32,
    pub(super) functions: u32,
    pub(super) types: u32,
    pub(super) definitions: u32,
    #[serde(with = "units::size")]
    pub(super) schema_bytes: u64,
}

/// `[compiler]`: the compiler process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct CompilerSection {
    pub(super) program: Option<PathBuf>,
    #[serde(with = "units::size")]
    pub(super) max_memory: u64,
    #[serde(with = "units::duration")]
    pub(super) timeout: Duration,
    pub(super) max_concurrent: u32,
}

/// `[outgoing-http]`: the HTTP calls of guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct OutgoingHttpSection {
    pub(super) allow_addresses: Vec<String>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) max_connections: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Allocator {
    Auto,
    Pooling,
    OnDemand,
}

impl Default for GuestsSection {
    fn default() -> Self {
        let wasm = RuntimeSettings::default();
        Self {
            allocator: Allocator::Auto,
            max_live_instances: wasm.max_live_instances,
            max_live_memory: 16 << 30,
            pools: BTreeMap::new(),
            pooled_instance_memory: wasm.pooled_instance_memory,
            compile_cache_limit: wasm.compile_cache_limit,
            tick_interval: wasm.tick_interval,
            component_limit: wasm.component_limit,
            wasm_stack: wasm.wasm_stack as u64,
            memory_ceiling: Ceilings::default().memory,
            turn_time_ceiling: Ceilings::default().turn_time,
            deploy_wait_timeout: Duration::from_secs(10),
        }
    }
}

impl GuestsSection {
    pub(super) fn settings(
        &self,
        cache: PathBuf,
        components: &ComponentsSection,
        compiler: &CompilerSection,
        outgoing_http: OutgoingHttpSettings,
    ) -> RuntimeSettings {
        RuntimeSettings {
            allocator: match self.allocator {
                Allocator::Auto => ostraca_wasm::Allocator::Auto,
                Allocator::Pooling => ostraca_wasm::Allocator::Pooling,
                Allocator::OnDemand => ostraca_wasm::Allocator::OnDemand,
            },
            max_live_instances: self.max_live_instances,
            pooled_instance_memory: self.pooled_instance_memory,
            cache_dir: Some(cache),
            compile_cache_limit: self.compile_cache_limit,
            tick_interval: self.tick_interval,
            component_limit: self.component_limit,
            wasm_stack: saturating_usize(self.wasm_stack),
            component: components.limits(),
            compiler: compiler.settings(),
            outgoing_http,
        }
    }

    pub(super) fn ceilings(&self) -> Ceilings {
        Ceilings { memory: self.memory_ceiling, turn_time: self.turn_time_ceiling }
    }
}

impl Default for ComponentsSection {
    fn default() -> Self {
        let defaults = ComponentLimits::default();
        Self {
            core_instances: defaults.core_instances,
            component_instances: defaults.component_instances,
            memories: defaults.memories,
            tables: defaults.tables,
            functions: defaults.functions,
            types: defaults.types,
            definitions: defaults.definitions,
            schema_bytes: defaults.schema_bytes,
        }
    }
}

impl ComponentsSection {
    fn limits(&self) -> ComponentLimits {
        ComponentLimits {
            core_instances: self.core_instances,
            component_instances: self.component_instances,
            memories: self.memories,
            tables: self.tables,
            functions: self.functions,
            types: self.types,
            definitions: self.definitions,
            schema_bytes: self.schema_bytes,
        }
    }
}

impl Default for CompilerSection {
    fn default() -> Self {
        let settings = CompilerSettings::default();
        Self {
            program: None,
            max_memory: settings.max_memory,
            timeout: settings.timeout,
            max_concurrent: saturating_u32(settings.max_concurrent),
        }
    }
}

impl CompilerSection {
    fn settings(&self) -> CompilerSettings {
        CompilerSettings {
            program: self.program.clone().map_or_else(
                ostraca_wasm::CompilerProgram::default,
                ostraca_wasm::CompilerProgram::Executable,
            ),
            max_memory: self.max_memory,
            timeout: self.timeout,
            max_concurrent: self.max_concurrent as usize,
        }
    }
}

impl Default for OutgoingHttpSection {
    fn default() -> Self {
        let settings = OutgoingHttpSettings::default();
        Self {
            allow_addresses: Vec::new(),
            ca_file: None,
            max_connections: saturating_u32(settings.max_connections),
        }
    }
}

impl OutgoingHttpSection {
    /// The settings; the file is relative to the data directory. The ranges were checked when the file was read.
    pub(super) fn settings(&self, data: &Path) -> OutgoingHttpSettings {
        OutgoingHttpSettings {
            allow_addresses: self.allow_addresses.iter().filter_map(|it| it.parse().ok()).collect(),
            ca_file: self.ca_file.as_ref().map(|file| data.join(file)),
            max_connections: self.max_connections as usize,
            answers: None,
        }
    }
}
