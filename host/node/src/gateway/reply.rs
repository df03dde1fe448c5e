//! What an answer means: for the route, and for whoever sent the message.

use ostraca_sharding::ids::{Epoch, Incarnation};
use ostraca_sharding::message::{Kind, Outcome, codes};
use ostraca_sharding::route::{Refusal, Verdict};
use ostraca_sharding::rows::Member;
use ostraca_wire::proto::{self, Problem, Reply};

use crate::service::{problem, reply};

/// A refusal by the router, as a reply.
pub(super) fn refused_by(refusal: Refusal) -> Reply {
    let Refusal { code, message, retry_after, in_doubt } = refusal;
    let outcome =
        Outcome::NotRun { code: code.into(), message, retry_after, hint: None, stamp: None };
    doubtful(reply(outcome, Kind::Command, Epoch(0)), in_doubt)
}

/// An answer that this copy did not run says nothing of a former one that may have (R16).
pub(super) fn doubtful(reply: Reply, in_doubt: bool) -> Reply {
    if !in_doubt || reply.outcome() != proto::Outcome::NotRun {
        return reply;
    }
    let problem = reply.problem.map(|told| Problem {
        message: format!(
            "a former copy of the message may have run; the last one did not: {}",
            told.message
        ),
        help: "send it again under the same id".into(),
        retryable: true,
        ..told
    });
    Reply { outcome: proto::Outcome::Unknown.into(), problem, ..reply }
}

pub(super) fn not_run(problem: Problem) -> Reply {
    Reply { outcome: proto::Outcome::NotRun.into(), problem: Some(problem), ..Reply::default() }
}

/// What an answer of a worker of this node means for the route.
pub(super) fn said_by_worker(outcome: &Outcome, epoch: Epoch) -> Verdict {
    match outcome {
        Outcome::NotRun { code, hint, .. } if *code == codes::NOT_OWNER => {
            let hint = hint.as_deref();
            let owner = hint.and_then(|hint| hint.owner.clone());
            Verdict::NotOwner { epoch: hint.map_or(epoch, |hint| hint.epoch), hint: owner }
        }
        Outcome::NotRun { code, .. } if *code == codes::REBALANCING => Verdict::Rebalancing,
        _ => Verdict::Done,
    }
}

/// What another node's reply means for the route.
pub(super) fn said_by_node(reply: &Reply) -> Verdict {
    let Some(problem) = &reply.problem else { return Verdict::Done };
    if reply.outcome() != proto::Outcome::NotRun {
        return Verdict::Done;
    }
    match problem.code.as_str() {
        codes::NOT_OWNER => {
            let detail = |name: &str| problem.details.get(name);
            let number = |name: &str| detail(name).and_then(|text| text.parse().ok());
            let epoch = Epoch(number("epoch").unwrap_or(reply.epoch));
            let incarnation = number("incarnation").zip(number("nonce"));
            let hint = detail("owner").zip(incarnation).map(|(node, (counter, nonce))| Member {
                node: node.as_str().into(),
                incarnation: Incarnation { counter, nonce },
            });
            Verdict::NotOwner { epoch, hint }
        }
        codes::REBALANCING => Verdict::Rebalancing,
        _ => Verdict::Done,
    }
}

/// A refusal that the sender's node acts on.
pub(super) fn bounced(code: &str, message: &str) -> Problem {
    Problem { retryable: true, retry_after_ms: 100, ..problem(code, message, "") }
}
