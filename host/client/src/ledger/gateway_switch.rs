//! When a client switches away from a gateway that is reachable but cut off from its cluster.
//!
//! Such a gateway keeps its connections; messages wait there, or the gateway itself refuses them. A session whose
//! messages have got only such refusals for a while asks for another gateway. A session that gets no replies does so
//! only if no other session of the client gets any either, since a turn may be slow. The timeout differs between
//! clients, and each switch that does not help doubles it, so that a cluster in trouble is not flooded with handshakes.

use std::time::{Duration, Instant};

use super::jitter::JitterRng;

/// The timeout is doubled at most this many times.
const DOUBLINGS: u32 = 4;

/// A lack of progress with a session's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The time since which no entity has answered any of them.
    pub since: Instant,
    /// Whether the gateway itself refused messages; otherwise there was no reply.
    pub rejected_by_gateway: bool,
}

/// Decides when a client switches its gateway. Each client has one, and its sessions report to it. Sans-IO, like the
/// ledger.
#[derive(Debug)]
pub struct SwitchTimer {
    bound: Duration,
    /// This client's factor for the timeout, so that not all clients switch at once.
    share: f64,
    switches: u32,
    /// When this connection began, or any session last got an entity's reply.
    progress: Instant,
    /// When the client last switched.
    last_switch: Option<Instant>,
    noise: JitterRng,
}

impl SwitchTimer {
    /// The timer of a client that connects now. `seed` makes its timeout differ from others'.
    #[must_use]
    pub fn new(bound: Duration, seed: u64, now: Instant) -> Self {
        let mut noise = JitterRng::new(seed);
        let share = share(&mut noise);
        Self { bound, share, switches: 0, progress: now, last_switch: None, noise }
    }

    /// Records that a session received replies. `answered` says whether an entity has answered.
    pub fn record_replies(&mut self, answered: bool, now: Instant) {
        if answered {
            self.switches = 0;
            self.progress = now;
        }
    }

    /// Whether the client switches its gateway because of this stall. If so, restarts the timer with a longer
    /// timeout.
    pub fn try_switch(&mut self, stuck: Stall, now: Instant) -> bool {
        if self.deadline(stuck) > now {
            return false;
        }
        self.share = share(&mut self.noise);
        self.switches = (self.switches + 1).min(DOUBLINGS);
        self.progress = now;
        self.last_switch = Some(now);
        true
    }

    /// When a session with this stall makes the client switch.
    #[must_use]
    pub fn deadline(&self, stuck: Stall) -> Instant {
        let since = match stuck.rejected_by_gateway {
            true => stuck.since.max(self.last_switch.unwrap_or(stuck.since)),
            false => stuck.since.max(self.progress),
        };
        since + self.bound.mul_f64(self.share) * 2_u32.pow(self.switches)
    }
}

fn share(noise: &mut JitterRng) -> f64 {
    0.75 + noise.draw() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_gateway_switch_doubles_the_switch_delay() {
        let bound = Duration::from_secs(8);
        let now = Instant::now();
        let mut timer = SwitchTimer::new(bound, 7, now);
        let waits = |timer: &SwitchTimer, now: Instant| {
            timer.deadline(Stall { since: now, rejected_by_gateway: true }) - now
        };
        assert!((bound * 3 / 4..=bound * 5 / 4).contains(&waits(&timer, now)));
        let stuck = Stall { since: now, rejected_by_gateway: true };
        for _ in 0..9 {
            let end = timer.deadline(stuck);
            assert!(!timer.try_switch(stuck, end - Duration::from_millis(1)));
            assert!(timer.try_switch(stuck, end));
        }
        let now = timer.deadline(stuck);
        assert!((bound * 12..=bound * 20).contains(&waits(&timer, now)));
        timer.record_replies(false, now);
        assert!((bound * 12..=bound * 20).contains(&waits(&timer, now)));
        timer.record_replies(true, now);
        assert!(waits(&timer, now) <= bound * 5 / 4);
    }

    #[test]
    fn switch_delays_vary_by_a_quarter_between_clients() {
        let (bound, now) = (Duration::from_secs(1), Instant::now());
        let stuck = Stall { since: now, rejected_by_gateway: true };
        // A client's own factor also changes with each switch.
        let first =
            |seed: u64| SwitchTimer::new(bound, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), now);
        let mut same = first(1);
        let later = (0..2_000).map(|_| {
            let end = same.deadline(stuck);
            assert!(same.try_switch(stuck, end));
            let share = same.share;
            same.record_replies(true, end);
            share
        });
        let all: [Vec<f64>; 2] =
            [(1..2_000).map(|seed| first(seed).share).collect(), later.collect()];
        for shares in all {
            assert!(shares.iter().all(|share| (0.75..1.25).contains(share)));
            for tenth in 0..10 {
                let from = 0.75 + f64::from(tenth) / 20.0;
                let within = shares.iter().filter(|share| (from..from + 0.05).contains(*share));
                assert!((100..300).contains(&within.count()), "from {from}");
            }
        }
    }

    #[test]
    fn a_silent_session_waits_while_other_sessions_get_replies() {
        let since = Instant::now();
        let mut timer = SwitchTimer::new(Duration::from_secs(8), 7, since);
        let now = since + Duration::from_secs(3_000);
        timer.record_replies(true, now);
        assert!(timer.deadline(Stall { since, rejected_by_gateway: false }) > now);
        assert!(timer.deadline(Stall { since, rejected_by_gateway: true }) < now);
    }
}
