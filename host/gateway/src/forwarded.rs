//! Messages that another node forwarded: this node runs or refuses them, and never forwards them again (S11.6).

use std::sync::Arc;

use ostraca_catalog::pool::shard_of;
use ostraca_catalog::types::TypeTable;
use ostraca_codes::codes;
use ostraca_core::ids::{Epoch, ScopedSessionId, ShardId};
use ostraca_wire::outcome::{not_owner, permanent_problem as problem, retryable_problem};
use ostraca_wire::proto::Problem;
use ostraca_wire::server::IncomingMessage;
use ostraca_workers::{Delivery, ReplyTo};

use super::Gateway;
use super::pending_message::StepBatches;

/// A message whose shard is known, with its session.
struct Placed {
    session: ScopedSessionId,
    shard: ShardId,
    request: IncomingMessage,
}

impl Gateway {
    /// Accepts messages that another node forwarded.
    pub fn accept_forwarded(&self, batch: &mut Vec<IncomingMessage>) {
        let types = self.types.snapshot();
        let placed: Vec<_> =
            batch.drain(..).filter_map(|request| self.place(&types, request)).collect();
        // Slow work is done without holding the router's lock.
        let hints: Vec<_> = {
            let Some(router) = self.router() else { return };
            let hint = |Placed { shard, request, .. }: &Placed| {
                router.redirect_hint(*shard, Epoch(request.envelope.route_epoch), &self.node)
            };
            placed.iter().map(hint).collect()
        };
        let mut out = StepBatches::new(self.workers.len());
        for (Placed { session, shard, request }, hint) in placed.into_iter().zip(hints) {
            let IncomingMessage { envelope, received, ticket } = request;
            // A node without workers must refuse the message here, because it has no worker that could.
            if hint.is_some() || self.workers.is_empty() {
                let text = format!("shard {shard} is not on this node");
                ticket.not_run(not_owner(&text, hint.as_ref()));
                continue;
            }
            match self.to_message(&types, session, &envelope, received) {
                Ok(Some(message)) => {
                    let (charge, back) = (Arc::clone(ticket.charge()), ReplyTo::Ticket(ticket));
                    out.local(shard, Delivery { shard, message, reply_to: back, charge });
                }
                Ok(None) => ticket.not_run(loading()),
                Err(problem) => ticket.not_run(problem),
            }
        }
        out.deliver(&self.workers);
    }

    /// Finds a message's shard. `None` if the message was refused.
    fn place(&self, types: &TypeTable, mut request: IncomingMessage) -> Option<Placed> {
        // The other node may have started without the store, in which case it does not know the time.
        self.resolver.apply_limits(&mut request.envelope, self.clock.utc_ms());
        let session = <[u8; 16]>::try_from(&request.envelope.session[..]).map(ScopedSessionId);
        let Ok(session) = session else {
            let missing = problem(
                codes::INVALID_MESSAGE,
                "a forwarded message needs a session of 16 bytes",
                "",
            );
            request.ticket.not_run(missing);
            return None;
        };
        let Some(entry) = types.get(request.envelope.r#type.as_str()) else {
            // The other node knows the type, so this one will soon: the sender retries.
            request.ticket.not_run(loading());
            return None;
        };
        let Some(shard) = shard_of(&self.pools.get(), &entry.manifest, &request.envelope.id) else {
            // Nor does it know the pool yet.
            request.ticket.not_run(loading());
            return None;
        };
        Some(Placed { session, shard, request })
    }
}

pub(crate) fn loading() -> Problem {
    retryable_problem(codes::REBALANCING, "the type is being loaded")
}
