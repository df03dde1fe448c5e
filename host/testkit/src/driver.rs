//! Drives the worker in virtual time, and carries messages between its entities.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use ostraca_catalog::pool::path;
use ostraca_catalog::types::{TypeTable, resolve_method};
use ostraca_catalog::{ClusterClock, DeployedType};
use ostraca_core::hash::shard_of;
use ostraca_core::ids::{Entity, Epoch, Incarnation, ScopedSessionId, ShardId};
use ostraca_core::message::{MessageMetadata, Outcome, ReplyToken};
use ostraca_core::pools::Pools;
use ostraca_core::rows::Member;
use ostraca_core::shard::{Ownership, Settings, SlotLimits, StopReason};
use ostraca_wire::proto::{Envelope, Problem};
use ostraca_wire::server::Charge;
use ostraca_workers::{
    Delivery, EntityMessage, EntityMessageContent, Input, RandomKey, ReplyTo, SteppedWorker,
    TurnQuotas, WorkerDeps,
};
use tokio::runtime::Runtime;

use crate::sent::Sent;
use crate::sink::{Sink, Test};
use crate::store::{CLUSTER, KitStore};

/// Number of shards. A crash or a hand-off affects the entities of one shard.
pub(crate) const SHARDS: u32 = 16;
/// The time at which a test begins, in milliseconds since the Unix epoch; the same as in the SDK's `testing`.
const START_MS: u64 = 1_000_000_000_000;
/// The lease, in milliseconds: longer than any test.
const LEASE_MS: u64 = 1 << 42;
/// How long a message between entities waits at its target, in milliseconds.
const MESSAGE_TIMEOUT_MS: u64 = 30_000;
/// Maximum number of times that messages are carried on, or that time is moved, in one call of the test.
const MAX_STEPS: usize = 100_000;

/// The core and the sandbox, with everything that connects them.
pub(crate) struct Driver {
    runtime: Runtime,
    worker: SteppedWorker,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) store: Arc<KitStore>,
    pub(crate) types: TypeTable,
    pub(crate) sent: Sent,
    sink: Arc<Sink>,
    epochs: HashMap<ShardId, Epoch>,
    /// The entity messages that were delivered and not answered yet, by tag.
    pending: HashMap<u64, EntityMessage>,
    /// The outcomes of the test's own messages, by tag.
    replies: HashMap<u64, Outcome>,
    tags: u64,
}

impl Driver {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        #[expect(clippy::expect_used, reason = "a test cannot go on without a runtime")]
        let runtime = runtime.expect("a runtime starts");
        let clock = Arc::new(ClusterClock::manual(1_000));
        clock.advance_utc_to(START_MS);
        let (store, sink) = (Arc::new(KitStore::new()), Arc::<Sink>::default());
        let random_key = Arc::new(OnceLock::from(RandomKey::new([7; 32])));
        let worker = SteppedWorker::new(WorkerDeps {
            index: 0,
            settings: Settings::default(),
            instance_limits: SlotLimits { instances: 1_000, memory: u64::MAX },
            pool_instance_limits: BTreeMap::new(),
            clock: clock.clone(),
            random_key,
            entity_store: store.clone(),
            stats: Arc::default(),
            tracer: ostraca_trace::Tracer::default(),
            turn_quotas: TurnQuotas::default(),
            gauges: Arc::default(),
            recording_dir: None,
            reports: sink.reports(),
            replies: sink.clone(),
        });
        let mut driver = Self {
            runtime,
            worker,
            clock,
            store,
            types: TypeTable::new(),
            sent: Sent::default(),
            sink,
            epochs: HashMap::new(),
            pending: HashMap::new(),
            replies: HashMap::new(),
            tags: 0,
        };
        driver.worker.input(Input::LeaseRenewed(driver.now(), LEASE_MS));
        for shard in 1..=SHARDS {
            driver.adopt(ShardId(shard));
        }
        driver.run();
        driver
    }

    /// The clock's own time, in milliseconds.
    fn now(&self) -> u64 {
        self.clock.now().mono
    }

    pub(crate) fn deploy(&mut self, entry: DeployedType) {
        let entry = Arc::new(entry);
        self.types.insert(entry.name.clone(), entry.clone());
        self.worker.input(Input::TypeDeployed(entry));
        self.run();
    }

    pub(crate) fn shard(&self, entity: &Entity) -> ShardId {
        let rule = self.types.get(&entity.entity_type).map(|entry| &entry.manifest.shard_key);
        shard_of(rule.map_or(&*entity.id, |rule| rule.shard_key(&entity.id)), SHARDS)
    }

    /// Delivers the test's own message, and returns the tag of its outcome.
    pub(crate) fn deliver_test(&mut self, envelope: &Envelope, session: ScopedSessionId) -> u64 {
        self.tags += 1;
        if let Err(refused) = self.deliver(self.tags, envelope, session) {
            self.replies.insert(self.tags, refused);
        }
        self.run();
        self.tags
    }

    pub(crate) fn take_reply(&mut self, tag: u64) -> Option<Outcome> {
        self.replies.remove(&tag)
    }

    /// Passes a message to the worker. Its outcome has this tag.
    fn deliver(
        &mut self,
        tag: u64,
        envelope: &Envelope,
        session: ScopedSessionId,
    ) -> Result<(), Outcome> {
        let resolved = resolve_method(&self.types, &envelope.principal, envelope);
        let (entry, method, kind) = resolved.map_err(refusal)?;
        let context = MessageMetadata {
            principal: envelope.principal.as_str().into(),
            content_type: envelope.content_type.as_str().into(),
            traceparent: envelope.traceparent.as_str().into(),
            tracestate: envelope.tracestate.as_str().into(),
            origin: "testkit".into(),
            utc_ms: envelope.utc_ms,
        };
        let names = (entry.name.clone(), method, kind);
        let times = (self.now(), 0);
        let message = envelope.to_message(ReplyToken(tag), session, names, times, context);
        let shard = self.shard(&message.target);
        let reply_to = ReplyTo::Gateway { tag, caller: Arc::new(Test) };
        let (message, charge) = (Arc::new(message), Charge::unmetered());
        self.worker.input(Input::Messages(vec![Delivery { shard, message, reply_to, charge }]));
        Ok(())
    }

    /// Runs until nothing more happens without a message or time.
    #[expect(clippy::panic, reason = "entities that send each other messages endlessly are a bug")]
    pub(crate) fn run(&mut self) {
        for _ in 0..MAX_STEPS {
            self.runtime.block_on(self.worker.settle());
            if !self.carry() {
                return;
            }
        }
        panic!("the entities exchanged messages {MAX_STEPS} times and do not come to rest");
    }

    /// Carries replies and entity messages to where they belong. Returns whether there were any.
    fn carry(&mut self) -> bool {
        let collected = self.sink.take();
        for (shard, epoch) in collected.stopped {
            // Only the last epoch is adopted by another owner.
            if self.epochs.get(&shard) == Some(&epoch) {
                self.epochs.remove(&shard);
            }
        }
        let moved = !(collected.replies.is_empty() && collected.messages.is_empty());
        for (tag, outcome) in collected.replies {
            match self.pending.remove(&tag) {
                Some(message) => self.answer(&message, outcome),
                None => drop(self.replies.insert(tag, outcome)),
            }
        }
        for message in collected.messages {
            self.send(message);
        }
        moved
    }

    fn send(&mut self, message: EntityMessage) {
        self.sent.note(&message);
        if !self.types.contains_key(&message.to.entity_type)
            && let Some(outcome) = self.sent.answer(&message)
        {
            return self.answer(&message, outcome);
        }
        self.tags += 1;
        let tag = self.tags;
        let envelope = self.envelope(tag, &message);
        let session = match &message.content {
            EntityMessageContent::Ask(_, ask, _) => ask.id.session,
            _ => ScopedSessionId::of_entity(&message.from),
        };
        match self.deliver(tag, &envelope, session) {
            Ok(()) => drop(self.pending.insert(tag, message)),
            Err(refused) => self.answer(&message, refused),
        }
    }

    fn envelope(&self, tag: u64, message: &EntityMessage) -> Envelope {
        let (from, to) = (&message.from, &message.to);
        // Numbers of queries are higher than those of tells.
        let number = (1 << 63) + tag;
        match &message.content {
            EntityMessageContent::Tell(number, tell) => {
                Envelope::of_tell(from, *number, tell, MESSAGE_TIMEOUT_MS)
            }
            EntityMessageContent::Ask(_, ask, remaining) => Envelope::of_ask(ask, *remaining),
            EntityMessageContent::AskNote(note) => {
                Envelope::of_ask_note(from, to, note, number, MESSAGE_TIMEOUT_MS)
            }
            EntityMessageContent::FirstTell => {
                Envelope::of_first_tell_query(from, to, number, MESSAGE_TIMEOUT_MS)
            }
        }
    }

    fn answer(&mut self, message: &EntityMessage, outcome: Outcome) {
        let Some(event) = message.answer(outcome).map(Box::new) else { return };
        let EntityMessage { shard, epoch, .. } = *message;
        self.worker.input(Input::EntityAnswer { shard, epoch, event });
    }

    /// Moves the clock to the next time at which something happens, but not beyond `end`. Returns whether there was
    /// such a time.
    fn step(&mut self, end: u64) -> bool {
        let Some(wake) = self.worker.next_wake().filter(|wake| *wake <= end) else { return false };
        // A time in the past was not enough for the machine: let some time pass.
        self.clock.set_manual(wake.max(self.now() + u64::from(wake <= self.now())));
        self.worker.tick();
        self.run();
        true
    }

    /// Lets this many milliseconds pass. Whatever becomes due happens at its own time.
    #[expect(clippy::panic, reason = "timers that are due at once, endlessly, are a bug")]
    pub(crate) fn advance(&mut self, by: u64) {
        let end = self.now().saturating_add(by);
        for _ in 0..MAX_STEPS {
            if !self.step(end) {
                self.clock.set_manual(end);
                return;
            }
        }
        panic!(
            "more than {MAX_STEPS} things happened while time passed: does a timer set a timer that is due at once?"
        );
    }

    /// Lets time pass until `done`, at most this many milliseconds. Returns what `done` found.
    pub(crate) fn advance_until<T>(
        &mut self,
        limit: u64,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let end = self.now().saturating_add(limit);
        for _ in 0..MAX_STEPS {
            if let Some(found) = done(self) {
                return Some(found);
            }
            if !self.step(end) {
                break;
            }
        }
        done(self)
    }

    pub(crate) fn trap_next_turn(&mut self, entity: Entity) {
        self.worker.trap_next_turn(entity);
    }

    /// The owner of the entity's shard dies: instances and turns are lost, and another owner claims the shard.
    pub(crate) fn crash(&mut self, entity: &Entity) {
        let shard = self.shard(entity);
        let epoch = self.epochs.get(&shard).copied().unwrap_or_default();
        self.worker.input(Input::DropShard { shard, epoch });
        self.run();
        self.adopt(shard);
        self.run();
    }

    /// Moves the entity's shard to another owner, after its stop hooks have run.
    #[expect(clippy::panic, reason = "a shard that does not stop is a bug of the kit")]
    pub(crate) fn hand_off(&mut self, entity: &Entity) {
        let shard = self.shard(entity);
        let epoch = self.epochs.get(&shard).copied().unwrap_or_default();
        self.worker.input(Input::StopShard { shard, epoch, reason: StopReason::HandedOff });
        self.run();
        let stopped = |driver: &mut Self| (!driver.epochs.contains_key(&shard)).then_some(());
        if self.advance_until(600_000, stopped).is_none() {
            panic!("the shard of {entity} did not stop within ten minutes");
        }
        self.epochs.insert(shard, epoch);
        self.adopt(shard);
        self.run();
    }

    /// Gives a shard to a new owner.
    fn adopt(&mut self, shard: ShardId) {
        let epoch = Epoch(self.epochs.get(&shard).map_or(1, |before| before.0 + 1));
        self.epochs.insert(shard, epoch);
        let incarnation = Incarnation { counter: epoch.0, nonce: epoch.0 };
        let owner = Member { node: (&*format!("n{}", epoch.0)).into(), incarnation };
        let shard = path(&Pools::one(SHARDS), shard);
        let owner = Ownership { cluster: CLUSTER, shard, epoch, owner };
        self.worker.input(Input::Adopt(Box::new(owner)));
    }

    pub(crate) fn has_instance(&mut self, entity: &Entity) -> bool {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (shard, entities) = (self.shard(entity), vec![entity.clone()]);
        self.worker.input(Input::Inspect { shard, entities, answer });
        let inside = self.runtime.block_on(answered).unwrap_or_default();
        inside.entities.first().is_some_and(|inside| inside.active)
    }
}

/// What a refusal means for its sender.
fn refusal(problem: Problem) -> Outcome {
    Outcome::NotRun {
        code: problem.code.into(),
        message: problem.message,
        retry_after: problem.retryable.then_some(problem.retry_after_ms),
        owner_hint: None,
        suggested_created_ms: None,
    }
}
