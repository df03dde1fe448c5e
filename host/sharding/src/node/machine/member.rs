//! Membership: registration, the lease, its lapse and its return, and the end of a life (R7 to R9).

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
        (life.due, life.claims_at) = (to.due(life.due), to.due(life.claims_at));
    }
}

impl Machine {
    /// A node stops on its own clock, before anybody else may take its shards (R9, E14).
    pub(super) fn check_lapse(&mut self, now: Now) {
        let lease = self.settings.lease;
        let off = self.off(Mutation::NoSuspend);
        let Membership::In(life) = &mut self.membership else { return };
        if !life.suspended && now.mono.saturating_sub(life.sent) >= lease && !off {
            life.suspended = true;
            life.unsure = true;
            life.claims = None;
            self.actions.push_back(Action::Suspend);
            self.note(Notice::Lapsed);
        }
    }

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
            && !self.view.still(&node, now.mono, self.settings.lease + self.settings.margin)
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
            draining: self.drains_on,
            store_answers: true,
            roles: self.identity.roles,
            version: self.identity.version,
            since: now.cluster,
            addresses: self.identity.addresses.clone(),
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
        let node = self.identity.node.clone();
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        self.membership = Membership::In(Box::new(Life {
            member: member.clone(),
            row: row.clone(),
            revision,
            sent,
            tried: None,
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
        self.drains_on = false;
        self.seen.clear();
        self.actions.push_back(Action::Registered(member));
        self.actions.push_back(Action::Renewed { sent });
        self.learn(now, Key::Node(node), Row::Node(row), revision);
        self.report_soon(now);
    }

    fn renew(&mut self, now: Now) {
        let answers = self.store_answers(now);
        let drain = self.leaving != Leaving::No;
        let Membership::In(life) = &mut self.membership else { return };
        life.pending = true;
        life.due = now.mono + self.settings.renew;
        life.tried.get_or_insert(now.mono);
        let row = NodeRow {
            renewals: life.row.renewals + 1,
            store_answers: answers,
            draining: life.row.draining || drain,
            ..life.row.clone()
        };
        let (key, expected) = (Key::Node(life.member.node.clone()), life.revision);
        self.write(Purpose::Renew(row.clone(), now.mono), key, Some(expected), Row::Node(row));
    }

    /// A renewal's answer was lost, and the read after it too, or it is late.
    fn read_own(&mut self, now: Now) {
        let waits = |purpose: &Purpose| matches!(purpose, Purpose::Renew(..) | Purpose::Goodbye);
        if self.writes.values().any(waits) {
            return;
        }
        let Membership::In(life) = &mut self.membership else { return };
        life.due = now.mono + self.settings.retry;
        self.actions.push_back(Action::Read(Key::Node(life.member.node.clone())));
    }

    /// Renews at once, for what the row is to say.
    pub(super) fn renew_soon(&mut self, now: Now) {
        if let Membership::In(life) = &mut self.membership {
            life.due = now.mono;
        }
    }

    pub(super) fn renewed(
        &mut self,
        now: Now,
        row: NodeRow,
        sent: u64,
        result: Result<u64, WriteError>,
    ) {
        let Membership::In(life) = &mut self.membership else { return };
        if life.member.incarnation != row.incarnation {
            return;
        }
        life.pending = false;
        let key = Key::Node(life.member.node.clone());
        match result {
            Ok(revision) => {
                if revision >= life.revision {
                    life.row = row.clone();
                    life.revision = revision;
                }
                life.tried = None;
                self.count_renewal(now, sent);
                self.learn(now, key, Row::Node(row), revision);
            }
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, key, row, revision);
                self.renew_soon(now);
            }
            Err(WriteError::Conflict(None)) => self.fence(now),
            Err(WriteError::Unknown) => {
                life.pending = true;
                life.due = now.mono + self.settings.retry;
                self.actions.push_back(Action::Read(key));
            }
        }
    }

    /// A renewal has succeeded: the lease counts from when it was sent.
    fn count_renewal(&mut self, now: Now, sent: u64) {
        let Membership::In(life) = &mut self.membership else { return };
        if sent <= life.sent {
            return;
        }
        if sent - life.sent >= self.settings.lease {
            life.back = now.mono;
        }
        life.sent = sent;
        self.actions.push_back(Action::Renewed { sent });
        self.report_soon(now);
    }

    /// The answer to a read of the own row, after a renewal whose answer was lost.
    pub(super) fn answer_read(&mut self, now: Now, key: &Key, value: Option<&(Row, u64)>) {
        let Membership::In(life) = &mut self.membership else { return };
        let waits = |purpose: &Purpose| matches!(purpose, Purpose::Renew(..) | Purpose::Goodbye);
        let waits = self.writes.values().any(waits);
        if *key != Key::Node(life.member.node.clone()) || waits {
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
    pub(super) fn learn_own(&mut self, now: Now, row: NodeRow, revision: u64) {
        let Membership::In(life) = &mut self.membership else { return };
        if revision < life.revision {
            return;
        }
        let goodbye = (self.leaving != Leaving::No || life.ending) && self.held.is_empty();
        let stopped = row.standing == Standing::Stopped;
        if row.incarnation == life.member.incarnation && stopped && goodbye {
            // Its goodbye, which the watch told sooner than its answer came.
            self.left(now);
        } else if row.incarnation != life.member.incarnation || row.standing != Standing::Live {
            self.fence(now);
        } else if revision > life.revision {
            // A renewal under way will conflict, and come again; unless this is what it wrote.
            let own = if row.renewals > life.row.renewals { life.tried.take() } else { None };
            life.row = row;
            life.revision = revision;
            if let Some(sent) = own {
                self.count_renewal(now, sent);
            }
        }
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

    /// Whether the `EntityStore` answered within the last lease (R9).
    pub(super) fn store_answers(&self, now: Now) -> bool {
        now.mono.saturating_sub(self.store_answered) < self.settings.lease
    }

    /// Whether a node that could use its `EntityStore` has not been answered for one lease (R9). While its own lease
    /// is lapsed nobody can say.
    pub(super) fn without_store(&self, now: Now) -> bool {
        let lease = self.settings.lease;
        let Membership::In(life) = &self.membership else { return false };
        let lapsed = now.mono.saturating_sub(life.sent) >= lease;
        !lapsed && now.mono.saturating_sub(self.store_answered.max(life.back)) >= lease
    }

    /// After a lapse: a renewal of the same life, then its claims read back unchanged (R9).
    fn try_resume(&mut self, now: Now) {
        let lease = self.settings.lease;
        let blindly = self.off(Mutation::ResumeBlindly);
        // Those that claim too: word that a claim was granted may be on its way.
        let held: Vec<_> = self.held.iter().map(|(shard, own)| (*shard, own.epoch)).collect();
        let Membership::In(life) = &mut self.membership else { return };
        if !life.suspended || now.mono.saturating_sub(life.sent) >= lease || life.claims.is_some() {
            return;
        }
        if life.unsure && !held.is_empty() && !blindly {
            if now.mono < life.claims_at {
                return;
            }
            self.numbers += 1;
            let number = self.numbers;
            let shards = held.iter().map(|(shard, _)| *shard).collect();
            life.claims = Some((number, held));
            self.actions.push_back(Action::ReadClaims { number, shards });
            return;
        }
        life.suspended = false;
        life.unsure = false;
        self.store_answered = self.store_answered.max(now.mono);
        self.actions.push_back(Action::Resume);
        self.note(Notice::Resumed);
        self.seen.clear();
    }

    pub(super) fn on_claims(&mut self, now: Now, number: u64, claims: Option<Vec<Option<Claim>>>) {
        let Membership::In(life) = &mut self.membership else { return };
        let Some((_, asked)) = life.claims.take_if(|(asked, _)| *asked == number) else { return };
        let Some(claims) = claims else {
            life.claims_at = now.mono + self.settings.retry;
            return;
        };
        life.unsure = false;
        let me = life.member.clone();
        let mut changed = Vec::new();
        for ((shard, epoch), claim) in asked.into_iter().zip(claims) {
            let mine = claim.as_ref().is_some_and(|claim| {
                claim.epoch == epoch && claim.node == me.node && claim.incarnation == me.incarnation
            });
            if !mine {
                changed.push((shard, epoch, claim.map(|claim| claim.epoch)));
            }
        }
        for (shard, epoch, standing) in changed {
            // One that claims has not its claim yet, and will be told if another stands above it.
            let lost = |own: &Own| own.epoch == epoch && (own.serving || standing > Some(epoch));
            if self.held.get(&shard).is_some_and(lost) {
                self.actions.push_back(Action::Forget { shard, epoch });
                self.on_lost(now, shard, epoch, standing);
            }
        }
    }

    /// Leaving: first by hand-offs, then by stopping what is left, then the goodbye (S10, K35). A life that ends itself
    /// stops at once.
    pub(super) fn drive_leaving(&mut self, now: Now) {
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
        if !ending && !life.row.draining && !life.pending {
            self.renew_soon(now);
            self.drive_membership(now);
            return;
        }
        let me = life.member.clone();
        let others = self.view.all_live().any(|(node, row)| {
            *node != me.node && row.roles.host && !row.draining && row.store_answers
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

    pub(super) fn said_goodbye(&mut self, now: Now, result: Result<u64, WriteError>) {
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
    fn left(&mut self, now: Now) {
        if self.leaving == Leaving::No {
            // Only this life is over. What an operator wants of the node holds for the next one.
            self.drains_on = matches!(&self.membership, Membership::In(life) if life.row.draining);
            return self.fence(now);
        }
        self.membership = Membership::Left;
        self.manager = None;
        self.actions.push_back(Action::Left);
    }
}
