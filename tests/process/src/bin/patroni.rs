//! Kills of a PostgreSQL primary under Patroni, for `make soak`: two servers with synchronous replication, on the etcd that
//! also has the cluster's rows. Every other round the machine of the primary fails, with Patroni; in the others only
//! PostgreSQL ends. `ROUNDS`, `SEED` and `SOAK` are those of all attacks; `make soak` sets `ROUNDS` to `PATRONI`.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Stores};

/// The longest time until Patroni has promoted the standby: its `ttl` is 20 s.
const PROMOTION: Duration = Duration::from_secs(60);
/// The longest time from the promotion until every shard is served. It is a bound of liveness; the times are printed.
const SERVICE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::three("patroni").on(Stores::PatroniAndEtcd);
    let scene = AttackRun::set(&options).await?;
    let report = scene.rounds("kill -9 of the primary under Patroni", round).await?;
    let slowest = report.served.iter().max().copied().unwrap_or_default();
    println!("served after each promotion within {slowest:.1?}");
    ensure!(slowest < SERVICE, "a shard was not served for {slowest:.1?} after a promotion");
    Ok(())
}

async fn round(scene: &mut AttackRun) -> Result<FaultTiming> {
    scene.cluster.patroni().wait_replicating();
    // The nodes ask each second whether commits wait for a standby.
    tokio::time::sleep(Duration::from_secs(3)).await;
    scene.wait_progress(500).await?;
    let machine = scene.round.is_multiple_of(2);
    let (mut killed, began) = (0, Instant::now());
    let kill = scene.inject(|cluster, _| {
        killed = cluster.patroni().kill_primary(machine);
        Ok(())
    });
    kill.await?;
    loop {
        match scene.cluster.patroni().primary() {
            Some(primary) if primary != killed => break,
            _ => ensure!(
                began.elapsed() < PROMOTION,
                "no promotion:\n{}",
                scene.cluster.patroni().log()
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let what = if machine { "the machine of the primary" } else { "PostgreSQL" };
    println!("{what} failed; the standby was promoted after {:.1?}", began.elapsed());
    scene.count_from_now();
    scene.wait_served().await.context("after the promotion")?;
    scene.cluster.patroni().restart(killed);
    Ok(FaultTiming::InStep)
}
