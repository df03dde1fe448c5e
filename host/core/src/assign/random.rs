//! Random choices derived from a view's seed: this crate has no other source of randomness.

/// Spreads the bits of `value`: the last step of splitmix64.
pub(super) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A splitmix64 generator. Good enough to pick shards; nothing here is secret.
#[derive(Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    /// The next number.
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Removes and returns one of `items`, each equally likely except for a bias below `len / 2^64`.
    pub(super) fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        let len = u64::try_from(items.len()).ok().filter(|len| *len > 0)?;
        let index = usize::try_from(self.next() % len).ok()?;
        Some(items.swap_remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The values published with the algorithm.
        let mut random = SplitMix64(1_234_567);
        let numbers = [(); 5].map(|()| random.next());
        let published: [u64; 5] = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, published);
    }
}
