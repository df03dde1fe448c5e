//! The outgoing HTTP calls of a running turn (R20). The node makes a call; the machine decides when it may be made, and
//! under which key.
//!
//! As with an ask, nothing is stored about a call. If the turn is abandoned, its message runs again, and the same call
//! gets the same `Idempotency-Key`. Unlike an ask, a call is never sent again within a turn: the guest sees the error.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, Entity};

/// A hash of what a call requests. Its headers and its body are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDigest(pub [u8; 16]);

impl CallDigest {
    /// The digest of a call's method, scheme, authority and path with query.
    #[must_use]
    pub fn compute(method: &str, scheme: &str, authority: &str, path: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ostraca digest of an outgoing call v1");
        for part in [method, scheme, authority, path] {
            hash_part(&mut hasher, part.as_bytes());
        }
        Self(first_16(&hasher))
    }
}

/// The value of a call's `Idempotency-Key` header. Displayed as a UUID of version 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey(pub [u8; 16]);

impl IdempotencyKey {
    /// The key of one call: the same whenever the turn runs again and makes the same call. `turn` identifies the turn's
    /// input: a message or a firing. Two clusters may call the same server, so theirs differ.
    pub(super) fn derive(
        (cluster, namespace): (ClusterId, &str),
        caller: &Entity,
        turn: &[u8],
        place: u32,
        digest: &CallDigest,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ostraca key of an outgoing call v1");
        hasher.update(&cluster.0.to_le_bytes());
        let (entity_type, id) = (caller.entity_type.as_bytes(), caller.id.as_bytes());
        for part in [namespace.as_bytes(), entity_type, id, turn] {
            hash_part(&mut hasher, part);
        }
        hasher.update(&place.to_le_bytes());
        hasher.update(&digest.0);
        let mut key = first_16(&hasher);
        // Version 8 (custom) and variant 2 of RFC 9562.
        key[6] = key[6] & 0x0f | 0x80;
        key[8] = key[8] & 0x3f | 0x80;
        Self(key)
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        f.write_str(&parts.join("-"))
    }
}

fn hash_part(hasher: &mut blake3::Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

fn first_16(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut first = [0; 16];
    hasher.finalize_xof().fill(&mut first);
    first
}

/// The calls of the running turn that have not ended, by place.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    pending: BTreeMap<u32, PendingCall>,
}

#[derive(Clone, Copy, Debug)]
struct PendingCall {
    key: IdempotencyKey,
    released: bool,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether a call waits until it may be made.
    pub(super) fn has_unreleased(&self) -> bool {
        self.pending.values().any(|call| !call.released)
    }

    /// Drops all calls, because the turn has ended.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn start(&mut self, place: u32, key: IdempotencyKey) {
        self.pending.insert(place, PendingCall { key, released: false });
    }

    /// Marks all calls as released, and returns those that were not.
    pub(super) fn release(&mut self) -> Vec<(u32, IdempotencyKey)> {
        let mut released = Vec::new();
        for (place, call) in &mut self.pending {
            if !std::mem::replace(&mut call.released, true) {
                released.push((*place, call.key));
            }
        }
        released
    }

    pub(super) fn end(&mut self, place: u32) {
        self.pending.remove(&place);
    }
}
