//! The end of a life in good order: hand-offs, stops, the goodbye (S10, K35).

use super::*;

impl Machine {
    /// Leaving: first by hand-offs, then by stopping what is left, then the goodbye (S10, K35). A life that ends itself
    /// stops at once.
    pub(in super::super) fn drive_leaving(&mut self, now: Now) {
        let ending = self.membership.is_retiring();
        if self.leave_mode == LeaveMode::Stay && !ending {
            return;
        }
        let Membership::Registered(life) = &self.membership else {
            if matches!(self.membership, Membership::Unregistered) {
                self.membership = Membership::Left;
                self.actions.push_back(Action::Left);
            }
            return;
        };
        if !ending && !life.row.is_leaving() && !life.pending {
            self.renew_now(now);
            self.drive_membership(now);
            return;
        }
        let me = life.member.clone();
        let others = self.view.all_live().any(|(node, row)| {
            *node != me.node
                && row.roles.host
                && !row.is_draining_or_leaving()
                && row.store_available
        });
        let named = self.view.assignments().any(|(_, row)| row.owner.as_ref() == Some(&me));
        if ending || self.leave_mode == LeaveMode::Immediate || !others {
            for (shard, own) in &mut self.held_shards {
                if !own.stopping {
                    own.stopping = true;
                    let (shard, epoch) = (*shard, own.epoch);
                    let reason = StopReason::HandedOff;
                    self.actions.push_back(Action::StopShard { shard, epoch, reason });
                }
            }
        } else if named {
            return;
        }
        if !self.held_shards.is_empty()
            || self.pending_writes.values().any(|p| *p == WritePurpose::Leave)
        {
            return;
        }
        let Membership::Registered(life) = &mut self.membership else { return };
        if life.pending {
            return;
        }
        life.pending = true;
        let row = NodeRow { status: NodeStatus::Left, ..life.row.clone() };
        let (key, expected) = (RowKey::Node(life.member.node.clone()), life.revision);
        self.write(WritePurpose::Leave, key, Some(expected), Row::Node(row));
    }

    pub(in super::super) fn on_leave_written(&mut self, now: Now, result: Result<u64, WriteError>) {
        let Membership::Registered(life) = &mut self.membership else { return };
        life.pending = false;
        let key = RowKey::Node(life.member.node.clone());
        match result {
            Ok(_) => self.end_incarnation(now),
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, key, row, revision);
            }
            Err(WriteError::Conflict(None)) => self.fence(now),
            Err(WriteError::Unknown) => {
                life.pending = true;
                self.actions.push_back(Action::ReadRow(key));
            }
        }
    }

    /// A life writes its own goodbye, and only when it holds nothing any more. Others write one for a life that was
    /// marked dead and is forgotten: such a life is fenced, as any dead one is.
    pub(super) fn end_incarnation(&mut self, now: Now) {
        if self.leave_mode == LeaveMode::Stay {
            // Only this life is over.
            return self.fence(now);
        }
        self.membership = Membership::Left;
        self.manager = None;
        self.actions.push_back(Action::Left);
    }
}
