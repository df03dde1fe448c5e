//! Health checks by a program, `deploy/health-check/has-ended`: it hastens the death of a process that has ended, and
//! no other (S7, S12, R9).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ostraca_process_tests::artifacts;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, TIMEOUT};
use ostraca_process_tests::proxy::{Endpoint, Rule};
use rand::Rng;
use tempfile::NamedTempFile;

/// What of a lease may have passed when a node is paused, with a reserve: it renews every 750 ms.
const RENEWAL: Duration = Duration::from_millis(1_500);

/// A cluster whose nodes ask the program, and a file with the nodes and incarnations that it was asked about.
fn asking(name: &str, lease: Duration) -> (Options, NamedTempFile) {
    let asked = NamedTempFile::new().expect("a file");
    let program = artifacts::root().join("deploy/health-check/has-ended");
    let script = r#"echo "$2 $3" >> "$1"; exec /bin/sh "$0""#;
    let settings = format!(
        "lease = \"{} s\"\n[health-check]\nkind = \"command\"\ncommand = [\"/bin/sh\", \"-c\", '{script}', {:?}, {:?}]",
        lease.as_secs(),
        program,
        asked.path(),
    );
    (Options { settings, ..Options::three(name) }, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s7_a_command_that_knows_ends_a_killed_hosts_lease_early() {
    // Long, so that a death by the lease would be late.
    let lease = Duration::from_secs(12);
    let (options, asked) = asking("command-kill", lease);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let killed = scene.rounds("kill -9 of a host, known by a command", async |scene| {
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        let killed = Instant::now();
        scene.inject(|cluster, _| cluster.kill_9(host)).await?;
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        // It had renewed its lease less than a quarter of the lease before.
        let after = killed.elapsed();
        ensure!(after < lease * 3 / 4, "its lease may have lapsed: {after:?}");
        let asked = fs::read_to_string(asked.path())?;
        ensure!(asked.contains(&format!("{name} ")), "the program was asked about {asked:?}");
        eprintln!("{name}'s shards have other owners after {after:.1?}");
        Ok(FaultTiming::InStep)
    });
    killed.await.expect("rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s7_a_paused_host_keeps_its_lease_although_it_is_checked() {
    let lease = Duration::from_secs(8);
    let (options, asked) = asking("command-pause", lease);
    let scene = AttackRun::set(&options).await.expect("cluster");
    let paused = scene.rounds("SIGSTOP of a host, unknown to a command", async |scene| {
        let host = scene.rng.random_range(1..3);
        let name = scene.cluster.name(host);
        fs::write(asked.path(), "")?;
        let paused = Instant::now();
        scene.inject(|cluster, _| cluster.pause(host)).await?;
        loop {
            let view = scene.cluster.view().await;
            if paused.elapsed() > lease - RENEWAL {
                break;
            }
            if let Ok(view) = view {
                let (owned, alive) = (view.owned_by(&name), view.is_alive(&name));
                let after = paused.elapsed();
                ensure!(owned > 0 && alive, "{name} lost its shards after {after:?}: {view}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let asked = fs::read_to_string(asked.path())?;
        ensure!(asked.contains(&format!("{name} ")), "the program was asked about {asked:?}");
        // Nor does the check delay what follows.
        scene.cluster.wait("others own its shards", |view| view.owned_by(&name) == 0).await?;
        let after = paused.elapsed();
        ensure!(after < lease * 3, "its lease lapsed long ago: {after:?}");
        scene.cluster.wait_settled().await?;
        scene.cluster.resume(host)?;
        Ok(FaultTiming::InStep)
    });
    paused.await.expect("rounds");
}

/// Senders tell the manager, which asks the program, although both nodes renew their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s12_a_node_that_another_cannot_reach_is_checked() {
    let (options, asked) = asking("command-cut", Duration::from_secs(12));
    let mut scene = AttackRun::set(&options).await.expect("cluster");
    // Only messages between these two are in doubt.
    scene.least = 1;
    let cut = scene.rounds("a cut between two hosts, with a command", async |scene| {
        fs::write(asked.path(), "")?;
        let inject = scene.inject(|cluster, _| {
            cluster.network().both(Endpoint::Node(1), Endpoint::Node(2), Rule::CUT);
            Ok(())
        });
        inject.await?;
        let began = Instant::now();
        let is_asked = |text: &str| ["n2 ", "n3 "].iter().any(|name| text.contains(name));
        while !is_asked(&fs::read_to_string(asked.path())?) {
            ensure!(began.elapsed() < TIMEOUT, "the program was not asked");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let view = scene.cluster.view().await?;
        ensure!(["n2", "n3"].iter().all(|name| view.is_alive(name)), "they renew: {view}");
        Ok(FaultTiming::InStep)
    });
    cut.await.expect("rounds");
}
