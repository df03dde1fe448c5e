//! Converts errors from wasmtime into a [`Failure`] with a stable code.

use ostraca_codes::{Code, codes};
use wasmtime::component::ResourceTableError;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi_http::FieldMapError;

use crate::instance_data::InstanceData;
use crate::text::sanitized;
use crate::trap::{HostTrap, Panic};
use crate::wasi::{FIELDS, RESOURCES};
use crate::world::METHODS_BYTES;
use crate::{Failure, FailureKind, InstanceLimits};

impl Panic {
    /// A panic has its own code if the SDK put that code at the start of its message. Such a panic means that the
    /// entity's state and its program do not fit together.
    fn code(&self) -> Code {
        let named = self.message.split_once(": ").map(|(code, _)| code);
        let of_the_sdk = [codes::STATE_DOES_NOT_DECODE, codes::STATE_DOES_NOT_ENCODE];
        of_the_sdk.into_iter().find(|code| named == Some(code)).unwrap_or(codes::PANICKED)
    }
}

/// Creates every failure: the text may come from a guest and goes to the log and to the caller, so it is sanitized.
fn failure(code: Code, kind: FailureKind, message: String) -> Failure {
    debug_assert!(code.refuses(kind == FailureKind::Host), "{code}");
    Failure { code, message: sanitized(message), kind }
}

pub(crate) fn limit(code: Code, message: String) -> Failure {
    failure(code, FailureKind::Limit, message)
}

pub(crate) fn guest(code: Code, message: String) -> Failure {
    failure(code, FailureKind::Guest, message)
}

pub(crate) fn host(code: Code, message: String) -> Failure {
    failure(code, FailureKind::Host, message)
}

/// Where in an instance's lifecycle a call failed. Names the export, and determines which time limit applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Instantiate,
    Methods,
    Schemas,
    Migrate,
    Start,
    Message,
    Timer,
    Stop,
}

impl Stage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Instantiate => "instantiation",
            Stage::Methods => "methods",
            Stage::Schemas => "migration",
            Stage::Migrate => "migrate",
            Stage::Start => "start",
            Stage::Message => "message",
            Stage::Timer => "timer",
            Stage::Stop => "stop",
        }
    }
}

impl HostTrap {
    pub(crate) fn to_failure(&self, stage: Stage, limits: &InstanceLimits) -> Failure {
        let message = format!("{self} (in {})", stage.name());
        match self {
            HostTrap::Interrupted => host(codes::INTERRUPTED, message),
            HostTrap::StateUnavailable(_) => host(codes::STATE_UNAVAILABLE, message),
            HostTrap::WriteInQuery(_) => guest(codes::WRITE_IN_QUERY, message),
            HostTrap::InvalidHostCall(_) => guest(codes::INVALID_HOST_CALL, message),
            HostTrap::StateTooLarge { .. } => limit(codes::STATE_TOO_LARGE, message),
            HostTrap::TooManyTimers { .. } => limit(codes::TOO_MANY_TIMERS, message),
            HostTrap::TimersTooLarge { .. } => limit(codes::TIMERS_TOO_LARGE, message),
            HostTrap::TimerIntervalTooShort { .. } => {
                limit(codes::TIMER_INTERVAL_TOO_SHORT, message)
            }
            HostTrap::OutboxFull { .. } => limit(codes::OUTBOX_FULL, message),
            HostTrap::OutboxTooLarge { .. } => limit(codes::OUTBOX_TOO_LARGE, message),
            HostTrap::JournalTooLarge { .. } => limit(codes::JOURNAL_TOO_LARGE, message),
            HostTrap::ItemTooLarge { .. } => limit(codes::ITEM_TOO_LARGE, message),
            HostTrap::TooManyChannels { .. } => limit(codes::TOO_MANY_CHANNELS, message),
            HostTrap::TellNotGranted(_) => guest(codes::TELL_NOT_GRANTED, message),
            HostTrap::AskNotGranted(_) => guest(codes::ASK_NOT_GRANTED, message),
            HostTrap::AskOutsideTurn => guest(codes::ASK_OUTSIDE_TURN, message),
            HostTrap::TooManyAsks { .. } => limit(codes::TOO_MANY_ASKS, message),
            HostTrap::AsksTooLarge { .. } => limit(codes::ASKS_TOO_LARGE, message),
            HostTrap::HttpNotGranted(_) => guest(codes::HTTP_NOT_GRANTED, message),
            HostTrap::SecretNotGranted(_) => guest(codes::SECRET_NOT_GRANTED, message),
            HostTrap::SettingNotGranted(_) => guest(codes::SETTING_NOT_GRANTED, message),
            HostTrap::VariableUnavailable { .. } => host(codes::VARIABLE_UNAVAILABLE, message),
            HostTrap::HttpInQuery => guest(codes::HTTP_IN_QUERY, message),
            HostTrap::HttpOutsideTurn => guest(codes::HTTP_OUTSIDE_TURN, message),
            HostTrap::TooManyCalls { .. } => limit(codes::TOO_MANY_HTTP_CALLS, message),
            HostTrap::CallsTooLarge { .. } => limit(codes::HTTP_TOO_LARGE, message),
            HostTrap::NoTimerHandler => guest(codes::NO_TIMER_HANDLER, message),
            HostTrap::TooManyKeys { .. } => limit(codes::TOO_MANY_KEYS, message),
            HostTrap::TurnTooLarge { .. } => limit(codes::TURN_TOO_LARGE, message),
            HostTrap::TimeLimitExceeded => match stage {
                Stage::Migrate | Stage::Message | Stage::Timer | Stage::Stop => {
                    let most = limits.turn_time.as_millis();
                    limit(
                        codes::TURN_TIME_LIMIT,
                        format!(
                            "{} spent more than limits.turn-time ({most} ms) in the guest",
                            stage.name()
                        ),
                    )
                }
                _ => {
                    let most = limits.activation_time.as_millis();
                    limit(
                        codes::ACTIVATION_TIME_LIMIT,
                        format!(
                            "{} spent more than limits.activation-time ({most} ms) in the guest",
                            stage.name()
                        ),
                    )
                }
            },
        }
    }
}

/// Whether the guest passed more than [`InstanceLimits::hostcall_fuel`]. wasmtime has no public type for this error.
fn copies_too_much(error: &wasmtime::Error) -> bool {
    error.root_cause().to_string().contains("fuel allocated for hostcalls")
}

/// Whether the guest itself aborted, as allocators do when they are denied memory. Any other trap has another cause.
fn aborted(error: &wasmtime::Error, stage: Stage) -> bool {
    match error.downcast_ref::<Trap>() {
        Some(trap) => *trap == Trap::UnreachableCodeReached,
        // Not a trap: the initial size of a memory or table is too large.
        None => stage == Stage::Instantiate,
    }
}

/// Returns a hint at a possible cause of a failure, for failures whose cause is not certain.
fn denied(entity: &InstanceData) -> String {
    match (entity.memory_denied, entity.table_denied) {
        (true, _) => {
            format!("; before that it was denied memory beyond {} bytes", entity.limits.memory)
        }
        (_, true) => {
            format!(
                "; before that it was denied table elements beyond {}",
                entity.limits.table_elements
            )
        }
        _ => String::new(),
    }
}

/// Converts `error` into a failure. Takes the guest's panic, and logs the backtrace, which callers do not get.
pub(crate) fn explain(error: &wasmtime::Error, stage: Stage, entity: &mut InstanceData) -> Failure {
    let limits = entity.limits.clone();
    let backtrace = error.downcast_ref::<WasmBacktrace>().map(ToString::to_string);
    let failure = if let Some(fault) = error.downcast_ref::<HostTrap>() {
        fault.to_failure(stage, &limits)
    } else if let Some(panic) = entity.panic.take() {
        let code = panic.code();
        let Panic { message, file, line } = panic;
        guest(
            code,
            format!("{} panicked at {file}:{line}: {message}{}", stage.name(), denied(entity)),
        )
    } else if entity.memory_denied && aborted(error, stage) {
        limit(
            codes::MEMORY_LIMIT,
            format!("{} needed more than limits.memory ({} bytes)", stage.name(), limits.memory),
        )
    } else if entity.table_denied && aborted(error, stage) {
        limit(
            codes::TABLE_LIMIT,
            format!(
                "{} needed more than limits.table-elements ({})",
                stage.name(),
                limits.table_elements
            ),
        )
    } else if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
        limit(
            codes::HANDLE_LIMIT,
            format!("{} holds more than {RESOURCES} WASI handles", stage.name()),
        )
    } else if let Some(why @ (FieldMapError::TotalSizeTooBig | FieldMapError::TooManyFields)) =
        error.downcast_ref::<FieldMapError>()
    {
        let stage = stage.name();
        limit(
            codes::HTTP_TOO_LARGE,
            format!("{stage} created headers beyond {FIELDS} bytes: {why}"),
        )
    } else if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        guest(codes::TRAP, format!("{} called exit with {}", stage.name(), exit.0))
    } else {
        match error.downcast_ref::<Trap>() {
            Some(Trap::StackOverflow) => {
                limit(codes::STACK_OVERFLOW, format!("{} overflowed the stack", stage.name()))
            }
            Some(trap) => {
                guest(codes::TRAP, format!("{} trapped: {trap}{}", stage.name(), denied(entity)))
            }
            None if copies_too_much(error) => {
                let (most, of) = match stage {
                    Stage::Methods => (METHODS_BYTES, "names and summaries of methods"),
                    _ => (
                        limits.hostcall_fuel(),
                        "the largest of state, turn-bytes, reply, outbox-bytes and ask-bytes",
                    ),
                };
                let stage = stage.name();
                let text = format!(
                    "{stage} passed more than {most} bytes in one call, the limit for {of}"
                );
                limit(codes::VALUE_TOO_LARGE, text)
            }
            None => guest(
                codes::INVALID_GUEST_VALUE,
                format!(
                    "{} passed a value that does not fit its type: {}",
                    stage.name(),
                    error.root_cause()
                ),
            ),
        }
    };
    entity.log_failure(&failure, backtrace.as_deref());
    failure
}
