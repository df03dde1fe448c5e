//! Support for plain unit tests of entities, without a sandbox.
//!
//! Each thread has one entity, with an in-memory store, an identity and a log. `cargo test` runs every test on
//! its own thread, so tests do not affect each other; [`reset`] starts over within a test. [`call`] uses the same
//! dispatch as a component, including its rollback: after an application error or a panic, none of the turn's changes
//! remain.
//!
//! Available in native builds only; a component does not contain this module.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

pub use crate::raw::{MessageError, MethodSchema};

use crate::ask_error::AskError;
use crate::context::{MessageContext, MessageKind};
use crate::entity::{Entity as EntityType, Runner};
use crate::host::native::{self, Journal, with};
use crate::http::{HttpError, Request, Response};
use crate::log::Level;
use crate::messaging::Entity;
use crate::raw::{Firing, StartReason, StopReason};
use crate::types::{StoredTell, StoredTimer};

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
/// 1,000,000,000,000 (September 2001), and time passes only through this function and [`advance_time`].
pub fn set_time(unix_ms: u64) {
    with(|world| world.now = unix_ms);
}

/// Sets a secret of the entity's type; see [`variables`](crate::variables).
pub fn set_secret(name: &str, text: &str) {
    with(|world| drop(world.secrets.insert(name.to_owned(), text.to_owned())));
}

/// Sets a setting of the entity's type; see [`variables`](crate::variables).
pub fn set_setting(name: &str, text: &str) {
    with(|world| drop(world.settings.insert(name.to_owned(), text.to_owned())));
}

/// Lets time pass for the turns that follow. Timers that become due are fired by [`fire_timers`].
pub fn advance_time(by: Duration) {
    let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    with(|world| world.now = world.now.saturating_add(by));
}

/// Fires the timers that are due now, and those that become due as a result, in the order of their due times and each
/// as one turn. Returns the number of firings. Starts an instance if there is none.
///
/// # Panics
/// If the entity panics, if a firing is refused, or if more than 10,000 timers fire, since handlers then set timers
/// endlessly.
pub fn fire_timers<E: EntityType>() -> usize {
    let mut count = 0;
    expire::<E>();
    while let Some(firing) = next_firing() {
        count += 1;
        if count > 10_000 {
            panic!(
                "more than 10,000 timers fired: does a handler set a timer that is due at once?"
            );
        }
        if let Err((code, message)) = fire::<E>(&firing) {
            panic!("the timer `{}` was refused: {code}: {message}", firing.name);
        }
    }
    count
}

/// Fires the timer that has been due longest, as one turn. Returns `None` if none is due. After a refusal the timer is
/// kept, and the failed attempt is counted.
///
/// # Errors
/// Returns the code and message with which the handler refused the firing.
pub fn fire_next_timer<E: EntityType>() -> Option<Result<(), (String, String)>> {
    expire::<E>();
    next_firing().map(|firing| fire::<E>(&firing))
}

fn next_firing() -> Option<Firing> {
    with(|world| {
        let due = world.timers.values().filter(|timer| timer.due <= world.now);
        let timer = due.min_by_key(|timer| timer.due)?;
        let late = world.now - timer.due;
        Some(Firing {
            name: timer.name.clone(),
            payload: timer.payload.clone(),
            due: timer.due,
            missed: timer.interval.map_or(0, |interval| late / interval),
            attempt: timer.attempts + 1,
        })
    })
}

fn fire<E: EntityType>(firing: &Firing) -> Result<(), (String, String)> {
    let mut instance = take::<E>().unwrap_or_else(start::<E>);
    with(|world| world.may_delete = true);
    let outcome = turn(None, || {
        with(|world| {
            let Some(timer) = world.timers.get_mut(&firing.name) else { return };
            match timer.interval {
                Some(interval) => {
                    timer.due += interval * (firing.missed + 1);
                    (timer.attempts, timer.failure) = (0, None);
                }
                None => drop(world.timers.remove(&firing.name)),
            }
        });
        instance.timer(firing)
    });
    with(|world| {
        world.version += 1;
        if let Err((code, message)) = &outcome
            && let Some(timer) = world.timers.get_mut(&firing.name)
        {
            timer.attempts = firing.attempt;
            timer.failure = Some(format!("{code}: {message}"));
        }
        world.deleted = false;
    });
    if !with(|world| world.delete_if_asked()) {
        with(|world| world.instances.insert(TypeId::of::<E>(), Box::new(instance)));
    }
    outcome
}

/// A message that the entity sent to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentTell {
    /// The target.
    pub to: Entity,
    /// The method.
    pub method: String,
    /// The arguments.
    pub body: Vec<u8>,
    /// The body's content type.
    pub content_type: String,
}

impl SentTell {
    /// The arguments as JSON.
    ///
    /// # Panics
    /// If the body is not JSON.
    #[must_use]
    pub fn arguments(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(arguments) => arguments,
            Err(error) => panic!("the body of `{}` is not JSON: {error}", self.method),
        }
    }
}

/// Sets the function that answers this thread's asks from now on. Without one, an ask panics.
pub fn answer_asks(answer: impl Fn(&SentTell) -> Result<Vec<u8>, AskError> + 'static) {
    with(|world| world.answers = Some(Rc::new(move |ask| answer(&sent(ask.clone())))));
}

/// Encodes a result as JSON, for use in [`answer_asks`].
///
/// # Panics
/// If JSON cannot express the result.
pub fn json_answer(result: impl Serialize) -> Vec<u8> {
    match serde_json::to_vec(&result) {
        Ok(result) => result,
        Err(error) => panic!("JSON cannot express the answer: {error}"),
    }
}

/// Removes and returns the asks sent so far, in order. This includes those of failed turns: their effects remain.
pub fn take_asks() -> Vec<SentTell> {
    with(|world| std::mem::take(&mut world.asks)).into_iter().map(sent).collect()
}

/// Sets the function that answers this thread's HTTP calls from now on. Without one, a call panics.
pub fn answer_http(answer: impl Fn(&Request) -> Result<Response, HttpError> + 'static) {
    with(|world| {
        world.responses = Some(Rc::new(move |request| {
            answer(&Request(request.clone())).map(|response| response.0)
        }));
    });
}

/// Removes and returns the requests of the HTTP calls made so far, in order. This includes those of failed turns.
pub fn take_http_requests() -> Vec<Request> {
    with(|world| std::mem::take(&mut world.calls)).into_iter().map(Request).collect()
}

fn sent(tell: StoredTell) -> SentTell {
    SentTell {
        to: Entity::new(tell.entity_type, tell.id),
        method: tell.method,
        body: tell.body,
        content_type: tell.content_type,
    }
}

/// Removes and returns the tells sent so far, in order. A failed turn sends none. Delayed tells that are due by now
/// come after all others.
pub fn take_tells() -> Vec<SentTell> {
    with(|world| {
        let now = world.now;
        let mut due: Vec<_> = world.delayed.extract_if(.., |_, (due, _)| *due <= now).collect();
        due.sort_by_key(|(_, (due, _))| *due);
        world.tells.extend(due.into_iter().map(|(_, (_, tell))| tell));
        std::mem::take(&mut world.tells).into_iter().map(sent).collect()
    })
}

/// Seeds the random numbers of the turns that follow. Without a seed, every test draws the same numbers.
pub fn set_random_seed(seed: u64) {
    with(|world| world.random = seed);
}

/// Removes and returns the lines logged so far, in order.
pub fn take_logs() -> Vec<(Level, String)> {
    with(|world| std::mem::take(&mut world.logs))
}

/// The JSON Schemas that the entity's component exports.
#[must_use]
pub fn schemas<E: EntityType>() -> Vec<MethodSchema> {
    crate::schema::schemas::<E>()
}

/// Sends a message as one turn. Starts an instance if there is none, and stops it if the turn asked for passivation.
///
/// # Errors
/// Returns the refusal that the caller of a deployed entity would get.
///
/// # Panics
/// If the entity panics, its start hook fails, JSON cannot express `body`, or the reply is not JSON.
pub fn call<E: EntityType>(method: &str, body: impl Serialize) -> Result<Value, MessageError> {
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

/// Like [`call`], but takes and returns bytes.
///
/// # Errors
/// Like [`call`].
///
/// # Panics
/// If the entity panics or its start hook fails.
pub fn call_raw<E: EntityType>(method: &str, body: &[u8]) -> Result<Vec<u8>, MessageError> {
    call_body::<E>(method, body, "application/json")
}

/// Like [`call_raw`], but also takes the body's content type.
///
/// # Errors
/// Like [`call`].
///
/// # Panics
/// If the entity panics or its start hook fails.
pub fn call_body<E: EntityType>(
    method: &str,
    body: &[u8],
    content_type: &str,
) -> Result<Vec<u8>, MessageError> {
    expire::<E>();
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
            content_type: content_type.to_owned(),
            traceparent: String::new(),
            tracestate: String::new(),
            remaining_ms: None,
            version: world.version,
        }
    });
    with(|world| world.may_delete = true);
    let outcome = turn(Some(message), || instance.message(method, body));
    if kind == MessageKind::Command {
        with(|world| (world.version, world.deleted) = (world.version + 1, false));
    }
    if with(|world| world.delete_if_asked()) {
        return outcome;
    }
    with(|world| world.instances.insert(TypeId::of::<E>(), Box::new(instance)));
    if with(|world| std::mem::take(&mut world.passivate)) {
        stop::<E>(StopReason::Passivated);
    }
    outcome
}

/// Drops the instance, and migrates the stored state from another schema, as one turn. The next message starts a new
/// instance from the migrated state. Set the old state with [`state::set`](crate::state::set) under the key
/// [`WHOLE_STATE_KEY`](crate::entity::WHOLE_STATE_KEY).
///
/// # Errors
/// Returns why the state cannot be migrated. Nothing is changed then.
///
/// # Panics
/// If the migration panics.
pub fn migrate<E: EntityType>(from_schema: u32) -> Result<(), String> {
    crash_instance::<E>();
    turn(None, || Runner::<E>::migrate(from_schema))?;
    with(|world| world.version += 1);
    Ok(())
}

/// Stops the instance gracefully, with its stop hook. The next message starts a new one from the stored state.
pub fn stop<E: EntityType>(reason: StopReason) {
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
pub fn crash_instance<E: EntityType>() {
    drop(take::<E>());
}

/// The items that the test's entity has emitted on a channel, in order.
#[must_use]
pub fn emitted(channel: &str) -> Vec<Vec<u8>> {
    with(|world| {
        let of = world.emitted.iter().filter(|(other, _)| other == channel);
        of.map(|(_, item)| item.clone()).collect()
    })
}

/// Whether the entity has a live instance. One whose delay has passed
/// ([`lifecycle::passivate_after`](crate::lifecycle::passivate_after)) is stopped first.
pub fn has_live_instance<E: EntityType>() -> bool {
    passivate_if_due::<E>();
    with(|world| world.instances.contains_key(&TypeId::of::<E>()))
}

fn passivate_if_due<E: EntityType>() {
    let is_due = with(|world| {
        let delay = world.passivate_after;
        delay.is_some_and(|delay| world.last_used.saturating_add(delay) <= world.now)
    });
    if is_due {
        stop::<E>(StopReason::Passivated);
    }
}

fn take<E: EntityType>() -> Option<Runner<E>> {
    let instance = with(|world| world.instances.remove(&TypeId::of::<E>()))?;
    instance.downcast().ok().map(|instance| *instance)
}

fn start<E: EntityType>() -> Runner<E> {
    let mut instance = Runner::new();
    with(|world| world.passivate_after = None);
    let reason = match with(|world| world.version == 0 || world.deleted) {
        true => StartReason::FirstMessage,
        false => StartReason::Message,
    };
    if let Err(why) = turn(None, || instance.start(reason)) {
        panic!("the start hook failed: {why}");
    }
    instance
}

/// Deletes the entity if it has expired.
fn expire<E: EntityType>() {
    let expired = with(|world| {
        world.delete = world.expires_at.is_some_and(|at| at <= world.now);
        world.delete_if_asked()
    });
    if expired {
        drop(take::<E>());
    }
    passivate_if_due::<E>();
}

/// Runs a turn, and undoes its writes if it fails or panics.
fn turn<T, E>(message: Option<MessageContext>, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    struct Before {
        store: BTreeMap<String, Vec<u8>>,
        timers: BTreeMap<String, StoredTimer>,
        tells: usize,
        delayed: BTreeMap<String, (u64, StoredTell)>,
        journal: Journal,
        remembered: bool,
        expires_at: Option<u64>,
        emitted: usize,
    }

    struct Undo {
        stored: Option<Before>,
    }

    impl Drop for Undo {
        fn drop(&mut self) {
            with(|world| {
                (world.message, world.may_delete, world.last_used) = (None, false, world.now);
                if let Some(before) = self.stored.take() {
                    world.tells.truncate(before.tells);
                    world.delayed = before.delayed;
                    (world.store, world.timers) = (before.store, before.timers);
                    (world.journal, world.remembered) = (before.journal, before.remembered);
                    (world.expires_at, world.delete) = (before.expires_at, false);
                    world.emitted.truncate(before.emitted);
                }
            });
        }
    }

    let before = with(|world| Before {
        store: world.store.clone(),
        timers: world.timers.clone(),
        tells: world.tells.len(),
        delayed: world.delayed.clone(),
        journal: world.journal.clone(),
        remembered: world.remembered,
        expires_at: world.expires_at,
        emitted: world.emitted.len(),
    });
    let mut undo = Undo { stored: Some(before) };
    with(|world| world.message = message);
    let outcome = run();
    if outcome.is_ok() {
        undo.stored = None;
    }
    outcome
}
