//! Journals on real processes (E18, K11): no event is lost or doubled when nodes are killed.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::call;
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::{Instant, sleep};

const ENTITIES: u64 = 50;
/// Number of commands per entity. Every third one appends two events.
const COMMANDS: u64 = 60;

/// The events that a command appends. Their texts are unique.
fn texts(entity: u64, command: u64) -> Vec<String> {
    let count = if command.is_multiple_of(3) { 2 } else { 1 };
    (0..count).map(|event| format!("{entity}.{command}.{event}")).collect()
}

/// All events of an entity, read page by page, with consecutive numbers from 1.
async fn all_events(client: &Client, id: &str) -> Result<Vec<String>> {
    let mut events = Vec::new();
    let mut from = Some(1);
    while let Some(next) = from {
        let body = json!({ "from": next, "limit": 17 });
        let page = call(client, MessageKind::Query, id, "events", body).await?;
        let (found, rest): (Vec<(u64, String)>, Option<u64>) = serde_json::from_value(page)?;
        for (number, text) in found {
            ensure!(number == events.len() as u64 + 1, "{id}: event {number} after {events:?}");
            events.push(text);
        }
        from = rest;
    }
    Ok(events)
}

/// Appends to many journals while hosts are killed.
async fn each_event_once() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("journal", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    let began = Instant::now();
    let all = (0..COMMANDS).flat_map(|command| (0..ENTITIES).map(move |entity| (entity, command)));
    let sending = futures::stream::iter(all)
        .map(|(entity, command)| {
            let (client, id) = (&client, format!("j{entity}"));
            async move {
                let (texts, kind) = (texts(entity, command), MessageKind::Command);
                let reply = call(client, kind, &id, "append", json!({ "texts": texts })).await?;
                anyhow::Ok((entity, texts, serde_json::from_value::<Vec<u64>>(reply)?))
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>();
    let breaking = async {
        for node in [1, 2, 1] {
            sleep(Duration::from_millis(1_200)).await;
            cluster.kill_9(node)?;
            sleep(Duration::from_millis(1_500)).await;
            cluster.start_node(node)?;
        }
        anyhow::Ok(())
    };
    let (sent, broken) = tokio::join!(sending, breaking);
    let sent = sent?;
    broken?;
    let took = began.elapsed();
    let mut events = 0;
    for entity in 0..ENTITIES {
        let id = format!("j{entity}");
        let stored = all_events(&client, &id).await?;
        let distinct: BTreeSet<_> = stored.iter().collect();
        ensure!(distinct.len() == stored.len(), "{id} has an event twice: {stored:?}");
        for (_, texts, numbers) in sent.iter().filter(|(of, ..)| *of == entity) {
            for (text, number) in texts.iter().zip(numbers) {
                let at = usize::try_from(*number)? - 1;
                ensure!(stored.get(at) == Some(text), "{id}: event {number} is not {text}");
            }
        }
        let expected: usize = (0..COMMANDS).map(|command| texts(entity, command).len()).sum();
        ensure!(stored.len() == expected, "{id} has {} events of {expected}", stored.len());
        events += expected;
    }
    client.close().await;
    cluster.stop()?;
    Ok(format!("{events} events, appended within {took:?} across three kills, each once"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e18_each_event_is_stored_once_across_kills() {
    println!("{}", each_event_once().await.expect("each event once"));
}

/// A snapshot and what `inspect` shows, across a restart of the only node.
async fn after_a_restart() -> Result<()> {
    let options = Options::new("journal-restart", &["store,manager,gateway,host"]);
    let mut cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "[limits]\njournal = \"2000 B\"\n").await?;
    let command = async |client: &Client, method: &str, body| {
        call(client, MessageKind::Command, "j", method, body).await
    };
    command(&client, "append", json!({ "texts": ["a", "b", "c"] })).await?;
    command(&client, "save", json!("abc")).await?;
    ensure!(command(&client, "truncate", json!(3)).await? == json!(3));
    client.close().await;
    cluster.kill_9(0)?;
    cluster.start_node(0)?;
    let client = cluster.client(0).await?;
    ensure!(command(&client, "append", json!({ "texts": ["d"] })).await? == json!([4]));
    let saved = call(&client, MessageKind::Query, "j", "saved", json!(null)).await?;
    ensure!(saved == json!([3, "abc"]), "{saved}");
    let page = json!({ "from": 0, "limit": 9 });
    let events = call(&client, MessageKind::Query, "j", "events", page).await?;
    ensure!(events == json!([[[3, "c"], [4, "d"]], null]), "{events}");
    let shown = client.inspect(&Entity::new("misbehaving", "j"), false).await?;
    let journal = shown.journal.expect("it has a journal");
    let extent = (journal.first_number, journal.next_number, journal.bytes);
    ensure!(extent == (3, 5, 305) && journal.snapshot_through == Some(3), "{journal:?}");
    let full = command(&client, "append_sized", json!({ "bytes": 1_596, "count": 1 })).await;
    let full = format!("{:#}", full.expect_err("a journal beyond its limit"));
    ensure!(full.contains("journal-too-large"), "{full}");
    command(&client, "append_sized", json!({ "bytes": 1_595, "count": 1 })).await?;
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k11_a_journal_survives_the_restart_of_its_store() {
    after_a_restart().await.expect("a journal after a restart");
}
