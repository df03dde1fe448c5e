//! Renewals of the own row, whose answers may be lost, and what the row tells (R7, R8).

use super::*;

impl Machine {
    pub(super) fn renew(&mut self, now: Now) {
        let answers = self.is_store_available(now);
        let leaves = self.leave_mode != LeaveMode::Stay;
        let Membership::Registered(life) = &self.membership else { return };
        let (lease, settings) = self.declared(now, life);
        let Membership::Registered(life) = &mut self.membership else { return };
        life.pending = true;
        life.due = now.mono + self.settings.renew_interval;
        life.tried.get_or_insert(now.mono);
        let mut row = NodeRow {
            renewals: life.row.renewals + 1,
            store_available: answers,
            lease,
            settings_revision: settings,
            ..life.row.clone()
        };
        if leaves && !row.is_leaving() {
            // A block without room for it: it leaves once its shards were stopped, without hand-offs.
            let _ = row.set_leaving();
        }
        let (key, expected) = (RowKey::Node(life.member.node.clone()), life.revision);
        self.write(WritePurpose::Renew(row.clone(), now.mono), key, Some(expected), Row::Node(row));
    }

    /// A renewal's answer was lost, and the read after it too, or it is late.
    pub(super) fn read_own_row(&mut self, now: Now) {
        let waits = |purpose: &WritePurpose| {
            matches!(purpose, WritePurpose::Renew(..) | WritePurpose::Leave)
        };
        if self.pending_writes.values().any(waits) {
            return;
        }
        let Membership::Registered(life) = &mut self.membership else { return };
        life.due = now.mono + self.settings.store_retry_interval;
        self.actions.push_back(Action::ReadRow(RowKey::Node(life.member.node.clone())));
    }

    /// Renews at once, for what the row is to say.
    pub(in super::super) fn renew_now(&mut self, now: Now) {
        if let Membership::Registered(life) = &mut self.membership {
            life.due = now.mono;
        }
    }

    pub(in super::super) fn on_renewal_written(
        &mut self,
        now: Now,
        row: NodeRow,
        sent: u64,
        result: Result<u64, WriteError>,
    ) {
        let Membership::Registered(life) = &mut self.membership else { return };
        if life.member.incarnation != row.incarnation {
            return;
        }
        life.pending = false;
        let key = RowKey::Node(life.member.node.clone());
        match result {
            Ok(revision) => {
                if revision >= life.revision {
                    life.row = row.clone();
                    life.revision = revision;
                }
                life.tried = None;
                let lease = row.lease.min(life.row.lease);
                self.count_renewal(now, sent, lease);
                self.learn(now, key, Row::Node(row), revision);
            }
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, key, row, revision);
                self.renew_now(now);
            }
            Err(WriteError::Conflict(None)) => self.fence(now),
            Err(WriteError::Unknown) => {
                life.pending = true;
                life.due = now.mono + self.settings.store_retry_interval;
                self.actions.push_back(Action::ReadRow(key));
            }
        }
    }

    /// A renewal has succeeded, whose row says that lease: it counts from when it was sent.
    fn count_renewal(&mut self, now: Now, sent: u64, lease: u64) {
        let sent =
            if self.has_mutation(Mutation::LeaseFromRenewalResponse) { now.mono } else { sent };
        let Membership::Registered(life) = &mut self.membership else { return };
        if sent <= life.lease_start {
            return;
        }
        if sent - life.lease_start >= life.lease {
            life.recovered_at = now.mono;
        }
        life.lease_start = sent;
        life.lease = lease.min(self.settings.lease);
        let lease = life.lease;
        self.actions.push_back(Action::LeaseRenewed { sent_at: sent, lease });
        self.report_soon(now);
    }

    /// The answer to a read of the own row, after a renewal whose answer was lost.
    pub(in super::super) fn on_own_row_read(
        &mut self,
        now: Now,
        key: &RowKey,
        value: Option<&(Row, u64)>,
    ) {
        let Membership::Registered(life) = &mut self.membership else { return };
        let waits = |purpose: &WritePurpose| {
            matches!(purpose, WritePurpose::Renew(..) | WritePurpose::Leave)
        };
        let waits = self.pending_writes.values().any(waits);
        if *key != RowKey::Node(life.member.node.clone()) || waits {
            return;
        }
        life.pending = false;
        match value {
            Some((Row::Node(row), revision)) if *revision >= life.revision => {
                let (row, revision) = (row.clone(), *revision);
                self.learn_own(now, row, revision);
            }
            Some(_) => {}
            None => self.fence(now),
        }
    }

    /// The own row, as somebody tells it: others may set its drain mark, or end this life.
    pub(in super::super) fn learn_own(&mut self, now: Now, row: NodeRow, revision: u64) {
        let Membership::Registered(life) = &mut self.membership else { return };
        if revision < life.revision {
            return;
        }
        let goodbye =
            (self.leave_mode != LeaveMode::Stay || life.is_retiring) && self.held_shards.is_empty();
        let stopped = row.status == NodeStatus::Left;
        if row.incarnation == life.member.incarnation && stopped && goodbye {
            // Its goodbye, which the watch told sooner than its answer came.
            self.end_incarnation(now);
        } else if row.incarnation != life.member.incarnation || row.status != NodeStatus::Live {
            self.fence(now);
        } else if revision > life.revision {
            // A renewal under way will conflict, and come again; unless this is what it wrote.
            let own = if row.renewals > life.row.renewals { life.tried.take() } else { None };
            let lease = row.lease;
            life.row = row;
            life.revision = revision;
            if let Some(sent) = own {
                self.count_renewal(now, sent, lease);
            }
        }
    }
}
