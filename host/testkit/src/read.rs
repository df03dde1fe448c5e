//! What is stored of an entity, for the test to read.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{LoadedEntity, RecordKey};
use ostraca_core::shard::delayed_tell_name;
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use serde_json::Value;

use crate::store::KitStore;

/// A timer of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerState {
    /// Its name.
    pub name: String,
    /// When it fires next.
    pub due: SystemTime,
    /// How many attempts at that firing have failed.
    pub attempts: u32,
    /// Why the last attempt failed; empty if none did.
    pub failure: String,
    /// Whether it failed too often and does not fire any more.
    pub set_aside: bool,
}

/// What is stored of one entity. Only committed turns are in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of its turns; 0 if it never had one.
    pub version: u64,
    /// The keys and values of its state.
    pub state: BTreeMap<String, Bytes>,
    /// Its events, in order. Those that a snapshot includes may have been removed.
    pub events: Vec<Value>,
    /// The snapshot of its journal.
    pub snapshot: Option<Value>,
    /// Its timers, by name.
    pub timers: Vec<TimerState>,
    /// Names of its delayed tells.
    pub delayed_tells: Vec<String>,
    /// The methods of its dead letters, with the reasons.
    pub dead_letters: Vec<(String, String)>,
    /// Whether it is remembered.
    pub remembered: bool,
    /// When it is deleted, if it has a time.
    pub expires_at: Option<SystemTime>,
}

impl Stored {
    /// A value of the state as JSON; `null` if there is none. With the SDK, the whole struct is under `state`.
    #[must_use]
    pub fn value(&self, key: &str) -> Value {
        self.state.get(key).and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default()
    }
}

/// Reads an entity. The memory store has the result when a call returns.
pub(crate) fn read(store: &KitStore, shard: &ShardPath, entity: &Entity) -> Stored {
    let loaded = store.load(vec![(shard.clone(), entity.clone())]).now_or_never();
    let loaded = loaded.and_then(|mut all| all.pop()?.ok()).unwrap_or_else(|| LoadedEntity {
        head: None,
        lanes: Vec::new(),
        timers: Vec::new(),
        outbox: Vec::new(),
        dead_letters: Vec::new(),
    });
    let mut stored = Stored::default();
    if let Some(head) = loaded.head.filter(|head| head.is_removed() != Ok(true)) {
        stored.version = head.version;
        stored.remembered = head.remembered;
        stored.expires_at = head.expires_at.filter(|_| !head.deleted).map(time);
    }
    for timer in &loaded.timers {
        match delayed_tell_name(&timer.name) {
            Some(name) => stored.delayed_tells.push(name.to_string()),
            None => stored.timers.push(TimerState {
                name: timer.name.to_string(),
                due: time(timer.due),
                attempts: timer.attempts,
                failure: timer.failure.to_string(),
                set_aside: timer.set_aside,
            }),
        }
    }
    for (_, tell) in &loaded.dead_letters {
        stored.dead_letters.push((tell.method.to_string(), tell.failure.to_string()));
    }
    for record in scan(store, shard, &ScanKind::State(entity.clone())) {
        if let ScannedRecord::State(key, value) = record {
            stored.state.insert(String::from_utf8_lossy(&key).into_owned(), value);
        }
    }
    let journal = ScanKind::Journal { entity: entity.clone(), from: RecordKey::SNAPSHOT };
    let json = |data: &[u8]| serde_json::from_slice(data).unwrap_or_default();
    for record in scan(store, shard, &journal) {
        match record {
            ScannedRecord::Event(_, event) => stored.events.push(json(&event.data)),
            ScannedRecord::Snapshot(snapshot) => stored.snapshot = Some(json(&snapshot.data)),
            _ => {}
        }
    }
    stored
}

fn scan(store: &KitStore, shard: &ShardPath, kind: &ScanKind) -> Vec<ScannedRecord> {
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let scan = Scan {
            shard: shard.clone(),
            kind: kind.clone(),
            after,
            max_records: 1_000,
            max_bytes: 1 << 20,
        };
        let Some(Ok(page)) = store.scan(scan).now_or_never() else { return records };
        records.extend(page.records);
        after = page.next_cursor;
        if after.is_none() {
            return records;
        }
    }
}

pub(crate) fn time(unix_ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms)
}
