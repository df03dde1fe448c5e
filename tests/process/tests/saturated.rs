//! A store on a slow disk is busy with every kind of work: no lease is lost, since rows have priority over commits.
#![allow(clippy::print_stdout, reason = "the test prints a summary of its load")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ostraca_client::{CallOptions as Call, Client, EntitiesRequest, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node_dir::deploy_guest;
use tokio::task::JoinSet;

/// The lease that every node is configured with.
const LEASE_MS: u64 = 3_000;
/// Additional delay of each sync of the store.
const SLOW: Duration = Duration::from_millis(35);

/// Numbers of messages that were answered and that were not.
#[derive(Default)]
struct Load {
    end: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

/// Sends to `entities` entities in rotation, with `at_once` messages in flight.
struct Sender {
    method: &'static str,
    body: String,
    entities: u64,
    at_once: u64,
}

impl Sender {
    async fn run(self, load: Arc<Load>, client: Arc<Client>, name: String) {
        let (session, mut sent) = (client.session(), 0);
        let options = Call { kind: MessageKind::Unspecified, ..Call::default() };
        while !load.end.load(Ordering::Relaxed) {
            let calls = (0..self.at_once).map(|_| {
                sent += 1;
                let entity = Entity::new("misbehaving", format!("{name}-{}", sent % self.entities));
                let (session, body, options) = (session.clone(), self.body.clone(), &options);
                async move { session.send(&entity, self.method, body, options).await }
            });
            for answer in futures::future::join_all(calls).await {
                let count = if answer.is_ok() { &load.done } else { &load.failed };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_store_on_slow_syncs_loses_no_lease() {
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok());
    let loaded = Duration::from_secs(seconds.unwrap_or(10));
    let settings = format!(
        "lease = \"{LEASE_MS} ms\"\n[store]\ncache-bytes = \"16 MiB\"\n[guests]\nmax-live-instances = 300\n"
    );
    let slow_syncs = Some(SLOW);
    let options = Options { proxied: false, settings, slow_syncs, ..Options::three("saturated") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let mut clients = Vec::new();
    for node in 0..cluster.len() {
        clients.push(Arc::new(cluster.client(node).await.expect("a client")));
        cluster.watcher(node).await.expect("a watcher");
    }
    let limits =
        "[limits]\nturn-time = \"2 s\"\nturn-keys = 10000\nstate = \"16 MiB\"\nkeys = 100000\n";
    deploy_guest(&clients[0], "misbehaving", limits).await.expect("deploy");

    let (load, mut tasks) = (Arc::new(Load::default()), JoinSet::new());
    for (number, client) in clients.iter().enumerate() {
        let mut keep = |what: &str, sender: Sender| {
            tasks.spawn(sender.run(load.clone(), client.clone(), format!("{what}-{number}")));
        };
        let body = |text: &str| text.to_owned();
        // Small turns; turns with many keys; large values; entities that are loaded and dropped.
        let add = body("{\"key\":\"n\",\"by\":1}");
        keep("add", Sender { method: "add", body: add.clone(), entities: 50, at_once: 100 });
        let keys = body("{\"from\":0,\"keys\":5000}");
        keep("keys", Sender { method: "many_keys", body: keys, entities: 8, at_once: 8 });
        let fill = body("{\"keys\":4,\"bytes\":500000}");
        keep("fill", Sender { method: "fill", body: fill, entities: 4, at_once: 4 });
        keep("cold", Sender { method: "add", body: add, entities: 5_000, at_once: 50 });
        // Scans of all heads.
        let (load, client) = (load.clone(), client.clone());
        tasks.spawn(async move {
            while !load.end.load(Ordering::Relaxed) {
                let (r#type, limit) = ("misbehaving".into(), 1_000);
                let request = EntitiesRequest { r#type, limit, ..EntitiesRequest::default() };
                drop(client.entities(request).await);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let (began, mut oldest) = (Instant::now(), 0);
    while began.elapsed() < loaded {
        for node in 0..cluster.len() {
            let watcher = cluster.watcher(node).await.expect("it answers");
            let Ok(status) = watcher.status().await else { continue };
            oldest =
                oldest.max(status.cluster_status.map_or(0, |overview| overview.since_renewal_ms));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    load.end.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("a sender");
    }
    let (done, failed) = (load.done.load(Ordering::Relaxed), load.failed.load(Ordering::Relaxed));
    println!("{loaded:?}: {done} messages done, {failed} not; oldest lease {oldest} ms");
    assert!(done > 100, "the load is too small");
    assert!(oldest < LEASE_MS, "a lease was {oldest} ms old");
    cluster.check_no_lease_lapsed().await.expect("no lease was lost");
    for client in clients.into_iter().filter_map(Arc::into_inner) {
        client.close().await;
    }
    cluster.stop().expect("stop");
}
