//! Executes and checks the machines' actions.

use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::message::Now;
use ostraca_core::records::Commit;
use ostraca_core::shard::{Action, Event};

use super::{Harness, Pending};
use crate::guest::Work;
use crate::store::Request;

impl Harness {
    pub(super) fn handle_event(&mut self, shard: usize, event: Event) {
        let now = Now { mono: self.now, cluster_time: self.now, utc: self.now };
        self.shards[shard].machine.handle(now, event);
        self.carry_out(shard);
        self.give_room();
    }

    fn give_room(&mut self) {
        loop {
            let (holder, event) = if let Some(((shard, entity), generation)) = self.cap.grant() {
                (shard, Event::SlotGranted { entity, generation })
            } else if let Some((shard, entity)) = self.cap.evict() {
                (shard, Event::Evict { entity })
            } else {
                break;
            };
            let shard = holder.shard.0 as usize;
            let now = Now { mono: self.now, cluster_time: self.now, utc: self.now };
            self.shards[shard].machine.handle(now, event);
            self.carry_out(shard);
        }
        if self.cap.granted() > self.most {
            self.report.violations.push("more slots are held than the limit allows".into());
        }
    }

    pub(super) fn carry_out(&mut self, shard: usize) {
        let mut commits: Vec<Commit> = Vec::new();
        while let Some(action) = self.shards[shard].machine.poll() {
            self.apply_action(shard, action, &mut commits);
        }
        if !commits.is_empty() {
            self.ask(shard, Request::Commit(commits), 0);
        }
    }

    fn ask(&mut self, shard: usize, request: Request, generation: u64) {
        self.shards[shard].asked.push_back(Pending::Store(request, generation));
    }

    fn apply_action(&mut self, shard: usize, action: Action, commits: &mut Vec<Commit>) {
        let key = self.shards[shard].machine.ownership().shard.clone();
        let starts = matches!(
            action,
            Action::Activate { .. }
                | Action::Run { .. }
                | Action::Fire { .. }
                | Action::CallStopHook { .. }
        );
        if starts && self.shards[shard].machine.is_suspended() {
            let text = format!("a turn started while its shard was suspended: {action:?}");
            self.report.violations.push(text);
        }
        match action {
            Action::Claim(claim) => self.ask(shard, Request::Claim(claim), 0),
            Action::Commit(commit) => commits.push(*commit),
            Action::Load { entity, generation } => {
                self.ask(shard, Request::Load(entity), generation);
            }
            Action::ScanWakes { number, from, max_records } => {
                self.ask(shard, Request::Wakes { number, from, max_records }, 0);
            }
            // The types of this world have no schemas.
            Action::Migrate { .. } | Action::MigrationFailed { .. } => {}
            // No entity of this world is remembered.
            Action::ScanRemembered { .. } => {}
            // Nobody counts.
            Action::ScanHeads { .. } => {}
            // Nobody reads a channel.
            Action::ReadChannel { .. } => {}
            // And none is deleted.
            Action::ScanKeys { .. } => {}
            Action::RequestSlot { entity, generation, purpose } => {
                self.cap.request((key, entity), generation, purpose);
            }
            Action::ReleaseSlot { entity, generation } => {
                self.cap.release(&(key, entity), generation)
            }
            Action::RefuseEviction { entity } => self.cap.eviction_refused(&(key, entity)),
            Action::MarkIdle { entity } => self.cap.idle((key, entity)),
            Action::Activate { entity, generation, .. } => {
                if self.shards[shard].instances.insert(entity.clone(), generation).is_some() {
                    self.report.violations.push(format!("{entity} has two instances"));
                }
                self.ask(shard, Request::State(entity), generation);
            }
            Action::Run { generation, turn, message, .. } => {
                self.cap.busy(&(key, message.target.clone()));
                self.ran.insert(turn, (message.target.clone(), message.id));
                self.start(shard, message.target.clone(), generation, turn, Work::Message(message));
            }
            Action::Fire { entity, generation, turn, firing, .. } => {
                self.cap.busy(&(key, entity.clone()));
                self.firings.started(turn, &firing, self.now);
                self.report.firings += 1;
                self.start(shard, entity, generation, turn, Work::Firing(firing));
            }
            Action::Ask { .. }
            | Action::AnswerAsk { .. }
            | Action::SendAskNote { .. }
            | Action::ReleaseCall { .. }
            | Action::TimerGaveUp { .. }
            | Action::Tell { .. }
            | Action::AskSender { .. }
            | Action::Escalate { .. }
            | Action::ForgetStopped { .. }
            | Action::TellGaveUp { .. } => {}
            Action::CallStopHook { entity, generation, turn, .. } => {
                self.start(shard, entity, generation, turn, Work::Stop);
            }
            Action::DropInstance { entity, generation } => {
                if self.shards[shard].instances.remove(&entity) != Some(generation) {
                    self.report.violations.push(format!("{entity}: there is no instance to drop"));
                }
            }
            Action::Reply { token, outcome } => self.reply(token, &outcome),
            Action::Lost { .. } => self.end(shard),
            Action::Stopped => {
                let it = &self.shards[shard];
                // A shard that was never granted its claim has written nothing, and does not wait (K14).
                let asks = it.asked.iter().any(|under| match under {
                    Pending::Store(Request::Claim(_), _) => it.granted,
                    Pending::Store(Request::Commit(_), _) => true,
                    _ => false,
                });
                if asks || !commits.is_empty() || !it.instances.is_empty() {
                    self.report
                        .violations
                        .push("the shard was reported as stopped too early".into());
                }
                self.end(shard);
            }
        }
    }

    fn end(&mut self, shard: usize) {
        if std::mem::replace(&mut self.shards[shard].over, true) {
            self.report.violations.push("a machine ended twice".into());
        }
    }

    fn start(&mut self, shard: usize, entity: Entity, generation: u64, turn: TurnId, work: Work) {
        if self.shards[shard].instances.get(&entity) != Some(&generation) {
            self.report.violations.push(format!("{entity} runs without an instance"));
        }
        self.shards[shard].turns.push(Pending::Turn { entity, generation, turn, work });
    }
}
