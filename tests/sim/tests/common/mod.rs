//! Compares digests of runs with the recorded ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Number of seeds with recorded digests, starting from 1.
const KEPT: u64 = 1_000;

/// Digests of runs, by seed.
#[derive(Default)]
pub(crate) struct Digests(BTreeMap<u64, u64>);

impl Digests {
    pub(crate) fn add(&mut self, seed: u64, digest: u64) {
        if (1..=KEPT).contains(&seed) {
            self.0.insert(seed, digest);
        }
    }

    /// Compares the digests with those in a file in `tests/digests`, which has one line per seed. With `DIGESTS=write`
    /// in the environment, writes the file instead, for a change that alters decisions on purpose.
    pub(crate) fn check(&self, file: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests").join(file);
        if std::env::var("DIGESTS").is_ok_and(|what| what == "write") {
            assert_eq!(
                self.0.len() as u64,
                KEPT,
                "all seeds must run before their digests are written"
            );
            let lines: String = self.0.values().map(|digest| format!("{digest:016x}\n")).collect();
            return fs::write(&path, lines).expect("written");
        }
        let kept = fs::read_to_string(&path).expect("the recorded digests");
        let kept: BTreeMap<_, _> = (1..).zip(kept.lines()).collect();
        let differ = |(seed, digest): (&u64, &u64)| {
            let same = kept.get(seed).is_some_and(|line| *line == format!("{digest:016x}"));
            (!same).then_some(*seed)
        };
        let changed: Vec<u64> = self.0.iter().filter_map(differ).collect();
        assert!(
            changed.is_empty(),
            "{} of {} seeds decide differently; the first is SEED={}; if that is intended, run with DIGESTS=write",
            changed.len(),
            self.0.len(),
            changed[0]
        );
    }
}
