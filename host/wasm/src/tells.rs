//! The tells of a turn: messages to other entities, which are committed with the turn (R19).

use std::sync::Arc;

use bytes::Bytes;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// Bytes charged for each tell in addition to its names and body.
const CHARGE: u64 = 100;

/// A message that a turn sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestTell {
    /// The target's type, which the manifest grants.
    pub entity_type: Arc<str>,
    /// The target's id: 1 to 512 bytes.
    pub id: Arc<str>,
    /// 1 to 128 bytes.
    pub method: Arc<str>,
    /// The arguments.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
}

impl GuestTell {
    /// Bytes of its method and its body.
    pub(crate) fn bytes(&self) -> u64 {
        (self.method.len() + self.body.len()) as u64
    }

    /// Bytes of its names and its body.
    pub(crate) fn size(&self) -> u64 {
        let names = self.entity_type.len() + self.id.len() + self.content_type.len();
        self.bytes() + names as u64
    }

    /// Bytes that the turn which sends it is charged.
    fn written(&self) -> u64 {
        self.size() + CHARGE
    }

    /// A tell with a body of this many bytes, and three more bytes of names and method.
    #[cfg(test)]
    pub(crate) fn of_body(body: usize) -> Self {
        Self {
            entity_type: "t".into(),
            id: "i".into(),
            method: "m".into(),
            body: vec![0; body].into(),
            content_type: "".into(),
        }
    }
}

/// How much an entity's outbox holds before a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxUse {
    /// Number of messages that wait to be sent, and of dead letters.
    pub entries: u64,
    /// Bytes of their methods and bodies, dead letters included.
    pub bytes: u64,
}

/// The tells of the current turn.
#[derive(Default)]
pub(crate) struct TurnTells {
    before: OutboxUse,
    tells: Vec<GuestTell>,
    /// Number of emitted items that take a place in the outbox, since they are spread to subscribers.
    items: u64,
    /// Bytes of methods and bodies.
    bytes: u64,
    written: u64,
}

impl TurnTells {
    pub(crate) fn begin(before: OutboxUse) -> TurnTells {
        TurnTells { before, ..TurnTells::default() }
    }

    /// Adds a tell. Fails if that exceeds a limit. `delayed` is the outbox space that is reserved for delayed tells.
    pub(crate) fn add(
        &mut self,
        tell: GuestTell,
        delayed: OutboxUse,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let count = self.tells.len() as u64;
        if count >= limits.turn_keys {
            let (what, setting, limit) = ("tells", "turn-keys", limits.turn_keys);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        if self.written + tell.written() > limits.turn_bytes {
            let (what, setting, limit) = ("bytes of tells", "turn-bytes", limits.turn_bytes);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        self.bytes += tell.bytes();
        self.written += tell.written();
        self.tells.push(tell);
        self.check_room(delayed, limits)
    }

    /// Adds an emitted item that is spread to subscribers. Fails if that exceeds a limit.
    pub(crate) fn add_item(
        &mut self,
        bytes: u64,
        delayed: OutboxUse,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        self.items += 1;
        self.bytes += bytes;
        self.check_room(delayed, limits)
    }

    /// Fails if the outbox lacks space for the turn's tells, now or when the delayed tells leave.
    pub(crate) fn check_room(
        &self,
        delayed: OutboxUse,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let added = self.tells.len() as u64 + self.items;
        if self.before.entries + added + delayed.entries > limits.outbox {
            return Err(HostTrap::OutboxFull { limit: limits.outbox });
        }
        let would = self.before.bytes + self.bytes + delayed.bytes;
        if would > limits.outbox_bytes {
            return Err(HostTrap::OutboxTooLarge { would, limit: limits.outbox_bytes });
        }
        Ok(())
    }

    /// Returns the tells of the turn, which ends.
    pub(crate) fn take(&mut self) -> Vec<GuestTell> {
        (self.items, self.bytes, self.written) = (0, 0, 0);
        std::mem::take(&mut self.tells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_on_tells_are_exact_and_named() {
        let limits = InstanceLimits {
            outbox: 5,
            outbox_bytes: 100,
            turn_keys: 3,
            turn_bytes: 400,
            ..InstanceLimits::default()
        };
        let before = OutboxUse { entries: 3, bytes: 60 };
        let too_large =
            TurnTells::begin(before).add(GuestTell::of_body(40), OutboxUse::default(), &limits);
        assert!(too_large.unwrap_err().to_string().contains("limits.outbox-bytes"), "101 bytes");
        let mut turn = TurnTells::begin(before);
        let mut add = |body| {
            turn.add(GuestTell::of_body(body), OutboxUse::default(), &limits)
                .map_err(|trap| trap.to_string())
        };
        assert_eq!(add(19), Ok(()));
        assert_eq!(add(19), Ok(()));
        assert!(add(0).unwrap_err().contains("limits.outbox is 5"));
        assert_eq!(turn.take().len(), 3, "the turn fails, so the caller discards all three");
        let delayed = OutboxUse { entries: 2, bytes: 38 };
        let mut turn = TurnTells::begin(before);
        assert!(turn.check_room(delayed, &limits).is_ok());
        let full = turn.add(GuestTell::of_body(0), delayed, &limits).unwrap_err().to_string();
        assert!(full.contains("limits.outbox is 5"), "{full}");
        let delayed = OutboxUse { entries: 1, bytes: 41 };
        let full = TurnTells::begin(before).check_room(delayed, &limits).unwrap_err().to_string();
        assert!(full.contains("limits.outbox-bytes"), "{full}");
        let wide = InstanceLimits { outbox: 100, outbox_bytes: 10_000, ..limits };
        let mut turn = TurnTells::begin(before);
        let mut add = |body| {
            turn.add(GuestTell::of_body(body), OutboxUse::default(), &wide)
                .map_err(|trap| trap.to_string())
        };
        assert!(add(300).unwrap_err().contains("`turn-bytes` (400)"));
        for _ in 0..3 {
            assert_eq!(add(0), Ok(()));
        }
        assert!(add(0).unwrap_err().contains("`turn-keys` (3)"));
        let many = InstanceLimits { turn_keys: 10, ..wide };
        let fourth = turn
            .add(GuestTell::of_body(0), OutboxUse::default(), &many)
            .map_err(|trap| trap.to_string());
        assert!(fourth.unwrap_err().contains("`turn-bytes` (400)"), "each tell is charged");
    }
}
