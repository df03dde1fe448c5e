//! Identifiers of namespaces, pools, shards, nodes, entities, messages and turns.
//!
//! Strings are `Arc<str>`: the same names travel through events, actions and commits, and a
//! turn should not pay for copies of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A shard's number within its pool, from 1 to the pool's shard count (`S6`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How often a shard's owner has changed. Changed only by compare-and-set on the shard's row (R5).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// The random identity of a cluster, created once by `ostraca init`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u128);

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A node's name, unique in its cluster; its certificate contains it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub Arc<str>);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for NodeId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

/// One registration of a node's process: a counter kept in the `ClusterStore`, and a fresh nonce (R7).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Incarnation {
    /// Raised by compare-and-set at each start of the node.
    pub counter: u64,
    /// Random, so that two processes with the same counter still differ.
    pub nonce: u64,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.counter, self.nonce)
    }
}

/// Identifies a shard by namespace, pool and number. Every key of the `EntityStore` starts with it (R23).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardPath {
    /// The namespace; `default` unless specified.
    pub namespace: Arc<str>,
    /// The pool; `default` unless specified.
    pub pool: Arc<str>,
    /// The shard in the pool.
    pub shard: ShardId,
}

impl fmt::Display for ShardPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pool, self.shard)
    }
}

/// An entity: its type and its id, written `counter/alice`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entity {
    /// The entity type, as the manifest names it.
    pub entity_type: Arc<str>,
    /// The entity id: 1 to 512 bytes of UTF-8.
    pub id: Arc<str>,
}

impl Entity {
    /// Creates an entity reference from its two parts.
    pub fn new(kind: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self { entity_type: kind.into(), id: id.into() }
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.entity_type, self.id)
    }
}

/// A session as an entity knows it: a hash of the principal that opened it and of the id that the
/// principal chose, so that no principal can use another's session (R17).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScopedSessionId(pub [u8; 16]);

impl ScopedSessionId {
    /// The session of `principal` with the id that its client chose.
    #[must_use]
    pub fn derive(principal: &str, client_session_id: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(principal.len() as u64).to_le_bytes());
        hasher.update(principal.as_bytes());
        hasher.update(client_session_id);
        Self(first_16(&hasher.finalize()))
    }
}

impl ScopedSessionId {
    /// The session of a sending entity. No client's session equals it, since this hash uses a different key (R19).
    #[must_use]
    pub fn of_entity(sender: &Entity) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ostraca session of a sending entity v1");
        hasher.update(&(sender.entity_type.len() as u64).to_le_bytes());
        hasher.update(sender.entity_type.as_bytes());
        hasher.update(sender.id.as_bytes());
        Self(first_16(&hasher.finalize()))
    }

    /// The session of one ask: the same whenever the asking turn runs again and asks the same thing (R20). `turn`
    /// identifies the turn's input: a message or a firing.
    pub(crate) fn of_ask(asker: &Entity, turn: &[u8], place: u32, digest: &MessageDigest) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("ostraca session of an ask v1");
        for part in [asker.entity_type.as_bytes(), asker.id.as_bytes(), turn] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&place.to_le_bytes());
        hasher.update(&digest.0);
        Self(first_16(&hasher.finalize()))
    }
}

impl fmt::Debug for ScopedSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The id of the client's session that an idempotency key stands for, of which the command with the key is the only
/// message (R17).
#[must_use]
pub fn session_of_idempotency_key(key: &str) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key("ostraca session of an idempotency key v1");
    hasher.update(key.as_bytes());
    first_16(&hasher.finalize())
}

/// A message's id: its session and its sequence within the session (R17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId {
    /// The sender's session.
    pub session: ScopedSessionId,
    /// Starts at 1 and rises within the session, across all its targets.
    pub sequence: u64,
}

/// A hash of the request that a message makes: the same id with a different digest is an error, not a duplicate (R17).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageDigest(pub [u8; 16]);

impl MessageDigest {
    /// The digest of a message's target, method and body.
    #[must_use]
    pub fn compute(target: &Entity, method: &str, body: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [target.entity_type.as_bytes(), target.id.as_bytes(), method.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(first_16(&hasher.finalize()))
    }
}

impl fmt::Debug for MessageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

fn first_16(hash: &blake3::Hash) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&hash.as_bytes()[..16]);
    out
}

/// One attempt to run a turn. Unique across all nodes and restarts, so that a store can distinguish a repeated
/// commit from a different one (R1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct TurnId {
    /// The nonce of the incarnation that ran it.
    pub nonce: u64,
    /// The shard's number: each shard machine of an incarnation counts separately.
    pub shard: u32,
    /// The shard's epoch: successive machines of the same shard also count separately.
    pub epoch: Epoch,
    /// Counts up within the shard's machine.
    pub number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_displayed_as_operators_expect() {
        assert_eq!(ShardId(7).to_string(), "7");
        assert_eq!(ClusterId(255).to_string(), "000000000000000000000000000000ff");
        assert_eq!(format!("{:?}", ClusterId(255)), ClusterId(255).to_string());
        let shard =
            ShardPath { namespace: "default".into(), pool: "fast".into(), shard: ShardId(7) };
        assert_eq!(shard.to_string(), "default/fast/7");
        assert_eq!(Entity::new("counter", "alice").to_string(), "counter/alice");
        let mut bytes = [0; 16];
        bytes[14..].copy_from_slice(&[0x0a, 0xbc]);
        let hex = "00000000000000000000000000000abc";
        assert_eq!(
            format!("{:?} {:?}", ScopedSessionId(bytes), MessageDigest(bytes)),
            format!("{hex} {hex}")
        );
    }
}
