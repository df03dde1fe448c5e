//! Creates engines that fit the machine.
//!
//! Three things limit how many instances can be live at once, and each fails in its own confusing way unless it is
//! planned for: the address space (a memory reserves much more than it uses), `vm.max_map_count` (each instance splits
//! mappings), and the sizes of the pool itself (a live store keeps its fiber's stack; a component has up to two tables
//! in the pool). All of them are computed here, at start.

use std::path::Path;

use wasmtime::component::Linker;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::codegen::CodegenConfig;
use crate::instance_data::InstanceData;
use crate::survey::Counts;
use crate::{Allocator, Error, RuntimeSettings, call_imports, imports};

/// Maximum number of live instances if the settings do not specify one.
const DEFAULT_LIVE: u32 = 8_000;
/// Mappings per live instance: six in the pool, as measured (two for its stack, four for its memory and tables), and
/// one more for a memory that grows.
const MAPPINGS: u64 = 7;
/// Mappings reserved for the rest of the process: code, threads, the store, other memories.
const MAPPINGS_ELSEWHERE: u64 = 8_192;
/// Slots in the pool beyond `max_live_instances`, for reading methods and for instances that are being dropped.
const SLACK: u32 = 64;
/// Bytes of stack beyond the guest's own, for host functions.
const HOST_STACK: usize = 512 << 10;
/// Bytes of address space that all memories together may reserve: half of what a process has.
const ADDRESS_SPACE: u64 = 1 << 46;
/// With this reservation in bytes, a 32-bit guest needs no bounds checks.
const FULL_RESERVATION: u64 = 1 << 32;

/// What the runtime chose at start and how much of it is in use, for the node's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The allocator in use: never [`Allocator::Auto`].
    pub allocator: Allocator,
    /// Why there is no pool, if an attempt to create it failed.
    pub fallback_reason: Option<String>,
    /// Maximum number of instances that may be live at once.
    pub max_live_instances: u32,
    /// How many instances are live now.
    pub live_instances: u32,
    /// Maximum size in bytes of an instance's memory on the main engine.
    pub max_memory: u64,
    /// Bytes of address space that each memory reserves.
    pub memory_reservation: u64,
    /// Bytes of stack that each instance reserves, for guest and host functions together.
    pub stack: usize,
    /// Whether the second engine exists, for types that do not fit into the pool.
    pub large: bool,
}

/// An engine with two linkers: one without WASI, one with it.
pub(crate) struct EngineContext {
    pub(crate) engine: Engine,
    pub(crate) plain: Linker<InstanceData>,
    pub(crate) wasi: Linker<InstanceData>,
    /// The configuration from which the compiler process creates the same engine.
    pub(crate) code: CodegenConfig,
}

impl EngineContext {
    fn new(engine: Engine, code: CodegenConfig) -> Result<EngineContext, Error> {
        let failed = |error: wasmtime::Error| {
            Error::EngineFailed(format!("cannot link the imports: {error:#}"))
        };
        let mut plain = Linker::new(&engine);
        imports::link(&mut plain).map_err(failed)?;
        let mut wasi = plain.clone();
        wasmtime_wasi::p2::add_to_linker_async(&mut wasi).map_err(failed)?;
        call_imports::link(&mut wasi).map_err(failed)?;
        Ok(EngineContext { engine, plain, wasi, code })
    }
}

/// Maximum number of tables of a component in the pool: its own, and the one that wit-component's shim adds.
const TABLES: u32 = 2;
/// Maximum number of elements of a table in the pool. They cost only address space: 160 KB per table.
const TABLE_ELEMENTS: u64 = 20_000;
/// Maximum number of core instances of a component in the pool: as many as the survey allows by default. They are
/// allocated one by one, so this reserves nothing.
const CORE_INSTANCES: u32 = 64;
/// Maximum size in bytes of wasmtime's own records for one instance in the pool. This reserves nothing either.
const RECORDS: usize = 16 << 20;

impl RuntimeStatus {
    /// Whether an instance of a component with these counts and limits fits into the pool.
    pub(crate) fn pool_fits(&self, counts: &Counts, limits: &crate::InstanceLimits) -> bool {
        limits.memory <= self.max_memory
            && limits.table_elements as u64 <= TABLE_ELEMENTS
            && counts.core_instances <= CORE_INSTANCES.into()
            && counts.memories <= 1
            && counts.tables <= TABLES.into()
    }
}

/// Creates the main engine.
pub(crate) fn main_engine(
    settings: &RuntimeSettings,
) -> Result<(EngineContext, RuntimeStatus), Error> {
    if settings.wasm_stack < 64 << 10 || settings.wasm_stack > 64 << 20 {
        let why = format!("{} bytes is not between 64 KiB and 64 MiB", settings.wasm_stack);
        return Err(Error::Setting { setting: "wasm-stack", reason: why });
    }
    let max_live = max_live(settings, max_map_count())?;
    let mut shape = RuntimeStatus {
        allocator: settings.allocator,
        fallback_reason: None,
        max_live_instances: max_live,
        live_instances: 0,
        max_memory: settings.pooled_instance_memory.next_multiple_of(64 << 10),
        memory_reservation: reservation(max_live, settings.pooled_instance_memory),
        stack: settings.wasm_stack + HOST_STACK,
        large: false,
    };
    if settings.allocator != Allocator::OnDemand {
        match Engine::new(&pooling(&shape, settings)?) {
            Ok(engine) => {
                shape.allocator = Allocator::Pooling;
                return Ok((EngineContext::new(engine, code(&shape, settings))?, shape));
            }
            Err(error) if settings.allocator == Allocator::Pooling => {
                let why = format!(
                    "cannot create a pool for {max_live} instances with {} bytes of address space and {} bytes of stack each: {error:#}; lower \
                     max-live-instances or pooled-instance-memory, or set the allocator to auto",
                    shape.memory_reservation, shape.stack
                );
                return Err(Error::Setting { setting: "allocator", reason: why });
            }
            Err(error) => {
                let why = format!("{error:#}");
                tracing::warn!(max_live, error = %why, "cannot create the instance pool: allocating instances on demand");
                shape.fallback_reason = Some(why);
            }
        }
    }
    shape.allocator = Allocator::OnDemand;
    let code = code(&shape, settings);
    let engine =
        Engine::new(&code.config()).map_err(|error| Error::EngineFailed(format!("{error:#}")))?;
    Ok((EngineContext::new(engine, code)?, shape))
}

/// Creates the second engine, for types that do not fit into the pool.
pub(crate) fn large_engine(
    shape: &RuntimeStatus,
    settings: &RuntimeSettings,
) -> Result<EngineContext, Error> {
    let code = CodegenConfig { reservation: FULL_RESERVATION, ..code(shape, settings) };
    let engine =
        Engine::new(&code.config()).map_err(|error| Error::EngineFailed(format!("{error:#}")))?;
    EngineContext::new(engine, code)
}

fn code(shape: &RuntimeStatus, settings: &RuntimeSettings) -> CodegenConfig {
    CodegenConfig {
        wasm_stack: settings.wasm_stack,
        stack: shape.stack,
        reservation: shape.memory_reservation,
        growth: settings.pooled_instance_memory.max(1 << 20),
    }
}

fn pooling(shape: &RuntimeStatus, settings: &RuntimeSettings) -> Result<Config, Error> {
    let places = shape.max_live_instances + SLACK;
    let size = usize::try_from(shape.max_memory).map_err(|_| Error::Setting {
        setting: "pooled-instance-memory",
        reason: "it exceeds this machine's address space".into(),
    })?;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(places)
        .total_core_instances(places.saturating_mul(CORE_INSTANCES))
        .total_memories(places)
        .total_tables(places.saturating_mul(TABLES))
        .total_stacks(places)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_core_instance_size(RECORDS)
        .max_component_instance_size(RECORDS)
        .max_memories_per_component(1)
        .max_tables_per_component(TABLES)
        .table_elements(TABLE_ELEMENTS as usize)
        .max_memory_size(size);
    let mut config = code(shape, settings).config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Ok(config)
}

/// Reserves the full range for each memory if the address space is large enough. Otherwise reserves only what a guest
/// may use, at the cost of bounds checks in guests.
fn reservation(max_live: u32, max_memory: u64) -> u64 {
    if u64::from(max_live + SLACK).saturating_mul(FULL_RESERVATION) <= ADDRESS_SPACE {
        FULL_RESERVATION
    } else {
        max_memory.next_multiple_of(64 << 10)
    }
}

/// Maximum number of live instances, given how many mappings a process may have (`None`: unlimited).
fn max_live(settings: &RuntimeSettings, max_map_count: Option<u64>) -> Result<u32, Error> {
    let fits =
        max_map_count.map_or(u64::MAX, |count| count.saturating_sub(MAPPINGS_ELSEWHERE) / MAPPINGS);
    let fits = u32::try_from(fits).unwrap_or(1 << 20).min(1 << 20);
    let Some(wanted) = settings.max_live_instances else {
        if fits < DEFAULT_LIVE {
            tracing::warn!(
                max_live = fits,
                "vm.max_map_count allows fewer live instances than the default of {DEFAULT_LIVE}"
            );
        }
        return Ok(fits.clamp(1, DEFAULT_LIVE));
    };
    if wanted == 0 || wanted > fits {
        let needed = u64::from(wanted) * MAPPINGS + MAPPINGS_ELSEWHERE;
        let why = format!(
            "{wanted} is not between 1 and {fits}, the most that vm.max_map_count allows; {wanted} would need vm.max_map_count = {needed}"
        );
        return Err(Error::Setting { setting: "max-live-instances", reason: why });
    }
    Ok(wanted)
}

fn max_map_count() -> Option<u64> {
    std::fs::read_to_string(Path::new("/proc/sys/vm/max_map_count")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(max_live: Option<u32>) -> RuntimeSettings {
        RuntimeSettings { max_live_instances: max_live, ..RuntimeSettings::default() }
    }

    #[test]
    fn an_oversized_setting_is_an_error_and_a_default_is_lowered() {
        assert_eq!(max_live(&settings(None), Some(65_530)).unwrap(), DEFAULT_LIVE);
        assert_eq!(max_live(&settings(None), Some(22_192)).unwrap(), 2_000);
        assert_eq!(max_live(&settings(Some(2_000)), Some(22_192)).unwrap(), 2_000);
        let error = max_live(&settings(Some(2_001)), Some(22_192)).unwrap_err();
        assert_eq!(error.code(), "invalid-setting");
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
        assert_eq!(max_live(&settings(Some(20_000)), None).unwrap(), 20_000);
    }

    #[test]
    fn many_instances_reserve_only_what_they_may_use() {
        assert_eq!(reservation(8_000, 16 << 20), FULL_RESERVATION);
        assert_eq!(reservation(40_000, 16 << 20), 16 << 20);
    }
}
