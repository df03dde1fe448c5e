//! Panics of the host's own code on a worker's thread. Each ends only the work in progress: the message of one
//! entity, one batch of store calls, or one shard's machine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use ostraca_codes::codes;
use ostraca_core::message::{MessageKind, Outcome, ReplyToken};
use ostraca_core::shard::{Event, Machine};
use ostraca_stats::Stats;

use super::Worker;
use super::machines::{InstanceState, MachineId};
use crate::WorkerReport;

/// A future or call panicked; contains the panic's message.
#[derive(Debug, thiserror::Error)]
#[error("the host panicked: {0}")]
pub(super) struct Panicked(String);

/// Runs a future; a panic is counted and returned as an error. After a panic the future is not polled again, and
/// everything that it held is dropped.
pub(super) fn contained<F: Future>(
    stats: &Arc<Stats>,
    future: F,
) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
    let stats = stats.clone();
    AssertUnwindSafe(future)
        .catch_unwind()
        .map(move |result| result.map_err(|what| counted(&stats, &*what)))
}

/// Makes a call; a panic is counted and returned as an error. The state that the call changed must not be used
/// after a panic.
pub(super) fn catch_panic<T>(stats: &Stats, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|what| counted(stats, &*what))
}

fn counted(stats: &Stats, what: &(dyn Any + Send)) -> Panicked {
    let panicked = panic_message(what);
    Stats::count(&stats.panics);
    tracing::error!(%panicked, "contained a panic: please report this bug");
    panicked
}

fn panic_message(what: &(dyn Any + Send)) -> Panicked {
    let text = what.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| what.downcast_ref::<String>().cloned());
    Panicked(text.unwrap_or_else(|| "no message".into()))
}

impl Worker {
    /// Ends a machine that panicked as if its shard were lost, because its state cannot be trusted. The shard is
    /// reported as lost, and gets a new owner and epoch.
    pub(super) fn drop_panicked_machine(&mut self, id: MachineId, panicked: &Panicked) {
        let now = self.deps.clock.now();
        let Some(slot) = self.machines.get_mut(id) else { return };
        let (settings, owner) = (slot.machine.settings().clone(), slot.machine.ownership().clone());
        let mut ended = Machine::new(settings, owner.clone());
        ended.handle(now, Event::Drop);
        while ended.poll().is_some() {}
        slot.machine = ended;
        slot.serving = false;
        for (_, (_, live)) in slot.instances.drain().chain(slot.second_instances.drain()) {
            if let InstanceState::Busy(interrupt, _) = live {
                interrupt.interrupt();
            }
        }
        self.instance_slots.remove_shard(&owner.shard);
        self.machines.refresh(id);
        let shard = owner.shard.shard;
        self.unlist(shard, id);
        let waited = self.pending_replies.iter().filter(|(_, ticket)| ticket.slot == id);
        let waited: Vec<(ReplyToken, MessageKind)> =
            waited.map(|(token, ticket)| (*token, ticket.kind)).collect();
        for (token, kind) in waited {
            let text = format!("shard {shard} was dropped: {panicked}");
            let outcome = match kind {
                MessageKind::Command => Outcome::Unknown { message: text },
                MessageKind::Query => Outcome::not_run_retryable(codes::NOT_OWNER, text, 100),
            };
            self.reply(id, token, outcome);
        }
        self.report(WorkerReport::ShardLost(Box::new(owner), None, panicked.to_string()));
        self.remove_if_finished(id);
    }
}
