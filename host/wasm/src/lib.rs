//! A narrow wrapper round wasmtime: compiles components, keeps what it compiled, makes an entity's sandbox of it, and runs
//! one turn at a time in it, within limits.
//!
//! Three types are easy to confuse. A [`Host`] is the node's, made once. A [`Program`] is a component that has been checked
//! and compiled, with the limits of one deployment. An [`Instance`] is one entity: it has a store and a memory of its own,
//! which no other entity ever sees.
//!
//! This crate decides nothing about ownership, order or durability: it gives back what a turn wrote, and forgets it if the
//! turn did not succeed. Whatever a guest does ends in a [`TurnResult`] with a stable code. No guest can panic or block the
//! thread that runs it for longer than a tick: turns are futures that yield at each tick, and can be polled by any executor.

mod cache;
mod cancel;
mod codegen;
mod compiler;
mod encode;
mod engine;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod host_trap;
mod imports;
mod instance;
mod instance_data;
mod log;
mod meter;
mod program;
mod runtime;
mod settings;
mod state;
mod survey;
pub mod text;
mod ticker;
mod turn;
mod wasi;
mod world;

pub use compiler::compiler_main;
pub use encode::encode;
pub use engine::RuntimeStatus;
pub use error::{ComponentResource, Error, StateError};
pub use instance::{Instance, InterruptHandle};
pub use log::TARGET as LOG_TARGET;
pub use program::Program;
pub use runtime::{ComponentDigest, WasmRuntime};
pub use settings::{
    Allocator, CompilerProgram, CompilerSettings, ComponentLimits, InstanceLimits, RuntimeSettings,
};
pub use turn::{
    EntityIdentity, Failure, FailureKind, GuestTurnOutput, InstanceSpec, MessageContext,
    MessageKind, Method, NoState, StartReason, StateSource, StopReason, TurnResult,
};
