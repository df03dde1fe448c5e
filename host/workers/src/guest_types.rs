//! All conversions between the core's types and those of the sandbox, which does not depend on the core.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::message::{Message, MessageKind, Outcome};
use ostraca_core::names;
use ostraca_core::records::{DelayedTell, GuestReply, JournalExtent, Timer};
use ostraca_core::shard::{
    CallDigest, Channels, Emit, Firing, JournalChange, NewAsk, NewTell, StartReason, StopReason,
    TimerChange, TimerMap, TurnOutput, TurnResult, delayed_tell, delayed_tell_name,
    set_delayed_tell, timer_of_delayed_tell,
};
use ostraca_wasm::{
    AskAnswer, ChannelNames, EntityIdentity, GuestAsk, GuestCall, GuestEmit, GuestTell, GuestTimer,
    GuestTurnOutput, JournalUse, MessageContext, OutboxUse, TimerFiring, TimerSource, TurnRecords,
    TurnValues,
};

use crate::random_key::RandomKey;

/// Milliseconds after which to retry a turn that failed through no fault of the guest.
const RETRY_AFTER: u32 = 20;

/// The sandbox checks limits with the sizes that the core stores.
const _: () = assert!(ostraca_wasm::EVENT_CHARGE == ostraca_core::shard::EVENT_CHARGE);
const _: () = assert!(ostraca_wasm::ITEM_CHARGE == ostraca_core::shard::ITEM_CHARGE);

/// The kind of a method that a component lists.
#[must_use]
pub fn core_kind(kind: ostraca_wasm::MessageKind) -> MessageKind {
    match kind {
        ostraca_wasm::MessageKind::Command => MessageKind::Command,
        ostraca_wasm::MessageKind::Query => MessageKind::Query,
    }
}

fn guest_kind(kind: MessageKind) -> ostraca_wasm::MessageKind {
    match kind {
        MessageKind::Command => ostraca_wasm::MessageKind::Command,
        MessageKind::Query => ostraca_wasm::MessageKind::Query,
    }
}

pub(crate) fn start_reason(reason: StartReason) -> ostraca_wasm::StartReason {
    match reason {
        StartReason::FirstMessage => ostraca_wasm::StartReason::FirstMessage,
        // The published list of reasons is closed.
        StartReason::Message | StartReason::BesideTurn => ostraca_wasm::StartReason::Message,
        StartReason::Remembered => ostraca_wasm::StartReason::Remembered,
    }
}

pub(crate) fn stop_reason(reason: StopReason) -> ostraca_wasm::StopReason {
    match reason {
        StopReason::Idle => ostraca_wasm::StopReason::Idle,
        StopReason::Evicted => ostraca_wasm::StopReason::Evicted,
        StopReason::Passivated => ostraca_wasm::StopReason::Passivated,
        StopReason::HandedOff => ostraca_wasm::StopReason::HandedOff,
        StopReason::Redeployed => ostraca_wasm::StopReason::Redeployed,
    }
}

/// The identity of an entity's instance.
#[must_use]
pub fn identity(shard: ShardPath, entity: &Entity, revision: u64) -> EntityIdentity {
    EntityIdentity {
        namespace: match names::namespace(&entity.entity_type) {
            names::DEFAULT_NAMESPACE => shard.namespace,
            other => other.into(),
        },
        entity_type: entity.entity_type.clone(),
        id: entity.id.clone(),
        revision,
    }
}

/// The context that a guest gets for a message. `traceparent` is the trace context of its turn; `now` is the turn's start,
/// in milliseconds; `version` is the entity's version before it.
pub(crate) fn message_context(
    message: &Message,
    traceparent: &Arc<str>,
    version: u64,
    now: u64,
    key: Option<&RandomKey>,
    records: Option<Box<TurnRecords>>,
) -> Box<MessageContext> {
    Box::new(MessageContext {
        session: u128::from_be_bytes(message.id.session.0),
        sequence: message.id.sequence,
        kind: guest_kind(message.kind),
        principal: guest_principal(&message.context.principal),
        content_type: message.context.content_type.clone(),
        traceparent: traceparent.clone(),
        tracestate: message.context.tracestate.clone(),
        origin: message.context.origin.clone(),
        remaining: message.deadline.map(|at| Duration::from_millis(at.saturating_sub(now))),
        version,
        values: TurnValues {
            utc_ms: message.context.utc_ms,
            // Only tests lack the key: a node has it before it owns its first shard.
            seed: key.map_or_else(rand::random, |key| key.seed(&message.target, &message.id)),
        },
        records,
    })
}

/// A sender as a guest sees it: entities without their namespace, which is the guest's own.
fn guest_principal(principal: &Arc<str>) -> Arc<str> {
    match principal.strip_prefix("entity/").and_then(|name| name.split_once(names::SEPARATOR)) {
        None => principal.clone(),
        Some((_, local)) => format!("entity/{local}").into(),
    }
}

/// The clock and randomness of a start or stop hook, which handles no message.
#[must_use]
pub fn hook_values(utc_ms: u64) -> TurnValues {
    TurnValues { utc_ms, seed: rand::random() }
}

/// What an entity has besides its state, as its instance reads it.
#[must_use]
pub fn turn_records(records: ostraca_core::shard::TurnRecords) -> TurnRecords {
    let ostraca_core::shard::TurnRecords {
        timers,
        outbox,
        journal,
        channels,
        remembered,
        expires_at,
        has_subscribers,
    } = records;
    let timers: Option<Arc<dyn TimerSource>> = match timers.is_empty() {
        true => None,
        false => Some(Arc::new(EntityTimers(timers))),
    };
    let outbox = OutboxUse { entries: outbox.entries.into(), bytes: outbox.bytes };
    let JournalExtent { first, next, start, end, .. } = journal;
    let JournalExtent { snapshot, snapshot_bytes, snapshot_version, .. } = journal;
    let journal =
        JournalUse { first, next, start, end, snapshot, snapshot_bytes, snapshot_version };
    let channels: Option<Arc<dyn ChannelNames>> = match channels.is_empty() {
        true => None,
        false => Some(Arc::new(EntityChannels(channels))),
    };
    TurnRecords {
        timers,
        outbox,
        journal,
        channels,
        remembered,
        expires_at,
        has_subscribers,
        asks: None,
        calls: None,
    }
}

/// Converts an ask of a guest of the type `own` for the shard's machine.
pub(crate) fn new_ask(own: &str, ask: GuestAsk, traceparent: Arc<str>) -> NewAsk {
    NewAsk {
        target: Entity { entity_type: names::beside(own, ask.entity_type), id: ask.id },
        method: ask.method,
        body: ask.body,
        content_type: ask.content_type,
        traceparent,
        timeout: u64::try_from(ask.timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The part of an outgoing call on which its key depends.
pub(crate) fn call_digest(call: &GuestCall) -> CallDigest {
    CallDigest::compute(&call.method, call.scheme, &call.authority, &call.path)
}

/// Converts the outcome of an ask into the answer that the guest receives.
pub(crate) fn ask_answer(outcome: Outcome) -> AskAnswer {
    match outcome {
        Outcome::Final { reply: GuestReply::Result(body), .. } => AskAnswer::Result(body),
        Outcome::Final { reply: GuestReply::Error { code, message }, .. } => {
            AskAnswer::Application { code, message }
        }
        Outcome::Final { reply: GuestReply::Dropped, .. } => {
            let message = "it ran, but its answer is no longer kept (reply-dropped)".into();
            AskAnswer::Unknown { message }
        }
        Outcome::NotRun { code, message, .. } => {
            AskAnswer::NotRun { code: code.into_owned(), message }
        }
        Outcome::Unknown { message } => AskAnswer::Unknown { message },
    }
}

/// Converts a tell of a turn that reads this time and has this trace.
fn new_tell(tell: GuestTell, origin: &TurnOrigin) -> NewTell {
    let TurnOrigin { traceparent, utc_ms, .. } = origin;
    NewTell {
        target: origin.target(tell.entity_type, tell.id),
        method: tell.method,
        body: tell.body,
        content_type: tell.content_type,
        traceparent: traceparent.clone(),
        utc_ms: *utc_ms,
    }
}

#[derive(Debug)]
struct EntityTimers(Arc<TimerMap>);

#[derive(Debug)]
struct EntityChannels(Arc<Channels>);

impl ChannelNames for EntityChannels {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn contains(&self, channel: &str) -> bool {
        self.0.contains_key(channel)
    }
}

impl TimerSource for EntityTimers {
    fn timers(&self) -> Vec<GuestTimer> {
        let timer = |timer: &Arc<Timer>| {
            let tell = guest_tell(timer);
            // A delayed tell's payload is the tell.
            let payload = if tell.is_some() { Bytes::new() } else { timer.payload.clone() };
            GuestTimer {
                name: delayed_tell_name(&timer.name).map_or_else(|| timer.name.clone(), Arc::from),
                due: timer.due,
                interval: timer.interval,
                payload,
                attempts: timer.attempts,
                failure: timer.failure.clone(),
                set_aside: timer.set_aside,
                tell,
            }
        };
        self.0.values().map(timer).collect()
    }
}

/// The tell that a timer sends, if it is a delayed tell's timer. A damaged tell is returned empty; it is set aside when
/// due.
fn guest_tell(timer: &Timer) -> Option<GuestTell> {
    delayed_tell_name(&timer.name)?;
    let tell = delayed_tell(timer).ok().flatten();
    Some(tell.map_or_else(GuestTell::default, |tell| GuestTell {
        entity_type: names::local(tell.target.entity_type),
        id: tell.target.id,
        method: tell.method,
        body: tell.body,
        content_type: tell.content_type,
    }))
}

fn timer_change(change: ostraca_wasm::TimerChange, origin: &TurnOrigin) -> TimerChange {
    match change {
        ostraca_wasm::TimerChange::SetTell { name, due, tell } => {
            let tell = DelayedTell {
                target: origin.target(tell.entity_type, tell.id),
                method: tell.method,
                body: tell.body,
                content_type: tell.content_type,
                traceparent: origin.traceparent.clone(),
                extensions: Extensions::default(),
            };
            set_delayed_tell(&name, due, &tell)
        }
        ostraca_wasm::TimerChange::CancelTell { name } => {
            TimerChange::Cancel { name: timer_of_delayed_tell(&name) }
        }
        ostraca_wasm::TimerChange::Set { name, due, interval, payload } => {
            TimerChange::Set { name, due, interval, payload }
        }
        ostraca_wasm::TimerChange::Cancel { name } => TimerChange::Cancel { name },
    }
}

/// A firing, and the clock and randomness of its turn. Each attempt draws the same random numbers.
pub(crate) fn timer_firing(
    entity: &Entity,
    firing: &Firing,
    key: Option<&RandomKey>,
) -> (TimerFiring, TurnValues) {
    let values = TurnValues {
        utc_ms: firing.utc_ms,
        seed: key.map_or_else(rand::random, |key| key.firing_seed(entity, firing)),
    };
    let firing = TimerFiring {
        name: firing.name.clone(),
        due: firing.due,
        missed: firing.missed,
        attempt: firing.attempt,
        payload: firing.payload.clone(),
    };
    (firing, values)
}

/// The type of a turn's entity, in whose namespace its tells are, and the turn's trace and time, which they inherit.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnOrigin {
    pub(crate) entity_type: Arc<str>,
    pub(crate) traceparent: Arc<str>,
    /// `None` if nothing is traced.
    pub(crate) tracestate: Option<Arc<str>>,
    pub(crate) utc_ms: u64,
}

impl TurnOrigin {
    /// An entity that a guest of the turn names.
    fn target(&self, entity_type: Arc<str>, id: Arc<str>) -> Entity {
        Entity { entity_type: names::beside(&self.entity_type, entity_type), id }
    }
}

/// Converts a turn's changes to the journal for the shard's machine.
#[must_use]
pub fn journal_change(change: ostraca_wasm::JournalChange) -> JournalChange {
    let ostraca_wasm::JournalChange { events, keep_from, snapshot } = change;
    JournalChange { events, keep_from, snapshot }
}

/// The result of a turn, in the form that the shard's machine expects.
pub(crate) fn turn_output(turn: GuestTurnOutput, origin: &TurnOrigin) -> TurnOutput {
    let result = match turn.result {
        ostraca_wasm::TurnResult::Ok(body) => TurnResult::Replied(GuestReply::Result(body)),
        ostraca_wasm::TurnResult::Application { code, message } => {
            TurnResult::Replied(GuestReply::Error { code, message })
        }
        ostraca_wasm::TurnResult::Failed(failure) => TurnResult::Failed {
            code: failure.code.into(),
            retry_after: failure.is_retryable().then_some(RETRY_AFTER),
            message: failure.message,
        },
    };
    TurnOutput {
        result,
        writes: turn.writes,
        timers: turn.timers.into_iter().map(|change| timer_change(change, origin)).collect(),
        tells: turn.tells.into_iter().map(|tell| new_tell(tell, origin)).collect(),
        journal: journal_change(turn.journal),
        emits: turn
            .emits
            .into_iter()
            .map(|GuestEmit { channel, data }| Emit { channel, data })
            .collect(),
        state_bytes: turn.state_bytes,
        remember: turn.remember,
        expiry: turn.expiry,
        delete: turn.delete,
        passivate: turn.passivate,
        passivate_after: turn.passivate_after,
    }
}
