//! Faults of an API server, chosen at random from a seed.

use std::time::Duration;

/// What may go wrong, each in thousandths of the requests that it can happen to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The connection closes before the request is carried out.
    pub cut_before: u64,
    /// It closes after the request was carried out.
    pub cut_after: u64,
    /// 429 with `Retry-After`, without being carried out ("API Priority and Fairness").
    pub throttled: u64,
    /// 500 with etcd's "request timed out": carried out or not.
    pub timed_out: u64,
    /// 503 without being carried out.
    pub unavailable: u64,
    /// 409 to a replacement without being carried out, as if the object was changed and changed back.
    pub conflicts: u64,
    /// The answer comes late, by up to 20 ms.
    pub slow: u64,
    /// A watch ends after its next event, as if its connection was closed.
    pub watch_ends: u64,
    /// A watch that ends does so with an `ERROR` event of 410: who watches must read everything again.
    pub watch_expires: u64,
    /// A page of a list expires: 410.
    pub page_expires: u64,
    /// A write that is not a creation is also cut before it is carried out, or times out. Without it, only the faults
    /// happen to creations after which a client can know what became of them.
    pub creations_in_doubt: bool,
}

impl Rates {
    /// All faults.
    pub const ALL: Self = Self {
        cut_before: 60,
        cut_after: 60,
        throttled: 5,
        timed_out: 40,
        unavailable: 40,
        conflicts: 20,
        slow: 100,
        watch_ends: 100,
        watch_expires: 200,
        page_expires: 100,
        creations_in_doubt: true,
    };
    /// The faults after which a client can find out what became of each request.
    pub const SETTLED: Self = Self { creations_in_doubt: false, ..Self::ALL };
}

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    CutBefore,
    CutAfter,
    Throttled,
    /// Whether the request is carried out.
    TimedOut(bool),
    Unavailable,
    Conflict,
}

/// Faults at random.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    rates: Rates,
    state: u64,
}

impl Faults {
    pub(super) fn new(rates: Rates, seed: u64) -> Self {
        Self { rates, state: seed }
    }

    /// The next random number below `limit` (SplitMix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn happens(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    /// What goes wrong with a request.
    pub(super) fn of_request(&mut self, is_creation: bool) -> Option<Fault> {
        let rates = self.rates;
        let unsettled = !is_creation || rates.creations_in_doubt;
        if self.happens(rates.cut_after) {
            return Some(Fault::CutAfter);
        }
        if self.happens(rates.throttled) {
            return Some(Fault::Throttled);
        }
        if self.happens(rates.timed_out) {
            let carried_out = self.happens(500) || !unsettled;
            return Some(Fault::TimedOut(carried_out));
        }
        let fault = match () {
            () if self.happens(rates.cut_before) => Fault::CutBefore,
            () if self.happens(rates.unavailable) => Fault::Unavailable,
            () => return None,
        };
        unsettled.then_some(fault)
    }

    pub(super) fn conflicts(&mut self) -> bool {
        self.happens(self.rates.conflicts)
    }

    pub(super) fn delay(&mut self) -> Duration {
        let slow = self.happens(self.rates.slow);
        Duration::from_millis(if slow { self.below(20) } else { 0 })
    }

    pub(super) fn watch_ends(&mut self) -> bool {
        self.happens(self.rates.watch_ends)
    }

    /// Whether a watch that ends does so with 410.
    pub(super) fn watch_expires(&mut self) -> bool {
        self.happens(self.rates.watch_expires)
    }

    pub(super) fn page_expires(&mut self) -> bool {
        self.happens(self.rates.page_expires)
    }
}
