//! Operators may contact any node: it asks other nodes for their in-memory state, names a node that does not respond,
//! and forgets a node that is permanently lost.

use anyhow::{Context, Result, ensure};
use ostraca_client::Entity;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node_dir::deploy_example;
use serde_json::Value;

const ENTITIES: usize = 48;

/// Starts a cluster of three nodes, with entities on each.
async fn populated(options: &Options) -> Result<Cluster> {
    let mut cluster = Cluster::start(options).await?;
    let client = cluster.client(0).await?;
    deploy_example(&client, "counter").await?;
    cluster.wait_settled().await?;
    let session = client.session();
    for n in 0..ENTITIES {
        session.command(&Entity::new("counter", format!("c{n}")), "add", "1").await?;
    }
    client.close().await;
    Ok(cluster)
}

/// Runs a command and returns its exit code, result and error.
async fn run_command(
    cluster: &Cluster,
    node: usize,
    words: &[&str],
) -> Result<(i32, Value, Value)> {
    let output = cluster.command(node, &[words, &["--output", "json"]].concat()).await?;
    let read = |bytes: &[u8]| match bytes.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(bytes)
            .with_context(|| String::from_utf8_lossy(bytes).into_owned()),
    };
    let code = output.status.code().context("it was killed")?;
    Ok((code, read(&output.stdout)?, read(&output.stderr)?))
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value["entities"].as_array().with_context(|| value.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_shows_an_entity_from_its_owners_memory() {
    // The lease is long enough for the node to remain the owner while it is paused.
    let settings = "lease = \"1 min\"\nrenew-interval = \"1 s\"\n".to_owned();
    let options = Options { settings, ..Options::three("any-node") };
    let mut cluster = populated(&options).await.expect("cluster");
    let every = |all: &Value, live: &dyn Fn(&Value) -> bool| -> Result<()> {
        for entity in list(all)? {
            ensure!(live(entity), "{entity}");
        }
        Ok(())
    };
    for node in 0..3 {
        let (code, all, error) =
            run_command(&cluster, node, &["entities"]).await.expect("a result");
        assert_eq!((code, &error), (0, &Value::Null), "{all}");
        every(&all, &|it| it["active"] == true && it["owner"].is_string()).expect("live");
        let all = list(&all).expect("entities");
        let owners: std::collections::BTreeSet<_> =
            all.iter().map(|it| it["owner"].to_string()).collect();
        assert_eq!((all.len(), owners.len()), (ENTITIES, 3));
        let (code, one, _) =
            run_command(&cluster, node, &["inspect", "counter/c7"]).await.expect("a result");
        assert!(code == 0 && one["active"] == true && one["mailbox_length"] == 0, "{one}");
        let (code, none, _) =
            run_command(&cluster, node, &["inspect", "counter/x"]).await.expect("a result");
        assert!(code == 0 && none["active"] == false && none["exists"] == false, "{none}");
    }

    // One node is paused: it is named, and everything else is shown.
    cluster.pause(2).expect("paused");
    let (code, all, error) = run_command(&cluster, 1, &["entities"]).await.expect("a result");
    assert_eq!((code, &error["error"]["code"]), (3, &"owner-unresponsive".into()), "{error}");
    assert_eq!(all["unresponsive_owners"][0]["node"], "n3", "{all}");
    every(&all, &|it| match it["owner"] == "n3" {
        true => it["active"].is_null() && it["version"] == 1,
        false => it["active"] == true,
    })
    .expect("what is known");
    let of_n3 = list(&all).expect("entities").iter().find(|it| it["owner"] == "n3");
    let name =
        format!("counter/{}", of_n3.expect("an entity of n3")["id"].as_str().expect("an id"));
    let (code, one, error) = run_command(&cluster, 0, &["inspect", &name]).await.expect("a result");
    assert_eq!((code, &error["error"]["code"]), (3, &"owner-unresponsive".into()), "{error}");
    assert!(error["error"]["message"].to_string().contains("n3"), "{error}");
    assert!(one["version"] == 1 && one["unresponsive_owner"]["node"] == "n3", "{one}");
    status(&cluster, 1, 8, Some("node-unreachable")).await.expect("the status names the problem");
    cluster.resume(2).expect("resumed");
    status(&cluster, 1, 0, None).await.expect("healthy again");
    cluster.stop().expect("stop");
}

/// Polls the status until it is as expected.
async fn status(cluster: &Cluster, node: usize, code: i32, problem: Option<&str>) -> Result<()> {
    let until = std::time::Instant::now() + ostraca_process_tests::cluster::TIMEOUT;
    loop {
        let (exit, shown, _) = run_command(cluster, node, &["status"]).await?;
        let found = match problem {
            Some(problem) => shown["problems"][0]["code"] == problem,
            None => shown["healthy"] == true,
        };
        if exit == code && found {
            return Ok(());
        }
        ensure!(std::time::Instant::now() < until, "{exit}: {shown:#}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_node_may_return_as_a_new_incarnation() {
    let mut cluster = Cluster::start(&Options::three("forget")).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let incarnation = async |cluster: &mut Cluster| {
        let view = cluster.view_of(0).await.expect("a view");
        let row = view.nodes.nodes.iter().find(|it| it.name == "n3").expect("n3").clone();
        row.incarnation.split('-').next().expect("a counter").parse::<u64>().expect("a number")
    };
    let (code, _, error) = run_command(&cluster, 1, &["forget", "n3"]).await.expect("a result");
    assert_eq!((code, &error["error"]["code"]), (2, &"node-live".into()), "{error}");
    let first = incarnation(&mut cluster).await;

    // The node is paused the whole time, and does not notice that it is forgotten.
    cluster.pause(2).expect("paused");
    status(&cluster, 1, 8, Some("node-dead")).await.expect("a dead node");
    let (code, done, error) = run_command(&cluster, 1, &["forget", "n3"]).await.expect("a result");
    assert_eq!((code, &done["unchanged"]), (0, &false.into()), "{error}");
    status(&cluster, 0, 0, None).await.expect("healthy again");
    let (code, done, _) = run_command(&cluster, 0, &["forget", "n3"]).await.expect("a result");
    assert_eq!((code, &done["unchanged"]), (0, &true.into()));
    cluster.resume(2).expect("resumed");
    let back = cluster.wait("n3 is back", |view| view.hosts().len() == 3 && view.settled(24)).await;
    back.expect("n3 is back");
    assert!(incarnation(&mut cluster).await > first, "a new incarnation (R7)");

    // A killed node is forgotten in the same way.
    let second = incarnation(&mut cluster).await;
    cluster.kill_9(2).expect("killed");
    status(&cluster, 1, 8, Some("node-dead")).await.expect("a dead node");
    let (code, ..) = run_command(&cluster, 1, &["forget", "n3"]).await.expect("a result");
    assert_eq!(code, 0);
    status(&cluster, 1, 0, None).await.expect("healthy again");
    cluster.start_node(2).expect("started");
    status(&cluster, 2, 0, None).await.expect("healthy");
    assert!(incarnation(&mut cluster).await > second, "a new incarnation (R7)");
    cluster.stop().expect("stop");
}
