//! A node that must not start fails with a stable code and changes nothing.

use std::fs;
use std::path::Path;

use ostraca_client::{Client, Entity};
use ostraca_process_tests::node::refused_start;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_wire::proto::{ClusterConfigRequest, ClusterSetting};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("create");
    for entry in fs::read_dir(from).expect("read") {
        let path = entry.expect("entry").path();
        let target = to.join(path.file_name().expect("name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copy");
        }
    }
}

fn refused(home: &NodeDir, code: &str, expected_text: &str) {
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert!(stderr.contains(code), "no {code} in: {stderr}");
    assert!(stderr.contains(expected_text), "no {expected_text} in: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(exit, 7, "{stderr}");
}

async fn adds(node: &NodeProcess, home: &NodeDir, count: u64) {
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let (session, entity) = (client.session(), Entity::new("counter", "a"));
    for _ in 0..count {
        session.command(&entity, "add", "1").await.expect("answer");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_or_directory_in_use_is_named_and_stays_in_use() {
    let home = NodeDir::init("holder").expect("init");
    let node = NodeProcess::start(&home).expect("start");
    adds(&node, &home, 1).await;
    refused(&home, "store-in-use", &node.pid().to_string());
    let other = NodeDir::init("other").expect("init");
    other.set(&format!("listen = \"{}\"", node.address)).expect("set");
    refused(&other, "address-in-use", &node.address.port().to_string());
    adds(&node, &home, 1).await;
    // The other node's directory is unchanged: it starts at another address.
    other.set("listen = \"127.0.0.1:0\"").expect("set");
    NodeProcess::start(&other).expect("start").stop().expect("stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_foreign_store_is_refused_by_name() {
    let home = NodeDir::init("mine").expect("init");
    let theirs = NodeDir::init_as("theirs", &["--cluster", "theirs"], |_| {}).expect("init");
    let mine = home.dir().with_file_name("kept");
    fs::rename(home.store(), &mine).expect("move");
    refused(&home, "store-missing", "ostraca init");
    fs::create_dir(home.store()).expect("create");
    refused(&home, "store-empty", "ostraca init");
    fs::write(home.store().join("mine.txt"), "not a store").expect("write");
    refused(&home, "not-a-store", "store");
    fs::remove_dir_all(home.store()).expect("remove");
    fs::write(home.store(), "a file").expect("write");
    refused(&home, "store", "store");
    fs::remove_file(home.store()).expect("remove");
    // A directory in which not even root can write.
    std::os::unix::fs::symlink("/proc/self/task", home.store()).expect("link");
    refused(&home, "store", "store");
    fs::remove_file(home.store()).expect("remove");
    copy(&theirs.store(), &home.store());
    refused(&home, "store-cluster-mismatch", "theirs");
    fs::remove_dir_all(home.store()).expect("remove");
    fs::rename(&mine, home.store()).expect("move");
    let node = NodeProcess::start(&home).expect("its own store is accepted");
    adds(&node, &home, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_store_is_refused() {
    let home = NodeDir::init("back").expect("init");
    let node = NodeProcess::start(&home).expect("start");
    adds(&node, &home, 10).await;
    node.stop().expect("stop");
    let old = home.dir().with_file_name("old");
    copy(&home.store(), &old);
    let node = NodeProcess::start(&home).expect("start");
    adds(&node, &home, 10).await;
    node.stop().expect("stop");
    let new = home.dir().with_file_name("new");
    fs::rename(home.store(), &new).expect("move");
    copy(&old, &home.store());
    refused(&home, "store-rolled-back", "witness");
    fs::remove_dir_all(home.store()).expect("remove");
    fs::rename(&new, home.store()).expect("move");
    NodeProcess::start(&home).expect("the newer store is accepted").stop().expect("stop");
}

#[test]
fn a_bad_configuration_is_reported_and_nothing_starts() {
    let home = NodeDir::init("config").expect("init");
    home.set("lisen = \"127.0.0.1:0\"").expect("set");
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert_eq!(exit, 2, "{stderr}");
    assert!(
        stderr.contains("invalid-config") && stderr.contains("lisen") && stderr.contains("listen"),
        "{stderr}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_a_file_with_another_lease_is_refused_with_both_values() {
    let first = NodeDir::init_as("agreed", &["--set", "lease=10 s"], |_| {}).expect("init");
    let node = NodeProcess::start(&first).expect("start");
    let (address, ca) = (node.address.to_string(), first.dir().join("ca").display().to_string());
    let arguments = ["--node", "n2", "--listen", "127.0.0.1:0", "--join", &address, "--ca", &ca];
    let second = NodeDir::make("differs", &arguments, |_| {}).expect("init");
    second.set("lease = \"3 s\"").expect("set");
    refused(&second, "setting-mismatch", "`lease` is 3 s in this node's configuration, but 10 s");
    second.set("lease = \"10 s\"").expect("set");
    let other = NodeProcess::start(&second).expect("the values agree");

    // Change the lease for both nodes; each node's row shows which settings it uses.
    let profile = first.profile(node.address).expect("profile");
    let client = Client::connect(profile).await.expect("connect");
    let set = vec![ClusterSetting { name: "lease".into(), value: "2 s".into() }];
    let request = ClusterConfigRequest { changes: set, ..ClusterConfigRequest::default() };
    let changed = client.cluster(request).await.expect("changed");
    assert_eq!(changed.settings_revision, 2, "{changed:?}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let state = client.cluster(ClusterConfigRequest::default()).await.expect("the settings");
        if state.nodes.len() == 2
            && state.nodes.iter().all(|it| it.settings_revision == 2 && it.lease_ms == 2_000)
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "not all nodes adopted it: {state:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let bad = vec![ClusterSetting { name: "entities.lane-ttl".into(), value: "2 h".into() }];
    let refused = client
        .cluster(ClusterConfigRequest { changes: bad, ..ClusterConfigRequest::default() })
        .await;
    assert_eq!(refused.expect_err("it cannot be changed").code(), "invalid-cluster-setting");
    client.close().await;
    // The settings that the node uses now differ from its file.
    other.stop().expect("stop");
    let (_, stderr) = refused_start(&second.config()).expect("it ends");
    assert!(
        stderr.contains("setting-mismatch") && stderr.contains("10 s") && stderr.contains("2 s"),
        "{stderr}"
    );
    node.stop().expect("stop");
}
