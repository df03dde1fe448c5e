//! Rules for packets between pairs of nodes, and counts of their effects.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A sender or receiver of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A node, by its index.
    Node(usize),
    /// All clients.
    Clients,
}

/// The rule for packets in one direction. By default, all packets pass unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rule {
    /// Whether all packets are dropped.
    pub cut: bool,
    /// How many packets in a thousand are lost.
    pub loss: u32,
    /// How many packets in a thousand are duplicated, each copy with its own delay.
    pub double: u32,
    /// The delay of each packet.
    pub delay: Duration,
    /// The maximum additional random delay, which reorders packets.
    pub jitter: Duration,
}

impl Rule {
    /// Nothing passes.
    pub const CUT: Self =
        Self { cut: true, loss: 0, double: 0, delay: Duration::ZERO, jitter: Duration::ZERO };

    /// A bad line: one packet in twenty is lost, one in fifty duplicated, and all are delayed by 1 to 16 ms, which
    /// reorders them.
    pub const BAD: Self = Self {
        cut: false,
        loss: 50,
        double: 20,
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(15),
    };

    /// Packets are delayed by `delay` plus a random time of up to `jitter`.
    #[must_use]
    pub fn late(delay: Duration, jitter: Duration) -> Self {
        Self { delay, jitter, ..Self::default() }
    }
}

/// Numbers of packets, by what happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Forwarded, immediately or later; copies are not counted here.
    pub passed: u64,
    /// Dropped by a cut.
    pub cut: u64,
    /// Dropped by loss.
    pub lost: u64,
    /// Delayed; they also count as passed.
    pub delayed: u64,
    /// Overtaken by a later packet.
    pub overtaken: u64,
    /// Duplicates.
    pub doubled: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.cut += more.cut;
        self.lost += more.lost;
        self.delayed += more.delayed;
        self.overtaken += more.overtaken;
        self.doubled += more.doubled;
    }
}

#[derive(Debug)]
pub(super) struct Table {
    rules: HashMap<(Endpoint, Endpoint), Rule>,
    counts: HashMap<(Endpoint, Endpoint), Counts>,
    /// The latest moment at which a packet of the pair is due to arrive.
    due: HashMap<(Endpoint, Endpoint), std::time::Instant>,
    rng: StdRng,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rules: HashMap::new(),
            counts: HashMap::new(),
            due: HashMap::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    pub(super) fn set(&mut self, from: Endpoint, to: Endpoint, rule: Rule) {
        self.rules.insert((from, to), rule);
    }

    pub(super) fn heal(&mut self) {
        self.rules.clear();
    }

    pub(super) fn counts(&self, from: Endpoint, to: Endpoint) -> Counts {
        self.counts.get(&(from, to)).copied().unwrap_or_default()
    }

    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.counts.values().for_each(|counts| total += *counts);
        total
    }

    /// Decides after which delay a packet and its copy are forwarded, if at all. `room` is whether there is capacity to
    /// delay the packet.
    pub(super) fn judge(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        room: bool,
    ) -> [Option<Duration>; 2] {
        let rule = self.rules.get(&(from, to)).copied().unwrap_or_default();
        let counts = self.counts.entry((from, to)).or_default();
        if rule.cut {
            counts.cut += 1;
            return [None, None];
        }
        let held = !rule.delay.is_zero() || !rule.jitter.is_zero();
        if (held && !room) || self.rng.random_range(0..1_000) < rule.loss {
            counts.lost += 1;
            return [None, None];
        }
        counts.passed += 1;
        if !held {
            let copy = self.rng.random_range(0..1_000) < rule.double;
            counts.doubled += u64::from(copy);
            return [Some(Duration::ZERO), copy.then_some(Duration::ZERO)];
        }
        let jitter = u64::try_from(rule.jitter.as_micros()).unwrap_or(u64::MAX);
        let mut when = || rule.delay + Duration::from_micros(self.rng.random_range(0..=jitter));
        let (first, second) = (when(), when());
        let due = std::time::Instant::now() + first;
        let latest = self.due.entry((from, to)).or_insert(due);
        counts.delayed += 1;
        counts.overtaken += u64::from(due < *latest);
        *latest = due.max(*latest);
        let copy = self.rng.random_range(0..1_000) < rule.double;
        counts.doubled += u64::from(copy);
        [Some(first), copy.then_some(second)]
    }
}
