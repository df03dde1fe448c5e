//! The state machine of one shard: mailboxes, lanes, the output gate, activation and passivation.
//!
//! There is one machine for each shard and epoch that is assigned to this node. It decides what runs and which
//! replies may be sent; its node executes the [`Action`]s and reports [`Event`]s. No promise depends on timing: the
//! store checks the claim and the version of every commit (R1).
//!
//! Confusing at first: an entity's head and lanes in memory run *ahead* of the store. A turn's result changes them
//! immediately, so that the next turn can start; the reply waits at the gate for the commit. If a commit is refused or
//! its outcome is unknown, everything that ran ahead is discarded, and the entity is loaded again.

mod action;
mod activity;
mod asks;
mod calls;
mod channel_feed;
mod channel_reads;
mod channel_waiting;
mod channels;
mod copies;
mod dead_letters;
mod delayed_tells;
mod entity;
mod entity_copy;
mod event;
mod eviction_order;
mod expiry;
mod instance_memory;
mod instance_slots;
mod journal;
mod lanes;
mod machine;
mod mailbox;
mod operator_commands;
mod outbox;
mod second_instance;
mod settings;
mod slot_requests;
mod stored;
mod subscription_copy;
mod subscriptions;
#[cfg(test)]
mod tests;
mod timers;
mod worker_slots;

pub use action::{Action, TurnRecords};
pub use activity::{AwakeReason, EntityActivity};
pub use asks::{ASK_NOTE, Ask, AskNote, AskStep, NewAsk};
pub use calls::{CallDigest, IdempotencyKey};
pub use channel_reads::{
    ChannelPage, ChannelPosition, ChannelRead, Lost, MAX_CHANNEL_NAME, PageItem, READ_CHANNEL,
    check_channel_name,
};
pub use channels::{ChannelKeep, Channels, Emit, ITEM_CHARGE};
pub use dead_letters::{
    DeadLetterAction, MAX_DEAD_LETTERS, decode_dead_letters, encode_dead_letters,
};
pub use delayed_tells::{delayed_tell, delayed_tell_name, set_delayed_tell, timer_of_delayed_tell};
pub use entity_copy::{ChannelCopy, EntityCopy, JournalCopy, TimerCopy};
pub use event::{ActivationOutcome, Event, TurnOutput, TurnResult};
pub use journal::{EVENT_CHARGE, JournalChange};
pub use machine::tells::FIRST_TELL;
pub use machine::{Machine, Ownership, Phase};
pub use operator_commands::{MIGRATION_HAD_FAILED, OperatorCommand, WAS_STOPPED};
pub use outbox::{NewTell, OutboxSize};
pub use settings::{
    EarlierRevision, Mutation, OnFailure, Rollout, SchemaSupport, Settings, SlotPurpose,
    StartReason, StopReason, TypeSettings,
};
pub use slot_requests::SlotHolder;
pub use stored::{HeadPage, StoredEntities};
pub use subscriptions::{FanOut, SUBSCRIPTION_PAGES, SubscriptionRequest, TopicMessage};
pub use timers::{Firing, TimerChange, TimerMap};
pub use worker_slots::{SlotLimits, WorkerSlots};
