//! The end of a life in good order: hand-offs, stops, the goodbye (S10, K35).

use super::*;

impl Machine {
    /// Leaving: first by hand-offs, then by stopping what is left, then the goodbye (S10, K35). A life that ends itself
    /// stops at once.
    pub(in super::super) fn drive_leaving(&mut self, now: Now) {
        let ending = self.membership.ending();
        if self.leaving == Leaving::No && !ending {
            return;
        }
        let Membership::In(life) = &self.membership else {
            if matches!(self.membership, Membership::Outside) {
                self.membership = Membership::Left;
                self.actions.push_back(Action::Left);
            }
            return;
        };
        if !ending && !life.row.is_leaving() && !life.pending {
            self.renew_soon(now);
            self.drive_membership(now);
            return;
        }
        let me = life.member.clone();
        let others = self.view.all_live().any(|(node, row)| {
            *node != me.node && row.roles.host && !row.is_emptied() && row.store_answers
        });
        let named = self.view.shards().any(|(_, row)| row.owner.as_ref() == Some(&me));
        if ending || self.leaving == Leaving::Now || !others {
            for (shard, own) in &mut self.held {
                if !own.stopping {
                    own.stopping = true;
                    let (shard, epoch) = (*shard, own.epoch);
                    let reason = StopReason::HandedOff;
                    self.actions.push_back(Action::Stop { shard, epoch, reason });
                }
            }
        } else if named {
            return;
        }
        if !self.held.is_empty() || self.writes.values().any(|p| *p == Purpose::Goodbye) {
            return;
        }
        let Membership::In(life) = &mut self.membership else { return };
        if life.pending {
            return;
        }
        life.pending = true;
        let row = NodeRow { standing: Standing::Stopped, ..life.row.clone() };
        let (key, expected) = (Key::Node(life.member.node.clone()), life.revision);
        self.write(Purpose::Goodbye, key, Some(expected), Row::Node(row));
    }

    pub(in super::super) fn said_goodbye(&mut self, now: Now, result: Result<u64, WriteError>) {
        let Membership::In(life) = &mut self.membership else { return };
        life.pending = false;
        let key = Key::Node(life.member.node.clone());
        match result {
            Ok(_) => self.left(now),
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, key, row, revision);
            }
            Err(WriteError::Conflict(None)) => self.fence(now),
            Err(WriteError::Unknown) => {
                life.pending = true;
                self.actions.push_back(Action::Read(key));
            }
        }
    }

    /// A life writes its own goodbye, and only when it holds nothing any more. Others write one for a life that was
    /// marked dead and is forgotten: such a life is fenced, as any dead one is.
    pub(super) fn left(&mut self, now: Now) {
        if self.leaving == Leaving::No {
            // Only this life is over.
            return self.fence(now);
        }
        self.membership = Membership::Left;
        self.manager = None;
        self.actions.push_back(Action::Left);
    }
}
