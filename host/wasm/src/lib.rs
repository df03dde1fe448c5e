//! A narrow wrapper around wasmtime. It compiles components, caches the compiled code, creates a sandbox for each
//! entity, and runs one turn at a time in it, within limits.
//!
//! Three types are easy to confuse. A [`WasmRuntime`] belongs to the node and is created once. A [`Program`] is a
//! checked and compiled component with the limits of one deployment. An [`Instance`] is the sandbox of one entity,
//! with a store and a memory that no other entity ever sees.
//!
//! This crate decides nothing about ownership, order or durability: it returns what a turn wrote, and discards it if
//! the turn did not succeed. Whatever a guest does ends in a [`TurnResult`], and every failure has a stable code. No
//! guest can panic the host, or block the thread that runs it for longer than a tick: turns are futures that yield at
//! each tick, and any executor can poll them. The one exception is a bulk instruction such as `memory.fill`, which is
//! not interrupted in the middle.

mod address_policy;
mod ask_imports;
mod asks;
mod cache;
mod call_imports;
mod call_sink;
mod calls;
mod cancel;
mod channel_imports;
mod channels;
mod codegen;
mod compiler;
mod digest;
mod encode;
mod engine;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guest_build;
mod guest_text;
mod host_trap;
mod http_answers;
mod http_client;
mod http_hooks;
mod imports;
mod instance;
mod instance_data;
mod journal;
mod journal_imports;
mod log;
mod message_export;
mod meter;
mod method_schema;
mod migration;
mod program;
mod runtime;
mod schemas;
mod settings;
mod shared;
mod state;
mod subscription_imports;
mod survey;
mod tell_imports;
mod tells;
pub mod text;
mod ticker;
mod timer_imports;
mod timers;
mod trap;
mod turn;
mod turn_values;
mod variable_imports;
mod variables;
mod wasi;
mod world;

pub use address_policy::AddressRange;
pub use asks::{AskAnswer, AskReply, AskSink, GuestAsk};
pub use call_sink::{CallRelease, CallSink, GuestCall};
pub use channels::{ChannelNames, GuestEmit, ITEM_CHARGE};
pub use compiler::compiler_main;
pub use digest::ComponentDigest;
pub use encode::encode;
pub use engine::RuntimeStatus;
pub use error::{ComponentResource, Error};
pub use guest_build::{GUEST_PROFILE, GUEST_TARGET};
pub use http_answers::{HttpAnswer, HttpAnswers};
pub use instance::{Instance, InterruptHandle};
pub use journal::{EVENT_CHARGE, JournalChange, JournalUse, StoredEvent};
pub use log::TARGET as LOG_TARGET;
pub use method_schema::MethodSchema;
pub use migration::SchemaSupport;
pub use program::Program;
pub use runtime::WasmRuntime;
pub use settings::{
    Allocator, CompilerProgram, CompilerSettings, ComponentLimits, InstanceLimits,
    OutgoingHttpSettings, RuntimeSettings,
};
pub use tells::{GuestTell, OutboxUse};
pub use timers::{GuestTimer, TimerChange, TimerFiring, TimerSource};
pub use turn::{
    EntityIdentity, Failure, FailureKind, GuestTurnOutput, InstanceSpec, MessageContext,
    MessageKind, Method, NoState, StartReason, StateError, StateSource, StopReason, StoredSnapshot,
    TurnRecords, TurnResult,
};
pub use turn_values::TurnValues;
pub use variables::{TypeVariables, VariablesRegistry};
