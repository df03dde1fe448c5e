//! The data in an instance's store: the host's side of one entity.

use std::sync::Arc;

use wasmtime::ResourceLimiter;
use wasmtime_wasi::{WasiCtxView, WasiView};

use crate::asks::TurnAsks;
use crate::calls::TurnCalls;
use crate::channels::TurnChannels;
use crate::journal::TurnJournal;
use crate::log::GuestLog;
use crate::meter::Meter;
use crate::state::State;
use crate::tells::TurnTells;
use crate::timers::TurnTimers;
use crate::trap::{HostTrap, Panic};
use crate::turn_values::TurnSource;
use crate::variables::TurnVariables;
use crate::wasi::Wasi;
use crate::{Failure, InstanceLimits, MessageContext, MessageKind, StateSource};

/// Smaller changes of an instance's size are not reported.
const SIZE_STEP: u64 = 64 << 10;

/// Why the guest is being called, which determines what it may do.
pub(crate) enum Phase {
    /// Between turns, during instantiation, in `methods`, or in the start hook of an instance for queries: writes are
    /// refused.
    NoTurn,
    /// Start, stop or a timer's firing: a turn without a message.
    Hook,
    /// A message's turn.
    Message(Box<MessageContext>),
}

pub(crate) struct InstanceData {
    pub(crate) limits: Arc<InstanceLimits>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) log: Arc<GuestLog>,
    /// Where the entity's state and journal are read from.
    pub(crate) source: Box<dyn StateSource>,
    /// `None` until the guest accesses it (E16).
    pub(crate) state: Option<State>,
    pub(crate) phase: Phase,
    /// Clock and randomness of the current turn.
    pub(crate) turn: TurnSource,
    /// The type's secrets and settings, as the current turn sees them.
    pub(crate) variables: TurnVariables,
    /// The entity's timers in the current turn.
    pub(crate) timers: TurnTimers,
    /// The tells of the current turn.
    pub(crate) tells: TurnTells,
    /// The entity's journal in the current turn.
    pub(crate) journal: TurnJournal,
    /// The items that the current turn emits.
    pub(crate) channels: TurnChannels,
    /// Whether other entities have subscribed to the entity's channels.
    pub(crate) has_subscribers: bool,
    /// Whether the entity is remembered, before the turn and by what the turn says.
    pub(crate) remembered: bool,
    pub(crate) remember: Option<bool>,
    /// When the entity expires, before the turn and by what the turn says.
    pub(crate) expires_at: Option<u64>,
    pub(crate) expiry: Option<Option<u64>>,
    /// Whether the turn may delete its entity, and whether it does.
    pub(crate) may_delete: bool,
    pub(crate) delete: bool,
    /// The asks of the current turn.
    pub(crate) asks: TurnAsks,
    /// The outgoing HTTP calls of the current turn. Declared before `wasi`, so that they end before their requests are
    /// dropped.
    pub(crate) calls: TurnCalls,
    /// The place of the next ask or call in the current turn.
    pub(crate) places: u32,
    /// Whether the component exports a timer handler.
    pub(crate) handles_timers: bool,
    pub(crate) passivate: bool,
    /// The delay before passivation that the turn sets, if it sets one.
    pub(crate) passivate_after: Option<Option<u64>>,
    pub(crate) panic: Option<Panic>,
    pub(crate) memory_denied: bool,
    pub(crate) table_denied: bool,
    /// Created at first use: guests without WASI pay nothing for it.
    pub(crate) wasi: Option<Box<Wasi>>,
    memory: usize,
    /// What [`InstanceData::take_new_size`] last returned.
    reported_size: u64,
    tables: usize,
}

impl InstanceData {
    #[expect(clippy::too_many_arguments, reason = "the parts of an instance")]
    pub(crate) fn new(
        limits: Arc<InstanceLimits>,
        meter: Arc<Meter>,
        log: Arc<GuestLog>,
        source: Box<dyn StateSource>,
        turn: TurnSource,
        variables: TurnVariables,
        timers: TurnTimers,
        tells: TurnTells,
        journal: TurnJournal,
        channels: TurnChannels,
        calls: TurnCalls,
        handles_timers: bool,
    ) -> InstanceData {
        InstanceData {
            limits,
            meter,
            log,
            source,
            state: None,
            phase: Phase::NoTurn,
            turn,
            variables,
            timers,
            tells,
            journal,
            channels,
            has_subscribers: false,
            remembered: false,
            remember: None,
            expires_at: None,
            expiry: None,
            may_delete: false,
            delete: false,
            asks: TurnAsks::default(),
            calls,
            places: 0,
            handles_timers,
            passivate: false,
            passivate_after: None,
            panic: None,
            memory_denied: false,
            table_denied: false,
            wasi: None,
            memory: 0,
            reported_size: 0,
            tables: 0,
        }
    }

    /// Logs a failed call, and which message it handled, if any.
    pub(crate) fn log_failure(&self, failure: &Failure, backtrace: Option<&str>) {
        let message = match &self.phase {
            Phase::Message(message) => Some(&**message),
            _ => None,
        };
        self.log.failed(failure, backtrace, message);
    }

    /// Bytes that the turn has written to the state.
    pub(crate) fn state_bytes_written(&self) -> u64 {
        self.state.as_ref().map_or(0, State::turn_bytes)
    }

    /// Bytes that the turn has written to the state and emitted.
    pub(crate) fn written_beside_journal(&self) -> u64 {
        self.state_bytes_written() + self.channels.written()
    }

    /// The bytes of the instance's memory and of its state, if they differ much from what was last returned.
    pub(crate) fn take_new_size(&mut self) -> Option<u64> {
        let size = self.memory as u64 + self.state.as_ref().map_or(0, State::bytes);
        if size.abs_diff(self.reported_size) < SIZE_STEP {
            return None;
        }
        self.reported_size = size;
        Some(size)
    }

    pub(crate) fn wasi(&mut self) -> &mut Wasi {
        self.wasi.get_or_insert_with(|| Wasi::new(&self.log, &self.turn))
    }

    /// Fails unless the guest may write now. `what` describes the write.
    pub(crate) fn may_write(&self, what: &'static str) -> Result<(), HostTrap> {
        match &self.phase {
            Phase::Hook => Ok(()),
            Phase::Message(message) if message.kind == MessageKind::Command => Ok(()),
            _ => Err(HostTrap::WriteInQuery(what)),
        }
    }
}

impl WasiView for InstanceData {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi().view()
    }
}

impl ResourceLimiter for InstanceData {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let would = self.memory.saturating_add(desired.saturating_sub(current));
        if would as u64 > self.limits.memory {
            self.memory_denied = true;
            return Ok(false);
        }
        self.memory = would;
        // The guest got the memory in the end, so a later failure has another cause.
        self.memory_denied = false;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_denied = true;
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let would = self.tables.saturating_add(desired.saturating_sub(current));
        if would > self.limits.table_elements {
            self.table_denied = true;
            return Ok(false);
        }
        self.tables = would;
        self.table_denied = false;
        Ok(true)
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.table_denied = true;
        Ok(())
    }

    // Not limited here: the survey checked these counts against the node's settings before compiling.
    fn instances(&self) -> usize {
        usize::MAX
    }

    fn tables(&self) -> usize {
        usize::MAX
    }

    fn memories(&self) -> usize {
        usize::MAX
    }
}
