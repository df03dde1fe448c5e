//! An entity's keys and values, as its instance sees them: what stands, and what the present turn has changed.
//!
//! `base` is the state at the turn's beginning, earlier turns that are not durable yet included (R21); `overlay` is this
//! turn's. Keeping them apart makes discarding free, and lets the turn's net effect be told at its end.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::fault::Fault;

/// The longest key in bytes.
pub(crate) const KEY_LIMIT: usize = 512;

pub(crate) type Value = Arc<[u8]>;
pub(crate) type Entries = Vec<(Arc<str>, Value)>;

#[derive(Default)]
pub(crate) struct State {
    base: BTreeMap<Arc<str>, Value>,
    base_bytes: u64,
    overlay: BTreeMap<Arc<str>, Option<Value>>,
    bytes: u64,
}

impl State {
    /// Takes what the store has.
    pub(crate) fn from_store(entries: Vec<(Bytes, Bytes)>) -> Result<State, Fault> {
        let mut base = BTreeMap::new();
        let mut bytes = 0;
        for (key, value) in entries {
            let key = std::str::from_utf8(&key)
                .map_err(|_| Fault::State("load the entity's state: a key is not UTF-8".into()))?;
            bytes += size(key, &value);
            base.insert(Arc::from(key), Arc::from(&value[..]));
        }
        Ok(State { base, base_bytes: bytes, overlay: BTreeMap::new(), bytes })
    }

    /// Keys and values in bytes, this turn's changes included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        match self.overlay.get(key) {
            Some(value) => value.as_ref(),
            None => self.base.get(key),
        }
    }

    /// Sets a key unless that makes the state larger than `limit`. A state that is too large already may shrink.
    pub(crate) fn set(&mut self, key: Arc<str>, value: Value, limit: u64) -> Result<(), Fault> {
        let old = self.get(&key).map_or(0, |old| size(&key, old));
        let new = size(&key, &value);
        let would = self.bytes - old + new;
        if would > limit && new > old {
            return Err(Fault::StateTooLarge { would, limit });
        }
        self.bytes = would;
        self.overlay.insert(key, Some(value));
        Ok(())
    }

    /// The key as it is kept, to save making it anew.
    pub(crate) fn known_key(&self, key: &str) -> Option<Arc<str>> {
        let key = self.base.get_key_value(key).map(|(key, _)| key);
        key.cloned()
    }

    pub(crate) fn delete(&mut self, key: Arc<str>) -> bool {
        let Some(old) = self.get(&key) else { return false };
        self.bytes -= size(&key, old);
        // A key that this turn made leaves nothing behind: else a guest could fill the host's memory with them.
        if self.base.contains_key(&key) {
            self.overlay.insert(key, None);
        } else {
            self.overlay.remove(&key);
        }
        true
    }

    /// Up to `limit` entries after `cursor` whose keys begin with `prefix`, and whether there are more.
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

    /// Forgets this turn's changes.
    pub(crate) fn discard(&mut self) {
        self.overlay.clear();
        self.bytes = self.base_bytes;
    }

    /// Makes this turn's changes stand and tells their net effect.
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
        writes
    }
}

fn size(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

/// Base and overlay in order of key, the overlay before the base; deleted keys come as none.
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

    fn value(bytes: &str) -> Value {
        Arc::from(bytes.as_bytes())
    }

    fn state(entries: &[(&'static str, &'static str)]) -> State {
        State::from_store(entries.iter().map(|(k, v)| (Bytes::from(*k), Bytes::from(*v))).collect())
            .unwrap()
    }

    #[test]
    fn only_the_net_effect_of_a_turn_is_told() {
        let mut state = state(&[("a", "1"), ("b", "2"), ("c", "3")]);
        state.set(key("new"), value("x"), 100).unwrap();
        assert!(state.delete(key("new")));
        state.set(key("a"), value("9"), 100).unwrap();
        state.set(key("a"), value("1"), 100).unwrap();
        assert!(state.delete(key("b")));
        assert!(!state.delete(key("b")));
        state.set(key("c"), value("4"), 100).unwrap();
        let writes = state.accept();
        assert_eq!(
            writes,
            vec![(Bytes::from("b"), None), (Bytes::from("c"), Some(Bytes::from("4")))]
        );
        assert_eq!(state.bytes(), 4);
        assert!(state.accept().is_empty());
        state.set(key("new"), value("x"), 100).unwrap();
        assert!(state.delete(key("new")));
        assert!(state.overlay.is_empty(), "what came and went takes no memory");
    }

    #[test]
    fn a_discarded_turn_leaves_state_and_size_as_they_were() {
        let mut state = state(&[("a", "1")]);
        state.set(key("b"), value("2222"), 100).unwrap();
        state.accept();
        state.set(key("a"), value("77"), 100).unwrap();
        state.delete(key("b"));
        state.discard();
        assert_eq!(state.get("a"), Some(&value("1")));
        assert_eq!(state.get("b"), Some(&value("2222")));
        assert_eq!(state.bytes(), 7);
    }

    #[test]
    fn a_state_beyond_its_limit_may_shrink_but_not_grow() {
        let mut state = state(&[("a", "12345678")]);
        assert!(matches!(
            state.set(key("a"), value("123456789"), 4),
            Err(Fault::StateTooLarge { would: 10, limit: 4 })
        ));
        state.set(key("a"), value("1234567"), 4).unwrap();
        assert_eq!(state.bytes(), 8);
    }

    #[test]
    fn a_listing_shows_the_turns_own_writes_in_order_and_pages_through_all() {
        let mut state = state(&[("p/a", "1"), ("p/c", "3"), ("p/d", "4"), ("q", "0")]);
        state.set(key("p/b"), value("2"), 100).unwrap();
        state.set(key("p/d"), value("5"), 100).unwrap();
        state.delete(key("p/a"));
        let (page, more) = state.list("p/", 2, None);
        assert_eq!(page, vec![(key("p/b"), value("2")), (key("p/c"), value("3"))]);
        assert!(more);
        let (page, more) = state.list("p/", 2, Some("p/c"));
        assert_eq!(page, vec![(key("p/d"), value("5"))]);
        assert!(!more);
        assert_eq!(state.list("", 10, None).0.len(), 4);
    }
}
