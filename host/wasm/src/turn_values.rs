//! The clock and randomness of a turn. Both are fixed when the turn begins, and never read from the node's clock or
//! random number generator: a turn that runs again with the same values makes the same calls (R20).

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blake3::{Hasher, OutputReader};
use rand_core::TryRng;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// What a guest reads as the time and as random numbers during one turn.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnValues {
    /// The time: milliseconds since 1970-01-01 00:00 UTC.
    pub utc_ms: u64,
    /// Determines all random numbers of the turn. Must be secret and different in each turn.
    pub seed: [u8; 32],
}

// The seed is secret.
impl fmt::Debug for TurnValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnValues").field("utc_ms", &self.utc_ms).finish_non_exhaustive()
    }
}

/// An instance's clock and random numbers: those of its current turn. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct TurnSource(Arc<Mutex<Source>>);

#[derive(Default)]
struct Source {
    values: TurnValues,
    /// The highest time so far: a monotonic clock must not go back from one turn to the next.
    monotonic_ms: u64,
    /// Created at the turn's first random number.
    random: Option<Box<OutputReader>>,
}

impl TurnSource {
    pub(crate) fn new(values: TurnValues) -> TurnSource {
        let source = TurnSource::default();
        source.begin(values);
        source
    }

    /// Begins a turn.
    pub(crate) fn begin(&self, values: TurnValues) {
        let mut source = self.lock();
        source.values = values;
        source.monotonic_ms = source.monotonic_ms.max(values.utc_ms);
        source.random = None;
    }

    pub(crate) fn utc_ms(&self) -> u64 {
        self.lock().values.utc_ms
    }

    /// Fills `bytes` with the turn's next random bytes.
    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        let mut source = self.lock();
        let seed = source.values.seed;
        let new = || Box::new(Hasher::new_keyed(&seed).finalize_xof());
        source.random.get_or_insert_with(new).fill(bytes);
    }

    pub(crate) fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostWallClock for TurnSource {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.utc_ms())
    }
}

impl HostMonotonicClock for TurnSource {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        self.lock().monotonic_ms.saturating_mul(1_000_000)
    }
}

impl TryRng for TurnSource {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(utc_ms: u64, seed: u8) -> TurnValues {
        TurnValues { utc_ms, seed: [seed; 32] }
    }

    #[test]
    fn r20_a_repeated_turn_draws_the_same_numbers() {
        let draw = |source: &TurnSource| {
            let mut bytes = [0; 100];
            source.fill(&mut bytes);
            (source.next_u64(), bytes.to_vec())
        };
        let first = TurnSource::new(values(1, 1));
        let (a, b) = (draw(&first), draw(&first));
        assert_ne!(a, b, "one turn drew the same numbers twice");
        // The same on another instance, and on this one after another turn.
        assert_eq!(draw(&TurnSource::new(values(5, 1))), a);
        first.begin(values(1, 2));
        assert_ne!(draw(&first), a);
        first.begin(values(1, 1));
        assert_eq!((draw(&first), draw(&first)), (a, b));
    }

    #[test]
    fn only_the_wall_clock_goes_back_between_turns() {
        let source = TurnSource::new(values(500, 1));
        source.begin(values(400, 1));
        assert_eq!(HostWallClock::now(&source), Duration::from_millis(400));
        assert_eq!(HostMonotonicClock::now(&source), 500_000_000);
        source.begin(values(600, 1));
        assert_eq!(HostMonotonicClock::now(&source), 600_000_000);
    }

    #[test]
    fn the_seed_is_not_printed() {
        let text = format!("{:?}", values(7, 211));
        assert!(text.contains('7') && !text.contains("211"), "{text}");
    }
}
