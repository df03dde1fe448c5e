//! What machines are told, what they say to it, and who is answered.

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::message::{MessageKind, Now, Outcome, ReplyToken, codes};
use ostraca_core::shard::{Action, Event, Phase};

use super::panics::caught;
use super::slots::SlotId;
use super::{Answered, Back, Report, Waiting, Worker};
use crate::record::Frame;
use crate::stats::Stats;

impl Worker {
    /// Tells a machine what happened, and does what it says. One that is gone hears nothing.
    pub(super) fn tell(&mut self, id: SlotId, event: Event) {
        let now = self.parts.clock.now();
        let recorded = self.parts.recorder.as_ref().map(|_| (now, event.clone()));
        let Some(slot) = self.slots.get_mut(id) else { return };
        #[cfg(test)]
        let panics = std::mem::take(&mut self.panics);
        let handled = caught(&self.parts.stats, || {
            slot.machine.handle(now, event);
            #[cfg(test)]
            assert!(!panics, "as the test wants it");
        });
        match handled {
            Ok(()) => self.carry_out(id, recorded),
            Err(panicked) => self.lose(id, &panicked),
        }
    }

    pub(super) fn carry_out(&mut self, id: SlotId, recorded: Option<(Now, Event)>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let mut actions = std::mem::take(&mut self.actions);
        while let Some(action) = slot.machine.poll() {
            actions.push(action);
        }
        self.record(id, recorded, &actions);
        for action in actions.drain(..) {
            self.act(id, action);
        }
        self.actions = actions;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let serving = slot.machine.phase() == Phase::Serving;
        let before = std::mem::replace(&mut slot.serving, serving);
        if serving && !before {
            let report = Report::Serving(slot.shard(), slot.epoch());
            self.say(report);
        }
        self.slots.note(id);
        self.settle(id);
    }

    fn record(&mut self, id: SlotId, recorded: Option<(Now, Event)>, actions: &[Action]) {
        if self.parts.recorder.is_none() {
            return;
        }
        let Some(slot) = self.slots.get(id) else { return };
        let (machine, actions) = (id.serial, actions.to_vec());
        let frame = match recorded {
            Some((now, event)) => Frame::Step { machine, now, event: Box::new(event), actions },
            None => {
                let made = (slot.machine.settings().clone(), slot.machine.ownership().clone());
                Frame::Machine { machine, made: Box::new(made), actions }
            }
        };
        self.write_frame(&frame);
    }

    pub(super) fn write_frame(&mut self, frame: &Frame) {
        let Some(recorder) = &mut self.parts.recorder else { return };
        if let Err(error) = recorder.write(frame) {
            tracing::error!(%error, "recording stopped: it could not be written");
            self.parts.recorder = None;
        }
    }

    /// Hands out the room that there is, and asks for more where it is wished for. Called once a round and never
    /// from within [`Worker::tell`]: thousands may wait for room that comes all at once, and each would be a call
    /// deeper on the stack.
    pub(super) fn give_room(&mut self) {
        loop {
            let (holder, granted) = if let Some((holder, generation)) = self.cap.grant() {
                (holder, Some(generation))
            } else if let Some(holder) = self.cap.evict() {
                (holder, None)
            } else {
                return;
            };
            // A machine that ended has given all its room back.
            let Some(id) = self.by_shard.get(&holder.0.shard).copied() else { continue };
            let entity = holder.1;
            self.tell(
                id,
                match granted {
                    Some(generation) => Event::SlotGranted { entity, generation },
                    None => Event::Evict { entity },
                },
            );
        }
    }

    pub(super) fn tick(&mut self) {
        let now = self.parts.clock.now().mono;
        for id in self.slots.due(now) {
            self.tell(id, Event::Tick);
        }
        self.gauge();
        if let Some(recorder) = &mut self.parts.recorder
            && let Err(error) = recorder.flush()
        {
            tracing::error!(%error, "the recording could not be flushed");
        }
    }

    /// Refuses a message for a shard that has no machine here.
    pub(super) fn not_owner(&mut self, shard: ShardId, back: Back, kind: MessageKind) {
        let text = format!("shard {shard} is not on this node");
        self.answer(back, kind, Epoch(0), Outcome::not_run_retryable(codes::NOT_OWNER, text, 100));
    }

    pub(super) fn reply(&mut self, id: SlotId, token: ReplyToken, outcome: Outcome) {
        let Some(Waiting { back, kind, .. }) = self.tickets.remove(&token) else { return };
        let epoch = self.slots.get(id).map_or(Epoch(0), |slot| slot.epoch());
        self.answer(back, kind, epoch, outcome);
    }

    fn answer(&mut self, back: Back, kind: MessageKind, epoch: Epoch, outcome: Outcome) {
        match &outcome {
            Outcome::NotRun { .. } => Stats::count(&self.parts.stats.not_run),
            Outcome::Unknown { .. } => Stats::count(&self.parts.stats.unknown),
            Outcome::Final { .. } => {}
        }
        match back {
            Back::Gateway { tag, .. } => self.answers.push(Answered { tag, outcome, kind, epoch }),
            Back::Ticket(ticket) => {
                ticket.reply(ostraca_wire::outcome::reply_for_outcome(outcome, kind, epoch))
            }
        }
    }

    /// The round's answers go to the gateway.
    pub(super) fn hand_answers(&mut self) {
        if !self.answers.is_empty() {
            self.parts.answers.answered(&mut self.answers);
            self.answers.clear();
        }
    }

    /// Nobody will hear what becomes of those that still wait.
    pub(super) fn abandon(&mut self) {
        for (_, Waiting { back, kind, .. }) in std::mem::take(&mut self.tickets) {
            let message = "the node stopped before the message's end was known".into();
            self.answer(back, kind, Epoch(0), Outcome::Unknown { message });
        }
    }
}
