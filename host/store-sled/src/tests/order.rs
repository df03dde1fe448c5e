//! The order in which calls are served: rows before commits, shards in turn, reads after their own shards' writes.

use std::sync::Arc;

use futures::FutureExt;
use futures::executor::block_on;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome};
use ostraca_store::{ClusterStore, CompareAndSet, EntityStore, StoreFuture};

use super::faults::{answered, gated_with};
use super::{claim, set, shard, turn};
use crate::{Options, SledStore};

/// A claim for shard `number`.
fn of_shard(number: u32) -> Arc<Claim> {
    let mut claim = (*claim()).clone();
    claim.shard.shard = ShardId(number);
    Arc::new(claim)
}

fn renewal(number: u64) -> CompareAndSet {
    CompareAndSet { key: format!("lease-{number}"), expected: None, value: Some("renewed".into()) }
}

/// Lets batches be written until the call is answered; returns their number and the result of the call.
fn batches<T>(
    call: StoreFuture<T>,
    begins: &std::sync::mpsc::Receiver<()>,
    ends: &std::sync::mpsc::Sender<bool>,
) -> (usize, T) {
    let mut call = call;
    for count in 0.. {
        if let Some(answer) = (&mut call).now_or_never() {
            return (count, answer);
        }
        ends.send(true).unwrap();
        // The next batch begins when the previous one has been answered.
        if begins.recv_timeout(std::time::Duration::from_secs(10)).is_err() {
            return (count + 1, block_on(call));
        }
    }
    unreachable!()
}

#[test]
fn a_renewal_overtakes_all_queued_commits() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { batch_commits: 4, ..Options::default() };
    let (store, begins, ends) = gated_with(dir.path(), &options);
    ends.send(true).unwrap();
    let claim = super::claimed(&store);
    begins.recv().unwrap();
    let first = store.commit(vec![turn(&claim, "a", 0)]);
    begins.recv().unwrap();
    let bulk: Vec<_> = (1..400).map(|from| store.commit(vec![turn(&claim, "a", from)])).collect();
    let renewed = store.compare_and_set(renewal(0));
    let (count, answer) = batches(renewed, &begins, &ends);
    answer.unwrap();
    assert!(count <= 2, "at most the running batch and its own, got {count}");
    for _ in 0..200 {
        ends.send(true).unwrap();
    }
    assert_eq!(block_on(first), [CommitOutcome::Committed]);
    assert!(bulk.into_iter().all(|call| block_on(call) == [CommitOutcome::Committed]));
}

#[test]
fn endless_row_writes_do_not_starve_commits() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { batch_commits: 4, ..Options::default() };
    let (store, begins, ends) = gated_with(dir.path(), &options);
    ends.send(true).unwrap();
    let claim = super::claimed(&store);
    begins.recv().unwrap();
    let rows: Vec<_> = (0..100).map(|number| store.compare_and_set(renewal(number))).collect();
    begins.recv().unwrap();
    let (count, outcome) = batches(store.commit(vec![turn(&claim, "a", 0)]), &begins, &ends);
    assert_eq!(outcome, [CommitOutcome::Committed]);
    assert!(count <= 2, "each batch must take commits too, got {count}");
    for _ in 0..200 {
        ends.send(true).unwrap();
    }
    assert!(rows.into_iter().all(|row| block_on(row).is_ok()));
}

/// Sixteen shards have a lot to write, and one has little: counts the batches for which the small shard waits, and
/// checks a load of its entity.
#[test]
fn a_write_heavy_shard_delays_only_itself() {
    // A batch has space for one of the turns of 400 keys, or not even for one.
    for batch_records in [500, 100] {
        little_beside_much(batch_records);
    }
}

fn little_beside_much(batch_records: usize) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { batch_records, ..Options::default() };
    let (store, begins, ends) = gated_with(dir.path(), &options);
    let claims: Vec<_> = (1..=17).map(of_shard).collect();
    let claiming = store.claim(claims.iter().map(|claim| (**claim).clone()).collect());
    begins.recv().unwrap();
    ends.send(true).unwrap();
    assert!(block_on(claiming).iter().all(|outcome| *outcome == ClaimOutcome::Granted));
    let much = |claim: &Arc<Claim>, from| {
        let mut much = turn(claim, "much", from);
        much.writes = (0..400_u32).map(|key| set(key.to_be_bytes().to_vec(), Vec::new())).collect();
        much
    };
    let call = |from| claims[1..].iter().map(|claim| much(claim, from)).collect();
    let bulk: Vec<_> = (0..4).map(|from| store.commit(call(from))).collect();
    begins.recv().unwrap();
    let little = store.commit(vec![turn(&claims[0], "little", 0)]);
    let mut loading = store.load(vec![(shard(), Entity::new("counter", "little"))]);
    let (count, outcome) = batches(little, &begins, &ends);
    assert_eq!(outcome, [CommitOutcome::Committed]);
    assert!(count <= 3, "{count} batches");
    // The load waits only for commits of its own shard: at most for the running batch.
    let loaded = answered(&store, &mut loading).unwrap_or_else(|| {
        ends.send(true).unwrap();
        block_on(loading)
    });
    assert_eq!(loaded[0].as_ref().unwrap().head.as_ref().unwrap().version, 1, "R2");
    for _ in 0..200 {
        ends.send(true).unwrap();
    }
    for call in bulk {
        assert!(block_on(call).iter().all(|outcome| *outcome == CommitOutcome::Committed));
    }
}

#[test]
fn a_claim_runs_after_earlier_commits_of_its_shard() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { batch_commits: 2, ..Options::default() };
    let (store, begins, ends) = gated_with(dir.path(), &options);
    ends.send(true).unwrap();
    let claim = super::claimed(&store);
    begins.recv().unwrap();
    let commits: Vec<_> = (0..9).map(|from| store.commit(vec![turn(&claim, "a", from)])).collect();
    let next = Claim { number: 2, ..(*claim).clone() };
    let claiming = store.claim(vec![next]);
    let late = store.commit(vec![turn(&claim, "a", 9)]);
    for _ in 0..200 {
        ends.send(true).unwrap();
    }
    assert!(commits.into_iter().all(|call| block_on(call) == [CommitOutcome::Committed]));
    assert_eq!(block_on(claiming), [ClaimOutcome::Granted]);
    assert!(matches!(block_on(late)[0], CommitOutcome::Refused(_)), "R4");
}

#[test]
fn a_long_load_blocks_no_batch_and_reads_one_version() {
    use ostraca_core::ids::ScopedSessionId;
    use ostraca_core::records::{Lane, RecordKey, RecordWrite};

    let dir = tempfile::tempdir().unwrap();
    let store: SledStore = super::create(dir.path(), &Options::default());
    let claim = super::claimed(&store);
    let lanes = 3_000_u32;
    let all = |from: u64| {
        let mut next = turn(&claim, "a", from);
        next.head.spilled_lane_count = lanes;
        next.writes = (0..lanes)
            .map(|number| {
                let mut session = [0; 16];
                session[..4].copy_from_slice(&number.to_be_bytes());
                let session = ScopedSessionId(session);
                let lane = Lane {
                    session,
                    last_sequence: from + 1,
                    used_at: 0,
                    newest_created: 0,
                    principal_tag: 0,
                    replies: vec![],
                    extensions: Default::default(),
                };
                let value = Some(ostraca_core::codec::encode(&lane).unwrap().into());
                RecordWrite { key: RecordKey::Lane(session), value }
            })
            .collect();
        next
    };
    assert_eq!(block_on(store.commit(vec![all(0)])), [CommitOutcome::Committed]);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for from in 1..20 {
                assert_eq!(block_on(store.commit(vec![all(from)])), [CommitOutcome::Committed]);
            }
        });
        while !writing.is_finished() {
            let loaded = block_on(store.load(vec![(shard(), Entity::new("counter", "a"))]));
            let loaded = loaded.into_iter().next().unwrap().unwrap();
            let version = loaded.head.unwrap().version;
            assert_eq!(loaded.lanes.len(), lanes as usize);
            assert!(
                loaded.lanes.iter().all(|lane| lane.last_sequence == version),
                "turn {version} is torn"
            );
        }
    });
}
