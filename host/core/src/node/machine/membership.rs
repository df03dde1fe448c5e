//! Membership: registration, the lease, its lapse and its return, and the end of a life (R7 to R9).

mod lapse;
mod lease_change;
mod leaving;
mod renewal;

use super::*;

/// Where this node stands in the cluster.
#[derive(Clone, Debug, Hash)]
pub(super) enum Membership {
    /// Not registered, and nothing about it under way.
    Unregistered,
    /// A write of the own row is under way, or its answer was lost and the row is being read.
    Registering,
    /// Registered.
    Registered(Box<Registration>),
    /// It said goodbye.
    Left,
}

/// One registered life.
#[derive(Clone, Debug, Hash)]
pub(super) struct Registration {
    pub(super) member: Member,
    pub(super) row: NodeRow,
    pub(super) revision: u64,
    /// When the last renewal that succeeded was sent: the lease counts from there (R8).
    lease_start: u64,
    /// When the first renewal was sent after the one that `row` shows. Should the row show another one, whoever tells it
    /// and whatever became of the answer, this is the latest that the lease may count from (R8).
    tried: Option<u64>,
    /// How long `sent` may be relied on: never longer than the row says.
    lease: u64,
    /// Until when a longer lease may still be relied on somewhere: until then the row says so.
    longer_until: u64,
    /// When a renewal last ended a lapse.
    recovered_at: u64,
    /// A renewal, or a read after a lost one, is under way.
    pending: bool,
    /// When the next renewal is due.
    due: u64,
    pub(super) suspended: bool,
    /// The claims that are being read before this life goes on, by number; and what they were of.
    claim_check: Option<(u64, Vec<(ShardId, Epoch)>)>,
    /// When they may be asked for again.
    claims_at: u64,
    /// Claims must be read.
    claims_unverified: bool,
    /// It ends itself, for another to register: the manager does not hear it.
    pub(super) is_retiring: bool,
}

impl Membership {
    pub(super) fn member(&self) -> Option<&Member> {
        match self {
            Self::Registered(life) => Some(&life.member),
            _ => None,
        }
    }

    pub(super) fn suspended(&self) -> bool {
        matches!(self, Self::Registered(life) if life.suspended)
    }

    pub(super) fn is_retiring(&self) -> bool {
        matches!(self, Self::Registered(life) if life.is_retiring)
    }

    pub(super) fn due(&self) -> u64 {
        match self {
            Self::Registered(life) if !life.pending => life.due,
            _ => u64::MAX,
        }
    }

    pub(super) fn reads_claims(&self) -> bool {
        matches!(self, Self::Registered(life) if life.claim_check.is_some())
    }

    pub(super) fn canonicalize(&mut self, me: &NodeId, to: &dyn Canonicalizer) {
        let Self::Registered(life) = self else { return };
        life.row.renewals = to.map_renewals(me, life.row.renewals);
        life.revision = to.map_revision(&RowKey::Node(me.clone()), life.revision);
        life.tried = life.tried.map(|at| to.map_time(at));
        (life.lease_start, life.recovered_at) =
            (to.map_time(life.lease_start), to.map_time(life.recovered_at));
        life.longer_until = to.map_time(life.longer_until);
        (life.due, life.claims_at) = (to.map_deadline(life.due), to.map_deadline(life.claims_at));
    }
}

impl Machine {
    pub(super) fn drive_membership(&mut self, now: Now) {
        match &self.membership {
            Membership::Unregistered if self.watching && self.leave_mode == LeaveMode::Stay => {
                self.try_register(now);
            }
            Membership::Registered(life) if now.mono < life.due => {}
            Membership::Registered(life) if !life.pending => self.renew(now),
            Membership::Registered(_) => self.read_own_row(now),
            _ => {}
        }
        self.try_resume(now);
    }

    fn try_register(&mut self, now: Now) {
        let node = self.identity.node.clone();
        let known = self.view.nodes.get(&node).cloned();
        if let Some((row, _)) = &known
            && row.status == NodeStatus::Live
            && !self.settings.embedded_store
            && !self.has_mutation(Mutation::RegisterOverLiveLease)
            && !self.view.lease_unchanged_for(
                &node,
                now.mono,
                row.lease + self.settings.lease_margin,
            )
        {
            // A life of this name may still own shards: its lease must lapse first (R7).
            let (incarnation, renewals) = (row.incarnation, row.renewals);
            return self.detect_name_conflict(now, incarnation, renewals);
        }
        self.name_conflict = None;
        let counter = known.as_ref().map_or(0, |(row, _)| row.incarnation.counter) + 1;
        let row = NodeRow {
            incarnation: Incarnation { counter, nonce: self.draw() },
            renewals: 0,
            status: NodeStatus::Live,
            // What an operator wants of the node holds for all its lives, until it is undone.
            draining: known.as_ref().is_some_and(|(row, _)| row.draining),
            store_available: true,
            roles: self.identity.roles,
            version: self.identity.version,
            registered_at: now.cluster_time,
            addresses: self.identity.addresses.clone(),
            format: u32::from(FORMAT),
            lease: self.settings.lease,
            settings_revision: self.settings.settings_revision,
            // The row describes a life: what another release noted of the last one ends with it.
            extensions: Extensions::default(),
        };
        let row = match self.wall {
            Some(wall) => row.with_registered_unix_ms(wall),
            None => row,
        };
        self.membership = Membership::Registering;
        let expected = known.map(|(_, revision)| revision);
        let purpose = WritePurpose::Register(row.clone(), now.mono);
        self.write(purpose, RowKey::Node(node), expected, Row::Node(row));
    }

    /// A lease that goes on being renewed is another process's: it is said once a lease. One renewal may have been on
    /// its way when its node died.
    fn detect_name_conflict(&mut self, now: Now, incarnation: Incarnation, renewals: u64) {
        let seen = ((incarnation, renewals), now.mono + self.settings.lease);
        let Some(((life, count), look_at)) = self.name_conflict else {
            self.name_conflict = Some(seen);
            return;
        };
        if now.mono >= look_at && (life != incarnation || renewals >= count + 2) {
            self.name_conflict = Some(seen);
            let node = self.identity.node.clone();
            self.notify(Notice::NodeNameInUse(Member { node, incarnation }));
        }
    }

    pub(super) fn on_registration_written(
        &mut self,
        now: Now,
        row: NodeRow,
        sent: u64,
        result: Result<u64, WriteError>,
    ) {
        let key = RowKey::Node(self.identity.node.clone());
        match result {
            Ok(revision) => self.join(now, row, revision, sent),
            Err(WriteError::Conflict(value)) => {
                self.membership = Membership::Unregistered;
                if let Some((row, revision)) = value {
                    self.learn(now, key, row, revision);
                }
            }
            Err(WriteError::Unknown) => {
                // Whether it was written or not, another life is tried once this one's row is known. One that was
                // written without our knowing lapses like any other: nothing was ever done in its name.
                self.membership = Membership::Unregistered;
                self.watching = false;
                self.list_at = now.mono + self.settings.store_retry_interval;
            }
        }
    }

    fn join(&mut self, now: Now, row: NodeRow, revision: u64, sent: u64) {
        let sent = if self.has_mutation(Mutation::LeaseFromRegistrationResponse) {
            now.mono
        } else {
            sent
        };
        let node = self.identity.node.clone();
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        let lease = row.lease.min(self.settings.lease);
        self.membership = Membership::Registered(Box::new(Registration {
            member: member.clone(),
            row: row.clone(),
            revision,
            lease_start: sent,
            tried: None,
            lease,
            longer_until: 0,
            recovered_at: 0,
            pending: false,
            due: sent + self.settings.renew_interval,
            suspended: false,
            claim_check: None,
            claims_at: 0,
            claims_unverified: false,
            is_retiring: false,
        }));
        self.store_last_responded = now.mono;
        self.reapply_all_chunks();
        self.actions.push_back(Action::Registered(member));
        self.actions.push_back(Action::LeaseRenewed { sent_at: sent, lease });
        self.learn(now, RowKey::Node(node.clone()), Row::Node(row), revision);
        // The watch may have delivered a later change of the row before the registration was answered.
        let newer = self.view.nodes.get(&node).filter(|(_, at)| *at > revision).cloned();
        if let Some((row, at)) = newer {
            self.learn_own(now, row, at);
        }
        self.report_soon(now);
    }

    /// This life is over: somebody else may own its shards by now (R7).
    fn fence(&mut self, now: Now) {
        for (shard, own) in std::mem::take(&mut self.held_shards) {
            self.actions.push_back(Action::DropShard { shard, epoch: own.epoch });
            self.mark_released(now, shard, own.epoch);
        }
        if self.is_suspended() {
            // Nothing is left that could go on; the shards of the next life are not suspended.
            self.actions.push_back(Action::Resume);
        }
        self.refused_claims.clear();
        self.awaiting_manager.clear();
        self.manager = None;
        self.leadership_vacant_since = None;
        self.pending_writes.retain(|_, purpose| matches!(purpose, WritePurpose::Drain(_)));
        self.membership = if self.leave_mode == LeaveMode::Stay {
            Membership::Unregistered
        } else {
            Membership::Left
        };
        self.actions.push_back(Action::Fenced);
        if matches!(self.membership, Membership::Left) {
            self.actions.push_back(Action::Left);
        }
        self.watching = false;
        self.list_at = now.mono;
    }
}
