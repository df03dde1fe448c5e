//! A kill of the sender or the target of a tell at each step from its commit to its deletion (R19).
//!
//! Cuts between nodes, and a target that waits for an answer, hold each tell at its step. So one kill interrupts
//! tells at all steps.

use std::time::Duration;

use anyhow::{Result, ensure};
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use ostraca_process_tests::proxy::{Endpoint, Rule};
use serde_json::{Value, json};
use tokio::time::sleep;

const GRANTS: &str = "[grants]\ntell = [\"misbehaving\"]\nask = [\"misbehaving\"]\n\
    [limits]\nask-timeout = \"100 s\"\n";
/// The node that owns the senders.
const SENDERS: usize = 1;
/// The node that owns the targets.
const TARGETS: usize = 2;
/// A node that these two cannot reach until the kill.
const CUT_OFF: usize = 3;

/// Two commands that send one tell each.
async fn tell(client: &Client, sender: &str, target: &str) -> Result<()> {
    for text in ["\"1\"", "\"2\""] {
        let body = json!({
            "of": "misbehaving", "id": target, "method": "note", "body": text, "count": 1,
        });
        call(client, MessageKind::Command, sender, "tell", body).await?;
    }
    Ok(())
}

/// The number of a target's notes in the store; asking the target would wake it.
async fn stored_notes(client: &Client, target: &str) -> Result<usize> {
    let seen = client.inspect(&Entity::new("misbehaving", target), true).await?;
    let Some(notes) = seen.keys.iter().find(|key| key.key == "notes") else { return Ok(0) };
    Ok(serde_json::from_slice::<Vec<String>>(&notes.value)?.len())
}

async fn wait_for_notes(client: &Client, target: &str) -> Result<()> {
    until(&format!("{target} runs both tells"), async || {
        Ok((stored_notes(client, target).await? >= 2).then_some(()))
    })
    .await
}

/// Waits until an entity is awake for this reason.
async fn wait_for_reason(client: &Client, id: &str, reason: &str) -> Result<()> {
    until(&format!("{id} is awake: {reason}"), async || {
        let seen = client.inspect(&Entity::new("misbehaving", id), false).await?;
        let awake = seen.activity.map(|it| it.awake).unwrap_or_default();
        Ok(awake.iter().any(|why| why.reason == reason).then_some(()))
    })
    .await
}

async fn in_outbox(client: &Client, sender: &str) -> Result<u64> {
    Ok(client.inspect(&Entity::new("misbehaving", sender), false).await?.outbox_count)
}

async fn killed_at_each_step(name: &str, victim: usize) -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new(name, &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANTS).await?;
    let senders = cluster.ids_owned_by(SENDERS, "s", 5).await?;
    let targets = cluster.ids_owned_by(TARGETS, "t", 4).await?;
    let cut_off = cluster.ids_owned_by(CUT_OFF, "c", 3).await?;
    let [committed, sent, run, acknowledged, deleted] = &senders[..] else { unreachable!() };
    let [of_sent, of_run, of_acknowledged, of_deleted] = &targets[..] else { unreachable!() };
    let network = cluster.network();
    for node in [SENDERS, TARGETS] {
        network.both(Endpoint::Node(node), Endpoint::Node(CUT_OFF), Rule::CUT);
    }

    // Deleted from the outbox.
    tell(&client, deleted, of_deleted).await?;
    until("the outbox is empty", async || {
        Ok((in_outbox(&client, deleted).await? == 0).then_some(()))
    })
    .await?;

    // Acknowledged, and still in the outbox: it is deleted together with one that has no answer yet.
    tell(&client, acknowledged, &cut_off[0]).await?;
    tell(&client, acknowledged, of_acknowledged).await?;
    wait_for_notes(&client, of_acknowledged).await?;
    sleep(Duration::from_millis(500)).await;
    ensure!(in_outbox(&client, acknowledged).await? >= 3, "the last one is not deleted yet");

    // Sent, and not run: the target's turn waits for an entity that it cannot reach.
    let waits = json!({
        "of": "misbehaving", "id": cut_off[1], "method": "read", "body": "\"x\"", "count": 1,
        "ms": 90_000,
    });
    let (waiting, id) = (cluster.client(0).await?, of_sent.clone());
    let waiting = tokio::spawn(async move {
        // Nobody needs its reply; the kill or the answer ends it.
        drop(call(&waiting, MessageKind::Command, &id, "ask", waits).await);
    });
    wait_for_reason(&client, of_sent, "asks").await?;
    tell(&client, sent, of_sent).await?;
    wait_for_reason(&client, of_sent, "messages").await?;

    // Run, and not acknowledged: its answer does not arrive.
    network.set(Endpoint::Node(TARGETS), Endpoint::Node(SENDERS), Rule::CUT);
    tell(&client, run, of_run).await?;
    until("the target runs the first tell", async || {
        Ok((stored_notes(&client, of_run).await? >= 1).then_some(()))
    })
    .await?;
    ensure!(in_outbox(&client, run).await? == 2, "nothing is acknowledged");

    // Committed, and not sent.
    tell(&client, committed, &cut_off[2]).await?;
    ensure!(stored_notes(&client, &cut_off[2]).await? == 0, "it cannot be sent");

    cluster.kill_9(victim)?;
    cluster.network().heal();
    waiting.await?;
    let expected = json!(["1", "2"]);
    let all = [of_sent, of_run, of_acknowledged, of_deleted, &cut_off[0], &cut_off[2]];
    for target in all {
        wait_for_notes(&client, target).await?;
    }
    for sender in &senders {
        until("the outbox is empty in the end", async || {
            Ok((in_outbox(&client, sender).await? == 0).then_some(()))
        })
        .await?;
    }
    // The node comes back, takes shards again, and sends nothing a second time.
    cluster.start_node(victim)?;
    cluster.wait_settled().await?;
    for target in all {
        let notes: Value = call(&client, MessageKind::Query, target, "notes", json!(null)).await?;
        ensure!(notes == expected, "{target}: {notes}");
    }
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_a_sender_is_killed_at_each_step_of_its_tells() {
    killed_at_each_step("tell-steps-sender", SENDERS).await.expect("each tell runs once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_a_target_is_killed_at_each_step_of_its_tells() {
    killed_at_each_step("tell-steps-target", TARGETS).await.expect("each tell runs once");
}
