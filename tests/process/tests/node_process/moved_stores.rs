//! The stores of a stopped cluster move from its node to PostgreSQL and back while clients wait (R26, promises 1 to 5):
//! what was acknowledged is there, and what was in doubt runs once.

use std::process::Output;
use std::time::Duration;

use ostraca_client::Client;
use ostraca_process_tests::attack::{Load, LoadSize, judge};
use ostraca_process_tests::cluster::impatient;
use ostraca_process_tests::node::refused_start;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::proxy::Network;
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_test_servers::postgres::Server;

fn store_copy(home: &NodeDir, from: &str, to: &str) -> Output {
    home.command(&["store", "copy", "--from", from, "--to", to]).expect("it runs")
}

fn copied(home: &NodeDir, from: &str, to: &str) -> String {
    let out = store_copy(home, from, to);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[track_caller]
fn copy_refused(home: &NodeDir, from: &str, to: &str, code: &str, text: &str) {
    let out = store_copy(home, from, to);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(stderr.contains(code) && stderr.contains(text), "no {code}, {text}: {stderr}");
    assert!(!out.status.success());
}

/// Waits until this many more messages have ended.
async fn progress(load: &Load, more: u64) {
    let done = load.done();
    while load.done() < done + more {
        load.failed().expect("final outcomes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_a_cluster_moves_to_postgres_and_back_under_load() {
    let server = Server::start("");
    let database = server.database();
    let url = server.url(&database);
    let home = NodeDir::init_as("moving", &["--cluster", "moving"], |_| {}).expect("init");
    let mut node = NodeProcess::start(&home).expect("start");
    let network = Network::before(node.address).expect("network");
    let profile = home.profile(network.front(0)).expect("profile");
    let client = Client::connect_with(profile, impatient()).await.expect("connect");
    for example in ["counter", "account"] {
        deploy_example(&client, example).await.expect("deploy");
    }
    let clients = [client];
    let size = LoadSize { counters: 6, accounts: 4, ..LoadSize::USUAL };
    let load = Load::start(&clients, 7, 1, size);
    progress(&load, 300).await;

    // A running node is never copied from, nor is anything copied onto it.
    let config = home.config().display().to_string();
    copy_refused(&home, &config, &url, "store-in-use", "stop that process");
    node.kill_9().expect("kill");
    let text = copied(&home, &config, &url);
    assert!(text.contains("moved the cluster moving to PostgreSQL at 127.0.0.1"), "{text}");
    assert!(text.contains(&format!("[postgres]\nurl = \"{url}\"")), "{text}");
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert!(exit == 7 && stderr.contains("store-moved"), "{stderr}");
    copy_refused(&home, &config, &url, "store-exists", "choose another database");

    let embedded = std::fs::read_to_string(home.config()).expect("read");
    home.set(&format!("[postgres]\nurl = {url:?}")).expect("set");
    node = NodeProcess::start(&home).expect("start on the database");
    progress(&load, 500).await;
    let other = NodeDir::init("elsewhere").expect("init");
    let places = [&url, &other.config().display().to_string()];
    copy_refused(&home, places[0], places[1], "store-in-use", "nodes of the cluster are running");

    node.kill_9().expect("kill");
    // The server may still carry out what the node has sent.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while server.sql_on(&database, others).expect("the server's connections").trim() != "0" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    copy_refused(&home, places[0], places[1], "invalid-value", "belongs to the cluster moving");
    std::fs::write(home.config(), embedded).expect("written");
    copy_refused(&home, &url, &config, "directory-not-empty", "is not empty");
    std::fs::rename(home.store(), home.dir().join("store-before")).expect("moved away");
    let text = copied(&home, &url, &config);
    assert!(text.contains("remove the section `postgres`"), "{text}");
    node = NodeProcess::start(&home).expect("start on its own store");
    progress(&load, 500).await;

    let recorder = load.end().await.expect("every message is answered");
    let summary = judge(&recorder, &clients[0].session()).await.expect("no violation");
    assert!(summary.results > 1000 && summary.entities == 10, "{summary:?}");
    for client in clients {
        client.close().await;
    }
    assert!(node.stop().expect("stop").success());
}
