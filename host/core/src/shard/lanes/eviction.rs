//! Which lane goes first when there is no room: of the principal with the most lanes the oldest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::ScopedSessionId;

/// A principal in a few bytes. Two that share a tag share what they may keep, and nothing else.
pub(super) fn principal_tag(principal: &str) -> u32 {
    let mut first = [0; 4];
    first.copy_from_slice(&blake3::hash(principal.as_bytes()).as_bytes()[..4]);
    u32::from_le_bytes(first)
}

/// Lanes by their principals, and principals by how many they have and how old the oldest is.
#[derive(Debug, Default)]
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

    /// The one that goes first. Among principals with as many lanes it is the oldest of all, so that the watermark
    /// rises no more than it must.
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
