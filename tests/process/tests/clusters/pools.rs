//! Pools with hosts of their own, created while the cluster runs (K4, K39, M1).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity, MessageKind, NewPool, PlacementRequest, ShardAtNode};
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::history::until_answered;
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_guest;
use ostraca_process_tests::rounds::Rounds;
use ostraca_process_tests::{Cluster, artifacts};
use serde_json::json;

const SHARDS: u32 = 24;
const ORDERS: u32 = 10;
const FREE: u32 = 30;
const ROLES: &str = "roles = [\"manager\", \"host.orders\", \"gateway\"]";

/// How often each fault is repeated.
const REPEATED: u64 = 3;

fn orders() -> NewPool {
    NewPool {
        name: "orders".into(),
        shards: ORDERS,
        role: "host.orders".into(),
        ..NewPool::default()
    }
}

/// The nodes that own shards of the pool `orders`, and how many of them.
fn hosts_of_orders(view: &View) -> (BTreeSet<&str>, usize) {
    let owners: Vec<_> =
        (SHARDS + 1..=SHARDS + ORDERS).filter_map(|shard| view.owner(shard)).collect();
    (owners.iter().copied().collect(), owners.len())
}

fn served_by(view: &View, names: &[&str]) -> bool {
    hosts_of_orders(view) == (names.iter().copied().collect(), ORDERS as usize)
}

/// The owner of each shard of the pool without a manager; `None` if one has none.
fn owners_of_free(view: &View) -> Option<Vec<String>> {
    (SHARDS + 1..=SHARDS + FREE).map(|shard| view.owner(shard).map(str::to_owned)).collect()
}

/// Whether exactly these nodes own the pool, each a range of neighbouring shards, of equal width.
fn divided_by(view: &View, names: &[&str]) -> bool {
    let Some(owners) = owners_of_free(view) else { return false };
    let mut ranges: Vec<(String, usize)> = Vec::new();
    for owner in owners {
        match ranges.last_mut().filter(|(last, _)| *last == owner) {
            Some((_, width)) => *width += 1,
            None => ranges.push((owner, 1)),
        }
    }
    let widths = ranges.iter().map(|(_, width)| *width);
    let is_even = widths.clone().max().unwrap_or(0) - widths.min().unwrap_or(0) <= 1;
    let of: BTreeSet<_> = ranges.iter().map(|(name, _)| name.as_str()).collect();
    is_even && ranges.len() == names.len() && of == names.iter().copied().collect()
}

/// Deploys the counter under another name.
async fn deploy(client: &Client, name: &str, pool: &str) -> Result<()> {
    let manifest = format!("type = \"{name}\"\ncomponent = \"counter.wasm\"\npool = \"{pool}\"\n");
    client.deploy(&manifest, artifacts::component("counter")?, None).await?;
    Ok(())
}

async fn refusal(client: &Client, pool: NewPool) -> String {
    let error = client.pools(Some(pool)).await.expect_err("refused");
    error.code().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k39_a_pool_created_at_run_time_has_its_own_hosts() {
    let options = Options { proxied: false, at_once: 2, ..Options::three("pools") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait("the first pool is served", |view| view.settled(SHARDS)).await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    let unknown = deploy(&client, "order", "orders").await;
    assert!(unknown.expect_err("no such pool").to_string().contains("`default`"));

    let pools = client.pools(Some(orders())).await.expect("created");
    let placed = (pools[1].first_shard, pools[1].shards, pools[1].hosts);
    assert_eq!((pools.len(), placed), (2, (SHARDS + 1, ORDERS, 0)));
    // Repeating the command changes nothing, and a pool never changes.
    assert_eq!(client.pools(Some(orders())).await.expect("the same").len(), 2);
    assert_eq!(refusal(&client, NewPool { shards: 11, ..orders() }).await, "pool-immutable");
    for (wrong, code) in [
        (NewPool { name: "Orders".into(), ..orders() }, "invalid-pool"),
        (NewPool { name: "default".into(), ..orders() }, "invalid-pool"),
        (NewPool { name: "none".into(), shards: 0, ..orders() }, "invalid-pool"),
        (NewPool { name: "huge".into(), shards: 65_536, ..orders() }, "invalid-pool"),
        (NewPool { name: "md5".into(), hash: "md5".into(), ..orders() }, "invalid-pool"),
        (NewPool { name: "mine".into(), strategy: "mine".into(), ..orders() }, "invalid-pool"),
        (NewPool { name: "role".into(), role: "gateway".into(), ..orders() }, "invalid-pool"),
    ] {
        assert_eq!(refusal(&client, wrong.clone()).await, code, "{wrong:?}");
    }

    // Two nodes serve the first pool, the third one serves the new pool only.
    cluster.home(2).set(ROLES).expect("roles");
    cluster.start_node(2).expect("start");
    let third = cluster.name(2);
    let view = cluster.wait("the new pool is served", |view| served_by(view, &[&third])).await;
    let view = view.expect("served");
    assert_eq!(view.owned_by(&third), ORDERS as usize, "{view}");
    deploy(&client, "order", "orders").await.expect("deployed");
    deploy(&client, "plain", "default").await.expect("deployed");
    let session = client.session();
    for number in 1..=60_u32 {
        let entity = Entity::new("order", format!("o{number}"));
        let reply = session.command(&entity, "add", "1").await.expect("a reply");
        assert_eq!(&reply.body[..], b"1");
        let detail = client.inspect(&entity, false).await.expect("seen");
        assert!((SHARDS + 1..=SHARDS + ORDERS).contains(&detail.shard), "{}", detail.shard);
        assert_eq!(detail.owner, third);
    }

    // The last host of the pool is killed: the other pool is unharmed, and messages to this one wait for a host.
    let mut rounds = Rounds::of("the last host of a pool killed", REPEATED).expect("rounds");
    while let Some(round) = rounds.next() {
        cluster.kill_9(2).expect("killed");
        let without = |view: &View| hosts_of_orders(view).1 == 0;
        cluster.wait("its shards have no owner", without).await.expect("marked dead");
        let status = client.status().await.expect("a status");
        let problem = status.problems.iter().find(|it| it.code == "shards-unassigned");
        let problem = problem.expect("named");
        assert!(problem.message.contains("in the pool `orders`"), "{problem:?}");
        assert!(problem.help.contains("host.orders"), "{problem:?}");
        let other = Entity::new("plain", "a");
        session.command(&other, "add", "5").await.expect("the other pool answers");
        let waits = client.session();
        let reply = tokio::spawn(async move {
            let options = until_answered(MessageKind::Command);
            waits.send(&Entity::new("order", "o1"), "add", "1", &options).await
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.start_node(2).expect("start");
        cluster.wait("a host serves it", |view| served_by(view, &[&third])).await.expect("served");
        let reply = reply.await.expect("no panic").expect("an answer");
        assert_eq!(reply.body, (1 + round).to_string(), "once");
        rounds.passed("").expect("kept");
    }
    client.close().await;
    cluster.stop().expect("stop");
}

/// How long a command of the quiet pool may take beside the hot one, on a machine of two cores that runs everything.
const QUIET: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k39_a_hot_pool_leaves_its_quiet_neighbour_served() {
    let mut options = Options { proxied: false, ..Options::three("hot-pool") };
    for roles in &mut options.roles {
        roles.push_str(",host.orders");
    }
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    cluster.create_pool(&client, "orders", ORDERS).await.expect("created");
    deploy(&client, "order", "orders").await.expect("deployed");
    deploy(&client, "plain", "default").await.expect("deployed");
    let epochs = |view: &View| -> Vec<u64> { view.shards.iter().map(|it| it.epoch).collect() };
    let at_first = epochs(&cluster.wait_settled().await.expect("settled"));

    // A few entities of one pool get far more than they can run, through every gateway.
    let mut clients = Vec::new();
    for node in 0..3 {
        clients.push(cluster.client(node).await.expect("a client"));
    }
    let session = client.session();
    let mut quiet = 0_u64;
    let mut rounds = Rounds::of("a hot pool beside a quiet one", REPEATED).expect("rounds");
    while rounds.next().is_some() {
        let sessions: Vec<_> = (0..24).map(|place| clients[place % 3].session()).collect();
        let end = Instant::now() + Duration::from_secs(4);
        let hot = tokio::spawn(async move {
            let next =
                |_: usize, n: u64| (Entity::new("order", format!("o{}", n % 4)), "1".to_owned());
            closed_loop(&sessions, 32, "add", u64::MAX, end, Arc::new(next)).await
        });
        // The other one is used by one caller, who is never refused and never waits long.
        let (before, mut waits) = (quiet, Vec::new());
        while Instant::now() < end {
            let entity = Entity::new("plain", format!("p{}", quiet % 40));
            let start = Instant::now();
            session.command(&entity, "add", "1").await.expect("a reply");
            quiet += 1;
            waits.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let hot = hot.await.expect("no panic").expect("every command is answered").done;
        waits.sort_unstable();
        let [half, most] = [waits[waits.len() / 2], waits[waits.len() - 1]];
        let figures =
            format!("{hot} to the hot pool, {} to the other: {half:?}, {most:?}", waits.len());
        assert!(hot > 5 * (quiet - before), "{hot} are not many beside {}", quiet - before);
        assert!(most < QUIET, "{most:?}");
        let mut sum = 0;
        for number in 0..40 {
            let entity = Entity::new("plain", format!("p{number}"));
            let reply = session.query(&entity, "get", "").await.expect("a reply");
            let text = std::str::from_utf8(&reply.body).expect("text");
            sum += text.parse::<u64>().expect("a number");
        }
        assert_eq!(sum, quiet, "each ran once");
        let after = epochs(&cluster.wait_settled().await.expect("settled"));
        assert_eq!(after, at_first, "no shard of either pool has changed hands");
        rounds.passed(&figures).expect("kept");
    }
    client.close().await;
    for client in clients {
        client.close().await;
    }
    cluster.stop().expect("stop");
}

const WIDE: u32 = 37;
const COUNTERS: u32 = 300;
const RINGERS: u32 = 20;
const LIMITS: &str =
    "[limits]\ntimers = 1000\ntimer-bytes = \"512 KiB\"\ntimer-interval = \"10 ms\"\n";

fn wide() -> NewPool {
    NewPool {
        name: "wide".into(),
        shards: WIDE,
        hash: "fnv1a_32".into(),
        role: "host".into(),
        ..NewPool::default()
    }
}

/// The command that copies the pool `default` to `wide`.
fn copy_command(cluster: &Cluster) -> Result<std::process::Command> {
    let mut command = cluster.command_line(0)?;
    command.args(["pool", "copy", "default", "wide"]);
    Ok(command)
}

fn copy_pool(cluster: &Cluster) -> Result<(bool, String)> {
    let output = copy_command(cluster)?.output()?;
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    Ok((output.status.success(), text.concat()))
}

/// Adds 1 to the counters in turn, until told to end. Returns how often each was told.
async fn keep_adding(client: Client, ended: Arc<AtomicBool>) -> Result<Vec<u32>> {
    let session = client.session();
    let mut added = vec![0; COUNTERS as usize];
    for number in (0..COUNTERS).cycle() {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let entity = Entity::new("counter", format!("c{number}"));
        session.send(&entity, "add", "1", &until_answered(MessageKind::Command)).await?;
        added[number as usize] += 1;
    }
    client.close().await;
    Ok(added)
}

/// Fills a pool, and copies it while commands go on. Kills the node that copies at several moments, and continues.
async fn a_pool_is_copied() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let options = Options { proxied: false, ..Options::new("pool-copy", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy(&client, "counter", "default").await?;
    deploy_guest(&client, "misbehaving", LIMITS).await?;
    let counter = |number: u32| Entity::new("counter", format!("c{number}"));
    let session = client.session();
    for number in 0..COUNTERS {
        session.command(&counter(number), "add", number.to_string()).await.context("added")?;
    }
    client.pools(Some(wide())).await?;
    for number in 0..RINGERS {
        let body = json!({
            "name": "ring", "count": 3, "after_ms": 20_000, "every_ms": 0, "bytes": 20,
        });
        call(&client, MessageKind::Command, &format!("r{number}"), "set_timers", body).await?;
    }
    client.close().await;
    let ended = Arc::new(AtomicBool::new(false));
    let adding = tokio::spawn(keep_adding(cluster.client(1).await?, ended.clone()));

    for (ended_after, is_killed) in [(5, true), (150, true), (300, false), (600, true)] {
        let mut command = copy_command(&cluster)?.spawn()?;
        tokio::time::sleep(Duration::from_millis(ended_after)).await;
        match is_killed {
            true => cluster.kill_9(0)?,
            false => cluster.term(0)?,
        }
        command.wait()?;
        cluster.start_node(0)?;
    }
    let (done, text) = until("the copy is done", async || {
        let (done, text) = copy_pool(&cluster)?;
        Ok(done.then_some((done, text)))
    })
    .await?;
    ensure!(done, "{text}");
    let (done, text) = copy_pool(&cluster)?;
    ensure!(done && text.contains("before"), "repeating it changes nothing: {text}");
    let of_wide = SHARDS + 1..=SHARDS + WIDE;
    let is_served = |view: &View| of_wide.clone().all(|shard| view.owner(shard).is_some());
    cluster.wait("the new pool is served", is_served).await?;
    ended.store(true, Ordering::Relaxed);
    let added = adding.await??;
    let client = cluster.client(1).await?;
    let session = client.session();
    for number in 0..COUNTERS {
        let reply = session.command(&counter(number), "add", "1").await.context("added")?;
        let sum = number + added[number as usize] + 1;
        ensure!(reply.body[..] == *sum.to_string().as_bytes(), "c{number}: {reply:?}, not {sum}");
        let detail = client.inspect(&counter(number), false).await?;
        ensure!(of_wide.contains(&detail.shard), "c{number} is in shard {}", detail.shard);
    }
    for number in 0..RINGERS {
        let id = format!("r{number}");
        let rung = until("its timers fire", async || {
            let rung = call(&client, MessageKind::Query, &id, "rung", json!(null)).await?;
            let rung: Vec<(String, u64, i64, u64)> = serde_json::from_value(rung)?;
            Ok((rung.len() >= 3).then_some(rung))
        });
        let rung = rung.await?;
        ensure!(rung.len() == 3 && rung.iter().all(|it| it.1 == 1), "{id} rings once: {rung:?}");
    }
    let status = client.status().await?;
    let unassigned = status.problems.iter().find(|it| it.code == "shards-unassigned");
    ensure!(unassigned.is_none(), "nobody misses the old shards: {unassigned:?}");
    // Both names of the pool are accepted.
    for pool in ["default", "wide"] {
        deploy(&client, "counter", pool).await.with_context(|| format!("deploy to {pool}"))?;
    }
    deploy(&client, "later", "default").await?;
    let later = Entity::new("later", "a");
    client.session().command(&later, "add", "1").await?;
    ensure!(of_wide.contains(&client.inspect(&later, false).await?.shard), "in the new pool");
    let view = cluster.view().await?;
    ensure!((1..=SHARDS).all(|shard| view.owner(shard).is_none()), "{view}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn m1_a_pool_is_copied_across_kills_and_goes_on() {
    a_pool_is_copied().await.expect("nothing is lost or doubled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn e6_a_stateless_pool_survives_kills_and_grows() {
    let options = Options { proxied: false, ..Options::three("stateless") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait("the first pool is served", |view| view.settled(SHARDS)).await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    let free = NewPool {
        name: "free".into(),
        shards: FREE,
        strategy: "stateless".into(),
        ..NewPool::default()
    };
    client.pools(Some(free)).await.expect("created");
    let names: Vec<_> = (0..3).map(|node| cluster.name(node)).collect();
    let [first, second, third] = [&names[0], &names[1], &names[2]];
    let all = [first.as_str(), second, third];
    cluster.wait("three hosts divide it", |view| divided_by(view, &all)).await.expect("divided");
    deploy(&client, "free", "free").await.expect("deployed");
    let pools = client.pools(None).await.expect("pools");
    let numbers = |pool: usize| pools[pool].numbers.iter().map(|it| (it.number, it.node.as_str()));
    let (hosts, taken): (BTreeSet<_>, Vec<_>) = numbers(1).map(|it| (it.1, it.0)).unzip();
    assert_eq!((hosts, taken), (all.into(), vec![0, 1, 2]), "{pools:?}");
    assert_eq!(numbers(0).count(), 0, "the manager's pool has none");

    // Commands go on through a kill and a return, each exactly once.
    let session = client.session();
    let entities: Vec<_> = (0..40).map(|at| Entity::new("free", format!("f{at}"))).collect();
    for round in 1..=6_u32 {
        match round {
            2 => cluster.kill_9(2).expect("killed"),
            4 => cluster.start_node(2).expect("start"),
            _ => {}
        }
        for entity in &entities {
            let options = until_answered(MessageKind::Command);
            let reply = session.send(entity, "add", "1", &options).await.expect("an answer");
            assert_eq!(String::from_utf8_lossy(&reply.body), round.to_string(), "{entity:?}");
        }
        let of: &[&str] = if (2..4).contains(&round) { &all[..2] } else { &all };
        cluster.wait("the live hosts divide it", |view| divided_by(view, of)).await.expect("even");
    }

    // Nobody can say where its shards are.
    let moves = vec![ShardAtNode { shard: SHARDS + 1, node: second.clone() }];
    let request = PlacementRequest { moves, ..PlacementRequest::default() };
    let refused = client.placement(request).await.expect_err("refused");
    assert_eq!(refused.code(), "invalid-placement", "{refused}");
    client.close().await;
    cluster.stop().expect("stop");
}
