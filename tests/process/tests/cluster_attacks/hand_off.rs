//! Hand-offs, with a kill at each of their steps.
//!
//! A step that takes a millisecond is prolonged by cutting the network in the one direction that the step needs to
//! complete. So the kill happens within the step without relying on timing. Node `n1` has the store, `n2` or `n5` is
//! the manager, and `n3` and `n4` have the shards; one of these two is drained. The rounds kill different nodes in
//! turn: the manager, the old owner, the new owner.

use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_client::ShardState;
use ostraca_process_tests::attack::{AttackRun, FaultTiming};
use ostraca_process_tests::cluster::{Options, Stores, View};
use ostraca_process_tests::proxy::{Endpoint, Rule};

use crate::named;

const STORE: usize = 0;

/// The nodes that take part.
struct Parts {
    manager: usize,
    /// The node that is drained.
    owner: usize,
    /// The node that gets the owner's shards.
    heir: usize,
}

impl Parts {
    /// The node that is killed in this round.
    fn victim(&self, round: u64) -> usize {
        [self.manager, self.owner, self.heir][round as usize % 3]
    }
}

fn options(name: &str) -> Options {
    let roles =
        ["store,gateway", "manager,gateway", "host,gateway", "host,gateway", "manager,gateway"];
    Options::new(name, &roles)
}

/// How a step is prolonged, and how a test detects that it is in progress.
struct Step {
    name: &'static str,
    /// Called before the drain.
    prepare: fn(&AttackRun, &Parts),
    /// Detects the step from the store node's view: the earlier and current views, the owner and the heir.
    passed: fn(&View, &View, &str, &str) -> bool,
    /// How long to wait after detection, for a condition of the step that no row shows.
    then: Duration,
}

fn one_way(scene: &AttackRun, from: usize, to: usize) {
    scene.cluster.network().set(Endpoint::Node(from), Endpoint::Node(to), Rule::CUT);
}

fn begun(_: &View, now: &View, owner: &str, _: &str) -> bool {
    now.shards.iter().any(|it| it.owner == owner && it.state() == ShardState::Moving)
}

async fn killed_in(step: Step, stores: Stores) {
    let scene = AttackRun::set(&options(step.name).on(stores)).await.expect("cluster");
    let rounds = scene.rounds(named(step.name, stores), async |scene| {
        let view = scene.cluster.wait_settled().await?;
        let manager = view.manager().and_then(|name| scene.cluster.place(name));
        let manager = manager.context("no manager")?;
        let owner = 2 + scene.round as usize % 2;
        let parts = Parts { manager, owner, heir: 5 - owner };
        let (name, heir) = (scene.cluster.name(parts.owner), scene.cluster.name(parts.heir));
        (step.prepare)(scene, &parts);
        scene.request_drain(&name, false).await?;
        let inside = seen(scene, |now| (step.passed)(&view, now, &name, &heir)).await?;
        tokio::time::sleep(step.then).await;
        let victim = parts.victim(scene.round);
        scene.inject(|cluster, _| cluster.kill_9(victim)).await?;
        let still = scene.cluster.view_of(STORE).await?;
        let still = (step.passed)(&view, &still, &name, &heir);
        scene.cluster.network().heal();
        if victim == parts.heir {
            // It is the only node that can take over the shards.
            scene.cluster.start_node(victim)?;
        }
        // The hand-off continues without the dead node: the drain completes, or the drained node is dead and owns
        // nothing.
        scene
            .cluster
            .wait("the drained node owns nothing", |view| view.owned_by(&name) == 0)
            .await?;
        scene.cluster.wait_settled().await?;
        if victim != parts.owner {
            scene.request_drain(&name, true).await?;
        }
        Ok(match inside && still {
            true => FaultTiming::InStep,
            false => FaultTiming::Missed(format!("the step had ended: {}", step.name)),
        })
    });
    rounds.await.expect("rounds");
}

/// Polls the store's node for a few seconds, until the condition holds.
async fn seen(scene: &mut AttackRun, found: impl Fn(&View) -> bool) -> Result<bool> {
    for _ in 0..200 {
        if found(&scene.cluster.view_of(STORE).await?) {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_after_the_intent_before_the_owner_is_notified() {
    let step = Step {
        name: "intent-written",
        // The owner receives neither begin-hand-off nor hand-off.
        prepare: |scene, parts| one_way(scene, parts.manager, parts.owner),
        passed: begun,
        then: Duration::ZERO,
    };
    killed_in(step, Stores::Node).await;
}

on_each_store!(a_kill_after_begin_hand_off_before_all_acks);

async fn a_kill_after_begin_hand_off_before_all_acks(stores: Stores) {
    let step = Step {
        name: "begin-said",
        // The manager waits for the heir's acknowledgement, for at most one second.
        prepare: |scene, parts| one_way(scene, parts.heir, parts.manager),
        passed: begun,
        then: Duration::from_millis(100),
    };
    killed_in(step, stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_after_the_owner_stops_before_the_manager_knows() {
    let step = Step {
        name: "stopped",
        prepare: |scene, parts| one_way(scene, parts.owner, parts.manager),
        passed: begun,
        // Time for the acknowledgements' deadline and the owner's stop.
        then: Duration::from_millis(1_700),
    };
    killed_in(step, Stores::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_after_the_new_owner_is_written_before_it_claims() {
    let step = Step {
        name: "owner-written",
        // The heir receives neither its row nor a response from the store.
        prepare: |scene, parts| {
            one_way(scene, STORE, parts.heir);
            one_way(scene, parts.manager, parts.heir);
        },
        passed: |before, now, _, heir| now.owned_by(heir) > before.owned_by(heir),
        then: Duration::ZERO,
    };
    killed_in(step, Stores::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hand_off_completes_while_its_owner_is_paused() {
    let scene = AttackRun::set(&options("owner-sleeps")).await.expect("cluster");
    let rounds = scene.rounds("hand-off told, the owner paused", async |scene| {
        let view = scene.cluster.wait_settled().await?;
        let manager = view.manager().and_then(|name| scene.cluster.place(name));
        let manager = manager.context("no manager")?;
        let owner = 2 + scene.round as usize % 2;
        let (name, even) = (scene.cluster.name(owner), scene.round.is_multiple_of(2));
        one_way(scene, owner, manager);
        scene.request_drain(&name, false).await?;
        let inside = seen(scene, |now| begun(&view, now, &name, "")).await?;
        scene
            .inject(|cluster, _| {
                cluster.pause(owner)?;
                if even { cluster.kill_9(manager) } else { Ok(()) }
            })
            .await?;
        scene.cluster.network().heal();
        scene
            .cluster
            .wait("the drained node owns nothing", |view| view.owned_by(&name) == 0)
            .await?;
        scene.cluster.resume(owner)?;
        // The owner's earlier commits and replies are still in transit; then it registers a new incarnation.
        tokio::time::sleep(Duration::from_millis(500)).await;
        scene.cluster.wait("the owner lives again", |view| view.is_alive(&name)).await?;
        scene.cluster.wait_settled().await?;
        scene.request_drain(&name, true).await?;
        Ok(if inside {
            FaultTiming::InStep
        } else {
            FaultTiming::Missed("no hand-off was observed".into())
        })
    });
    rounds.await.expect("rounds");
}
