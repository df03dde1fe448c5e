//! Hand-offs: drains, lost and repeated messages, and managers that die during one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, AllocationView, Average, BuiltinStrategy, Move};
use crate::ids::{NodeId, ShardId};
use crate::node::{ControlMessage, Event, HandOff, Mutation, Notice};
use crate::rows::{NodeStatus, Row, RowKey};

fn begun(cluster: &Cluster) -> bool {
    cluster.rows.values().any(
        |(row, _)| matches!(row, Row::Assignments(row) if row.assignments.iter().any(|s| s.hand_off.is_some())),
    )
}

fn drain(cluster: &mut Cluster, node: &str) {
    cluster.handle("a", Event::Drain { node: node.into(), draining: true });
}

#[test]
fn a_drained_node_gets_no_shard_until_the_drain_is_undone() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drain(&mut cluster, "c");
    cluster.run(5_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
    cluster.run(30_000);
    assert_eq!(cluster.spread().len(), 2);
    cluster.handle("b", Event::Drain { node: "c".into(), draining: false });
    cluster.run(5_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

#[test]
fn a_leaving_node_hands_over_its_shards_and_then_leaves() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.handle("a", Event::Leave);
    cluster.run(5_000);
    assert!(cluster.node("a").left);
    assert_eq!(cluster.status("a"), Some(NodeStatus::Left));
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
    assert_eq!(cluster.manager().0, "b", "a manager that left is replaced immediately");
}

#[test]
fn the_last_node_stops_its_shards_itself_and_leaves() {
    let mut cluster = Cluster::of(&["a"]);
    cluster.handle("a", Event::Leave);
    cluster.run(2_000);
    assert!(cluster.node("a").left);
    assert!(cluster.node("a").owns.is_empty());
}

#[test]
fn the_intent_precedes_begin_and_acks_precede_the_hand_off() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.sent_messages.clear();
    drain(&mut cluster, "c");
    cluster.run(3_000);
    assert_eq!(cluster.unannounced, [], "S15: the intent is written first");
    let mut acknowledged = BTreeSet::new();
    let mut stops = BTreeSet::new();
    for (from, to, message) in &cluster.sent_messages {
        match message {
            ControlMessage::BeginHandOffAck { id, .. } => {
                acknowledged.insert((from.clone(), *id));
            }
            ControlMessage::HandOff(HandOff { id, .. }) => {
                assert_eq!(*to, NodeId::from("c"));
                for node in ["b", "c"] {
                    let ack = (node.into(), *id);
                    assert!(acknowledged.contains(&ack), "A9: {node} has not acknowledged {id:?}");
                }
                stops.insert(*id);
            }
            _ => {}
        }
    }
    assert_eq!(stops.len(), 4, "each shard of c is handed over");
    let mut careless = Cluster::mutated(&["a", "b", "c"], Mutation::SkipWriteAhead);
    drain(&mut careless, "c");
    careless.run(3_000);
    assert_ne!(careless.unannounced, [], "the mutation takes effect");
    assert!(!cluster.node("b").held_back.is_empty(), "K24: other nodes buffer messages");
}

#[test]
fn lost_acknowledgements_delay_a_hand_off_and_do_not_end_it() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.lose = |message| {
        matches!(
            message,
            ControlMessage::BeginHandOffAck { .. } | ControlMessage::BeginHandOff { .. }
        )
    };
    drain(&mut cluster, "c");
    cluster.run(4_000);
    assert_eq!(cluster.spread().len(), 2, "R12: a missing acknowledgement is not a veto");
}

#[test]
fn the_loss_of_a_shard_stopped_message_is_repaired() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.lose = |message| matches!(message, ControlMessage::ShardStopped(_));
    drain(&mut cluster, "c");
    cluster.run(6_000);
    assert_eq!(cluster.spread().len(), 2, "R11: the next report shows what is missing");
}

/// Balances until [`STILL`] is set, and never after that.
#[derive(Debug)]
struct Once;

static STILL: AtomicBool = AtomicBool::new(false);

impl AllocationStrategy for Once {
    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        Average.allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        match STILL.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => Average.rebalance(view, limit),
        }
    }
}

/// Three hosts with four shards each.
fn three_hosts(strategy: fn() -> Box<dyn AllocationStrategy>) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settings.hand_off_timeout = 2_000;
    cluster.strategy = strategy;
    for node in ["a", "b", "c"] {
        cluster.start(node);
    }
    cluster.run(6_000);
    assert_eq!(cluster.spread()["c"], 4);
    cluster
}

/// `c` drains and is not asked to stop; then the drain is undone.
fn undo_a_drain(cluster: &mut Cluster) {
    cluster.lose = |message| matches!(message, ControlMessage::HandOff(_));
    drain(cluster, "c");
    cluster.run(1_500);
    assert_eq!(cluster.moving(), 4, "all four hand-offs are started");
    cluster.sent_messages.clear();
    cluster.handle("a", Event::Drain { node: "c".into(), draining: false });
}

/// The shards whose hand-off was announced to other nodes.
fn announced(cluster: &Cluster) -> BTreeSet<ShardId> {
    let begun = cluster.sent_messages.iter().filter_map(|(_, _, message)| match message {
        ControlMessage::BeginHandOff { hand_off, .. } => Some(hand_off.shard),
        _ => None,
    });
    begun.collect()
}

#[test]
fn an_unanswered_hand_off_leaves_the_shard_with_its_owner() {
    let mut cluster = three_hosts(|| Box::new(Once));
    STILL.store(true, Ordering::Relaxed);
    let (epochs, spread) = (cluster.epochs(), cluster.spread());
    undo_a_drain(&mut cluster);
    cluster.run(8_000);
    assert_eq!((cluster.moving(), cluster.epochs()), (0, epochs.clone()), "each stays where it is");
    cluster.lose = |_| false;
    cluster.run(8_000);
    let failed = |notice: &&Notice| matches!(notice, Notice::HandOffFailed { .. });
    assert_eq!(
        cluster.node("a").notices.iter().filter(failed).count(),
        4,
        "each hand-off is abandoned once"
    );
    assert_eq!(announced(&cluster), BTreeSet::new(), "a revoked drain starts no further hand-offs");
    assert_eq!((cluster.epochs(), cluster.spread()), (epochs, spread), "each stays where it is");
}

/// A shard that is being handed off counts toward its target: while the drain's hand-offs are in progress, balancing
/// counts `c` as empty and assigns it other hosts' shards immediately. Once they are abandoned, `c` has too many
/// shards.
#[test]
fn shards_are_even_again_after_a_drain_is_undone() {
    let mut cluster = three_hosts(|| BuiltinStrategy::Average.build());
    let (before, of_c) = (cluster.epochs(), cluster.node("c").owns.clone());
    undo_a_drain(&mut cluster);
    cluster.run(400);
    let after = cluster.epochs();
    assert!(of_c.keys().all(|shard| after[shard] == before[shard]), "no shard of c was stopped");
    assert!(cluster.node("c").owns.len() > of_c.len(), "c gets some from the others");
    let announced = announced(&cluster);
    assert!(
        !announced.is_empty() && announced.iter().all(|shard| !of_c.contains_key(shard)),
        "{announced:?}"
    );
    cluster.lose = |_| false;
    cluster.run(20_000);
    assert_eq!(cluster.moving(), 0);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

#[test]
fn a_new_manager_continues_the_hand_offs_of_the_old_one() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.node("c").stuck = true;
    drain(&mut cluster, "c");
    cluster.run(1_500);
    assert!(begun(&cluster));
    cluster.node("a").dead = true;
    cluster.sent_messages.clear();
    cluster.run(6_000);
    assert_eq!(cluster.manager().0, "b");
    assert!(begun(&cluster), "the intent survives the manager that wrote it");
    let again = cluster.sent_messages.iter().filter(|(from, to, message)| {
        (&*from.0, &*to.0) == ("b", "c")
            && matches!(message, ControlMessage::HandOff(HandOff { term: 2, id, .. }) if id.term == 1)
    });
    assert!(again.count() >= 6, "the owner is asked again, under the new term and the old id");
    cluster.unstick("c");
    cluster.run(3_000);
    assert_eq!(cluster.spread().into_iter().collect::<Vec<_>>(), [("b".into(), 12)]);
}

#[test]
fn an_owner_that_dies_in_a_hand_off_is_not_waited_for() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.node("c").stuck = true;
    drain(&mut cluster, "c");
    cluster.run(1_500);
    cluster.node("c").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn late_begin_hand_off_and_hand_off_messages_are_ignored() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drain(&mut cluster, "c");
    cluster.run(4_000);
    let old: Vec<_> = cluster.sent_messages.clone();
    for node in ["a", "b"] {
        assert!(
            !cluster.node(node).held_back.is_empty(),
            "{node} buffered messages before the hand-off"
        );
        cluster.node(node).held_back.clear();
    }
    let from = cluster.node("a").machine.member().expect("registered");
    let epochs = cluster.epochs();
    let mut stops = 0;
    for (_, to, message) in old {
        let received = |message| Event::Received { from: from.clone(), message };
        match message {
            ControlMessage::BeginHandOff { .. } => cluster.handle(&to.0, received(message)),
            // Sent to the current owner with its own incarnation: only the epoch is outdated.
            ControlMessage::HandOff(hand_off) => {
                let shard = hand_off.shard;
                let owners = ["a", "b"].map(|node| cluster.node(node).owns.get(&shard).cloned());
                let (_, owner) = owners.into_iter().flatten().next().expect("an owner");
                let incarnation = owner.incarnation;
                let message = ControlMessage::HandOff(HandOff { incarnation, ..hand_off });
                cluster.handle(&owner.node.0, received(message));
                stops += 1;
            }
            _ => {}
        }
    }
    assert!(stops >= 4, "{stops} late hand-offs");
    for node in ["a", "b"] {
        assert!(cluster.node(node).held_back.is_empty(), "R11: {node} buffers no messages");
        assert_eq!(cluster.node(node).owns.len(), 6, "R11: {node} stops no shard");
    }
    cluster.run(2_000);
    assert_eq!(cluster.epochs(), epochs);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn a_refused_claim_is_reassigned_above_the_current_epoch() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let stranger = cluster.node("a").machine.member().expect("registered");
    for shard in 1..=SHARDS {
        cluster.claims.insert(ShardId(shard), (crate::ids::Epoch(50), stranger.clone()));
    }
    cluster.node("b").dead = true;
    cluster.run(8_000);
    let spread = cluster.spread();
    assert_eq!(spread.values().sum::<usize>(), SHARDS as usize);
    assert!(cluster.epochs().values().any(|epoch| epoch.0 > 50), "R5");
    assert!(cluster.rows.contains_key(&RowKey::Assignments(0)));
}

#[test]
fn r11_a_hand_off_of_a_former_epoch_spares_a_returned_shard() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.sent_messages.clear();
    // Shards move back and forth within one incarnation, until one of them returns to its owner.
    let back = |cluster: &mut Cluster| {
        let owns = cluster.node("c").owns.clone();
        let messages = cluster.sent_messages.clone();
        messages
            .into_iter()
            .map(|(_, _, message)| message)
            .filter(|message| match message {
                ControlMessage::HandOff(HandOff { shard, epoch, .. }) => {
                    owns.get(shard).is_some_and(|(now, _)| now > epoch)
                }
                _ => false,
            })
            .collect::<Vec<_>>()
    };
    let mut late = Vec::new();
    while late.is_empty() {
        drain(&mut cluster, "c");
        cluster.run(4_000);
        cluster.handle("a", Event::Drain { node: "c".into(), draining: false });
        cluster.run(6_000);
        late = back(&mut cluster);
    }
    let (owns, from) = (cluster.node("c").owns.clone(), cluster.node("a").machine.member());
    let from = from.expect("registered");
    for message in late {
        cluster.handle("c", Event::Received { from: from.clone(), message });
    }
    assert_eq!(cluster.node("c").owns, owns, "a stop meant for one epoch ended a later one");
    let epochs = cluster.epochs();
    cluster.run(5_000);
    assert_eq!(cluster.epochs(), epochs);
}

#[test]
fn r5_a_new_epoch_exceeds_that_of_the_current_claim() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let lost: Vec<_> =
        cluster.node("c").owns.iter().map(|(shard, (epoch, _))| (*shard, *epoch)).collect();
    assert_eq!(lost.len(), 4);
    for (shard, epoch) in &lost {
        cluster.node("c").owns.remove(shard);
        let standing = Some(crate::ids::Epoch(epoch.0 + 8));
        cluster.handle(
            "c",
            Event::ShardLost { shard: *shard, epoch: *epoch, current_epoch: standing },
        );
    }
    cluster.run(3_000);
    let epochs = cluster.epochs();
    for (shard, epoch) in lost {
        assert!(epochs[&shard].0 > epoch.0 + 8, "{shard}: {:?} after {epoch:?}", epochs[&shard]);
    }
}

#[test]
fn s15_no_hand_off_begins_on_a_row_that_others_changed() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    // Another node has written the row, and the manager does not know it yet.
    cluster.revision += 1;
    let revision = cluster.revision;
    cluster.rows.get_mut(&RowKey::Assignments(0)).expect("a row").1 = revision;
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(5_000);
    assert_eq!(cluster.unannounced, [], "each intent was written first");
    assert_eq!(cluster.spread().get("c"), None);
}

#[test]
fn the_hand_off_is_resent_to_an_owner_that_does_not_stop() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.settings.max_drain_hand_offs = 1;
    cluster.node("b").stuck = true;
    let hand_offs_sent = |cluster: &Cluster| {
        let is_hand_off = |(_, _, message): &&(NodeId, NodeId, ControlMessage)| {
            matches!(message, ControlMessage::HandOff(_))
        };
        cluster.sent_messages.iter().filter(is_hand_off).count()
    };
    cluster.sent_messages.clear();
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(500);
    assert_eq!(hand_offs_sent(&cluster), cluster.moving(), "initially once for each shard");
    cluster.sent_messages.clear();
    cluster.run(5_000);
    let times = hand_offs_sent(&cluster) / cluster.moving();
    assert!((7..=10).contains(&times), "{times} times in ten resend intervals");
}

#[test]
fn a_continued_hand_off_is_abandoned_at_its_timeout() {
    let mut cluster = Cluster::new();
    cluster.settings.hand_off_timeout = 8_000;
    for node in ["a", "b", "c"] {
        cluster.start(node);
        cluster.run(200);
    }
    cluster.run(5_000);
    cluster.node("c").stuck = true;
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(1_000);
    cluster.node("a").dead = true;
    cluster.run(6_000);
    assert_eq!(cluster.manager().0, "b");
    assert!(cluster.moving() > 0, "the next manager continues it");
    let failed = |cluster: &mut Cluster| {
        let notices = &cluster.node("b").notices;
        notices.iter().filter(|it| matches!(it, Notice::HandOffFailed { .. })).count()
    };
    assert_eq!(failed(&mut cluster), 0);
    cluster.run(8_000);
    assert_eq!(failed(&mut cluster), 4);
}

#[test]
fn s15_a_shard_goes_to_the_node_that_its_intent_names() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").stuck = true;
    cluster.node("a").stuck = true;
    cluster.start("c");
    cluster.run(2_000);
    let moving = |cluster: &Cluster| match &cluster.rows[&RowKey::Assignments(0)].0 {
        Row::Assignments(row) => row.assignments.clone(),
        row => panic!("{row:?}"),
    };
    let named: Vec<_> = moving(&cluster)
        .into_iter()
        .map(|row| row.hand_off.and_then(|moving| moving.target))
        .collect();
    assert_eq!(named.iter().flatten().count(), 4);
    // A host without any shard joins before the shards are released.
    cluster.start("d");
    cluster.unstick("a");
    cluster.unstick("b");
    for (row, to) in moving(&cluster).iter().zip(named) {
        let Some(to) = to else { continue };
        assert_eq!(row.owner.as_ref().map(|owner| &owner.node), Some(&to));
    }
}

#[test]
fn a9_a_hand_off_proceeds_once_all_have_acknowledged() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(100);
    assert_eq!(cluster.spread().get("c"), None, "the hand-offs did not wait for the next tick");
}
