//! The records that a store keeps for each entity, and the writes that it is asked for: claims, heads, lanes, commits.
//!
//! Easily confused: a *claim* is a node's right to write a shard; an entity's *head* is the record whose version
//! each commit must name. A store accepts a commit only if both match (R1).

mod channel;
mod claim;
mod floor;
mod subscription;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{ClusterId, Entity, MessageDigest, ScopedSessionId, TurnId};
pub use channel::{ChannelCursor, ChannelCut, ChannelExtent, ChannelItem, InvalidCursor};
pub use claim::{Claim, Placement, Presence};
pub use floor::HeadFloor;
pub use subscription::{Subscription, SubscriptionCounts, SubscriptionPage};

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
    pub lanes: Vec<Arc<Lane>>,
    /// Number of further lanes that are stored outside the head, one record each.
    pub spilled_lane_count: u32,
    /// Whether the entity is started again wherever its shard goes (K31).
    pub remembered: bool,
    /// When the entity is deleted, in milliseconds since the Unix epoch (UTC); `None` if no time is set. For a deleted
    /// entity: when it is examined whether this head can be removed.
    pub expires_at: Option<u64>,
    /// Whether the entity was deleted and no turn of its guest was committed since. Its lanes and its outbox remain.
    pub deleted: bool,
    /// Total size of the keys and values in the entity's state, in bytes.
    pub state_bytes: u64,
    /// Every command that ran in a lane that has since been dropped was created at or before this time, in
    /// milliseconds of cluster time (R17). Never falls.
    pub watermark: u64,
    /// Fields of later releases.
    pub extensions: Extensions<Head>,
}

impl Extensible for Head {
    const NAME: &'static str = "Head";
    const FIELDS: &'static [u32] = &[
        Head::SCHEMA,
        Head::TIMERS,
        Head::OUTBOX,
        Head::TELL_WATERMARK,
        Head::JOURNAL,
        Head::CHANNELS,
        Head::GENERATION,
        Head::DELETION,
        Head::SUBSCRIPTIONS,
        Head::REMOVED,
    ];
}

impl Head {
    /// The field with the schema of the state (u32); absent if it is 0.
    const SCHEMA: u32 = 2;
    /// The field with the number of the entity's timers (u32); absent if there are none.
    const TIMERS: u32 = 4;
    /// The field with the number of its outbox entries and of its dead letters (u32, u32); absent if there are none.
    const OUTBOX: u32 = 6;
    /// The field with the tell watermark (u64); absent if it is 0.
    const TELL_WATERMARK: u32 = 8;
    /// The field with the extent of the journal ([`JournalExtent`]); absent if the journal was never used.
    const JOURNAL: u32 = 10;
    /// The field with the extents of the channels ([`ChannelExtent`]), ordered by name; absent if there are none.
    const CHANNELS: u32 = 12;
    /// The field with the number of deletions (u64); absent if the entity was never deleted.
    const GENERATION: u32 = 14;
    /// The field with the flags of deletion and expiry (u8); absent if none is set.
    const DELETION: u32 = 16;
    /// The field with the numbers of subscriptions ([`SubscriptionCounts`]); absent if there are none.
    const SUBSCRIPTIONS: u32 = 24;
    /// The field that says that the head itself is not stored (bool); absent if it is.
    const REMOVED: u32 = 26;
    /// Records from before the deletion may remain.
    const REMAINS: u8 = 1;
    /// The guest chose when the entity expires.
    const OWN_EXPIRY: u8 = 2;

    /// The schema of the entity's state: what its component's `schema-version` returned when the entity was created, or
    /// when it was last migrated (R24).
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn schema(&self) -> Result<u32, CodecError> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        Ok(self.extensions.get(Self::SCHEMA)?.unwrap_or_default())
    }

    /// Sets the schema of the state.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_schema(&mut self, schema: u32) -> Result<(), CodecError> {
        self.set_or_take(Self::SCHEMA, &schema)
    }

    /// The number of the entity's timers, which are stored outside the head (R25).
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn timer_count(&self) -> Result<u32, CodecError> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        Ok(self.extensions.get(Self::TIMERS)?.unwrap_or_default())
    }

    /// Sets the number of timers.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_timer_count(&mut self, count: u32) -> Result<(), CodecError> {
        self.set_or_take(Self::TIMERS, &count)
    }

    /// The number of the entity's outbox entries and of its dead letters, which are stored outside the head (R19).
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn outbox_counts(&self) -> Result<(u32, u32), CodecError> {
        if self.extensions.is_empty() {
            return Ok((0, 0));
        }
        Ok(self.extensions.get(Self::OUTBOX)?.unwrap_or_default())
    }

    /// Sets the numbers of outbox entries and of dead letters.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_outbox_counts(&mut self, counts: (u32, u32)) -> Result<(), CodecError> {
        self.set_or_take(Self::OUTBOX, &counts)
    }

    /// Every tell that ran in a lane that has since been dropped was created at or before this time, in milliseconds of
    /// cluster time (R19). Never falls. Tells have their own watermark, since clients' lanes are dropped without asking
    /// their sessions.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn tell_watermark(&self) -> Result<u64, CodecError> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        Ok(self.extensions.get(Self::TELL_WATERMARK)?.unwrap_or_default())
    }

    /// Sets the tell watermark.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_tell_watermark(&mut self, watermark: u64) -> Result<(), CodecError> {
        self.set_or_take(Self::TELL_WATERMARK, &watermark)
    }

    /// The extent of the entity's journal, whose events are stored outside the head (E18).
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn journal(&self) -> Result<JournalExtent, CodecError> {
        if self.extensions.is_empty() {
            return Ok(JournalExtent::default());
        }
        Ok(self.extensions.get(Self::JOURNAL)?.unwrap_or_default())
    }

    /// Sets the extent of the journal.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_journal(&mut self, extent: &JournalExtent) -> Result<(), CodecError> {
        self.set_or_take(Self::JOURNAL, extent)
    }

    /// The channels on which the entity has emitted items, by name.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn channels(&self) -> Result<BTreeMap<Arc<str>, ChannelExtent>, CodecError> {
        if self.extensions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let extents: Vec<ChannelExtent> = self.extensions.get(Self::CHANNELS)?.unwrap_or_default();
        Ok(extents.into_iter().map(|extent| (extent.name.clone(), extent)).collect())
    }

    /// Sets the extents of the channels.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_channels(
        &mut self,
        channels: &BTreeMap<Arc<str>, ChannelExtent>,
    ) -> Result<(), CodecError> {
        let extents: Vec<ChannelExtent> = channels.values().cloned().collect();
        self.set_or_take(Self::CHANNELS, &extents)
    }

    /// How often the entity was deleted (E17). Its version continues across deletions, and never falls.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn generation(&self) -> Result<u64, CodecError> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        Ok(self.extensions.get(Self::GENERATION)?.unwrap_or_default())
    }

    /// Sets the number of deletions.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_generation(&mut self, generation: u64) -> Result<(), CodecError> {
        self.set_or_take(Self::GENERATION, &generation)
    }

    /// How many other entities have subscribed to the entity's channels (R27). The subscriptions are stored outside the
    /// head.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn subscriptions(&self) -> Result<SubscriptionCounts, CodecError> {
        if self.extensions.is_empty() {
            return Ok(SubscriptionCounts::default());
        }
        Ok(self.extensions.get(Self::SUBSCRIPTIONS)?.unwrap_or_default())
    }

    /// Sets the numbers of subscriptions.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_subscriptions(&mut self, counts: SubscriptionCounts) -> Result<(), CodecError> {
        self.set_or_take(Self::SUBSCRIPTIONS, &counts)
    }

    /// Whether the entity was deleted, and records from before the deletion may remain. No guest runs until they are
    /// removed.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn is_purged(&self) -> Result<bool, CodecError> {
        Ok(self.deletion()? & Self::REMAINS != 0)
    }

    /// Sets whether records from before the deletion may remain.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_purged(&mut self, is_purged: bool) -> Result<(), CodecError> {
        self.set_deletion(Self::REMAINS, is_purged)
    }

    /// Whether the guest chose [`expires_at`](Self::expires_at); otherwise it follows from the type's time to live.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn has_own_expiry(&self) -> Result<bool, CodecError> {
        Ok(self.deletion()? & Self::OWN_EXPIRY != 0)
    }

    /// Sets whether the guest chose when the entity expires.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_own_expiry(&mut self, is_own: bool) -> Result<(), CodecError> {
        self.set_deletion(Self::OWN_EXPIRY, is_own)
    }

    /// Whether the entity has no head of its own. In a commit, the store removes the stored head and raises the shard's
    /// [`HeadFloor`] to this one; in the result of a load, the head is made from the floor. Never stored.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn is_removed(&self) -> Result<bool, CodecError> {
        if self.extensions.is_empty() {
            return Ok(false);
        }
        Ok(self.extensions.get(Self::REMOVED)?.unwrap_or_default())
    }

    /// Sets whether the entity has no head of its own.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_removed(&mut self, is_removed: bool) -> Result<(), CodecError> {
        self.set_or_take(Self::REMOVED, &is_removed)
    }

    fn deletion(&self) -> Result<u8, CodecError> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        Ok(self.extensions.get(Self::DELETION)?.unwrap_or_default())
    }

    fn set_deletion(&mut self, flag: u8, is_set: bool) -> Result<(), CodecError> {
        let flags = self.deletion()? & !flag | if is_set { flag } else { 0 };
        self.set_or_take(Self::DELETION, &flags)
    }

    /// Sets a field, or removes it if it has its default value.
    fn set_or_take<V: Serialize + DeserializeOwned + Default + PartialEq>(
        &mut self,
        number: u32,
        value: &V,
    ) -> Result<(), CodecError> {
        if *value != V::default() {
            return self.extensions.set(number, value);
        }
        self.extensions.take::<V>(number).map(drop)
    }
}

/// What an entity remembers about one session (R17).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The lane's session.
    pub session: ScopedSessionId,
    /// The highest sequence that ran; it and lower ones never run again.
    pub last_sequence: u64,
    /// Cluster time of the last use, in milliseconds: the expiry of clients' lanes depends on it.
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
    const FIELDS: &'static [u32] = &[Lane::SENDER, Lane::KEYED];
}

impl Lane {
    /// The field with the sending entity; absent if the lane belongs to a client's session. Required: a release that
    /// dropped the lane by time would forget a sender that may still send again (R19).
    const SENDER: u32 = 1;
    /// The field that says that the lane belongs to an idempotency key (bool); absent if it does not. Required: a
    /// release that dropped the lane early would let a repeated request run again.
    const KEYED: u32 = 3;

    /// Whether the lane belongs to an idempotency key, and so keeps its reply for a time (R17).
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn is_keyed(&self) -> Result<bool, CodecError> {
        if self.extensions.is_empty() {
            return Ok(false);
        }
        Ok(self.extensions.get(Self::KEYED)?.unwrap_or_default())
    }

    /// Makes this the lane of an idempotency key.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_keyed(&mut self) -> Result<(), CodecError> {
        self.extensions.set(Self::KEYED, &true)
    }

    /// The entity that sends in this lane; `None` if the lane belongs to a client's session.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn sender(&self) -> Result<Option<Entity>, CodecError> {
        if self.extensions.is_empty() {
            return Ok(None);
        }
        self.extensions.get(Self::SENDER)
    }

    /// Makes this the lane of a sending entity.
    ///
    /// # Errors
    /// [`CodecError`] if the entity's name is too long for the block.
    pub fn set_sender(&mut self, sender: &Entity) -> Result<(), CodecError> {
        self.extensions.set(Self::SENDER, sender)
    }
}

/// A command's recorded outcome, which every copy of the command gets as its reply (R16).
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

/// A guest's reply. Every variant is final.
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
    /// The turn was recorded, and its reply is no longer kept. Only in lanes and in replies to copies.
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

/// A durable timer of an entity (R25).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Unique in the entity; not empty.
    pub name: Arc<str>,
    /// The entity's version after the turn that set it. Setting a timer of the same name again starts a new generation.
    pub generation: u64,
    /// When it fires next, in milliseconds since the Unix epoch (UTC).
    pub due: u64,
    /// Milliseconds between firings; 0 if it fires once.
    pub interval: u64,
    /// The guest's own bytes.
    pub payload: Bytes,
    /// How many attempts at the firing at `due` have failed.
    pub attempts: u32,
    /// When the firing is attempted again, in milliseconds since the Unix epoch (UTC); 0 if no attempt has failed.
    pub retry_at: u64,
    /// Why the last attempt failed; empty if none did.
    pub failure: Arc<str>,
    /// Whether it failed too often, so that it will not fire until it is set again.
    pub set_aside: bool,
    /// Fields of later releases.
    pub extensions: Extensions<Timer>,
}

impl Extensible for Timer {
    const NAME: &'static str = "Timer";
}

impl Timer {
    /// When it fires or is attempted again, in milliseconds since the Unix epoch (UTC); `None` if it was set aside.
    #[must_use]
    pub fn fires_at(&self) -> Option<u64> {
        (!self.set_aside).then_some(self.due.max(self.retry_at).min(OWN_TIMERS - 1))
    }
}

/// A tell that leaves when its timer is due (R19). It is encoded in that timer's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayedTell {
    /// The entity that it is sent to.
    pub target: Entity,
    /// The method's name.
    pub method: Arc<str>,
    /// The arguments; opaque to the core.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context of the turn that set it.
    pub traceparent: Arc<str>,
    /// Fields of later releases.
    pub extensions: Extensions<DelayedTell>,
}

impl Extensible for DelayedTell {
    const NAME: &'static str = "DelayedTell";
}

/// The due time under which an entity's timers are stored, so that they can be found by entity. No scan for wake-ups
/// reaches it.
pub const OWN_TIMERS: u64 = u64::MAX;

/// A tell waiting in its sender's outbox, or a dead letter (R19). Its number is part of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tell {
    /// The entity that it is sent to.
    pub target: Entity,
    /// The method's name.
    pub method: Arc<str>,
    /// The arguments; opaque to the core.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context of the turn that sent it.
    pub traceparent: Arc<str>,
    /// When it was created, in milliseconds of cluster time (R17).
    pub created_ms: u64,
    /// The time of the turn that sent it (of a delayed tell: when it left), in milliseconds since the Unix epoch (UTC).
    /// The target's turn reads this time.
    pub utc_ms: u64,
    /// How many attempts have failed.
    pub attempts: u32,
    /// When it is sent again, in milliseconds since the Unix epoch (UTC); 0 if no attempt has failed.
    pub retry_at: u64,
    /// Why the last attempt failed; empty if none did.
    pub failure: Arc<str>,
    /// Fields of later releases.
    pub extensions: Extensions<Tell>,
}

impl Extensible for Tell {
    const NAME: &'static str = "Tell";
    const FIELDS: &'static [u32] = &[Tell::FIRST_CREATED];
}

impl Tell {
    /// The field of the first creation time (u64); absent if the tell was never restamped.
    const FIRST_CREATED: u32 = 2;

    /// Its first creation time, in milliseconds of cluster time.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn first_created_ms(&self) -> Result<u64, CodecError> {
        if self.extensions.is_empty() {
            return Ok(self.created_ms);
        }
        Ok(self.extensions.get(Self::FIRST_CREATED)?.unwrap_or(self.created_ms))
    }

    /// Gives it the creation time of a new tell, which has no earlier one.
    pub fn recreate(&mut self, created_ms: u64) {
        self.created_ms = created_ms;
        // A damaged field is removed too.
        let _ = self.extensions.take::<u64>(Self::FIRST_CREATED);
    }

    /// Replaces the creation time, and keeps the first one.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no room.
    pub fn restamp(&mut self, created_ms: u64) -> Result<(), CodecError> {
        let first = self.first_created_ms()?;
        self.extensions.set(Self::FIRST_CREATED, &first)?;
        self.created_ms = created_ms;
        Ok(())
    }
}

/// Which events an entity's journal holds, and how large they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalExtent {
    /// The number of the first event that is kept; `next` if none is.
    pub first: u64,
    /// The number of the next event; 1 if there was none yet.
    pub next: u64,
    /// Bytes of all events before `first`.
    pub start: u64,
    /// Bytes of all events before `next`.
    pub end: u64,
    /// The number of the last event that the snapshot includes.
    pub snapshot: u64,
    /// Bytes of the snapshot; 0 if there is none.
    pub snapshot_bytes: u64,
    /// The entity's version after the turn that saved the snapshot.
    pub snapshot_version: u64,
}

impl Default for JournalExtent {
    fn default() -> Self {
        Self {
            first: 1,
            next: 1,
            start: 0,
            end: 0,
            snapshot: 0,
            snapshot_bytes: 0,
            snapshot_version: 0,
        }
    }
}

impl JournalExtent {
    /// Size of the kept events and of the snapshot in bytes, as counted for limits.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start).saturating_add(self.snapshot_bytes)
    }
}

/// An event in an entity's journal. Its number is part of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEvent {
    /// Bytes of all events before it, including those that were removed since.
    pub start: u64,
    /// The guest's own bytes.
    pub data: Bytes,
    /// Fields of later releases.
    pub extensions: Extensions<JournalEvent>,
}

impl Extensible for JournalEvent {
    const NAME: &'static str = "JournalEvent";
}

/// A summary of a journal's first events, made by the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalSnapshot {
    /// The number of the last event that it includes.
    pub through: u64,
    /// The entity's version after the turn that saved it.
    pub version: u64,
    /// The guest's own bytes.
    pub data: Bytes,
    /// Fields of later releases.
    pub extensions: Extensions<JournalSnapshot>,
}

impl Extensible for JournalSnapshot {
    const NAME: &'static str = "JournalSnapshot";
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
    /// With the due time [`OWN_TIMERS`]: the entity's timer of that name; its value is a postcard-encoded [`Timer`].
    /// With another due time and an empty name: the entity's wake-up, the only one, at the time at which its first
    /// timer fires, or at 0 while its outbox is not empty; its value is empty.
    Timer {
        /// The due time, in milliseconds since the Unix epoch (UTC).
        due: u64,
        /// The timer's name.
        name: Arc<str>,
    },
    /// A tell waiting to be sent; its value is a postcard-encoded [`Tell`].
    Outbox {
        /// The entity that it is sent to.
        target: Entity,
        /// Rises with each tell of the sender.
        number: u64,
    },
    /// A tell that was given up; its value is a postcard-encoded [`Tell`].
    DeadLetter {
        /// The number that it had in the outbox.
        number: u64,
    },
    /// An event of the entity's journal; its value is a postcard-encoded [`JournalEvent`]. Number
    /// [`SNAPSHOT`](Self::SNAPSHOT) is the journal's snapshot instead, a postcard-encoded [`JournalSnapshot`].
    Journal {
        /// The event's number, from 1.
        number: u64,
    },
    /// The mark of a remembered entity (K31); its value is empty.
    Remembered,
    /// A kept item of a channel; its value is a postcard-encoded [`ChannelItem`].
    ChannelItem {
        /// The channel.
        channel: Arc<str>,
        /// The item's number, from 1.
        number: u64,
    },
}

impl RecordKey {
    /// The number under which a journal's snapshot is stored, before all events.
    pub const SNAPSHOT: u64 = 0;
}

/// One turn's effects, to be written atomically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The claim that must be current, exactly as it is here.
    pub claim: Arc<Claim>,
    /// The entity that the turn ran on.
    pub entity: Entity,
    /// The version that the stored head must have. If there must be no head: the version of the shard's [`HeadFloor`],
    /// or 0 if it has none.
    pub expected_version: u64,
    /// The new head: its version is `expected_version + 1`, and its turn names this attempt.
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
    /// It is durable.
    Committed,
    /// It has been durable since an earlier attempt with the same turn id.
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
    /// A temporary limit of the store: low disk space, a full queue, or the store stopped before writing.
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

/// The result of a load: durable, complete, and including all commits of the entity that were queued before it (R2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedEntity {
    /// The head, if the entity ever had a turn. If it has none because it was removed, or if other heads of the shard
    /// were, it is made from the shard's [`HeadFloor`].
    pub head: Option<Head>,
    /// The lanes outside the head.
    pub lanes: Vec<Lane>,
    /// The timers, ordered by name.
    pub timers: Vec<Timer>,
    /// The tells waiting to be sent and their numbers, ordered by target and number.
    pub outbox: Vec<(u64, Tell)>,
    /// The dead letters and their numbers, ordered by number.
    pub dead_letters: Vec<(u64, Tell)>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
