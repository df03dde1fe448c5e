//! Many more entities than may have an instance at the same time: all answer, and memory remains bounded.

use std::time::{Duration, Instant};

use ostraca_client::{Client, Entity};
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};

const ENTITIES: u64 = 50_000;
const LIVE: u64 = 1_000;
/// A generous limit: the store's page cache and the pool of instances, doubled.
const RESIDENT_MIB: u64 = 1_024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_entities_share_a_thousand_instances() {
    let home = NodeDir::init("capacity").expect("init");
    home.set(&format!("[guests]\nmax-live-instances = {LIVE}")).expect("set");
    let node = NodeProcess::start(&home).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let sessions: Vec<_> = (0..8).map(|_| client.session()).collect();
    let mut resident = Vec::new();
    let parts = 5;
    for part in 0..parts {
        let first = part * (ENTITIES / parts);
        let next =
            move |_, n: u64| (Entity::new("counter", format!("{}", first + n)), "1".to_owned());
        let until = Instant::now() + Duration::from_secs(300);
        let total = ENTITIES / parts;
        let done = closed_loop(&sessions, 16, "add", total, until, std::sync::Arc::new(next));
        let done = done.await.expect("every entity answers");
        assert_eq!(done.done, total);
        resident.push(node.resident_kib().expect("memory") / 1_024);
        let status = client.status().await.expect("status");
        let live = status.metrics["live_instances"];
        assert!(live > 0 && live <= LIVE, "{live} live instances, limit is {LIVE}");
    }
    println!("resident after each {} entities: {resident:?} MiB", ENTITIES / parts);
    assert!(resident.iter().all(|mib| *mib < RESIDENT_MIB), "{resident:?} MiB");
    // The first entities were passivated long ago.
    for n in (0..ENTITIES).step_by(1_000) {
        let entity = Entity::new("counter", format!("{n}"));
        let answer = sessions[0].query(&entity, "get", "").await.expect("answer");
        assert_eq!(answer.body, "1");
    }
    client.close().await;
    node.stop().expect("stop");
}
