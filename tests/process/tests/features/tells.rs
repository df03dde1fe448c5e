//! Messages between entities on real processes (R19, R25).

use std::collections::BTreeMap;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{
    CallOptions, DeadLetter, DeadLetterAction, DeadLettersRequest, Entity, MessageKind,
};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::{Instant, sleep};

const GRANT: &str = "[grants]\ntell = [\"misbehaving\"]\n";
/// Number of entities that send, and number of targets that they share.
const SENDERS: u64 = 100;
const TARGETS: u64 = 50;
/// Number of commands per sender, and number of tells per command, each to a different target.
const COMMANDS: u64 = 40;
const TELLS: u64 = 5;

/// The targets of a sender's command.
fn targets(sender: u64, command: u64) -> Vec<String> {
    (0..TELLS).map(|tell| format!("t{}", (sender + command * 7 + tell * 11) % TARGETS)).collect()
}

/// Many tells between entities of three nodes, while hosts are killed.
async fn each_runs_once() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("tells", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let began = Instant::now();
    let all = (0..COMMANDS).flat_map(|command| (0..SENDERS).map(move |sender| (sender, command)));
    let sending = futures::stream::iter(all)
        .map(|(sender, command)| {
            let body = json!({ "ids": targets(sender, command), "key": "told" });
            let (client, id) = (&client, format!("s{sender}"));
            async move { call(client, MessageKind::Command, &id, "tell_add", body).await.map(drop) }
        })
        .buffer_unordered(16)
        .try_collect::<()>();
    let breaking = async {
        sleep(Duration::from_millis(1_500)).await;
        cluster.kill_9(1)?;
        sleep(Duration::from_millis(2_500)).await;
        cluster.start_node(1)?;
        sleep(Duration::from_millis(2_500)).await;
        cluster.kill_9(2)?;
        sleep(Duration::from_millis(1_000)).await;
        cluster.start_node(2)
    };
    let (sent, broken) = tokio::join!(sending, breaking);
    sent?;
    broken?;
    let sent_in = began.elapsed();
    let mut expected = BTreeMap::new();
    for command in 0..COMMANDS {
        for sender in 0..SENDERS {
            for target in targets(sender, command) {
                *expected.entry(target).or_insert(0_u64) += 1;
            }
        }
    }
    for (target, count) in &expected {
        until(&format!("{target} runs {count} tells"), async || {
            let told = call(&client, MessageKind::Query, target, "read", json!("told")).await?;
            let told: u64 = told.as_str().map_or(Ok(0), str::parse)?;
            ensure!(told <= *count, "{target} ran {told} tells of {count}");
            Ok((told == *count).then_some(()))
        })
        .await?;
    }
    let all_in = began.elapsed();
    // Nothing runs again later: outboxes are empty, and lanes recognise copies.
    sleep(Duration::from_secs(3)).await;
    for (target, count) in &expected {
        let told = call(&client, MessageKind::Query, target, "read", json!("told")).await?;
        ensure!(told == json!(count.to_string()), "{target} ran {told} tells of {count}");
    }
    let total: u64 = expected.values().sum();
    client.close().await;
    cluster.stop()?;
    Ok(format!("{total} tells, sent within {sent_in:?}, all run within {all_in:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_each_of_20000_tells_runs_once_across_kills() {
    println!("{}", each_runs_once().await.expect("each runs once"));
}

/// Tells of one sender to one target, while the target's and the sender's shards move.
async fn in_order() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("tells-order", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    const COUNT: u64 = 300;
    let sending = async {
        for number in 0..COUNT {
            let body = json!({
                "of": "misbehaving", "id": "target", "method": "note",
                "body": format!("\"{number}\""), "count": 1,
            });
            call(&client, MessageKind::Command, "sender", "tell", body).await?;
        }
        anyhow::Ok(())
    };
    let breaking = async {
        sleep(Duration::from_millis(300)).await;
        cluster.kill_9(1)?;
        sleep(Duration::from_secs(1)).await;
        cluster.start_node(1)
    };
    let (sent, broken) = tokio::join!(sending, breaking);
    sent?;
    broken?;
    let expected: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
    until("all notes arrive", async || {
        let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
        let notes: Vec<String> = serde_json::from_value(notes)?;
        ensure!(expected.starts_with(&notes), "out of order: {notes:?}");
        Ok((notes.len() == expected.len()).then_some(()))
    })
    .await?;
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_tells_of_a_pair_run_in_order_across_a_kill() {
    in_order().await.expect("in order");
}

/// Tells that their targets refuse, and those that a sender may not send.
async fn refused() -> Result<()> {
    let mut options = Options::new("tells-refused", &["store,manager,gateway,host"]);
    options.settings = "[entities]\ntell-attempts = 2\ntell-backoff = \"50 ms\"\n".into();
    let cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let tell = async |id: &str, of: &str, method: &str, body: &str| {
        let body = json!({ "of": of, "id": "target", "method": method, "body": body, "count": 1 });
        call(&client, MessageKind::Command, id, "tell", body).await
    };
    for (method, body) in
        [("refuse", "\"no\""), ("trap", ""), ("nothing", ""), ("note", "\"last\"")]
    {
        tell("sender", "misbehaving", method, body).await?;
    }
    until("the last tell runs after those that fail", async || {
        let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
        Ok((notes == json!(["last"])).then_some(()))
    })
    .await?;
    // The sender may learn only afterwards that it ran.
    let shown = until("the sender's outbox is empty", async || {
        let shown = client.inspect(&Entity::new("misbehaving", "sender"), false).await?;
        Ok((shown.outbox_count == 0).then_some(shown))
    })
    .await?;
    let letters: Vec<_> = shown
        .dead_letters
        .iter()
        .map(|letter| (&*letter.method, letter.attempts, letter.failure.split(':').next()))
        .collect();
    assert_eq!(
        letters,
        [
            ("refuse", 1, Some("no")),
            ("trap", 2, Some("trap")),
            ("nothing", 2, Some("unknown-method"))
        ]
    );
    assert_eq!(shown.dead_letter_count, 3);
    let log = cluster.process(0)?.log();
    let warned = log.lines().filter(|line| line.contains("a tell became a dead letter")).count();
    assert_eq!(warned, 3, "{log}");
    let denied = tell("sender", "counter", "add", "1").await.expect_err("refused");
    ensure!(format!("{denied:#}").contains("tell-not-granted"), "{denied:#}");
    let refused = json!("target");
    call(&client, MessageKind::Command, "sender", "tell_and_refuse", refused)
        .await
        .expect_err("refused");
    let sly = call(&client, MessageKind::Query, "sender", "sly_tell", json!(null)).await;
    ensure!(format!("{:#}", sly.expect_err("refused")).contains("write-in-query"));
    sleep(Duration::from_millis(500)).await;
    let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
    assert_eq!(notes, json!(["last"]), "a refused turn sends nothing");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_refused_tells_become_dead_letters_and_block_nobody() {
    refused().await.expect("dead letters");
}

/// Delayed tells that are cancelled, replaced and sent, while their sender is passivated and its node dies.
async fn delayed() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("tells-delayed", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    let later = async |name: &str, text: &str, ms: u64| {
        let body = json!({ "name": name, "id": "target", "text": text, "ms": ms });
        call(&client, MessageKind::Command, "sender", "tell_later", body).await
    };
    let begun = Instant::now();
    later("a", "first", 4_000).await?;
    later("b", "cancelled", 1_500).await?;
    later("c", "replaced", 1_000).await?;
    later("c", "second", 6_000).await?;
    let cancelled =
        call(&client, MessageKind::Command, "sender", "cancel_tell", json!("b")).await?;
    assert_eq!(cancelled, json!(true));
    let listed = call(&client, MessageKind::Query, "sender", "delayed_tells", json!(null)).await?;
    assert_eq!(listed, json!([["a", "target"], ["c", "target"]]));
    let sender = Entity::new("misbehaving", "sender");
    let shown = client.inspect(&sender, false).await?;
    assert_eq!((shown.delayed_tell_count, shown.timer_count, shown.outbox_count), (2, 0, 0));
    cluster.kill_9(cluster.place(&shown.owner).context("an owner")?)?;
    let notes = until("the delayed tells run", async || {
        let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
        ensure!(notes == json!([]) || begun.elapsed() >= Duration::from_secs(3), "{notes}");
        Ok((notes.as_array().is_some_and(|notes| notes.len() >= 2)).then_some(notes))
    })
    .await?;
    assert_eq!(notes, json!(["first", "second"]));
    ensure!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    sleep(Duration::from_secs(1)).await;
    let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
    assert_eq!(notes, json!(["first", "second"]), "each once, and nothing that was cancelled");
    let late = call(&client, MessageKind::Command, "sender", "cancel_tell", json!("c")).await?;
    assert_eq!(late, json!(false));
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_delayed_tells_leave_when_due_or_are_cancelled() {
    delayed().await.expect("delayed");
}

async fn dead_letters(cluster: &Cluster, node: usize, arguments: &[&str]) -> Result<Output> {
    cluster.command(node, &[&["dead-letters"], arguments].concat()).await
}

fn number(letter: &DeadLetter) -> Option<u64> {
    letter.tell.as_ref().map(|tell| tell.number)
}

/// An operator handles dead letters through a node that does not own the sender's shard, and after the owner is killed.
async fn resent_and_dropped() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut options = Options::new("tells-dead", &roles);
    options.settings = "[entities]\ntell-attempts = 1\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    const COUNT: u64 = 5;
    for number in 0..COUNT {
        let body = json!({
            "of": "misbehaving", "id": "target", "method": "note_if_open",
            "body": format!("\"{number}\""), "count": 1,
        });
        call(&client, MessageKind::Command, "sender", "tell", body).await?;
    }
    let sender = Entity::new("misbehaving", "sender");
    let all = DeadLettersRequest { r#type: "misbehaving".into(), ..Default::default() };
    let letters = until("all tells are dead letters", async || {
        let found = client.dead_letters(all.clone()).await?.dead_letters;
        Ok((found.len() as u64 == COUNT).then_some(found))
    })
    .await?;
    let numbers: Vec<u64> = letters.iter().filter_map(number).collect();
    ensure!(numbers.is_sorted() && letters.iter().all(|it| it.id == "sender"), "{letters:?}");
    // The dead letters are listed page by page, with their bodies.
    let mut page =
        DeadLettersRequest { limit: 2, values: true, id: "sender".into(), ..all.clone() };
    let mut bodies = Vec::new();
    loop {
        let found = client.dead_letters(page.clone()).await?;
        ensure!(found.dead_letters.len() <= 2);
        bodies.extend(found.dead_letters.into_iter().map(|it| it.body));
        page.cursor = found.next_cursor;
        if page.cursor.is_empty() {
            break;
        }
    }
    assert_eq!(bodies, ["\"0\"", "\"1\"", "\"2\"", "\"3\"", "\"4\""]);
    let (first, all_left) = (numbers[0].to_string(), ["resend", "misbehaving/sender", "--all"]);
    let dropping = ["drop", "misbehaving/sender", &first, "7"];
    for (code, dropped) in [(5, "1 dead letter of"), (5, "0 dead letters of")] {
        let output = dead_letters(&cluster, 0, &dropping).await?;
        ensure!(output.status.code() == Some(code), "{output:?}");
        ensure!(String::from_utf8_lossy(&output.stdout).starts_with(dropped), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(error.contains("unknown-dead-letter") && error.contains('7'), "{error}");
    }
    let session = client.session();
    let none = session
        .handle_dead_letters(&sender, DeadLetterAction::Drop, &[], &CallOptions::default())
        .await;
    assert_eq!(none.expect_err("refused").code(), "invalid-message");
    // Resent while the target still refuses them, they become dead letters again, with new numbers.
    let output = dead_letters(&cluster, 0, &all_left).await?;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "4 dead letters of misbehaving/sender resent\n"
    );
    let fresh = until("they are refused again", async || {
        let found = client.dead_letters(all.clone()).await?.dead_letters;
        let fresh: Vec<u64> = found.iter().filter_map(number).collect();
        Ok((fresh.len() as u64 == COUNT - 1).then_some(fresh))
    })
    .await?;
    ensure!(fresh[0] > numbers[4], "{fresh:?} after {numbers:?}");
    // The target is repaired, and the sender's node is killed: the next owner has the dead letters.
    call(&client, MessageKind::Command, "target", "open", json!(null)).await?;
    let owner = client.inspect(&sender, false).await?.owner;
    cluster.kill_9(cluster.place(&owner).context("an owner")?)?;
    let output = dead_letters(&cluster, 0, &all_left).await?;
    ensure!(output.status.success(), "{output:?}");
    until("all notes arrive, in order", async || {
        let notes = call(&client, MessageKind::Query, "target", "notes", json!(null)).await?;
        Ok((notes == json!(["1", "2", "3", "4"])).then_some(()))
    })
    .await?;
    let left = client.inspect(&sender, false).await?;
    assert_eq!((left.dead_letter_count, left.exists), (0, true));
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_dead_letters_are_resent_or_dropped_once() {
    resent_and_dropped().await.expect("resent and dropped");
}
