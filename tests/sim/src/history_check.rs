//! The final check of every world: compares what clients saw with what is durable.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::ids::{Entity, MessageId, ScopedSessionId, TurnId};
use ostraca_oracle::{Counter, End, Operation, Outcome, check_with_report};

use crate::guest::LIMIT;
use crate::schemas::WrongSchema;
use crate::store::Image;
use crate::timers::WrongWakeUps;
use crate::violation::{Violation, ViolationKind, of_history};

/// The durable state.
#[derive(Default)]
pub(crate) struct HistoryCheck {
    versions: BTreeMap<String, u64>,
    /// Versions that were made by turns without a message.
    own_turns: BTreeMap<String, BTreeSet<u64>>,
    /// Those of them that left the entity deleted.
    deletions: BTreeMap<String, BTreeSet<u64>>,
    /// The version that each message made.
    made: BTreeMap<MessageId, u64>,
    /// The highest floor of a shard, from which entities start that have no turn.
    floor: u64,
    violations: Vec<Violation>,
}

impl HistoryCheck {
    /// Reads a store's contents; `message_of` returns the message that a turn handled, if any.
    pub(crate) fn durable(
        &mut self,
        image: &Image,
        message_of: impl Fn(&TurnId) -> Option<MessageId>,
    ) {
        let floor = image.floor.as_ref().map_or(0, |floor| floor.version);
        self.floor = self.floor.max(floor);
        let mut removed = BTreeMap::new();
        for (entity, version, _) in &image.turns {
            if !image.heads.contains_key(entity) {
                removed.insert(entity, *version);
            }
        }
        for (entity, last) in removed {
            self.own_turns.entry(entity.to_string()).or_default().extend(last + 1..=floor);
            self.versions.insert(entity.to_string(), floor);
        }
        let heads = image.heads.iter();
        self.versions.extend(heads.map(|(entity, head)| (entity.to_string(), head.version)));
        for (entity, last, floor) in &image.skipped {
            // Nobody made these versions.
            self.own_turns.entry(entity.to_string()).or_default().extend(last + 1..=*floor);
        }
        let older = image.older_revisions.iter().map(|(entity, version)| {
            let why = format!(
                "version {version} of {entity} was written by an older revision than the one before"
            );
            ViolationKind::RevisionFell.because(why)
        });
        self.violations.extend(older);
        self.violations.extend(image.wrong_schemas.iter().map(WrongSchema::judge));
        self.violations.extend(image.wrong_wake_ups.iter().map(WrongWakeUps::judge));
        for (entity, version, turn) in &image.turns {
            match message_of(turn) {
                Some(id) => self.message(entity, *version, id),
                None => {
                    if image.deletions.contains(turn) {
                        let of = self.deletions.entry(entity.to_string()).or_default();
                        of.insert(*version);
                    }
                    self.own_turns.entry(entity.to_string()).or_default().insert(*version);
                }
            }
        }
    }

    fn message(&mut self, entity: &Entity, version: u64, id: MessageId) {
        if let Some(before) = self.made.insert(id, version) {
            self.violations.push(
                ViolationKind::RanTwice
                    .because(format!("{id:?} made versions {before} and {version} of {entity}")),
            );
        }
    }

    /// Returns all broken promises, and the history of all sessions.
    pub(crate) fn of(
        mut self,
        seen: Vec<(ScopedSessionId, Vec<Operation>)>,
    ) -> (Vec<Violation>, Vec<Operation>) {
        for (session, history) in &seen {
            for operation in history {
                let id = MessageId { session: *session, sequence: operation.sequence };
                let told_not_run = operation.outcome == Outcome::NotRun;
                if let Some(version) = self.made.get(&id).filter(|_| told_not_run) {
                    self.violations.push(ViolationKind::EffectAfterNotRun.because(format!(
                        "reported as not run, but made version {version}: {operation:?}"
                    )));
                }
            }
        }
        for operation in seen.iter().flat_map(|(_, history)| history) {
            if !self.versions.contains_key(&operation.entity) {
                let own = self.own_turns.entry(operation.entity.clone()).or_default();
                own.extend(1..=self.floor);
            }
        }
        let (own_turns, deletions) = (self.own_turns, self.deletions);
        let end = End { versions: self.versions, own_turns, deletions };
        let history: Vec<_> = seen.into_iter().flat_map(|(_, history)| history).collect();
        let told = check_with_report(|_| Counter { value: 0, limit: LIMIT }, &history, &end);
        self.violations.extend(told.violations.into_iter().map(of_history));
        let skipped = told.not_compared.into_iter();
        self.violations.extend(skipped.map(|entity| {
            ViolationKind::NotCompared.because(format!("not all values of {entity} were compared"))
        }));
        (self.violations, history)
    }
}
