//! Membership: registration, the lease, its lapse and its return, and the end of a life (R7 to R9).

mod agreed;
mod lapse;
mod leaving;
mod renewal;

use super::*;

/// Where this node stands in the cluster.
#[derive(Clone, Debug, Hash)]
pub(super) enum Membership {
    /// Not registered, and nothing about it under way.
    Outside,
    /// A write of the own row is under way, or its answer was lost and the row is being read.
    Registering,
    /// Registered.
    In(Box<Life>),
    /// It said goodbye.
    Left,
}

/// One registered life.
#[derive(Clone, Debug, Hash)]
pub(super) struct Life {
    pub(super) member: Member,
    pub(super) row: NodeRow,
    pub(super) revision: u64,
    /// When the last renewal that succeeded was sent: the lease counts from there (R8).
    sent: u64,
    /// When the first renewal was sent after the one that `row` shows. Should the row show another one, whoever tells it
    /// and whatever became of the answer, this is the latest that the lease may count from (R8).
    tried: Option<u64>,
    /// How long `sent` may be relied on: never longer than the row says.
    lease: u64,
    /// Until when a longer lease may still be relied on somewhere: until then the row says so.
    longer_until: u64,
    /// When a renewal last ended a lapse.
    back: u64,
    /// A renewal, or a read after a lost one, is under way.
    pending: bool,
    /// When the next renewal is due.
    due: u64,
    pub(super) suspended: bool,
    /// The claims that are being read before this life goes on, by number; and what they were of.
    claims: Option<(u64, Vec<(ShardId, Epoch)>)>,
    /// When they may be asked for again.
    claims_at: u64,
    /// Claims must be read.
    unsure: bool,
    /// It ends itself, for another to register: the manager does not hear it.
    pub(super) ending: bool,
}

impl Membership {
    pub(super) fn member(&self) -> Option<&Member> {
        match self {
            Self::In(life) => Some(&life.member),
            _ => None,
        }
    }

    pub(super) fn suspended(&self) -> bool {
        matches!(self, Self::In(life) if life.suspended)
    }

    pub(super) fn ending(&self) -> bool {
        matches!(self, Self::In(life) if life.ending)
    }

    pub(super) fn due(&self) -> u64 {
        match self {
            Self::In(life) if !life.pending => life.due,
            _ => u64::MAX,
        }
    }

    pub(super) fn reads_claims(&self) -> bool {
        matches!(self, Self::In(life) if life.claims.is_some())
    }

    pub(super) fn make_relative(&mut self, me: &NodeId, to: &dyn Relative) {
        let Self::In(life) = self else { return };
        life.row.renewals = to.renewals(me, life.row.renewals);
        life.revision = to.revision(&Key::Node(me.clone()), life.revision);
        life.tried = life.tried.map(|at| to.time(at));
        (life.sent, life.back) = (to.time(life.sent), to.time(life.back));
        life.longer_until = to.time(life.longer_until);
        (life.due, life.claims_at) = (to.due(life.due), to.due(life.claims_at));
    }
}

impl Machine {
    pub(super) fn drive_membership(&mut self, now: Now) {
        match &self.membership {
            Membership::Outside if self.watching && self.leaving == Leaving::No => {
                self.try_register(now);
            }
            Membership::In(life) if now.mono < life.due => {}
            Membership::In(life) if !life.pending => self.renew(now),
            Membership::In(_) => self.read_own(now),
            _ => {}
        }
        self.try_resume(now);
    }

    fn try_register(&mut self, now: Now) {
        let node = self.identity.node.clone();
        let known = self.view.nodes.get(&node).cloned();
        if let Some((row, _)) = &known
            && row.standing == Standing::Live
            && !self.settings.embedded
            && !self.off(Mutation::RegisterAtOnce)
            && !self.view.still(&node, now.mono, row.lease + self.settings.margin)
        {
            // A life of this name may still own shards: its lease must lapse first (R7).
            let (incarnation, renewals) = (row.incarnation, row.renewals);
            return self.watch_rival(now, incarnation, renewals);
        }
        self.rival = None;
        let counter = known.as_ref().map_or(0, |(row, _)| row.incarnation.counter) + 1;
        let row = NodeRow {
            incarnation: Incarnation { counter, nonce: self.draw() },
            renewals: 0,
            standing: Standing::Live,
            // What an operator wants of the node holds for all its lives, until it is undone.
            draining: known.as_ref().is_some_and(|(row, _)| row.draining),
            store_answers: true,
            roles: self.identity.roles,
            version: self.identity.version,
            since: now.cluster,
            addresses: self.identity.addresses.clone(),
            format: u32::from(FORMAT),
            lease: self.settings.lease,
            settings: self.settings.revision,
            // The row describes a life: what another release noted of the last one ends with it.
            extensions: Extensions::default(),
        };
        let row = match self.wall {
            Some(wall) => row.registered_at(wall),
            None => row,
        };
        self.membership = Membership::Registering;
        let expected = known.map(|(_, revision)| revision);
        let purpose = Purpose::Register(row.clone(), now.mono);
        self.write(purpose, Key::Node(node), expected, Row::Node(row));
    }

    /// A lease that goes on being renewed is another process's: it is said once a lease. One renewal may have been on
    /// its way when its node died.
    fn watch_rival(&mut self, now: Now, incarnation: Incarnation, renewals: u64) {
        let seen = ((incarnation, renewals), now.mono + self.settings.lease);
        let Some(((life, count), look_at)) = self.rival else {
            self.rival = Some(seen);
            return;
        };
        if now.mono >= look_at && (life != incarnation || renewals >= count + 2) {
            self.rival = Some(seen);
            let node = self.identity.node.clone();
            self.note(Notice::NameInUse(Member { node, incarnation }));
        }
    }

    pub(super) fn registered(
        &mut self,
        now: Now,
        row: NodeRow,
        sent: u64,
        result: Result<u64, WriteError>,
    ) {
        let key = Key::Node(self.identity.node.clone());
        match result {
            Ok(revision) => self.join(now, row, revision, sent),
            Err(WriteError::Conflict(value)) => {
                self.membership = Membership::Outside;
                if let Some((row, revision)) = value {
                    self.learn(now, key, row, revision);
                }
            }
            Err(WriteError::Unknown) => {
                // Whether it was written or not, another life is tried once this one's row is known. One that was
                // written without our knowing lapses like any other: nothing was ever done in its name.
                self.membership = Membership::Outside;
                self.watching = false;
                self.list_at = now.mono + self.settings.retry;
            }
        }
    }

    fn join(&mut self, now: Now, row: NodeRow, revision: u64, sent: u64) {
        let sent = if self.off(Mutation::RegisteredByAnswer) { now.mono } else { sent };
        let node = self.identity.node.clone();
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        let lease = row.lease.min(self.settings.lease);
        self.membership = Membership::In(Box::new(Life {
            member: member.clone(),
            row: row.clone(),
            revision,
            sent,
            tried: None,
            lease,
            longer_until: 0,
            back: 0,
            pending: false,
            due: sent + self.settings.renew,
            suspended: false,
            claims: None,
            claims_at: 0,
            unsure: false,
            ending: false,
        }));
        self.store_answered = now.mono;
        self.forget_seen();
        self.actions.push_back(Action::Registered(member));
        self.actions.push_back(Action::Renewed { sent, lease });
        self.learn(now, Key::Node(node.clone()), Row::Node(row), revision);
        // The watch may have delivered a later change of the row before the registration was answered.
        let newer = self.view.nodes.get(&node).filter(|(_, at)| *at > revision).cloned();
        if let Some((row, at)) = newer {
            self.learn_own(now, row, at);
        }
        self.report_soon(now);
    }

    /// This life is over: somebody else may own its shards by now (R7).
    fn fence(&mut self, now: Now) {
        for (shard, own) in std::mem::take(&mut self.held) {
            self.actions.push_back(Action::Forget { shard, epoch: own.epoch });
            self.finish(now, shard, own.epoch);
        }
        if self.suspended() {
            // Nothing is left that could go on; the shards of the next life are not suspended.
            self.actions.push_back(Action::Resume);
        }
        self.refused.clear();
        self.waiting.clear();
        self.manager = None;
        self.vacant = None;
        self.writes.retain(|_, purpose| matches!(purpose, Purpose::Drain(_)));
        self.membership =
            if self.leaving == Leaving::No { Membership::Outside } else { Membership::Left };
        self.actions.push_back(Action::Fenced);
        if matches!(self.membership, Membership::Left) {
            self.actions.push_back(Action::Left);
        }
        self.watching = false;
        self.list_at = now.mono;
    }
}
