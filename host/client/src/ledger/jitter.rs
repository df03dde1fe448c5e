//! Random noise that spreads clients' retries over time.

/// A xorshift generator, which is random enough for this purpose.
#[derive(Debug)]
pub(super) struct JitterRng(u64);

impl JitterRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number from 0 up to, but not including, 1.
    pub(super) fn draw(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}
