//! Messages between entities, from a shard's machine through its node's own gateway, and the answers back; and the
//! commands of an operator.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, Epoch, MessageId, ScopedSessionId, ShardId, TurnId};
use ostraca_core::message::{Outcome, ReplyToken};
use ostraca_core::records::{GuestReply, Tell};
use ostraca_core::route::Action;
use ostraca_core::shard::{AskNote, DeadLetterAction, Event, OperatorCommand, encode_dead_letters};
use ostraca_wire::outcome::outcome_for_reply;
use ostraca_wire::proto::{self, Envelope, Reply};

use super::admission::PRINCIPAL;
use super::gateway::PendingMessage;
use super::process::Pid;
use super::{SimEvent, World};

/// How long a tell may take, in milliseconds, before it is sent again.
const TIMEOUT: u64 = 800;
/// The numbers of targets' queries are higher than those of all tells.
pub(super) const QUERIES: u64 = 1 << 63;

/// A message from an entity or an operator that has not been answered yet.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    pub(super) from: Entity,
    pub(super) to: Entity,
    pub(super) what: Content,
}

/// What was sent.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// An ask, and the turn that waits for it.
    Ask(TurnId, MessageId),
    /// A note about asks.
    AskNote(AskNote),
    /// A tell: its number, and the creation time of this copy.
    Tell(u64, u64),
    /// The query for a sender's first tell.
    FirstTell,
    /// An operator's command. The answer to it changes nothing.
    Command(OperatorCommand),
    /// A read of a subscriber, and its number.
    ChannelRead(usize, u64),
}

/// An operator's command on a dead letter, or a copy of the command.
#[derive(Clone, Debug)]
pub(super) struct DeadLetterCommand {
    sender: Entity,
    number: u64,
    action: DeadLetterAction,
    session: ScopedSessionId,
    created_ms: u64,
}

impl World {
    pub(super) fn send_tell(
        &mut self,
        pid: Pid,
        (shard, epoch): (ShardId, Epoch),
        sender: Entity,
        number: u64,
        tell: &Tell,
    ) {
        self.tally.count("tell: sent");
        if self.subscribes {
            let key = (sender.clone(), tell.target.clone(), number);
            self.topics.methods.insert(key, tell.method.clone());
        }
        let envelope = Envelope::of_tell(&sender, number, tell, TIMEOUT);
        let to = tell.target.clone();
        let sent =
            Sent { shard, epoch, from: sender, to, what: Content::Tell(number, tell.created_ms) };
        let session = ScopedSessionId::of_entity(&sent.from);
        self.send_between(pid, sent, session, envelope);
    }

    pub(super) fn ask_sender(
        &mut self,
        pid: Pid,
        (shard, epoch): (ShardId, Epoch),
        entity: Entity,
        sender: Entity,
    ) {
        self.tally.count("tell: a target asked its sender");
        self.tokens += 1;
        let number = QUERIES + self.tokens;
        let envelope = Envelope::of_first_tell_query(&entity, &sender, number, TIMEOUT);
        let sent = Sent { shard, epoch, from: entity, to: sender, what: Content::FirstTell };
        let session = ScopedSessionId::of_entity(&sent.from);
        self.send_between(pid, sent, session, envelope);
    }

    /// Handles a tell that was given up: in most cases, an operator resends or drops it some time later. Some of these
    /// commands are duplicated.
    pub(super) fn tell_given_up(&mut self, sender: Entity, number: u64) {
        self.tally.count("tell: given up");
        if !self.tell_rng.chance(60) {
            return;
        }
        let action = match self.tell_rng.chance(70) {
            true => DeadLetterAction::Resend,
            false => DeadLetterAction::Drop,
        };
        self.tokens += 1;
        let session = ScopedSessionId::derive("operator", &self.tokens.to_be_bytes());
        let command =
            DeadLetterCommand { sender, number, action, session, created_ms: self.now.max(1) };
        for _ in 0..self.tell_rng.range(1, 3) {
            let delay = self.tell_rng.range(1, 1_500);
            self.at(delay, SimEvent::DeadLetters { command: command.clone() });
        }
    }

    pub(super) fn handle_dead_letter(&mut self, command: DeadLetterCommand) {
        let gateways = self.awake_gateways();
        let count = gateways.len() as u64;
        if count == 0 {
            return;
        }
        let pid = gateways[self.tell_rng.range(0, count) as usize];
        let DeadLetterCommand { sender, number, action, session, created_ms } = command;
        self.tally.count(match action {
            DeadLetterAction::Resend => "tell: an operator sends a dead letter again",
            DeadLetterAction::Drop => "tell: an operator drops a dead letter",
        });
        let body = encode_dead_letters(&[number]).into();
        let command = OperatorCommand::DeadLetters(action);
        self.send_command(pid, sender, (command, body), session, created_ms);
    }

    /// The processes through whose gateways an operator can send a command now.
    pub(super) fn awake_gateways(&self) -> Vec<Pid> {
        self.sites
            .iter()
            .filter(|site| site.roles.gateway && !site.copy)
            .filter_map(|site| site.pid)
            .filter(|pid| {
                self.processes[*pid].awake(self.now) && self.processes[*pid].gateway.opened
            })
            .collect()
    }

    /// Sends an operator's command, with its body, through a gateway.
    pub(super) fn send_command(
        &mut self,
        pid: Pid,
        entity: Entity,
        (command, body): (OperatorCommand, Bytes),
        session: ScopedSessionId,
        created_ms: u64,
    ) {
        let envelope = Envelope {
            kind: proto::MessageKind::Command.into(),
            r#type: entity.entity_type.as_ref().into(),
            id: entity.id.as_ref().into(),
            method: command.method().into(),
            body,
            session: Bytes::copy_from_slice(&session.0),
            sequence: 1,
            created_ms,
            remaining_ms: TIMEOUT,
            principal: PRINCIPAL.into(),
            ..Envelope::default()
        };
        let (shard, epoch) = (ShardId(0), Epoch(0));
        let (from, to) = (Entity::new("operator", ""), entity);
        let sent = Sent { shard, epoch, from, to, what: Content::Command(command) };
        self.send_between(pid, sent, session, envelope);
    }

    pub(super) fn send_between(
        &mut self,
        pid: Pid,
        sent: Sent,
        session: ScopedSessionId,
        mut envelope: Envelope,
    ) {
        self.bounds.timeout_limits.apply(&mut envelope);
        self.print(|| {
            let Sent { shard, epoch, from, to, what } = &sent;
            let created = envelope.created_ms;
            format!("{from} -> {to}: {what:?} created {created}, shard {shard} epoch {epoch:?}")
        });
        self.tokens += 1;
        let token = ReplyToken(self.tokens);
        let shard = self.shard_of(&envelope.id);
        let it = &mut self.processes[pid];
        let now = it.mono(self.now);
        let (deadline, bytes) = (envelope.deadline(now, 0), 100 + envelope.body.len());
        it.gateway.sent.insert(token, sent);
        let pending = Arc::new(PendingMessage::new(token, session, envelope, now));
        let step = it.gateway.router.route(now, shard, pending, bytes, deadline);
        if matches!(step, Action::Buffered) {
            self.tally.count("tell: buffered");
        }
        self.steps(pid, vec![step]);
    }

    /// Handles the answer to a message from an entity or an operator. Returns `false` if the message is a client's.
    pub(super) fn between_answered(&mut self, pid: Pid, token: ReplyToken, reply: &Reply) -> bool {
        let Some(sent) = self.processes[pid].gateway.sent.remove(&token) else { return false };
        let Sent { shard, epoch, from, to, what } = sent;
        let is_outside = matches!(what, Content::Command(_) | Content::ChannelRead(..));
        if !is_outside && !self.hosts(pid, shard, epoch) {
            return true;
        }
        let outcome = outcome_for_reply(reply.clone());
        self.print(|| format!("{from} -> {to}: {what:?} answered {outcome:?}"));
        if matches!(&outcome, Outcome::NotRun { code, .. } if code == codes::OVERLOADED.as_str()) {
            self.held_up = self.now;
        }
        let event = match what {
            Content::Command(OperatorCommand::ForgetEntity) => {
                if matches!(outcome, Outcome::Final { .. }) {
                    self.tally.count("operator: an entity is forgotten");
                }
                return true;
            }
            // Operators send none of these here.
            Content::Command(
                OperatorCommand::RestartEntity
                | OperatorCommand::DeleteEntity
                | OperatorCommand::ImportEntity,
            ) => return true,
            Content::Command(OperatorCommand::DeadLetters(_)) => {
                match outcome {
                    Outcome::Final { .. } => self.tally.count("tell: an operator's command ran"),
                    Outcome::NotRun { code, .. } if code == codes::UNKNOWN_DEAD_LETTER.as_str() => {
                        self.tally.count("tell: an operator's command came too late");
                    }
                    _ => {}
                }
                return true;
            }
            Content::ChannelRead(subscriber, number) => {
                self.channel_read(subscriber, number, outcome);
                return true;
            }
            Content::AskNote(_) if matches!(outcome, Outcome::Final { .. }) => return true,
            Content::AskNote(note) => {
                self.tally.count("ask: note lost");
                self.held_up = self.now;
                Event::AskNoteLost { entity: from, target: to, note }
            }
            Content::Ask(turn, id) => {
                self.copy_answered(pid, shard, &from, &id);
                Event::AskAnswered { asker: from, turn, id, outcome }
            }
            Content::Tell(number, created_ms) => {
                if matches!(outcome, Outcome::Unknown { .. }) {
                    self.tally.count("tell: in doubt");
                }
                Event::TellAnswered { sender: from, target: to, number, created_ms, outcome }
            }
            Content::FirstTell => {
                let first = match outcome {
                    Outcome::Final { reply: GuestReply::Result(body), .. } => {
                        <[u8; 8]>::try_from(&body[..]).ok().map(u64::from_be_bytes)
                    }
                    _ => None,
                };
                let first = first.map(|first| (first < u64::MAX).then_some(first));
                if first.is_some() {
                    self.tally.count("tell: a sender answered its target");
                }
                Event::SenderAnswered { entity: from, sender: to, first }
            }
        };
        self.handle_shard_event(pid, shard, event);
        true
    }
}
