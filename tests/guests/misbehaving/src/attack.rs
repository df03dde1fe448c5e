//! Attacks that call host functions again and again in one turn, each at the limit of one of them.

use std::hint::black_box;
use std::time::Duration;

use ostraca_sdk::log::Level;
use ostraca_sdk::messaging::Entity;
use ostraca_sdk::{
    channels, clock, context, journal, lifecycle, log, messaging, random, state, timers, variables,
};
use serde::Deserialize;

/// What to do in the turn; `count` says how many times.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Emits items of this size, on this many channels in turn.
    Emit { channels: u64, bytes: usize, count: u64 },
    /// Emits on a channel with any name.
    EmitOn { channel: String, count: u64 },
    /// Subscribes to a channel of an entity and unsubscribes again.
    Subscribe { id: String, count: u64 },
    /// Subscribes this entity to its own channels, and emits there. With `fork`, each item becomes two.
    FeedItself { fork: bool, times: u64 },
    /// Appends events of this size, and reads all events again and again.
    ReadJournal { bytes: usize, events: u64, count: u64 },
    /// Appends an event and removes all.
    Truncate { count: u64 },
    /// Saves a snapshot of this size and loads it.
    Snapshot { bytes: usize, count: u64 },
    /// Remembers the entity and forgets it again.
    Remember { count: u64 },
    /// Sets the delay of its passivation to the maximum and to zero.
    PassivateAfter { count: u64 },
    /// Deletes the entity and sets when it expires.
    Delete { count: u64 },
    /// Writes a value of this size and reads it again and again.
    Get { bytes: usize, count: u64 },
    /// Sets a key and deletes it.
    SetAndDelete { count: u64 },
    /// Writes keys and lists all of them again and again.
    List { keys: u64, count: u64 },
    /// Sets a timer, cancels it, and lists all.
    Timers { count: u64 },
    /// Sends a delayed tell, cancels it, and lists all.
    DelayedTells { bytes: usize, count: u64 },
    /// Reads a secret and a setting, whose names have this size.
    Variables { size: usize, count: u64 },
    /// Draws the most random bytes that one call returns.
    Random { count: u64 },
    /// Reads the clock, the identity and the message.
    Context { count: u64 },
    /// Logs lines of this size.
    Log { bytes: usize, count: u64 },
}

impl Attack {
    /// Runs the attack.
    pub(crate) fn run(self) {
        match self {
            Self::Emit { channels, bytes, count } => emit(channels, bytes, count),
            Self::EmitOn { channel, count } => {
                (0..count).for_each(|_| channels::emit_bytes(&channel, b"x"));
            }
            Self::Subscribe { id, count } => subscribe(id, count),
            Self::FeedItself { fork, times } => feed_itself(fork, times),
            Self::ReadJournal { bytes, events, count } => read_journal(bytes, events, count),
            Self::Truncate { count } => (0..count).for_each(|_| {
                journal::append_raw(b"x");
                journal::truncate(u64::MAX);
            }),
            Self::Snapshot { bytes, count } => {
                let data = vec![b'x'; bytes];
                (0..count).for_each(|_| {
                    journal::save_snapshot_raw(&data);
                    black_box(journal::snapshot_raw());
                });
            }
            Self::Remember { count } => (0..count).for_each(|_| {
                lifecycle::remember();
                black_box(lifecycle::is_remembered());
                lifecycle::forget();
            }),
            Self::PassivateAfter { count } => (0..count).for_each(|_| {
                lifecycle::passivate_after(Duration::MAX);
                lifecycle::passivate_after(Duration::ZERO);
            }),
            Self::Delete { count } => (0..count).for_each(|_| {
                lifecycle::expire_after(Duration::ZERO);
                black_box(lifecycle::expires_at());
                lifecycle::delete();
            }),
            Self::Get { bytes, count } => {
                state::set_raw("value", &vec![b'x'; bytes]);
                (0..count).for_each(|_| drop(black_box(state::get_raw("value"))));
            }
            Self::SetAndDelete { count } => (0..count).for_each(|_| {
                state::set_raw("key", b"x");
                state::delete("key");
            }),
            Self::List { keys, count } => list(keys, count),
            Self::Timers { count } => (0..count).for_each(|number| {
                timers::after(format!("t{}", number % 50), Duration::from_secs(3_600)).set();
                timers::cancel(&format!("t{}", (number + 1) % 50));
                black_box(timers::list());
            }),
            Self::DelayedTells { bytes, count } => delayed_tells(bytes, count),
            Self::Variables { size, count } => {
                let name = "v".repeat(size);
                (0..count).for_each(|_| {
                    drop((variables::secret(&name), variables::setting(&name)));
                });
            }
            Self::Random { count } => {
                let mut bytes = vec![0; 65_536];
                (0..count).for_each(|_| random::fill(&mut bytes));
            }
            Self::Context { count } => (0..count).for_each(|_| {
                black_box((clock::unix_ms(), context::identity(), context::current_message()));
            }),
            Self::Log { bytes, count } => {
                let line = "x".repeat(bytes);
                (0..count).for_each(|_| log::log(Level::Error, &line));
            }
        }
    }
}

fn emit(channels: u64, bytes: usize, count: u64) {
    let item = vec![b'x'; bytes];
    for number in 0..count {
        channels::emit_bytes(&format!("c{}", number % channels.max(1)), &item);
    }
}

fn subscribe(id: String, count: u64) {
    let publisher = Entity::new("misbehaving", id);
    for _ in 0..count {
        publisher.subscribe("news", "receive");
        publisher.unsubscribe("news");
    }
}

fn feed_itself(is_fork: bool, times: u64) {
    let me = Entity::new("misbehaving", context::identity().id);
    if is_fork {
        me.subscribe("left", "fork");
        me.subscribe("right", "fork");
        // The subscriptions exist by the time this runs.
        me.tell("fork", &times);
    } else {
        me.subscribe("echo", "echo");
        me.tell("echo", &times);
    }
}

/// Emits on the channel to which `feed-itself` subscribes.
pub(crate) fn echo(times: u64) {
    if times > 0 {
        channels::emit("echo", &(times - 1));
    }
}

/// Emits on both channels to which `feed-itself` subscribes.
pub(crate) fn fork(times: u64) {
    if times > 0 {
        channels::emit("left", &(times - 1));
        channels::emit("right", &(times - 1));
    }
}

fn read_journal(bytes: usize, events: u64, count: u64) {
    let data = vec![b'x'; bytes];
    (0..events).for_each(|_| {
        journal::append_raw(&data);
    });
    for _ in 0..count {
        let mut from = Some(journal::extent().first);
        while let Some(at) = from {
            from = journal::read_raw(at, 1_000).next;
        }
    }
}

fn list(keys: u64, count: u64) {
    (0..keys).for_each(|key| state::set_raw(&format!("list/{key}"), b""));
    for _ in 0..count {
        black_box(state::list_raw("", 1_000, None));
    }
}

fn delayed_tells(bytes: usize, count: u64) {
    let body = vec![b'x'; bytes];
    let to = Entity::new("misbehaving", "victim");
    for number in 0..count {
        to.tell_raw_at(&format!("d{}", number % 50), u64::MAX, "note", &body, "");
        messaging::cancel(&format!("d{}", (number + 1) % 50));
        black_box(messaging::delayed());
    }
}
