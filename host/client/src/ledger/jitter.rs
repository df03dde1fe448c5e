//! Random noise that spreads clients' retries over time.

/// Xorshift is random enough for that.
#[derive(Debug)]
pub(super) struct JitterRng(u64);

impl JitterRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// From 0 to 1.
    pub(super) fn draw(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}
