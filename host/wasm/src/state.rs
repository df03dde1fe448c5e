//! An entity's keys and values as its instance sees them: the state before the current turn, and what that turn has
//! changed.
//!
//! `base` is the state at the beginning of the turn, including earlier turns that are not durable yet (R21).
//! `overlay` is what this turn has changed. Keeping them apart makes discarding cheap, and shows the turn's net
//! effect at its end.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// Maximum length of a key, in bytes.
pub(crate) const KEY_LIMIT: usize = 512;

/// Bytes charged for each key in addition to its key and value, to account for disk and memory overhead.
pub(crate) const KEY_CHARGE: u64 = 100;

pub(crate) type Value = Arc<[u8]>;
pub(crate) type Entries = Vec<(Arc<str>, Value)>;

#[derive(Default)]
pub(crate) struct State {
    base: BTreeMap<Arc<str>, Value>,
    base_bytes: u64,
    overlay: BTreeMap<Arc<str>, Option<Value>>,
    bytes: u64,
    keys: u64,
    /// Bytes that this turn writes, counted like `bytes`.
    turn_bytes: u64,
    /// Bytes that this turn writes outside the state, counted against the same limit.
    beside: u64,
}

impl State {
    /// Builds the state from the store's entries.
    pub(crate) fn from_store(entries: Vec<(Bytes, Bytes)>) -> Result<State, HostTrap> {
        let mut base = BTreeMap::new();
        let mut bytes = 0;
        for (key, value) in entries {
            let key = std::str::from_utf8(&key).map_err(|_| {
                HostTrap::StateUnavailable(
                    "cannot load the entity's state: a key is not UTF-8".into(),
                )
            })?;
            bytes += size(key, &value);
            base.insert(Arc::from(key), Arc::from(&value[..]));
        }
        let keys = base.len() as u64;
        Ok(State { base, base_bytes: bytes, bytes, keys, ..State::default() })
    }

    /// Size of keys and values in bytes, with [`KEY_CHARGE`] for each key, this turn's changes included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that this turn writes, counted like `bytes`.
    pub(crate) fn turn_bytes(&self) -> u64 {
        self.turn_bytes
    }

    /// Records how many bytes this turn writes outside the state.
    pub(crate) fn beside(&mut self, bytes: u64) -> &mut State {
        self.beside = bytes;
        self
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        match self.overlay.get(key) {
            Some(value) => value.as_ref(),
            None => self.base.get(key),
        }
    }

    /// Sets a key unless that would exceed a limit. A state that already exceeds its limit may still shrink.
    pub(crate) fn set(
        &mut self,
        key: Arc<str>,
        value: Value,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let old = self.get(&key).map(|old| size(&key, old));
        let new = size(&key, &value);
        let would = self.bytes - old.unwrap_or(0) + new;
        if would > limits.state && new > old.unwrap_or(0) {
            return Err(HostTrap::StateTooLarge { would, limit: limits.state });
        }
        let keys = self.keys + u64::from(old.is_none());
        if keys > limits.keys && old.is_none() {
            return Err(HostTrap::TooManyKeys { limit: limits.keys });
        }
        self.write(key, Some(value), limits)?;
        (self.bytes, self.keys) = (would, keys);
        Ok(())
    }

    /// Puts a change into the overlay, unless the turn would write too much.
    fn write(
        &mut self,
        key: Arc<str>,
        value: Option<Value>,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let of = |value: &Option<Value>| size(&key, value.as_deref().unwrap_or_default());
        let before = self.overlay.get(&key);
        let count = self.overlay.len() as u64 + u64::from(before.is_none());
        let bytes = self.turn_bytes - before.map_or(0, of) + of(&value);
        if count > limits.turn_keys {
            let limit = limits.turn_keys;
            return Err(HostTrap::TurnTooLarge { what: "keys", setting: "turn-keys", limit });
        }
        if bytes + self.beside > limits.turn_bytes {
            let limit = limits.turn_bytes;
            return Err(HostTrap::TurnTooLarge { what: "bytes", setting: "turn-bytes", limit });
        }
        self.turn_bytes = bytes;
        self.overlay.insert(key, value);
        Ok(())
    }

    /// The key as it is stored, to avoid allocating it again.
    pub(crate) fn known_key(&self, key: &str) -> Option<Arc<str>> {
        let key = self.base.get_key_value(key).map(|(key, _)| key);
        key.cloned()
    }

    /// Deletes a key, and returns whether it existed.
    pub(crate) fn delete(
        &mut self,
        key: Arc<str>,
        limits: &InstanceLimits,
    ) -> Result<bool, HostTrap> {
        let Some(old) = self.get(&key) else { return Ok(false) };
        let old = size(&key, old);
        // A key that this turn created leaves nothing behind. Otherwise a guest could fill the host's memory with
        // such keys.
        if self.base.contains_key(&key) {
            self.write(key, None, limits)?;
        } else {
            self.overlay.remove(&key);
            self.turn_bytes -= old;
        }
        self.bytes -= old;
        self.keys -= 1;
        Ok(true)
    }

    /// Returns up to `limit` entries after `cursor` whose keys start with `prefix`, and whether there are more.
    pub(crate) fn list(&self, prefix: &str, limit: usize, cursor: Option<&str>) -> (Entries, bool) {
        let from = match cursor {
            Some(cursor) if cursor >= prefix => Bound::Excluded(cursor),
            _ => Bound::Included(prefix),
        };
        let range = (from, Bound::Unbounded);
        let merged = Merged {
            base: self.base.range::<str, _>(range).peekable(),
            overlay: self.overlay.range::<str, _>(range).peekable(),
        };
        let mut entries = Vec::new();
        for (key, value) in merged.take_while(|(key, _)| key.starts_with(prefix)) {
            let Some(value) = value else { continue };
            if entries.len() == limit {
                return (entries, true);
            }
            entries.push((key.clone(), value.clone()));
        }
        (entries, false)
    }

    /// Discards this turn's changes.
    pub(crate) fn discard(&mut self) {
        self.overlay.clear();
        self.bytes = self.base_bytes;
        self.keys = self.base.len() as u64;
        self.turn_bytes = 0;
    }

    /// Moves this turn's changes into `base`, and returns their net effect.
    pub(crate) fn accept(&mut self) -> Vec<(Bytes, Option<Bytes>)> {
        let mut writes = Vec::with_capacity(self.overlay.len());
        while let Some((key, value)) = self.overlay.pop_first() {
            if self.base.get(&key) == value.as_ref() {
                continue;
            }
            writes.push((
                Bytes::copy_from_slice(key.as_bytes()),
                value.clone().map(Bytes::from_owner),
            ));
            match value {
                Some(value) => self.base.insert(key, value),
                None => self.base.remove(&key),
            };
        }
        self.base_bytes = self.bytes;
        self.turn_bytes = 0;
        writes
    }
}

fn size(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + KEY_CHARGE
}

/// Base and overlay merged in order of key. The overlay wins; a deleted key comes with `None`.
struct Merged<'a> {
    base: Peekable<Range<'a, Arc<str>, Value>>,
    overlay: Peekable<Range<'a, Arc<str>, Option<Value>>>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = (&'a Arc<str>, Option<&'a Value>);

    fn next(&mut self) -> Option<Self::Item> {
        let overlay_first = match (self.base.peek(), self.overlay.peek()) {
            (Some((base, _)), Some((overlay, _))) => {
                if base == overlay {
                    self.base.next();
                    true
                } else {
                    overlay < base
                }
            }
            (None, _) => true,
            (_, None) => false,
        };
        if overlay_first {
            self.overlay.next().map(|(key, value)| (key, value.as_ref()))
        } else {
            self.base.next().map(|(key, value)| (key, Some(value)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    fn limits(state: u64) -> InstanceLimits {
        InstanceLimits { state, ..InstanceLimits::default() }
    }

    fn value(bytes: &str) -> Value {
        Arc::from(bytes.as_bytes())
    }

    fn state(entries: &[(&'static str, &'static str)]) -> State {
        State::from_store(entries.iter().map(|(k, v)| (Bytes::from(*k), Bytes::from(*v))).collect())
            .unwrap()
    }

    #[test]
    fn a_turn_reports_only_its_net_effect() {
        let mut state = state(&[("a", "1"), ("b", "2"), ("c", "3")]);
        state.set(key("new"), value("x"), &limits(1_000)).unwrap();
        assert!(state.delete(key("new"), &limits(1_000)).unwrap());
        state.set(key("a"), value("9"), &limits(1_000)).unwrap();
        state.set(key("a"), value("1"), &limits(1_000)).unwrap();
        assert!(state.delete(key("b"), &limits(1_000)).unwrap());
        assert!(!state.delete(key("b"), &limits(1_000)).unwrap());
        state.set(key("c"), value("4"), &limits(1_000)).unwrap();
        let writes = state.accept();
        assert_eq!(
            writes,
            vec![(Bytes::from("b"), None), (Bytes::from("c"), Some(Bytes::from("4")))]
        );
        assert_eq!(state.bytes(), 4 + 2 * KEY_CHARGE);
        assert!(state.accept().is_empty());
        state.set(key("new"), value("x"), &limits(1_000)).unwrap();
        assert!(state.delete(key("new"), &limits(1_000)).unwrap());
        assert!(state.overlay.is_empty(), "a key created and deleted in one turn takes no memory");
    }

    #[test]
    fn a_discarded_turn_leaves_state_and_size_as_they_were() {
        let mut state = state(&[("a", "1")]);
        state.set(key("b"), value("2222"), &limits(1_000)).unwrap();
        state.accept();
        state.set(key("a"), value("77"), &limits(1_000)).unwrap();
        state.delete(key("b"), &limits(1_000)).unwrap();
        state.discard();
        assert_eq!(state.get("a"), Some(&value("1")));
        assert_eq!(state.get("b"), Some(&value("2222")));
        assert_eq!(state.bytes(), 7 + 2 * KEY_CHARGE);
    }

    #[test]
    fn a_state_beyond_its_limit_may_shrink_but_not_grow() {
        let mut state = state(&[("a", "12345678")]);
        assert!(matches!(
            state.set(key("a"), value("123456789"), &limits(4)),
            Err(HostTrap::StateTooLarge { would: 110, limit: 4 })
        ));
        state.set(key("a"), value("1234567"), &limits(4)).unwrap();
        assert_eq!(state.bytes(), 8 + KEY_CHARGE);
    }

    #[test]
    fn a_listing_includes_the_turns_own_writes_in_order() {
        let mut state = state(&[("p/a", "1"), ("p/c", "3"), ("p/d", "4"), ("q", "0")]);
        state.set(key("p/b"), value("2"), &limits(1_000)).unwrap();
        state.set(key("p/d"), value("5"), &limits(1_000)).unwrap();
        state.delete(key("p/a"), &limits(1_000)).unwrap();
        let (page, more) = state.list("p/", 2, None);
        assert_eq!(page, vec![(key("p/b"), value("2")), (key("p/c"), value("3"))]);
        assert!(more);
        let (page, more) = state.list("p/", 2, Some("p/c"));
        assert_eq!(page, vec![(key("p/d"), value("5"))]);
        assert!(!more);
        assert_eq!(state.list("", 10, None).0.len(), 4);
    }

    #[test]
    fn each_key_has_a_fixed_charge() {
        let mut state = State::default();
        let limits = limits(3 * KEY_CHARGE);
        state.set(key("a"), value(""), &limits).unwrap();
        state.set(key("b"), value(""), &limits).unwrap();
        assert!(matches!(
            state.set(key("c"), value(""), &limits),
            Err(HostTrap::StateTooLarge { would: 303, limit: 300 })
        ));
    }

    #[test]
    fn deleting_keys_makes_room_under_the_key_limit() {
        let limits = InstanceLimits { keys: 2, ..limits(1_000) };
        let mut state = state(&[("a", ""), ("b", ""), ("c", "")]);
        assert!(matches!(
            state.set(key("d"), value(""), &limits),
            Err(HostTrap::TooManyKeys { limit: 2 })
        ));
        state.set(key("a"), value("1"), &limits).unwrap();
        assert!(state.delete(key("a"), &limits).unwrap());
        assert!(state.delete(key("b"), &limits).unwrap());
        state.set(key("d"), value(""), &limits).unwrap();
        state.discard();
        assert!(state.set(key("d"), value(""), &limits).is_err(), "all three keys are back");
    }

    #[test]
    fn the_writes_of_one_turn_have_their_own_limits() {
        let limits =
            InstanceLimits { turn_keys: 2, turn_bytes: 2 * KEY_CHARGE + 6, ..limits(10_000) };
        let mut state = state(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let too_large = |result: Result<(), HostTrap>, of| match result {
            Err(HostTrap::TurnTooLarge { setting, .. }) => assert_eq!(setting, of),
            other => panic!("{other:?}"),
        };
        state.set(key("a"), value("22"), &limits).unwrap();
        state.set(key("a"), value("22"), &limits).unwrap();
        too_large(state.set(key("b"), value("333"), &limits), "turn-bytes");
        too_large(state.beside(1).set(key("b"), value("22"), &limits), "turn-bytes");
        state.beside(0);
        assert!(state.delete(key("b"), &limits).unwrap());
        too_large(state.delete(key("c"), &limits).map(drop), "turn-keys");
        assert_eq!(state.accept().len(), 2);
        assert!(state.delete(key("c"), &limits).unwrap(), "the next turn has its own limits");
    }
}
