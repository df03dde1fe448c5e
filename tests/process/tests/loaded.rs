//! Leases have a dedicated thread and dedicated connections: no load of guests or messages delays a renewal (R8).
#![allow(clippy::print_stdout, reason = "the test prints a summary of its load")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ostraca_client::{CallOptions as Call, Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node_dir::deploy_guest;
use tokio::task::JoinSet;

/// Duration of the load: several leases.
const LOADED: Duration = Duration::from_secs(12);
/// The lease that every node is configured with.
const LEASE_MS: u64 = 3_000;
/// Size of the larger messages and replies in bytes.
const LARGE: usize = 300_000;

/// Counts of the load.
#[derive(Default)]
struct Load {
    end: AtomicBool,
    /// Turns that ran until they were interrupted.
    spun: AtomicU64,
    /// Total size of messages and replies in bytes.
    bytes: AtomicU64,
}

/// Keeps a few of these calls in flight, to a separate entity.
fn keep(
    tasks: &mut JoinSet<()>,
    load: &Arc<Load>,
    client: &Client,
    id: String,
    method: &'static str,
    body: String,
) {
    let (load, session) = (load.clone(), client.session());
    tasks.spawn(async move {
        let entity = Entity::new("misbehaving", id);
        let options = Call { kind: MessageKind::Unspecified, ..Call::default() };
        while !load.end.load(Ordering::Relaxed) {
            let calls = (0..4).map(|_| session.send(&entity, method, body.clone(), &options));
            for answer in futures::future::join_all(calls).await {
                // Only the cost of these calls matters here, not their outcomes.
                match answer {
                    Ok(answer) => {
                        let bytes = (body.len() + answer.body.len()) as u64;
                        load.bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                    Err(_) => {
                        load.spun.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_load_of_guests_or_messages_delays_a_renewal() {
    let settings = format!("lease = \"{LEASE_MS} ms\"");
    let options = Options { proxied: false, settings, ..Options::three("loaded") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let mut clients = Vec::new();
    for node in 0..cluster.len() {
        clients.push(cluster.client(node).await.expect("a client"));
        // Watchers connect before the load starts: under load, connecting would take longer than their timeout.
        cluster.watcher(node).await.expect("a watcher");
    }
    deploy_guest(&clients[0], "misbehaving", "").await.expect("deploy");

    let (load, mut tasks) = (Arc::new(Load::default()), JoinSet::new());
    let large = format!("\"{}\"", "k".repeat(LARGE));
    for number in 0..24 {
        let client = &clients[number % clients.len()];
        keep(&mut tasks, &load, client, format!("s{number}"), "spin_for_ever", String::new());
        keep(&mut tasks, &load, client, format!("r{number}"), "reply", LARGE.to_string());
        keep(&mut tasks, &load, client, format!("q{number}"), "read", large.clone());
    }
    let used = |cluster: &Cluster| -> Duration {
        let of = |node| cluster.process(node).expect("it runs").processor_time().expect("a time");
        (0..cluster.len()).map(of).sum()
    };
    let (before, began) = (used(&cluster), Instant::now());
    let mut oldest = 0;
    while began.elapsed() < LOADED {
        for node in 0..cluster.len() {
            let watcher = cluster.watcher(node).await.expect("it answers");
            // A status that arrives late is requested again; the events show every lapse.
            let Ok(status) = watcher.status().await else { continue };
            let age = status.cluster_status.map_or(0, |overview| overview.since_renewal_ms);
            oldest = oldest.max(age);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let used = used(&cluster) - before;
    load.end.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("a sender");
    }
    let (spun, mib) = (load.spun.load(Ordering::Relaxed), load.bytes.load(Ordering::Relaxed) >> 20);
    println!(
        "{used:.1?} of processors, {spun} turns interrupted, {mib} MiB; oldest lease {oldest} ms"
    );
    assert!(used > LOADED / 4 && spun > 50 && mib > 20, "the load is too small");

    assert!(oldest < LEASE_MS, "a lease was {oldest} ms old");
    cluster.check_no_lease_lapsed().await.expect("no lease was lost");
    for client in clients {
        client.close().await;
    }
    cluster.stop().expect("stop");
}
