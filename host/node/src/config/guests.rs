//! What runs guests, what may be a guest, and what compiles them, as it is written.

use std::path::PathBuf;
use std::time::Duration;

use ostraca_wasm::{CompilerSettings, ComponentLimits, RuntimeSettings};
use serde::{Deserialize, Serialize};

use super::file::{large, small};
use crate::input::units;
use crate::manifest::Ceilings;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Guests {
    pub(super) allocator: Allocator,
    pub(super) max_live: Option<u32>,
    #[serde(with = "units::size")]
    pub(super) max_memory: u64,
    #[serde(with = "units::size")]
    pub(super) cache_limit: u64,
    #[serde(with = "units::time")]
    pub(super) tick: Duration,
    #[serde(with = "units::size")]
    pub(super) component_limit: u64,
    #[serde(with = "units::size")]
    pub(super) wasm_stack: u64,
    #[serde(with = "units::size")]
    pub(super) memory_ceiling: u64,
    #[serde(with = "units::time")]
    pub(super) turn_time_ceiling: Duration,
    #[serde(with = "units::time")]
    pub(super) deploy_wait: Duration,
}

/// `[components]`: what any component may make.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Components {
    pub(super) core_instances: u32,
    pub(super) component_instances: u32,
    pub(super) memories: u32,
    pub(super) tables: u32,
    pub(super) functions: u32,
    pub(super) types: u32,
    pub(super) definitions: u32,
}

/// `[compiler]`: the process that compiles.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Compiler {
    pub(super) program: Option<PathBuf>,
    #[serde(with = "units::size")]
    pub(super) memory: u64,
    #[serde(with = "units::time")]
    pub(super) time: Duration,
    pub(super) at_once: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Allocator {
    Auto,
    Pooling,
    OnDemand,
}

impl Default for Guests {
    fn default() -> Self {
        let wasm = RuntimeSettings::default();
        Self {
            allocator: Allocator::Auto,
            max_live: wasm.max_live_instances,
            max_memory: wasm.pooled_instance_memory,
            cache_limit: wasm.compile_cache_limit,
            tick: wasm.tick_interval,
            component_limit: wasm.component_limit,
            wasm_stack: wasm.wasm_stack as u64,
            memory_ceiling: Ceilings::default().memory,
            turn_time_ceiling: Ceilings::default().turn_time,
            deploy_wait: Duration::from_secs(10),
        }
    }
}

impl Guests {
    pub(super) fn settings(
        &self,
        cache: PathBuf,
        components: &Components,
        compiler: &Compiler,
    ) -> RuntimeSettings {
        RuntimeSettings {
            allocator: match self.allocator {
                Allocator::Auto => ostraca_wasm::Allocator::Auto,
                Allocator::Pooling => ostraca_wasm::Allocator::Pooling,
                Allocator::OnDemand => ostraca_wasm::Allocator::OnDemand,
            },
            max_live_instances: self.max_live,
            pooled_instance_memory: self.max_memory,
            cache_dir: Some(cache),
            compile_cache_limit: self.cache_limit,
            tick_interval: self.tick,
            component_limit: self.component_limit,
            wasm_stack: large(self.wasm_stack),
            component: components.limits(),
            compiler: compiler.settings(),
        }
    }

    pub(super) fn ceilings(&self) -> Ceilings {
        Ceilings { memory: self.memory_ceiling, turn_time: self.turn_time_ceiling }
    }
}

impl Default for Components {
    fn default() -> Self {
        let most = ComponentLimits::default();
        Self {
            core_instances: most.core_instances,
            component_instances: most.component_instances,
            memories: most.memories,
            tables: most.tables,
            functions: most.functions,
            types: most.types,
            definitions: most.definitions,
        }
    }
}

impl Components {
    fn limits(&self) -> ComponentLimits {
        ComponentLimits {
            core_instances: self.core_instances,
            component_instances: self.component_instances,
            memories: self.memories,
            tables: self.tables,
            functions: self.functions,
            types: self.types,
            definitions: self.definitions,
        }
    }
}

impl Default for Compiler {
    fn default() -> Self {
        let settings = CompilerSettings::default();
        Self {
            program: None,
            memory: settings.max_memory,
            time: settings.timeout,
            at_once: small(settings.max_concurrent),
        }
    }
}

impl Compiler {
    fn settings(&self) -> CompilerSettings {
        CompilerSettings {
            program: self.program.clone().map_or_else(
                ostraca_wasm::CompilerProgram::default,
                ostraca_wasm::CompilerProgram::Executable,
            ),
            max_memory: self.memory,
            timeout: self.time,
            max_concurrent: self.at_once as usize,
        }
    }
}
