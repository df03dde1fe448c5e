//! A model of tells between one sender and one target. Each actor is a production shard [`Machine`]. stateright
//! explores every order of the steps.
//!
//! Real parts: the machines, with lanes, outbox, gate and claims. Simplified parts: the store (a commit is one step,
//! fenced by claim and version), the sandbox (a turn is one step), and the network (a tell and its answer are packets
//! that arrive in any order). When a packet is lost, the sender's machine gets the outcome `unknown`, as it does from
//! the gateway when a link breaks.
//!
//! - Either side may crash before any step. The shard's next epoch starts at once; commits already sent may reach the
//!   store at any later time.
//! - A copy of a tell may arrive at any later time.
//! - After a crash, the sender's client resends its message until it is answered.
//! - Time passes only when nothing else can happen. Leases do not lapse: the cluster model and the simulator cover
//!   that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ostraca_core::codec::decode;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, MessageDigest, MessageId, ScopedSessionId, ShardId,
    ShardPath, TurnId,
};
use ostraca_core::message::{Message, MessageKind, Now, Outcome, ReplyToken};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, GuestReply, Head, LoadedEntity,
    RecordKey, Tell,
};
use ostraca_core::rows::Member;
use ostraca_core::shard::{
    Action, ActivationOutcome, Event, Machine, Mutation, NewTell, Ownership, Settings, TurnOutput,
    TurnResult, TypeSettings,
};
use stateright::{Model, Property};

const TYPE: &str = "t";
const SENDER: usize = 0;
const TARGET: usize = 1;
const LEASE: u64 = 1 << 40;

/// The faults of a run, and the rules that it disables.
#[derive(Clone, Debug, Default)]
pub struct TellScope {
    /// Number of tells that the sender's only turn sends.
    pub tells: usize,
    /// Whether the target refuses the first tell.
    pub refuses: bool,
    /// Maximum number of crashes of the sender's process, and of the target's.
    pub crashes: [u8; 2],
    /// Maximum number of copies of tells.
    pub copies: u8,
    /// Maximum number of packets that are lost.
    pub losses: u8,
    /// Disabled rules.
    pub mutations: Vec<Mutation>,
}

/// A call to the store.
#[derive(Clone, Debug)]
enum Call {
    Claim(Arc<Claim>),
    Load(Entity, u64),
    Scan(u64),
    Commit(Box<Commit>),
}

/// A node's process, which owns one shard.
#[derive(Clone, Debug)]
struct Process {
    machine: Machine,
    /// Calls that the store has not served yet. It serves them in order.
    calls: VecDeque<Call>,
    running: Option<(u64, TurnId, Arc<Message>)>,
}

/// The stored data of a shard.
#[derive(Clone, Debug, Default)]
struct Store {
    claim: Option<Claim>,
    heads: BTreeMap<Entity, Head>,
    records: BTreeMap<(Entity, RecordKey), Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Side {
    process: Process,
    epoch: u64,
    store: Store,
    /// Commits of crashed processes that have not reached the store.
    late: Vec<VecDeque<Call>>,
    /// The message that each turn ran.
    turns: BTreeMap<TurnId, Arc<Message>>,
}

/// A packet in transit between the nodes.
#[derive(Clone, Debug)]
enum Packet {
    /// A tell, with the epoch of the sender's process that sent it.
    Tell {
        epoch: u64,
        number: u64,
        tell: Arc<Tell>,
        is_copy: bool,
    },
    Answer {
        epoch: u64,
        number: u64,
        created_ms: u64,
        outcome: Outcome,
    },
}

/// A state of the model.
#[derive(Clone, Debug)]
pub struct State {
    sides: [Side; 2],
    packets: Vec<Packet>,
    /// Requests that the target's process has not answered yet.
    asked: BTreeMap<ReplyToken, Asked>,
    next_token: u64,
    now: u64,
    crashes: [u8; 2],
    copies: u8,
    losses: u8,
    /// Whether the sender's client has received its answer.
    is_answered: bool,
    /// Numbers of all tells that have ever been in the outbox.
    put: BTreeSet<u64>,
    /// Numbers of the tells that the target has run durably, in order.
    ran: Vec<u64>,
    broken: Option<&'static str>,
    /// Notable events on the path to this state.
    seen: BTreeSet<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    epoch: u64,
    number: u64,
    created_ms: u64,
    is_copy: bool,
}

impl Asked {
    /// The gateway answers a tell once: the answer to a copy is dropped.
    fn answer(self, outcome: Outcome) -> Option<Packet> {
        let Self { epoch, number, created_ms, is_copy } = self;
        (!is_copy).then_some(Packet::Answer { epoch, number, created_ms, outcome })
    }
}

impl State {
    /// The text by which states are compared. It contains every field of the machines.
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.text().hash(hasher);
    }
}

/// One possible step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The store serves the oldest call of this side's process.
    Serve(usize),
    /// The store receives the oldest commit of a crashed process.
    ServeLate(usize, usize),
    /// The guest of this side completes its turn.
    Finish(usize),
    /// A packet arrives.
    Deliver(usize),
    /// A packet is lost.
    Lose(usize),
    /// A packet is copied.
    Copy(usize),
    /// This side's process crashes, and the shard's next epoch starts.
    Crash(usize),
    /// Time passes until a machine has something to do.
    Wait,
}

/// The model to check, for one scope.
#[derive(Clone, Debug)]
pub struct Tells {
    /// The scope.
    pub scope: TellScope,
}

fn entity(side: usize) -> Entity {
    Entity::new(TYPE, if side == SENDER { "sender" } else { "target" })
}

fn process(scope: &TellScope, side: usize, epoch: u64) -> Process {
    let path = ShardPath {
        namespace: "n".into(),
        pool: "p".into(),
        shard: ShardId(u32::try_from(side + 1).unwrap_or(0)),
    };
    let owner = Ownership {
        cluster: ClusterId(1),
        shard: path,
        epoch: Epoch(epoch),
        owner: Member {
            node: format!("n{side}").as_str().into(),
            incarnation: Incarnation { counter: epoch, nonce: epoch },
        },
    };
    let settings = Settings { mutations: scope.mutations.clone(), ..Settings::default() };
    let machine = Machine::new(settings, owner);
    Process { machine, calls: VecDeque::new(), running: None }
}

fn replied(writes: bool) -> TurnOutput {
    let result = TurnResult::Replied(GuestReply::Result(bytes::Bytes::new()));
    let mut output = TurnOutput::without_effects(result);
    if writes {
        output.writes.push((bytes::Bytes::from_static(b"k"), Some(bytes::Bytes::new())));
    }
    output
}

impl Tells {
    fn begin(&self) -> State {
        let side = |side| Side {
            process: process(&self.scope, side, 1),
            epoch: 1,
            store: Store::default(),
            late: Vec::new(),
            turns: BTreeMap::new(),
        };
        let mut state = State {
            sides: [side(SENDER), side(TARGET)],
            packets: Vec::new(),
            asked: BTreeMap::new(),
            next_token: 1,
            now: 1_000,
            crashes: self.scope.crashes,
            copies: self.scope.copies,
            losses: self.scope.losses,
            is_answered: false,
            put: BTreeSet::new(),
            ran: Vec::new(),
            broken: None,
            seen: BTreeSet::new(),
        };
        for side in [SENDER, TARGET] {
            self.start(&mut state, side);
        }
        state
    }

    fn start(&self, state: &mut State, side: usize) {
        self.execute(state, side);
        let deployed =
            Event::TypeDeployed { entity_type: TYPE.into(), settings: TypeSettings::default() };
        self.handle(state, side, deployed);
        let renewed = Event::LeaseRenewed { sent_at: state.now, lease: LEASE };
        self.handle(state, side, renewed);
        if side == SENDER && !state.is_answered {
            let message = Message {
                // Tokens of tells count from 1.
                reply_token: ReplyToken(0),
                target: entity(SENDER),
                sender: None,
                asked_by: None,
                id: MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 1 },
                after: 0,
                settled: 0,
                is_keyed: false,
                kind: MessageKind::Command,
                method: "send".into(),
                body: bytes::Bytes::new(),
                digest: MessageDigest::compute(&entity(SENDER), "send", b""),
                created_ms: 1_000,
                first_created_ms: 1_000,
                arrived_at: state.now,
                deadline: None,
                context: Arc::default(),
            };
            self.handle(state, SENDER, Event::Message(Arc::new(message)));
        }
    }

    fn handle(&self, state: &mut State, side: usize, event: Event) {
        let now = Now { mono: state.now, cluster_time: state.now, utc: state.now };
        state.sides[side].process.machine.handle(now, event);
        self.execute(state, side);
    }

    fn execute(&self, state: &mut State, side: usize) {
        while let Some(action) = state.sides[side].process.machine.poll() {
            let it = &mut state.sides[side];
            match action {
                Action::Ask { .. } | Action::AnswerAsk { .. } | Action::SendAskNote { .. } => {}
                Action::ReleaseCall { .. } => {}
                Action::Claim(claim) => it.process.calls.push_back(Call::Claim(claim)),
                // The types of the model have no schemas.
                Action::Migrate { .. } | Action::MigrationFailed { .. } => {}
                // No entity of the model is remembered.
                Action::ScanRemembered { .. } => {}
                // Nobody counts.
                Action::ScanHeads { .. } => {}
                // Nobody reads a channel.
                Action::ReadChannel { .. } => {}
                // And none is deleted.
                Action::ScanKeys { .. } => {}
                Action::ScanWakes { number, .. } => {
                    it.process.calls.push_back(Call::Scan(number));
                }
                Action::Load { entity, generation } => {
                    it.process.calls.push_back(Call::Load(entity, generation));
                }
                Action::Commit(commit) => it.process.calls.push_back(Call::Commit(commit)),
                Action::RequestSlot { entity, generation, .. } => {
                    self.handle(state, side, Event::SlotGranted { entity, generation });
                }
                Action::Activate { entity, generation, .. } => {
                    let result = ActivationOutcome::Started(replied(false));
                    let event = Event::ActivationResult { entity, generation, result };
                    self.handle(state, side, event);
                }
                Action::Run { generation, turn, message, .. } => {
                    it.turns.insert(turn, message.clone());
                    it.process.running = Some((generation, turn, message));
                }
                Action::DropInstance { .. } => it.process.running = None,
                Action::Tell { number, tell, .. } => {
                    let epoch = it.epoch;
                    state.packets.push(Packet::Tell { epoch, number, tell, is_copy: false });
                }
                Action::Reply { token, outcome } if token.0 == 0 => {
                    state.is_answered |= matches!(outcome, Outcome::Final { .. });
                }
                Action::Reply { token, outcome } => {
                    let Some(asked) = state.asked.remove(&token) else {
                        state.broken = Some("a request is answered twice");
                        continue;
                    };
                    state.packets.extend(asked.answer(outcome));
                }
                // Not in this scope.
                Action::Escalate { .. } | Action::ForgetStopped { .. } => {}
                Action::TellGaveUp { .. } if self.scope.refuses => {}
                Action::TellGaveUp { .. } => state.broken = Some("a tell became a dead letter"),
                Action::Lost { .. } | Action::Stopped => {
                    state.broken = Some("a current owner lost its shard");
                }
                Action::AskSender { .. } | Action::Fire { .. } | Action::TimerGaveUp { .. } => {
                    state.broken = Some("an action that has no cause here");
                }
                Action::ReleaseSlot { .. }
                | Action::RefuseEviction { .. }
                | Action::MarkIdle { .. }
                | Action::CallStopHook { .. } => {}
            }
        }
    }

    fn serve(&self, state: &mut State, side: usize) {
        let Some(call) = state.sides[side].process.calls.pop_front() else { return };
        let event = match call {
            Call::Claim(claim) => {
                let store = &mut state.sides[side].store;
                let outcome = match &store.claim {
                    Some(current) if !claim.supersedes(current) => {
                        ClaimOutcome::Refused { current: Box::new(current.clone()) }
                    }
                    _ => ClaimOutcome::Granted,
                };
                if outcome == ClaimOutcome::Granted {
                    store.claim = Some(Claim::clone(&claim));
                }
                Event::ClaimResult { number: claim.number, outcome }
            }
            Call::Load(entity, generation) => {
                let result = Ok(state.sides[side].store.load(&entity));
                Event::Loaded { entity, generation, result }
            }
            Call::Scan(number) => {
                let wakes = state.sides[side].store.wakes();
                Event::WakesScanned { number, page: Ok((wakes, false)) }
            }
            Call::Commit(commit) => {
                let (entity, turn) = (commit.entity.clone(), commit.head.turn);
                let outcome = commit_to_store(state, side, *commit);
                Event::CommitResults(vec![(entity, turn, outcome)])
            }
        };
        self.handle(state, side, event);
    }

    fn finish(&self, state: &mut State, side: usize) {
        let Some((generation, turn, message)) = state.sides[side].process.running.take() else {
            return;
        };
        let mut result = replied(true);
        if side == SENDER {
            let tell = |at: usize| NewTell {
                target: entity(TARGET),
                method: format!("told{at}").into(),
                body: bytes::Bytes::new(),
                content_type: "".into(),
                traceparent: "".into(),
                utc_ms: 1,
            };
            result.tells = (0..self.scope.tells).map(tell).collect();
        } else if self.scope.refuses && &*message.method == "told0" {
            let error = GuestReply::Error { code: "no".into(), message: String::new() };
            result = TurnOutput::without_effects(TurnResult::Replied(error));
        }
        let entity = message.target.clone();
        self.handle(state, side, Event::TurnDone { entity, generation, turn, result });
    }

    fn deliver(&self, state: &mut State, at: usize) {
        match state.packets.remove(at) {
            Packet::Tell { epoch, number, tell, is_copy } => {
                if is_copy && state.ran.contains(&number) {
                    state.seen.insert(COPY_AFTER);
                }
                let token = ReplyToken(state.next_token);
                state.next_token += 1;
                let created_ms = tell.created_ms;
                state.asked.insert(token, Asked { epoch, number, created_ms, is_copy });
                let session = ScopedSessionId::of_entity(&entity(SENDER));
                let message = Message {
                    reply_token: token,
                    target: tell.target.clone(),
                    sender: Some(entity(SENDER)),
                    asked_by: None,
                    id: MessageId { session, sequence: number },
                    after: 0,
                    settled: number,
                    is_keyed: false,
                    kind: MessageKind::Command,
                    method: tell.method.clone(),
                    body: tell.body.clone(),
                    digest: MessageDigest::compute(&tell.target, &tell.method, &tell.body),
                    created_ms: tell.created_ms.max(1),
                    first_created_ms: tell.created_ms.max(1),
                    arrived_at: state.now,
                    deadline: None,
                    context: Arc::default(),
                };
                self.handle(state, TARGET, Event::Message(Arc::new(message)));
            }
            Packet::Answer { epoch, number, created_ms, outcome } => {
                if epoch != state.sides[SENDER].epoch {
                    return;
                }
                let (sender, target) = (entity(SENDER), entity(TARGET));
                let event = Event::TellAnswered { sender, target, number, created_ms, outcome };
                self.handle(state, SENDER, event);
            }
        }
    }

    fn lose(state: &mut State, at: usize) {
        state.losses -= 1;
        let (epoch, number, created_ms) = match state.packets.remove(at) {
            Packet::Tell { is_copy: true, .. } => return,
            Packet::Tell { epoch, number, tell, .. } => (epoch, number, tell.created_ms),
            Packet::Answer { epoch, number, created_ms, outcome } => {
                if matches!(outcome, Outcome::Final { .. }) {
                    state.seen.insert(ANSWER_LOST);
                }
                (epoch, number, created_ms)
            }
        };
        let outcome = Outcome::Unknown { message: "lost".into() };
        state.packets.push(Packet::Answer { epoch, number, created_ms, outcome });
    }

    fn crash(&self, state: &mut State, side: usize) {
        state.crashes[side] -= 1;
        let it = &mut state.sides[side];
        it.epoch += 1;
        let old = std::mem::replace(&mut it.process, process(&self.scope, side, it.epoch));
        let late: VecDeque<Call> =
            old.calls.into_iter().filter(|call| matches!(call, Call::Commit(_))).collect();
        if !late.is_empty() {
            it.late.push(late);
        }
        state.seen.insert(match (side, state.put.is_empty(), state.ran.is_empty()) {
            (SENDER, true, _) => SENDER_EARLY,
            (SENDER, _, true) => SENDER_WAITING,
            (SENDER, ..) => SENDER_LATE,
            (_, _, true) => TARGET_EARLY,
            _ => TARGET_LATE,
        });
        if side == TARGET {
            for asked in std::mem::take(&mut state.asked).into_values() {
                let outcome = Outcome::Unknown { message: "crashed".into() };
                state.packets.extend(asked.answer(outcome));
            }
        }
        self.start(state, side);
    }

    fn wait(&self, state: &mut State) {
        let wakes = state.sides.iter().filter_map(|side| side.process.machine.next_wake());
        let Some(next) = wakes.min() else { return };
        state.now = state.now.max(next);
        for side in [SENDER, TARGET] {
            let sent_at = state.now;
            self.handle(state, side, Event::LeaseRenewed { sent_at, lease: LEASE });
            self.handle(state, side, Event::Tick);
        }
    }
}

impl Store {
    fn load(&self, entity: &Entity) -> LoadedEntity {
        let of = |((of, key), value): (&(Entity, RecordKey), &Vec<u8>)| match key {
            RecordKey::Outbox { number, .. } if of == entity => {
                Some((*number, decode::<Tell>(value).ok()?))
            }
            _ => None,
        };
        let head = self.heads.get(entity).cloned();
        let outbox = self.records.iter().filter_map(of).collect();
        let letter = |((of, key), value): (&(Entity, RecordKey), &Vec<u8>)| match key {
            RecordKey::DeadLetter { number } if of == entity => {
                Some((*number, decode::<Tell>(value).ok()?))
            }
            _ => None,
        };
        let dead_letters = self.records.iter().filter_map(letter).collect();
        let (lanes, timers) = (Vec::new(), Vec::new());
        LoadedEntity { head, lanes, timers, outbox, dead_letters }
    }

    fn wakes(&self) -> Vec<(u64, Entity)> {
        let wake = |(of, key): &(Entity, RecordKey)| match key {
            RecordKey::Timer { due, name } if name.is_empty() => Some((*due, of.clone())),
            _ => None,
        };
        self.records.keys().filter_map(wake).collect()
    }

    fn dead_letters(&self) -> usize {
        let is_letter =
            |(_, key): &&(Entity, RecordKey)| matches!(key, RecordKey::DeadLetter { .. });
        self.records.keys().filter(is_letter).count()
    }

    fn outbox_is_empty(&self) -> bool {
        !self.records.keys().any(|(_, key)| matches!(key, RecordKey::Outbox { .. }))
    }
}

/// Applies a commit if its claim and version are current, and checks its effects.
fn commit_to_store(state: &mut State, side: usize, commit: Commit) -> CommitOutcome {
    let it = &mut state.sides[side];
    if it.store.claim.as_ref() != Some(&*commit.claim) {
        let current = it.store.claim.clone().map(Box::new);
        return CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current });
    }
    let stored = it.store.heads.get(&commit.entity).map_or(0, |head| head.version);
    if stored != commit.expected_version {
        return CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored });
    }
    for write in commit.writes {
        match (&write.key, &write.value) {
            (RecordKey::Outbox { number, .. }, Some(_)) => {
                state.put.insert(*number);
            }
            (RecordKey::Outbox { number, .. }, None) if !state.ran.contains(number) => {
                state.broken = Some("a tell was deleted that its target has not run");
            }
            _ => {}
        }
        let key = (commit.entity.clone(), write.key);
        match write.value {
            Some(value) => it.store.records.insert(key, value.to_vec()),
            None => it.store.records.remove(&key),
        };
    }
    let told = it.turns.get(&commit.head.turn).filter(|message| message.sender.is_some());
    if let Some(number) = told.map(|message| message.id.sequence) {
        if state.ran.contains(&number) {
            state.broken = Some("a tell ran twice");
        } else if !state.put.contains(&number) {
            state.broken = Some("a tell ran that no committed turn sent");
        } else if state.ran.last().is_some_and(|last| *last > number) {
            state.broken = Some("tells ran out of order");
        }
        state.ran.push(number);
    }
    it.store.heads.insert(commit.entity, commit.head);
    CommitOutcome::Committed
}

/// A copy arrived after the tell had run.
pub const COPY_AFTER: &str = "a copy arrived after the tell had run";
/// The answer to a tell that ran was lost.
pub const ANSWER_LOST: &str = "the answer to a tell that ran was lost";
/// The sender crashed before its turn was durable.
pub const SENDER_EARLY: &str = "the sender crashed before its turn was durable";
/// The sender crashed after its turn was durable and before the target's was.
pub const SENDER_WAITING: &str = "the sender crashed before the tell had run";
/// The sender crashed after the target's turn was durable.
pub const SENDER_LATE: &str = "the sender crashed after the tell had run";
/// The target crashed before its turn was durable.
pub const TARGET_EARLY: &str = "the target crashed before the tell had run";
/// The target crashed after its turn was durable.
pub const TARGET_LATE: &str = "the target crashed after the tell had run";

impl Model for Tells {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        for side in [SENDER, TARGET] {
            let it = &state.sides[side];
            steps.extend((!it.process.calls.is_empty()).then_some(Step::Serve(side)));
            steps.extend((0..it.late.len()).map(|at| Step::ServeLate(side, at)));
            steps.extend(it.process.running.is_some().then_some(Step::Finish(side)));
        }
        for (at, packet) in state.packets.iter().enumerate() {
            steps.push(Step::Deliver(at));
            steps.extend((state.losses > 0).then_some(Step::Lose(at)));
            let may_copy =
                state.copies > 0 && matches!(packet, Packet::Tell { is_copy: false, .. });
            steps.extend(may_copy.then_some(Step::Copy(at)));
        }
        let is_idle = steps.is_empty();
        if is_idle && self.is_done(state) {
            return;
        }
        steps.extend(
            [SENDER, TARGET].into_iter().filter(|side| state.crashes[*side] > 0).map(Step::Crash),
        );
        let wakes = state.sides.iter().any(|side| side.process.machine.next_wake().is_some());
        steps.extend((is_idle && wakes).then_some(Step::Wait));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Serve(side) => self.serve(&mut next, side),
            Step::ServeLate(side, at) => {
                if let Some(Call::Commit(commit)) = next.sides[side].late[at].pop_front() {
                    commit_to_store(&mut next, side, *commit);
                }
                next.sides[side].late.retain(|calls| !calls.is_empty());
            }
            Step::Finish(side) => self.finish(&mut next, side),
            Step::Deliver(at) => self.deliver(&mut next, at),
            Step::Lose(at) => Self::lose(&mut next, at),
            Step::Copy(at) => {
                next.copies -= 1;
                if let Packet::Tell { epoch, number, tell, .. } = next.packets[at].clone() {
                    next.packets.push(Packet::Tell { epoch, number, tell, is_copy: true });
                }
            }
            Step::Crash(side) => self.crash(&mut next, side),
            Step::Wait => self.wait(&mut next),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, state: &State| state.broken.is_none()),
            Property::always(ENDS, |model: &Self, state: &State| {
                let mut steps = Vec::new();
                model.actions(state, &mut steps);
                !steps.is_empty() || state.broken.is_some() || model.is_done(state)
            }),
            Property::sometimes(COPY_AFTER, |_, state: &State| state.seen.contains(COPY_AFTER)),
            Property::sometimes(ANSWER_LOST, |_, state: &State| state.seen.contains(ANSWER_LOST)),
            Property::sometimes(SENDER_EARLY, |_, state: &State| state.seen.contains(SENDER_EARLY)),
            Property::sometimes(SENDER_WAITING, |_, it: &State| it.seen.contains(SENDER_WAITING)),
            Property::sometimes(SENDER_LATE, |_, state: &State| state.seen.contains(SENDER_LATE)),
            Property::sometimes(TARGET_EARLY, |_, state: &State| state.seen.contains(TARGET_EARLY)),
            Property::sometimes(TARGET_LATE, |_, state: &State| state.seen.contains(TARGET_LATE)),
        ]
    }
}

/// The name of the property that no rule is broken.
pub const HOLDS: &str = "no rule is broken";
/// The name of the property that every run completes.
pub const ENDS: &str = "at the end every tell has run and every outbox is empty";

impl Tells {
    /// Whether the run is complete.
    fn is_done(&self, state: &State) -> bool {
        state.is_answered
            && state.ran.len() == self.scope.tells
            && state.ran.iter().eq(&state.put)
            && state.sides[SENDER].store.outbox_is_empty()
            && state.sides[SENDER].store.dead_letters() == usize::from(self.scope.refuses)
    }
}
