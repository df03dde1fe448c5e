//! Messages to other entities.
//!
//! A *tell* is a command to another entity, or to this one. It is committed with the turn that sends it, or not at all,
//! and leaves after that commit. It runs at its target exactly once, after everything that this entity has sent to that
//! target before, even if nodes crash or shards move in the meantime. There is no reply: if the result matters, the
//! target sends it back in a tell.
//!
//! ```
//! use ostraca_sdk::messaging::Entity;
//! use ostraca_sdk::entity;
//! use serde::{Deserialize, Serialize};
//! use ostraca_sdk::serde_json::json;
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Account {
//!     cents: u64,
//! }
//!
//! #[entity]
//! impl Account {
//!     /// Moves money to another account, if there is enough.
//!     #[message]
//!     pub fn pay(&mut self, to: String, cents: u64) -> bool {
//!         let enough = self.cents >= cents;
//!         if enough {
//!             self.cents -= cents;
//!             Entity::new("account", to).tell("deposit", &json!({ "cents": cents }));
//!         }
//!         enough
//!     }
//!
//!     /// Adds money.
//!     #[message]
//!     pub fn deposit(&mut self, cents: u64) {
//!         self.cents += cents;
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::call::<Account>("deposit", 5).unwrap();
//! # testing::call::<Account>("pay", json!({ "to": "bob", "cents": 3 })).unwrap();
//! # let tells = testing::take_tells();
//! # assert_eq!((tells.len(), tells[0].method.as_str()), (1, "deposit"));
//! # }
//! ```
//!
//! The manifest must grant the target's type: `[grants] tell = ["account"]`. The target's manifest must admit the
//! sender's type, as the principal `entity/TYPE` (`[access] send`, by default everyone). The limits are `limits.outbox`
//! and `limits.outbox-bytes`.
//!
//! If the target refuses a tell with an application error, the tell becomes a *dead letter*: the node logs a warning,
//! and the tell remains stored with its sender. If the target fails in another way, the tell is sent again after
//! increasing pauses, and becomes a dead letter after the last attempt (`entities.tell-attempts`). Then the next tell
//! to that target is sent.
//!
//! [`Entity::tell_after`] and [`Entity::tell_at`] send a tell later, under a name: another delayed tell of that name
//! replaces it, and [`cancel`] cancels it. Until it leaves, it counts towards `limits.timers` and `limits.timer-bytes`,
//! and towards the limits on the outbox, where its space is reserved.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::state::to_json;
use crate::types::{StoredTell, millis};

/// An entity to send to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entity {
    entity_type: String,
    id: String,
}

impl Entity {
    /// Names an entity by its type and id.
    pub fn new(entity_type: impl Into<String>, id: impl Into<String>) -> Self {
        Self { entity_type: entity_type.into(), id: id.into() }
    }

    /// The entity's type.
    #[must_use]
    pub fn entity_type(&self) -> &str {
        &self.entity_type
    }

    /// The entity's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Sends a command with its arguments as JSON: an object with the parameters' names, or the bare value of a single
    /// parameter. Traps in a query, if the target's type is not granted, and beyond the limits of the sender's type.
    ///
    /// # Panics
    /// If JSON cannot express the arguments.
    pub fn tell<T: Serialize + ?Sized>(&self, method: &str, arguments: &T) {
        self.tell_raw(method, &encode(arguments), JSON);
    }

    /// Sends a command, but not before `delay` after the turn's [`clock::now`](crate::clock::now). It can be cancelled
    /// until it leaves, and takes its place in the order of tells to the target only when it leaves. `name` (1 to 128
    /// bytes, without control characters or direction marks) is unique among the entity's delayed tells; an existing
    /// one of that name is replaced. Traps if the target's type is not granted, and beyond the sender's limits on
    /// timers and on the outbox.
    ///
    /// # Panics
    /// In a query, or if JSON cannot express the arguments.
    pub fn tell_after<T: Serialize + ?Sized>(
        &self,
        name: &str,
        delay: Duration,
        method: &str,
        arguments: &T,
    ) {
        let due = crate::host::now().saturating_add(millis(delay));
        self.tell_raw_at(name, due, method, &encode(arguments), JSON);
    }

    /// Like [`Entity::tell_after`], but takes a point in time. If it has passed, the command leaves as soon as
    /// possible.
    ///
    /// # Panics
    /// Like [`Entity::tell_after`].
    pub fn tell_at<T: Serialize + ?Sized>(
        &self,
        name: &str,
        time: SystemTime,
        method: &str,
        arguments: &T,
    ) {
        let due = millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        self.tell_raw_at(name, due, method, &encode(arguments), JSON);
    }

    /// Subscribes to a channel of the entity: from then on, each item that it emits reaches this entity as a command
    /// that calls `method` with the item, once and in the order in which they were emitted. Subscribing again changes
    /// the method. Like a tell, the subscription is part of the turn.
    ///
    /// Both types' manifests must grant tells to each other (`[grants] tell`). A subscription that the entity refuses
    /// becomes a dead letter of this one. Traps in a query, if the entity's type is not granted, with an invalid name
    /// of a channel, and beyond this type's limits on the outbox.
    pub fn subscribe(&self, channel: &str, method: &str) {
        crate::host::subscribe((&self.entity_type, &self.id), channel, method);
    }

    /// Ends the subscription to a channel of the entity, if there is one. Items that the entity has sent already still
    /// arrive. Traps as [`Entity::subscribe`] does.
    pub fn unsubscribe(&self, channel: &str) {
        crate::host::unsubscribe((&self.entity_type, &self.id), channel);
    }

    /// Sends a command with arbitrary bytes as its body.
    pub fn tell_raw(&self, method: &str, body: &[u8], content_type: &str) {
        crate::host::tell((&self.entity_type, &self.id), method, body, content_type);
    }

    /// Like [`Entity::tell_at`], but takes arbitrary bytes as the body, and the time in milliseconds since 1970-01-01
    /// 00:00 UTC.
    ///
    /// # Panics
    /// In a query.
    pub fn tell_raw_at(
        &self,
        name: &str,
        unix_ms: u64,
        method: &str,
        body: &[u8],
        content_type: &str,
    ) {
        let to = (&*self.entity_type, &*self.id);
        crate::host::tell_at(name, unix_ms, to, method, body, content_type);
    }
}

pub(crate) const JSON: &str = "application/json";

pub(crate) fn encode<T: Serialize + ?Sized>(arguments: &T) -> Vec<u8> {
    match to_json(arguments) {
        Ok(body) => body,
        Err(error) => panic!("invalid-arguments: JSON cannot express them: {error}"),
    }
}

/// A tell that has not left yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayedTell {
    /// The name under which it was sent.
    pub name: String,
    /// When it leaves.
    pub due: SystemTime,
    /// The target.
    pub to: Entity,
    /// The method.
    pub method: String,
    /// The arguments.
    pub body: Vec<u8>,
    /// The body's content type.
    pub content_type: String,
}

/// Cancels the delayed tell of this name. Returns false if there is none, or if it has left.
///
/// # Panics
/// In a query.
pub fn cancel(name: &str) -> bool {
    crate::host::cancel_tell(name)
}

/// Lists the delayed tells, ordered by name.
pub fn delayed() -> Vec<DelayedTell> {
    let shown = |(name, due, tell): (String, u64, StoredTell)| DelayedTell {
        name,
        due: SystemTime::UNIX_EPOCH + Duration::from_millis(due),
        to: Entity::new(tell.entity_type, tell.id),
        method: tell.method,
        body: tell.body,
        content_type: tell.content_type,
    };
    crate::host::delayed_tells().into_iter().map(shown).collect()
}
