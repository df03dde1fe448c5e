//! Renewals whose answers are lost: a successful renewal counts from when it was sent (R7 to R9).

use super::cluster::{Cluster, SHARDS};
use crate::assign::BuiltinStrategy;
use crate::message::Now;
use crate::node::{Action, Event, Machine, NodeIdentity, Settings, WriteError};
use crate::pools::Pools;
use crate::rows::{NodeRow, Roles, Row, RowKey};

#[test]
fn renewals_count_even_if_all_answers_are_lost() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").unanswered = true;
    cluster.run(20_000);
    assert!(!cluster.node("b").suspended);
    assert_eq!(cluster.incarnation("b"), 1);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

/// A single host's machine.
struct Host {
    machine: Machine,
    now: u64,
}

impl Host {
    fn registered() -> Self {
        let identity = NodeIdentity {
            node: "h".into(),
            roles: Roles { host: true, ..Roles::default() },
            version: 1,
            addresses: Vec::new(),
            pool_roles: Vec::new(),
            weight: 1,
            pools: Pools::one(SHARDS),
            seed: 3,
        };
        let machine = Machine::new(Settings::default(), identity, BuiltinStrategy::Average.build());
        let mut host = Self { machine, now: 1_000 };
        host.handle(Event::RowsListed(Some(Vec::new())));
        let (number, _, _) = host.write().expect("it registers");
        host.handle(Event::RowWritten { request_id: number, result: Ok(1) });
        assert_eq!(host.renewed(), [1_000]);
        host
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(Now { mono: self.now, cluster_time: self.now, utc: 0 }, event);
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll()).collect()
    }

    /// The write that the machine requests: its id, the expected revision, the row.
    fn write(&mut self) -> Option<(u64, Option<u64>, NodeRow)> {
        self.actions().into_iter().find_map(|action| match action {
            Action::WriteRow { request_id: number, expected, row: Row::Node(row), .. } => {
                Some((number, expected, row))
            }
            _ => None,
        })
    }

    /// When the renewals that counted were sent.
    fn renewed(&mut self) -> Vec<u64> {
        let sent = |action| match action {
            Action::LeaseRenewed { sent_at: sent, .. } => Some(sent),
            _ => None,
        };
        self.actions().into_iter().filter_map(sent).collect()
    }

    /// Advances the time until the machine writes.
    fn writes(&mut self) -> (u64, Option<u64>, NodeRow) {
        for _ in 0..1_000 {
            self.now += 10;
            self.handle(Event::Tick);
            if let Some(write) = self.write() {
                return write;
            }
        }
        unreachable!("it renews");
    }

    fn row(&mut self, row: &NodeRow, revision: u64) {
        let value = Some((Row::Node(row.clone()), revision));
        self.handle(Event::RowObserved { key: RowKey::Node("h".into()), value });
    }
}

/// A host after the answer to its first renewal was lost: when the renewal was sent, its row, and the row before it.
fn lost() -> (Host, u64, NodeRow, NodeRow) {
    let mut host = Host::registered();
    let (number, expected, row) = host.writes();
    assert_eq!((expected, row.renewals), (Some(1), 1));
    let (sent, before) = (host.now, NodeRow { renewals: 0, ..row.clone() });
    host.now += 200;
    host.handle(Event::RowWritten { request_id: number, result: Err(WriteError::Unknown) });
    assert!(host.actions().contains(&Action::ReadRow(RowKey::Node("h".into()))));
    (host, sent, row, before)
}

#[test]
fn r8_a_renewal_found_by_a_read_counts_from_its_sending() {
    let (mut host, sent, row, _) = lost();
    host.now += 100;
    host.row(&row, 2);
    assert_eq!(host.renewed(), [sent]);
    let (_, expected, next) = host.writes();
    assert_eq!((expected, next.renewals), (Some(2), 2));
}

#[test]
fn r8_a_delayed_renewal_counts_from_its_own_sending() {
    let (mut host, sent, row, before) = lost();
    // The renewal has not been written yet when the row is read.
    host.row(&before, 1);
    assert_eq!(host.renewed(), []);
    let (number, expected, again) = host.writes();
    assert_eq!((expected, again.renewals), (Some(1), 1));
    assert!(host.now > sent + 200);
    // Then the first renewal was written: the second conflicts with it, and both are equal.
    let standing = Some((Row::Node(row), 2));
    host.handle(Event::RowWritten {
        request_id: number,
        result: Err(WriteError::Conflict(standing)),
    });
    assert_eq!(host.renewed(), [sent], "R8: never later than it was sent");
    let lease = Settings::default().lease;
    host.now = sent + lease - 1;
    host.handle(Event::Tick);
    assert!(!host.machine.is_suspended(), "R9");
    host.now += 1;
    host.handle(Event::Tick);
    assert!(host.machine.is_suspended());
}

#[test]
fn a_drain_mark_that_another_sets_is_no_renewal() {
    let (mut host, sent, row, before) = lost();
    let marked = NodeRow { draining: true, ..before };
    host.row(&marked, 2);
    assert_eq!(host.renewed(), []);
    let (number, expected, again) = host.writes();
    assert_eq!((expected, again.renewals, again.draining), (Some(2), 1, true));
    let second = host.now;
    host.now += 50;
    host.handle(Event::RowWritten { request_id: number, result: Ok(3) });
    assert_eq!(host.renewed(), [second]);
    host.row(&row, 2);
    assert_eq!(host.renewed(), [], "a row that is older than the known one proves nothing: {sent}");
}

#[test]
fn a_renewal_seen_first_by_the_watch_counts_once() {
    let mut host = Host::registered();
    let (number, _, row) = host.writes();
    let sent = host.now;
    host.now += 30;
    host.row(&row, 2);
    assert_eq!(host.renewed(), [sent]);
    host.handle(Event::RowWritten { request_id: number, result: Ok(2) });
    assert_eq!(host.renewed(), []);
}
