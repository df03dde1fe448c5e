//! Fractions that are compared without rounding: what a host has, in relation to its weight.

use std::cmp::Ordering;

/// `number` per `weight`. A weight of 0 counts as 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    number: u64,
    weight: u64,
}

impl Ratio {
    pub(crate) fn new(number: u64, weight: u64) -> Self {
        Self { number, weight: weight.max(1) }
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |number: u64, weight: u64| u128::from(number) * u128::from(weight);
        product(self.number, other.weight).cmp(&product(other.number, self.weight))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ratio {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_compared_exactly() {
        assert_eq!(Ratio::new(3, 1), Ratio::new(6, 2));
        assert!(Ratio::new(u64::MAX, 3) < Ratio::new(u64::MAX, 2));
        assert!(Ratio::new(u64::MAX - 1, 7) < Ratio::new(u64::MAX, 7));
        assert_eq!(Ratio::new(5, 0), Ratio::new(5, 1));
    }
}
