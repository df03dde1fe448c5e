//! One entity's sandbox, and its turns.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::codes;
use wasmtime::Store;
use wasmtime::component::{ComponentNamedList, Func, Lift, Lower, TypedFunc};

use crate::channels::TurnChannels;
use crate::host_trap::{Stage, explain, guest, host, limit};
use crate::instance_data::{InstanceData, Phase};
use crate::journal::{JournalChange, TurnJournal};
use crate::message_export::{GuestError, MessageResult};
use crate::meter::{Meter, metered};
use crate::migration::MigrationResult;
use crate::program::Program;
use crate::shared::InstancePermit;
use crate::tells::TurnTells;
use crate::text::is_control;
use crate::timer_imports::{TimerResult, WitFiring};
use crate::timers::TurnTimers;
use crate::{
    Error, Failure, GuestTurnOutput, InstanceSpec, MessageContext, StartReason, StopReason,
    TimerFiring, TurnRecords, TurnResult, TurnValues,
};

/// Maximum length of an application error's code, in bytes.
const CODE_LIMIT: usize = 128;

/// One entity's sandbox, with its own store and memory. After a [`TurnResult::Failed`], or if the future of a turn was
/// dropped before it completed, every further call into the guest fails with `instance-dropped`: drop the instance and
/// create a new one.
pub struct Instance {
    // Declared before `permit`, so that its memory is freed first.
    store: Store<InstanceData>,
    start: Func,
    message: Func,
    stop: Option<Func>,
    timer: Option<Func>,
    migrate: Option<Func>,
    poisoned: bool,
    program: Arc<Program>,
    permit: InstancePermit,
}

/// Interrupts an instance from outside: the running turn ends with `interrupted`. If no turn is running, the next one
/// does.
#[derive(Clone)]
pub struct InterruptHandle(Arc<Meter>);

impl InterruptHandle {
    /// Interrupts the instance. A running guest stops at the next tick, a waiting one immediately.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl Program {
    /// Creates an entity's sandbox, with its own store and memory. On [`Error::InstanceLimit`], drop another instance
    /// and try again. The state is not loaded yet.
    pub async fn instantiate(self: &Arc<Self>, spec: InstanceSpec) -> Result<Instance, Error> {
        let permit = self.shared.acquire_permit()?;
        let (mut store, instance) =
            self.compiled.instantiate(&self.shared, &self.limits, spec).await?;
        let exports = &self.compiled.exports;
        let func = |store: &mut Store<InstanceData>, index| {
            instance.get_func(store, index).ok_or_else(lost_export)
        };
        let start = func(&mut store, exports.start)?;
        let message = func(&mut store, exports.message)?;
        let stop = exports.stop.map(|stop| func(&mut store, stop)).transpose()?;
        let timer = exports.timer.map(|timer| func(&mut store, timer)).transpose()?;
        let migrate =
            exports.migration.as_ref().map(|it| func(&mut store, it.migrate)).transpose()?;
        let program = self.clone();
        let poisoned = false;
        Ok(Instance { store, start, message, stop, timer, migrate, poisoned, program, permit })
    }
}

fn lost_export() -> Error {
    Error::WrongSignature("an export is not a function".into())
}

impl Instance {
    /// Returns the handle that interrupts this instance, from any thread.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle(self.store.data().meter.clone())
    }

    /// The program that this instance runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Runs the first turn. Its time, with that of the instantiation, counts towards the limit on activation.
    pub async fn start(&mut self, reason: StartReason) -> GuestTurnOutput {
        self.run_start(reason, Phase::Hook).await
    }

    /// Like [`Instance::start`], for an instance that runs only queries: a start hook that changes something traps.
    pub async fn start_for_queries(&mut self, reason: StartReason) -> GuestTurnOutput {
        self.run_start(reason, Phase::NoTurn).await
    }

    async fn run_start(&mut self, reason: StartReason, phase: Phase) -> GuestTurnOutput {
        self.begin(Stage::Start, phase);
        let called =
            self.call::<_, (Result<(), String>,)>(Stage::Start, self.start, (reason,)).await;
        let result = match called {
            Ok((Ok(()),)) => TurnResult::Ok(Bytes::new()),
            Ok((Err(why),)) => self
                .fail_and_log(guest(codes::START_FAILED, format!("the start hook failed: {why}"))),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Migrates the entity's state as one turn, within `limits.turn-time`. Used instead of [`Instance::start`]: the
    /// instance must be dropped afterwards.
    pub async fn migrate(&mut self, from_schema: u32) -> GuestTurnOutput {
        self.begin(Stage::Migrate, Phase::Hook);
        let Some(migrate) = self.migrate else {
            let text = "the component does not export `migration`";
            let result = self.fail_and_log(guest(codes::MIGRATION_REFUSED, text.into()));
            return self.finish(result);
        };
        let called =
            self.call::<_, (MigrationResult,)>(Stage::Migrate, migrate, (from_schema,)).await;
        let result = match called {
            Ok((Ok(()),)) => TurnResult::Ok(Bytes::new()),
            Ok((Err(why),)) => self.fail_and_log(guest(
                codes::MIGRATION_REFUSED,
                format!("migrate refused schema {from_schema}: {why}"),
            )),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Runs one message as one turn.
    pub async fn message(
        &mut self,
        context: impl Into<Box<MessageContext>>,
        method: &str,
        body: Bytes,
    ) -> GuestTurnOutput {
        let mut context = context.into();
        let records = context.records.take().map(|records| *records);
        self.begin_values(context.values, records.unwrap_or_default());
        self.store.data().log.set_traceparent(&context.traceparent);
        self.begin(Stage::Message, Phase::Message(context));
        let called = self
            .call::<_, (MessageResult,)>(Stage::Message, self.message, (method, &body[..]))
            .await;
        let result = match called {
            Ok((answer,)) => self.interpret_answer(Stage::Message, answer, method),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Runs the last turn, which is empty if the guest has no stop hook.
    pub async fn stop(
        &mut self,
        reason: StopReason,
        values: TurnValues,
        records: TurnRecords,
    ) -> GuestTurnOutput {
        self.begin_values(values, records);
        self.begin(Stage::Stop, Phase::Hook);
        let called = match self.stop {
            Some(stop) => self.call::<_, ()>(Stage::Stop, stop, (reason,)).await,
            None => Ok(()),
        };
        let result = match called {
            Ok(()) => TurnResult::Ok(Bytes::new()),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Runs a timer's firing as one turn. An application error discards what it wrote, as for a message.
    pub async fn timer(
        &mut self,
        firing: &TimerFiring,
        values: TurnValues,
        records: TurnRecords,
    ) -> GuestTurnOutput {
        self.begin_values(values, records);
        self.begin(Stage::Timer, Phase::Hook);
        let Some(timer) = self.timer else {
            let text = "a timer fired, but the component does not export `timer-handler`";
            let result = self.fail_and_log(guest(codes::NO_TIMER_HANDLER, text.into()));
            return self.finish(result);
        };
        let called =
            self.call::<_, (TimerResult,)>(Stage::Timer, timer, (WitFiring::from(firing),)).await;
        let result = match called {
            Ok((Ok(()),)) => TurnResult::Ok(Bytes::new()),
            Ok((Err(error),)) => {
                self.interpret_answer(Stage::Timer, Err(GuestError::Application(error)), "")
            }
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Sets the values and records of a turn. The start hook uses those of the instantiation instead.
    fn begin_values(&mut self, values: TurnValues, records: TurnRecords) {
        let entity = self.store.data_mut();
        entity.turn.begin(values);
        entity.variables.clear();
        entity.timers = TurnTimers::begin(records.timers);
        entity.tells = TurnTells::begin(records.outbox);
        entity.journal = TurnJournal::begin(records.journal);
        entity.channels = TurnChannels::begin(records.channels);
        entity.has_subscribers = records.has_subscribers;
        entity.remembered = records.remembered;
        entity.expires_at = records.expires_at;
        entity.asks.begin(records.asks);
        entity.calls.begin(records.calls);
        entity.places = 0;
    }

    fn begin(&mut self, stage: Stage, phase: Phase) {
        let entity = self.store.data_mut();
        if stage != Stage::Start {
            entity.meter.begin(entity.limits.turn_time);
        }
        entity.phase = phase;
        (entity.passivate, entity.passivate_after) = (false, None);
        entity.remember = None;
        entity.may_delete = matches!(stage, Stage::Message | Stage::Timer);
        (entity.delete, entity.expiry) = (false, None);
        entity.panic = None;
        entity.memory_denied = false;
        entity.table_denied = false;
        self.store.set_epoch_deadline(1);
    }

    async fn call<P, R>(&mut self, stage: Stage, func: Func, params: P) -> Result<R, Failure>
    where
        P: ComponentNamedList + Lower + Send + Sync,
        R: ComponentNamedList + Lift + Send + Sync + 'static,
    {
        if self.poisoned {
            // Not logged again: the failure that poisoned the instance has been logged.
            return Err(host(
                codes::INSTANCE_DROPPED,
                "the instance failed earlier and must be dropped".into(),
            ));
        }
        // Remains set if this future is dropped midway, since the state of the guest's memory is then unknown.
        self.poisoned = true;
        // SAFETY: `CompiledComponent::read_methods` has checked this export of the same component against these
        // types; only the lifetimes of the parameters differ.
        #[allow(
            unsafe_code,
            reason = "a TypedFunc of borrowed parameters cannot be kept, and checking types costs a tenth of a turn"
        )]
        let func: TypedFunc<P, R> = unsafe { TypedFunc::new_unchecked(func) };
        let meter = self.store.data().meter.clone();
        let sleepers = &self.permit.0.ticker.sleepers;
        let called = {
            let call = pin!(func.call_async(&mut self.store, params));
            metered(&meter, sleepers, call).await
        };
        match called {
            Ok(Ok(result)) => {
                self.poisoned = false;
                Ok(result)
            }
            Ok(Err(error)) => Err(explain(&error, stage, self.store.data_mut())),
            Err(fault) => {
                let failure = fault.to_failure(stage, self.program.limits());
                self.store.data().log_failure(&failure, None);
                Err(failure)
            }
        }
    }

    /// Converts a guest's answer into the result of the turn.
    fn interpret_answer(
        &mut self,
        stage: Stage,
        answer: MessageResult,
        method: &str,
    ) -> TurnResult {
        let most = self.program.limits().reply;
        let name = stage.name();
        let (code, message) = match answer {
            Ok(reply) if reply.len() as u64 <= most => return TurnResult::Ok(reply.into()),
            Ok(reply) => return self.too_large(stage, reply.len(), most),
            Err(GuestError::Application(error)) => (error.code, error.message),
            Err(GuestError::InvalidArguments(why)) => (codes::INVALID_ARGUMENTS.into(), why),
            Err(GuestError::UnknownMethod) => {
                (codes::UNKNOWN_METHOD.into(), format!("no method {method:?}"))
            }
        };
        if code.is_empty() || code.len() > CODE_LIMIT {
            let length = code.len();
            return self.fail_and_log(guest(
                codes::INVALID_ERROR_CODE,
                format!(
                    "{name} returned an error code of {length} bytes, must be 1 to {CODE_LIMIT}"
                ),
            ));
        }
        if code.chars().any(is_control) {
            let text = format!(
                "{name} returned the error code {code:?}, which contains a control character"
            );
            return self.fail_and_log(guest(codes::INVALID_ERROR_CODE, text));
        }
        if message.len() as u64 > most {
            return self.too_large(stage, message.len(), most);
        }
        TurnResult::Application { code, message }
    }

    fn too_large(&mut self, stage: Stage, bytes: usize, most: u64) -> TurnResult {
        let name = stage.name();
        self.fail_and_log(limit(
            codes::REPLY_TOO_LARGE,
            format!("{name} returned {bytes} bytes; the limit on replies is {most}"),
        ))
    }

    /// For failures caused by what the guest returned. A call that failed has already been logged.
    fn fail_and_log(&mut self, failure: Failure) -> TurnResult {
        self.store.data().log_failure(&failure, None);
        self.fail(failure)
    }

    fn fail(&mut self, failure: Failure) -> TurnResult {
        self.poisoned = true;
        TurnResult::Failed(failure)
    }

    fn finish(&mut self, result: TurnResult) -> GuestTurnOutput {
        let entity = self.store.data_mut();
        entity.phase = Phase::NoTurn;
        if let Some(wasi) = &entity.wasi {
            wasi.flush();
        }
        entity.log.clear_traceparent();
        entity.variables.clear();
        entity.asks.end();
        entity.calls.end();
        let (mut timers, mut tells) = (entity.timers.take_changes(), entity.tells.take());
        let mut journal = entity.journal.take_change();
        let mut emits = entity.channels.take();
        let mut remember = entity.remember.take();
        let expiry = entity.expiry.take().filter(|_| matches!(result, TurnResult::Ok(_)));
        let delete = std::mem::take(&mut entity.delete) && matches!(result, TurnResult::Ok(_));
        if !matches!(result, TurnResult::Ok(_)) {
            timers.clear();
            tells.clear();
            journal = JournalChange::default();
            emits.clear();
            remember = None;
        }
        let mut writes = Vec::new();
        let mut state_bytes = None;
        if let Some(state) = &mut entity.state {
            match result {
                TurnResult::Ok(_) => writes = state.accept(),
                _ => state.discard(),
            }
            state_bytes = Some(state.bytes());
        }
        let new_size = entity.take_new_size();
        GuestTurnOutput {
            result,
            writes,
            timers,
            tells,
            journal,
            emits,
            state_bytes,
            remember,
            expiry,
            delete,
            passivate: std::mem::take(&mut entity.passivate),
            passivate_after: entity.passivate_after.take(),
            new_size,
            guest_time: entity.meter.spent(),
            logs_dropped: entity.log.take_dropped(),
        }
    }
}
