//! A host that cannot compile a deployed type has no shards while another host can (R24).

use anyhow::Result;
use ostraca_client::Entity;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::node_dir::deploy_example;

/// A configuration with too little memory to compile anything.
const NO_ROOM: &str = "[compiler]\nmax-memory = \"1 MiB\"";

/// Whether a node's status names this problem.
async fn has_problem(cluster: &mut Cluster, node: usize, code: &str) -> Result<bool> {
    let status = cluster.watcher(node).await?.status().await?;
    Ok(status.problems.iter().any(|problem| problem.code == code))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_cannot_compile_a_type_hosts_nothing() {
    let options = Options { proxied: false, at_once: 2, ..Options::three("unrunnable-types") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.home(2).set(NO_ROOM).expect("settings");
    cluster.start_node(2).expect("start");
    let name = cluster.name(2);
    // The host can run every deployed type, because there is none yet.
    let shares = |view: &View| view.owned_by(&name) > 0 && view.settled(24);
    cluster.wait("it owns shards", shares).await.expect("its share");

    let client = cluster.client(0).await.expect("client");
    deploy_example(&client, "counter").await.expect("deploy");
    let left = |view: &View| view.owned_by(&name) == 0 && view.settled(24);
    cluster.wait("the host owns nothing", left).await.expect("its shards are moved");
    assert!(
        has_problem(&mut cluster, 2, "type-broken").await.expect("status"),
        "the host's status shows why"
    );
    let manager = cluster.manager().await.expect("manager");
    assert!(has_problem(&mut cluster, manager, "unrunnable-type").await.expect("status"));
    let session = client.session();
    for id in 0..48 {
        let entity = Entity::new("counter", format!("c{id}"));
        session.command(&entity, "add", "1").await.expect("an answer from another host");
    }

    // Once the host can compile, it gets its share again.
    cluster.term(2).expect("term");
    cluster.home(2).set("[compiler]\nmax-memory = \"1 GiB\"").expect("settings");
    cluster.start_node(2).expect("start");
    let again = |view: &View| view.owned_by(&name) > 0;
    cluster.wait("it owns shards again", again).await.expect("its share");
    client.close().await;
    cluster.stop().expect("stop");
}
