//! Executes the router's steps: sends messages to workers and other nodes, and reports immediate failures back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ostraca_catalog::types::{TypeTable, TypeUnavailable};
use ostraca_core::ids::ScopedSessionId;
use ostraca_core::message::{Message, ReplyToken};
use ostraca_core::route::{Action, AttemptResult};
use ostraca_wire::clock::BootInstant;
use ostraca_wire::outcome::{not_run, reply_for_refusal, unknown_if_in_doubt};
use ostraca_wire::peer::forwarding::Forward;
use ostraca_wire::proto::{Envelope, Problem};
use ostraca_workers::{Delivery, ReplyTo};

use super::Gateway;
use super::forwarded::loading;
use super::pending_message::{PendingMessage, PendingMessageInner, StepBatches};

/// Immediate failures of a round of steps, by the router's tags.
#[derive(Default)]
struct Failures {
    /// Messages to be buffered and retried.
    failed: Vec<(u64, AttemptResult)>,
    /// Messages that must not run.
    refused: Vec<(u64, Problem)>,
}

impl Gateway {
    /// Executes the router's steps, and the further steps that their immediate results cause.
    pub(super) fn execute_steps(&self, mut steps: Vec<Action<PendingMessage>>) {
        while !steps.is_empty() {
            let Failures { failed, refused } = self.round(&mut steps);
            if failed.is_empty() && refused.is_empty() {
                return;
            }
            let now = self.now();
            let mut replies = Vec::with_capacity(refused.len());
            let Some(mut router) = self.router() else { return };
            for (tag, verdict) in failed {
                // Everything that was not sent is buffered.
                router.on_attempt_result(now, tag, verdict, &mut steps);
            }
            for (tag, problem) in refused {
                // An earlier copy may have run elsewhere: then this refusal is not final (R16).
                let answered =
                    router.on_attempt_result(now, tag, AttemptResult::Answered, &mut steps);
                replies.extend(answered.map(|(pending, in_doubt)| (pending, in_doubt, problem)));
            }
            drop(router);
            for (pending, in_doubt, problem) in replies {
                pending.reply(unknown_if_in_doubt(not_run(problem), in_doubt));
            }
        }
    }

    /// Drains the list. Messages to the same destination are sent as one batch.
    fn round(&self, steps: &mut Vec<Action<PendingMessage>>) -> Failures {
        let types = self.types.snapshot();
        let mut out = StepBatches::new(self.workers.len());
        let Failures { mut failed, mut refused } = Failures::default();
        for step in steps.drain(..) {
            match step {
                Action::Local { attempt_id: tag, .. } if self.workers.is_empty() => {
                    failed.push((tag, AttemptResult::NotSent));
                }
                // Its type or its pool was not known when it was routed: it must be routed again.
                Action::Local { shard, attempt_id: tag, ref item, .. }
                    if self.belongs_elsewhere(&types, shard, &item.0.envelope) =>
                {
                    refused.push((tag, loading()));
                }
                Action::Local { shard, attempt_id: tag, item, .. } => {
                    let PendingMessageInner { session, envelope, received, charge, .. } = &*item.0;
                    match self.to_message(&types, *session, envelope, *received) {
                        Ok(Some(message)) => {
                            let charge = charge.clone();
                            let back = ReplyTo::Gateway { tag, caller: item.0.clone() };
                            out.local(shard, Delivery { shard, message, reply_to: back, charge });
                        }
                        Ok(None) => failed.push((tag, AttemptResult::Rebalancing)),
                        Err(problem) => refused.push((tag, problem)),
                    }
                }
                Action::Remote { to, epoch, attempt_id: tag, item } => {
                    let envelope = item.to_forwarded_envelope(&self.node, epoch);
                    out.remote(to, Forward { tag, envelope });
                }
                Action::Refuse { item, refusal } => item.reply(reply_for_refusal(refusal)),
                Action::Buffered => {}
            }
        }
        for (to, mut forwards) in out.remote.drain(..) {
            refused.extend(self.links.send(&to, &mut forwards));
            failed.extend(forwards.into_iter().map(|left| (left.tag, AttemptResult::NotSent)));
        }
        out.deliver(&self.workers);
        Failures { failed, refused }
    }

    /// Returns the message for a worker of this node; `None` while the type's component is still being compiled
    /// here.
    ///
    /// # Errors
    /// The reason why the message must not run.
    pub(super) fn to_message(
        &self,
        types: &TypeTable,
        session: ScopedSessionId,
        envelope: &Envelope,
        received: BootInstant,
    ) -> Result<Option<Arc<Message>>, Problem> {
        let token = ReplyToken(self.tokens.fetch_add(1, Ordering::Relaxed) + 1);
        let message = self.resolver.to_message(types, session, envelope, received, token)?;
        Ok(Some(message).filter(|_| !self.loading(types, &envelope.r#type)))
    }

    /// Whether the type's component is still being compiled here. A broken type is left to the worker, which
    /// refuses the message.
    fn loading(&self, types: &TypeTable, kind: &str) -> bool {
        // Fast path: nearly every message's type can run here, and the round's snapshot shows that.
        !types.get(kind).is_some_and(|entry| entry.is_runnable())
            && self.types.get_runnable(kind).is_err_and(|absent| absent == TypeUnavailable::Loading)
    }
}
