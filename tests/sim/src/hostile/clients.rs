//! What the clients send, and the check that each request is answered once.

use std::sync::Arc;

use ostraca_core::ids::{Entity, MessageDigest, MessageId, ScopedSessionId};
use ostraca_core::message::{Message, MessageKind, Outcome, ReplyToken};
use ostraca_core::shard::Event;

use super::Harness;

impl Harness {
    fn number(&mut self, near: u64) -> u64 {
        match self.rng.range(0, 12) {
            0 => u64::MAX,
            1 => u64::MAX - 1,
            2..=5 => 0,
            6..=8 => near.saturating_sub(1),
            9 => near,
            _ => self.rng.range(0, 25),
        }
    }

    pub(super) fn send(&mut self, shard: usize) {
        let kind = ["plain", "stops", "none"]
            [if self.rng.chance(2) { 2 } else { self.rng.range(0, 2) as usize }];
        let target = Entity::new(kind, format!("{shard}/{}", self.rng.range(0, 3)));
        let session = ScopedSessionId::derive("client/x", &[self.rng.range(0, 6) as u8]);
        // Sequences rise with time, so that there are always unused ones.
        let sequence = match self.rng.range(0, 400) {
            0 => u64::MAX,
            1 => 0,
            _ => (self.now / 100).saturating_sub(self.rng.range(0, 12)),
        };
        let id = MessageId { session, sequence };
        let query = self.rng.chance(25);
        let method = if query { "get" } else { "put" };
        let body = vec![0; if self.rng.chance(5) { 3 } else { 1 }];
        let first = *self.first_sent.entry((target.clone(), id)).or_insert(self.now);
        self.tokens += 1;
        let message = Message {
            sender: None,
            asked_by: None,
            reply_token: ReplyToken(self.tokens),
            digest: MessageDigest::compute(&target, method, &body),
            target,
            id,
            after: self.number(sequence),
            settled: self.number(sequence),
            is_keyed: self.rng.chance(10),
            kind: if query { MessageKind::Query } else { MessageKind::Command },
            method: method.into(),
            body: body.into(),
            created_ms: if self.rng.chance(2) { u64::MAX } else { first },
            first_created_ms: if self.rng.chance(2) { u64::MAX } else { first },
            arrived_at: self.now,
            deadline: match self.rng.range(0, 5) {
                0 => Some(self.now + self.rng.range(0, 120)),
                1 => Some(u64::MAX),
                _ => None,
            },
            context: Default::default(),
        };
        self.open.insert(message.reply_token);
        self.handle_event(shard, Event::Message(Arc::new(message)));
    }

    pub(super) fn reply(&mut self, token: ReplyToken, outcome: &Outcome) {
        if !self.open.remove(&token) {
            self.report.violations.push(format!("a second reply to {token:?}: {outcome:?}"));
        }
        let end = match outcome {
            Outcome::Final { .. } => "final".into(),
            Outcome::NotRun { code, .. } => code.to_string(),
            Outcome::Unknown { .. } => "unknown".into(),
        };
        *self.report.ends.entry(end).or_default() += 1;
    }
}
