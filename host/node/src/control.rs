//! The control thread: it drives the node's machine, away from messages and guests (R8).
//!
//! Leases, rows and what nodes say to each other about shards have this thread and connections of their own, so
//! that no load on the message path can hold a renewal up. The machine decides; here its actions become calls
//! of the stores, words to other nodes, and inputs of workers and gateway.

mod talkers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_sharding::ids::{ClusterId, NodeId, ShardId};
use ostraca_sharding::node::{Action, Event, Machine, Notice, Talk, WriteError};
use ostraca_sharding::rows::{Key, Member, Row};
use ostraca_sharding::shard::Owner;
use ostraca_store::{Cas, ClusterStore, Conflict, EntityStore, RowEvent};
use ostraca_store_sled::SledStore;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::error::NodeError;
use crate::gateway::Gateway;
use crate::loader::Loader;
use crate::ownership::{self, shard_key};
use crate::rows;
use crate::stats::Stats;
use crate::view::{Events, View};
use crate::worker;
use talkers::Talkers;
pub(crate) use talkers::heard;

/// How often the picture of the cluster is renewed at most.
const PICTURE: Duration = Duration::from_millis(20);
/// Renewals between two writes of cluster time and of the store's witness. Time that a crash takes with it only
/// makes lanes live longer.
const BETWEEN_NOTES: u64 = 8;

/// How long what blocks may still hold the thread at its end.
const LINGER: Duration = Duration::from_secs(1);

/// What the thread is told.
pub(crate) enum Input {
    /// Something for the machine.
    Event(Event),
    /// Another node says something.
    Heard(Member, Talk),
    /// A worker says something.
    Report(worker::Report),
    /// A row changed, or the watch of that number is over.
    Watched(u64, RowEvent),
    /// What would a balancing move now?
    Plan(oneshot::Sender<Vec<(ShardId, NodeId, NodeId)>>),
}

/// What the thread works with.
pub(crate) struct Parts {
    pub(crate) machine: Machine,
    pub(crate) cluster: ClusterId,
    pub(crate) rows: Arc<dyn ClusterStore>,
    pub(crate) entities: Arc<dyn EntityStore>,
    /// The store, where it is in this process: its witness is kept up to date.
    pub(crate) local: Option<Arc<SledStore>>,
    pub(crate) workers: Vec<mpsc::UnboundedSender<worker::Input>>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) loader: Loader,
    pub(crate) cache: Option<Cache>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) events: Arc<Events>,
    pub(crate) view: watch::Sender<Arc<View>>,
    pub(crate) dialer: ostraca_wire::peer::PeerDialer,
    /// Tells the network side which life this is.
    pub(crate) registered: Box<dyn Fn(&Member) + Send>,
    /// What ends the node.
    pub(crate) failures: mpsc::UnboundedSender<NodeError>,
    /// How often the entities' store is asked whether it answers, and the lease is renewed.
    pub(crate) every: Duration,
}

/// The thread, and the runtime that it drives.
pub(crate) struct Control {
    pub(crate) runtime: Handle,
    pub(crate) input: mpsc::UnboundedSender<Input>,
    start: Option<oneshot::Sender<Parts>>,
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl Control {
    /// Starts the thread; until [`Control::start`] it serves only its connections.
    pub(crate) fn prepare() -> Result<Self, NodeError> {
        let failed = |source| NodeError::Thread { name: "ostraca-control".into(), source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (input, inputs) = mpsc::unbounded_channel();
        let own = input.clone();
        let work = async move {
            let running = async {
                if let Ok(parts) = started.await {
                    run(parts, own, inputs).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                // Whether told or abandoned, it ends.
                _ = ended => {}
                () = running => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("ostraca-control".into())
            .spawn(move || {
                runtime.block_on(work);
                // A name that is being looked up may hold a thread for long; nobody waits for it.
                runtime.shutdown_timeout(LINGER);
            })
            .map_err(failed)?;
        let (start, thread, end) = (Some(start), Some(thread), Some(end));
        Ok(Self { runtime: handle, input, start, thread, end })
    }

    pub(crate) fn start(&mut self, parts: Parts) {
        if let Some(start) = self.start.take() {
            // A thread that has ended has told why.
            let _ = start.send(parts);
        }
    }

    pub(crate) fn tell(&self, event: Event) {
        // A thread that has ended has told why.
        let _ = self.input.send(Input::Event(event));
    }

    /// Ends the thread, and with it its connections.
    pub(crate) fn stop(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}

struct Running {
    parts: Parts,
    own: mpsc::UnboundedSender<Input>,
    tasks: FuturesUnordered<BoxFuture<'static, Event>>,
    talkers: Talkers,
    /// The watch that counts; what others still tell is old.
    watch: u64,
    watcher: Option<tokio::task::JoinHandle<()>>,
    /// Something changed that the picture shows.
    changed: bool,
    renewals: u64,
}

async fn run(
    parts: Parts,
    own: mpsc::UnboundedSender<Input>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
) {
    let mut beat = tokio::time::interval(parts.every);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut picture = tokio::time::interval(PICTURE);
    picture.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let talkers = Talkers::new(parts.dialer.clone());
    let mut running = Running {
        parts,
        own,
        tasks: FuturesUnordered::new(),
        talkers,
        watch: 0,
        watcher: None,
        changed: true,
        renewals: 0,
    };
    running.carry_out();
    loop {
        let now = running.parts.clock.now().mono;
        let wake = running.parts.machine.wake().map_or(1_000, |wake| wake.saturating_sub(now));
        tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => running.input(input),
                None => return,
            },
            Some(event) = running.tasks.next(), if !running.tasks.is_empty() => running.tell(event),
            () = tokio::time::sleep(Duration::from_millis(wake.max(1))) => running.tell(Event::Tick),
            _ = beat.tick() => running.ask_store(),
            _ = picture.tick() => running.picture(),
        }
    }
}

impl Running {
    fn input(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.tell(event),
            Input::Heard(from, talk) => self.tell(Event::Heard { from, talk }),
            Input::Report(report) => self.report(report),
            Input::Watched(watch, _) if watch != self.watch => {}
            Input::Watched(_, RowEvent::Lost) => self.tell(Event::WatchLost),
            Input::Watched(_, RowEvent::Deleted { key, revision }) => {
                self.parts.loader.gone(&key, revision);
            }
            Input::Watched(_, RowEvent::Set(row)) => match rows::decode_core(&row) {
                Ok(Some((key, row, revision))) => {
                    self.tell(Event::Row { key, value: Some((row, revision)) });
                }
                Ok(None) => self.parts.loader.row(row),
                Err(error) => tracing::error!(%error, "a row was not understood"),
            },
            Input::Plan(answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(self.parts.machine.would_move());
            }
        }
    }

    fn report(&mut self, report: worker::Report) {
        match report {
            worker::Report::Serving(shard, epoch) => self.tell(Event::Serving { shard, epoch }),
            worker::Report::Stopped(shard, epoch) => self.tell(Event::Stopped { shard, epoch }),
            worker::Report::Lost(owner, standing, why) => {
                tracing::warn!(shard = %owner.shard, %why, "a shard was lost");
                let (shard, epoch) = (owner.shard.shard, owner.epoch);
                let standing = standing.map(|claim| claim.epoch);
                self.tell(Event::Lost { shard, epoch, standing });
            }
            worker::Report::Panicked(worker) => {
                let error = NodeError::Ended(format!("worker {worker} panicked"));
                // Nobody to hear it: the node is stopping.
                let _ = self.parts.failures.send(error);
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let tick = matches!(event, Event::Tick | Event::StoreAnswered { .. });
        let now = self.parts.clock.now();
        self.parts.machine.handle(now, event);
        self.changed |= !tick;
        self.carry_out();
    }

    fn carry_out(&mut self) {
        // A new owner's machine is made before any message is let go to it: it would be bounced, and wait for a retry.
        let mut routes = Vec::new();
        while let Some(action) = self.parts.machine.poll() {
            match action {
                Action::Route { .. } | Action::Hold { .. } => routes.push(action),
                action => self.act(action),
            }
        }
        for action in routes {
            self.act(action);
        }
    }

    fn all_workers(&self, input: impl Fn() -> worker::Input) {
        for worker in &self.parts.workers {
            // A worker that has ended serves nothing, and has said so.
            let _ = worker.send(input());
        }
    }

    fn worker(&self, shard: ShardId, input: worker::Input) {
        let at = Gateway::worker_of(shard, self.parts.workers.len());
        if let Some(worker) = self.parts.workers.get(at) {
            // A worker that has ended serves nothing, and has said so.
            let _ = worker.send(input);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::List => self.list(),
            Action::Read(key) => self.read(key),
            Action::Write { number, key, expected, row } => {
                self.write(number, &key, expected, &row)
            }
            Action::Say { to, talk } => {
                if let Some(me) = self.parts.machine.member() {
                    self.talkers.say(&to, &me, &talk);
                }
            }
            Action::Registered(member) => {
                tracing::info!(%member, "registered");
                (self.parts.registered)(&member);
                self.parts.gateway.set_me(Some(member));
            }
            Action::Renewed { sent } => {
                self.parts.stats.renewed.store(sent, Ordering::Relaxed);
                self.all_workers(|| worker::Input::Renewed(sent));
                self.renewals += 1;
                if self.renewals.is_multiple_of(BETWEEN_NOTES) {
                    self.keep_notes();
                }
            }
            Action::Suspend => self.all_workers(|| worker::Input::Suspend),
            Action::Resume => self.all_workers(|| worker::Input::Resume),
            Action::ReadClaims { number, shards } => self.read_claims(number, shards),
            Action::Adopt { shard, epoch, member } => {
                let Member { node, incarnation } = member;
                let (cluster, key) = (self.parts.cluster, shard_key(shard));
                let owner = Owner { cluster, shard: key, epoch, node, incarnation };
                self.worker(shard, worker::Input::Adopt(Box::new(owner)));
            }
            Action::Stop { shard, epoch, reason } => {
                self.worker(shard, worker::Input::StopShard { shard, epoch, reason });
            }
            Action::Forget { shard, epoch } => {
                self.worker(shard, worker::Input::Forget { shard, epoch });
            }
            Action::Route { shard, epoch, owner, moving } => {
                self.parts.gateway.route(shard, epoch, owner, moving);
            }
            Action::Hold { shard, epoch } => self.parts.gateway.hold(shard, epoch),
            Action::Node { member, alive, addresses } => {
                self.parts.gateway.links.node(&member, alive, &addresses);
                if self.parts.machine.node() != &member.node {
                    self.talkers.node(&member, alive, addresses);
                }
                if !alive {
                    self.parts.gateway.lost(&member);
                }
            }
            Action::Note(notice) => {
                match &notice {
                    Notice::Assigned { .. } | Notice::HandOffBegan { .. } => {
                        tracing::debug!(?notice, "cluster");
                    }
                    Notice::NameInUse(member) => tracing::error!(
                        %member,
                        "another process renews this node's lease, so this one cannot register: is its folder a copy?"
                    ),
                    _ => tracing::info!(?notice, "cluster"),
                }
                self.parts.events.put(self.parts.clock.now().cluster, notice);
            }
            Action::Fenced => {
                tracing::warn!("this life of the node is over: another one registers");
                self.parts.gateway.set_me(None);
            }
            Action::Left => {
                self.parts.gateway.set_me(None);
                self.parts.view.send_modify(|view| Arc::make_mut(view).left = true);
            }
        }
    }

    /// Lists every row, and watches from there.
    fn list(&mut self) {
        self.watch += 1;
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        let (watch, own, store) = (self.watch, self.own.clone(), self.parts.rows.clone());
        let loader = self.parts.loader.clone();
        self.watcher = Some(tokio::spawn(async move {
            let listed = store.list("").await;
            let (all, revision) = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    tracing::warn!(%error, "the cluster's rows were not read");
                    // Nobody to hear it: the node stops.
                    let _ = own.send(Input::Event(Event::Listed(None)));
                    return;
                }
            };
            let (mut core, mut types) = (Vec::new(), Vec::new());
            for row in all {
                match rows::decode_core(&row) {
                    Ok(Some(row)) => core.push(row),
                    Ok(None) => types.push(row),
                    Err(error) => tracing::error!(%error, "a row was not understood"),
                }
            }
            types.retain(|row| rows::type_name(&row.key).is_some());
            loader.listed(types, revision);
            // Nobody to hear any of it: the node stops.
            let _ = own.send(Input::Event(Event::Listed(Some(core))));
            let mut changes = store.watch("", revision);
            loop {
                let event = changes.next().await;
                let lost = event == RowEvent::Lost;
                if own.send(Input::Watched(watch, event)).is_err() || lost {
                    return;
                }
            }
        }));
    }

    fn read(&mut self, key: Key) {
        let asked = self.parts.rows.get(&rows::key_text(&key));
        self.tasks.push(
            async move {
                match asked.await {
                    Ok(Some(row)) => match rows::decode_core(&row) {
                        Ok(Some((key, row, revision))) => {
                            Event::Row { key, value: Some((row, revision)) }
                        }
                        _ => Event::Tick,
                    },
                    Ok(None) => Event::Row { key, value: None },
                    // It is asked again.
                    Err(_) => Event::Tick,
                }
            }
            .boxed(),
        );
    }

    fn write(&mut self, number: u64, key: &Key, expected: Option<u64>, row: &Row) {
        let value = match rows::encode_core(row) {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!(%error, "a row was not written");
                let result = Err(WriteError::Unknown);
                let event = std::future::ready(Event::Written { number, result });
                return self.tasks.push(event.boxed());
            }
        };
        let cas = Cas { key: rows::key_text(key), expected, value };
        let asked = self.parts.rows.compare_and_set(cas);
        self.tasks.push(
            async move {
                let result = asked.await.map_err(|conflict| match conflict {
                    Conflict::Changed(None) => WriteError::Conflict(None),
                    Conflict::Changed(Some(row)) => match rows::decode_core(&row) {
                        Ok(Some((_, row, revision))) => WriteError::Conflict(Some((row, revision))),
                        _ => WriteError::Unknown,
                    },
                    Conflict::Store(error) => {
                        tracing::debug!(%error, "a row's write has no answer");
                        WriteError::Unknown
                    }
                });
                Event::Written { number, result }
            }
            .boxed(),
        );
    }

    fn read_claims(&mut self, number: u64, shards: Vec<ShardId>) {
        let asked = self.parts.entities.claims(shards.into_iter().map(shard_key).collect());
        self.tasks.push(async move { Event::Claims { number, claims: asked.await.ok() } }.boxed());
    }

    /// Asks the entities' store for something small, to know whether it answers (R9).
    fn ask_store(&mut self) {
        let sent = self.parts.clock.now().mono;
        let asked = self.parts.entities.claims(vec![shard_key(ShardId(1))]);
        self.tasks.push(
            async move {
                match asked.await {
                    Ok(_) => Event::StoreAnswered { sent },
                    Err(_) => Event::Tick,
                }
            }
            .boxed(),
        );
    }

    /// Cluster time, and what is remembered of the store.
    fn keep_notes(&mut self) {
        let (store, time) = (self.parts.rows.clone(), self.parts.clock.now().cluster);
        let local = self.parts.local.clone();
        self.tasks.push(
            async move {
                if let Err(error) = ownership::write_time(&*store, time).await {
                    tracing::debug!(%error, "cluster time was not written");
                }
                if let Some(local) = local
                    && let Err(error) = local.refresh_witness().await
                {
                    tracing::warn!(%error, "the store's witness was not refreshed");
                }
                Event::Tick
            }
            .boxed(),
        );
    }

    fn picture(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let now = self.parts.clock.now();
        let before = self.parts.view.borrow().clone();
        let view = View::of(&self.parts.machine, now, &before);
        self.parts.view.send_replace(Arc::new(view));
        if let Some(cache) = &self.parts.cache {
            cache.store(&self.parts.view.borrow());
        }
    }
}
