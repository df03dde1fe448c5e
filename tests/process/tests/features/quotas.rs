//! Quotas of a namespace's stored state, on a real process across a kill.

use anyhow::{Result, ensure};
use ostraca_client::{CallOptions, Client, Entity, MessageKind, NewPool};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::guest_calls::{LIMIT, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;

/// One attempt: `None` if it succeeded, or the error.
async fn attempt(
    client: &Client,
    id: &str,
    method: &str,
    body: serde_json::Value,
) -> Option<String> {
    let kind = MessageKind::Command;
    let options = CallOptions { kind, timeout: LIMIT, retry: false, ..Default::default() };
    let entity = Entity::new("misbehaving", id);
    let sent = client.session().send(&entity, method, body.to_string(), &options).await;
    sent.err().map(|error| format!("{error:#}"))
}

/// Lets an entity grow until it is refused. Returns how many keys it then has.
async fn grow_until_refused(client: &Client, id: &str, from: u64) -> Result<u64> {
    let mut keys = from;
    until("the state may not grow any more", async || {
        match attempt(client, id, "set_keys", json!({ "count": keys + 10 })).await {
            None => keys += 10,
            Some(error) if error.contains("quota-state") => return Ok(Some(keys)),
            // The node was killed.
            Some(error) if error.contains("connection-lost") => {}
            Some(error) => anyhow::bail!("{error}"),
        }
        Ok(None)
    })
    .await
}

async fn set_quota(cluster: &Cluster, size: &str) -> Result<String> {
    let output = cluster.command(0, &["namespace", "quota", "default", "--state", size]).await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

async fn bounded_state() -> Result<()> {
    let mut cluster =
        Cluster::start(&Options::new("quota-state", &["store,manager,gateway,host"])).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    // What no node has ever hosted stores nothing, and need not be counted.
    let role = "host.later".into();
    let later = NewPool { name: "later".into(), shards: 8, role, ..NewPool::default() };
    client.pools(Some(later)).await?;
    let text = set_quota(&cluster, "1 KiB").await?;
    ensure!(text.contains("at most 1.0 KiB of state"), "{text}");
    let keys = grow_until_refused(&client, "no-state-a", 0).await?;
    // What it has may be written again, and read.
    let same = attempt(&client, "no-state-a", "set_keys", json!({ "count": keys })).await;
    ensure!(same.is_none(), "{same:?}");
    let entity = Entity::new("misbehaving", "no-state-a");
    client.session().query(&entity, "extent", "").await?;
    let words = ["namespace", "list", "--output", "json"];
    let listed: serde_json::Value =
        serde_json::from_slice(&cluster.command(0, &words).await?.stdout)?;
    let default = &listed["namespaces"][0];
    ensure!(default["quotas"]["state_bytes"] == 1_024, "{listed}");
    ensure!(default["usage"]["state_bytes"].as_u64() >= Some(1_024), "{listed}");
    ensure!(default["usage"]["entities"] == 1, "{listed}");

    cluster.kill_9(0)?;
    cluster.start_node(0)?;
    let of_default = 1..=cluster.shards;
    let is_served = |view: &View| of_default.clone().all(|shard| view.owner(shard).is_some());
    cluster.wait("the pool with hosts is served", is_served).await?;
    let after = grow_until_refused(&client, "no-state-a", keys).await?;
    ensure!(after < keys + 500, "it grew without bound after a restart: {keys}, then {after}");

    // Deleting makes room.
    let deleted = attempt(&client, "no-state-a", "delete", json!("gone")).await;
    ensure!(deleted.is_none(), "{deleted:?}");
    until("another entity may grow", async || {
        let refused = attempt(&client, "no-state-b", "set_keys", json!({ "count": 10 })).await;
        Ok(refused.is_none().then_some(()))
    })
    .await?;
    grow_until_refused(&client, "no-state-b", 10).await?;
    let text = set_quota(&cluster, "none").await?;
    ensure!(text.contains("no quotas"), "{text}");
    until("nothing is limited", async || {
        let refused = attempt(&client, "no-state-b", "set_keys", json!({ "count": 900 })).await;
        Ok(refused.is_none().then_some(()))
    })
    .await?;
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_namespace_grows_no_more_and_shrinks() {
    bounded_state().await.expect("bounded");
}
