//! Checks the rows of nodes: each names the last incarnation of its node.
//!
//! An incarnation that a row or a claim names has ended only if the node's own row has a higher counter, or the same
//! incarnation that is no longer live (R7). With a lower or an equal one, a shard would never get another owner and a
//! manager no successor. A node that registers without a row begins at 1 again, although a former incarnation may run
//! and be remembered. So a repair never removes the row of a node, and never lowers a counter.

use std::collections::BTreeMap;

use ostraca_catalog::rows;
use ostraca_core::extensions::Extensions;
use ostraca_core::format;
use ostraca_core::ids::{Incarnation, NodeId};
use ostraca_core::rows::{NodeRow, NodeStatus, Roles, Row, RowKey};
use ostraca_store::CompareAndSet;

use super::contradiction::{ContradictionKind, Findings, Remedy};
use super::snapshot::{FoundRow, LOST_RAISES, Snapshot};

/// The longest lease that a cluster's settings permit, in milliseconds: one hour. A longer one is damage.
pub(super) const LONGEST_LEASE: u64 = 3_600 * 1_000;

/// The row of a node whose incarnations up to this counter have ended.
pub(super) fn ended_row(counter: u64, status: NodeStatus) -> NodeRow {
    NodeRow {
        incarnation: Incarnation { counter, nonce: 0 },
        renewals: 0,
        status,
        draining: false,
        store_available: true,
        roles: Roles::default(),
        version: 0,
        registered_at: 0,
        addresses: Vec::new(),
        format: format::OLDEST.into(),
        lease: 0,
        settings_revision: 0,
        extensions: Extensions::default(),
    }
}

/// The row of a node whose own one cannot be decoded. Nobody knows its counter, so it is above all that are known.
pub(super) fn lost_row(snapshot: &Snapshot, status: NodeStatus) -> NodeRow {
    ended_row(snapshot.highest_counter() + LOST_RAISES, status)
}

/// The change that writes the row of a node.
pub(super) fn write_node(
    node: &NodeId,
    expected: Option<u64>,
    row: NodeRow,
) -> Result<CompareAndSet, ostraca_catalog::Error> {
    let key = rows::key_text(&RowKey::Node(node.clone()));
    Ok(CompareAndSet { key, expected, value: Some(rows::encode_row(&Row::Node(row))?) })
}

/// The change that removes a row.
pub(super) fn remove<T>(found: &FoundRow<T>) -> CompareAndSet {
    CompareAndSet { key: found.key.clone(), expected: Some(found.revision), value: None }
}

/// Checks the rows of nodes. Returns them as they will be.
pub(super) fn check(
    snapshot: &Snapshot,
    findings: &mut Findings,
) -> Result<BTreeMap<NodeId, NodeRow>, ostraca_catalog::Error> {
    let named = &snapshot.named_in_rows;
    let mut after = BTreeMap::new();
    for node in named.keys().filter(|node| !snapshot.nodes.contains_key(node)) {
        let counter = snapshot.highest_named(node).unwrap_or(0) + LOST_RAISES;
        let row = ended_row(counter, NodeStatus::Dead);
        let key = rows::key_text(&RowKey::Node(node.clone()));
        findings.report(
            ContradictionKind::MissingNode,
            &key,
            format!("shards or the leadership belong to the node {node}, which has no row"),
            Remedy::Fix("writes a row that says that the node is dead".into()),
        );
        findings.change(write_node(node, None, row.clone())?);
        after.insert(node.clone(), row);
    }
    for (node, found) in &snapshot.nodes {
        after.insert(node.clone(), check_node(snapshot, node, found, findings)?);
    }
    Ok(after)
}

fn check_node(
    snapshot: &Snapshot,
    node: &NodeId,
    found: &FoundRow<NodeRow>,
    findings: &mut Findings,
) -> Result<NodeRow, ostraca_catalog::Error> {
    let key = &found.key;
    let highest = snapshot.highest_named(node);
    let row = match &found.row {
        Ok(row) => row,
        Err(why) => {
            let does =
                "writes a row that says that the node is dead; a drain of it must be repeated";
            let row = lost_row(snapshot, NodeStatus::Dead);
            let what = format!("the row of the node {node} cannot be decoded: {why}");
            let remedy = Remedy::Fix(does.into());
            findings.report(ContradictionKind::UnreadableNode, key, what, remedy);
            findings.change(write_node(node, Some(found.revision), row.clone())?);
            return Ok(row);
        }
    };
    let before = findings.found.len();
    let end = || Remedy::Fix("marks the node as dead, and raises its incarnation".into());
    if let Some(later) = later_incarnation(snapshot, node, row) {
        let what = format!(
            "rows or claims name the incarnation {later} of the node {node}, but its row is that of {}",
            row.incarnation
        );
        findings.report(ContradictionKind::NodeBehind, key, what, end());
    }
    let is_copy = |(other, found): &(&NodeId, &FoundRow<NodeRow>)| {
        *other != node && found.row.as_ref().is_ok_and(|it| it.incarnation == row.incarnation)
    };
    // Rows that a repair has written have no nonce.
    if row.incarnation.nonce != 0
        && let Some((other, _)) = snapshot.nodes.iter().find(is_copy)
    {
        let what = format!("the nodes {node} and {other} have the same incarnation");
        findings.report(ContradictionKind::CopiedNode, key, what, end());
    }
    if row.status == NodeStatus::Live && row.lease > LONGEST_LEASE {
        let what = format!("the lease of the node {node} lasts {} ms", row.lease);
        findings.report(ContradictionKind::ImplausibleLease, key, what, end());
    }
    if findings.found.len() == before {
        return Ok(row.clone());
    }
    let counter = row.incarnation.counter.max(highest.unwrap_or(0)) + LOST_RAISES;
    let incarnation = Incarnation { counter, nonce: 0 };
    let row = NodeRow { incarnation, status: NodeStatus::Dead, ..row.clone() };
    findings.change(write_node(node, Some(found.revision), row.clone())?);
    Ok(row)
}

/// An incarnation that rows or claims name, and of which the node's row does not show that it has ended or is live.
fn later_incarnation(snapshot: &Snapshot, node: &NodeId, row: &NodeRow) -> Option<Incarnation> {
    let own = row.incarnation;
    let mut named = snapshot.named(node).copied();
    named.find(|it| it.counter > own.counter || (it.counter == own.counter && *it != own))
}
