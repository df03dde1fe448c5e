//! How a message ends (R16): the core's outcome, its form on the wire, and what it means for the route.
//!
//! Gateways and owners use this module, and so do the simulator's nodes, which have no sockets.

use ostraca_codes::{Code, codes};
use ostraca_core::ids::Epoch;
use ostraca_core::message::{MessageKind, Outcome, OwnerHint};
use ostraca_core::records::GuestReply;
use ostraca_core::route::{AttemptResult, Refusal};

use crate::problem;
use crate::proto::problem::Hint;
use crate::proto::{self, Problem, Reply};

/// Converts a message's kind to its form on the wire.
#[must_use]
pub fn wire_kind(kind: MessageKind) -> proto::MessageKind {
    match kind {
        MessageKind::Command => proto::MessageKind::Command,
        MessageKind::Query => proto::MessageKind::Query,
    }
}

/// Converts a message's outcome to a reply.
#[must_use]
pub fn reply_for_outcome(outcome: Outcome, kind: MessageKind, epoch: Epoch) -> Reply {
    let kind = wire_kind(kind).into();
    let base = Reply { epoch: epoch.0, kind, ..Reply::default() };
    match outcome {
        Outcome::Final { reply: GuestReply::Result(body), version } => {
            Reply { outcome: proto::Outcome::Result.into(), entity_version: version, body, ..base }
        }
        Outcome::Final { reply: GuestReply::Error { code, message }, version } => Reply {
            outcome: proto::Outcome::ApplicationError.into(),
            entity_version: version,
            problem: Some(Problem { code, message, ..Problem::default() }),
            ..base
        },
        Outcome::Final { reply: GuestReply::Dropped, version } => Reply {
            outcome: proto::Outcome::ReplyDropped.into(),
            entity_version: version,
            problem: Some(Problem {
                help: "read the entity's state if the result matters".into(),
                ..problem(codes::REPLY_DROPPED, "the message ran, but its reply is no longer kept")
            }),
            ..base
        },
        Outcome::NotRun { code, message, retry_after, owner_hint, suggested_created_ms } => Reply {
            outcome: proto::Outcome::NotRun.into(),
            problem: Some(Problem {
                code: code.into_owned(),
                message,
                retryable: retry_after.is_some(),
                retry_after_ms: retry_after.unwrap_or(0),
                hint: owner_hint
                    .map(|hint| Hint::Owner(Box::new((&*hint).into())))
                    .or(suggested_created_ms.map(Hint::CreatedMs)),
                ..Problem::default()
            }),
            ..base
        },
        Outcome::Unknown { message } => Reply {
            outcome: proto::Outcome::Unknown.into(),
            problem: Some(Problem {
                help: "send it again with the same id".into(),
                retryable: true,
                ..problem(codes::UNKNOWN, message)
            }),
            ..base
        },
    }
}

/// Converts the reply to a message between entities back to an outcome, for the sender's shard.
#[must_use]
pub fn outcome_for_reply(reply: Reply) -> Outcome {
    let version = reply.entity_version;
    let outcome = reply.outcome();
    let problem = reply.problem.unwrap_or_default();
    match outcome {
        proto::Outcome::Result => Outcome::Final { reply: GuestReply::Result(reply.body), version },
        proto::Outcome::ApplicationError => {
            let (code, message) = (problem.code, problem.message);
            Outcome::Final { reply: GuestReply::Error { code, message }, version }
        }
        proto::Outcome::ReplyDropped => Outcome::Final { reply: GuestReply::Dropped, version },
        proto::Outcome::NotRun => Outcome::NotRun {
            code: problem.code.into(),
            message: problem.message,
            retry_after: problem.retryable.then_some(problem.retry_after_ms),
            owner_hint: None,
            suggested_created_ms: match problem.hint {
                Some(Hint::CreatedMs(created)) => Some(created),
                _ => None,
            },
        },
        proto::Outcome::Unknown | proto::Outcome::Unspecified => {
            Outcome::Unknown { message: problem.message }
        }
    }
}

/// Converts a refusal by the router to a reply.
#[must_use]
pub fn reply_for_refusal(refusal: Refusal) -> Reply {
    let Refusal { code, message, retry_after, in_doubt } = refusal;
    let outcome = Outcome::NotRun {
        code: code.into(),
        message,
        retry_after,
        owner_hint: None,
        suggested_created_ms: None,
    };
    unknown_if_in_doubt(reply_for_outcome(outcome, MessageKind::Command, Epoch(0)), in_doubt)
}

/// Turns `not-run` into `unknown` if an earlier copy may have run: this copy's refusal proves nothing about the earlier
/// one (R16).
#[must_use]
pub fn unknown_if_in_doubt(reply: Reply, in_doubt: bool) -> Reply {
    if !in_doubt || reply.outcome() != proto::Outcome::NotRun {
        return reply;
    }
    let problem = reply.problem.map(|last| Problem {
        message: format!("an earlier copy may have run; the last copy did not: {}", last.message),
        help: "send it again with the same id".into(),
        retryable: true,
        ..last
    });
    Reply { outcome: proto::Outcome::Unknown.into(), problem, ..reply }
}

/// A `not-run` reply with this problem.
#[must_use]
pub fn not_run(problem: Problem) -> Reply {
    Reply { outcome: proto::Outcome::NotRun.into(), problem: Some(problem), ..Reply::default() }
}

/// Determines what an outcome from a worker of this node means for the route.
#[must_use]
pub fn attempt_result_for_outcome(outcome: &Outcome, epoch: Epoch) -> AttemptResult {
    match outcome {
        Outcome::NotRun { code, owner_hint: hint, .. } if *code == codes::NOT_OWNER => {
            let hint = hint.as_deref();
            let owner = hint.and_then(|hint| hint.owner.clone());
            AttemptResult::NotOwner { epoch: hint.map_or(epoch, |hint| hint.epoch), owner }
        }
        Outcome::NotRun { code, .. } if *code == codes::REBALANCING => AttemptResult::Rebalancing,
        _ => AttemptResult::Answered,
    }
}

/// Determines what another node's reply means for the route.
#[must_use]
pub fn attempt_result_for_reply(reply: &Reply) -> AttemptResult {
    let Some(problem) = &reply.problem else { return AttemptResult::Answered };
    if reply.outcome() != proto::Outcome::NotRun {
        return AttemptResult::Answered;
    }
    if problem.code == codes::REBALANCING {
        return AttemptResult::Rebalancing;
    }
    if problem.code != codes::NOT_OWNER {
        return AttemptResult::Answered;
    }
    let Some(Hint::Owner(hint)) = &problem.hint else {
        return AttemptResult::NotOwner { epoch: Epoch(reply.epoch), owner: None };
    };
    let OwnerHint { epoch, owner } = hint.as_ref().into();
    AttemptResult::NotOwner { epoch, owner }
}

/// The refusal of a message whose shard is not on this node, with the newer route if it is known.
#[must_use]
pub fn not_owner(message: &str, hint: Option<&OwnerHint>) -> Problem {
    let hint = hint.map(|hint| Hint::Owner(Box::new(hint.into())));
    Problem { hint, ..retryable_problem(codes::NOT_OWNER, message) }
}

/// The refusal of a message while the node is starting.
#[must_use]
pub fn node_starting() -> Problem {
    let help = "send it again, or to another node".into();
    Problem { help, ..retryable_problem(codes::REBALANCING, "the node is starting") }
}

/// A problem that is not retryable. `help` says what to do, and may be empty.
#[must_use]
pub fn permanent_problem(code: Code, message: impl Into<String>, help: &str) -> Problem {
    Problem { code: code.into(), message: message.into(), help: help.into(), ..Problem::default() }
}

/// A retryable refusal, on which the sender's node acts.
#[must_use]
pub fn retryable_problem(code: Code, message: &str) -> Problem {
    debug_assert!(code.refuses(true), "{code}");
    Problem { retryable: true, retry_after_ms: 100, ..problem(code, message) }
}
