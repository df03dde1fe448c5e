//! A manager that no other host's report reaches gives the leadership to the next candidate, which they may reach
//! (decision 0051).
//!
//! It goes on assigning from rows meanwhile; what it cannot do is to hand shards off. Where no host reaches any
//! candidate, the leadership goes round: each manager in a row that heard no host waits twice as long as the one before
//! it, so the rows are sealed anew ever more seldom, and nodes have the time to act by rows alone (decision 0020).

use super::*;

/// The wait doubles so often at most.
const DOUBLINGS: u32 = 6;

impl Machine {
    /// How long a manager stays that hears no other host, after so many in a row that heard none.
    pub(super) fn step_down_delay(&self, silent_terms: u32) -> u64 {
        self.settings.manager_silence_timeout << silent_terms.min(DOUBLINGS)
    }

    /// Writes the next candidate as the holder once no other host has been heard for long.
    pub(super) fn step_down(&mut self, now: Now) {
        let (Some(manager), Some((row, _))) = (&self.manager, &self.view.manager) else { return };
        let me = &self.identity.node;
        let hosts = self.view.all_live().filter(|(node, row)| row.roles.host && *node != me);
        let (mut any, mut heard) = (false, false);
        for (host, _) in hosts {
            if !self.view.unresponsive.contains(host) {
                return;
            }
            any = true;
            heard |= manager.reports.contains_key(host);
        }
        if !any
            || (!heard && now.mono < manager.step_down_at)
            || self
                .pending_writes
                .values()
                .any(|purpose| matches!(purpose, WritePurpose::SetManager(_)))
            || self.has_mutation(Mutation::NeverStepDown)
        {
            return;
        }
        let silent_terms = if heard { 1 } else { row.consecutive_step_downs().saturating_add(1) };
        let Some(holder) = self.successor(now) else { return };
        let to = holder.node.clone();
        let row = ManagerRow { term: manager.term + 1, holder, extensions: Extensions::default() };
        self.write_manager_row(row, silent_terms);
        self.notify(Notice::ManagerSteppedDown { to });
    }

    /// The candidate after this node in order of age, the eldest after the youngest: each gets its turn.
    fn successor(&self, now: Now) -> Option<Member> {
        let me = self.member()?;
        let (own, _) = self.view.nodes.get(&me.node)?;
        let age = |node: &NodeId, row: &NodeRow| (row.registered_at, node.clone());
        let mine = age(&me.node, own);
        let candidates = self.view.all_live().filter(|(node, row)| {
            **node != me.node
                && row.roles.manager
                && !row.is_draining_or_leaving()
                && !self.view.lease_unchanged_for(node, now.mono, row.lease)
        });
        let next = candidates.min_by_key(|(node, row)| {
            let age = age(node, row);
            (age < mine, age)
        });
        next.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation })
    }
}
