//! A rolling upgrade with a migration, on real processes and under load (R24).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{AdminError, CallOptions, Client, Entity, MessageKind, Rollout};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, until};
use ostraca_process_tests::{Cluster, artifacts};
use tokio::task::JoinSet;

const IDS: usize = 40;

const MANIFEST: &str = "type = \"evolving\"\ncomponent = \"evolving.wasm\"\n";

/// Deploys a guest as the type `evolving`.
async fn deploy(client: &Client, guest: &str) -> Result<u64> {
    Ok(client.deploy(MANIFEST, artifacts::component(guest)?, None).await?.revision)
}

/// Adds 1 to an entity again and again, until `stop`. Returns how often it was done; every command must end as done, since
/// the client retries.
async fn add(client: Client, id: String, stop: Arc<AtomicBool>) -> Result<(String, u64)> {
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };
    let (session, entity) = (client.session(), Entity::new("evolving", id.as_str()));
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let reply = session.send(&entity, "add", "1".to_owned(), &options).await;
        let reply = reply.with_context(|| format!("add {} of {id}", done + 1))?;
        done += 1;
        let sum: u64 = serde_json::from_slice(&reply.body)?;
        ensure!(sum == done, "{id} counts {sum} after {done} commands");
    }
    Ok((id, done))
}

async fn upgrade() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("revisions", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    ensure!(deploy(&client, "evolving").await? == 1);
    let stop = Arc::new(AtomicBool::new(false));
    let mut loads = JoinSet::new();
    for number in 0..IDS {
        // Every tenth entity cannot be migrated.
        let id = match number % 20 {
            0 => format!("stuck{number}"),
            10 => format!("refused{number}"),
            _ => format!("e{number}"),
        };
        loads.spawn(add(cluster.client(number % 3).await?, id, stop.clone()));
    }
    let seen = async |id: String| client.inspect(&Entity::new("evolving", id), true).await;
    until("every entity has a turn", async || {
        for number in [0, 10, 39] {
            let id = ["stuck0", "refused10", "e39"][number / 10 - number / 30];
            if seen(id.into()).await?.version == 0 {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await?;
    ensure!(deploy(&client, "evolved").await? == 2);
    until("an entity that can be migrated runs the new revision", async || {
        let mut left = 0;
        for number in (0..IDS).filter(|number| number % 10 != 0) {
            let entity = seen(format!("e{number}")).await?;
            left += usize::from((entity.revision, entity.schema) != (2, 2));
        }
        Ok((left == 0).then_some(()))
    })
    .await?;
    for id in ["stuck0", "refused10"] {
        let failed = until("the owner reports the failure", async || {
            Ok(seen(id.into()).await?.failed_migration)
        })
        .await?;
        ensure!(failed.revision == 2, "{failed:?}");
        let reason = if id == "stuck0" { "panicked: " } else { "migration-refused: " };
        ensure!(failed.reason.starts_with(reason), "{failed:?}");
        let entity = seen(id.into()).await?;
        ensure!((entity.revision, entity.schema) == (1, 0), "{id} serves on its revision");
    }
    // Both kinds go on serving.
    let before = seen("stuck0".into()).await?.version;
    until("an entity that cannot be migrated serves", async || {
        Ok((seen("stuck0".into()).await?.version > before).then_some(()))
    })
    .await?;
    stop.store(true, Ordering::Relaxed);
    let (mut commands, mut entities) = (0, 0);
    while let Some(ended) = loads.join_next().await {
        let (id, done) = ended??;
        let key = if id.starts_with('e') { "count" } else { "n" };
        let entity = seen(id.clone()).await?;
        let stored = entity.keys.iter().find(|it| it.key == key).map(|it| it.value.clone());
        ensure!(stored.as_deref() == Some(done.to_string().as_bytes()), "{id}: {stored:?}, {done}");
        (commands, entities) = (commands + done, entities + 1);
    }
    ensure!(entities == IDS);
    client.close().await;
    cluster.stop()?;
    Ok(format!("{commands} commands to {entities} entities during the upgrade"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_an_upgrade_under_load_migrates_all_that_it_can() {
    println!("{}", upgrade().await.expect("the upgrade"));
}

/// Adds 1 to the entity `a`, and returns the sum and the revision that wrote it.
async fn once(client: &Client) -> Result<(u64, u64)> {
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };
    let entity = Entity::new("evolving", "a");
    let reply = client.session().send(&entity, "add", "1".to_owned(), &options).await?;
    let detail = client.inspect(&entity, false).await?;
    Ok((serde_json::from_slice(&reply.body)?, detail.revision))
}

/// The problem's code with which a request was refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, AdminError>) -> Result<String> {
    match result {
        Err(AdminError::Refused(problem)) => Ok(problem.code.clone()),
        other => bail!("not refused: {other:?}"),
    }
}

async fn stored() -> Result<()> {
    let cluster =
        Cluster::start(&Options::new("stored-revisions", &["store,manager,gateway,host"])).await?;
    let client = cluster.client(0).await?;
    let evolved = artifacts::component("evolved")?;
    let early = client.deploy_inactive(MANIFEST, evolved.clone()).await;
    ensure!(refusal(early)? == "nothing-active");
    ensure!(deploy(&client, "evolving").await? == 1);
    ensure!(client.deploy_inactive(MANIFEST, evolved.clone()).await?.revision == 2);
    let again = client.deploy_inactive(MANIFEST, evolved).await?;
    ensure!((again.revision, again.unchanged) == (2, true), "{again:?}");
    ensure!(once(&client).await? == (1, 1), "it is only stored");
    // The next deployment gets a number of its own.
    let manifest = format!("{MANIFEST}[lifecycle]\nidle-timeout = \"1 min\"\n");
    let evolving = artifacts::component("evolving")?;
    ensure!(client.deploy(&manifest, evolving, None).await?.revision == 3);
    ensure!(client.activate("evolving", None).await?.revision == 4, "a rollback is a new revision");
    ensure!(once(&client).await? == (2, 4));
    ensure!(refusal(client.activate("evolving", Some(9)).await)? == "unknown-revision");
    // It was stored before revision 3 was active, so it gets a new number.
    ensure!(client.activate("evolving", Some(2)).await?.revision == 5);
    ensure!(once(&client).await? == (3, 5), "the state was migrated");
    ensure!(refusal(client.activate("evolving", None).await)? == "schema-goes-back");
    // A rollout begins with a part of the entities, and `a` is not in an empty part.
    let manifest = format!("{MANIFEST}[lifecycle]\nidle-timeout = \"2 min\"\n");
    let evolved = artifacts::component("evolved")?;
    let six = client.deploy_inactive(&manifest, evolved).await?.revision;
    let part = |shards| Some(Rollout { shards: Some(shards), ..Rollout::default() });
    ensure!(client.roll_out("evolving", Some(six), part(0)).await?.revision == 6);
    ensure!(once(&client).await? == (4, 5), "it is not reached yet");
    client.roll_out("evolving", Some(six), part(100_000)).await?;
    until("the rollout reaches it", async || Ok((once(&client).await?.1 == 6).then_some(())))
        .await?;
    client.roll_out("evolving", Some(six), None).await?;
    ensure!(refusal(client.roll_out("evolving", Some(six), part(1)).await)? == "rollout-complete");
    let all = client.deployments().await?;
    let revisions: Vec<_> = all[0].revisions.iter().map(|it| (it.revision, it.schema)).collect();
    ensure!(
        all[0].schema == 2 && revisions == [(1, 0), (2, 2), (3, 0), (4, 0), (5, 2)],
        "{revisions:?}"
    );
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_stored_revisions_are_activated_and_rolled_back() {
    stored().await.expect("stored revisions");
}

/// Sends a command to each entity of a type, and returns the numbers of those that run this revision.
async fn on_revision(client: &Client, ids: &[String], revision: u64) -> Result<usize> {
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };
    let session = client.session();
    let mut count = 0;
    for id in ids {
        let entity = Entity::new("evolving", id.as_str());
        session.send(&entity, "add", "1".to_owned(), &options).await?;
        count += usize::from(client.inspect(&entity, false).await?.revision == revision);
    }
    Ok(count)
}

async fn rollout(client: &Client) -> Result<Option<Rollout>> {
    Ok(client.deployments().await?.remove(0).rollout)
}

/// The manager's node advances the rollout, and the other node notices what stops it.
async fn rolled_out() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("rollout", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    ensure!(deploy(&client, "evolving").await? == 1);
    let evolved = artifacts::component("evolved")?;
    ensure!(client.deploy_inactive(MANIFEST, evolved).await?.revision == 2);
    let mut ids: Vec<String> = (0..24).map(|number| format!("e{number}")).collect();
    ensure!(on_revision(&client, &ids, 1).await? == ids.len());

    // A stable share of the entities, whatever their shard is.
    let canary = Rollout { per_mille: Some(500), ..Rollout::default() };
    client.roll_out("evolving", Some(2), Some(canary)).await?;
    let share = until("a share of the entities is on the new revision", async || {
        let count = on_revision(&client, &ids, 2).await?;
        Ok((count > 0).then_some(count))
    })
    .await?;
    ensure!(share < ids.len(), "{share} of {}", ids.len());
    let none = Rollout { per_mille: Some(0), shards: Some(0), ..Rollout::default() };
    client.roll_out("evolving", Some(2), Some(none)).await?;
    ensure!(on_revision(&client, &ids, 2).await? == share, "none of them goes back");

    let shard = async |id: &str| client.inspect(&Entity::new("evolving", id), false).await;
    // The rollout must not be complete before it reaches the entity that stops it.
    for number in 0.. {
        let id = format!("stuck{number}");
        if (4..12).contains(&shard(&id).await?.shard) {
            ids.push(id);
            break;
        }
    }
    ensure!(on_revision(&client, &ids[ids.len() - 1..], 1).await? == 1);

    let moving = || Some(Rollout { rate: 60, ..Rollout::default() });
    client.roll_out("evolving", Some(2), moving()).await?;
    let stopped = until("a failed migration stops the rollout", async || {
        on_revision(&client, &ids, 2).await?;
        Ok(rollout(&client).await?.filter(|it| !it.stopped.is_empty()))
    })
    .await?;
    ensure!(stopped.stopped.contains(ids.last().context("no entity")?), "{stopped:?}");
    ensure!((4..24).contains(&stopped.shards()), "{stopped:?}");
    until("the manager's node has an event", async || {
        let mut events = client.events(false, 0).await?;
        while let Some(page) = events.next().await? {
            let found = page.events.iter().find(|it| it.kind == "rollout-stopped");
            if let Some(event) = found {
                return Ok(Some(event.message.clone()));
            }
        }
        Ok(None)
    })
    .await?;
    let before = on_revision(&client, &ids, 2).await?;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    ensure!(on_revision(&client, &ids, 2).await? == before, "it advances although it stopped");
    ensure!(rollout(&client).await?.is_some_and(|it| it.shards() == stopped.shards()));

    let live = client.deployment("evolving").await?.context("a deployment")?.live;
    let of = |revision| live.iter().find(|it| it.revision == revision).map_or(0, |it| it.count);
    ensure!(of(2) == before as u64 && of(1) == (ids.len() - before) as u64, "{live:?}");

    // Continued, it leaves behind only what cannot be migrated.
    let faster = Rollout { rate: 1_200, ..Rollout::default() };
    client.roll_out("evolving", Some(2), Some(faster)).await?;
    until("the rollout completes", async || Ok(rollout(&client).await?.is_none().then_some(())))
        .await?;
    until("all entities but one are on the new revision", async || {
        Ok((on_revision(&client, &ids, 2).await? == ids.len() - 1).then_some(()))
    })
    .await?;
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_rollout_advances_until_a_migration_fails() {
    rolled_out().await.expect("the rollout");
}
