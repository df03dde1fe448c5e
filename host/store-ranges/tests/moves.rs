//! Ranges move between stores while nodes own the shards, lose them, crash and have old maps (R26).
//!
//! Each seed is a run in one thread, with a time of its own: nodes commit turns, each under its claim; shards get new owners, and the ones
//! before go on until a store refuses them; ranges move there and back. The stores are slow, and their calls fail before
//! or after they take effect. In the end, every turn that was acknowledged must be in the place that the map names.

mod shaky;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_core::ids::{ClusterId, Entity, Epoch, Incarnation, ShardId, ShardPath, TurnId};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, Head, RecordKey, RecordWrite,
};
use ostraca_core::rows::Member;
use ostraca_store::{EntityStore, MemoryStore, MovableShards, Scan, ScanKind, ScannedRecord};
use ostraca_store_ranges::{MoveProgress, RangeMove, RangedStore, ShardMap};
use shaky::{Dice, Shaky};

const CLUSTER: ClusterId = ClusterId(7);
const STORES: u128 = 3;
const NODES: usize = 3;
const SHARDS: u32 = 4;
/// Keys that entities write before a move, so that there is something to copy.
const ENTITIES: u64 = 5;

fn path(shard: u32) -> ShardPath {
    ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(shard) }
}

fn first_map() -> ShardMap {
    ShardMap { version: 0, ranges: vec![(0, 1)], moving: None }
}

/// What was acknowledged: the turn of each version of an entity.
type Acknowledged = Arc<Mutex<BTreeMap<(u32, String, u64), u64>>>;

/// A cluster in one thread.
struct World {
    dice: Dice,
    memory: Vec<MemoryStore>,
    nodes: Vec<RangedStore>,
    /// The row with the map.
    map: Arc<Mutex<ShardMap>>,
    epochs: Mutex<BTreeMap<u32, (u64, usize)>>,
    acknowledged: Acknowledged,
    turns: Arc<Mutex<u64>>,
}

impl World {
    fn new(seed: u64) -> Arc<Self> {
        let dice = Dice::new(seed);
        let memory: Vec<_> =
            (1..=STORES).map(|id| MemoryStore::new(id, CLUSTER, "cluster")).collect();
        let node = |_| {
            let shaky = memory.iter().map(|store| -> Arc<dyn MovableShards> {
                Arc::new(Shaky { store: store.clone(), dice: dice.clone(), is_down: false })
            });
            let mut shaky: Vec<_> = shaky.collect();
            let first = shaky.remove(0);
            // Some wait for moves, some do not.
            let wait = Duration::from_secs(dice.below(2));
            RangedStore::new(first, shaky, first_map(), wait)
        };
        let nodes = (0..NODES).map(node).collect();
        Arc::new(Self {
            dice: dice.clone(),
            nodes,
            memory: memory.clone(),
            map: Arc::new(Mutex::new(first_map())),
            epochs: Mutex::default(),
            acknowledged: Acknowledged::default(),
            turns: Arc::default(),
        })
    }

    fn map(&self) -> ShardMap {
        self.map.lock().expect("the map").clone()
    }

    /// Writes the row. Nodes learn of it later.
    fn write_map(self: &Arc<Self>, map: ShardMap) {
        *self.map.lock().expect("the map") = map.clone();
        for node in &self.nodes {
            if self.dice.chance(70) {
                let (node, map, dice) = (node.clone(), map.clone(), self.dice.clone());
                tokio::spawn(async move {
                    dice.pause(5).await;
                    node.set_map(map);
                });
            }
        }
    }

    /// Gives a shard to a node in the next epoch. The owner before does not know it.
    fn assign(self: &Arc<Self>, shard: u32, node: usize) {
        let epoch = {
            let mut epochs = self.epochs.lock().expect("epochs");
            let entry = epochs.entry(shard).or_default();
            *entry = (entry.0 + 1, node);
            entry.0
        };
        let owner = Member {
            node: format!("node-{node}").as_str().into(),
            incarnation: Incarnation { counter: 1, nonce: node as u64 },
        };
        let claim = Claim {
            cluster: CLUSTER,
            shard: path(shard),
            epoch: Epoch(epoch),
            owner,
            number: 1,
            extensions: Default::default(),
        };
        let world = self.clone();
        tokio::spawn(async move { world.own(node, claim).await });
    }

    /// What an owner does until a store refuses it: claims, loads, commits, and claims again after a doubt.
    async fn own(self: Arc<Self>, node: usize, mut claim: Claim) {
        let (store, shard) = (self.nodes[node].clone(), claim.shard.clone());
        let is_owner =
            |claim: &Claim| self.epochs.lock().expect("epochs")[&shard.shard.0].0 == claim.epoch.0;
        loop {
            loop {
                match store.claim(vec![claim.clone()]).await.pop().expect("an outcome") {
                    ClaimOutcome::Granted => break,
                    // Its manager would assign it again, in a higher epoch.
                    ClaimOutcome::Refused { .. } => return,
                    ClaimOutcome::OtherCluster { .. } => panic!("there is one cluster"),
                    ClaimOutcome::Failed(_) => self.dice.pause(3).await,
                }
                if !is_owner(&claim) && self.dice.chance(20) {
                    return;
                }
            }
            claim = match self.write(&store, claim).await {
                Some(claim) => claim,
                None => return,
            };
        }
    }

    /// Commits turns until a doubt, and returns the next claim; `None` once it is refused, or gives the shard up.
    async fn write(&self, store: &RangedStore, claim: Claim) -> Option<Claim> {
        let shared = Arc::new(claim.clone());
        let mut versions: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            self.dice.pause(8).await;
            let id = format!("entity-{}", self.dice.below(ENTITIES));
            let entity = Entity::new("t", id.clone());
            let known = versions.get(&id).copied();
            let version = match known {
                Some(version) => version,
                None => {
                    let loaded = store.load(vec![(claim.shard.clone(), entity.clone())]).await;
                    let Ok(loaded) = loaded.into_iter().next().expect("a result") else { continue };
                    loaded.head.map_or(0, |head| head.version)
                }
            };
            let number = {
                let mut turns = self.turns.lock().expect("turns");
                *turns += 1;
                *turns
            };
            let shard = claim.shard.shard.0;
            let turn =
                TurnId { nonce: claim.owner.incarnation.nonce, shard, epoch: claim.epoch, number };
            let key = RecordKey::State(format!("{:06}", version + 1).into());
            let value = Some(number.to_string().into());
            let commit = Commit {
                claim: shared.clone(),
                entity,
                expected_version: version,
                head: Head { version: version + 1, turn, ..Head::default() },
                writes: vec![RecordWrite { key, value }],
                extensions: Default::default(),
            };
            match store.commit(vec![commit]).await.pop().expect("an outcome") {
                CommitOutcome::Committed | CommitOutcome::AlreadyCommitted => {
                    let mut acknowledged = self.acknowledged.lock().expect("turns");
                    let before = acknowledged.insert((shard, id.clone(), version + 1), number);
                    assert_eq!(before, None, "two turns of {id} in shard {shard} have one version");
                    versions.insert(id, version + 1);
                }
                CommitOutcome::Refused(_) => return None,
                CommitOutcome::Unknown(_) => {
                    return Some(Claim { number: claim.number + 1, ..claim });
                }
            }
        }
    }

    /// Nodes read the map when a store shows that theirs is old, and hand off what is misplaced.
    fn follow(self: &Arc<Self>) {
        for (place, node) in self.nodes.iter().cloned().enumerate() {
            let (world, reading) = (self.clone(), node.clone());
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = reading.map_needed() => {}
                        () = world.dice.pause(200) => {}
                    }
                    reading.set_map(world.map());
                }
            });
            let world = self.clone();
            tokio::spawn(async move {
                loop {
                    for (shard, epoch) in node.misplaced() {
                        let current = world.epochs.lock().expect("epochs")[&shard.shard.0];
                        if current == (epoch.0, place) {
                            let to = world.dice.below(NODES as u64);
                            world.assign(shard.shard.0, usize::try_from(to).expect("small"));
                        }
                    }
                    world.dice.pause(100).await;
                }
            });
        }
    }

    /// Moves a random range, to the end.
    async fn move_range(self: &Arc<Self>) {
        let first = self.dice.below(u64::from(SHARDS)) as u32 + 1;
        let last = first + self.dice.below(u64::from(SHARDS + 1 - first)) as u32;
        let to = u128::from(self.dice.below(STORES as u64)) + 1;
        let map = self.map();
        let moving = Some(RangeMove { first, last, to });
        let map = ShardMap { version: map.version + 1, moving, ..map };
        self.write_map(map.clone());
        let mut tries = 0;
        loop {
            tries += 1;
            self.dice.pause(10).await;
            let node = &self.nodes[self.dice.below(NODES as u64) as usize];
            let limit = Duration::from_millis(self.dice.below(2));
            let progress = node.advance_move(&map, |shard| Some(path(shard.0)), limit).await;
            if progress.clone().is_ok_and(|progress| progress.is_complete()) {
                break;
            }
            if tries > 20_000 {
                let mut all = Vec::new();
                for store in &self.memory {
                    let claims = store.current_claims((1..=SHARDS).map(path).collect()).await;
                    all.push(claims);
                }
                panic!("the move of {moving:?} must end: {progress:?}, {:?}, {all:?}", self.nodes);
            }
        }
        let ranges = map.ranges_after();
        self.write_map(ShardMap { ranges, moving: None, ..map });
    }

    /// Checks that each acknowledged turn is where the map says, and nowhere else.
    async fn check(&self) -> usize {
        let map = self.map();
        let acknowledged = self.acknowledged.lock().expect("turns").clone();
        let entities: BTreeSet<_> =
            acknowledged.keys().map(|(shard, id, _)| (*shard, id.clone())).collect();
        for (shard, id) in entities {
            let place = map.place(ShardId(shard)).expect("a place").store;
            for store in &self.memory {
                let entity = Entity::new("t", id.clone());
                let (kind, after) = (ScanKind::State(entity), None);
                let scan = Scan {
                    shard: path(shard),
                    kind,
                    after,
                    max_records: 100_000,
                    max_bytes: 1 << 30,
                };
                let page = store.scan(scan).await.expect("a page");
                if store_id(store) != place {
                    assert!(page.records.is_empty(), "shard {shard} has left something behind");
                    continue;
                }
                let found: BTreeMap<String, String> = page.records.iter().map(pair).collect();
                for ((_, _, version), number) in
                    acknowledged.range((shard, id.clone(), 0)..=(shard, id.clone(), u64::MAX))
                {
                    let stored = found.get(&format!("{version:06}"));
                    assert_eq!(
                        stored,
                        Some(&number.to_string()),
                        "{id} of shard {shard}, version {version}"
                    );
                }
            }
        }
        acknowledged.len()
    }
}

fn store_id(store: &MemoryStore) -> u128 {
    EntityStore::identity(store).store_id
}

fn pair(record: &ScannedRecord) -> (String, String) {
    let ScannedRecord::State(key, value) = record else { panic!("a scan of state") };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(key), text(value))
}

/// Runs a seed; returns the number of acknowledged turns.
fn run(seed: u64) -> usize {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let world = World::new(seed);
        tokio::spawn(world.dice.time.clone().pass());
        world.follow();
        for shard in 1..=SHARDS {
            world.assign(shard, (shard as usize) % NODES);
        }
        let changing = world.clone();
        tokio::spawn(async move {
            loop {
                changing.dice.pause(1_000).await;
                let shard = changing.dice.below(u64::from(SHARDS)) as u32 + 1;
                changing.assign(shard, changing.dice.below(NODES as u64) as usize);
            }
        });
        for _ in 0..4 {
            world.move_range().await;
            world.dice.pause(200).await;
        }
        world.check().await
    })
}

fn claim_of(shard: u32, epoch: u64) -> Claim {
    let incarnation = Incarnation { counter: 1, nonce: epoch };
    let owner = Member { node: "n".into(), incarnation };
    let (shard, epoch) = (path(shard), Epoch(epoch));
    Claim { cluster: CLUSTER, shard, epoch, owner, number: 1, extensions: Default::default() }
}

/// The turn of the entity `t/a` under a claim that makes this version.
fn turn(claim: Claim, version: u64) -> Commit {
    let (shard, epoch) = (claim.shard.shard.0, claim.epoch);
    let turn = TurnId { nonce: epoch.0, shard, epoch, number: version };
    let head = Head { version, turn, ..Head::default() };
    let key = RecordKey::State("k".into());
    let writes = vec![RecordWrite { key, value: Some(version.to_string().into()) }];
    let (claim, entity) = (Arc::new(claim), Entity::new("t", "a"));
    let (expected_version, extensions) = (version - 1, Default::default());
    Commit { claim, entity, expected_version, head, writes, extensions }
}

#[test]
fn a_store_that_is_down_fails_its_own_shards_only() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let down = |is_down, id| -> Arc<dyn MovableShards> {
            let store = MemoryStore::new(id, CLUSTER, "cluster");
            match is_down {
                true => Arc::new(Shaky { store, dice: Dice::new(0), is_down }),
                false => Arc::new(store),
            }
        };
        for [first, second] in [[false, true], [true, false]] {
            let map = ShardMap { ranges: vec![(0, 1), (2, 2)], ..first_map() };
            let further = vec![down(second, 2)];
            let store = RangedStore::new(down(first, 1), further, map, RangedStore::CLAIM_WAIT);
            let claims: Vec<_> = [1, 2].map(|shard| claim_of(shard, 1)).into();
            let outcomes = store.claim(claims.clone()).await;
            let granted: Vec<_> = outcomes.iter().map(|it| *it == ClaimOutcome::Granted).collect();
            assert_eq!(granted, [!first, !second], "{outcomes:?}");
            let turns = claims.into_iter().map(|claim| turn(claim, 1)).collect();
            let outcomes = store.commit(turns).await;
            let done: Vec<_> = outcomes.iter().map(|it| *it == CommitOutcome::Committed).collect();
            assert_eq!(done, [!first, !second], "{outcomes:?}");
            // R9: the node still has a store.
            assert!(store.probe(vec![path(1)]).await.is_ok());
        }
    });
}

/// A node that claimed the shard before it moved, and one that never did, read it where it is.
#[test]
fn every_node_reads_a_moved_shard_where_it_is() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let stores = [1, 2].map(|id| MemoryStore::new(id, CLUSTER, "cluster"));
        let node = || {
            let [first, second] =
                stores.clone().map(|store| -> Arc<dyn MovableShards> { Arc::new(store) });
            RangedStore::new(first, vec![second], first_map(), RangedStore::CLAIM_WAIT)
        };
        let [before, after, other] = [node(), node(), node()];
        assert_eq!(before.claim(vec![claim_of(1, 1)]).await, [ClaimOutcome::Granted]);
        assert_eq!(before.commit(vec![turn(claim_of(1, 1), 1)]).await, [CommitOutcome::Committed]);
        let moving = Some(RangeMove { first: 1, last: 1, to: 2 });
        let map = ShardMap { version: 1, moving, ..first_map() };
        for node in [&before, &after] {
            node.set_map(map.clone());
        }
        assert_eq!(before.misplaced(), [(path(1), Epoch(1))]);
        assert_eq!(after.claim(vec![claim_of(1, 2)]).await, [ClaimOutcome::Granted]);
        assert_eq!(after.commit(vec![turn(claim_of(1, 2), 2)]).await, [CommitOutcome::Committed]);
        let entity = Entity::new("t", "a");
        let read = async |node: &RangedStore| {
            let kind = ScanKind::State(entity.clone());
            let shard = path(1);
            let scan = Scan { shard, kind, after: None, max_records: 9, max_bytes: 99 };
            let page = node.scan(scan).await?;
            let loaded =
                node.load(vec![(path(1), entity.clone())]).await.pop().expect("a result")?;
            let version = loaded.head.map_or(0, |head| head.version);
            Ok::<_, ostraca_store::StoreError>((page.records.iter().map(pair).collect(), version))
        };
        let now = (vec![("k".to_owned(), "2".to_owned())], 2);
        assert_eq!(read(&before).await, Ok(now.clone()), "it had claimed the shard elsewhere");
        let old = read(&other).await.expect_err("it has the first map");
        assert!(old.to_string().contains("not in the store that the map"), "{old}");
        other.map_needed().await;
        let progress =
            after.advance_move(&map, |shard| Some(path(shard.0)), Duration::from_secs(9)).await;
        assert!(progress.is_ok_and(|progress| progress.is_complete()));
        let last = ShardMap { ranges: map.ranges_after(), moving: None, ..map };
        for node in [&before, &after, &other] {
            node.set_map(last.clone());
            assert_eq!(read(node).await, Ok(now.clone()));
            assert!(node.misplaced().is_empty());
        }
    });
}

/// The old shards of a pool that was copied have no owner that could move them.
#[test]
fn r26_a_move_does_not_wait_for_shards_without_use() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let stores = [1, 2].map(|id| MemoryStore::new(id, CLUSTER, "cluster"));
        let [first, second] =
            stores.clone().map(|store| -> Arc<dyn MovableShards> { Arc::new(store) });
        let moving = Some(RangeMove { first: 1, last: 2, to: 2 });
        let map = ShardMap { version: 1, moving, ..first_map() };
        let node = RangedStore::new(first, vec![second], map.clone(), RangedStore::CLAIM_WAIT);
        assert_eq!(node.claim(vec![claim_of(1, 1)]).await, [ClaimOutcome::Granted]);
        let limit = Duration::from_secs(9);
        let all = node.advance_move(&map, |shard| Some(path(shard.0)), limit).await;
        let waits = MoveProgress { shards: 2, moved: 1, is_clean: false };
        assert_eq!(all, Ok(waits), "shard 2 may get an owner");
        let used = |shard: ShardId| (shard.0 == 1).then(|| path(1));
        let moved = MoveProgress { shards: 1, moved: 1, is_clean: true };
        assert_eq!(node.advance_move(&map, used, limit).await, Ok(moved));
    });
}

#[test]
fn r26_ranges_move_under_load_and_nothing_is_lost() {
    let first = std::env::var("FIRST").ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let seeds = std::env::var("SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(60);
    let mut turns = all_seeds(first..first + seeds);
    assert!(turns.iter().all(|(_, turns)| *turns > 20), "{turns:?}");
    turns.sort_unstable_by_key(|(_, turns)| *turns);
    println!("{seeds} seeds, {} turns in the middle one", turns[turns.len() / 2].1);
}

fn all_seeds(seeds: std::ops::Range<u64>) -> Vec<(u64, usize)> {
    let run = |seed| {
        let turns = std::panic::catch_unwind(|| run(seed));
        (seed, turns.unwrap_or_else(|_| panic!("seed {seed} failed: FIRST={seed} SEEDS=1")))
    };
    seeds.map(run).collect()
}
