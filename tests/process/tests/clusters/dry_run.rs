//! `deploy --dry-run`: what a deployment would do, tried on copies of entities (R24).

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{
    AdminError, CallOptions, DryRun, DryRunEntity, Entity, MessageKind, StateChange,
};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::LIMIT;
use ostraca_process_tests::{Cluster, artifacts};

const MANIFEST: &str = "type = \"evolving\"\ncomponent = \"evolving.wasm\"\n";

fn named<'a>(all: &'a [DryRunEntity], id: &str) -> Result<&'a DryRunEntity> {
    all.iter().find(|it| it.id == id).with_context(|| format!("{id} was not tried"))
}

async fn tried() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("dry-run", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    let evolved = artifacts::component("evolved")?;
    let none = client.dry_run(MANIFEST, evolved.clone(), DryRun::default()).await?;
    ensure!((none.current_revision, none.entities.len()) == (0, 0), "{none:?}");
    ensure!(client.deployments().await?.is_empty(), "a dry run deploys nothing");
    client.deploy(MANIFEST, artifacts::component("evolving")?, None).await?;
    let ids = ["a", "b", "stuck1", "refused1"];
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };
    for (id, by) in ids.into_iter().zip(1..) {
        let entity = Entity::new("evolving", id);
        client.session().send(&entity, "add", by.to_string(), &options).await?;
    }

    for by in [2, 3] {
        let entity = Entity::new("evolving", "journal");
        client.session().send(&entity, "add", by.to_string(), &options).await?;
    }

    // Without names, a sample that is large enough has all entities of this small type.
    let all = DryRun { sample: 100, ..DryRun::default() };
    let result = client.dry_run(MANIFEST, evolved.clone(), all).await?;
    ensure!(
        (result.current_revision, result.current_schema, result.schema) == (1, 0, 2),
        "{result:?}"
    );
    ensure!(result.query == "get" && result.entities.len() == 5, "{result:?}");
    let migrated = named(&result.entities, "b")?;
    ensure!((migrated.failed_in.as_str(), &migrated.result[..]) == ("", b"2"), "{migrated:?}");
    let text = |it: &StateChange| {
        let value = |of: &Option<bytes::Bytes>| {
            of.as_deref().map(|it| String::from_utf8_lossy(it).into_owned())
        };
        format!("{:?} {:?} {:?}", it.key, value(&it.before), value(&it.after))
    };
    let changes: Vec<_> = migrated.changes.iter().map(text).collect();
    let expected = [r#"b"count" None Some("2")"#, r#"b"n" Some("2") None"#];
    ensure!(changes == expected, "{changes:?}");
    for (id, reason) in [("stuck1", "panicked: "), ("refused1", "migration-refused: ")] {
        let failed = named(&result.entities, id)?;
        ensure!(failed.failed_in == "migrate" && failed.failure.starts_with(reason), "{failed:?}");
        ensure!(failed.changes.is_empty());
    }

    // The copy that runs has the journal that the migration left: the sum of 2 and 3 in the snapshot and as an event.
    let history = DryRun { ids: vec!["journal".into()], query: "history".into(), sample: 0 };
    let result = client.dry_run(MANIFEST, evolved.clone(), history).await?;
    let journal = named(&result.entities, "journal")?;
    let expected = (journal.failed_in.as_str(), &journal.result[..]) == ("", b"[[2,5],[3,5]]");
    ensure!(expected, "{journal:?}");

    // Nothing has happened to the entities or the type.
    ensure!(client.deployments().await?[0].revision == 1);
    for (id, by) in ids.into_iter().zip(1_u64..) {
        let entity = client.inspect(&Entity::new("evolving", id), true).await?;
        ensure!((entity.version, entity.schema) == (1, 0), "{entity:?}");
        ensure!(entity.keys.len() == 1 && entity.keys[0].value == by.to_string().as_bytes());
    }

    // Named entities, one of which does not exist.
    let some = DryRun { ids: vec!["a".into(), "nobody".into()], ..DryRun::default() };
    let result = client.dry_run(MANIFEST, evolved.clone(), some).await?;
    ensure!(named(&result.entities, "a")?.failed_in.is_empty());
    ensure!(named(&result.entities, "nobody")?.failed_in == "load");

    // Refused like a deployment.
    client.deploy(MANIFEST, evolved.clone(), None).await?;
    let back = client.dry_run(MANIFEST, artifacts::component("evolving")?, DryRun::default()).await;
    let Err(AdminError::Refused(problem)) = back else { bail!("not refused: {back:?}") };
    ensure!(problem.code == "schema-goes-back", "{problem:?}");
    for (wanted, code) in [
        (DryRun { query: "add".into(), ..DryRun::default() }, "unknown-method"),
        (DryRun { sample: 101, ..DryRun::default() }, "invalid-request"),
        (DryRun { ids: vec![String::new()], ..DryRun::default() }, "invalid-request"),
    ] {
        let refused = client.dry_run(MANIFEST, evolved.clone(), wanted).await;
        let Err(AdminError::Refused(problem)) = refused else { bail!("not refused: {refused:?}") };
        ensure!(problem.code == code, "{problem:?}");
    }
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_dry_run_migrates_copies_and_changes_nothing() {
    tried().await.expect("the dry run");
}
