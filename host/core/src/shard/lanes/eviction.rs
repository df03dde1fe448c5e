//! Which lane is dropped when space runs out: the oldest one of the principal that has the most lanes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::ScopedSessionId;

/// A short hash of a principal. Two principals with the same tag merely share the space for their lanes.
pub(super) fn principal_tag(principal: &str) -> u32 {
    let mut first = [0; 4];
    first.copy_from_slice(&blake3::hash(principal.as_bytes()).as_bytes()[..4]);
    u32::from_le_bytes(first)
}

/// Lanes by principal, and principals by their number of lanes and the age of their oldest lane.
#[derive(Clone, Debug, Default)]
pub(super) struct EvictionOrder {
    by_principal: BTreeMap<u32, BTreeSet<(u64, ScopedSessionId)>>,
    ranks: BTreeSet<(usize, Reverse<u64>, u32)>,
}

impl EvictionOrder {
    pub(super) fn insert(&mut self, principal: u32, newest_created: u64, session: ScopedSessionId) {
        self.change(principal, |lanes| lanes.insert((newest_created, session)));
    }

    pub(super) fn remove(&mut self, principal: u32, newest_created: u64, session: ScopedSessionId) {
        self.change(principal, |lanes| lanes.remove(&(newest_created, session)));
    }

    /// The lane to drop first. If several principals have the most lanes, it is the oldest of all their lanes, so that
    /// the watermark rises as little as possible.
    pub(super) fn next_victim(&self) -> Option<ScopedSessionId> {
        let (_, _, principal) = self.ranks.last()?;
        self.by_principal.get(principal)?.first().map(|(_, session)| *session)
    }

    fn change(
        &mut self,
        principal: u32,
        change: impl FnOnce(&mut BTreeSet<(u64, ScopedSessionId)>) -> bool,
    ) {
        let lanes = self.by_principal.entry(principal).or_default();
        if let Some((oldest, _)) = lanes.first() {
            self.ranks.remove(&(lanes.len(), Reverse(*oldest), principal));
        }
        change(lanes);
        match lanes.first() {
            Some((oldest, _)) => {
                self.ranks.insert((lanes.len(), Reverse(*oldest), principal));
            }
            None => {
                self.by_principal.remove(&principal);
            }
        }
    }
}
