//! Checks the rows of numbers: which hosts divide a pool without a manager (E5).
//!
//! Numbers only say who should own shards, so a damaged row is removed, and the hosts take numbers again. It must not
//! stay: a host cannot replace a row that it cannot decode, and the shards of a number wait for its holder until the row
//! of a node shows that it has ended.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::ids::NodeId;
use ostraca_core::rows::{Member, NodeRow, NumbersRow};

use super::contradiction::{ContradictionKind, Findings, Remedy};
use super::nodes::remove;
use super::snapshot::Snapshot;

/// Checks the rows of numbers. `nodes` are the rows of nodes as they will be.
pub(super) fn check(
    snapshot: &Snapshot,
    nodes: &BTreeMap<NodeId, NodeRow>,
    findings: &mut Findings,
) {
    for found in snapshot.numbers.values() {
        let valid = |row: &NumbersRow| valid_numbers(row, nodes);
        let (kind, what) = match found.row.as_ref().map(valid) {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => (ContradictionKind::InvalidRow, why),
            Err(why) => (ContradictionKind::UnreadableRow, format!("it cannot be decoded: {why}")),
        };
        let remedy = Remedy::Fix("removes the row: the pool's hosts take numbers again".into());
        findings.report(kind, &found.key, what, remedy);
        findings.change(remove(found));
    }
}

fn valid_numbers(row: &NumbersRow, nodes: &BTreeMap<NodeId, NodeRow>) -> Result<(), String> {
    if let Some(pair) = row.holders.windows(2).find(|pair| pair[0].number >= pair[1].number) {
        return Err(format!("the number {} follows {}", pair[1].number, pair[0].number));
    }
    let mut known = BTreeSet::new();
    for holder in &row.holders {
        let member = &holder.member;
        if !known.insert(member) {
            return Err(format!("{member} has two numbers"));
        }
        if !is_of_its_node(member, nodes) {
            return Err(format!("it names {member}, which the row of that node has not reached"));
        }
    }
    Ok(())
}

/// Whether a node's row is that of this incarnation or of a later one.
fn is_of_its_node(member: &Member, nodes: &BTreeMap<NodeId, NodeRow>) -> bool {
    let own = nodes.get(&member.node).map(|row| row.incarnation);
    own.is_some_and(|own| own == member.incarnation || own.counter > member.incarnation.counter)
}
