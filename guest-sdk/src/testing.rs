//! Plain unit tests of entities, without a sandbox.
//!
//! Each thread has one entity, with an in-memory store, an identity and a log. `cargo test` runs every test on a
//! thread of its own, so tests do not affect each other; [`reset`] starts over within a test. [`call`] uses the same
//! dispatch as a component, including its rollback: after an application error or a panic, nothing of the turn
//! remains.
//!
//! Available in native builds only; a component does not contain this module.

use std::any::TypeId;

use serde::Serialize;
use serde_json::Value;

pub use crate::raw::MessageError;

use crate::context::{MessageContext, MessageKind};
use crate::entity::{Entity, Runner};
use crate::host::native::{self, with};
use crate::log::Level;
use crate::raw::{StartReason, StopReason};

/// Starts over with a fresh entity: no state, no instance, no log, the identity `test/test`, the principal `test`.
pub fn reset() {
    native::reset();
}

/// Sets the entity's type and id.
pub fn set_identity(entity_type: &str, id: &str) {
    with(|world| {
        world.identity.entity_type = entity_type.to_owned();
        world.identity.id = id.to_owned();
    });
}

/// Sets the sender of the messages that follow.
pub fn set_principal(principal: &str) {
    with(|world| world.principal = principal.to_owned());
}

/// Sets the time of the turns that follow, in milliseconds since 1970-01-01 00:00 UTC. A test begins at
/// 1,000,000,000,000 (September 2001), and time passes only by this function.
pub fn set_time(unix_ms: u64) {
    with(|world| world.now = unix_ms);
}

/// Seeds the random numbers of the turns that follow. Without it every test draws the same ones.
pub fn set_random_seed(seed: u64) {
    with(|world| world.random = seed);
}

/// Removes and returns the lines logged so far, in order.
pub fn take_logs() -> Vec<(Level, String)> {
    with(|world| std::mem::take(&mut world.logs))
}

/// Sends a message as one turn. Starts an instance if there is none, and stops it if the turn asked for passivation.
///
/// # Errors
/// The refusal that the caller of a deployed entity would get.
///
/// # Panics
/// If the entity panics, its start hook fails, JSON cannot express `body`, or the reply is not JSON.
pub fn call<E: Entity>(method: &str, body: impl Serialize) -> Result<Value, MessageError> {
    let body = match serde_json::to_vec(&body) {
        Ok(body) => body,
        Err(error) => panic!("JSON cannot express the body: {error}"),
    };
    let reply = call_raw::<E>(method, &body)?;
    match serde_json::from_slice(&reply) {
        Ok(reply) => Ok(reply),
        Err(error) => panic!("the reply is not JSON: {error}"),
    }
}

/// Like [`call`], with bytes.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// If the entity panics or its start hook fails.
pub fn call_raw<E: Entity>(method: &str, body: &[u8]) -> Result<Vec<u8>, MessageError> {
    let mut instance = take::<E>().unwrap_or_else(start::<E>);
    let kind = E::METHODS
        .iter()
        .find(|row| row.name == method)
        .map_or(MessageKind::Command, |row| row.kind);
    let message = with(|world| {
        world.sequence += 1;
        MessageContext {
            session: "0".repeat(32),
            sequence: world.sequence,
            kind,
            principal: world.principal.clone(),
            content_type: "application/json".to_owned(),
            traceparent: String::new(),
            tracestate: String::new(),
            remaining_ms: None,
            version: world.version,
        }
    });
    let outcome = turn(Some(message), || instance.message(method, body));
    if kind == MessageKind::Command {
        with(|world| world.version += 1);
    }
    with(|world| world.instances.insert(TypeId::of::<E>(), Box::new(instance)));
    if with(|world| std::mem::take(&mut world.passivate)) {
        stop::<E>(StopReason::Passivated);
    }
    outcome
}

/// Stops the instance gracefully, with its stop hook. The next message starts a new one from the stored state.
pub fn stop<E: Entity>(reason: StopReason) {
    if let Some(mut instance) = take::<E>() {
        let outcome: Result<(), ()> = turn(None, || {
            instance.stop(reason);
            Ok(())
        });
        debug_assert!(outcome.is_ok(), "a stop hook has no error");
    }
}

/// Drops the instance without its stop hook, as a trap would. The next message starts a new one from the stored
/// state.
pub fn crash_instance<E: Entity>() {
    drop(take::<E>());
}

/// Whether the entity has a live instance.
pub fn has_live_instance<E: Entity>() -> bool {
    with(|world| world.instances.contains_key(&TypeId::of::<E>()))
}

fn take<E: Entity>() -> Option<Runner<E>> {
    let instance = with(|world| world.instances.remove(&TypeId::of::<E>()))?;
    instance.downcast().ok().map(|instance| *instance)
}

fn start<E: Entity>() -> Runner<E> {
    let mut instance = Runner::new();
    let reason = match with(|world| world.version) {
        0 => StartReason::FirstMessage,
        _ => StartReason::Message,
    };
    if let Err(why) = turn(None, || instance.start(reason)) {
        panic!("the start hook failed: {why}");
    }
    instance
}

/// Runs a turn, and undoes its writes if it fails or panics.
fn turn<T, E>(message: Option<MessageContext>, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    struct Undo {
        store: Option<std::collections::BTreeMap<String, Vec<u8>>>,
    }

    impl Drop for Undo {
        fn drop(&mut self) {
            with(|world| {
                world.message = None;
                if let Some(store) = self.store.take() {
                    world.store = store;
                }
            });
        }
    }

    let mut undo = Undo { store: Some(with(|world| world.store.clone())) };
    with(|world| world.message = message);
    let outcome = run();
    if outcome.is_ok() {
        undo.store = None;
    }
    outcome
}
