//! All conversions between the core's types and those of the sandbox, which does not depend on the core.

use std::time::Duration;

use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::message::{Message, MessageKind};
use ostraca_core::records::GuestReply;
use ostraca_core::shard::{StartReason, StopReason, TurnOutput, TurnResult};
use ostraca_wasm::{EntityIdentity, GuestTurnOutput, MessageContext, TurnValues};

use crate::random_key::RandomKey;

/// Milliseconds after which to retry a turn that failed through no fault of the guest.
const RETRY_AFTER: u32 = 20;

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
        StartReason::Message => ostraca_wasm::StartReason::Message,
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

pub(crate) fn identity(shard: ShardPath, entity: &Entity, revision: u64) -> EntityIdentity {
    EntityIdentity {
        namespace: shard.namespace,
        entity_type: entity.entity_type.clone(),
        id: entity.id.clone(),
        revision,
    }
}

/// The context that a guest gets for a message whose turn starts at `now`, in milliseconds, on an entity of this
/// version.
pub(crate) fn message_context(
    message: &Message,
    version: u64,
    now: u64,
    key: Option<&RandomKey>,
) -> MessageContext {
    MessageContext {
        session: u128::from_be_bytes(message.id.session.0),
        sequence: message.id.sequence,
        kind: guest_kind(message.kind),
        principal: message.context.principal.clone(),
        content_type: message.context.content_type.clone(),
        traceparent: message.context.traceparent.clone(),
        tracestate: message.context.tracestate.clone(),
        origin: message.context.origin.clone(),
        remaining: message.deadline.map(|at| Duration::from_millis(at.saturating_sub(now))),
        version,
        values: TurnValues {
            utc_ms: message.context.utc_ms,
            // A node has the key before it has its first shard.
            seed: key.map_or_else(rand::random, |key| key.seed(&message.target, &message.id)),
        },
    }
}

/// Clock and randomness of a hook, which no message causes.
pub(crate) fn hook_values(utc_ms: u64) -> TurnValues {
    TurnValues { utc_ms, seed: rand::random() }
}

/// The result of a turn, in the form that the shard's machine expects.
pub(crate) fn turn_output(turn: GuestTurnOutput) -> TurnOutput {
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
        state_bytes: turn.state_bytes,
        passivate: turn.passivate,
    }
}
