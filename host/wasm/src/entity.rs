//! What an instance's store holds: the host's side of one entity.

use std::sync::Arc;

use wasmtime::ResourceLimiter;

use crate::fault::{Fault, Panic};
use crate::log::GuestLog;
use crate::meter::Meter;
use crate::state::State;
use crate::wasi::Wasi;
use crate::{Kind, Limits, MessageContext, StateSource};

/// What the guest is being called for, hence what it may do.
pub(crate) enum Phase {
    /// Between turns, in instantiation, or in `methods`: nothing may be changed.
    Still,
    /// Start or stop: a turn without a message.
    Hook,
    /// A message's turn.
    Message(Box<MessageContext>),
}

pub(crate) enum Durable {
    /// Not accessed yet (E16).
    Asleep(Box<dyn StateSource>),
    Awake(State),
}

pub(crate) struct Entity {
    pub(crate) limits: Arc<Limits>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) log: Arc<GuestLog>,
    pub(crate) durable: Durable,
    pub(crate) phase: Phase,
    pub(crate) passivate: bool,
    pub(crate) panic: Option<Panic>,
    pub(crate) memory_denied: bool,
    pub(crate) table_denied: bool,
    /// Made at the first use: guests without WASI pay nothing for it.
    pub(crate) wasi: Option<Box<Wasi>>,
    memory: usize,
    tables: usize,
}

impl Entity {
    pub(crate) fn new(
        limits: Arc<Limits>,
        meter: Arc<Meter>,
        log: Arc<GuestLog>,
        source: Box<dyn StateSource>,
    ) -> Entity {
        Entity {
            limits,
            meter,
            log,
            durable: Durable::Asleep(source),
            phase: Phase::Still,
            passivate: false,
            panic: None,
            memory_denied: false,
            table_denied: false,
            wasi: None,
            memory: 0,
            tables: 0,
        }
    }

    /// The state; none while it has not been loaded.
    pub(crate) fn state(&mut self) -> Option<&mut State> {
        match &mut self.durable {
            Durable::Asleep(_) => None,
            Durable::Awake(state) => Some(state),
        }
    }

    /// Whether `what` may happen now.
    pub(crate) fn may_write(&self, what: &'static str) -> Result<(), Fault> {
        match &self.phase {
            Phase::Hook => Ok(()),
            Phase::Message(message) if message.kind == Kind::Command => Ok(()),
            _ => Err(Fault::QueryWrote(what)),
        }
    }
}

impl ResourceLimiter for Entity {
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
        // It has found a way: what fails later, fails for another reason.
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

    // These were counted before the component was compiled, within the node's settings.
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
