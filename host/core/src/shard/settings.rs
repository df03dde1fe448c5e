//! Settings of a shard's machine and of each entity type.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::channels::ChannelKeep;
use crate::hash::shard_of;
use crate::ids::ShardId;

/// Limits for a shard and for each of its entities. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How long a message waits for its predecessor (R17). Default 2,000.
    pub order_timeout: u64,
    /// Maximum number of sessions that an entity remembers; old ones are dropped (R17). Default 10,000, about 150 bytes
    /// each.
    pub max_lanes: usize,
    /// How long after its last use a lane is dropped, to save space (R17). Default 3,600,000.
    pub lane_ttl: u64,
    /// How long after it ran the reply to a command with an idempotency key is kept (R17). Default 86,400,000.
    pub idempotency_ttl: u64,
    /// Maximum number of idempotency keys that an entity keeps. A principal may use as many as are left. Default 20,000,
    /// about 300 bytes each.
    pub idempotency_keys: usize,
    /// Maximum size in bytes of their replies, including 40 for each. A principal may use as many as are left. A turn
    /// may exceed it by one reply. Default 8 MiB.
    pub idempotency_bytes: usize,
    /// How far ahead of cluster time a message may be stamped (R17). Default 60,000.
    pub max_clock_skew: u64,
    /// Maximum size in bytes of the unsettled replies that an entity keeps, including 40 for each reply. One session
    /// may use half of it. Beyond the limit, the oldest replies are dropped. Default 4 MiB.
    pub unsettled_bytes: usize,
    /// Maximum size in bytes of the lanes in a head; further lanes are spilled into separate records. Default 1,024.
    pub inline_lane_bytes: usize,
    /// Maximum number of turns per entity that wait for their commits. Default 256.
    pub max_gated_turns: usize,
    /// Maximum number of copies of one message that wait for its outcome (R18). Default 16.
    pub max_copies: usize,
    /// How long a message waits for a slot for its entity's instance. Default 10,000.
    pub instance_slot_timeout: u64,
    /// The first pause before a failed claim is retried. It is doubled, up to 16 times this value. Default 250.
    pub claim_backoff: u64,
    /// The first pause before an entity is started again after its start failed three times in a row, or the store
    /// refused its start because of a limit. It is doubled, up to 32 times this value. Default 250.
    pub start_backoff: u64,
    /// How long a stopping shard lets running turns finish before they are interrupted. Default 5,000.
    pub stop_timeout: u64,
    /// Maximum number of a shard's entities that timers hold in memory at the same time. Default 64.
    pub max_timer_entities: usize,
    /// Maximum number of wake-ups that one scan of a shard reads; up to four times as many are kept in memory, at about
    /// 200 bytes each. Default 256.
    pub timer_page: usize,
    /// Number of attempts after which a failing firing is given up. Default 10.
    pub timer_attempts: u32,
    /// The first pause before a failed firing is attempted again. It is doubled each time. Default 1,000.
    pub timer_backoff: u64,
    /// The longest pause between attempts of a firing. Default 300,000.
    pub timer_max_backoff: u64,
    /// Number of attempts after which a tell whose target fails becomes a dead letter. Default 10.
    pub tell_attempts: u32,
    /// The first pause before a failed tell is sent again. It is doubled each time. Default 1,000.
    pub tell_backoff: u64,
    /// The longest pause between attempts of a tell. Default 300,000.
    pub tell_max_backoff: u64,
    /// Maximum number of targets to which one entity sends tells at the same time. Default 16.
    pub tell_targets: usize,
    /// Maximum length of a chain of entities that wait for one ask, each for the next (R20). Default 16.
    pub max_ask_depth: usize,
    /// Maximum number of reads that wait for items of one entity's channels. Default 10,000.
    pub max_channel_reads: usize,
    /// Maximum size in bytes of the newest items of one channel that stay in memory while it is read, including 100 for
    /// each; the last item always stays. Default 256 KiB.
    pub channel_buffer: u64,
    /// Maximum number of a shard's remembered entities that are started at the same time without a message (K34).
    /// Default 16.
    pub recovery_starts: usize,
    /// Maximum number of a shard's remembered entities that are started without a message in one second; 0 for no
    /// limit (K34). Default 0.
    pub recovery_rate: u32,
    /// Maximum number of a shard's entities that stay stopped after a failure (K33). Beyond it, the one that was stopped
    /// first may start again. Default 10,000, about 300 bytes each.
    pub max_stopped: usize,
    /// Maximum number of records that one commit removes after a deletion (E17). Default 1,000.
    pub purge_page: usize,
    /// Maximum number of subscriptions in one page, and so of tells that one turn of a fan-out sends. The outbox holds
    /// the tells of about four such turns before the next one waits (R27). Default 64.
    pub fan_out_page: usize,
    /// Rules that tests disable, to check that the oracle then fails. Has no effect without the feature `testing`.
    pub mutations: Vec<Mutation>,
}

impl Settings {
    /// Whether a test disabled a rule. Builds without the feature `testing` enforce every rule.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn has_mutation(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }

    #[cfg(not(any(test, feature = "testing")))]
    pub(super) const fn has_mutation(&self, _: Mutation) -> bool {
        false
    }
}

impl Settings {
    /// The pause after this many failed attempts of a firing.
    pub(super) fn timer_pause(&self, attempts: u32) -> u64 {
        pause_after(attempts, self.timer_backoff, self.timer_max_backoff)
    }

    /// The pause after this many failed attempts of a tell.
    pub(super) fn tell_pause(&self, attempts: u32) -> u64 {
        pause_after(attempts, self.tell_backoff, self.tell_max_backoff)
    }
}

fn pause_after(attempts: u32, first: u64, most: u64) -> u64 {
    let doublings = attempts.saturating_sub(1).min(32);
    (first << doublings).min(most.max(first))
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            order_timeout: 2_000,
            max_lanes: 10_000,
            lane_ttl: 3_600_000,
            idempotency_ttl: 86_400_000,
            idempotency_keys: 20_000,
            idempotency_bytes: 8 << 20,
            max_clock_skew: 60_000,
            unsettled_bytes: 4 << 20,
            inline_lane_bytes: 1_024,
            max_gated_turns: 256,
            max_copies: 16,
            instance_slot_timeout: 10_000,
            claim_backoff: 250,
            start_backoff: 250,
            stop_timeout: 5_000,
            max_timer_entities: 64,
            timer_page: 256,
            timer_attempts: 10,
            timer_backoff: 1_000,
            timer_max_backoff: 300_000,
            tell_attempts: 10,
            tell_backoff: 1_000,
            tell_max_backoff: 300_000,
            tell_targets: 16,
            max_ask_depth: 16,
            max_channel_reads: 10_000,
            channel_buffer: 256 << 10,
            recovery_starts: 16,
            recovery_rate: 0,
            max_stopped: 10_000,
            purge_page: 1_000,
            fan_out_page: 64,
            mutations: Vec::new(),
        }
    }
}

/// A rule of the machine that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mutation {
    /// Replies leave before their commit is durable (promise 2).
    ReplyBeforeCommit,
    /// A turn whose commit is unknown is reported as not run, and the shard is not claimed again (R3).
    UnknownIsNotRun,
    /// An entity is loaded while its commits are pending (R3).
    LoadDuringCommit,
    /// Queries are answered without regard to the lease (R8).
    QueryWithoutLease,
    /// Application errors are not recorded (R16).
    SkipErrorRecording,
    /// Lanes are neither written nor read: every copy runs (R17).
    IgnoreLanes,
    /// A lane is dropped without raising the watermark (R17).
    DropLaneWithoutWatermark,
    /// The watermark rises in memory, but the head is committed without it (R17).
    WatermarkNotCommitted,
    /// `after` is ignored (R17).
    IgnoreOrder,
    /// The digest of a copy is not compared (R17).
    IgnoreDigest,
    /// A copy of a pending message is answered from memory, ahead of its commit (R18).
    CopiesDontJoin,
    /// A turn starts although its caller's deadline has passed (R22).
    IgnoreDeadline,
    /// Turns start although the lease has lapsed (R9).
    RunWhileSuspended,
    /// A lease counts as valid for twice its length (R8).
    DoubleLease,
    /// A shard does not look at its own lease, only at its node's (E8).
    IgnoreShardLease,
    /// An entity runs although a newer revision of its type wrote its head (R24).
    RunOlderRevision,
    /// A late event about an older deployment replaces a newer one (R24).
    AcceptOlderDeployment,
    /// A revision runs on state of another schema, without a migration (R24).
    SkipMigration,
    /// A timer may fire 50 ms before it is due (R25).
    FireEarly,
    /// A timer that has fired is neither removed nor moved to its next time (R25).
    KeepFiredTimer,
    /// The times at which entities must be woken are not stored (R25).
    SkipWakeIndex,
    /// The shard serves only after its first wake-ups have been read (R14).
    ReadTimersFirst,
    /// A tell is sent before the turn that sent it is durable (R25).
    TellBeforeCommit,
    /// A tell's entry is deleted when it is sent (R19).
    DeleteSentTell,
    /// A dead letter is sent again under its old number (R19).
    ResendOldNumber,
    /// Lanes of sending entities are dropped after their time to live, like those of clients (R19).
    DropSenderLanes,
    /// An ask is sent before its entity's earlier turns are durable (R20).
    AskBeforeCommit,
    /// A turn that runs again asks under new ids (R20).
    NewAskIds,
    /// Asks in a cycle across roots wait until their deadlines (R20).
    IgnoreCrossingAsks,
    /// Probes end at an entity whose turn handles an ask of the cycle (R20).
    ProbeQueuedAsksOnly,
    /// Remembered entities are not started (K31).
    ForgetRemembered,
    /// Subscribers get a turn's items before the turn is durable (R3).
    PublishBeforeCommit,
    /// Turns that run between two loads of their entity give their events the same numbers (E18).
    ReuseEventNumbers,
    /// A turn that waits for an ask keeps its shard from stopping (R15).
    KeepWaitingTurns,
    /// A deletion removes the entity's lanes too (R17, E17).
    DeleteLanes,
    /// A deletion leaves the state in the store (E17).
    KeepDeletedState,
    /// The head of a deleted entity is removed while its lanes are still needed (E17).
    SweepEarly,
    /// An entity may expire 50 ms early (E17).
    ExpireEarly,
    /// A turn of a fan-out leaves out the next page (R27).
    ForgetFanOutPage,
    /// A second instance outlives the turn beside which it was started (R20).
    KeepSecondInstance,
    /// The lane of an idempotency key is dropped like one of a session (R17).
    DropKeyedLanes,
    /// An instance may be passivated 50 ms before the delay that its guest has set (E15).
    PassivateEarly,
}

/// Settings from an entity type's current deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeSettings {
    /// The deployment's revision (R24).
    pub revision: u64,
    /// Maximum number of messages in one entity's mailbox. Default 1,000.
    pub mailbox_capacity: usize,
    /// Milliseconds without a message or firing after which an instance is dropped. Default 120,000.
    pub idle_timeout: u64,
    /// Whether an instance's stop hook is called before the instance is dropped.
    pub has_stop_hook: bool,
    /// Whether a turn that handles a message or a firing makes its entity a remembered one (K31).
    pub remembers: bool,
    /// How many items each channel keeps. Default none.
    pub keep: ChannelKeep,
    /// Milliseconds after which an entity is deleted if no turn of a message or a firing was committed; 0 for never
    /// (E17). Default 0.
    pub time_to_live: u64,
    /// What follows a failure of the guest (K33).
    pub on_failure: OnFailure,
    /// What the deployment's component says about its state.
    pub schema: SchemaSupport,
    /// Earlier revisions that can still be run, in ascending order: for entities that cannot be migrated, and for those
    /// that a rollout has not reached.
    pub earlier: Vec<EarlierRevision>,
    /// Which entities run the deployment's revision; `None` if all of them do.
    pub rollout: Option<Rollout>,
    /// Whether queries run on a second instance while a turn waits for an ask or a call (R20). Default `false`.
    pub reentrant_queries: bool,
    /// Types to which its entities may send tells. Entities of other types cannot subscribe (R27). Default none.
    pub tells: Vec<Arc<str>>,
    /// Maximum number of subscriptions to one entity's channels (R27). Default 1,000.
    pub subscriptions: u64,
}

/// What follows a trap, an exceeded limit or a failed start (K33). In any case, the instance is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// The next message or timer starts a new instance; a remembered entity is started at once.
    #[default]
    Restart,
    /// The same: an application error keeps the instance with every strategy, and after a trap no instance can
    /// continue.
    Resume,
    /// The entity stays without an instance until an operator restarts it, another revision is deployed, or the shard
    /// gets another owner.
    Stop,
    /// As with `Restart`, and the shard moves to another host, a limited number of times.
    Escalate,
}

impl OnFailure {
    /// Its name in a manifest.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Escalate => "escalate",
        }
    }
}

/// The schemas of the state that a component can handle (R24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaSupport {
    /// The schema of the state that it reads and writes. 0 for a component without migration.
    pub version: u32,
    /// The highest schema that it can migrate from; at least `version`. If it is higher, entities can be migrated back.
    pub newest: u32,
}

impl SchemaSupport {
    /// Whether the component can migrate state of this schema to its own.
    #[must_use]
    pub fn migrates_from(&self, schema: u32) -> bool {
        // A component with a version above 0 exports a migration.
        schema != self.version && schema <= self.newest
    }
}

/// An earlier revision of a type that can still be run (R24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierRevision {
    /// The revision.
    pub revision: u64,
    /// What its component says about its state.
    pub schema: SchemaSupport,
    /// Whether an instance's stop hook is called before the instance is dropped.
    pub has_stop_hook: bool,
}

/// A rollout that has not reached all entities (R24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The earlier revision that the other entities run.
    pub from: u64,
    /// Entities in shards up to this number run the deployment's revision.
    pub shards: u32,
    /// In the other shards, so do this many entities out of 1,000, chosen by a hash of their ids.
    pub per_mille: u16,
}

impl Rollout {
    /// Whether it has reached an entity of a shard.
    #[must_use]
    pub fn includes(&self, shard: ShardId, id: &str) -> bool {
        // The shard depends on the same hash, so the share is taken of what is left after a multiplication.
        let hash = shard_of(id, u32::MAX).0.wrapping_mul(0x9E37_79B1) >> 8;
        shard.0 <= self.shards || hash % 1_000 < u32::from(self.per_mille)
    }
}

impl Default for TypeSettings {
    fn default() -> Self {
        Self {
            revision: 1,
            mailbox_capacity: 1_000,
            idle_timeout: 120_000,
            has_stop_hook: false,
            remembers: false,
            keep: ChannelKeep::default(),
            time_to_live: 0,
            on_failure: OnFailure::Restart,
            schema: SchemaSupport::default(),
            earlier: Vec::new(),
            rollout: None,
            reentrant_queries: false,
            tells: Vec::new(),
            subscriptions: 1_000,
        }
    }
}

/// Why an instance starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartReason {
    /// The entity has never had a turn, or none since it was deleted.
    FirstMessage,
    /// The entity has had turns: a message arrived for it, or one of its timers is due.
    Message,
    /// The entity is remembered, and had no instance on this node (K31).
    Remembered,
    /// A turn of the entity's instance waits, and this second instance runs queries meanwhile (R20). Its start turn
    /// must not change anything.
    BesideTurn,
}

/// What a slot is needed for, in descending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotPurpose {
    /// A message. If no slot is free, an idle instance is evicted.
    Message,
    /// A due timer. Messages get seven of eight slots; an idle instance is evicted.
    Timer,
    /// The recovery of a remembered entity. It gets a slot that nothing else wants, and evicts nothing.
    Recovery,
}

/// Why an instance stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// No message or firing ran within the type's idle timeout.
    Idle,
    /// Another entity needs its slot.
    Evicted,
    /// The guest asked for it.
    Passivated,
    /// The shard moves to another node, or the node stops.
    HandedOff,
    /// A newer revision replaces this one.
    Redeployed,
}
