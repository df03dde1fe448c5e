//! The secret from which the random numbers of turns are derived.

use std::fmt;

use ostraca_core::ids::{Entity, MessageId};
use ostraca_core::shard::Firing;

/// Domain separators: no other use of the key computes the same hashes.
const DOMAIN: &[u8] = b"ostraca turn seed 1";
const FIRING_DOMAIN: &[u8] = b"ostraca firing seed 1";

/// The cluster's secret. Every node has the same one, so a message's turn has the same seed wherever it runs, and
/// nobody who only knows the message can compute it (R20).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RandomKey([u8; 32]);

impl RandomKey {
    /// Creates the key from its bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The seed of a message's turn.
    #[must_use]
    pub fn seed(&self, target: &Entity, id: &MessageId) -> [u8; 32] {
        let mut hasher = self.hasher(DOMAIN, target);
        hasher.update(&id.session.0);
        hasher.update(&id.sequence.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// The seed of a firing's turn, the same in every attempt.
    #[must_use]
    pub fn firing_seed(&self, entity: &Entity, firing: &Firing) -> [u8; 32] {
        let mut hasher = self.hasher(FIRING_DOMAIN, entity);
        hasher.update(&firing.generation.to_le_bytes());
        hasher.update(&firing.due.to_le_bytes());
        hasher.update(firing.name.as_bytes());
        *hasher.finalize().as_bytes()
    }

    fn hasher(&self, domain: &[u8], entity: &Entity) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [domain, entity.entity_type.as_bytes(), entity.id.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher
    }
}

impl fmt::Debug for RandomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomKey")
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::ScopedSessionId;

    use super::*;

    #[test]
    fn r20_only_the_same_message_has_the_same_seed() {
        let entity =
            |entity_type: &str, id: &str| Entity { entity_type: entity_type.into(), id: id.into() };
        let id =
            |session, sequence| MessageId { session: ScopedSessionId([session; 16]), sequence };
        let key = RandomKey::new([1; 32]);
        let seed = key.seed(&entity("cart", "7"), &id(1, 1));
        assert_eq!(seed, RandomKey::new([1; 32]).seed(&entity("cart", "7"), &id(1, 1)));
        for other in [
            RandomKey::new([2; 32]).seed(&entity("cart", "7"), &id(1, 1)),
            key.seed(&entity("car", "t7"), &id(1, 1)),
            key.seed(&entity("cart", "8"), &id(1, 1)),
            key.seed(&entity("cart", "7"), &id(2, 1)),
            key.seed(&entity("cart", "7"), &id(1, 2)),
        ] {
            assert_ne!(seed, other);
        }
        assert_eq!(format!("{key:?}"), "RandomKey");
    }

    #[test]
    fn r20_only_the_same_firing_has_the_same_seed() {
        let key = RandomKey::new([1; 32]);
        let seed = |id: &str, name: &str, generation, due, attempt| {
            let firing = Firing {
                name: name.into(),
                generation,
                due,
                missed: 0,
                attempt,
                payload: Default::default(),
                utc_ms: due,
            };
            key.firing_seed(&Entity::new("cart", id), &firing)
        };
        let first = seed("7", "t", 1, 5, 1);
        assert_eq!(first, seed("7", "t", 1, 5, 2), "every attempt draws the same numbers");
        for other in [
            seed("8", "t", 1, 5, 1),
            seed("7", "u", 1, 5, 1),
            seed("7", "t", 2, 5, 1),
            seed("7", "t", 1, 6, 1),
        ] {
            assert_ne!(first, other);
        }
    }
}
