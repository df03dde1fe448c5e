//! Tests that a whole node ends after a panic in its own code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ostraca_config::config::ClusterSettings;

use super::*;
use crate::{InitOptions, init};

/// Timeout for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_inside_the_router_ends_the_node() {
    let home = tempfile::tempdir().expect("a directory");
    let options = InitOptions {
        cluster_name: "test".into(),
        node: "n1".into(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        shards: 8,
        settings: ClusterSettings::default(),
        postgres: None,
        rows: None,
    };
    init(home.path(), &options).expect("a new node");
    let config = Config::load(&home.path().join("ostraca.toml")).expect("a configuration");
    let mut node = Node::start(config).await.expect("a node that serves");

    let gateway = node.gateway.clone();
    catch_unwind(AssertUnwindSafe(|| gateway.panic())).expect_err("the panic");
    let ended = tokio::time::timeout(TIMEOUT, node.wait_for_failure()).await.expect("it ends");
    assert!(matches!(ended, NodeError::UnexpectedExit(_)), "{ended}");

    // Later messages are dropped, and stopping does not wait for the router.
    gateway.set_local_member(None);
    assert_eq!(gateway.router_stats().in_flight, 0);
    tokio::time::timeout(TIMEOUT, node.stop(Duration::from_secs(1))).await.expect("it stops");
}
