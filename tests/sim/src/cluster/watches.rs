//! Watches of the rows, which skip and repeat values.
//!
//! A delayed watch skips to the newest values, as the contract of `ClusterStore` allows. A watch also repeats values
//! that it has sent, after newer ones: a store whose watch moves to another member may send changes again. It never
//! sends a row's newest value again, which would undo the harm to a node that believes the older one.

use std::collections::{BTreeMap, VecDeque};

use ostraca_core::rows::RowKey;

use super::World;
use super::net::{ConnId, Frame};
use super::rows::Change;
use crate::rng::Rng;

/// The number of a row's last values that a watch may repeat.
const KEPT: usize = 8;

/// A watch, and its position.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    pub(super) conn: ConnId,
    pub(super) revision: u64,
    pub(super) held: bool,
    /// The last values of each row that were sent.
    sent: BTreeMap<RowKey, VecDeque<Change>>,
}

impl Watcher {
    pub(super) fn new(conn: ConnId, revision: u64) -> Self {
        Self { conn, revision, held: false, sent: BTreeMap::new() }
    }

    fn keep(&mut self, changes: &[Change]) {
        for change in changes {
            let values = self.sent.entry(change.0.clone()).or_default();
            values.push_back(change.clone());
            if values.len() > KEPT {
                values.pop_front();
            }
        }
    }

    /// One to three overwritten values of any rows. Rows that change rarely are as likely as others.
    fn repeats(&self, rng: &mut Rng) -> Vec<Change> {
        let is_overwritten = |values: &&VecDeque<Change>| values.len() > 1;
        let rows: Vec<_> = self.sent.values().filter(is_overwritten).collect();
        let pick = |rng: &mut Rng, count: usize| rng.range(0, count as u64) as usize;
        let mut repeats = Vec::new();
        for _ in 0..rng.range(1, 4) {
            let Some(values) = rows.get(pick(rng, rows.len())) else { break };
            repeats.extend(values.get(pick(rng, values.len() - 1)).cloned());
        }
        repeats
    }
}

impl World {
    /// Sends the newest values of the rows that have changed, and sometimes older values that were sent before.
    pub(super) fn notify_watcher(&mut self, watcher: usize) {
        let revision = self.rows.revision();
        let it = &mut self.watchers[watcher];
        let mut changes = self.rows.since(it.revision);
        it.revision = revision;
        it.held = false;
        if changes.is_empty() {
            return;
        }
        it.keep(&changes);
        if self.rng_of_repeats.chance(10) {
            for change in it.repeats(&mut self.rng_of_repeats) {
                self.tally.count("fault: watch repeated an overwritten value");
                changes.push(change);
            }
        }
        let conn = it.conn;
        self.frame(conn, 1, Frame::Changes(changes));
    }

    /// Sends the newest values to a delayed watch.
    pub(super) fn watch(&mut self, conn: ConnId) {
        if let Some(at) = self.watchers.iter().position(|watcher| watcher.conn == conn) {
            let behind = self.rows.revision().saturating_sub(self.watchers[at].revision);
            if behind as usize > self.rows.since(self.watchers[at].revision).len() {
                self.tally.count("fault: watch skipped to the newest value");
            }
            self.notify_watcher(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::extensions::Extensions;
    use ostraca_core::ids::Incarnation;
    use ostraca_core::rows::{ManagerRow, Member, Row};

    use super::*;

    fn term(term: u64) -> Change {
        let holder = Member { node: "a".into(), incarnation: Incarnation { counter: 1, nonce: 1 } };
        let row = ManagerRow { term, holder, extensions: Extensions::default() };
        (RowKey::Manager, Row::Manager(row), term)
    }

    #[test]
    fn a_watch_repeats_only_overwritten_values_that_it_has_sent() {
        let mut watcher = Watcher::new(0, 0);
        let mut rng = Rng::new(1);
        watcher.keep(&[term(1)]);
        assert_eq!(watcher.repeats(&mut rng), [], "nothing was overwritten");
        let sent: Vec<_> = (2..=KEPT as u64 + 2).map(term).collect();
        watcher.keep(&sent);
        let mut repeated: Vec<_> = (0..100).flat_map(|_| watcher.repeats(&mut rng)).collect();
        repeated.sort_by_key(|(.., revision)| *revision);
        repeated.dedup();
        assert_eq!(repeated, sent[1..KEPT]);
    }
}
