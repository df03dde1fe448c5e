//! What a store keeps for each entity, and what it is asked to write: claims, heads, lanes, commits.
//!
//! Easily confused: a *claim* is a node's right to write a shard; an entity's *head* is the record whose version
//! each commit must name. A store accepts a commit only if both match (R1).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::extensions::{Extensible, Extensions};
use crate::ids::{ClusterId, Entity, Epoch, MessageDigest, ScopedSessionId, ShardPath, TurnId};
use crate::rows::Member;

/// The right to write a shard's records (R1). A shard has one current claim at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The cluster that the claimant belongs to.
    pub cluster: ClusterId,
    /// The claimed shard.
    pub shard: ShardPath,
    /// The epoch under which the shard was assigned.
    pub epoch: Epoch,
    /// The claimant.
    pub owner: Member,
    /// Counts the claims of one incarnation in one epoch: raised after an unknown outcome (R3).
    pub number: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Claim>,
}

impl Extensible for Claim {
    const NAME: &'static str = "Claim";
}

impl Claim {
    /// Whether this claim may replace `current`: it has a higher epoch, or belongs to the same owner and epoch with
    /// an equal or higher number. A claim of another node in the same epoch is refused.
    #[must_use]
    pub fn supersedes(&self, current: &Self) -> bool {
        self.epoch > current.epoch
            || (self.epoch == current.epoch
                && self.owner == current.owner
                && self.number >= current.number)
    }
}

/// An entity's head record. Most turns write nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Number of the entity's turns; 0 if it never had one.
    pub version: u64,
    /// The deployment revision that wrote it (R24).
    pub revision: u64,
    /// The turn that wrote it.
    pub turn: TurnId,
    /// The position of that turn in its shard's commits; assigned by the store, increasing, with gaps.
    pub commit_sequence: u64,
    /// Lanes that are small enough to be stored in the head.
    pub lanes: Vec<Lane>,
    /// Number of further lanes that are stored outside the head, one record each.
    pub spilled_lane_count: u32,
    /// Whether the entity is started again wherever its shard goes (K31).
    pub remembered: bool,
    /// When the entity may be removed, in milliseconds of cluster time.
    pub expires_at: Option<u64>,
    /// Whether the entity was deleted and only its lanes remain.
    pub deleted: bool,
    /// Bytes of keys and values in the entity's state.
    pub state_bytes: u64,
    /// Every command that ran in a lane that has since been dropped was created at or before this time, in
    /// milliseconds of cluster time (R17). Never falls.
    pub watermark: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Head>,
}

impl Extensible for Head {
    const NAME: &'static str = "Head";
}

/// What an entity remembers of one session (R17).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The lane's session.
    pub session: ScopedSessionId,
    /// The highest sequence that ran; it and lower ones never run again.
    pub last_sequence: u64,
    /// Cluster time of the last use, in milliseconds: clients' lanes expire by it.
    pub used_at: u64,
    /// The highest creation time of any command that ran in the lane. The watermark rises to it when the lane is
    /// dropped.
    pub newest_created: u64,
    /// A short hash of the principal that owns the session.
    pub principal_tag: u32,
    /// Replies that the session has not settled yet, in ascending order of sequence.
    pub replies: Vec<RecordedReply>,
    /// Fields of later releases.
    pub extensions: Extensions<Lane>,
}

impl Extensible for Lane {
    const NAME: &'static str = "Lane";
}

/// A command's recorded outcome, with which every copy of it is answered (R16).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedReply {
    /// The command's sequence in its session.
    pub sequence: u64,
    /// The digest of the command.
    pub digest: MessageDigest,
    /// The entity's version after the command.
    pub version: u64,
    /// The outcome.
    pub reply: GuestReply,
    /// Fields of later releases.
    pub extensions: Extensions<RecordedReply>,
}

impl Extensible for RecordedReply {
    const NAME: &'static str = "RecordedReply";
}

/// How a guest answered. Both kinds are final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestReply {
    /// The method's result.
    Result(Bytes),
    /// An application error: the turn had no effect except this record (R21).
    Error {
        /// The guest's own error code.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The turn was recorded, and its answer is no longer kept. Only in lanes and in answers to copies.
    Dropped,
}

impl GuestReply {
    /// The size in bytes, as counted for limits.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Result(body) => body.len(),
            Self::Error { code, message } => code.len() + message.len(),
            Self::Dropped => 0,
        }
    }

    /// Whether it has no content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One change of a record outside the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordWrite {
    /// The record's key.
    pub key: RecordKey,
    /// Its new value; `None` deletes it.
    pub value: Option<Bytes>,
}

/// The records of an entity other than its head.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RecordKey {
    /// A key of the entity's state.
    State(Bytes),
    /// A lane that is too large for the head; its value is a postcard-encoded [`Lane`].
    Lane(ScopedSessionId),
}

/// One turn's effects, to be written atomically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The claim that must be current, exactly as it is here.
    pub claim: Arc<Claim>,
    /// The entity that the turn ran on.
    pub entity: Entity,
    /// The version that the stored head must have; 0 if there must be no head.
    pub expected_version: u64,
    /// The new head: its version is `from + 1`, and its turn names this attempt.
    pub head: Head,
    /// Changes of the records outside the head.
    pub writes: Vec<RecordWrite>,
    /// Fields of later releases.
    pub extensions: Extensions<Commit>,
}

impl Extensible for Commit {
    const NAME: &'static str = "Commit";
}

/// The outcome of one commit (R3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitOutcome {
    /// Durable.
    Committed,
    /// Durable since an earlier attempt with the same turn id.
    AlreadyCommitted,
    /// It had no effect and never will.
    Refused(CommitRefusal),
    /// It is unknown until the shard is claimed again.
    Unknown(String),
}

/// Why a commit was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitRefusal {
    /// Another claim is current, or none.
    ClaimMismatch {
        /// The current claim.
        current: Option<Box<Claim>>,
    },
    /// The head has another version.
    VersionMismatch {
        /// The stored version.
        stored: u64,
    },
    /// A limit of the store that may pass: low disk space, a full queue, or the store stopped before writing.
    LimitReached(String),
    /// No store of the cluster will ever accept it: a record or the whole turn is too large.
    TooLarge(String),
}

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimOutcome {
    /// The claim is current, durably; every earlier commit of the shard has taken effect or never will.
    Granted,
    /// Another claim is current; the manager assigns a higher epoch (R5).
    Refused {
        /// The current claim.
        current: Box<Claim>,
    },
    /// The store belongs to another cluster (R5).
    OtherCluster {
        /// The cluster that it belongs to.
        store_cluster: ClusterId,
    },
    /// The outcome is unknown; claim again.
    Failed(String),
}

/// The result of a load: durable, complete, and after all commits of the entity that were queued before it (R2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedEntity {
    /// The head, if the entity ever had a turn.
    pub head: Option<Head>,
    /// The lanes outside the head.
    pub lanes: Vec<Lane>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, ShardId};

    fn claim(epoch: u64, node: &str, counter: u64, number: u64) -> Claim {
        Claim {
            cluster: ClusterId(1),
            shard: ShardPath {
                namespace: "default".into(),
                pool: "default".into(),
                shard: ShardId(1),
            },
            epoch: Epoch(epoch),
            owner: Member {
                node: node.into(),
                incarnation: Incarnation { counter, nonce: counter },
            },
            number,
            extensions: Extensions::default(),
        }
    }

    #[test]
    fn r1_a_claim_is_superseded_by_later_epochs_and_its_owner() {
        let current = claim(5, "a", 1, 3);
        for (higher, number) in [(6, 0), (6, 3), (7, 9)] {
            assert!(claim(higher, "b", 2, number).supersedes(&current));
            assert!(!current.supersedes(&claim(higher, "b", 2, number)));
        }
        // A claim of a lower epoch is always refused, even from the same owner and with a higher number.
        assert!(!claim(4, "a", 1, 9).supersedes(&current));
        // In the same epoch only the same incarnation of the same node may claim again, and only with an equal or
        // higher number.
        assert!(claim(5, "a", 1, 3).supersedes(&current));
        assert!(claim(5, "a", 1, 4).supersedes(&current));
        assert!(!claim(5, "a", 1, 2).supersedes(&current));
        assert!(!claim(5, "a", 2, 4).supersedes(&current));
        assert!(!claim(5, "b", 1, 4).supersedes(&current));
    }

    #[test]
    fn a_guest_reply_length_counts_its_code_and_text() {
        let error = GuestReply::Error { code: "full".into(), message: "no room".into() };
        assert_eq!(error.len(), 11);
        assert!(!error.is_empty());
        assert_eq!(GuestReply::Result(Bytes::from_static(b"abc")).len(), 3);
        assert!(GuestReply::Result(Bytes::new()).is_empty());
        assert!(GuestReply::Dropped.is_empty());
    }
}
