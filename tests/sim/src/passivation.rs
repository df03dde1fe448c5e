//! Delays before passivation in the simulated clusters: which turns set one, and when it has passed (E15).

use ostraca_core::shard::TurnOutput;

use crate::rng::Rng;

/// The delay that a turn sets, if it sets one.
pub(crate) fn by_turn(rng: &mut Rng) -> Option<Option<u64>> {
    match rng.range(0, 100) {
        0..30 => Some(Some(rng.range(60, 300))),
        30..35 => Some(None),
        _ => None,
    }
}

/// What an instance's last turn says about its passivation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delay {
    /// When the turn ended, on the node's clock.
    since: u64,
    /// How long the instance is then kept, in milliseconds, if the guest has set that.
    after: Option<u64>,
    at_once: bool,
}

impl Delay {
    pub(crate) fn on_turn(&mut self, now: u64, result: &TurnOutput) {
        self.after = result.passivate_after.unwrap_or(self.after);
        (self.since, self.at_once) = (now, result.passivate);
    }

    /// Whether the turn asked for passivation at once.
    pub(crate) fn is_at_once(&self) -> bool {
        self.at_once
    }

    pub(crate) fn has_passed(&self, now: u64) -> bool {
        self.after.is_some_and(|after| self.since + after <= now)
    }
}
