//! Clients that keep no rule, over machines that share one cap: whatever comes, every request ends once, no turn
//! takes effect twice, a lane has one home, and when all is quiet nothing is left in memory.
//!
//! The world of `world.rs` asks whether honest clients get what was promised; here nobody is honest but about a
//! message's age. Time, the store's answers and turns' ends come in any order that their contracts allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use ostraca_sharding::ids::{
    ClusterId, Digest, Entity, Epoch, Incarnation, MessageId, Session, ShardId, ShardKey, TurnId,
};
use ostraca_sharding::message::{Kind, Message, Now, Outcome, Token};
use ostraca_sharding::records::{Answer, Claim, Commit, RecordKey};
use ostraca_sharding::shard::{
    Action, Activation, Event, LiveCap, Machine, Owner, Phase, Settings, StopReason, Turn,
    TurnResult, TypeSettings,
};

use crate::rng::Rng;
use crate::store::{self, Request, Store};

const LEASE: u64 = 600;
const LANE_LIFE: u64 = 1_500;
const MAILBOX: usize = 6;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every promise that was broken.
    pub breaches: Vec<String>,
    /// Requests that were answered, by their end.
    pub ends: BTreeMap<String, u64>,
}

/// Something that a shard's node has under way.
enum Under {
    Store(Request, u64),
    Turn { entity: Entity, generation: u64, turn: TurnId, run: Option<Arc<Message>> },
}

struct Shard {
    machine: Machine,
    store: Store,
    /// In the order asked: the store keeps it.
    asked: VecDeque<Under>,
    turns: Vec<Under>,
    instances: BTreeMap<Entity, u64>,
    epoch: u64,
    over: bool,
}

struct Rig {
    rng: Rng,
    now: u64,
    shards: Vec<Shard>,
    cap: LiveCap,
    most: usize,
    tokens: u64,
    open: BTreeSet<Token>,
    first_sent: BTreeMap<(Entity, MessageId), u64>,
    ran: BTreeMap<TurnId, (Entity, MessageId)>,
    revision: u64,
    report: Report,
    faults: bool,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let most = rng.range(1, 4) as usize;
    let mut rig = Rig {
        now: 10_000,
        shards: Vec::new(),
        cap: LiveCap::new(most),
        most,
        tokens: 0,
        open: BTreeSet::new(),
        first_sent: BTreeMap::new(),
        ran: BTreeMap::new(),
        revision: 1,
        report: Report::default(),
        faults: true,
        rng,
    };
    for number in 0..2 {
        let machine = rig.machine(number, 1);
        rig.shards.push(Shard {
            machine,
            store: Store::new(Vec::new()),
            asked: VecDeque::new(),
            turns: Vec::new(),
            instances: BTreeMap::new(),
            epoch: 1,
            over: false,
        });
        rig.begin(number);
    }
    for _ in 0..1_500 {
        rig.step();
        if !rig.report.breaches.is_empty() {
            return rig.report;
        }
    }
    rig.quiet();
    rig.report
}

impl Rig {
    fn machine(&mut self, shard: usize, epoch: u64) -> Machine {
        let settings = Settings {
            lease: LEASE,
            order_wait: 60,
            gate: 3,
            copies: 3,
            lanes: 4,
            lane_life: LANE_LIFE,
            unsettled_bytes: 900,
            head_lane_bytes: self.rng.range(0, 250) as usize,
            activation_wait: 200,
            claim_retry: 20,
            stop_deadline: 150,
            ..Settings::default()
        };
        let shard = ShardKey {
            namespace: "n".into(),
            pool: "p".into(),
            shard: ShardId(u32::try_from(shard).unwrap_or(0)),
        };
        let incarnation = Incarnation { counter: 1, nonce: 7 };
        let cluster = ClusterId(1);
        Machine::new(
            settings,
            Owner { cluster, shard, epoch: Epoch(epoch), node: "a".into(), incarnation },
        )
    }

    fn begin(&mut self, shard: usize) {
        self.carry_out(shard);
        self.deploy(shard);
        self.tell(shard, Event::Renewed { sent: self.now });
    }

    fn deploy(&mut self, shard: usize) {
        for (kind, has_stop) in [("plain", false), ("stops", true)] {
            let settings =
                TypeSettings { revision: self.revision, mailbox: MAILBOX, idle: 120, has_stop };
            self.tell(shard, Event::Type { kind: kind.into(), settings });
        }
    }

    fn step(&mut self) {
        let shard = self.rng.range(0, 2) as usize;
        match self.rng.range(0, 100) {
            0..=34 => self.send(shard),
            35..=59 => self.store(shard),
            60..=79 => self.turn(shard),
            80..=93 => self.pass(1, 30),
            94 => self.pass(100, 900),
            95 if self.rng.chance(30) => {
                self.revision += 1;
                (0..2).for_each(|shard| self.deploy(shard));
            }
            96 if self.rng.chance(30) => self.tell(shard, Event::Stop(StopReason::HandedOff)),
            97 if self.rng.chance(30) => self.steal(shard),
            97 if self.rng.chance(30) => self.forget(shard),
            98 => self.pass(500, 3_000),
            99 => self.suspend_or_resume(shard),
            _ => self.renew(),
        }
        self.again();
    }

    /// The node knows that the shard is another's: nothing is left, whatever was under way.
    fn forget(&mut self, shard: usize) {
        self.tell(shard, Event::Forget);
        let it = &mut self.shards[shard];
        it.over = true;
        if it.machine.load().0 > 0 || !it.instances.is_empty() {
            self.report.breaches.push("a forgotten shard has something left".into());
        }
    }

    fn suspend_or_resume(&mut self, shard: usize) {
        let suspended = self.shards[shard].machine.suspended();
        self.tell(shard, if suspended { Event::Resume } else { Event::Suspend });
    }

    /// A shard that came to its end is assigned anew.
    fn again(&mut self) {
        for shard in 0..self.shards.len() {
            let it = &self.shards[shard];
            let at_rest = it.asked.is_empty() && it.turns.is_empty();
            if self.faults && it.over && at_rest && self.rng.chance(20) {
                let epoch = it.epoch + 2;
                let machine = self.machine(shard, epoch);
                let it = &mut self.shards[shard];
                (it.machine, it.epoch, it.over) = (machine, epoch, false);
                self.begin(shard);
            }
        }
    }

    /// Another node claims the shard.
    fn steal(&mut self, shard: usize) {
        let it = &mut self.shards[shard];
        let claim = Claim {
            epoch: Epoch(it.epoch + 1),
            node: "b".into(),
            ..Claim::clone(it.machine.claim())
        };
        it.store.request(0, Request::Claim(claim.into()));
        it.store.sync();
    }

    fn pass(&mut self, low: u64, high: u64) {
        self.now += self.rng.range(low, high);
        for shard in 0..self.shards.len() {
            if self.shards[shard].machine.wake().is_some_and(|wake| wake <= self.now) {
                self.tell(shard, Event::Tick);
            }
        }
        if self.rng.chance(60) {
            self.renew();
        }
    }

    fn renew(&mut self) {
        (0..self.shards.len())
            .for_each(|shard| self.tell(shard, Event::Renewed { sent: self.now }));
    }

    fn number(&mut self, near: u64) -> u64 {
        match self.rng.range(0, 12) {
            0 => u64::MAX,
            1 => u64::MAX - 1,
            2..=5 => 0,
            6..=8 => near.saturating_sub(1),
            9 => near,
            _ => self.rng.range(0, 25),
        }
    }

    fn send(&mut self, shard: usize) {
        let kind = ["plain", "stops", "none"]
            [if self.rng.chance(2) { 2 } else { self.rng.range(0, 2) as usize }];
        let target = Entity::new(kind, format!("{shard}/{}", self.rng.range(0, 3)));
        let session = Session::of("client/x", &[self.rng.range(0, 6) as u8]);
        // Sequences rise with time, so that they do not run out.
        let sequence = match self.rng.range(0, 400) {
            0 => u64::MAX,
            1 => 0,
            _ => (self.now / 100).saturating_sub(self.rng.range(0, 12)),
        };
        let id = MessageId { session, sequence };
        let query = self.rng.chance(25);
        let method = if query { "get" } else { "put" };
        let body = vec![0; if self.rng.chance(5) { 3 } else { 1 }];
        let first = *self.first_sent.entry((target.clone(), id)).or_insert(self.now);
        let honest = self.now - first;
        self.tokens += 1;
        let message = Message {
            token: Token(self.tokens),
            digest: Digest::of(&target, method, &body),
            target,
            id,
            after: self.number(sequence),
            settled: self.number(sequence),
            kind: if query { Kind::Query } else { Kind::Command },
            method: method.into(),
            body: body.into(),
            age: if self.rng.chance(2) { u64::MAX } else { honest },
            arrived: self.now,
            deadline: match self.rng.range(0, 5) {
                0 => Some(self.now + self.rng.range(0, 120)),
                1 => Some(u64::MAX),
                _ => None,
            },
            context: Default::default(),
        };
        self.open.insert(message.token);
        self.tell(shard, Event::Message(Arc::new(message)));
    }

    /// The store answers what it was asked first.
    fn store(&mut self, shard: usize) {
        let Some(Under::Store(request, generation)) = self.shards[shard].asked.pop_front() else {
            return;
        };
        let fault = if self.faults { self.rng.range(0, 60) } else { 60 };
        let it = &mut self.shards[shard];
        let answer = match fault {
            0 => store::refusal(&request, "no"),
            1 if matches!(request, Request::Commit(_)) => {
                store::unknown(store::refusal(&request, "lost"), "lost")
            }
            _ => {
                let mut answers = it.store.request(1, request);
                answers.extend(it.store.sync());
                let Some((_, answer)) = answers.pop() else { return };
                if fault == 2 { store::unknown(answer, "unheard") } else { answer }
            }
        };
        self.look(shard);
        let event = match answer {
            store::Answer::Claim(outcome) => {
                let number = self.shards[shard].machine.claim().number;
                Event::Claimed { number, outcome }
            }
            store::Answer::Commit(outcomes) => Event::Committed(outcomes),
            store::Answer::Load(entity, result) => Event::Loaded { entity, generation, result },
            store::Answer::State(entity, Ok(_)) => {
                let writes = self.rng.chance(20);
                let result = Activation::Started(self.answer(writes, false));
                Event::Activated { entity, generation, result }
            }
            store::Answer::State(entity, Err(message)) => {
                let result =
                    Activation::Failed { code: "no".into(), message, retry_after: Some(20) };
                Event::Activated { entity, generation, result }
            }
        };
        self.tell(shard, event);
    }

    /// What the store has must be whole, whatever happened.
    fn look(&mut self, shard: usize) {
        let image = self.shards[shard].store.durable();
        let mut seen = BTreeSet::new();
        for (entity, _, turn) in &image.turns {
            if let Some(id) = self.ran.get(turn)
                && !seen.insert(id)
            {
                self.report.breaches.push(format!("{entity}: {id:?} took effect twice"));
            }
        }
        for (entity, head) in &image.heads {
            let beside: Vec<Session> = image
                .records
                .keys()
                .filter_map(|(of, key)| match key {
                    RecordKey::Lane(session) if of == entity => Some(*session),
                    _ => None,
                })
                .collect();
            if head.lanes.iter().any(|lane| beside.contains(&lane.session)) {
                self.report.breaches.push(format!("{entity}: a lane has two homes"));
            }
            if head.lanes_beside as usize != beside.len() {
                let said = head.lanes_beside;
                let text = format!("{entity}: {} lanes beside the head, not {said}", beside.len());
                self.report.breaches.push(text);
            }
        }
    }

    fn answer(&mut self, writes: bool, refuses: bool) -> Turn {
        let answer = if refuses {
            Answer::Error { code: "no".into(), message: String::new() }
        } else {
            Answer::Result(vec![0; self.rng.range(0, 120) as usize].into())
        };
        let value = (Bytes::from_static(b"k"), Some(Bytes::from_static(b"v")));
        Turn {
            result: TurnResult::Answered(answer),
            writes: if writes && !refuses { vec![value] } else { Vec::new() },
            state_bytes: None,
            passivate: self.rng.chance(3),
        }
    }

    /// One of the running turns ends.
    fn turn(&mut self, shard: usize) {
        let count = self.shards[shard].turns.len() as u64;
        if count == 0 {
            return;
        }
        let at = self.rng.range(0, count) as usize;
        let Under::Turn { entity, generation, turn, run } =
            self.shards[shard].turns.swap_remove(at)
        else {
            return;
        };
        let writes = run.as_ref().is_none_or(|message| message.kind == Kind::Command);
        let refuses = run.is_some() && self.rng.chance(10);
        let mut result = self.answer(writes, refuses);
        if self.faults && self.rng.chance(5) {
            let retry_after = self.rng.chance(50).then_some(10);
            result.result =
                TurnResult::Failed { code: "trap".into(), message: String::new(), retry_after };
            result.writes.clear();
        }
        self.tell(shard, Event::TurnDone { entity, generation, turn, result });
    }

    fn tell(&mut self, shard: usize, event: Event) {
        let now = Now { mono: self.now, cluster: self.now };
        self.shards[shard].machine.handle(now, event);
        self.carry_out(shard);
        self.give_room();
    }

    fn give_room(&mut self) {
        loop {
            let (holder, event) = if let Some(((shard, entity), generation)) = self.cap.grant() {
                (shard, Event::Slot { entity, generation })
            } else if let Some((shard, entity)) = self.cap.evict() {
                (shard, Event::Evict { entity })
            } else {
                break;
            };
            let shard = holder.shard.0 as usize;
            let now = Now { mono: self.now, cluster: self.now };
            self.shards[shard].machine.handle(now, event);
            self.carry_out(shard);
        }
        if self.cap.held() > self.most {
            self.report.breaches.push("more slots are held than there are".into());
        }
    }

    fn carry_out(&mut self, shard: usize) {
        let mut commits: Vec<Commit> = Vec::new();
        while let Some(action) = self.shards[shard].machine.poll() {
            self.act(shard, action, &mut commits);
        }
        if !commits.is_empty() {
            self.ask(shard, Request::Commit(commits), 0);
        }
    }

    fn ask(&mut self, shard: usize, request: Request, generation: u64) {
        self.shards[shard].asked.push_back(Under::Store(request, generation));
    }

    fn act(&mut self, shard: usize, action: Action, commits: &mut Vec<Commit>) {
        let key = self.shards[shard].machine.owner().shard.clone();
        let starts =
            matches!(action, Action::Activate { .. } | Action::Run { .. } | Action::Stop { .. });
        if starts && self.shards[shard].machine.suspended() {
            let text = format!("a turn started while its shard was suspended: {action:?}");
            self.report.breaches.push(text);
        }
        match action {
            Action::Claim(claim) => self.ask(shard, Request::Claim(claim), 0),
            Action::Commit(commit) => commits.push(*commit),
            Action::Load { entity, generation } => {
                self.ask(shard, Request::Load(entity), generation);
            }
            Action::WantSlot { entity, generation } => self.cap.want((key, entity), generation),
            Action::FreeSlot { entity, generation } => self.cap.free(&(key, entity), generation),
            Action::Busy { entity } => self.cap.refused(&(key, entity)),
            Action::Idle { entity } => self.cap.idle((key, entity)),
            Action::Activate { entity, generation, .. } => {
                if self.shards[shard].instances.insert(entity.clone(), generation).is_some() {
                    self.report.breaches.push(format!("{entity} has two instances"));
                }
                self.ask(shard, Request::State(entity), generation);
            }
            Action::Run { generation, turn, message, .. } => {
                self.cap.busy(&(key, message.target.clone()));
                self.ran.insert(turn, (message.target.clone(), message.id));
                self.start(shard, message.target.clone(), generation, turn, Some(message));
            }
            Action::Stop { entity, generation, turn, .. } => {
                self.start(shard, entity, generation, turn, None);
            }
            Action::Drop { entity, generation } => {
                if self.shards[shard].instances.remove(&entity) != Some(generation) {
                    self.report.breaches.push(format!("{entity}: no such instance to drop"));
                }
            }
            Action::Reply { token, outcome } => self.reply(token, &outcome),
            Action::Lost { .. } => self.end(shard),
            Action::Stopped => {
                let it = &self.shards[shard];
                let asks = it.asked.iter().any(|under| {
                    matches!(under, Under::Store(Request::Claim(_) | Request::Commit(_), _))
                });
                if asks || !commits.is_empty() || !it.instances.is_empty() {
                    self.report.breaches.push("stopped was said too early".into());
                }
                self.end(shard);
            }
        }
    }

    fn end(&mut self, shard: usize) {
        if std::mem::replace(&mut self.shards[shard].over, true) {
            self.report.breaches.push("a machine came to its end twice".into());
        }
    }

    fn start(
        &mut self,
        shard: usize,
        entity: Entity,
        generation: u64,
        turn: TurnId,
        run: Option<Arc<Message>>,
    ) {
        if self.shards[shard].instances.get(&entity) != Some(&generation) {
            self.report.breaches.push(format!("{entity} runs without an instance"));
        }
        self.shards[shard].turns.push(Under::Turn { entity, generation, turn, run });
    }

    fn reply(&mut self, token: Token, outcome: &Outcome) {
        if !self.open.remove(&token) {
            self.report.breaches.push(format!("a second reply to {token:?}: {outcome:?}"));
        }
        let end = match outcome {
            Outcome::Final { .. } => "final".into(),
            Outcome::NotRun { code, .. } => code.to_string(),
            Outcome::Unknown { .. } => "unknown".into(),
        };
        *self.report.ends.entry(end).or_default() += 1;
    }

    /// Nothing new comes and nothing fails: everything must end.
    fn quiet(&mut self) {
        self.faults = false;
        for shard in 0..self.shards.len() {
            self.tell(shard, Event::Resume);
        }
        for _ in 0..2_000 {
            for shard in 0..self.shards.len() {
                self.store(shard);
                self.turn(shard);
            }
            self.pass(1, 30);
            self.renew();
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let (entities, _) = shard.machine.load();
            if entities > 0 {
                let phase = shard.machine.phase();
                let text = format!(
                    "shard {number}, {phase:?}: {entities} entities are left: {:?}",
                    shard.machine
                );
                self.report.breaches.push(text);
            }
            if shard.machine.phase() == Phase::Stopping || !shard.instances.is_empty() {
                self.report.breaches.push(format!("shard {number} did not come to its end"));
            }
        }
        if !self.open.is_empty() {
            self.report.breaches.push(format!("never answered: {:?}", self.open));
        }
        if self.cap.held() > 0 {
            self.report.breaches.push(format!("{} slots are held by nobody", self.cap.held()));
        }
    }
}
