//! An idle cluster looks the same after each renewal once its times and counts are normalized.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::cluster::Cluster;
use crate::assign::BuiltinStrategy;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::node::{Canonicalizer, ControlMessage, HandOff, Machine, NodeReport};
use crate::pools::Pool;
use crate::rows::{HandOffId, ManagerRow, Member, Roles, Row, RowKey, index_in_chunk};

/// Times are relative to `now`, and all distant past times are equal; revisions and renewals are relative to the
/// rows.
struct From<'a> {
    now: u64,
    cluster: &'a Cluster,
}

impl Canonicalizer for From<'_> {
    fn map_time(&self, at: u64) -> u64 {
        (20_000 + at).saturating_sub(self.now)
    }

    fn map_deadline(&self, at: u64) -> u64 {
        at.saturating_sub(self.now)
    }

    fn map_revision(&self, key: &RowKey, at: u64) -> u64 {
        self.cluster.rows.get(key).map_or(at, |(_, seen)| 1_000 + at - seen)
    }

    fn map_renewals(&self, node: &NodeId, count: u64) -> u64 {
        match self.cluster.rows.get(&RowKey::Node(node.clone())) {
            Some((Row::Node(row), _)) => 1_000 + count - row.renewals,
            _ => count,
        }
    }

    fn map_shard_renewals(&self, shard: ShardId, count: u64) -> u64 {
        let row = self.cluster.rows.get(&RowKey::for_shard(shard));
        let Some((Row::Assignments(row), _)) = row else { return count };
        let lease = row.assignments[index_in_chunk(shard)].lease();
        lease.map_or(count, |lease| 1_000 + count - lease.renewals)
    }
}

fn relative(cluster: &mut Cluster, node: &str) -> (u64, u64) {
    let hash = |machine: &Machine| BuildHasherDefault::<DefaultHasher>::default().hash_one(machine);
    let mut machine = cluster.node(node).machine.clone();
    let absolute = hash(&machine);
    machine.canonicalize(&From { now: cluster.now, cluster });
    (absolute, hash(&machine))
}

#[test]
fn an_idle_nodes_canonical_state_survives_renewals() {
    // A manager alone in its cluster, and a node that another node manages: a manager also keeps the reports of others.
    for (nodes, node) in [(&["a"][..], "a"), (&["a", "b"], "b")] {
        let mut cluster = Cluster::new();
        // Intervals such that every renewal falls on a step of the test's clock, and nothing but renewals happens.
        cluster.settings.renew_interval = 800;
        cluster.settings.rebalance_interval = 800;
        cluster.settings.keep_alive_interval = Some(800);
        nodes.iter().for_each(|node| cluster.start(node));
        cluster.run(40_000);
        let first = relative(&mut cluster, node);
        for renewal in 1..4 {
            cluster.run(800);
            let (absolute, relative) = relative(&mut cluster, node);
            assert_eq!(relative, first.1, "{node} after {renewal} renewals");
            assert_ne!(absolute, first.0, "times and counts rise");
        }
    }
}

#[test]
fn leases_of_shards_are_canonicalized_too() {
    let mut cluster = Cluster::new();
    cluster.settings.renew_interval = 800;
    let mut free = Pool::new("free", 3, &cluster.pools);
    free.strategy = Some(BuiltinStrategy::Stateless);
    cluster.pools.add(free).expect("a pool");
    for node in ["a", "b"] {
        cluster.start_with(node, Roles { manager: false, ..Roles::ALL }, 1);
    }
    cluster.run(40_000);
    let first = relative(&mut cluster, "a");
    for renewal in 1..4 {
        cluster.run(800);
        let (absolute, relative) = relative(&mut cluster, "a");
        assert_eq!(relative, first.1, "after {renewal} renewals");
        assert_ne!(absolute, first.0, "times and counts rise");
    }
}

#[test]
fn control_messages_are_canonicalized_too() {
    struct Marks;
    impl Canonicalizer for Marks {
        fn map_time(&self, at: u64) -> u64 {
            at
        }
        fn map_deadline(&self, at: u64) -> u64 {
            at
        }
        fn map_revision(&self, _: &RowKey, at: u64) -> u64 {
            at + 100
        }
        fn map_renewals(&self, _: &NodeId, count: u64) -> u64 {
            count + 100
        }
    }
    assert!(!Marks.never(u64::MAX));
    let (shard, epoch, id) = (ShardId(1), Epoch(1), HandOffId { term: 1, number: 1 });
    let incarnation = Incarnation { counter: 1, nonce: 1 };
    let relative = |mut message: ControlMessage| {
        Marks.canonicalize_message(&mut message);
        message
    };
    let holder = Member { node: "a".into(), incarnation };
    let row = Row::Manager(ManagerRow { term: 1, holder, extensions: Extensions::default() });
    let wrote =
        |revision| ControlMessage::RowUpdate { key: RowKey::Manager, row: row.clone(), revision };
    assert_eq!(relative(wrote(7)), wrote(107));
    let hand_off = HandOff { term: 1, shard, epoch, incarnation, id };
    let begin = |revision| ControlMessage::BeginHandOff { hand_off, revision };
    assert_eq!(relative(begin(7)), begin(107));
    let report = |at| {
        ControlMessage::Report(Box::new(NodeReport {
            applied_chunks: vec![(0, at)],
            ..NodeReport::default()
        }))
    };
    assert_eq!(relative(report(7)), report(107));

    let mut cluster = Cluster::of(&["a"]);
    let key = RowKey::Node("a".into());
    cluster.run(1);
    let Some((Row::Node(node), _)) = cluster.rows.get(&key).cloned() else { panic!("a row") };
    let renewed = crate::rows::NodeRow { renewals: node.renewals + 100, ..node.clone() };
    let wrote = |row, revision| ControlMessage::RowUpdate {
        key: key.clone(),
        row: Row::Node(row),
        revision,
    };
    assert_eq!(relative(wrote(node, 7)), wrote(renewed, 107));
}

/// Maps every number to itself.
struct Same;

impl Canonicalizer for Same {
    fn map_time(&self, at: u64) -> u64 {
        at
    }
    fn map_deadline(&self, at: u64) -> u64 {
        at
    }
    fn map_revision(&self, _: &RowKey, at: u64) -> u64 {
        at
    }
    fn map_renewals(&self, _: &NodeId, count: u64) -> u64 {
        count
    }
}

#[test]
fn canonicalization_changes_nothing_but_numbers() {
    use super::alone::{Alone, HOST, key, member, row, sealed};
    use crate::node::{Event, Settings};

    let hash = |machine: &Machine| BuildHasherDefault::<DefaultHasher>::default().hash_one(machine);
    let stays = |alone: &Alone| {
        let mut machine = alone.machine.clone();
        machine.canonicalize(&Same);
        hash(&machine) == hash(&alone.machine)
    };
    // A manager that waits for reports, with a write in flight.
    let mut manager = sealed(4);
    manager.learn(key("b"), row(1, HOST));
    assert!(!manager.writes.is_empty() && stays(&manager));

    // A host whose manager has yet to learn that it released a shard.
    let mut host = Alone::registered(HOST);
    let me = host.me();
    host.learn(key("m"), row(1, crate::rows::Roles::ALL));
    host.manager(1, member("m", 1));
    host.shards(&[(1, Some(me.clone())), (1, Some(me))]);
    host.handle(Event::ShardStopped { shard: ShardId(1), epoch: Epoch(1) });
    let at_rest = host.machine.clone();
    host.wait(Settings::default().renew_interval);
    assert!(!host.writes.is_empty() && stays(&host));

    // The same host, while its claims are read after a lapse.
    host.writes.clear();
    host.machine = at_rest;
    host.wait(Settings::default().lease);
    while host.writes.is_empty() {
        host.wait(10);
    }
    host.done();
    assert!(host.machine.is_suspended() && host.writes.is_empty() && stays(&host));
}
