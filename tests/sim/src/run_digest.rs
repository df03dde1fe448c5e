//! A digest of everything that a run's machines decide. An unchanged digest shows that a change to the code did not
//! change behaviour.
//!
//! The digest is computed over encoded values, without names of types, fields or variants, and without human-readable
//! messages. So renaming or moving code preserves it, and a different, earlier or reordered decision changes it.
//! `tests/common/mod.rs` compares the digests of many seeds with the recorded ones.

use ostraca_core::message::{Outcome, ReplyToken};
use ostraca_core::{node, shard};
use ostraca_oracle::{Operation, Outcome as Seen};
use serde::Serialize;

/// The digest so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunDigest(blake3::Hasher);

impl RunDigest {
    /// Adds the time at which a machine handles an event, and the machine's number `of` within the run.
    pub(crate) fn turn(&mut self, now: u64, of: usize) {
        self.0.update(&now.to_le_bytes());
        self.0.update(&(of as u64).to_le_bytes());
    }

    /// Adds what a node's machine writes or sends to another node.
    pub(crate) fn node(&mut self, actions: &[node::Action]) {
        for action in actions {
            match action {
                node::Action::WriteRow { request_id: number, key, expected, row } => {
                    self.value(0, &(number, key, expected, row));
                }
                node::Action::Send { to, message } => self.value(1, &(to, message)),
                _ => {}
            }
        }
    }

    /// Adds what a shard's machine claims, commits and answers.
    pub(crate) fn shard(&mut self, actions: &[shard::Action]) {
        for action in actions {
            match action {
                shard::Action::Claim(claim) => self.value(2, claim),
                shard::Action::Commit(commit) => self.value(3, commit),
                shard::Action::Reply { token, outcome } => self.outcome(*token, outcome),
                _ => {}
            }
        }
    }

    fn outcome(&mut self, ReplyToken(token): ReplyToken, outcome: &Outcome) {
        match outcome {
            Outcome::Final { reply: answer, version } => self.value(4, &(token, answer, version)),
            Outcome::NotRun { code, retry_after, suggested_created_ms: stamp, .. } => {
                self.value(5, &(token, code, retry_after, stamp));
            }
            Outcome::Unknown { .. } => self.value(6, &token),
        }
    }

    /// Returns the complete digest, including what the clients saw.
    pub(crate) fn finish(mut self, history: &[Operation]) -> u64 {
        for operation in history {
            let Operation { sequence, command, sent, received, given_up, .. } = operation;
            self.value(7, &(sequence, command, sent, received, given_up));
            match &operation.outcome {
                Seen::Final { version, value } => {
                    let value = value.as_ref().map(ToString::to_string);
                    self.value(8, &(version, value));
                }
                Seen::NotRun => self.value(9, &()),
                Seen::Unknown => self.value(10, &()),
            }
        }
        let hash = self.0.finalize();
        hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn value(&mut self, kind: u8, value: &impl Serialize) {
        let bytes = postcard::to_stdvec(value).unwrap_or_default();
        self.0.update(&[kind]);
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(&bytes);
    }
}
