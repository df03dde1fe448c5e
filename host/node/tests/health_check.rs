//! A health check that the program itself brings (S7).

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{config, joined, make_with};
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_client::NodeStatus;
use ostraca_node::config::ClusterSettings;
use ostraca_node::health_check::{CheckOutcome, HealthCheck, Suspect};
use ostraca_node::{Node, NodeParts};
use tokio::runtime::Runtime;

/// Long, so that a death by the lease would be late.
const LEASE: Duration = Duration::from_secs(30);

/// Says of every process that it has ended, and keeps which ones it was asked about.
#[derive(Default)]
struct Supplied(Mutex<Vec<Suspect>>);

impl HealthCheck for Supplied {
    fn check<'a>(&'a self, suspect: &'a Suspect) -> BoxFuture<'a, CheckOutcome> {
        self.0.lock().expect("suspects").push(suspect.clone());
        async { CheckOutcome::Ended { how: "the test has ended it".into() } }.boxed()
    }
}

async fn start(home: &Path, check: &Arc<Supplied>) -> Node {
    let parts = NodeParts { health_check: Some(check.clone()), ..NodeParts::default() };
    Node::start_with(config(home), parts).await.expect("a node that serves")
}

#[test]
fn s7_a_supplied_check_ends_a_lost_nodes_lease_early() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("n1");
    let cluster = make_with(&home, ClusterSettings { lease: LEASE, ..ClusterSettings::default() });
    let check = Arc::new(Supplied::default());
    let (runtime, lost) = (Runtime::new().expect("threads"), Runtime::new().expect("threads"));
    runtime.block_on(async {
        let first = start(&home, &check).await;
        let second = joined(dir.path(), &first, &cluster);
        let supplied = check.clone();
        let second = lost.spawn(async move { start(&second, &supplied).await }).await;
        let client = common::client(&first, &cluster).await;
        // It serves, but its row may not have reached the first node yet.
        let known = loop {
            let nodes = client.nodes().await.expect("the nodes").nodes;
            if let Some(node) = nodes.iter().find(|node| node.name == "n2") {
                break node.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(known.status(), NodeStatus::Live);
        assert!(check.0.lock().expect("suspects").is_empty(), "nobody is silent");

        // What remains of the node renews nothing and answers nobody.
        let start = Instant::now();
        drop(second.expect("a node"));
        lost.shutdown_background();
        loop {
            let nodes = client.nodes().await.expect("the nodes").nodes;
            let is_live = |node: &&ostraca_client::NodeState| node.status() == NodeStatus::Live;
            if !nodes.iter().filter(is_live).any(|node| node.name == "n2") {
                break;
            }
            assert!(start.elapsed() < LEASE * 3 / 4, "its lease alone would end it");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let suspects = check.0.lock().expect("suspects").clone();
        let suspect = suspects.first().expect("a check");
        assert_eq!(&*suspect.member.node.0, "n2");
        assert_eq!(suspect.incarnation(), known.incarnation, "as operators see it");
        let process = suspect.host.as_ref().expect("described in the row");
        assert_eq!(process.pid, std::process::id());
        client.close().await;
        first.stop(Duration::from_secs(5)).await;
    });
}
