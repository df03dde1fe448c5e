//! The manager: who becomes it, the rows that it seals and writes, and what it decides (R10 to R12).
//!
//! It decides only from rows that bear its own term, writes each decision before it tells anybody, and may
//! crash between any two steps: whoever follows finds the intent in the row and goes on.

mod chunks;
mod decide;
mod handoffs;
mod owners;
mod past;
pub(super) mod plan;
mod step_down;

use std::hash::{Hash, Hasher};

use super::*;
use crate::assign::Misproposal;
use chunks::Chunk;
use handoffs::HandOff;
use owners::Owners;

/// The work of one term.
#[derive(Clone, Debug, Hash)]
pub(super) struct Manager {
    pub(super) term: u64,
    /// Until when it manages though it has heard no other host in this term.
    stays_until: u64,
    chunks: Vec<Chunk>,
    owners: Owners,
    /// What [`Machine::place`] has not looked at since it changed.
    pub(super) undecided: Undecided,
    handoffs: BTreeMap<ShardId, HandOff>,
    /// Hand-offs begun in this term.
    begun: u64,
    /// Owners that said "stopped", for this epoch.
    stopped: BTreeMap<ShardId, Epoch>,
    /// The last report of each node.
    pub(super) reports: BTreeMap<NodeId, Report>,
    /// The highest report number received from each node, and the incarnation that sent it.
    numbers: BTreeMap<NodeId, (Incarnation, u64)>,
    /// Until when each node that was seen counts as heard: from its last report, or from when it was first seen.
    heard: BTreeMap<NodeId, u64>,
    /// When to balance next.
    pub(super) balance_at: u64,
    /// When to decide again though nothing is known to have changed: deadlines pass.
    look_at: u64,
    /// Hosts at the last decision: a change balances at once (S13).
    hosts: BTreeSet<Member>,
    /// Nodes that others could not reach, and until when that is believed (S12).
    unreachable: BTreeMap<NodeId, u64>,
    /// What the strategy proposed wrongly, and that was noted.
    misproposals: BTreeSet<Misproposal>,
}

/// Chunks in which a shard may need an owner, or somebody who sees to its hand-off. Whatever that depends on adds them:
/// their rows and writes, the lives of nodes, reports, "stopped", hand-offs that end. A decision looks at no others,
/// as there may be a thousand of them, and a decision after each row that is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Undecided(BTreeSet<u32>);

impl Undecided {
    fn add(&mut self, chunk: u32) {
        self.0.insert(chunk);
    }

    fn add_of(&mut self, shard: ShardId) {
        self.0.insert(chunk_of(shard));
    }

    pub(super) fn add_all(&mut self, shards: u32) {
        self.0 = (0..chunks(shards)).collect();
    }

    /// Adds those of which two reports of one node do not tell the same. Without a former one anything may be news.
    fn add_changed(&mut self, old: Option<&Report>, new: &Report, shards: u32) {
        let Some(old) = old.filter(|old| old.incarnation == new.incarnation) else {
            return self.add_all(shards);
        };
        for (one, other) in [(old, new), (new, old)] {
            let seen = one.seen.iter().filter(|seen| other.seen.binary_search(seen).is_err());
            self.0.extend(seen.map(|(chunk, _)| *chunk));
            let key = |held: &Held| (held.shard, held.epoch);
            let held = one
                .held
                .iter()
                .filter(|held| other.held.binary_search_by_key(&key(held), key).is_err());
            self.0.extend(held.map(|held| chunk_of(held.shard)));
            let refused =
                one.refused.iter().filter(|refused| other.refused.binary_search(refused).is_err());
            self.0.extend(refused.map(|(shard, ..)| chunk_of(*shard)));
        }
    }
}

/// It says what to look at, not what is: a look too many changes nothing.
impl Hash for Undecided {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Manager {
    fn new(term: u64, shards: u32, now: u64, stays_until: u64) -> Self {
        let mut undecided = Undecided::default();
        undecided.add_all(shards);
        Self {
            term,
            stays_until,
            undecided,
            chunks: (0..chunks(shards)).map(|_| Chunk::default()).collect(),
            owners: Owners::default(),
            handoffs: BTreeMap::new(),
            begun: 0,
            stopped: BTreeMap::new(),
            reports: BTreeMap::new(),
            numbers: BTreeMap::new(),
            heard: BTreeMap::new(),
            balance_at: now,
            look_at: 0,
            hosts: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            misproposals: BTreeSet::new(),
        }
    }

    pub(super) fn make_relative(&mut self, to: &dyn Relative) {
        self.balance_at = to.due(self.balance_at);
        self.look_at = to.due(self.look_at);
        let never = to.never(self.stays_until);
        self.stays_until = if never { u64::MAX } else { to.due(self.stays_until) };
        self.heard.retain(|_, until| !to.never(*until));
        for until in self.unreachable.values_mut().chain(self.heard.values_mut()) {
            *until = to.due(*until);
        }
        for hand_off in self.handoffs.values_mut() {
            hand_off.make_relative(to);
        }
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            chunk.read_at = chunk.read_at.map(|at| to.due(at));
            if let Some((_, at)) = &mut chunk.base {
                *at = to.revision(&Key::Shards(number as u32), *at);
            }
        }
        for report in self.reports.values_mut() {
            for (chunk, at) in &mut report.seen {
                *at = to.revision(&Key::Shards(*chunk), *at);
            }
        }
    }

    /// Notes a report's number. A report that was overtaken by a later one of its node tells what is no longer so: that
    /// the `EntityStore` answers a host which has given its shards up since, for one (R9).
    fn is_newest(&mut self, from: &Member, number: Option<u64>) -> bool {
        let Some(number) = number else { return true };
        let newest = (from.incarnation, number);
        let last = self.numbers.entry(from.node.clone()).or_insert(newest);
        let overtaken = match last.0 == from.incarnation {
            true => number < last.1,
            false => from.incarnation.counter < last.0.counter,
        };
        if !overtaken {
            *last = newest;
        }
        !overtaken
    }

    pub(super) fn sealed(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.sealed)
    }
}

impl Machine {
    pub(super) fn drive_manager(&mut self, now: Now) {
        let Some(me) = self.member() else { return };
        if self.suspended() || !self.identity.roles.manager || !self.watching {
            return;
        }
        match (&self.manager, &self.view.manager) {
            (Some(manager), Some((row, _))) if row.term > manager.term => {
                self.manager = None;
                self.writes.retain(|_, p| !matches!(p, Purpose::Chunk(_) | Purpose::Death(_)));
            }
            (None, Some((row, _))) if row.holder == me => {
                let stays = now.mono + self.patience(row.silent_terms());
                let manager = Manager::new(row.term, self.identity.shards, now.mono, stays);
                self.manager = Some(manager);
            }
            _ => {}
        }
        if self.manager.is_none() {
            self.view.silent.clear();
            self.news = false;
            return self.stand(now, &me);
        }
        self.pump_chunks(now);
        let no_seal = self.off(Mutation::NoSeal);
        let Some(manager) = self.manager.as_mut().filter(|it| it.sealed() || no_seal) else {
            return;
        };
        if self.news || now.mono >= manager.look_at {
            manager.look_at = now.mono + self.settings.beat();
            self.news = false;
            self.decide(now);
            self.pump_chunks(now);
        }
    }

    /// Stands for the leadership once its holder's life is over, candidates in order of age (K21).
    fn stand(&mut self, now: Now, me: &Member) {
        if self.leaving != Leaving::No
            || self.writes.values().any(|purpose| matches!(purpose, Purpose::Lead(_)))
        {
            return;
        }
        let holder = self.view.manager.as_ref().map(|(row, _)| row.holder.clone());
        let margin = self.settings.margin;
        let over = match holder.as_ref().map(|holder| (holder, self.view.over(holder))) {
            None => true,
            Some((holder, Some(over))) => over || self.view.lapsed(&holder.node, now.mono, margin),
            Some((holder, None)) => {
                // Nobody is dead for want of news: its row may be on its way.
                let node = holder.node.clone();
                self.look_for(now, [node]);
                false
            }
        };
        if !over {
            self.vacant = None;
            return;
        }
        let since = *self.vacant.get_or_insert(now.mono);
        let mut candidates: Vec<_> = self
            .view
            .all_live()
            .filter(|(node, row)| {
                row.roles.manager && holder.as_ref().is_none_or(|holder| holder.node != **node)
            })
            .map(|(node, row)| (row.since, node.clone()))
            .collect();
        candidates.sort();
        let rank =
            candidates.iter().position(|(_, node)| *node == me.node).unwrap_or(candidates.len());
        if now.mono < since + rank as u64 * self.settings.candidate_step {
            return;
        }
        let term = self.view.manager.as_ref().map_or(0, |(row, _)| row.term) + 1;
        let row = ManagerRow { term, holder: me.clone(), extensions: Extensions::default() };
        self.lead(row, 0);
    }

    /// Writes who manages from now on. Whatever other releases noted on the row stays.
    fn lead(&mut self, row: ManagerRow, silent_terms: u32) {
        let seen = self.view.manager.as_ref();
        let expected = seen.map(|(_, revision)| *revision);
        let extensions = seen.map(|(row, _)| row.extensions.clone()).unwrap_or_default();
        let row = ManagerRow { extensions, ..row }.with_silent_terms(silent_terms);
        self.write(Purpose::Lead(row.clone()), Key::Manager, expected, Row::Manager(row));
    }

    pub(super) fn led(&mut self, now: Now, row: ManagerRow, result: Result<u64, WriteError>) {
        match result {
            Ok(revision) => {
                let row = Row::Manager(row);
                self.learn(now, Key::Manager, row.clone(), revision);
                self.tell_all(Key::Manager, &row, revision);
            }
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, Key::Manager, row, revision);
            }
            Err(WriteError::Conflict(None)) => {}
            Err(WriteError::Unknown) => {
                self.vacant = Some(now.mono + self.settings.retry);
                self.actions.push_back(Action::Read(Key::Manager));
            }
        }
    }

    /// Tells every live node a row that was written (S4): the watch would, later.
    pub(super) fn tell_all(&mut self, key: Key, row: &Row, revision: u64) {
        let others: Vec<_> = self
            .view
            .all_live()
            .map(|(node, _)| node.clone())
            .filter(|node| *node != self.identity.node)
            .collect();
        for to in others {
            let talk = Talk::Wrote { key: key.clone(), row: row.clone(), revision };
            self.actions.push_back(Action::Say { to, talk });
        }
    }

    pub(super) fn on_report(&mut self, now: Now, from: &Member, mut report: Report) {
        // They are searched, and come in this order from any node of this program.
        report.seen.sort_unstable();
        report.held.sort_unstable_by_key(|held| (held.shard, held.epoch));
        report.refused.sort_unstable();
        let heard = now.mono + self.settings.unheard;
        let number = report.take_number();
        if let Some(manager) = &mut self.manager
            && report.incarnation == from.incarnation
            && manager.is_newest(from, number)
        {
            match report.store_answers {
                true => self.view.mute.remove(from),
                false => self.view.mute.insert(from.clone()),
            };
            let unrunnable = report.unrunnable();
            match unrunnable.is_empty() {
                true => self.view.unfit.remove(from),
                false => self.view.unfit.insert(from.clone(), unrunnable),
            };
            manager.heard.insert(from.node.clone(), heard);
            let old = manager.reports.get(&from.node);
            if old != Some(&report) {
                self.news = true;
                manager.undecided.add_changed(old, &report, self.identity.shards);
                manager.reports.insert(from.node.clone(), report);
            }
        }
    }

    /// Counts every node as just heard.
    pub(super) fn hear_all(&mut self, now: Now) {
        let until = now.mono + self.settings.unheard;
        for at in self.manager.iter_mut().flat_map(|manager| manager.heard.values_mut()) {
            *at = until;
        }
    }

    /// Who has not been heard for long, though it renews its lease, is given nothing that others can have: it could not
    /// say that it stopped (S12).
    fn listen(&mut self, now: Now) {
        let until = now.mono + self.settings.unheard;
        let me = &self.identity.node;
        let Some(manager) = &mut self.manager else { return };
        let silent = self.view.all_live().map(|(node, _)| node).filter(|node| {
            // One that was not heard in its former life either is silent at once, until its first report.
            *node != me && now.mono >= *manager.heard.entry((*node).clone()).or_insert(until)
        });
        self.view.silent = silent.cloned().collect();
    }

    /// Believed for one lease, and hastens nothing but a look at the row (S7, S12, R9).
    pub(super) fn on_unreachable(&mut self, now: Now, node: NodeId) {
        let until = now.mono + self.settings.lease;
        // A node that nobody counts on any more holds nothing up.
        let live = self.view.all_live().any(|(of, _)| *of == node);
        if let Some(manager) = self.manager.as_mut().filter(|_| live) {
            manager.unreachable.insert(node.clone(), until);
            self.actions.push_back(Action::Read(Key::Node(node)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incarnation(counter: u64) -> Incarnation {
        Incarnation { counter, nonce: counter }
    }

    #[test]
    fn a_report_counts_unless_a_later_one_of_its_node_came() {
        let mut manager = Manager::new(1, 4, 0, 0);
        let mut newest = |counter, number| {
            manager
                .is_newest(&Member { node: "b".into(), incarnation: incarnation(counter) }, number)
        };
        assert!(newest(2, Some(5)), "the first");
        assert!(newest(2, Some(5)), "a copy of it");
        assert!(newest(2, Some(7)));
        assert!(!newest(2, Some(6)), "overtaken");
        assert!(!newest(1, Some(9)), "of a former incarnation");
        assert!(newest(3, Some(1)), "a new incarnation starts its own count");
        assert!(newest(1, None), "of a release that does not number them");
        let other = Incarnation { nonce: 99, ..incarnation(3) };
        let other = Member { node: "b".into(), incarnation: other };
        assert!(manager.is_newest(&other, Some(1)), "two processes may take one counter");
    }

    #[test]
    fn what_differs_between_two_reports_of_a_life_is_looked_at() {
        let shard = |chunk| shard_at(chunk, 3);
        let held = |chunk, epoch| Held { shard: shard(chunk), epoch: Epoch(epoch), serving: true };
        let old = Report {
            incarnation: incarnation(1),
            seen: vec![(0, 1), (1, 1), (2, 1)],
            held: vec![held(0, 1), held(3, 1)],
            refused: vec![(shard(0), Epoch(1), Epoch(1))],
            ..Report::default()
        };
        let changed = |old: Option<&Report>, new: &Report| {
            let mut undecided = Undecided::default();
            undecided.add_changed(old, new, 10 * crate::rows::CHUNK);
            undecided.0.into_iter().collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..10).collect();
        assert_eq!(changed(Some(&old), &old), []);
        let new = Report {
            seen: vec![(0, 1), (1, 2), (2, 1)],
            held: vec![held(0, 1), held(3, 2)],
            refused: vec![(shard(0), Epoch(1), Epoch(1)), (shard(5), Epoch(1), Epoch(2))],
            ..old.clone()
        };
        assert_eq!(changed(Some(&old), &new), [1, 3, 5]);
        assert_eq!(changed(Some(&new), &old), [1, 3, 5], "what is missing counts too");
        assert_eq!(changed(None, &new), all);
        assert_eq!(
            changed(Some(&old), &Report { incarnation: incarnation(2), ..old.clone() }),
            all
        );
    }
}
