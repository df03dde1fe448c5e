//! The suite that every backend must pass. It tests each sentence of the two contracts.
//!
//! A backend's tests create a [`Factory`] and call [`check_entity_store`], [`check_cluster_store`] or both. A
//! broken rule causes a panic that names it. Nothing here waits for time to pass.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test suite fails by panicking"
)]

mod channels;
mod claims;
mod commits;
pub mod copied;
mod journal;
mod model;
mod moves;
mod outbox;
mod pools;
mod reads;
mod remembered;
mod removed_heads;
mod rows;
mod sizes;
mod timers;

use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::codec;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, NodeId, ScopedSessionId, ShardId, ShardPath, TurnId,
};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, Head, Lane, LoadedEntity, RecordKey, RecordWrite,
};
use ostraca_core::rows::Member;

use crate::{ClusterStore, EntityStore, Page, Scan, ScanKind, ScannedRecord};

pub use moves::check_shard_moves;
pub use pools::check_pool_copies;

/// The cluster that the stores under test belong to.
pub const CLUSTER: ClusterId = ClusterId(0x0057_ace5);

/// The name of [`CLUSTER`].
pub const CLUSTER_NAME: &str = "conformance";

/// Creates stores of the backend under test.
pub struct Factory<S> {
    make: Box<dyn Fn() -> S>,
    reopen: Option<Box<dyn Fn(S) -> S>>,
}

impl<S> std::fmt::Debug for Factory<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Factory").field("durable", &self.reopen.is_some()).finish_non_exhaustive()
    }
}

impl<S> Factory<S> {
    /// `make` creates a new, empty store of the cluster [`CLUSTER`], named [`CLUSTER_NAME`].
    pub fn new(make: impl Fn() -> S + 'static) -> Self {
        Self { make: Box::new(make), reopen: None }
    }

    /// For a durable backend: `reopen` closes a store and opens it again.
    #[must_use]
    pub fn reopening(mut self, reopen: impl Fn(S) -> S + 'static) -> Self {
        self.reopen = Some(Box::new(reopen));
        self
    }

    fn make(&self) -> S {
        (self.make)()
    }

    /// Closes the store and opens it again; `None` if the backend is not durable.
    fn reopen(&self, store: S) -> Option<S> {
        self.reopen.as_ref().map(|reopen| reopen(store))
    }
}

/// Checks the whole contract of [`EntityStore`].
pub fn check_entity_store<S: EntityStore>(factory: &Factory<S>) {
    claims::check(factory);
    commits::check(factory);
    reads::check(factory);
    timers::check(factory);
    outbox::check(factory);
    journal::check(factory);
    channels::check(factory);
    remembered::check(factory);
    removed_heads::check(factory);
    sizes::check(factory);
    model::check(factory);
}

/// Checks the whole contract of [`ClusterStore`]. After `forgets` changes, the backend must have dropped the oldest of
/// them, so that a watch from before it must get [`RowEvent::ResyncRequired`](crate::RowEvent::ResyncRequired); 0 if
/// the backend never drops any.
pub fn check_cluster_store<S: ClusterStore>(factory: &Factory<S>, forgets: usize) {
    rows::check(factory, forgets);
}

/// Shard `number` of the default pool.
#[must_use]
pub fn shard(number: u32) -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(number) }
}

/// The first incarnation of `node`, with this nonce.
fn owner(node: &str, nonce: u64) -> Member {
    Member { node: NodeId::from(node), incarnation: Incarnation { counter: 1, nonce } }
}

/// The claim of node `a` with this epoch and number.
#[must_use]
pub fn claim_of(shard: ShardPath, epoch: u64, number: u64) -> Claim {
    Claim {
        cluster: CLUSTER,
        shard,
        epoch: Epoch(epoch),
        owner: owner("a", 11),
        number,
        extensions: Default::default(),
    }
}

fn claim(store: &impl EntityStore, claim: &Claim) -> ClaimOutcome {
    let mut outcomes = block_on(store.claim(vec![claim.clone()]));
    assert_eq!(outcomes.len(), 1, "one outcome per claim");
    outcomes.remove(0)
}

/// Claims a shard that was never claimed.
fn granted(store: &impl EntityStore, number: u32) -> Arc<Claim> {
    let wanted = claim_of(shard(number), 1, 1);
    assert_eq!(claim(store, &wanted), ClaimOutcome::Granted);
    Arc::new(wanted)
}

/// A turn from version `from` to the next one. Each number `turn` gives a different turn id.
fn turn(claim: &Arc<Claim>, id: &str, from: u64, turn: u64) -> Commit {
    let shard = claim.shard.shard.0;
    let turn = TurnId { nonce: 11, shard, epoch: claim.epoch, number: turn };
    Commit {
        claim: claim.clone(),
        entity: Entity::new("counter", id),
        expected_version: from,
        head: Head { version: from + 1, revision: 1, turn, ..Head::default() },
        writes: vec![],
        extensions: Default::default(),
    }
}

fn set(key: &str, value: impl Into<Bytes>) -> RecordWrite {
    let key = RecordKey::State(Bytes::copy_from_slice(key.as_bytes()));
    RecordWrite { key, value: Some(value.into()) }
}

fn unset(key: &str) -> RecordWrite {
    RecordWrite { key: RecordKey::State(Bytes::copy_from_slice(key.as_bytes())), value: None }
}

fn lane(session: u8, last: u64) -> Lane {
    Lane {
        session: ScopedSessionId([session; 16]),
        last_sequence: last,
        used_at: 1,
        newest_created: 1,
        principal_tag: 1,
        replies: vec![],
        extensions: Default::default(),
    }
}

fn set_lane(lane: &Lane) -> RecordWrite {
    let value = codec::encode(lane).unwrap();
    RecordWrite { key: RecordKey::Lane(lane.session), value: Some(value.into()) }
}

fn commit(store: &impl EntityStore, turns: Vec<Commit>) -> Vec<CommitOutcome> {
    let count = turns.len();
    let outcomes = block_on(store.commit(turns));
    assert_eq!(outcomes.len(), count, "one outcome per turn");
    outcomes
}

#[track_caller]
fn done(store: &impl EntityStore, turns: Vec<Commit>) {
    for outcome in commit(store, turns) {
        assert_eq!(outcome, CommitOutcome::Committed);
    }
}

fn load(store: &impl EntityStore, shard: &ShardPath, id: &str) -> LoadedEntity {
    let entity = Entity::new("counter", id);
    block_on(store.load(vec![(shard.clone(), entity)])).remove(0).unwrap()
}

fn version(store: &impl EntityStore, shard: &ShardPath, id: &str) -> u64 {
    load(store, shard, id).head.map_or(0, |head| head.version)
}

fn scan(shard: &ShardPath, kind: ScanKind) -> Scan {
    Scan { shard: shard.clone(), kind, after: None, max_records: 1000, max_bytes: usize::MAX }
}

/// Reads all pages.
fn scan_all(store: &impl EntityStore, mut scan: Scan) -> Vec<Page> {
    let mut pages = Vec::new();
    loop {
        let page = block_on(store.scan(scan.clone())).unwrap();
        scan.after = page.next_cursor.clone();
        pages.push(page);
        if scan.after.is_none() {
            return pages;
        }
        assert!(pages.len() < 10_000, "the scan must end");
    }
}

/// An entity's state, ordered by key.
fn state(store: &impl EntityStore, shard: &ShardPath, id: &str) -> Vec<(Bytes, Bytes)> {
    let scan = scan(shard, ScanKind::State(Entity::new("counter", id)));
    let pages = scan_all(store, scan);
    let pair = |record| match record {
        ScannedRecord::State(key, value) => (key, value),
        _ => panic!("a scan of state must return only state"),
    };
    pages.into_iter().flat_map(|page| page.records).map(pair).collect()
}

/// The entities of a shard with their heads.
fn heads(store: &impl EntityStore, scan: Scan) -> Vec<(Entity, Head)> {
    let pages = scan_all(store, scan);
    let pair = |record| match record {
        ScannedRecord::Head(entity, head) => (entity, *head),
        _ => panic!("a scan of heads must return only heads"),
    };
    pages.into_iter().flat_map(|page| page.records).map(pair).collect()
}
