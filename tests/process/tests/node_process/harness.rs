//! Tests the harness itself: its load survives a kill, and its checks detect violations.

use ostraca_client::{Client, Entity};
use ostraca_process_tests::attack::{Load, LoadSize, judge};
use ostraca_process_tests::cluster::impatient;
use ostraca_process_tests::history::now;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::probe_load::ProbeLoad;
use ostraca_process_tests::proxy::{Endpoint, Network, Rule};
use ostraca_process_tests::{NodeDir, NodeProcess};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_survives_a_kill_and_its_check_finds_a_violation() {
    let home = NodeDir::init("harness").expect("init");
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
    while load.done() < 300 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    network.both(Endpoint::Clients, Endpoint::Node(0), Rule::BAD);
    let at = now();
    node.kill_9().expect("kill");
    tokio::time::sleep(Duration::from_millis(150)).await;
    let doubtful = load.unanswered_since(at);
    assert!(doubtful >= 32, "{doubtful} in doubt");
    assert_eq!(load.unanswered_at(0, at), doubtful);
    node = NodeProcess::start(&home).expect("start again");
    let done = load.done();
    while load.done() < done + 500 {
        load.failed().expect("final outcomes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    network.heal();
    let recorder = load.end().await.expect("every message is answered");
    let session = clients[0].session();
    let summary = judge(&recorder, &session).await.expect("no violation");
    assert!(summary.refusals > 0 && summary.results > 500 && summary.entities == 10, "{summary:?}");
    assert!(summary.queries > 300, "{summary:?}");
    // A command that the history does not contain.
    session.command(&Entity::new("account", "r1-0"), "deposit", "5").await.expect("answer");
    let error = judge(&recorder, &session).await.expect_err("a violation").to_string();
    assert!(error.contains("account/r1-0 holds"), "{error}");
    for client in clients {
        client.close().await;
    }
    assert!(node.stop().expect("stop").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_load_shows_a_pause_to_every_entity() {
    let home = NodeDir::init("pulse").expect("init");
    let node = NodeProcess::start(&home).expect("start");
    let network = Network::before(node.address).expect("network");
    let profile = home.profile(network.front(0)).expect("profile");
    let client = Client::connect_with(profile, impatient()).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let ids: Vec<_> = (0..40).map(|n| format!("beat-{n}")).collect();
    let mut pulse = ProbeLoad::start(&[&client], &ids);
    while pulse.answered_since(Instant::now() - Duration::from_secs(60)) < ids.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (from, pause) = (Instant::now(), Duration::from_millis(400));
    network.set(Endpoint::Node(0), Endpoint::Clients, Rule::CUT);
    tokio::time::sleep(pause).await;
    network.heal();
    let healed = Instant::now();
    while pulse.answered_since(healed) < ids.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let longest: Vec<_> = pulse.longest(from, Instant::now()).into_iter().flatten().collect();
    assert_eq!(longest.len(), ids.len());
    assert!(longest.iter().all(|took| *took >= pause / 2), "{longest:?}");
    let done = pulse.end().await.expect("answered");
    let mut sum = 0;
    for id in &ids {
        let answer = client.session().query(&Entity::new("counter", &**id), "get", "").await;
        sum += serde_json::from_slice::<u64>(&answer.expect("answer").body).expect("number");
    }
    assert_eq!(sum, done);
    client.close().await;
    node.stop().expect("stop");
}
