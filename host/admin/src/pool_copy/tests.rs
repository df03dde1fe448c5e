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
use ostraca_core::rows::{Assignment, AssignmentsRow, chunk_of, index_in_chunk};
use ostraca_core::rows::{NodeRow, NodeStatus, Roles, Row, RowKey};
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

/// The stores of a cluster with three pools, whose node has ended, with entities of the type `counter` in `default`.
async fn ended() -> (Arc<MemoryStore>, Copying) {
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
    let release_timeout = Duration::from_millis(300);
    let stores = Copying { rows: store.clone(), state: store.clone(), release_timeout };
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

async fn run(stores: &Copying, from: &str, to: &str) -> Result<proto::PoolCopyEnd, Problem> {
    stores.run((from, to), &mut |_| ()).await
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
    let (store, stores) = ended().await;
    // A type of a namespace comes along, too.
    add(&store, &Entity::new("acme:counter", "c0"), 90).await;
    let copied = run(&stores, "default", "wide").await.expect("copied");
    let of_type = |name: &str, entities| proto::CopiedType {
        r#type: name.into(),
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
    let (store, stores) = ended().await;
    let code = |result: Result<proto::PoolCopyEnd, Problem>| result.expect_err("refused").code;
    for (from, to) in [("default", "none"), ("none", "wide")] {
        assert_eq!(code(run(&stores, from, to).await), codes::UNKNOWN_POOL.as_str());
    }
    for (from, to) in [("wide", "wide"), ("wide", "default")] {
        assert_eq!(code(run(&stores, from, to).await), codes::POOL_NOT_COPIED.as_str());
    }
    set(&store, &rows::type_key("counter"), &type_row(Some(&rollout()))).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused").message;
    assert!(refused.contains("`counter` is being rolled out"), "{refused}");
    set(&store, &rows::type_key("counter"), &type_row(None)).await;
    // Nothing was begun by any of these.
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));
    run(&stores, "default", "wide").await.expect("copied");
    for (from, to) in [("default", "other"), ("other", "wide")] {
        assert_eq!(
            code(run(&stores, from, to).await),
            codes::POOL_NOT_COPIED.as_str(),
            "{from} to {to}"
        );
    }
}

#[tokio::test]
async fn r23_an_unfinished_copy_closes_both_pools() {
    let (store, stores) = ended().await;
    // A type without a binding is found before anything is begun.
    add(&store, &Entity::new("stranger", "s"), 99).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert!(refused.message.contains("`stranger`"), "{refused:?}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));

    let (store, stores) = ended().await;
    let (mut row, _, _) = read_pools(&*store).await.expect("pools");
    let stage = PoolCopyStage::Marking;
    let fill = PoolFill { from: "default".into(), attempt: 5, runner: 0, stage };
    row.pools[0].set_fill(&fill).expect("it fits");
    set(&store, POOLS, &row).await;
    let pools = pools_of(&store).await;
    let is_closed = |name| pools.get(name).expect("a pool").is_closed();
    assert_eq!(["default", "wide", "other"].map(is_closed), [true, true, false]);
    for (from, to) in [("default", "other"), ("wide", "other"), ("other", "wide")] {
        let refused = run(&stores, from, to).await.expect_err("refused");
        assert_eq!(refused.code, codes::POOL_NOT_COPIED.as_str(), "{from} to {to}");
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
    let (store, stores) = ended().await;
    let overtaking = || {
        let other = run(&stores, "default", "wide").now_or_never().expect("nothing is awaited");
        assert!(!other.expect("copied").was_done);
    };
    let mut on_progress = once_after(PoolCopyStep::ReadingNew, overtaking);
    let names = ("default", "wide");
    let late = stores.run(names, &mut on_progress).await.expect_err("overtaken");
    assert!(late.message.contains("another process"), "{late:?}");
    assert!(run(&stores, "default", "wide").await.expect("nothing to do").was_done);
    assert_eq!((count(&store, "default").await, count(&store, "wide").await), (0, 20));
}

#[tokio::test]
async fn r23_other_pools_may_change_during_a_copy() {
    let (store, stores) = ended().await;
    let changed = || {
        let adding = async {
            let (mut row, _, _) = read_pools(&*store).await.expect("pools");
            row.pools.push(entry("third", 2, HashFunction::Murmur3));
            set(&store, POOLS, &row).await;
        };
        adding.now_or_never().expect("nothing is awaited");
    };
    let mut on_progress = once_after(PoolCopyStep::ReadingNew, changed);
    stores.run(("default", "wide"), &mut on_progress).await.expect("copied");
    assert_eq!((count(&store, "default").await, count(&store, "wide").await), (0, 20));
    assert!(pools_of(&store).await.get("third").is_some_and(|pool| !pool.is_closed()));
}

/// Its entry comes before that of the pool from which it is filled, which was filled itself.
#[tokio::test]
async fn r23_an_older_pool_is_filled_from_a_newer_one() {
    let (store, stores) = ended().await;
    for (from, to) in [("default", "other"), ("other", "wide")] {
        run(&stores, from, to).await.expect("copied");
        assert_eq!((count(&store, from).await, count(&store, to).await), (0, 20));
    }
    let pools = pools_of(&store).await;
    let closed = ["default", "other", "wide"].map(|it| pools.get(it).expect("one").is_closed());
    assert_eq!(closed, [true, true, false]);
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
    let (store, stores) = ended().await;
    // A rollout begins during the first check.
    let began = || {
        let row = type_row(Some(&rollout()));
        let setting = async { set(&store, &rows::type_key("counter"), &row).await };
        setting.now_or_never().expect("nothing is awaited");
    };
    let mut on_progress = once_after(PoolCopyStep::Checking, began);
    let names = ("default", "wide");
    let refused = stores.run(names, &mut on_progress).await.expect_err("refused").message;
    assert!(refused.contains("`counter` is being rolled out"), "{refused:?}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()), "nothing has changed");
    set(&store, &rows::type_key("counter"), &type_row(None)).await;
    run(&stores, "default", "wide").await.expect("copied");
}

#[tokio::test]
async fn r23_a_copy_that_cannot_begin_is_given_up() {
    let (store, stores) = ended().await;
    let (mut row, _, _) = read_pools(&*store).await.expect("pools");
    let fill =
        PoolFill { from: "default".into(), attempt: 5, runner: 0, stage: PoolCopyStage::Marking };
    row.pools[0].set_fill(&fill).expect("it fits");
    set(&store, POOLS, &row).await;
    add(&store, &Entity::new("stranger", "s"), 99).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert!(refused.message.contains("`stranger`"), "{refused:?}");
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
    let (store, stores) = ended().await;
    let range = |first_shard, store_id| rows::StoreRange { first_shard, store_id };
    let ranges = vec![range(0, 9), range(3, 10)];
    let row = rows::StoresRow { ranges, extensions: Extensions::default() };
    set(&store, &rows::stores_key(), &row).await;
    let refused = run(&stores, "default", "wide").await.expect_err("refused");
    assert!(refused.message.contains("several databases"), "{refused:?}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()));
}

/// Changes the node's row.
async fn change_node(store: &MemoryStore, edit: impl FnOnce(NodeRow) -> NodeRow) {
    let key = RowKey::Node("n1".into());
    let found = store.get(&rows::key_text(&key)).await.expect("a store").expect("a row");
    let Some((_, Row::Node(row), at)) = rows::decode_row(&found).expect("a row") else {
        panic!("another row");
    };
    put(store, &key, Some(at), Row::Node(edit(row))).await;
}

/// Lets the node own these shards, and be live or not.
async fn own(store: &MemoryStore, shards: &[u32], status: NodeStatus, renewals: u64) {
    change_node(store, |row| NodeRow { status, renewals, ..row }).await;
    let mut assignments = vec![Assignment::default(); 15];
    for shard in shards {
        let row = &mut assignments[index_in_chunk(ShardId(*shard))];
        (row.owner, row.epoch) = (Some(member()), Epoch(3));
    }
    let chunk = RowKey::Assignments(chunk_of(ShardId(1)));
    let at = store.get(&rows::key_text(&chunk)).await.expect("a store").map(|row| row.revision);
    let row = AssignmentsRow { assignments, ..AssignmentsRow::default() };
    put(store, &chunk, at, Row::Assignments(row)).await;
}

async fn put(store: &MemoryStore, key: &RowKey, expected: Option<u64>, row: Row) {
    let value = Some(rows::encode_row(&row).expect("encoded"));
    let cas = ostraca_store::CompareAndSet { key: rows::key_text(key), expected, value };
    store.compare_and_set(cas).await.expect("written");
}

#[tokio::test]
async fn r23_a_copy_waits_until_owners_give_up_their_shards() {
    let (store, stores) = ended().await;
    // Shards 14 and 15 belong to neither pool.
    own(&store, &[1, 7, 14, 15], NodeStatus::Live, 1).await;
    let refused = run(&stores, "default", "wide").await.expect_err("two shards are owned");
    assert!(refused.message.contains("n1 owns 2"), "{refused:?}");
    assert!(refused.message.contains("`--release-timeout`"), "{refused:?}");
    assert!(pools_of(&store).await.iter().all(|pool| !pool.is_closed()), "both are as before");
    assert_eq!(count(&store, "default").await, 20);

    let copying = run(&stores, "default", "wide");
    let giving_up = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(count(&store, "wide").await, 0, "before, nothing is copied");
        own(&store, &[14, 15], NodeStatus::Live, 2).await;
    };
    let (copied, ()) = tokio::join!(copying, giving_up);
    assert_eq!(copied.expect("copied").types[0].entities, 20);
}

#[tokio::test]
async fn r8_an_owner_that_does_not_renew_is_not_waited_for() {
    let (store, stores) = ended().await;
    let settings = ClusterSettings {
        lease: Duration::from_millis(400),
        lease_margin: Duration::from_millis(100),
        ..ClusterSettings::default()
    };
    set(&store, SETTINGS, &SettingsRow::new(&settings, 2, None)).await;
    own(&store, &[1], NodeStatus::Live, 1).await;
    let stores = Copying { release_timeout: Duration::from_secs(20), ..stores };
    let began = std::time::Instant::now();
    run(&stores, "default", "wide").await.expect("copied");
    // The row says that its lease lasts 3,000 ms, which is longer than the setting.
    assert!(began.elapsed() >= Duration::from_millis(3_100), "{:?}", began.elapsed());

    let (store, stores) = ended().await;
    own(&store, &[1, 7], NodeStatus::Dead, 1).await;
    run(&stores, "default", "wide").await.expect("a dead node owns nothing");

    let (store, stores) = ended().await;
    own(&store, &[1, 7], NodeStatus::Live, 1).await;
    let incarnation = Incarnation { counter: 2, nonce: 8 };
    change_node(&store, |row| NodeRow { incarnation, ..row }).await;
    run(&stores, "default", "wide").await.expect("the owner's incarnation has ended");
}

#[tokio::test]
async fn r8_an_owner_that_renews_is_waited_for() {
    let (store, stores) = ended().await;
    let settings = ClusterSettings {
        lease: Duration::from_millis(100),
        lease_margin: Duration::from_millis(100),
        ..ClusterSettings::default()
    };
    set(&store, SETTINGS, &SettingsRow::new(&settings, 2, None)).await;
    own(&store, &[1], NodeStatus::Live, 1).await;
    let stores = Copying { release_timeout: Duration::from_millis(1_500), ..stores };
    let renewing = async {
        for renewals in 0.. {
            change_node(&store, |row| NodeRow { lease: 100, renewals, ..row }).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    let refused = tokio::select! {
        copied = run(&stores, "default", "wide") => copied.expect_err("a node owns a shard"),
        () = renewing => panic!("it renews without end"),
    };
    assert!(refused.message.contains("n1 owns 1 of"), "{refused:?}");
    assert!(refused.message.ends_with("; nothing has changed"), "{refused:?}");
}

#[tokio::test]
async fn r23_a_copy_that_another_one_continued_is_not_given_up() {
    let (store, stores) = ended().await;
    let names = ("default", "wide");
    stores.begin(names, 7, &mut |_| ()).await.expect("begun");
    // Another process continues the copy and makes a claim; then the check fails.
    let (row, _, pools) = read_pools(&*store).await.expect("pools");
    let fill = row.pools[0].fill().expect("a row").expect("a copy");
    let other = StageLog::new(store.clone(), "wide", 8);
    other.take_over(&fill).await.expect("continued");
    let shards = vec![path(&pools, ShardId(1))];
    let current = store.current_claims(shards).await.expect("claims").remove(0).expect("a claim");
    let placement = ostraca_core::records::Placement { store_id: fill.attempt.into(), version: 1 };
    let moved = current.moved_to(placement).expect("it fits");
    assert_eq!(store.claim(vec![moved]).await, [ClaimOutcome::Granted]);
    add(&store, &Entity::new("stranger", "s"), 99).await;
    stores.proceed(names, 7, &mut |_| ()).await.expect_err("a type is not known");
    assert!(pools_of(&store).await.get("default").expect("a pool").is_closed());
    let refused = run(&stores, "default", "wide").await.expect_err("as before");
    assert!(refused.message.contains("both pools stay closed"), "{refused:?}");
}

#[tokio::test]
async fn r23_an_error_after_the_switch_says_that() {
    let (store, stores) = ended().await;
    run(&stores, "default", "wide").await.expect("copied");
    // What is left might be in another database.
    let ranges = vec![rows::StoreRange { first_shard: 0, store_id: 10 }];
    let row = rows::StoresRow { ranges, extensions: Extensions::default() };
    set(&store, &rows::stores_key(), &row).await;
    let refused = run(&stores, "default", "wide").await.expect_err("another database");
    assert!(refused.message.contains("the types are in the new pool"), "{refused:?}");
}

#[tokio::test]
async fn r8_a_late_owner_keeps_the_types_from_the_switch() {
    let (store, stores) = ended().await;
    let stores = Copying { release_timeout: Duration::from_secs(20), ..stores };
    // A manager that has not seen the closed pools gives a shard to the node, once the claims were made.
    let assigned = || {
        let owning = own(&store, &[7], NodeStatus::Live, 5);
        owning.now_or_never().expect("nothing is awaited");
    };
    let mut on_progress = once_after(PoolCopyStep::ReadingNew, assigned);
    let copying = stores.run(("default", "wide"), &mut on_progress);
    let giving_up = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let pools = pools_of(&store).await;
        assert!(pools.get("wide").expect("a pool").is_closed(), "the owner might answer queries");
        own(&store, &[], NodeStatus::Live, 6).await;
    };
    let (copied, ()) = tokio::join!(copying, giving_up);
    copied.expect("copied");
    assert!(!pools_of(&store).await.home("default").expect("a pool").is_closed());
}
