//! One entity's sandbox, and its turns.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::Store;
use wasmtime::component::{ComponentNamedList, ComponentType, Func, Lift, Lower, TypedFunc};

use crate::host_trap::{Stage, explain, guest, host, limit};
use crate::instance_data::{InstanceData, Phase};
use crate::meter::{Meter, metered};
use crate::runtime::InstancePermit;
use crate::text::is_control;
use crate::{
    Failure, GuestTurnOutput, MessageContext, Program, StartReason, StopReason, TurnResult,
};

/// Bytes of an application error's code.
const CODE_LIMIT: usize = 128;

/// How a guest's `message` refuses.
#[derive(ComponentType, Lift)]
#[component(variant)]
pub(crate) enum GuestError {
    #[component(name = "application")]
    Application(ApplicationError),
    #[component(name = "invalid-arguments")]
    InvalidArguments(String),
    #[component(name = "unknown-method")]
    UnknownMethod,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct ApplicationError {
    code: String,
    message: String,
}

/// What `message` answers.
type MessageResult = Result<Vec<u8>, GuestError>;
/// The type of the export `message`.
pub(crate) type MessageFunc<'a> = TypedFunc<(&'a str, &'a [u8]), (MessageResult,)>;

/// A store and a memory of one entity's own. After a [`TurnResult::Failed`], or when a turn's future was dropped before
/// its end, every further turn fails with `instance-dropped`: drop it and make a new one.
pub struct Instance {
    // Before `place`: the memory is given back first.
    store: Store<InstanceData>,
    start: Func,
    message: Func,
    stop: Option<Func>,
    poisoned: bool,
    program: Arc<Program>,
    permit: InstancePermit,
}

/// Stops an instance from outside: the running turn ends at once with `interrupted`, and so does any later one.
#[derive(Clone)]
pub struct InterruptHandle(Arc<Meter>);

impl InterruptHandle {
    /// Stops it. A guest that runs is stopped at the next tick, one that waits at once.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl Instance {
    pub(crate) fn new(
        store: Store<InstanceData>,
        start: Func,
        message: Func,
        stop: Option<Func>,
        program: Arc<Program>,
        place: InstancePermit,
    ) -> Instance {
        Instance { store, start, message, stop, poisoned: false, program, permit: place }
    }

    /// The switch that stops it; may be used from any thread.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle(self.store.data().meter.clone())
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The first turn. Its time is counted on from instantiation, to the limit on activation.
    pub async fn start(&mut self, reason: StartReason) -> GuestTurnOutput {
        self.begin(Stage::Start, Phase::Hook);
        let called =
            self.call::<_, (Result<(), String>,)>(Stage::Start, self.start, (reason,)).await;
        let result = match called {
            Ok((Ok(()),)) => TurnResult::Ok(Bytes::new()),
            Ok((Err(why),)) => {
                self.fail_and_log(guest("start-failed", format!("start refused: {why}")))
            }
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// Runs one message as one turn.
    pub async fn message(
        &mut self,
        context: MessageContext,
        method: &str,
        body: Bytes,
    ) -> GuestTurnOutput {
        self.begin(Stage::Message, Phase::Message(Box::new(context)));
        let called = self
            .call::<_, (MessageResult,)>(Stage::Message, self.message, (method, &body[..]))
            .await;
        let result = match called {
            Ok((answer,)) => self.interpret_answer(answer, method),
            Err(failure) => self.fail(failure),
        };
        self.finish(result)
    }

    /// The last turn. A guest without the hook has an empty one.
    pub async fn stop(&mut self, reason: StopReason) -> GuestTurnOutput {
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

    fn begin(&mut self, stage: Stage, phase: Phase) {
        let entity = self.store.data_mut();
        if stage != Stage::Start {
            entity.meter.begin(entity.limits.turn_time);
        }
        entity.phase = phase;
        entity.passivate = false;
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
            // No news: what poisoned it has been logged.
            return Err(host(
                "instance-dropped",
                "the instance failed before and must be dropped".into(),
            ));
        }
        // Stands if this future is dropped half-way: the guest's memory is then in no known state.
        self.poisoned = true;
        // SAFETY: `Compiled::read_methods` has checked this export of this very component against these types; only
        // lifetimes of the parameters differ.
        #[allow(
            unsafe_code,
            reason = "a TypedFunc of borrowed parameters cannot be kept, and checking types costs a tenth of a turn"
        )]
        let func: TypedFunc<P, R> = unsafe { TypedFunc::new_unchecked(func) };
        let meter = self.store.data().meter.clone();
        let sleepers = &self.permit.0.ticker.sleepers;
        match metered(&meter, sleepers, func.call_async(&mut self.store, params)).await {
            Ok(Ok(result)) => {
                self.poisoned = false;
                Ok(result)
            }
            Ok(Err(error)) => Err(explain(&error, stage, self.store.data_mut())),
            Err(fault) => {
                let failure = fault.to_failure(stage, self.program.limits());
                self.store.data().log.failed(&failure, None);
                Err(failure)
            }
        }
    }

    /// What a guest's answer means.
    fn interpret_answer(&mut self, answer: MessageResult, method: &str) -> TurnResult {
        let most = self.program.limits().reply;
        let (code, message) = match answer {
            Ok(reply) if reply.len() as u64 <= most => return TurnResult::Ok(reply.into()),
            Ok(reply) => return self.too_large(reply.len(), most),
            Err(GuestError::Application(error)) => (error.code, error.message),
            Err(GuestError::InvalidArguments(why)) => ("invalid-arguments".into(), why),
            Err(GuestError::UnknownMethod) => {
                ("unknown-method".into(), format!("there is no method {method:?}"))
            }
        };
        if code.is_empty() || code.len() > CODE_LIMIT {
            let length = code.len();
            return self.fail_and_log(guest(
                "invalid-error-code",
                format!("message returned an error code of {length} bytes, not 1 to {CODE_LIMIT}"),
            ));
        }
        if code.chars().any(is_control) {
            let text =
                format!("message returned the error code {code:?}: it has a control character");
            return self.fail(guest("invalid-error-code", text));
        }
        if message.len() as u64 > most {
            return self.too_large(message.len(), most);
        }
        TurnResult::Application { code, message }
    }

    fn too_large(&mut self, bytes: usize, most: u64) -> TurnResult {
        self.fail_and_log(limit(
            "reply-too-large",
            format!("message returned {bytes} bytes, more than the limit on replies, {most}"),
        ))
    }

    /// For what the guest returned; a call that failed has been logged.
    fn fail_and_log(&mut self, failure: Failure) -> TurnResult {
        self.store.data().log.failed(&failure, None);
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
        let mut writes = Vec::new();
        let mut state_bytes = None;
        if let Some(state) = entity.loaded_state() {
            match result {
                TurnResult::Ok(_) => writes = state.accept(),
                _ => state.discard(),
            }
            state_bytes = Some(state.bytes());
        }
        GuestTurnOutput {
            result,
            writes,
            state_bytes,
            passivate: std::mem::take(&mut entity.passivate),
            guest_time: entity.meter.spent(),
            logs_dropped: entity.log.take_dropped(),
        }
    }
}
