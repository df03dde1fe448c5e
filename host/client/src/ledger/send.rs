//! What is sent next, and the fields that are filled in then.

use std::time::{Duration, Instant};

use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Problem};
use prost::Message as _;

use super::{Ledger, Mutation, Stall, State};

impl<W> Ledger<W> {
    /// The ready message with the lowest sequence, if the window has capacity. It counts as sent from now on.
    pub fn next_to_send(&mut self, now: Instant) -> Option<&Envelope> {
        let sequence = loop {
            if self.messages_in_flight >= self.limits.messages
                || self.bytes_in_flight >= self.limits.bytes
            {
                return None;
            }
            let sequence = self.ready.pop_first()?;
            match self.too_large(sequence) {
                Some(problem) => self.complete_without_reply(sequence, problem, now),
                None if self.apply_restamp(sequence, now) => break sequence,
                None => {}
            }
        };
        let after = self.after(sequence);
        // Gateways refuse a value above the message's own sequence, which only `Mutation::SettleUnreadReplies` can
        // produce.
        let settled = self.settled().min(sequence);
        let call = self.calls.get_mut(&sequence)?;
        call.state = State::InFlight;
        let envelope = &mut call.message.envelope;
        envelope.sequence = sequence;
        envelope.after = after;
        envelope.settled = settled;
        envelope.created_ms = call.message.created_ms;
        // 0 would mean no deadline.
        envelope.remaining_ms = millis(call.message.deadline.saturating_duration_since(now)).max(1);
        call.bytes = envelope.encoded_len() as u64;
        // Starts a new stall, unless one is in progress.
        let since = now.checked_sub(self.stalled_before).unwrap_or(now);
        self.stall.get_or_insert(Stall { since, rejected_by_gateway: false });
        self.messages_in_flight += 1;
        self.bytes_in_flight += call.bytes;
        Some(&call.message.envelope)
    }

    /// The last unresolved sequence below `sequence` to the same entity; 0 if there is none (R17).
    fn after(&self, sequence: u64) -> u64 {
        self.calls
            .get(&sequence)
            .filter(|_| !self.has_mutation(Mutation::OmitAfter))
            .and_then(|call| self.by_entity.get(&call.message.entity))
            .and_then(|lane| lane.range(..sequence).next_back())
            .copied()
            .unwrap_or(0)
    }

    fn too_large(&self, sequence: u64) -> Option<Problem> {
        let envelope = &self.calls.get(&sequence)?.message.envelope;
        // Maximum size of the fields that are filled in when the message is sent.
        const FILLED_IN: usize = 64;
        let (size, body) = (envelope.encoded_len() + FILLED_IN, envelope.body.len());
        let (what, size, limit, setting) = if body > self.limits.max_message as usize {
            ("body", body, self.limits.max_message, "network.max-message")
        } else if size > self.limits.max_frame as usize {
            ("message", size, self.limits.max_frame, "max_frame")
        } else {
            return None;
        };
        let text =
            format!("{what} of {size} bytes exceeds the node's limit of {limit} (`{setting}`)");
        let mut large = problem(codes::MESSAGE_TOO_LARGE, text);
        large.details.insert("setting".into(), setting.into());
        large.details.insert("limit".into(), limit.to_string());
        Some(large)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
