//! Checks what no node can observe: whether each write of a row was allowed at that moment.
//!
//! The guard knows every row and every process. It checks the writes that became durable, as of the moment at which
//! they were applied. A write that a crash of the store undid does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ostraca_core::ids::{Epoch, NodeId, ShardId};
use ostraca_core::records::Claim;
use ostraca_core::rows::{
    AssignmentsRow, HandOffId, ManagerRow, Member, NodeRow, NodeStatus, NumbersRow, Row, RowKey,
    shard_at,
};
use ostraca_core::shard::Phase;

use super::process::{Order, Pid, Process};
use super::storage::GHOST;
use super::{LEASE, World};
use crate::violation::{Violation, ViolationKind};

/// Maximum delay of a watch.
const NEWS: u64 = 400;

/// An applied write, and the state when it was applied.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) key: RowKey,
    pub(super) old: Option<Row>,
    pub(super) new: Row,
    pub(super) by: Pid,
    /// Shards whose owner this write replaced while the owner's machine was alive and could commit.
    pub(super) living: Vec<ShardId>,
    pub(super) at: u64,
}

/// The history so far.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// When each incarnation's lease was last renewed, as applied.
    pub(super) renewed: BTreeMap<Member, u64>,
    /// When each incarnation's last few renewals were applied.
    renewals: BTreeMap<Member, VecDeque<u64>>,
    /// By candidate and term, a violation that is reported if the candidate wins.
    campaigns: BTreeMap<(Pid, u64), Violation>,
    pub(super) dead: BTreeSet<Member>,
    pub(super) node_status: BTreeMap<NodeId, (Member, NodeStatus)>,
    /// Nodes that have registered as hosts.
    pub(super) hosts: BTreeSet<NodeId>,
    /// The owner of a shard in each epoch.
    pub(super) owners: BTreeMap<(ShardId, Epoch), Member>,
    /// The chunks, each with every term that its row has borne.
    pub(super) sealed: BTreeSet<(u32, u64)>,
    /// The hand-offs in rows.
    pub(super) intents: BTreeSet<HandOffId>,
    /// The hand-offs in rows that a manager tried to write.
    pub(super) asked: BTreeSet<HandOffId>,
    /// Owners that reported a stop or a refused claim.
    pub(super) stopped: BTreeSet<(Member, ShardId, Epoch)>,
    pub(super) refused: BTreeSet<(Member, ShardId, Epoch)>,
    pub(super) highest: BTreeMap<ShardId, (Epoch, Member)>,
    /// When the lease of a shard of a pool without a manager was last renewed in each epoch, as applied.
    pub(super) shard_leases: BTreeMap<(ShardId, Epoch), u64>,
}

impl Guard {
    /// Checks a granted claim: a row must have named its owner, and epochs must rise with owners (R5).
    pub(super) fn claim_stands(&mut self, claim: &Claim, breaches: &mut Vec<Violation>) {
        let owner = claim.owner.clone();
        let shard = claim.shard.shard;
        if self.owners.get(&(shard, claim.epoch)) != Some(&owner) && &*claim.owner.node.0 != GHOST {
            breaches.push(ViolationKind::UnassignedClaim.because(format!(
                "{owner} claimed shard {shard} under {:?}, but no row assigns it",
                claim.epoch
            )));
        }
        if let Some((epoch, other)) = self.highest.get(&shard)
            && (claim.epoch < *epoch || (claim.epoch == *epoch && *other != owner))
        {
            breaches.push(ViolationKind::EpochOrder.because(format!(
                "shard {shard} went from {other} under {epoch:?} to {owner} under {:?}",
                claim.epoch
            )));
        }
        self.highest.insert(shard, (claim.epoch, owner));
    }

    /// A shard's highest epoch in any row so far.
    pub(super) fn newest(&self, shard: ShardId) -> Option<Epoch> {
        let of_shard = (shard, Epoch(0))..=(shard, Epoch(u64::MAX));
        self.owners.range(of_shard).next_back().map(|((_, epoch), _)| *epoch)
    }

    pub(super) fn has_ended(&self, member: &Member) -> bool {
        self.dead.contains(member)
            || self.node_status.get(&member.node).is_some_and(|(registered, standing)| {
                registered != member || *standing != NodeStatus::Live
            })
    }
}

impl World {
    /// Shards whose owner `new` replaces while the old owner's machine is alive and can commit.
    pub(super) fn live_owners_replaced(
        &self,
        key: &RowKey,
        old: Option<&Row>,
        new: &Row,
    ) -> Vec<ShardId> {
        let (RowKey::Assignments(chunk), Some(Row::Assignments(old)), Row::Assignments(new)) =
            (key, old, new)
        else {
            return Vec::new();
        };
        let mut living = Vec::new();
        for (place, (before, after)) in old.assignments.iter().zip(&new.assignments).enumerate() {
            let ends = before.epoch != after.epoch || after.owner.is_none();
            let Some(owner) = before.owner.as_ref().filter(|_| ends) else { continue };
            let shard = shard_at(*chunk, place);
            let process =
                self.processes.iter().find(|it| it.alive && it.member.as_ref() == Some(owner));
            let Some(process) = process else { continue };
            let going = process.orders.iter().any(|order| {
                matches!(order, Order::Forget(of, epoch) if *of == shard && *epoch == before.epoch)
            });
            let lives = process.shards.get(&shard).is_some_and(|hosted| {
                hosted.epoch == before.epoch
                    && !matches!(hosted.machine.phase(), Phase::Stopped | Phase::Lost)
            });
            if lives && !going {
                living.push(shard);
            }
        }
        living
    }

    /// Checks a write that became durable: it must have been allowed when it was applied.
    pub(super) fn guard_applied(&mut self, applied: &Applied) {
        match (&applied.key, &applied.new) {
            (RowKey::Node(node), Row::Node(row)) => {
                let old = match &applied.old {
                    Some(Row::Node(old)) => Some(old.clone()),
                    _ => None,
                };
                self.guard_node(applied, node, old.as_ref(), row);
            }
            (RowKey::Manager, Row::Manager(row)) => {
                let old = match &applied.old {
                    Some(Row::Manager(old)) => Some(old.clone()),
                    _ => None,
                };
                self.guard_manager(applied.by, old.as_ref(), row);
            }
            (RowKey::Assignments(chunk), Row::Assignments(row)) => {
                let old = match &applied.old {
                    Some(Row::Assignments(old)) => old.clone(),
                    _ => AssignmentsRow::default(),
                };
                self.guard_shards(applied, *chunk, &old, row);
            }
            (RowKey::Arbiter, Row::Arbiter(row)) => self.guard_arbiter(applied, row),
            (RowKey::Numbers(_), Row::Numbers(row)) => {
                let old = match &applied.old {
                    Some(Row::Numbers(old)) => old.clone(),
                    _ => NumbersRow::default(),
                };
                self.guard_numbers(&old, row);
            }
            (key, _) => self.violations.push(
                ViolationKind::RowKind.because(format!("{key:?} was given a row of another kind")),
            ),
        }
    }

    /// How long ago an incarnation's lease was renewed, by the world's clock.
    pub(super) fn renewed_ago(&self, applied: &Applied, member: &Member) -> u64 {
        applied.at - self.guard.renewed.get(member).copied().unwrap_or(0).min(applied.at)
    }

    pub(super) fn guard_node(
        &mut self,
        applied: &Applied,
        node: &NodeId,
        old: Option<&NodeRow>,
        row: &NodeRow,
    ) {
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        if row.is_host() {
            self.guard.hosts.insert(node.clone());
        }
        if let Some(old) = old {
            let former = Member { node: node.clone(), incarnation: old.incarnation };
            let ago = self.renewed_ago(applied, &former);
            if former != member {
                if row.incarnation.counter <= old.incarnation.counter {
                    self.violations.push(
                        ViolationKind::IncarnationOrder
                            .because(format!("{member} follows {former}")),
                    );
                }
                let embedded = self.processes[applied.by].site == 0;
                if old.status == NodeStatus::Live && !embedded {
                    self.tally.count("transition: waited for a live lease");
                    self.guard_belief(&former);
                    if ago < old.lease {
                        self.violations.push(ViolationKind::RegisteredOverLiveLease.because(
                            format!(
                                "{member} registered {ago} ms after {former} renewed its lease (R7)"
                            ),
                        ));
                    }
                }
                self.guard.dead.insert(former);
            } else if old.status != NodeStatus::Live && row.status == NodeStatus::Live {
                self.violations.push(
                    ViolationKind::IncarnationOrder
                        .because(format!("{member} came back from {:?} (R7)", old.status)),
                );
            } else if row.status == NodeStatus::Dead && old.status == NodeStatus::Live {
                self.tally.count("transition: node marked dead");
                self.guard_belief(&member);
                if self.was_found_ended(applied.by, &member) {
                    if ago < old.lease {
                        self.tally.count("transition: node marked dead before its lease lapsed");
                    }
                } else if ago < old.lease {
                    self.violations.push(ViolationKind::MarkedDeadWithLiveLease.because(format!(
                        "{member} was marked dead {ago} ms after it renewed its lease (R8)"
                    )));
                }
            }
        }
        if row.status == NodeStatus::Left {
            self.tally.count(match self.processes[applied.by].leaving {
                true => "transition: node left",
                false => "transition: incarnation without manager contact ended itself",
            });
            let process = self.processes.iter().find(|it| it.member.as_ref() == Some(&member));
            let serves = process.is_some_and(|it| {
                it.alive
                    && it.shards.values().any(|hosted| {
                        !matches!(hosted.machine.phase(), Phase::Stopped | Phase::Lost)
                    })
            });
            if serves {
                self.violations.push(
                    ViolationKind::LeftWithShards
                        .because(format!("{member} left while it held shards (S10)")),
                );
            }
        }
        if old.is_none_or(|old| old.incarnation != row.incarnation || old.renewals != row.renewals)
        {
            self.guard.renewed.insert(member.clone(), applied.at);
            let last = self.guard.renewals.entry(member.clone()).or_default();
            last.push_back(applied.at);
            if last.len() > 8 {
                last.pop_front();
            }
        }
        if row.status != NodeStatus::Live {
            self.guard.dead.insert(member.clone());
        }
        self.guard.node_status.insert(node.clone(), (member, row.status));
    }

    /// Checks that no process still relies on an ended incarnation's lease, with which it could answer queries (R8).
    /// Skipped if clocks may stop: a process whose clock stopped cannot know.
    fn guard_belief(&mut self, member: &Member) {
        let now = self.now;
        let relies = |it: &Process| {
            let since = it.lease_sent.map(|sent| it.mono(now).saturating_sub(sent));
            it.alive
                && it.member.as_ref() == Some(member)
                && since.is_some_and(|at| at < it.lease / 5 * 4)
        };
        // If leases do not change, the violation must show in what clients see, since a run ends with the first one.
        let changed = self.agreed.revision > 0;
        if changed && !self.clocks_stop && self.processes.iter().any(relies) {
            self.violations.push(
                ViolationKind::EndedLeaseTrusted
                    .because(format!("{member} has ended, but relies on its lease (R8)")),
            );
        }
    }

    pub(super) fn guard_manager(&mut self, by: Pid, old: Option<&ManagerRow>, row: &ManagerRow) {
        self.tally.count("transition: manager elected");
        let Some(old) = old else { return };
        self.tally.count("transition: manager replaced");
        self.violations.extend(self.guard.campaigns.remove(&(by, row.term)));
        if row.term <= old.term {
            self.violations.push(
                ViolationKind::TermOrder
                    .because(format!("term {} follows {} (R10)", row.term, old.term)),
            );
        }
    }

    /// Checks a node that campaigns. It must not consider the holder's lease lapsed if it received the renewals, or may
    /// have missed them while it was paused, unless its clock was paused too (R8). A running node that receives nothing
    /// may campaign: that costs only a term.
    pub(super) fn guard_campaign(&mut self, pid: Pid, term: u64) {
        let Some((Row::Manager(row), _)) = self.rows.applied(&RowKey::Manager) else { return };
        let holder = &row.holder;
        let it = &self.processes[pid];
        if self.guard.has_ended(holder)
            || self.was_found_ended(pid, holder)
            || holder.node == it.node
        {
            return;
        }
        let now = self.now;
        let woke = it.woke_detected_at.max(it.started);
        // With changed settings, the node may campaign sooner.
        let lease = if self.agreed.revision > 0 { LEASE / 2 } else { LEASE };
        let slept = now < woke + lease;
        let deaf = now > it.heard_at + NEWS / 2;
        let renewed = self.guard.renewals.get(holder).into_iter().flatten();
        let told = renewed
            .copied()
            .find(|at| now < at + lease && (*at + NEWS <= now || (slept && *at <= woke)));
        if let Some(at) = told.filter(|_| slept || !deaf) {
            let ago = now - at;
            let why = format!(
                "{} campaigned {ago} ms after {holder} renewed its lease, and was elected (R8)",
                it.node
            );
            self.guard
                .campaigns
                .insert((pid, term), ViolationKind::ElectedOverLiveLease.because(why));
        }
    }
}
