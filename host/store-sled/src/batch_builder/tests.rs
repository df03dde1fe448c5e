//! Tests of what each batch writes, reads and leaves behind.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, MessageDigest, ScopedSessionId};
use ostraca_core::records::{GuestReply, Lane, RecordWrite, RecordedReply};
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_store::record::Codec;

use super::*;
use crate::tests::{CLUSTER, claim, set, shard, turn};
use std::sync::Arc;

/// The size of a value with several fragments, and of a value that is not fragmented.
const LARGE: usize = 30_000;
const SMALL: usize = 10;

struct Bench {
    judge: BatchBuilder,
    db: sled::Db,
    /// The next turn of the entity `a`.
    from: u64,
}

impl Bench {
    /// Creates a bench whose shard has a current claim.
    fn new() -> Self {
        let db = sled::Config::new().temporary(true).flush_every_ms(None).open().unwrap();
        let mut bench = Self { judge: judge(&db, 0), db, from: 0 };
        assert_eq!(bench.judge.claim((*claim()).clone()), ClaimOutcome::Granted);
        bench.end();
        bench
    }

    /// Evaluates a turn of the entity `a`, which must be committed.
    fn turn(&mut self, writes: Vec<RecordWrite>, lanes: Vec<Lane>) {
        let mut next = turn(&claim(), "a", self.from);
        next.writes = writes;
        next.head.lanes = lanes.into_iter().map(Into::into).collect();
        assert_eq!(self.judge.commit(next), CommitOutcome::Committed);
        self.from += 1;
    }

    /// Ends the batch and applies it.
    fn end(&mut self) {
        let prepared = self.judge.finish().unwrap().unwrap();
        self.db.apply_batch(prepared.batch).unwrap();
    }

    /// Drops the state that is only in memory.
    fn restart(&mut self) {
        self.judge = judge(&self.db, self.judge.sequence);
    }

    fn fragments(&self) -> usize {
        self.db.scan_prefix(b"K").count()
    }

    /// The commit sequence of the last turn.
    fn commit_sequence(&self) -> u64 {
        let key = Table::Entities.key(&keys::head(&shard(), &Entity::new("counter", "a")));
        self.judge.records.get::<Head>(&key).unwrap().unwrap().commit_sequence
    }

    /// The full key of a record of the entity `a`.
    fn key(&self, kind: RecordKind, last: &[u8]) -> Vec<u8> {
        let turn = turn(&claim(), "a", 0);
        let prefix = keys::entity_prefix(&turn.claim.shard, kind, &turn.entity);
        KeyPrefix::new(kind, &prefix).key(last)
    }
}

fn judge(db: &sled::Db, sequence: u64) -> BatchBuilder {
    let records = Records { db: db.clone(), codec: Codec::default() };
    BatchBuilder::new(records, CLUSTER, sequence, 100, Arc::new(ChangedKeys::new(100)))
}

fn state(size: usize) -> RecordWrite {
    set(b"value".to_vec(), vec![7; size])
}

fn lane(size: usize) -> Lane {
    let answer = GuestReply::Result(Bytes::from(vec![7; size]));
    let (digest, extensions) = (MessageDigest([1; 16]), Default::default());
    Lane {
        session: ScopedSessionId([1; 16]),
        last_sequence: 1,
        used_at: 1,
        newest_created: 1,
        principal_tag: 1,
        replies: vec![RecordedReply { sequence: 1, digest, version: 1, reply: answer, extensions }],
        extensions: Default::default(),
    }
}

fn lane_beside(size: usize) -> RecordWrite {
    let lane = lane(size);
    let value = Some(codec::encode(&lane).unwrap().into());
    RecordWrite { key: RecordKey::Lane(lane.session), value }
}

/// Writes a large value that becomes small in the next turn, in the same batch, in another one, or after a restart.
fn leaves_no_fragment(turn: impl Fn(&mut Bench, usize)) {
    for (batches, restarts) in [(1, false), (2, false), (2, true)] {
        let mut bench = Bench::new();
        // The first turn of an entity need not look for existing records; a later one must.
        for round in 0..2 {
            turn(&mut bench, LARGE);
            if batches == 2 {
                bench.end();
                assert!(bench.fragments() > 1);
            }
            if restarts {
                bench.restart();
            }
            turn(&mut bench, SMALL);
            bench.end();
            assert_eq!(bench.fragments(), 0, "batches: {batches}, a restart: {restarts}, {round}");
            if restarts {
                bench.restart();
            }
        }
    }
}

#[test]
fn a_value_that_shrinks_leaves_no_fragment() {
    leaves_no_fragment(|bench, size| bench.turn(vec![state(size)], vec![]));
}

#[test]
fn a_deleted_value_leaves_no_fragment() {
    let write =
        |size| RecordWrite { value: (size == LARGE).then(|| vec![7; LARGE].into()), ..state(0) };
    leaves_no_fragment(|bench, size| bench.turn(vec![write(size)], vec![]));
}

#[test]
fn a_value_written_twice_in_a_turn_leaves_no_fragment() {
    let first = |size| if size == LARGE { SMALL } else { 2 * LARGE };
    leaves_no_fragment(|bench, size| bench.turn(vec![state(first(size)), state(size)], vec![]));
}

#[test]
fn a_spilled_lane_that_shrinks_leaves_no_fragment() {
    leaves_no_fragment(|bench, size| bench.turn(vec![lane_beside(size)], vec![]));
}

#[test]
fn a_head_that_shrinks_leaves_no_fragment() {
    leaves_no_fragment(|bench, size| bench.turn(vec![], vec![lane(size)]));
}

#[test]
fn a_row_that_shrinks_leaves_no_fragment() {
    let revision = std::cell::Cell::new(None);
    leaves_no_fragment(|bench, size| {
        // A new store each time, without any record of the row.
        let expected = (bench.from > 0).then(|| revision.get()).flatten();
        let size = if size == LARGE { MAX_ROW_VALUE_BYTES } else { size };
        let cas = CompareAndSet { key: "row".into(), expected, value: Some(vec![7; size].into()) };
        revision.set(Some(bench.judge.compare_and_set(cas).unwrap()));
        bench.from += 1;
    });
}

#[test]
fn records_without_fragments_are_not_looked_up() {
    let mut bench = Bench::new();
    let writes = || vec![state(SMALL), lane_beside(SMALL)];
    // These records are corrupt, so that reading them fails, and their entity seems to have fragments.
    let keys = [bench.key(RecordKind::State, b"value"), bench.key(RecordKind::Lane, &[1; 16])];
    let plant = |db: &sled::Db| {
        for key in &keys {
            db.insert(key, b"unreadable").unwrap();
        }
    };
    plant(&bench.db);
    for key in &keys {
        bench.db.insert(fragment_prefix(key), b"").unwrap();
    }
    bench.turn(writes(), vec![]);
    bench.end();
    plant(&bench.db);
    bench.turn(writes(), vec![]);
    assert!(bench.judge.record_fragments.is_empty(), "nothing is cached for the rest of the batch");
    bench.end();
    // After a restart they are looked up, which detects the corruption.
    bench.restart();
    plant(&bench.db);
    let mut next = turn(&claim(), "a", bench.from);
    next.writes = writes();
    let outcome = bench.judge.commit(next);
    assert!(
        matches!(outcome, CommitOutcome::Refused(CommitRefusal::LimitReached(_))),
        "{outcome:?}"
    );
}

#[test]
fn every_new_claim_raises_the_sequence() {
    let mut bench = Bench::new();
    let mut last = bench.judge.sequence;
    assert!(last > 0);
    for number in 2..5 {
        let next = Claim { number, ..(*claim()).clone() };
        assert_eq!(bench.judge.claim(next), ClaimOutcome::Granted);
        let prepared = bench.judge.finish().unwrap().unwrap();
        assert!(prepared.sequence > last, "otherwise the witness would not detect a lost claim");
        last = prepared.sequence;
    }
}

#[test]
fn the_current_claim_is_granted_without_a_write() {
    let mut bench = Bench::new();
    let before = bench.judge.sequence;
    assert_eq!(bench.judge.claim((*claim()).clone()), ClaimOutcome::Granted);
    assert!(bench.judge.finish().unwrap().is_none());
    assert_eq!(bench.judge.sequence, before);
}

#[test]
fn a_restart_skips_only_sequences_that_were_reserved() {
    let mut bench = Bench::new();
    let mut last = 0;
    for _ in 0..5 {
        bench.turn(vec![], vec![]);
        bench.end();
        let next = bench.commit_sequence();
        assert!(next > last && next <= last + SEQUENCES + 1, "{next} after {last}");
        last = next;
        bench.restart();
    }
}
