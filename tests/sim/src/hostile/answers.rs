//! Completes a shard's pending operations: store calls and turns.

use std::collections::BTreeSet;

use bytes::Bytes;
use ostraca_core::ids::ScopedSessionId;
use ostraca_core::message::MessageKind;
use ostraca_core::records::{ClaimOutcome, GuestReply, RecordKey};
use ostraca_core::shard::{ActivationOutcome, Event, TurnOutput, TurnResult};

use super::{Harness, Pending};
use crate::guest::Work;
use crate::store::{self, Request};
use crate::timers;

impl Harness {
    /// Answers the oldest pending store call.
    pub(super) fn store(&mut self, shard: usize) {
        let Some(Pending::Store(request, generation)) = self.shards[shard].asked.pop_front() else {
            return;
        };
        let fault = if self.faults { self.rng.range(0, 60) } else { 60 };
        let it = &mut self.shards[shard];
        let answer = match fault {
            0 => store::refusal(&request, "no"),
            1 if matches!(request, Request::Commit(_)) => {
                store::unknown(store::refusal(&request, "lost"), "lost")
            }
            _ => {
                let mut answers = it.store.request(1, request);
                answers.extend(it.store.sync());
                let Some((_, answer)) = answers.pop() else { return };
                if fault == 2 { store::unknown(answer, "response lost") } else { answer }
            }
        };
        self.check_store(shard);
        let event = match answer {
            store::Response::Claim(outcome) => {
                let number = self.shards[shard].machine.claim().number;
                self.shards[shard].granted |= matches!(outcome, ClaimOutcome::Granted);
                Event::ClaimResult { number, outcome }
            }
            store::Response::Commit(outcomes) => Event::CommitResults(outcomes),
            store::Response::Load(entity, result) => Event::Loaded { entity, generation, result },
            store::Response::Keys(entity, generation, page) => {
                Event::KeysScanned { entity, generation, page }
            }
            store::Response::Wakes(number, page) => Event::WakesScanned { number, page },
            store::Response::Remembered(number, page) => Event::RememberedScanned { number, page },
            store::Response::Heads(number, page) => Event::HeadsScanned { number, page },
            store::Response::Channel(entity, items) => {
                Event::ChannelRead { entity, reader: 0, items }
            }
            store::Response::State(entity, Ok(_)) => {
                let writes = self.rng.chance(20);
                let result = ActivationOutcome::Started(self.answer(writes, false));
                Event::ActivationResult { entity, generation, result }
            }
            store::Response::State(entity, Err(message)) => {
                let result =
                    ActivationOutcome::Failed { code: "no".into(), message, retry_after: Some(20) };
                Event::ActivationResult { entity, generation, result }
            }
        };
        self.handle_event(shard, event);
    }

    /// Checks that the stored data is consistent.
    fn check_store(&mut self, shard: usize) {
        let image = self.shards[shard].store.durable();
        let mut seen = BTreeSet::new();
        for (entity, _, turn) in &image.turns {
            if let Some(id) = self.ran.get(turn)
                && !seen.insert(id)
            {
                self.report.violations.push(format!("{entity}: {id:?} took effect twice"));
            }
        }
        let fired = self.firings.judge(image);
        self.report.violations.extend(fired.into_iter().map(|found| found.text));
        for (entity, head) in &image.heads {
            let spilled: Vec<ScopedSessionId> = image
                .records
                .keys()
                .filter_map(|(of, key)| match key {
                    RecordKey::Lane(session) if of == entity => Some(*session),
                    _ => None,
                })
                .collect();
            if head.lanes.iter().any(|lane| spilled.contains(&lane.session)) {
                self.report.violations.push(format!("{entity}: a lane is stored twice"));
            }
            if head.spilled_lane_count as usize != spilled.len() {
                let expected = head.spilled_lane_count;
                let text =
                    format!("{entity}: expected {expected} spilled lanes, got {}", spilled.len());
                self.report.violations.push(text);
            }
        }
    }

    fn answer(&mut self, writes: bool, refuses: bool) -> TurnOutput {
        let answer = if refuses {
            GuestReply::Error { code: "no".into(), message: String::new() }
        } else {
            GuestReply::Result(vec![0; self.rng.range(0, 120) as usize].into())
        };
        let value = (Bytes::from_static(b"k"), Some(Bytes::from_static(b"v")));
        TurnOutput {
            writes: if writes && !refuses { vec![value] } else { Vec::new() },
            passivate: self.rng.chance(3),
            ..TurnOutput::without_effects(TurnResult::Replied(answer))
        }
    }

    /// Completes one of the running turns.
    pub(super) fn turn(&mut self, shard: usize) {
        let count = self.shards[shard].turns.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.rng.range(0, count) as usize;
        let Pending::Turn { entity, generation, turn, work } =
            self.shards[shard].turns.swap_remove(at)
        else {
            return;
        };
        let writes =
            !matches!(&work, Work::Message(message) if message.kind != MessageKind::Command);
        let refuses = !matches!(work, Work::Stop) && self.rng.chance(10);
        let mut result = self.answer(writes, refuses);
        if writes && !refuses {
            result.timers = match &work {
                Work::Message(_) => timers::by_message(&mut self.rng, self.now),
                Work::Firing(firing) => timers::by_firing(&mut self.rng, firing, self.now),
                Work::Stop => Vec::new(),
            };
        }
        if self.faults && self.rng.chance(5) {
            let retry_after = self.rng.chance(50).then_some(10);
            result.result =
                TurnResult::Failed { code: "trap".into(), message: String::new(), retry_after };
            result.writes.clear();
            result.timers.clear();
        }
        self.handle_event(shard, Event::TurnDone { entity, generation, turn, result });
    }
}
