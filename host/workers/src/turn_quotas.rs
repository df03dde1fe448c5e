//! How many turns a second this node's entities of a namespace may get.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ostraca_codes::codes;
use ostraca_core::message::Outcome;
use ostraca_core::names;
use ostraca_core::quota::TurnBudget;

/// A node's budgets of turns, by namespace. All workers share them; so do clones. Without quotas, a message costs one
/// read of a flag.
#[derive(Clone, Debug, Default)]
pub struct TurnQuotas(Arc<Budgets>);

#[derive(Debug, Default)]
struct Budgets {
    any: AtomicBool,
    by_namespace: RwLock<BTreeMap<Arc<str>, Mutex<Budget>>>,
}

#[derive(Debug)]
struct Budget {
    turns: TurnBudget,
    /// Turns a second on all nodes.
    limit: u64,
    /// Messages and firings since it was last asked.
    asked: u64,
}

impl TurnQuotas {
    /// Limits these namespaces, each with the limit on all nodes, in turns a second, and this node's share of it, in
    /// thousandths of a turn. Others are no longer limited. `now` is on the node's clock, in milliseconds.
    pub fn set(&self, shares: &BTreeMap<Arc<str>, (u64, u64)>, now: u64) {
        let mut all = self.0.by_namespace.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|namespace, _| shares.contains_key(namespace));
        for (namespace, (limit, share)) in shares {
            let (limit, share) = (*limit, *share);
            match all.get_mut(namespace).map(Mutex::get_mut) {
                Some(budget) => {
                    let budget = budget.unwrap_or_else(PoisonError::into_inner);
                    budget.turns.set_rate(share, now);
                    budget.limit = limit;
                }
                None => {
                    let budget = Budget { turns: TurnBudget::new(share, now), limit, asked: 0 };
                    all.insert(namespace.clone(), Mutex::new(budget));
                }
            }
        }
        self.0.any.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// The messages and firings since the last call, refused ones included, by namespace.
    #[must_use]
    pub fn take_asked(&self) -> BTreeMap<Arc<str>, u64> {
        let all = self.0.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        let take = |budget: &Mutex<Budget>| {
            std::mem::take(&mut budget.lock().unwrap_or_else(PoisonError::into_inner).asked)
        };
        all.iter().map(|(namespace, budget)| (namespace.clone(), take(budget))).collect()
    }

    /// Takes a turn for a message, or refuses it.
    pub(crate) fn refusal(&self, entity_type: &str, now: u64) -> Option<Outcome> {
        let (limit, wait) = self.with(entity_type, |budget| {
            budget.turns.take(now).err().map(|wait| (budget.limit, wait))
        })??;
        let text = format!(
            "the entities of the namespace `{}` get more than {limit} turns a second",
            names::namespace(entity_type)
        );
        Some(Outcome::not_run_retryable(codes::QUOTA_TURNS, text, wait))
    }

    /// Takes a turn for a timer, which fires in any case: later messages wait for it.
    pub(crate) fn charge(&self, entity_type: &str, now: u64) {
        self.with(entity_type, |budget| budget.turns.charge(now));
    }

    fn with<T>(&self, entity_type: &str, take: impl FnOnce(&mut Budget) -> T) -> Option<T> {
        if !self.0.any.load(Ordering::Relaxed) {
            return None;
        }
        let all = self.0.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        let budget = all.get(names::namespace(entity_type))?;
        let mut budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.asked += 1;
        Some(take(&mut budget))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(outcome: Option<Outcome>) -> Option<String> {
        match outcome? {
            Outcome::NotRun { code, retry_after: Some(_), .. } => Some(code.into_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_namespace_gets_its_share_and_no_other_pays() {
        let quotas = TurnQuotas::default();
        assert_eq!(quotas.refusal("acme:counter", 0), None, "no quota");
        quotas.set(&BTreeMap::from([("acme".into(), (4, 2_000))]), 0);
        for expected in [None, None, Some("quota-turns".to_owned())] {
            assert_eq!(code(quotas.refusal("acme:counter", 0)), expected);
        }
        assert_eq!(quotas.refusal("counter", 0), None);
        assert_eq!(quotas.refusal("acme:other", 500), None, "half a second later");
        assert_eq!(quotas.take_asked(), BTreeMap::from([("acme".into(), 4)]));
        quotas.charge("acme:counter", 500);
        assert!(quotas.refusal("acme:counter", 999).is_some(), "a timer took it");
        assert_eq!(quotas.take_asked(), BTreeMap::from([("acme".into(), 2)]));
        quotas.set(&BTreeMap::new(), 999);
        assert_eq!(quotas.refusal("acme:counter", 999), None, "no quota any more");
    }

    #[test]
    fn a_changed_share_refills_no_budget() {
        let quotas = TurnQuotas::default();
        let share = |share| BTreeMap::from([(Arc::from("default"), (9, share))]);
        quotas.set(&share(1_000), 0);
        assert_eq!(quotas.refusal("counter", 0), None);
        quotas.set(&share(9_000), 0);
        assert!(quotas.refusal("counter", 0).is_some());
        assert_eq!(quotas.refusal("counter", 112), None, "at the new rate");
    }
}
