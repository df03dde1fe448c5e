//! What is refused, and how a copy that was interrupted shows in the row of the pools.

use ostraca_catalog::pool::PoolEntry;
use ostraca_catalog::rollout::StoredRollout;
use ostraca_catalog::rows::{ClusterRow, PoolRow, RowValue, SETTINGS, SettingsRow};
use ostraca_codes::codes;
use ostraca_config::config::ClusterSettings;
use ostraca_core::extensions::Extensions;
use ostraca_core::hash::HashFunction;
use ostraca_core::ids::{ClusterId, Epoch, Incarnation, TurnId};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, Head};
use ostraca_core::rows::{NodeRow, NodeStatus, Roles, Row, RowKey};
use ostraca_store::pool_copy::{PoolCopyProgress, PoolCopyStep};
use ostraca_store::{EntityStore, MemoryStore};

use super::*;

const CLUSTER: ClusterId = ClusterId(1);

fn member() -> Member {
    Member { node: "n1".into(), incarnation: Incarnation { counter: 1, nonce: 7 } }
}

async fn set<T: RowValue>(store: &MemoryStore, key: &str, row: &T) {
    let revision = store.get(key).await.expect("a store").map(|row| row.revision);
    rows::write(store, key, revision, row).await.expect("written");
}

fn entry(name: &str, shards: u32, hash: HashFunction) -> PoolEntry {
    PoolEntry {
        name: name.into(),
        shards,
        hash: hash.name().into(),
        role: String::new(),
        strategy: String::new(),
        min_hosts: 1,
        at_ms: 0,
        by: String::new(),
        extensions: Extensions::default(),
    }
}

/// The stores of a stopped cluster with three pools, and with entities of the type `counter` in `default`.
async fn stopped() -> (Arc<MemoryStore>, StoppedStores) {
    let store = Arc::new(MemoryStore::new(9, CLUSTER, "test"));
    set(&store, "cluster", &ClusterRow::new(3)).await;
    let pool =
        PoolRow { hash: "murmur3_x86_32".into(), shards: 4, extensions: Extensions::default() };
    set(&store, &rows::pool_key(), &pool).await;
    let pools =
        vec![entry("wide", 9, HashFunction::Fnv1a), entry("other", 2, HashFunction::Murmur3)];
    set(&store, POOLS, &PoolsRow { pools, extensions: Extensions::default() }).await;
    set(&store, SETTINGS, &SettingsRow::new(&ClusterSettings::default(), 1, None)).await;
    let node = NodeRow {
        incarnation: member().incarnation,
        renewals: 0,
        status: NodeStatus::Dead,
        draining: false,
        store_available: true,
        roles: Roles::ALL,
        version: 0,
        registered_at: 0,
        addresses: Vec::new(),
        format: 3,
        lease: 3_000,
        settings_revision: 0,
        extensions: Extensions::default(),
    };
    let value = rows::encode_row(&Row::Node(node)).expect("encoded");
    let key = rows::key_text(&RowKey::Node("n1".into()));
    let cas = ostraca_store::CompareAndSet { key, expected: None, value: Some(value) };
    store.compare_and_set(cas).await.expect("written");
    let bound = BindingRow {
        pool: "default".into(),
        shard_key: ShardKeyRule::Id,
        hash: "murmur3_x86_32".into(),
        extensions: Extensions::default(),
    };
    for name in ["counter", "acme:counter"] {
        set(&store, &rows::binding_key(name), &bound).await;
        set(&store, &rows::type_key(name), &type_row(None)).await;
    }
    for number in 0..20 {
        add(&store, &Entity::new("counter", format!("c{number}")), number).await;
    }
    let stores = StoppedStores {
        rows: store.clone(),
        state: store.clone(),
        movable: Some(store.clone()),
        identity: EntityStore::identity(&*store),
        state_stores: [9].into(),
        is_embedded: true,
        place: "a test".into(),
    };
    (store, stores)
}

fn type_row(rollout: Option<&StoredRollout>) -> TypeRow {
    let mut row = TypeRow {
        revision: 2,
        manifest: "type = \"counter\"\ncomponent = \"counter.wasm\"\n".into(),
        component_digest: [1; 32],
        component_size: 9,
        methods: Vec::new(),
        extensions: Extensions::default(),
    };
    row.set_rollout(rollout).expect("it fits");
    row
}

/// Writes the head of an entity in the pool `default`.
async fn add(store: &MemoryStore, entity: &Entity, number: u64) {
    let pools = Pools::one(4);
    let shard = pools.get("default").expect("a pool").shard_of(&entity.id);
    let claim = Claim {
        cluster: CLUSTER,
        shard: path(&pools, shard),
        epoch: Epoch(3),
        owner: member(),
        number: 1,
        extensions: Extensions::default(),
    };
    assert_eq!(store.claim(vec![claim.clone()]).await, [ClaimOutcome::Granted]);
    let turn = TurnId { nonce: 7, shard: shard.0, epoch: Epoch(3), number };
    let commit = Commit {
        claim: Arc::new(claim),
        entity: entity.clone(),
        expected_version: 0,
        head: Head { version: 1, revision: 2, turn, ..Head::default() },
        writes: Vec::new(),
        extensions: Extensions::default(),
    };
    assert_eq!(store.commit(vec![commit]).await, [CommitOutcome::Committed]);
}

async fn run(stores: &StoppedStores, from: &str, to: &str) -> Result<CopiedPool, NodeError> {
    copy("n1", stores, (from, to), Instant::now(), &|_| (), &mut |_| ()).await
}

async fn pools_of(store: &MemoryStore) -> Pools {
    read_pools(store).await.expect("pools").2
}

/// The entities of a pool by type, in their shards.
async fn count(store: &MemoryStore, pool: &str) -> usize {
    use ostraca_store::{Scan, ScanKind};
    let pools = pools_of(store).await;
    let of = pools.get(pool).expect("a pool");
    let mut count = 0;
    for shard in (of.first.0..=of.last().0).map(ShardId) {
        let scan = Scan {
            shard: path(&pools, shard),
            kind: ScanKind::Heads,
            after: None,
            max_records: 1_000,
            max_bytes: usize::MAX,
        };
        count += store.scan(scan).await.expect("a page").records.len();
    }
    count
}

#[tokio::test]
async fn m1_a_copied_pool_takes_its_types_along() {
    let (store, stores) = stopped().await;
    // A type of a namespace comes along, too.
    add(&store, &Entity::new("acme:counter", "c0"), 90).await;
    let copied = run(&stores, "default", "wide").await.expect("copied");
    let of_type = |name: &str, entities| CopiedType {
        name: name.into(),
        entities,
        records: 0,
        bytes: entities * 256,
    };
    let types = vec![of_type("acme:counter", 1), of_type("counter", 20)];
    assert_eq!((copied.types, copied.was_done), (types, false));
    let pools = pools_of(&store).await;
    let home = pools.home("default").expect("a pool");
    assert_eq!((home.name.as_str(), home.is_closed()), ("wide", false));
    assert_eq!((count(&store, "default").await, count(&store, "wide").await), (0, 21));
    let again = run(&stores, "default", "wide").await.expect("nothing to do");
    assert!(again.was_done && again.types.is_empty());
    // Types that are bound to the first pool by name are copied along with those of the second.
    run(&stores, "wide", "other").await.expect("copied");
    assert_eq!((count(&store, "wide").await, count(&store, "other").await), (0, 21));
}

#[tokio::test]
async fn k4_pools_that_cannot_be_copied_are_refused() {
    let (store, stores) = stopped().await;
    let code = |result: Result<CopiedPool, NodeError>| result.expect_err("refused").code();
    for (from, to) in [("default", "none"), ("none", "wide")] {
        assert_eq!(code(run(&stores, from, to).await), codes::UNKNOWN_POOL);
    }
    for (from, to) in [("wide", "wide"), ("wide", "default")] {
        assert_eq!(code(run(&stores, from, to).await), codes::POOL_NOT_COPIED);
    }
    set(&store, &rows::type_key("counter"), &type_row(Some(&rollout()))).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused").to_string();
    assert!(refused.contains("`counter` is being rolled out"), "{refused}");
    set(&store, &rows::type_key("counter"), &type_row(None)).await;
    let divided = StoppedStores { movable: None, ..stopped().await.1 };
    assert_eq!(code(run(&divided, "default", "wide").await), codes::POOL_NOT_COPIED);
    // Nothing was begun by any of these.
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));
    run(&stores, "default", "wide").await.expect("copied");
    for (from, to) in [("default", "other"), ("other", "wide")] {
        assert_eq!(code(run(&stores, from, to).await), codes::POOL_NOT_COPIED, "{from} to {to}");
    }
}

#[tokio::test]
async fn r23_an_unfinished_copy_closes_both_pools() {
    let (store, stores) = stopped().await;
    // A type without a binding is found before anything is begun.
    add(&store, &Entity::new("stranger", "s"), 99).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert!(refused.to_string().contains("`stranger`"), "{refused}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));

    let (store, stores) = stopped().await;
    let (mut row, _, _) = read_pools(&*store).await.expect("pools");
    let stage = PoolCopyStage::Marking;
    let fill = PoolFill { from: "default".into(), attempt: 5, stage };
    row.pools[0].set_fill(&fill).expect("it fits");
    set(&store, POOLS, &row).await;
    let pools = pools_of(&store).await;
    let is_closed = |name| pools.get(name).expect("a pool").is_closed();
    assert_eq!(["default", "wide", "other"].map(is_closed), [true, true, false]);
    for (from, to) in [("default", "other"), ("wide", "other"), ("other", "wide")] {
        let refused = run(&stores, from, to).await.expect_err("refused");
        assert_eq!(refused.code(), codes::POOL_NOT_COPIED, "{from} to {to}");
    }
    let copied = run(&stores, "default", "wide").await.expect("continued");
    assert_eq!(copied.types[0].entities, 20);
    assert_eq!(count(&store, "wide").await, 20);
}

/// Calls this once, when a step has reached its last shard.
fn once_after(
    step: PoolCopyStep,
    call: impl FnOnce() + Send,
) -> impl FnMut(PoolCopyProgress) + Send {
    let mut call = Some(call);
    move |now| {
        if now.step == step
            && now.shards == now.all_shards
            && let Some(call) = call.take()
        {
            call();
        }
    }
}

#[tokio::test]
async fn r23_an_overtaken_copy_sets_no_stage_back() {
    let (store, stores) = stopped().await;
    let overtaking = || {
        let other = run(&stores, "default", "wide").now_or_never().expect("nothing is awaited");
        assert!(!other.expect("copied").was_done);
    };
    let mut on_progress = once_after(PoolCopyStep::ReadingNew, overtaking);
    let names = ("default", "wide");
    let late = copy("n1", &stores, names, Instant::now(), &|_| (), &mut on_progress).await;
    let late = late.expect_err("overtaken");
    assert_eq!(late.code(), codes::STORE_IN_USE, "{late}");
    assert!(run(&stores, "default", "wide").await.expect("nothing to do").was_done);
    assert_eq!((count(&store, "default").await, count(&store, "wide").await), (0, 20));
}

fn rollout() -> StoredRollout {
    StoredRollout {
        from: 1,
        shards: 2,
        per_mille: 0,
        rate: 0,
        since: 0,
        advanced_at: 0,
        stopped: String::new(),
    }
}

#[tokio::test]
async fn r24_what_changes_before_the_first_claim_is_seen() {
    let (store, stores) = stopped().await;
    // A node that was started during the first check begins a rollout.
    let began = || {
        let row = type_row(Some(&rollout()));
        let setting = async { set(&store, &rows::type_key("counter"), &row).await };
        setting.now_or_never().expect("nothing is awaited");
    };
    let mut on_progress = once_after(PoolCopyStep::Checking, began);
    let names = ("default", "wide");
    let refused = copy("n1", &stores, names, Instant::now(), &|_| (), &mut on_progress).await;
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.contains("`counter` is being rolled out"), "{refused}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()), "nothing has changed");
    set(&store, &rows::type_key("counter"), &type_row(None)).await;
    run(&stores, "default", "wide").await.expect("copied");
}

#[tokio::test]
async fn r23_a_copy_that_cannot_begin_is_given_up() {
    let (store, stores) = stopped().await;
    let (mut row, _, _) = read_pools(&*store).await.expect("pools");
    let fill = PoolFill { from: "default".into(), attempt: 5, stage: PoolCopyStage::Marking };
    row.pools[0].set_fill(&fill).expect("it fits");
    set(&store, POOLS, &row).await;
    add(&store, &Entity::new("stranger", "s"), 99).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert!(refused.to_string().contains("`stranger`"), "{refused}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));

    // Once a claim says that data was moved, the copy can only be continued.
    let pools = pools_of(&store).await;
    let shards = vec![path(&pools, ShardId(1))];
    let current = store.current_claims(shards).await.expect("claims").remove(0).expect("a claim");
    let placement = ostraca_core::records::Placement { store_id: 5, version: 1 };
    let moved = current.moved_to(placement).expect("it fits");
    assert_eq!(store.claim(vec![moved]).await, [ClaimOutcome::Granted]);
    set(&store, POOLS, &row).await;
    run(&stores, "default", "wide").await.expect_err("refused");
    assert!(pools_of(&store).await.get("default").expect("a pool").is_closed());
}

#[tokio::test]
async fn r5_state_in_stores_that_are_not_named_is_not_left() {
    let (store, stores) = stopped().await;
    let range = |first_shard, store_id| rows::StoreRange { first_shard, store_id };
    let ranges = vec![range(0, 9), range(3, 10)];
    let row = rows::StoresRow { ranges, extensions: Extensions::default() };
    set(&store, &rows::stores_key(), &row).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert_eq!(refused.code(), codes::UNKNOWN_STORE, "{refused}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));
}
