//! Where a worker counts what it runs: the node's figures of each method, kept at hand, and its own sample of turns.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use ostraca_codes::{Code, codes};
use ostraca_core::ids::Entity;
use ostraca_core::message::{Message, Outcome};
use ostraca_core::records::GuestReply;
use ostraca_stats::{Ending, Stats, TurnSample, Work, WorkStats, WorkerGauges};

/// The figures of one type, by what runs.
#[derive(Debug, Default)]
struct OfType {
    methods: HashMap<Arc<str>, Arc<WorkStats>>,
    other: HashMap<&'static str, Arc<WorkStats>>,
}

/// A worker's way to the node's figures, without a lock.
#[derive(Debug)]
pub(super) struct Figures {
    stats: Arc<Stats>,
    known: HashMap<Arc<str>, OfType>,
    sample: TurnSample,
}

impl Figures {
    pub(super) fn new(stats: Arc<Stats>) -> Self {
        Self { stats, known: HashMap::new(), sample: TurnSample::default() }
    }

    /// Where a message is counted.
    pub(super) fn of_message(&mut self, message: &Message) -> Arc<WorkStats> {
        let entity_type = &message.target.entity_type;
        let known = self.known.get(entity_type).and_then(|it| it.methods.get(&message.method));
        if let Some(found) = known {
            return found.clone();
        }
        let found = self.stats.methods.add(entity_type, &Work::Message(message.method.clone()));
        self.known
            .entry(entity_type.clone())
            .or_default()
            .methods
            .insert(message.method.clone(), found.clone());
        found
    }

    /// Where a turn is counted that is not a message's.
    pub(super) fn of(&mut self, entity_type: &Arc<str>, work: &Work) -> Arc<WorkStats> {
        let known = self.known.get(entity_type).and_then(|it| it.other.get(work.name()));
        if let Some(found) = known {
            return found.clone();
        }
        let found = self.stats.methods.add(entity_type, work);
        self.known.entry(entity_type.clone()).or_default().other.insert(work.name(), found.clone());
        found
    }

    /// Counts an entity's turn.
    pub(super) fn count_turn(&mut self, entity: &Entity) {
        Stats::count(&self.stats.turns);
        self.sample.count(entity);
    }

    /// Reports the hottest entities when their window has ended.
    pub(super) fn report_hottest(&mut self, now: u64, gauges: &WorkerGauges) {
        if let Some(hottest) = self.sample.take(now) {
            *gauges.hottest.lock().unwrap_or_else(PoisonError::into_inner) = hottest;
        }
    }
}

/// How a message ended. `None` if it has not: its gateway sends it to the shard's next owner. Also for a query whose
/// caller has gone.
pub(super) fn ending(outcome: &Outcome) -> Option<Ending> {
    match outcome {
        Outcome::Final { reply: GuestReply::Error { .. }, .. } => Some(Ending::Error),
        Outcome::Final { .. } => Some(Ending::Ok),
        Outcome::NotRun { code, .. } if GOES_ON.iter().any(|it| *code == *it) => None,
        Outcome::NotRun { .. } => Some(Ending::NotRun),
        Outcome::Unknown { .. } => Some(Ending::Unknown),
    }
}

/// The codes of outcomes with which a message has not ended.
const GOES_ON: [Code; 3] = [codes::NOT_OWNER, codes::REBALANCING, codes::CALLER_GONE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_goes_on_elsewhere_has_not_ended() {
        let not_run = |code| ending(&Outcome::not_run_retryable(code, "", 10));
        assert_eq!(not_run(codes::OVERLOADED), Some(Ending::NotRun));
        for code in GOES_ON {
            assert_eq!(not_run(code), None);
        }
        let of = |reply| ending(&Outcome::Final { reply, version: 1 });
        let error = GuestReply::Error { code: "c".into(), message: "m".into() };
        assert_eq!(of(error), Some(Ending::Error));
        assert_eq!(of(GuestReply::Dropped), Some(Ending::Ok));
        assert_eq!(ending(&Outcome::Unknown { message: "m".into() }), Some(Ending::Unknown));
    }
}
