//! The tells of a turn: messages to other entities, which are committed with it (R19).

use std::sync::Arc;

use bytes::Bytes;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// Bytes charged for each tell in addition to those of names and body.
const CHARGE: u64 = 100;

/// A message that a turn sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestTell {
    /// The target's type, which is granted.
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

    /// What a turn that sends it is charged for writing it.
    fn written(&self) -> u64 {
        self.size() + CHARGE
    }

    /// One with a body of this many bytes, and three more in its names and method.
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
    /// Messages that wait to be sent, and dead letters.
    pub entries: u64,
    /// Bytes of the methods and bodies of those that wait.
    pub bytes: u64,
}

/// The tells of the current turn.
#[derive(Default)]
pub(crate) struct TurnTells {
    before: OutboxUse,
    tells: Vec<GuestTell>,
    /// Bytes of methods and bodies.
    bytes: u64,
    written: u64,
}

impl TurnTells {
    pub(crate) fn begin(before: OutboxUse) -> TurnTells {
        TurnTells { before, ..TurnTells::default() }
    }

    /// Adds a tell, unless that exceeds a limit. Delayed tells have their room in the outbox already.
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

    /// Refuses what the outbox has no room for, now or when the delayed tells leave.
    pub(crate) fn check_room(
        &self,
        delayed: OutboxUse,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        if self.before.entries + self.tells.len() as u64 + delayed.entries > limits.outbox {
            return Err(HostTrap::OutboxFull { limit: limits.outbox });
        }
        let would = self.before.bytes + self.bytes + delayed.bytes;
        if would > limits.outbox_bytes {
            return Err(HostTrap::OutboxTooLarge { would, limit: limits.outbox_bytes });
        }
        Ok(())
    }

    /// The tells of the turn, which ends.
    pub(crate) fn take(&mut self) -> Vec<GuestTell> {
        (self.bytes, self.written) = (0, 0);
        std::mem::take(&mut self.tells)
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
        assert!(too_large.unwrap_err().to_string().contains("limits.outbox-bytes"), "one too many");
        let mut turn = TurnTells::begin(before);
        let mut add = |body| {
            turn.add(GuestTell::of_body(body), OutboxUse::default(), &limits)
                .map_err(|trap| trap.to_string())
        };
        assert_eq!(add(19), Ok(()));
        assert_eq!(add(19), Ok(()));
        assert!(add(0).unwrap_err().contains("limits.outbox is 5"));
        assert_eq!(turn.take().len(), 3, "the turn fails, and nothing of it is kept");
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
        assert!(fourth.unwrap_err().contains("`turn-bytes` (400)"), "each tell has its charge");
    }
}
