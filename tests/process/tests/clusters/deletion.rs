//! Deletions on real processes: by a turn and by an operator, of an entity with many records, and across a kill (E17).

use anyhow::{Result, ensure};
use ostraca_client::{CallError, CallOptions, Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;

const ID: &str = "cart";
/// Number of entities that end.
const COUNT: u64 = 40;
/// Number of keys: several pages, each with its own commit.
const KEYS: u64 = 900;

fn entity() -> Entity {
    Entity::new("misbehaving", ID)
}

/// Fills the entity, and sets a timer that is not due.
async fn fill(client: &Client) -> Result<()> {
    for _ in 0..2 {
        call(client, MessageKind::Command, ID, "set_keys", json!(KEYS)).await?;
    }
    call(client, MessageKind::Command, ID, "remember", json!(true)).await?;
    call(client, MessageKind::Command, ID, "append", json!(["event"])).await.map(drop)
}

/// Whether the store shows the entity as deleted, with nothing left.
async fn is_gone(client: &Client, version: u64) -> Result<bool> {
    let seen = client.inspect(&entity(), false).await?;
    ensure!(seen.version >= version, "the version {} fell below {version}", seen.version);
    ensure!(seen.key_count == 0 || !seen.deleted, "a deleted entity shows keys");
    Ok(seen.deleted && !seen.exists && !seen.remembered && seen.journal.is_none())
}

async fn deletions() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut options = Options::new("deletion", &roles);
    options.settings = "[entities]\npurge-page = 100\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    fill(&client).await?;
    // By a turn, whose owner is killed at once: the next owner removes the rest.
    let session = client.session();
    let options = CallOptions { timeout: LIMIT, ..CallOptions::default() };
    let deleting = session.send(&entity(), "delete", "\"bye\"", &options).await?;
    ensure!(&deleting.body[..] == b"\"bye\"", "{:?}", deleting.body);
    let owner = client.inspect(&entity(), false).await?.owner;
    if let Some(killed) = cluster.place(&owner).filter(|place| *place > 0) {
        cluster.kill_9(killed)?;
    }
    let left = call(&client, MessageKind::Query, ID, "read", json!("f1")).await?;
    ensure!(left.is_null(), "a turn sees {left}, which was deleted");
    // A copy of the deletion gets its recorded reply, and deletes nothing again.
    let added =
        call(&client, MessageKind::Command, ID, "add", json!({"key": "k", "by": 1})).await?;
    ensure!(added == json!(1), "it starts anew: {added}");
    let copy = CallOptions { resend: Some(deleting.id), ..options.clone() };
    let again = session.send(&entity(), "delete", "\"bye\"", &copy).await?;
    ensure!(again.version == deleting.version, "{again:?}");
    let reason = call(&client, MessageKind::Query, ID, "read", json!("start-reason")).await?;
    ensure!(reason.as_str().is_some_and(|it| it.contains("FirstMessage")), "{reason}");
    let seen = client.inspect(&entity(), false).await?;
    ensure!((seen.exists, seen.generation) == (true, 1), "{seen:?}");
    // By an operator.
    fill(&client).await?;
    let command = ["delete", "misbehaving/cart"];
    let output = cluster.command(0, &command).await?;
    ensure!(output.status.success(), "{output:?}");
    until("everything is removed", async || {
        Ok(is_gone(&client, seen.version).await?.then_some(()))
    })
    .await?;
    let output = cluster.command(0, &command).await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(5) && text.contains("unknown-entity"), "{text}");
    let missing = session.delete_entity(&Entity::new("misbehaving", "never"), &options).await;
    ensure!(
        matches!(missing, Err(CallError::NotRun { ref code, .. }) if &**code == "unknown-entity"),
        "{missing:?}"
    );
    client.close().await;
    cluster.stop()
}

/// A type whose entities live for a while, and one entity that decides for itself.
async fn ends() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("expiry", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let manifest = "[lifecycle]\ntime-to-live = \"3 s\"\nidle-timeout = \"200 ms\"\n";
    deploy_guest(&client, "misbehaving", manifest).await?;
    for number in 0..COUNT {
        let id = format!("e{number}");
        call(&client, MessageKind::Command, &id, "set_keys", json!(3)).await?;
    }
    let lasts = Entity::new("misbehaving", "lasts");
    call(&client, MessageKind::Command, "lasts", "expire_after", json!(3_600_000)).await?;
    // Nobody sends a message, and the owner of some is gone.
    cluster.kill_9(1)?;
    until("all have ended", async || {
        for number in 0..COUNT {
            let entity = Entity::new("misbehaving", format!("e{number}"));
            let seen = client.inspect(&entity, false).await?;
            ensure!(seen.deleted || seen.expires_unix_ms.is_some(), "{seen:?}");
            if !seen.deleted {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await?;
    ensure!(client.inspect(&lasts, false).await?.exists, "it set its own time");
    let listed = client.entities(ostraca_client::EntitiesRequest::default()).await?.entities;
    ensure!(listed.len() == 1, "deleted entities are not listed: {listed:?}");
    let fresh = call(&client, MessageKind::Query, "e0", "read", json!("f1")).await?;
    ensure!(fresh.is_null(), "{fresh}");
    client.close().await;
    cluster.stop()
}

/// Deletes entities after different numbers of turns, until their heads are removed while owners are killed. Then each
/// starts anew above its former version, and copies of old messages do not run.
async fn heads() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut options = Options::new("removed-heads", &roles);
    options.settings = "[entities]\nlane-ttl = \"3 s\"\n".into();
    options.shards = 4;
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    let once = CallOptions { timeout: LIMIT, kind: MessageKind::Command, ..Default::default() };
    let body = json!({"key": "k", "by": 1}).to_string();
    let session = client.session();
    let mut former = Vec::new();
    for number in 0..COUNT {
        let entity = Entity::new("misbehaving", format!("h{number}"));
        let mut adding = session.send(&entity, "add", body.clone(), &once).await?;
        for _ in 0..number % 4 {
            adding = session.send(&entity, "add", body.clone(), &once).await?;
        }
        let deleting = session.delete_entity(&entity, &once).await?;
        former.push((entity, adding.id, deleting.version));
    }
    for killed in [1, 2] {
        cluster.kill_9(killed)?;
        cluster.start_node(killed)?;
    }
    until("all heads are removed", async || {
        for (entity, _, _) in &former {
            if client.inspect(entity, false).await?.version > 0 {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await?;
    for (entity, add, version) in &former {
        let copy = CallOptions { resend: Some(*add), ..once.clone() };
        let again = session.send(entity, "add", body.clone(), &copy).await;
        ensure!(again.is_err(), "a copy from before the removal ran: {again:?}");
        let reply = session.send(entity, "add", body.clone(), &once).await?;
        ensure!(&reply.body[..] == b"1", "{entity} starts anew: {:?}", reply.body);
        ensure!(reply.version > *version, "{entity}: {} after {version}", reply.version);
    }
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_removed_heads_leave_no_old_message_a_chance() {
    heads().await.expect("heads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_entities_end_by_their_time_to_live() {
    ends().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_a_deleted_entity_starts_anew_and_nothing_runs_twice() {
    deletions().await.expect("deletions");
}
