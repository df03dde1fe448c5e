//! A rolling upgrade with a migration, on real processes and under load (R24).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{AdminError, CallOptions, Client, Entity, MessageKind};
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
    let all = client.deployments().await?;
    let revisions: Vec<_> = all[0].revisions.iter().map(|it| (it.revision, it.schema)).collect();
    ensure!(all[0].schema == 2 && revisions == [(1, 0), (2, 2), (3, 0), (4, 0)], "{revisions:?}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_stored_revisions_are_activated_and_rolled_back() {
    stored().await.expect("stored revisions");
}
