//! A node's control thread: passes events to its machine and executes the actions.

use ostraca_core::ids::NodeId;
use ostraca_core::node::{Action, ControlMessage, Event, HandOff, Notice, WriteError};
use ostraca_core::rows::{AssignmentsRow, NodeStatus, Row, RowKey};
use ostraca_core::shard::Phase;

use super::process::{Order, Pid};
use super::storage::StoreCall;
use super::{SimEvent, World};
use crate::violation::ViolationKind;

impl World {
    pub(super) fn handle_node_event(&mut self, pid: Pid, event: Event) {
        if let Some(delay) = self.stalled(pid) {
            return self.at(delay, SimEvent::NodeEvent { pid, event });
        }
        let it = &mut self.processes[pid];
        if !it.alive {
            return;
        }
        if it.stalled_until > it.woke_detected_at {
            // The first event after a stall.
            it.woke_detected_at = self.now;
        }
        if let Event::UnrunnableTypes(types) = &event {
            it.has_unrunnable_type = !types.is_empty();
        }
        let now = it.reads(self.now);
        it.machine.handle(now, event.clone());
        let mut actions = Vec::new();
        while let Some(action) = it.machine.poll() {
            actions.push(action);
        }
        self.digest.turn(self.now, pid);
        self.digest.node(&actions);
        if self.trace {
            self.trace_node(pid, &event, &actions);
        }
        if self.keep_scripts {
            self.processes[pid].script.push((now, event, actions.clone()));
        }
        for action in actions {
            if !self.processes[pid].alive {
                return;
            }
            self.apply_node_action(pid, action);
        }
        self.arm_node(pid);
    }

    pub(super) fn arm_node(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        let Some(wake) = it.machine.next_wake() else { return };
        let when = it.world_time(wake).max(self.now + 1);
        if it.armed.is_some_and(|armed| armed <= when) {
            return;
        }
        it.armed = Some(when);
        self.at(when - self.now, SimEvent::NodeTick { pid });
    }

    pub(super) fn node_tick(&mut self, pid: Pid) {
        let it = &mut self.processes[pid];
        if it.armed.is_none_or(|armed| armed > self.now) {
            return;
        }
        it.armed = None;
        if it.machine.next_wake().is_some_and(|wake| wake <= it.mono(self.now)) {
            self.handle_node_event(pid, Event::Tick);
        } else {
            self.arm_node(pid);
        }
    }

    fn apply_node_action(&mut self, pid: Pid, action: Action) {
        match action {
            Action::ListRows => self.call(pid, StoreCall::List),
            Action::ReadRow(key) => self.call(pid, StoreCall::Read(key)),
            Action::WriteRow { request_id: number, key, expected, row } => {
                let step = self.step_of(pid, &key, &row);
                if let Row::Manager(row) = &row {
                    self.guard_campaign(pid, row.term);
                }
                if let Row::Assignments(row) = &row {
                    let moving = row.assignments.iter().filter_map(|shard| shard.hand_off.as_ref());
                    self.guard.asked.extend(moving.map(|moving| moving.id));
                }
                self.writes.insert((pid, number), (step, self.now));
                self.call(pid, StoreCall::Write { number, key, expected, row });
                self.step(pid, step);
            }
            Action::Send { to, message } => {
                self.check_control_message(pid, &to, &message);
                if self.processes[pid].alive {
                    self.send_control_message(pid, &to, message);
                }
            }
            Action::Registered(member) => {
                self.tally.count("transition: registered");
                let it = &mut self.processes[pid];
                it.member = Some(member.clone());
                it.registered_at = self.now;
                it.suspended = None;
                self.route_me(pid, Some(member));
            }
            Action::LeaseRenewed { sent_at: sent, lease } => {
                self.order(pid, Order::Renewed(sent, lease))
            }
            Action::ShardLeaseRenewed { shard, epoch, sent_at, lease } => {
                self.order(pid, Order::ShardLease(shard, epoch, sent_at, lease));
            }
            Action::Suspend => {
                self.tally.count("transition: suspended");
                let it = &mut self.processes[pid];
                it.suspended = Some(it.mono(self.now));
                it.lapsed_at = self.now;
                it.read_back = false;
                self.order(pid, Order::Suspend);
            }
            Action::Resume => {
                self.tally.count("transition: resumed");
                let it = &mut self.processes[pid];
                it.suspended = None;
                // As far as the machine knows: the notification of a claim may be in transit.
                let serves = it.machine.held_shards().any(|(_, _, serving)| serving);
                if serves && !it.read_back {
                    let why = format!("{} resumed before it had read its claims (R9)", it.node);
                    self.violations.push(ViolationKind::ResumedWithoutClaimCheck.because(why));
                }
                self.order(pid, Order::Resume);
            }
            Action::ReadClaims { request_id: number, shards } => {
                self.call(pid, StoreCall::Claims { number, shards });
            }
            Action::StartShard { shard, epoch, member } => {
                self.order(pid, Order::Adopt(shard, epoch, member));
                self.step(pid, "step: shard adopted");
            }
            Action::StopShard { shard, epoch, reason } => {
                self.order(pid, Order::Stop(shard, epoch, reason));
            }
            Action::DropShard { shard, epoch } => {
                self.tally.count("transition: shard forgotten");
                self.order(pid, Order::Forget(shard, epoch));
            }
            Action::UpdateRoute { shard, epoch, owner, hand_off_in_progress: moving } => {
                self.update_route(pid, shard, epoch, owner, moving);
            }
            Action::BufferShard { shard, epoch } => self.buffer_shard(pid, shard, epoch),
            Action::UpdatePeer { member, alive, addresses } => {
                if alive {
                    let site = addresses.first().and_then(|address| {
                        self.sites.iter().position(|site| site.address == *address)
                    });
                    if let Some(site) = site {
                        self.processes[pid].addresses.insert(member.node.clone(), site);
                    }
                } else {
                    self.route_lost(pid, &member);
                }
            }
            Action::CheckProcess { member } => self.check_process(pid, member),
            Action::Notify(notice) => self.record_notice(pid, notice),
            Action::Fenced => {
                self.tally.count("transition: fenced");
                let it = &mut self.processes[pid];
                it.member = None;
                it.suspended = None;
                it.lease_sent = None;
                self.route_me(pid, None);
            }
            Action::ArbitrationLost { number, winner } => {
                self.on_arbitration_lost(pid, number, &winner);
            }
            Action::Left => self.on_left(pid),
        }
    }

    fn record_notice(&mut self, pid: Pid, notice: Notice) {
        if let Notice::ShardsReleased { probation, .. } = &notice {
            self.on_shards_released(pid, *probation);
        }
        self.check_escalation(pid, &notice);
        if let Notice::ManagerSteppedDown { .. } = &notice {
            self.tally.count("transition: manager without host reports stepped down");
        }
        if let Notice::AllocationWaits { .. } = &notice {
            self.tally.count("transition: first allocation waited for hosts");
        }
        if let Notice::ShardStartedLate { .. } = &notice {
            self.tally.count("transition: shard moved for starting late");
        }
        if let Notice::PlacementTimedOut { .. } = &notice {
            self.tally.count("transition: placing program was silent for too long");
        }
        self.print(|| format!("note {notice:?}"));
    }

    /// The purpose of a write, derived from its changes.
    fn step_of(&self, pid: Pid, key: &RowKey, row: &Row) -> &'static str {
        let none = AssignmentsRow::default();
        match (key, row) {
            (RowKey::Manager, _) => "step: leadership write requested",
            (RowKey::Node(node), Row::Node(row))
                if row.status == NodeStatus::Dead && *node != self.processes[pid].node =>
            {
                "step: mark-dead write requested"
            }
            (_, Row::Assignments(row)) => {
                let old = match self.rows.applied(key) {
                    Some((Row::Assignments(old), _)) => old,
                    _ => &none,
                };
                let mut pairs = row.assignments.iter().zip(&old.assignments);
                if old.assignments.is_empty() || pairs.clone().any(|(a, b)| a.owner != b.owner) {
                    "step: owner write requested"
                } else if pairs.any(|(a, b)| a.hand_off.is_some() && a.hand_off != b.hand_off) {
                    "step: intent write requested"
                } else {
                    "step: seal write requested"
                }
            }
            _ => "step: row of a node asked for",
        }
    }

    /// Handles the answer to a write, which is a separate step.
    pub(super) fn wrote_step(
        &mut self,
        pid: Pid,
        call: &StoreCall,
        result: &Result<u64, WriteError>,
    ) {
        let StoreCall::Write { number, key, row, .. } = call else { return };
        if matches!(result, Err(WriteError::Conflict(_))) {
            self.count_conflict(key, row);
        }
        let asked = self.writes.remove(&(pid, *number));
        let it = &mut self.processes[pid];
        if asked.is_some_and(|(_, at)| self.now > at + it.settings.ack_timeout) {
            it.held_up_at = self.now;
        }
        match asked.map(|(step, _)| step) {
            Some("step: owner write requested") if result.is_ok() => {
                self.step(pid, "step: owner written");
            }
            Some("step: intent write requested") if result.is_ok() => {
                self.step(pid, "step: intent written");
            }
            _ => {}
        }
    }

    /// Checks that what a message announces has been written or has happened.
    fn check_control_message(&mut self, pid: Pid, to: &NodeId, message: &ControlMessage) {
        let it = &self.processes[pid];
        let mono = it.mono(self.now);
        let node = it.node.clone();
        match message {
            ControlMessage::BeginHandOff { hand_off: HandOff { id, shard, term, .. }, .. } => {
                let first = !self.processes[pid].begun.contains_key(id);
                if first && id.term != *term {
                    self.tally.count("transition: hand-off continued under a new manager");
                }
                self.processes[pid].begun.entry(*id).or_insert((mono, false));
                if !self.guard.intents.contains(id) {
                    self.violations.push(ViolationKind::SentBeforeWritten.because(format!(
                        "{node} announced a hand-off of shard {shard} to {to}, but no row has it (S15)"
                    )));
                }
                self.step(pid, "step: begin-hand-off sent");
            }
            ControlMessage::HandOff(HandOff { id, shard, .. }) => {
                let ack_wait = it.settings.ack_timeout;
                let begun = self.processes[pid].begun.entry(*id).or_insert((mono, false));
                let first = !std::mem::replace(&mut begun.1, true);
                let waited = mono.saturating_sub(begun.0);
                if first && waited >= ack_wait {
                    self.tally.count("transition: hand-off continued without all acknowledgements");
                }
                if !self.guard.intents.contains(id) {
                    self.violations.push(ViolationKind::SentBeforeWritten.because(format!(
                        "{node} told {to} to hand off shard {shard}, but no row has the hand-off (S15)"
                    )));
                }
                self.step(pid, "step: hand-off sent");
            }
            ControlMessage::BeginHandOffAck { .. } => {
                self.tally.count("transition: begin-hand-off acknowledged");
            }
            ControlMessage::ShardStopped(HandOff { shard, epoch, .. }) => {
                let adopts = it.orders.iter().any(
                    |order| matches!(order, Order::Adopt(of, at, _) if of == shard && at <= epoch),
                );
                let going = it.orders.iter().any(
                    |order| matches!(order, Order::Forget(of, at) if of == shard && at <= epoch),
                );
                let lives = it.shards.get(shard).is_some_and(|hosted| {
                    hosted.epoch <= *epoch
                        && !matches!(hosted.machine.phase(), Phase::Stopped | Phase::Lost)
                });
                if (lives || adopts) && !going {
                    self.violations.push(ViolationKind::StoppedEarly.because(format!(
                        "{node} reported shard {shard} as stopped under {epoch:?} while it held the shard (A16)"
                    )));
                }
                if let Some(member) = it.member.clone() {
                    self.guard.stopped.insert((member, *shard, *epoch));
                }
                self.step(pid, "step: shard-stopped sent");
            }
            ControlMessage::Report(report) => {
                let Some(member) = it.member.clone() else { return };
                for (shard, epoch, _) in &report.refused_claims {
                    self.guard.refused.insert((member.clone(), *shard, *epoch));
                }
            }
            _ => {}
        }
    }

    /// Handles an incoming control message.
    pub(super) fn heard(
        &mut self,
        pid: Pid,
        from: ostraca_core::rows::Member,
        message: ControlMessage,
    ) {
        let stopped = matches!(message, ControlMessage::ShardStopped(_));
        if let ControlMessage::Report(report) = &message {
            self.on_report(&from.node, report);
        }
        if let ControlMessage::ArbiterFlag { number } = &message {
            self.on_flag(pid, *number, &from);
        }
        self.handle_node_event(pid, Event::Received { from, message });
        if stopped && self.processes[pid].alive {
            self.step(pid, "step: shard-stopped received");
        }
    }
}
