//! A simplified shard machine: it claims, serves and stops, each in a separate step.

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::Event;
use ostraca_core::records::Claim;

use crate::rules;
use crate::scope::Scope;
use crate::state::{DelayedRequest, Hosted, Phase, State};
use crate::world::handle_event;

/// Ends a shard's machine. Its claim may still be in transit.
pub fn leave(state: &mut State, hosted: Hosted) {
    if hosted.phase == Phase::Claiming {
        state.delayed_requests.push(DelayedRequest::Claim(hosted.claim));
    }
}

/// Handles a claim that reaches the store. If the claim is refused, returns the current claim's epoch.
pub fn claim(state: &mut State, claim: &Claim) -> Result<(), Epoch> {
    let shard = claim.shard.shard;
    if let Some(standing) = state.claims.get(&shard)
        && !claim.supersedes(standing)
    {
        return Err(standing.epoch);
    }
    let named = state.named.get(&(shard, claim.epoch));
    if named != Some(&claim.owner) {
        state.break_rule(rules::NAMED);
    }
    state.claims.insert(shard, claim.clone());
    Ok(())
}

/// Advances a shard's machine: its claim reaches the store, or the node learns the answer.
pub fn shard(scope: &Scope, state: &mut State, node: usize, shard: ShardId) {
    let Some(process) = &mut state.nodes[node] else { return };
    let Some(hosted) = process.hosted.get_mut(&shard) else { return };
    let (epoch, claimed) = (hosted.claim.epoch, hosted.claim.clone());
    match hosted.phase {
        Phase::Claiming => {
            let phase = match claim(state, &claimed) {
                Ok(()) => Phase::Granted,
                Err(standing) => Phase::Refused(standing),
            };
            if let Some(process) = &mut state.nodes[node]
                && let Some(hosted) = process.hosted.get_mut(&shard)
            {
                hosted.phase = phase;
            }
        }
        Phase::Granted => {
            hosted.phase = Phase::Serving;
            handle_event(scope, state, node, Event::ShardServing { shard, epoch });
        }
        Phase::Refused(standing) => {
            process.hosted.remove(&shard);
            state.given_up.insert((shard, epoch));
            let standing = Some(standing);
            handle_event(
                scope,
                state,
                node,
                Event::ShardLost { shard, epoch, current_epoch: standing },
            );
        }
        Phase::Stopping(_) => {
            process.hosted.remove(&shard);
            state.given_up.insert((shard, epoch));
            handle_event(scope, state, node, Event::ShardStopped { shard, epoch });
        }
        Phase::Serving => {}
    }
}
