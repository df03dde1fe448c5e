//! The loads of this node's shards, from what they have done (A4).

use std::collections::BTreeMap;

use ostraca_config::config::LoadSettings;
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_workers::ShardFigures;

const MEBIBYTE: u64 = 1 << 20;

/// What the shards had done at the last measurement.
#[derive(Debug, Default)]
pub(super) struct LoadMeter {
    last: BTreeMap<(ShardId, Epoch), u64>,
}

impl LoadMeter {
    /// The load of each shard that was already served at the last measurement.
    pub(super) fn measure(
        &mut self,
        settings: &LoadSettings,
        figures: Vec<ShardFigures>,
    ) -> Vec<(ShardId, u32)> {
        let interval = u64::try_from(settings.interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let served = || figures.iter().filter(|it| it.serving);
        let known = served().filter_map(|it| {
            let before = self.last.get(&(it.shard, it.epoch))?;
            let turns = it.turns.saturating_sub(*before);
            // Multiplied first: one turn in ten seconds counts too.
            let of_turns = turns.saturating_mul(1_000 * u64::from(settings.per_turn)) / interval;
            let of_entities = it.live_entities().saturating_mul(settings.per_entity.into());
            let memory = it.memory_bytes.saturating_mul(settings.per_mebibyte.into());
            let load = of_turns.saturating_add(of_entities).saturating_add(memory / MEBIBYTE);
            Some((it.shard, u32::try_from(load).unwrap_or(u32::MAX)))
        });
        let loads = known.collect();
        self.last = served().map(|it| ((it.shard, it.epoch), it.turns)).collect();
        loads
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SETTINGS: LoadSettings = LoadSettings {
        interval: Duration::from_secs(10),
        per_turn: 10,
        per_entity: 2,
        per_mebibyte: 3,
    };

    fn figures(shard: u32, epoch: u64, turns: u64) -> ShardFigures {
        ShardFigures {
            shard: ShardId(shard),
            epoch: Epoch(epoch),
            serving: true,
            turns,
            stored: None,
            memory_bytes: 5 * MEBIBYTE + 7,
            committed_bytes: 0,
            queued: 0,
            live: BTreeMap::from([("counter".into(), 3), ("cart".into(), 1)]),
        }
    }

    #[test]
    fn a4_a_load_counts_turns_entities_and_memory() {
        let mut meter = LoadMeter::default();
        assert_eq!(meter.measure(&SETTINGS, vec![figures(1, 1, 400)]), []);
        // 200 turns in 10 s, 4 entities, 5 MiB.
        let loads = meter.measure(&SETTINGS, vec![figures(1, 1, 600)]);
        assert_eq!(loads, [(ShardId(1), 200 + 8 + 15)]);
        let idle = ShardFigures { live: BTreeMap::new(), memory_bytes: 0, ..figures(1, 1, 601) };
        assert_eq!(meter.measure(&SETTINGS, vec![idle]), [(ShardId(1), 1)]);
    }

    #[test]
    fn a4_only_shards_that_were_served_all_the_time_are_measured() {
        let mut meter = LoadMeter::default();
        let claiming = ShardFigures { serving: false, ..figures(2, 1, 0) };
        meter.measure(&SETTINGS, vec![figures(1, 1, 50), claiming]);
        // The first one was handed off and came back, and the second one is new.
        assert_eq!(meter.measure(&SETTINGS, vec![figures(1, 3, 70), figures(2, 1, 90)]), []);
        let again = vec![figures(1, 3, 70), figures(2, 1, 90), figures(3, 1, u64::MAX)];
        assert_eq!(meter.measure(&SETTINGS, again).len(), 2);
    }
}
