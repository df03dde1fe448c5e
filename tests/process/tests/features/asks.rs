//! Asks between entities on real processes (R15, R20).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::MessageKind;
use ostraca_core::hash::shard_of;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::call;
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::{Instant, sleep};

const GRANT: &str = "[grants]\nask = [\"misbehaving\"]\n";
/// Number of asking entities, of the targets that they share, and of commands per asking entity.
const ASKERS: u64 = 60;
const TARGETS: u64 = 40;
const COMMANDS: u64 = 25;

fn target(asker: u64, command: u64) -> String {
    format!("t{}", (asker * 3 + command * 7) % TARGETS)
}

/// Sends commands whose turns each ask another entity to run a command, while hosts are killed. The client resends each
/// command until its outcome is known, so each asked command runs once unless its outcome was reported as unknown.
async fn each_runs_once() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("asks", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let manifest = format!("{GRANT}[limits]\nask-timeout = \"30 s\"\n");
    deploy_guest(&client, "misbehaving", &manifest).await?;
    let began = Instant::now();
    let all = (0..COMMANDS).flat_map(|command| (0..ASKERS).map(move |asker| (asker, command)));
    let asking = futures::stream::iter(all)
        .map(|(asker, command)| {
            let id = format!("a{asker}");
            let to = target(asker, command);
            let body = json!({
                "of": "misbehaving", "id": to, "method": "add",
                "body": r#"{"key":"asked","by":1}"#, "count": 1, "ms": 0,
            });
            let client = &client;
            async move {
                let outcomes = call(client, MessageKind::Command, &id, "ask", body).await?;
                anyhow::Ok((to, outcomes[0].as_str().unwrap_or_default().to_owned()))
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>();
    let breaking = async {
        for node in [1, 2, 1] {
            sleep(Duration::from_millis(900)).await;
            cluster.kill_9(node)?;
            sleep(Duration::from_millis(1_200)).await;
            cluster.start_node(node)?;
        }
        anyhow::Ok(())
    };
    let (asked, broken) = tokio::join!(asking, breaking);
    broken?;
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (to, outcome) in asked? {
        let (ran, unknown) = counts.entry(to).or_default();
        match outcome.split_once(' ') {
            Some(("ok", _)) => *ran += 1,
            Some(("unknown:", _)) => *unknown += 1,
            _ => ensure!(outcome.starts_with("not-run "), "{outcome}"),
        }
    }
    let unknown: u64 = counts.values().map(|(_, unknown)| unknown).sum();
    let ran: u64 = counts.values().map(|(ran, _)| ran).sum();
    for (to, (ran, unknown)) in &counts {
        let sum = call(&client, MessageKind::Query, to, "read", json!("asked")).await?;
        let sum: u64 = sum.as_str().map_or(Ok(0), str::parse)?;
        ensure!(
            (*ran..=ran + unknown).contains(&sum),
            "{to}: {sum} of {ran} and {unknown} unknown"
        );
    }
    ensure!(ran >= ASKERS * COMMANDS * 9 / 10, "only {ran} asks ran, {unknown} unknown");
    let within = began.elapsed();
    client.close().await;
    cluster.stop()?;
    Ok(format!("{ran} asks ran once, {unknown} unknown, within {within:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_each_asked_command_runs_once_across_kills() {
    println!("{}", each_runs_once().await.expect("each runs once"));
}

/// Cycles, depth, fan-out and refusals on two nodes.
async fn chains() -> Result<()> {
    let mut options = Options::new("asks-chains", &["store,manager,gateway,host", "host,gateway"]);
    options.settings = "[entities]\nmax-ask-depth = 4\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let limits = "[limits]\nturn-time = \"5 s\"\n";
    deploy_guest(&client, "misbehaving", &format!("{GRANT}{limits}")).await?;
    let along = async |first: &str, ids: &[&str]| {
        let body = json!({ "ids": ids, "key": "k" });
        call(&client, MessageKind::Command, first, "ask_along", body).await
    };
    ensure!(along("a", &["b", "c", "d"]).await? == json!(["1", "1", "1", "1"]));
    let cycle = along("e", &["f", "g", "f"]).await?;
    let last = cycle[3].as_str().context("an error")?;
    ensure!(last.ends_with("misbehaving/f → misbehaving/g → misbehaving/f (ask-cycle)"), "{cycle}");
    let deep = along("h", &["i", "j", "k", "l", "m"]).await?;
    ensure!(deep[5].as_str().is_some_and(|it| it.ends_with("(ask-too-deep)")), "{deep}");
    let myself = along("n", &["n"]).await?;
    ensure!(myself[1].as_str().is_some_and(|it| it.ends_with("(ask-cycle)")), "{myself}");
    let any =
        call(&client, MessageKind::Command, "o", "ask_any", json!(["300", "1", "60"])).await?;
    ensure!(any == json!(["1", "60", "300"]), "the order of the answers: {any}");
    let ask = async |kind, method: &str, of: &str, to: &str, asked: &str| {
        let body = json!({
            "of": of, "id": to, "method": asked, "body": "\"k\"", "count": 1, "ms": 2_000,
        });
        call(&client, kind, "q", method, body).await
    };
    let read = ask(MessageKind::Query, "ask_in_query", "misbehaving", "a", "read").await?;
    ensure!(read == json!(["ok \"1\""]), "{read}");
    let add = ask(MessageKind::Query, "ask_in_query", "misbehaving", "a", "note").await?;
    ensure!(add[0].as_str().is_some_and(|it| it.starts_with("not-run wrong-kind")), "{add}");
    let none = ask(MessageKind::Command, "ask", "misbehaving", "a", "none").await?;
    ensure!(none[0].as_str().is_some_and(|it| it.starts_with("not-run unknown-method")), "{none}");
    let denied = ask(MessageKind::Command, "ask", "other", "a", "read").await;
    let denied = format!("{:#}", denied.err().context("a refusal")?);
    ensure!(denied.contains("ask-not-granted"), "{denied}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_chains_of_asks_end_in_answers_or_named_errors() {
    chains().await.expect("chains");
}

/// An entity whose turn waits for an entity that queries it back, on two nodes.
async fn reads_back() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("asks-reentrant", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", &format!("reentrant = \"queries\"\n{GRANT}")).await?;
    let run = async |id: &str, to: &str| {
        let body = json!({ "id": to, "key": "k", "by": 1 });
        call(&client, MessageKind::Command, id, "add_and_read_back", body).await
    };
    // Several entities, so that some pairs share a node and others do not.
    // Their start hook changes nothing.
    for id in ["no-state-a", "no-state-b", "no-state-c", "no-state-d"] {
        let to = format!("{id}-other");
        for (sum, read) in [("1", "ok null"), ("2", "ok \"1\""), ("3", "ok \"2\"")] {
            let outcomes = run(id, &to).await?;
            ensure!(outcomes == json!([sum, read]), "{id}: {outcomes}");
        }
    }
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let outcomes = run("no-state-a", "no-state-b").await?;
    let text = outcomes[1].as_str().context("an error")?;
    let chain = "misbehaving/no-state-a → misbehaving/no-state-b → misbehaving/no-state-a";
    ensure!(text.starts_with("not-run ask-cycle") && text.ends_with(chain), "{outcomes}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_a_reentrant_type_answers_queries_while_it_waits() {
    reads_back().await.expect("reads back");
}

/// Pairs of entities that ask each other at the same time, from different roots, on different nodes. In every other
/// pair, one asks the other through a third entity.
async fn crossing() -> Result<String> {
    const PAIRS: u64 = 60;
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("asks-crossing", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let manifest = format!("{GRANT}[limits]\nask-timeout = \"60 s\"\n");
    deploy_guest(&client, "misbehaving", &manifest).await?;
    let began = Instant::now();
    let both = (0..PAIRS).flat_map(|pair| {
        let through: &[&str] = if pair.is_multiple_of(2) { &["y"] } else { &["z", "y"] };
        [(pair, "x", through), (pair, "y", &["x"])]
    });
    let outcomes = futures::stream::iter(both)
        .map(|(pair, from, to)| {
            let ids: Vec<_> = to.iter().map(|to| format!("{to}{pair}")).collect();
            let body = json!({ "ids": ids, "key": "k" });
            let (client, id) = (&client, format!("{from}{pair}"));
            async move {
                let outcome = call(client, MessageKind::Command, &id, "ask_along", body).await?;
                anyhow::Ok((pair.is_multiple_of(2), outcome.to_string().contains("(ask-cycle)")))
            }
        })
        .buffer_unordered(2)
        .try_collect::<Vec<_>>()
        .await?;
    let ended = |direct| outcomes.iter().filter(|outcome| **outcome == (direct, true)).count();
    let (direct, through, within) = (ended(true), ended(false), began.elapsed());
    // A pair whose cycle went undetected would wait for a minute.
    ensure!(within < Duration::from_secs(50), "{within:?}");
    ensure!(direct >= 1 && through >= 1, "{direct} and {through} pairs crossed");
    client.close().await;
    cluster.stop()?;
    let crossed = direct + through;
    Ok(format!(
        "{crossed} of {PAIRS} pairs crossed, {through} of them through a third, in {within:?}"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_entities_that_ask_each_other_do_not_wait_forever() {
    println!("{}", crossing().await.expect("crossing"));
}

/// A node stops while turns of its entities wait for a slow entity on another node.
async fn stopping() -> Result<String> {
    let mut options = Options::new("asks-stop", &["store,manager,gateway,host", "host,gateway"]);
    options.settings =
        "[entities]\nstop-timeout = \"60 s\"\n[hand-off]\ntimeout = \"90 s\"\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = Arc::new(cluster.client(0).await?);
    let limits = "[limits]\nask-timeout = \"100 s\"\nturn-time = \"20 s\"\n";
    deploy_guest(&client, "misbehaving", &format!("{GRANT}{limits}")).await?;
    let mut ids = [Vec::new(), Vec::new()];
    for id in (0..100).map(|id| format!("e{id}")) {
        let owner = cluster.owner_of(shard_of(&id, cluster.shards).0).await?;
        ids[owner].push(id);
    }
    let target = ids[0].first().context("an entity of the node that stays")?.clone();
    let asking: Vec<_> = ids[1]
        .iter()
        .take(2)
        .map(|asker| {
            let body = json!({
                "of": "misbehaving", "id": target, "method": "spin_for_ever", "body": "",
                "count": 1, "ms": 0,
            });
            let (client, asker) = (client.clone(), asker.clone());
            tokio::spawn(
                async move { call(&client, MessageKind::Command, &asker, "ask", body).await },
            )
        })
        .collect();
    sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    cluster.term(1)?;
    let within = began.elapsed();
    // The asks, the stop timeout and the target's turn do not delay the stop.
    ensure!(within < Duration::from_secs(20), "the node stopped only after {within:?}");
    for waiting in asking {
        // The turns run again on the other node, and get the outcomes of the asks.
        let outcome = waiting.await??;
        let text = outcome[0].as_str().context("an outcome")?;
        ensure!(text.starts_with("not-run turn-time-limit"), "{text}");
    }
    drop(client);
    cluster.stop()?;
    Ok(format!("the node with waiting turns stopped within {within:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_a_node_stops_while_its_turns_wait_for_asks() {
    println!("{}", stopping().await.expect("a stop"));
}
