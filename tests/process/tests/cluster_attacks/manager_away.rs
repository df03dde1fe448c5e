//! Without a manager, messages flow to every node as long as nothing must be assigned (promise 7).

use std::time::{Duration, Instant};

use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::Options;

/// Longer than two leases.
const AWAY: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_a_manager_messages_flow_between_all_nodes() {
    let roles = ["store,host,gateway", "manager", "host,gateway", "host,gateway"];
    let mut scene = AttackRun::set(&Options::new("manager-away", &roles)).await.expect("cluster");
    // The manager's node accepts no messages, so none need to be in doubt.
    scene.least = 0;
    scene.size.pace = Duration::from_millis(4);
    let rounds = scene.rounds("the manager away", async |scene| {
        let before = scene.cluster.wait_settled().await?;
        anyhow::ensure!(before.manager() == Some("n2"), "{before}");
        scene.inject(|cluster, _| cluster.kill_9(1)).await?;
        let injected_at = Instant::now();
        while injected_at.elapsed() < AWAY {
            scene.wait_progress(100).await?;
            // An entity of every shard, from every gateway.
            scene.wait_served().await?;
        }
        let view = scene.cluster.view_of(0).await?;
        anyhow::ensure!(view.moved_since(&before) == 0, "shards moved without a manager: {view}");
        anyhow::ensure!(view.manager().is_none() || view.nodes.term == before.nodes.term);
        Ok(FaultTiming::InStep)
    });
    rounds.await.expect("rounds");
}
