//! Passes events to machines, executes their actions, and answers messages.

use ostraca_codes::codes;
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::message::{MessageKind, Now, Outcome, ReplyToken};
use ostraca_core::shard::{Action, Event, Phase};
use ostraca_stats::Stats;

use super::figures::ending;
use super::machines::MachineId;
use super::panics::catch_panic;
use super::{PendingReply, Worker};
use crate::recording::Frame;
use crate::{ReplyTo, WorkerReply, WorkerReport};

impl Worker {
    /// Passes an event to a machine and executes its actions. An event for a removed machine is ignored.
    pub(super) fn handle_event(&mut self, id: MachineId, event: Event) {
        let now = self.deps.clock.now();
        let recorded = self.recorder.as_ref().map(|_| (now, event.clone()));
        let Some(slot) = self.machines.get_mut(id) else { return };
        #[cfg(test)]
        let panics = std::mem::take(&mut self.panics);
        let handled = catch_panic(&self.deps.stats, || {
            slot.machine.handle(now, event);
            #[cfg(test)]
            assert!(!panics, "panic requested by the test");
        });
        match handled {
            Ok(()) => self.execute_actions(id, recorded),
            Err(panicked) => self.drop_panicked_machine(id, &panicked),
        }
    }

    pub(super) fn execute_actions(&mut self, id: MachineId, recorded: Option<(Now, Event)>) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        let mut actions = std::mem::take(&mut self.actions);
        while let Some(action) = slot.machine.poll() {
            actions.push(action);
        }
        self.record(id, recorded, &actions);
        for action in actions.drain(..) {
            self.execute(id, action);
        }
        self.actions = actions;
        let Some(slot) = self.machines.get_mut(id) else { return };
        let serving = slot.machine.phase() == Phase::Serving;
        let before = std::mem::replace(&mut slot.serving, serving);
        if serving && !before {
            let report = WorkerReport::ShardServing(slot.shard(), slot.epoch());
            self.report(report);
        }
        self.machines.refresh(id);
        self.remove_if_finished(id);
    }

    fn record(&mut self, id: MachineId, recorded: Option<(Now, Event)>, actions: &[Action]) {
        if self.recorder.is_none() {
            return;
        }
        let Some(slot) = self.machines.get(id) else { return };
        let (machine, actions) = (id.serial, actions.to_vec());
        let frame = match recorded {
            Some((now, event)) => Frame::Step { machine, now, event: Box::new(event), actions },
            None => {
                let made = (slot.machine.settings().clone(), slot.machine.ownership().clone());
                Frame::Created { machine, made: Box::new(made), actions }
            }
        };
        self.write_frame(&frame);
    }

    pub(super) fn write_frame(&mut self, frame: &Frame) {
        let Some(recorder) = &mut self.recorder else { return };
        if let Err(error) = recorder.write(frame) {
            tracing::error!(%error, "recording stopped: cannot write to it");
            self.recorder = None;
        }
    }

    /// Assigns the free instance slots, and requests more where they are needed. Called once per round and never
    /// from within [`Worker::handle_event`]: thousands of entities may wait for slots that become free at the same
    /// time, and each would add a call to the stack.
    pub(super) fn assign_instance_slots(&mut self) {
        loop {
            let (holder, granted) = if let Some((holder, generation)) = self.instance_slots.grant()
            {
                (holder, Some(generation))
            } else if let Some(holder) = self.instance_slots.evict() {
                (holder, None)
            } else {
                return;
            };
            // A machine that has ended has returned all its slots.
            let Some(id) = self.by_shard.get(&holder.0.shard).copied() else { continue };
            let entity = holder.1;
            self.handle_event(
                id,
                match granted {
                    Some(generation) => Event::SlotGranted { entity, generation },
                    None => Event::Evict { entity },
                },
            );
        }
    }

    pub(super) fn tick(&mut self) {
        let now = self.deps.clock.now().mono;
        for id in self.machines.due(now) {
            self.handle_event(id, Event::Tick);
        }
        self.gauge();
        self.figures.report_hottest(now, &self.deps.gauges);
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.flush()
        {
            tracing::error!(%error, "cannot flush the recording");
        }
    }

    /// Refuses a message for a shard that has no machine here.
    pub(super) fn not_owner(&mut self, shard: ShardId, back: ReplyTo, kind: MessageKind) {
        let text = format!("shard {shard} is not on this node");
        self.send_reply(
            back,
            kind,
            Epoch(0),
            Outcome::not_run_retryable(codes::NOT_OWNER, text, 100),
        );
    }

    pub(super) fn reply(&mut self, id: MachineId, token: ReplyToken, outcome: Outcome) {
        let Some(PendingReply { back, kind, received, figures, .. }) =
            self.pending_replies.remove(&token)
        else {
            return;
        };
        if let Some(ending) = ending(&outcome) {
            figures.message_ended(ending, received.elapsed());
        }
        let epoch = self.machines.get(id).map_or(Epoch(0), |slot| slot.epoch());
        self.send_reply(back, kind, epoch, outcome);
    }

    fn send_reply(&mut self, back: ReplyTo, kind: MessageKind, epoch: Epoch, outcome: Outcome) {
        match &outcome {
            Outcome::NotRun { .. } => Stats::count(&self.deps.stats.not_run),
            Outcome::Unknown { .. } => Stats::count(&self.deps.stats.unknown),
            Outcome::Final { .. } => {}
        }
        match back {
            ReplyTo::Gateway { tag, .. } => {
                self.replies.push(WorkerReply { tag, outcome, kind, epoch })
            }
            ReplyTo::Ticket(ticket) => {
                ticket.reply(ostraca_wire::outcome::reply_for_outcome(outcome, kind, epoch))
            }
        }
    }

    /// Passes the round's replies and entity messages to the gateway.
    pub(super) fn flush_replies(&mut self) {
        if !self.replies.is_empty() {
            self.deps.replies.deliver_replies(&mut self.replies);
            self.replies.clear();
        }
        if !self.messages.is_empty() {
            self.deps.replies.send_messages(&mut self.messages);
        }
    }

    /// Answers all pending messages with an unknown outcome.
    pub(super) fn abandon(&mut self) {
        for (_, PendingReply { back, kind, .. }) in std::mem::take(&mut self.pending_replies) {
            let message = "the node stopped before the message's outcome was known".into();
            self.send_reply(back, kind, Epoch(0), Outcome::Unknown { message });
        }
    }
}
