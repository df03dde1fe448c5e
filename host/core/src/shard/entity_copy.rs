//! What an entity is, apart from its place in the cluster: what an operator exports, and imports elsewhere.
//!
//! A copy has no versions, generations or numbers of turns: an import is one turn of the target, which gives all of
//! them the target's own. Lanes belong to senders and stay where they are. Tells that were sent are not copied, since
//! their targets would get them twice.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::channel_reads::check_channel_name;
use super::subscriptions::SUBSCRIPTION_PAGES;
use crate::codec::{self, CodecError};
use crate::extensions::{Extensible, Extensions};

/// Bytes charged for each key of the state in addition to key and value.
const KEY_CHARGE: u64 = 100;
/// Maximum length in bytes of a key, and of a timer's name with its prefix.
const MAX_KEY: usize = 512;
/// Numbers and sizes beyond this are refused, so that sums cannot overflow.
const MAX_NUMBER: u64 = 1 << 60;

/// An exported entity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityCopy {
    /// Its state: keys and values.
    pub state: Vec<(Bytes, Bytes)>,
    /// Its timers, and its delayed tells, whose names begin with the byte 0x01.
    pub timers: Vec<TimerCopy>,
    /// Its journal.
    pub journal: JournalCopy,
    /// Its channels, and the pages of subscriptions to them
    /// ([`SUBSCRIPTION_PAGES`]).
    pub channels: Vec<ChannelCopy>,
    /// Whether it is remembered.
    pub remembered: bool,
    /// When it expires, in milliseconds since the Unix epoch (UTC), if its guest chose that time.
    pub expires_at: Option<u64>,
    /// The schema of its state (R24).
    pub schema: u32,
    /// Fields of later releases.
    pub extensions: Extensions<EntityCopy>,
}

impl Extensible for EntityCopy {
    const NAME: &'static str = "EntityCopy";
}

/// A timer. Attempts that have failed are not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerCopy {
    /// Its name.
    pub name: Arc<str>,
    /// When it fires next, in milliseconds since the Unix epoch (UTC).
    pub due: u64,
    /// Milliseconds between firings; 0 if it fires once.
    pub interval: u64,
    /// The guest's own bytes.
    pub payload: Bytes,
}

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalCopy {
    /// The number of the first event.
    pub first: u64,
    /// Bytes of all events before it.
    pub start: u64,
    /// The kept events, in order.
    pub events: Vec<Bytes>,
    /// The number of the last event that the snapshot includes, and the snapshot, if there is one.
    pub snapshot: Option<(u64, Bytes)>,
}

impl Default for JournalCopy {
    fn default() -> Self {
        Self { first: 1, start: 0, events: Vec::new(), snapshot: None }
    }
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelCopy {
    /// Its name.
    pub name: Arc<str>,
    /// The number of the first item.
    pub first: u64,
    /// Bytes of all items before it.
    pub start: u64,
    /// The kept items in order, each with the time of its turn in milliseconds since the Unix epoch (UTC).
    pub items: Vec<(u64, Bytes)>,
}

impl EntityCopy {
    /// Encodes it as the body of an import.
    ///
    /// # Errors
    /// [`CodecError`] if it is too large to be encoded.
    pub fn encode(&self) -> Result<Bytes, CodecError> {
        codec::encode(self).map(Bytes::from)
    }

    /// Decodes the body of an import, and checks it.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let copy: Self = codec::decode(body).map_err(|error| error.to_string())?;
        copy.check()?;
        Ok(copy)
    }

    fn check(&self) -> Result<(), String> {
        let is_name = |length: usize| (1..=MAX_KEY).contains(&length);
        if !self.state.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err("the keys of the state are not in ascending order".into());
        }
        if let Some((key, _)) = self.state.iter().find(|(key, _)| !is_name(key.len())) {
            return Err(format!("a key is {} bytes long, must be 1 to {MAX_KEY}", key.len()));
        }
        if !self.timers.is_sorted_by(|a, b| a.name < b.name) {
            return Err("the timers are not in ascending order of their names".into());
        }
        if let Some(timer) = self.timers.iter().find(|timer| !is_name(timer.name.len())) {
            let bytes = timer.name.len();
            return Err(format!("a timer's name is {bytes} bytes long, must be 1 to {MAX_KEY}"));
        }
        let JournalCopy { first, start, events, snapshot } = &self.journal;
        check_numbers("journal", *first, *start)?;
        if let Some((through, _)) = snapshot
            && *through >= first + events.len() as u64
        {
            return Err(format!("the snapshot includes event {through}, which does not exist"));
        }
        if !self.channels.is_sorted_by(|a, b| a.name < b.name) {
            return Err("the channels are not in ascending order of their names".into());
        }
        for channel in &self.channels {
            // Pages of subscriptions are checked when they are taken out.
            if &*channel.name != SUBSCRIPTION_PAGES {
                check_channel_name(&channel.name)?;
            }
            check_numbers("channel", channel.first, channel.start)?;
        }
        Ok(())
    }

    /// The size of the state, as its head has it.
    pub(super) fn state_bytes(&self) -> u64 {
        let size = |(key, value): &(Bytes, Bytes)| (key.len() + value.len()) as u64 + KEY_CHARGE;
        self.state.iter().map(size).sum()
    }
}

fn check_numbers(what: &str, first: u64, start: u64) -> Result<(), String> {
    match (1..MAX_NUMBER).contains(&first) && start < MAX_NUMBER {
        true => Ok(()),
        false => Err(format!("a {what} begins with number {first} at byte {start}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes() {
        let copy = EntityCopy {
            state: vec![(Bytes::from_static(b"k"), Bytes::from_static(b"v"))],
            timers: vec![TimerCopy {
                name: "t".into(),
                due: 300,
                interval: 2,
                payload: Bytes::from_static(b"p"),
            }],
            journal: JournalCopy {
                first: 3,
                start: 4,
                events: vec![Bytes::from_static(b"e")],
                snapshot: Some((2, Bytes::from_static(b"s"))),
            },
            channels: vec![ChannelCopy {
                name: "c".into(),
                first: 5,
                start: 6,
                items: vec![(7, Bytes::from_static(b"i"))],
            }],
            remembered: true,
            expires_at: Some(8),
            schema: 9,
            extensions: Extensions::default(),
        };
        let bytes = copy.encode().expect("encodes");
        let golden = b"\x01\x01k\x01v\x01\x01t\xac\x02\x02\x01p\x03\x04\x01\x01e\x01\x02\x01s\x01\x01c\x05\x06\x01\x07\x01i\x01\x01\x08\x09\0";
        assert_eq!(bytes.as_ref(), golden);
        assert_eq!(EntityCopy::decode(&bytes), Ok(copy.clone()));
        assert_eq!(copy.state_bytes(), 102);
    }

    #[test]
    fn a_copy_that_no_export_makes_is_refused() {
        let refused = |copy: EntityCopy| {
            EntityCopy::decode(&copy.encode().expect("encodes")).expect_err("refused")
        };
        let pair = |key: &'static [u8]| (Bytes::from_static(key), Bytes::new());
        let state = |state| EntityCopy { state, ..EntityCopy::default() };
        assert!(refused(state(vec![pair(b"b"), pair(b"a")])).contains("ascending"));
        assert!(refused(state(vec![pair(b"a"), pair(b"a")])).contains("ascending"));
        assert!(refused(state(vec![pair(b"")])).contains("0 bytes"));
        let snapshot = Some((1, Bytes::new()));
        let journal = JournalCopy { snapshot, ..JournalCopy::default() };
        assert!(refused(EntityCopy { journal, ..EntityCopy::default() }).contains("event 1"));
        let journal = JournalCopy { first: u64::MAX, ..JournalCopy::default() };
        assert!(refused(EntityCopy { journal, ..EntityCopy::default() }).contains("begins"));
        let channel = |name: &str, first| {
            let channels = vec![ChannelCopy { name: name.into(), first, start: 0, items: vec![] }];
            EntityCopy { channels, ..EntityCopy::default() }
        };
        assert!(refused(channel("", 1)).contains("0 bytes"));
        assert!(refused(channel("c", 0)).contains("begins"));
        assert!(EntityCopy::decode(b"garbage").is_err() && EntityCopy::decode(b"").is_err());
    }
}
