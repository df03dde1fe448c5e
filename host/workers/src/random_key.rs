//! The secret from which the random numbers of turns are derived.

use std::fmt;

use ostraca_core::ids::{Entity, MessageId};

/// What separates these hashes from all others.
const DOMAIN: &[u8] = b"ostraca turn seed 1";

/// The cluster's secret. Every node has the same one, so a message's turn has the same seed wherever it runs, and
/// nobody who only knows the message can compute it (R20).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RandomKey([u8; 32]);

impl RandomKey {
    /// The key with these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The seed of a message's turn.
    #[must_use]
    pub fn seed(&self, target: &Entity, id: &MessageId) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [DOMAIN, target.entity_type.as_bytes(), target.id.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&id.session.0);
        hasher.update(&id.sequence.to_le_bytes());
        *hasher.finalize().as_bytes()
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
}
