//! One authority replaces another while clients send messages: nobody waits, and what the former authority has
//! certified is worthless afterwards.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use ostraca_client::{Client, Profile};
use ostraca_process_tests::attack::{Load, LoadSize, judge};
use ostraca_process_tests::cluster::{Options, impatient};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{Cluster, artifacts};
use ostraca_wire::identity::CertificateChain;

/// Waits until this many more messages have ended.
async fn progress(load: &Load, more: u64) {
    let done = load.done();
    while load.done() < done + more {
        load.failed().expect("final outcomes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs the program with a profile.
async fn run(profile: &Path, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(artifacts::ostraca().expect("built"));
    command.arg("--profile").arg(profile).args(arguments).stdin(Stdio::null());
    command.output().await.expect("it runs")
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refused(output: &Output, code: &str, text: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.starts_with(code), "{stderr}");
    assert!(stderr.contains(text), "no {text:?}: {stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_is_replaced_while_messages_flow() {
    let options = Options::three("authorities");
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let directory = tempfile::tempdir().expect("directory");
    let ca = cluster.home(0).dir().join("ca");
    let ca = ca.to_str().expect("text");
    let former = cluster.profile_file(0).expect("profile");
    let clients =
        [cluster.client(0).await.expect("client"), cluster.client(1).await.expect("client")];
    for example in ["counter", "account"] {
        deploy_example(&clients[0], example).await.expect("deploy");
    }
    let size = LoadSize { counters: 6, accounts: 4, ..LoadSize::USUAL };
    let load = Load::start(&clients, 11, 1, size);
    progress(&load, 200).await;

    refused(&run(&former, &["ca", "rotate", "--ca", ca, "--finish"]).await, "usage", "--finish");
    refused(&run(&former, &["ca", "rotate", "--ca", ca]).await, "usage", "--yes");
    // One node sleeps through it.
    cluster.term(2).expect("stopped");
    let text = succeeded(&run(&former, &["ca", "rotate", "--yes", "--ca", ca]).await);
    assert!(text.contains("new certificates: n1, n2\n"), "{text}");
    assert!(text.contains("renewed when they start: n3"), "{text}");
    progress(&load, 200).await;

    // The former authority's clients are served, and so are the new one's. The node that slept catches up.
    let issue = ["ca", "issue", "client", "admin", "--ca", ca, "--out"];
    let out = directory.path().to_str().expect("text");
    succeeded(&run(&former, &[&issue[..], &[out]].concat()).await);
    let next = directory.path().join("admin.toml");
    let mut profile = Profile::load(&next).expect("a profile");
    profile.addresses = cluster.profile(0).addresses;
    profile.save(&next).expect("saved");
    let finish = ["ca", "rotate", "--ca", ca, "--finish"];
    refused(&run(&former, &finish).await, "authority-in-use", "your own certificate");
    refused(&run(&next, &finish).await, "authority-in-use", "n3");
    cluster.start_node(2).expect("started");
    cluster.wait_settled().await.expect("settled");
    let text = succeeded(&run(&former, &["ca", "rotate", "--yes", "--ca", ca]).await);
    assert!(text.contains("new certificates: n1, n2, n3\n"), "{text}");
    for node in 0..3 {
        let own = std::fs::read_to_string(cluster.home(node).dir().join("node.pem"));
        let own = CertificateChain::from_pem(&own.expect("read")).expect("a certificate");
        let key = own.key_fingerprint();
        assert!(text.contains(&key), "{key}: {text}");
    }
    // A node keeps what it got, although its own files are as they were.
    cluster.term(1).expect("stopped");
    cluster.start_node(1).expect("started");
    cluster.wait_settled().await.expect("settled");
    progress(&load, 200).await;
    let recorder = load.end().await.expect("every message is answered");
    judge(&recorder, &clients[0].session()).await.expect("no violation");

    let connect = async |first: usize| {
        let addresses = cluster.profile(first).addresses;
        let profile = Profile { addresses, ..profile.clone() };
        Client::connect_with(profile, impatient()).await.expect("client")
    };
    let renewed = [connect(0).await, connect(1).await];
    let load = Load::start(&renewed, 12, 2, size);
    progress(&load, 200).await;
    let text = succeeded(&run(&next, &finish).await);
    assert!(text.contains("stops trusting it within 5 s"), "{text}");
    let closed = async {
        loop {
            let refused = clients[1].status().await.err().map(|error| error.to_string());
            if refused.is_some_and(|why| why.contains("unknown CA")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("shut out");
    refused(&run(&former, &["status"]).await, "unknown-ca", "ostraca ca issue");
    progress(&load, 200).await;
    // Every node comes back without what the former authority has certified.
    for node in [2, 1, 0] {
        cluster.term(node).expect("stopped");
        cluster.start_node(node).expect("started");
    }
    progress(&load, 200).await;
    let recorder = load.end().await.expect("every message is answered");
    judge(&recorder, &renewed[0].session()).await.expect("no violation");
    let audit = succeeded(&run(&next, &["audit"]).await);
    assert!(audit.contains("ca rotate") && audit.contains("certificate issued"), "{audit}");
    for client in clients.into_iter().chain(renewed) {
        client.close().await;
    }
    cluster.stop().expect("stop");
}
