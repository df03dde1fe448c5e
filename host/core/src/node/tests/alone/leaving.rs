//! How a node leaves: it first hands off its shards, and then marks its row as left.

use super::*;

#[test]
fn a_node_that_leaves_before_registering_never_registers() {
    let mut alone = Alone::new(HOST, Settings::default());
    assert_eq!(alone.handle(Event::Leave), [Action::Left]);
    assert_eq!(alone.handle(Event::RowsListed(Some(Vec::new()))), []);
    assert_eq!(alone.wait(1_000), []);
}

#[test]
fn a_node_that_leaves_during_registration_does_not_retry() {
    let mut alone = Alone::new(HOST, Settings::default());
    // The first incarnation fails to register, and the rows are listed again.
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.handle(Event::Leave);
    alone.written(Err(WriteError::Conflict(None)));
    assert_eq!(writes(&alone.wait(1_000)), Vec::<&RowKey>::new());
}

/// Asks a host that owns shard 1 to leave, in a cluster with a manager and the node `other`, and returns the host and
/// its actions. The host's row then says that the host is leaving.
fn leaves(other: NodeRow) -> (Alone, Vec<Action>) {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    let manager = Roles { manager: true, ..Roles::default() };
    alone.learn(key("m"), row(1, manager));
    alone.manager(1, member("m", 1));
    alone.learn(key("b"), Row::Node(other));
    alone.shards(&[(1, Some(me)), (1, Some(member("b", 1)))]);
    alone.handle(Event::ShardServing { shard: ShardId(1), epoch: Epoch(1) });
    let mut actions = alone.handle(Event::Leave);
    actions.extend(alone.all_done());
    assert!(own(&alone).is_leaving());
    (alone, actions)
}

fn stops(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::StopShard { .. }))
}

fn wrote_left(alone: &Alone) -> bool {
    let stopped = |row: &Row| matches!(row, Row::Node(row) if row.status == NodeStatus::Left);
    alone.writes.iter().any(|(_, row)| stopped(row))
}

#[test]
fn s10_a_leaving_node_waits_for_its_hand_offs() {
    assert!(!stops(&leaves(host_row()).1));
    let gateway = Roles { gateway: true, ..Roles::default() };
    for other in [
        NodeRow { roles: gateway, ..host_row() },
        NodeRow { draining: true, ..host_row() },
        NodeRow { store_available: false, ..host_row() },
        NodeRow { status: NodeStatus::Dead, ..host_row() },
    ] {
        assert!(stops(&leaves(other).1));
    }
}

#[test]
fn s10_a_node_leaves_when_no_row_names_it() {
    let (mut alone, _) = leaves(host_row());
    let (shard, epoch) = (ShardId(1), Epoch(1));
    alone.handle(Event::ShardStopped { shard, epoch });
    alone.wait(10);
    assert!(
        !wrote_left(&alone),
        "a row still names the node, and the next owner may be another incarnation of it"
    );
    let b = Some(member("b", 1));
    alone.shards(&[(2, b.clone()), (1, b)]);
    assert!(wrote_left(&alone));
    let actions = alone.done();
    assert!(actions.contains(&Action::Left), "{actions:?}");
}

#[test]
fn s10_a_node_does_not_leave_before_its_shards_stop() {
    let (mut alone, actions) = leaves(NodeRow { draining: true, ..host_row() });
    assert!(stops(&actions));
    alone.wait(10);
    assert!(!wrote_left(&alone));
    alone.handle(Event::ShardStopped { shard: ShardId(1), epoch: Epoch(1) });
    assert!(wrote_left(&alone));
}

#[test]
fn s10_a_node_has_left_only_once_its_row_says_so() {
    let mut alone = Alone::registered(HOST);
    alone.handle(Event::Leave);
    let renewed = alone.writes[0].1.clone();
    // The watch delivers its renewal before the answer arrives.
    let actions = alone.learn(key("me"), renewed);
    assert!(!actions.contains(&Action::Left) && alone.machine.member().is_some());
    let revision = alone.revision;
    let actions = alone.written(Ok(revision));
    assert!(!actions.contains(&Action::Left) && wrote_left(&alone));
    assert!(alone.done().contains(&Action::Left));
}

#[test]
fn a_node_adopts_no_shard_once_its_row_says_it_leaves() {
    let given = |alone: &mut Alone| {
        let me = alone.me();
        adopted(&alone.shards(&[(1, Some(me))]))
    };
    let mut alone = Alone::registered(HOST);
    alone.handle(Event::Leave);
    assert_eq!(given(&mut alone), [(1, 1)], "its row does not say so yet");
    let (mut alone, _) = leaves(host_row());
    let me = alone.me();
    let both = [(1, Some(me.clone())), (2, Some(me))];
    assert_eq!(adopted(&alone.shards(&both)), []);
    let mut alone = Alone::registered(HOST);
    alone.handle(Event::LeaveNow);
    assert_eq!(given(&mut alone), []);
    // A node that an operator drains serves what it is assigned, since there may be no other host.
    let mut alone = Alone::registered(HOST);
    let marked = NodeRow { draining: true, ..own(&alone) };
    alone.learn(key("me"), Row::Node(marked));
    assert_eq!(given(&mut alone), [(1, 1)]);
}

#[test]
fn s10_a_manager_leaves_even_while_a_write_is_pending() {
    let mut alone = leader(4, Vec::new());
    let seals = alone.writes.remove(0);
    alone.handle(Event::LeaveNow);
    assert!(matches!(&alone.writes[..], [(_, Row::Node(_))]), "its row says that it is leaving");
    alone.done();
    assert!(wrote_left(&alone), "{seals:?} was not answered");
}

#[test]
fn s10_left_status_set_by_others_ends_the_incarnation() {
    let (mut alone, actions) = leaves(NodeRow { draining: true, ..host_row() });
    assert!(stops(&actions));
    let stopped = NodeRow { status: NodeStatus::Left, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(stopped));
    assert_eq!(forgot(&actions), [(1, 1)], "others may own it");
    assert!(actions.contains(&Action::Left));
}
