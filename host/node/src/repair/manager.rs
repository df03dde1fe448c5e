//! Checks the manager's row: no row has a later term, and somebody can succeed its holder.
//!
//! A new manager takes the term above that of this row. If another row had a later one, it would take that for the work
//! of a later manager, and decide nothing (R10).

use std::collections::BTreeMap;

use ostraca_catalog::rows;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{Incarnation, NodeId};
use ostraca_core::rows::{ManagerRow, Member, NodeRow, NodeStatus, Row, RowKey};
use ostraca_store::CompareAndSet;

use super::contradiction::{ContradictionKind, Findings, Remedy};
use super::nodes::{ended_row, write_node};
use super::snapshot::{LOST_RAISES, Snapshot};

/// Checks the manager's row. `nodes` are the rows of nodes as they will be.
pub(super) fn check(
    snapshot: &Snapshot,
    nodes: &BTreeMap<NodeId, NodeRow>,
    findings: &mut Findings,
) -> Result<(), ostraca_catalog::Error> {
    let highest = snapshot.highest_term();
    let key = rows::key_text(&RowKey::Manager);
    let lost = Remedy::Fix("writes it anew, with a later term and a manager that has ended".into());
    match &snapshot.manager {
        None if highest == 0 => return Ok(()),
        None => {
            let what = format!("there is none, but assignments have the term {highest}");
            findings.report(ContradictionKind::MissingManager, &key, what, lost);
        }
        Some(found) => match &found.row {
            Err(why) => {
                let what = format!("the manager's row cannot be decoded: {why}");
                findings.report(ContradictionKind::UnreadableManager, &key, what, lost);
            }
            Ok(row) if row.term < highest => {
                let what =
                    format!("its term is {}, but other rows have the term {highest}", row.term);
                let remedy = Remedy::Fix("raises the term above all others".into());
                findings.report(ContradictionKind::TermAhead, &key, what, remedy);
            }
            Ok(_) => return Ok(()),
        },
    }
    write(snapshot, nodes, highest + LOST_RAISES, findings)
}

/// Writes the manager's row with this term. Its holder remains if it is known, and otherwise is an incarnation that has
/// ended.
pub(super) fn write(
    snapshot: &Snapshot,
    nodes: &BTreeMap<NodeId, NodeRow>,
    term: u64,
    findings: &mut Findings,
) -> Result<(), ostraca_catalog::Error> {
    let known = snapshot.manager.as_ref().and_then(|found| found.row.as_ref().ok());
    let row = match known {
        Some(row) => ManagerRow { term, ..row.clone() },
        None => {
            let ended = nodes.iter().find_map(|(node, row)| ended_member(node, row));
            let holder = match ended {
                Some(holder) => holder,
                None => no_longer_there(snapshot, nodes, findings)?,
            };
            ManagerRow { term, holder, extensions: Extensions::default() }
        }
    };
    findings.change(CompareAndSet {
        key: rows::key_text(&RowKey::Manager),
        expected: snapshot.manager.as_ref().map(|found| found.revision),
        value: Some(rows::encode_row(&Row::Manager(row))?),
    });
    Ok(())
}

/// An incarnation of a node that has ended, as every node will see from the node's row.
fn ended_member(node: &NodeId, row: &NodeRow) -> Option<Member> {
    let incarnation = match row.status {
        NodeStatus::Live => {
            Incarnation { counter: row.incarnation.counter.checked_sub(1)?, nonce: 0 }
        }
        NodeStatus::Dead | NodeStatus::Left => row.incarnation,
    };
    Some(Member { node: node.clone(), incarnation })
}

/// Without the row of any node, that of the node whose configuration was named is written.
fn no_longer_there(
    snapshot: &Snapshot,
    nodes: &BTreeMap<NodeId, NodeRow>,
    findings: &mut Findings,
) -> Result<Member, ostraca_catalog::Error> {
    let node = NodeId::from(snapshot.facts.node.as_str());
    let known = nodes.get(&node).map_or(0, |row| row.incarnation.counter);
    let counter = known.max(snapshot.highest_named(&node).unwrap_or(0)) + LOST_RAISES;
    let row = ended_row(counter, NodeStatus::Dead);
    let expected = snapshot.nodes.get(&node).map(|found| found.revision);
    findings.change(write_node(&node, expected, row.clone())?);
    Ok(Member { node, incarnation: row.incarnation })
}
