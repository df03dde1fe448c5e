//! The entities with the most turns, from a sample of all turns.

use std::collections::HashMap;

use ostraca_core::ids::Entity;

/// On average, one turn in this many is sampled, so that a turn costs next to nothing.
const SAMPLE: u64 = 16;
/// Maximum number of entities that are counted in one window. An entity with a large share of the turns is sampled
/// long before there are so many others.
const COUNTED: usize = 1_024;
/// The number of entities that are reported.
const REPORTED: usize = 20;
/// The length of a window in milliseconds.
const WINDOW: u64 = 2_000;

/// Counts a worker's turns by entity, in one window of time after the other.
#[derive(Debug)]
pub struct TurnSample {
    /// Turns to skip before the next one that is sampled.
    skip: u64,
    /// The state of the generator of `skip`. A fixed step would be biased if the load is periodic.
    random: u64,
    counts: HashMap<Entity, u64>,
    began: u64,
}

/// An entity and its turns in a second, estimated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotEntity {
    /// The entity.
    pub entity: Entity,
    /// Turns in a second, in the last window.
    pub rate: u64,
}

impl Default for TurnSample {
    fn default() -> Self {
        Self { skip: 0, random: 0x9e37_79b9_7f4a_7c15, counts: HashMap::new(), began: 0 }
    }
}

impl TurnSample {
    /// Counts a turn of an entity.
    pub fn count(&mut self, entity: &Entity) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.skip = self.next_skip();
        if let Some(count) = self.counts.get_mut(entity) {
            *count += 1;
        } else if self.counts.len() < COUNTED {
            self.counts.insert(entity.clone(), 1);
        }
    }

    /// Evenly distributed over 0 to 30, so that one turn in 16 is sampled (xorshift).
    fn next_skip(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) % (2 * SAMPLE - 1)
    }

    /// Returns the hottest entities of the window that has just ended, most turns first; `None` while it goes on. `now`
    /// is in milliseconds, of any monotonic clock.
    pub fn take(&mut self, now: u64) -> Option<Vec<HotEntity>> {
        let elapsed = now.saturating_sub(self.began);
        if elapsed < WINDOW {
            return None;
        }
        self.began = now;
        let mut counts: Vec<_> = self.counts.drain().collect();
        counts.sort_unstable_by(|(one, fewer), (other, more)| more.cmp(fewer).then(one.cmp(other)));
        counts.truncate(REPORTED);
        let hot = counts.into_iter().map(|(entity, count)| HotEntity {
            entity,
            rate: (count * SAMPLE * 1_000).div_ceil(elapsed),
        });
        Some(hot.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entity_with_the_most_turns_comes_first() {
        let mut sample = TurnSample::default();
        assert_eq!(sample.take(WINDOW), Some(Vec::new()));
        let hot = Entity::new("counter", "hot");
        for number in 0..64_000_u32 {
            // Two thirds of all turns are the hot entity's, and the others have one each.
            let other = Entity::new("counter", number.to_string());
            sample.count(if number % 2 == 0 || number % 3 == 0 { &hot } else { &other });
        }
        assert_eq!(sample.take(2 * WINDOW - 1), None);
        let seen = sample.take(2 * WINDOW).expect("the window has ended");
        assert_eq!((seen.len(), &seen[0].entity), (REPORTED, &hot));
        let expected = 64_000 / 3;
        assert!((expected - 2_000..expected + 2_000).contains(&seen[0].rate), "{}", seen[0].rate);
        assert_eq!(sample.take(3 * WINDOW), Some(Vec::new()), "each window begins anew");
    }
}
