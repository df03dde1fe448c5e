//! A worker: one thread that carries out the actions of its shards' machines.
//!
//! It decides nothing on ownership, order or duplicates: it tells the machines what happened and does what they
//! say. Guests run here, off the network's threads; a guest that runs for long yields at each tick of the epoch,
//! so that the worker's other entities go on. All that one round of the loop asks of the store leaves as one
//! batch: that is where group commit begins.

mod act;
mod done;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_sharding::ids::{Entity, ShardId};
use ostraca_sharding::message::{Kind, Message, Token};
use ostraca_sharding::records::{Claim, Commit};
use ostraca_sharding::shard::{
    Action, Event, LiveCap, Machine, Owner, Phase, Settings, StopReason,
};
use ostraca_store::EntityStore;
use ostraca_wasm::{Instance, Interrupt};
use ostraca_wire::server::Ticket;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::record::{Frame, Recorder};
use crate::stats::{Gauges, Stats};
use crate::types::Type;
use done::Done;

/// How often the clock is looked at for deadlines and idle instances.
const TICK: Duration = Duration::from_millis(20);
/// Completions handled before new messages are taken, and messages before the batch leaves.
const ROUND: usize = 256;

/// What a worker is told.
pub(crate) enum Input {
    /// Messages for shards of this worker, in order. Each has a token of its own in this node.
    Messages(Vec<(ShardId, Arc<Message>, Ticket)>),
    /// A type was deployed.
    Type(Arc<Type>),
    /// The lease was renewed by a request sent then.
    Renewed(u64),
    /// A shard was assigned.
    Adopt(Box<Owner>),
    /// Give every shard up; answered when no instance lives.
    Stop(oneshot::Sender<()>),
}

/// What a worker says.
pub(crate) enum Report {
    /// A shard's claim stands.
    Serving,
    /// A shard was refused: another claim stands.
    Lost(Box<Owner>, Option<Box<Claim>>, String),
    /// The worker panicked, and its shards with it.
    Panicked(usize),
}

/// Says so if the worker panics: its shards would else be silent while the node looks well.
struct Watch(usize, mpsc::UnboundedSender<Report>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody to hear it: the node is going down.
            let _ = self.1.send(Report::Panicked(self.0));
        }
    }
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) index: usize,
    pub(crate) settings: Settings,
    pub(crate) cap: usize,
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<dyn EntityStore>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

/// An instance, where the worker has it.
enum Live {
    Idle(Box<Instance>),
    Busy(Interrupt),
    /// Being made: nothing to interrupt yet.
    Starting,
}

struct Slot {
    machine: Machine,
    instances: HashMap<Entity, (u64, Live)>,
    /// Futures under way that hold an instance: "stopped" is said only when there is none.
    running: usize,
    serving: bool,
    stopped: bool,
}

struct Worker {
    parts: Parts,
    /// The machine that a shard's messages go to; those before it stay in `slots`, for what still comes for them.
    by_shard: HashMap<ShardId, usize>,
    slots: Vec<Slot>,
    types: HashMap<Arc<str>, Arc<Type>>,
    tickets: HashMap<Token, (Ticket, Kind)>,
    cap: LiveCap,
    tasks: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    claims: Vec<(usize, Arc<Claim>)>,
    commits: Vec<(usize, Commit)>,
    loads: Vec<(usize, Entity, u64)>,
    renewed: Option<u64>,
    stopping: Option<oneshot::Sender<()>>,
    actions: Vec<Action>,
}

/// Runs a worker until its inputs end or it was told to stop and has.
pub(crate) async fn run(parts: Parts, mut inputs: mpsc::UnboundedReceiver<Input>) {
    let _watch = Watch(parts.index, parts.reports.clone());
    let mut worker = Worker {
        cap: LiveCap::new(parts.cap),
        parts,
        by_shard: HashMap::new(),
        slots: Vec::new(),
        types: HashMap::new(),
        tickets: HashMap::new(),
        tasks: FuturesUnordered::new(),
        claims: Vec::new(),
        commits: Vec::new(),
        loads: Vec::new(),
        renewed: None,
        stopping: None,
        actions: Vec::new(),
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looked = Instant::now();
    loop {
        let mut busy = false;
        for _ in 0..ROUND {
            let Some(Some(done)) = worker.tasks.next().now_or_never() else { break };
            worker.done(done);
            busy = true;
        }
        for _ in 0..ROUND {
            match inputs.try_recv() {
                Ok(input) => worker.input(input),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return,
            }
            busy = true;
        }
        worker.give_room();
        worker.ask_store();
        if worker.has_stopped() {
            return;
        }
        if busy {
            // Time must pass even when there is always something to do. The runtime's timers, guests' among them,
            // fire only when this task yields.
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                worker.tick();
                tokio::task::yield_now().await;
            }
            continue;
        }
        tokio::select! {
            Some(done) = worker.tasks.next(), if !worker.tasks.is_empty() => worker.done(done),
            input = inputs.recv() => match input {
                Some(input) => worker.input(input),
                None => return,
            },
            _ = ticks.tick() => worker.tick(),
        }
    }
}

impl Worker {
    fn input(&mut self, input: Input) {
        match input {
            Input::Messages(messages) => {
                for (shard, message, ticket) in messages {
                    self.message(shard, message, ticket);
                }
            }
            Input::Type(entry) => {
                self.types.insert(entry.name.clone(), entry.clone());
                for slot in 0..self.slots.len() {
                    let settings = entry.settings();
                    self.tell(slot, Event::Type { kind: entry.name.clone(), settings });
                }
            }
            Input::Renewed(sent) => {
                self.renewed = Some(sent);
                for slot in 0..self.slots.len() {
                    self.tell(slot, Event::Renewed { sent });
                }
            }
            // One that comes after the stop would never hear of it.
            Input::Adopt(owner) if self.stopping.is_none() => self.adopt(*owner),
            Input::Adopt(_) => {}
            Input::Stop(done) => {
                self.stopping = Some(done);
                for slot in 0..self.slots.len() {
                    self.tell(slot, Event::Stop(StopReason::HandedOff));
                }
            }
        }
    }

    fn message(&mut self, shard: ShardId, message: Arc<Message>, ticket: Ticket) {
        let Some(slot) = self.by_shard.get(&shard).copied() else {
            return ticket.not_run(crate::service::not_owner(shard));
        };
        self.tickets.insert(message.token, (ticket, message.kind));
        self.tell(slot, Event::Message(message));
    }

    /// Makes a machine for an assigned shard, in the place of the one before it.
    fn adopt(&mut self, owner: Owner) {
        let shard = owner.shard.shard;
        let machine = Machine::new(self.parts.settings.clone(), owner);
        self.slots.push(Slot {
            machine,
            instances: HashMap::new(),
            running: 0,
            serving: false,
            stopped: false,
        });
        let slot = self.slots.len() - 1;
        self.by_shard.insert(shard, slot);
        self.carry_out(slot, None);
        for entry in self.types.values().cloned().collect::<Vec<_>>() {
            self.tell(slot, Event::Type { kind: entry.name.clone(), settings: entry.settings() });
        }
        if let Some(sent) = self.renewed {
            self.tell(slot, Event::Renewed { sent });
        }
    }

    /// Tells a machine what happened, and does what it says.
    fn tell(&mut self, slot: usize, event: Event) {
        let now = self.parts.clock.now();
        let recorded = self.parts.recorder.as_ref().map(|_| (now, event.clone()));
        self.slots[slot].machine.handle(now, event);
        self.carry_out(slot, recorded);
    }

    fn carry_out(
        &mut self,
        slot: usize,
        recorded: Option<(ostraca_sharding::message::Now, Event)>,
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        while let Some(action) = self.slots[slot].machine.poll() {
            actions.push(action);
        }
        self.record(slot, recorded, &actions);
        for action in actions.drain(..) {
            self.act(slot, action);
        }
        self.actions = actions;
        let serving = self.slots[slot].machine.phase() == Phase::Serving;
        if serving && !self.slots[slot].serving {
            // Nobody to hear it: the node is going down.
            let _ = self.parts.reports.send(Report::Serving);
        }
        self.slots[slot].serving = serving;
    }

    fn record(
        &mut self,
        slot: usize,
        recorded: Option<(ostraca_sharding::message::Now, Event)>,
        actions: &[Action],
    ) {
        let Some(recorder) = &mut self.parts.recorder else { return };
        let machine = &self.slots[slot].machine;
        let shard = machine.owner().shard.shard.0;
        let frame = match recorded {
            Some((now, event)) => {
                Frame::Step { shard, now, event: Box::new(event), actions: actions.to_vec() }
            }
            None => {
                let made = (machine.settings().clone(), machine.owner().clone());
                Frame::Machine(Box::new(made), actions.to_vec())
            }
        };
        if let Err(error) = recorder.write(&frame) {
            tracing::error!(%error, "recording stopped: it could not be written");
            self.parts.recorder = None;
        }
    }

    /// Hands out the room that there is, and asks for more where it is wished for. Called once a round and never
    /// from within [`Worker::tell`]: thousands may wait for room that comes all at once, and each would be a call
    /// deeper on the stack.
    fn give_room(&mut self) {
        loop {
            let (shard, event) = if let Some(((shard, entity), generation)) = self.cap.grant() {
                (shard, Event::Slot { entity, generation })
            } else if let Some((shard, entity)) = self.cap.evict() {
                (shard, Event::Evict { entity })
            } else {
                return;
            };
            if let Some(slot) = self.by_shard.get(&shard.shard).copied() {
                self.tell(slot, event);
            }
        }
    }

    fn tick(&mut self) {
        let now = self.parts.clock.now().mono;
        for slot in 0..self.slots.len() {
            if self.slots[slot].machine.wake().is_some_and(|wake| wake <= now) {
                self.tell(slot, Event::Tick);
            }
        }
        let gauges = &self.parts.gauges;
        let (mut entities, mut queued, mut serving) = (0, 0, 0);
        for slot in &self.slots {
            let load = slot.machine.load();
            entities += load.0 as u64;
            queued += load.1 as u64;
            serving += u64::from(slot.serving);
        }
        gauges.entities.store(entities, Ordering::Relaxed);
        gauges.queued.store(queued, Ordering::Relaxed);
        gauges.serving.store(serving, Ordering::Relaxed);
        gauges.shards.store(self.slots.len() as u64, Ordering::Relaxed);
        gauges.live.store(self.cap.held() as u64, Ordering::Relaxed);
        if let Some(recorder) = &mut self.parts.recorder
            && let Err(error) = recorder.flush()
        {
            tracing::error!(%error, "the recording could not be flushed");
        }
    }

    fn has_stopped(&mut self) -> bool {
        let at_rest = |slot: &Slot| {
            slot.running == 0 && (slot.stopped || slot.machine.phase() == Phase::Lost)
        };
        if self.stopping.is_none() || !self.slots.iter().all(at_rest) {
            return false;
        }
        self.tick();
        if let Some(stopped) = self.stopping.take() {
            // The node may have stopped waiting.
            let _ = stopped.send(());
        }
        true
    }

    fn slot_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.slots[slot]
    }
}
