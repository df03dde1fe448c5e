//! A running node: its parts, in the order in which they start and stop.
//!
//! Starting: control thread, store (its own, or over links to the node that has it), network, guests' host, workers,
//! gateway; then the machine registers the node, and the node is ready when every shard has an owner that it
//! knows. Stopping: the node drains, so that its shards serve elsewhere before they end here (S10); what it
//! took is answered; the network closes, and the store last.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_sharding::ids::{ClusterId, Incarnation, NodeId};
use ostraca_sharding::node::{Event, Identity as Name, Machine, Notice};
use ostraca_sharding::route::Router;
use ostraca_sharding::rows::Member;
use ostraca_store::{ClusterStore, EntityStore, StoreIdentity};
use ostraca_store_peer::{ClusterServer, EntityServer, ServerOptions};
use ostraca_store_sled::SledStore;
use ostraca_wire::hello::NodeFacts;
use ostraca_wire::peer::{Facts, PeerDialer};
use ostraca_wire::server::{Peers as PeerSide, Server};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admin::Desk;
use crate::cache::Cache;
use crate::clock::Clock;
use crate::config::Config;
use crate::control::{self, Control};
use crate::deploy::Deployer;
use crate::error::NodeError;
use crate::gateway::{Gateway, Links, Opener};
use crate::late::{Late, LateEntities, LateRows};
use crate::loader::{self, Loader};
use crate::peers::{Peers, Streams};
use crate::record::Recorder;
use crate::rows::{FORMAT, PoolRow};
use crate::service::{Door, Open};
use crate::stats::{Gauges, Stats};
use crate::status::Status;
use crate::stores::{self, Found};
use crate::types::Types;
use crate::view::{Events, View};
use crate::worker::{self, Answers, Input, Parts, Report};

/// How long a start waits until every shard has an owner; then the node is ready all the same, and says so.
const SETTLE: Duration = Duration::from_secs(30);
/// How long a start waits for a store that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where it can send by what it remembers.
const PATIENCE_REMEMBERED: Duration = Duration::from_secs(3);
/// How often another process must be seen to renew this node's lease, once a lease, before a start gives up.
const RIVALS: usize = 3;
/// How long a store node that stops waits for others that leave and have not said goodbye yet, in parts of the grace.
const OTHERS: u32 = 4;
/// How long a store node that stops gives live nodes to say that they leave too.
const TOGETHER: Duration = Duration::from_millis(500);
/// How long a start waits for deployed types to be compiled.
const TYPES: Duration = Duration::from_secs(60);

/// A node that serves.
pub struct Node {
    server: Arc<Server<Door>>,
    address: SocketAddr,
    summary: Summary,
    workers: Vec<Worker>,
    control: Control,
    gateway: Arc<Gateway>,
    view: watch::Receiver<Arc<View>>,
    events: Arc<Events>,
    types: Types,
    shards: u32,
    /// The store did not answer when the node started.
    store_away: bool,
    /// None of them ends before the node does.
    vital: JoinSet<()>,
    /// End with the node.
    tasks: JoinSet<()>,
    failed: mpsc::UnboundedReceiver<NodeError>,
    _store: Option<Arc<SledStore>>,
}

/// What a node is, for the line that says it is ready.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The node's name.
    pub node: String,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// Shards that it serves.
    pub shards: u32,
    /// Types that are deployed.
    pub types: usize,
}

/// The cluster's store, wherever it is.
struct Stores {
    rows: Arc<dyn ClusterStore>,
    entities: Arc<dyn EntityStore>,
    found: Found,
    /// It does not answer yet.
    away: bool,
}

/// What reaches another node's store.
struct Joining {
    config: Config,
    cluster: ClusterId,
    dialer: PeerDialer,
    control: Handle,
}

impl Joining {
    async fn connect(&self, patience: Duration) -> Result<stores::Remote, NodeError> {
        let Self { config, cluster, dialer, control } = self;
        stores::connect(config, *cluster, dialer, control, patience).await
    }

    /// Reaches the store. Where it is away and the pool is remembered, the node starts without it, and goes on trying.
    async fn reach(
        self,
        pool: Option<PoolRow>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Stores, NodeError> {
        let pool = pool.filter(|_| self.config.roles().gateway);
        let patience = if pool.is_some() { PATIENCE_REMEMBERED } else { PATIENCE };
        let error = match self.connect(patience).await {
            Ok(remote) => {
                let stores = Stores {
                    rows: remote.cluster.clone(),
                    entities: remote.entity.clone(),
                    found: remote.found.clone(),
                    away: false,
                };
                tasks.spawn(keep(remote));
                return Ok(stores);
            }
            Err(error) => error,
        };
        let Some(pool) = pool.filter(|_| error.is_retryable()) else { return Err(error) };
        tracing::warn!(%error, "the store is away: messages go by remembered routes until it is back");
        let identity = StoreIdentity {
            store: 0,
            cluster: self.cluster,
            cluster_name: String::new(),
            opened: 0,
            nonce: 0,
            sequence: 0,
        };
        let late = Late::new(identity.clone());
        let found = Found { identity, shards: pool.shards, hash: pool.hash, time: 0 };
        let rows: Arc<dyn ClusterStore> = Arc::new(LateRows(late.clone()));
        let entities: Arc<dyn EntityStore> = Arc::new(LateEntities(late.clone()));
        tasks.spawn(async move {
            loop {
                match self.connect(PATIENCE).await {
                    Ok(remote) => {
                        late.reach(remote.cluster.clone(), remote.entity.clone());
                        return keep(remote).await;
                    }
                    Err(error) => tracing::warn!(%error, "the store is still away"),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Ok(Stores { rows, entities, found, away: true })
    }
}

/// Keeps what writes the store's witness, until the node ends.
async fn keep(remote: stores::Remote) {
    std::future::pending::<()>().await;
    drop(remote);
}

impl Node {
    /// Starts a node, and waits until it has settled. Must be called within a multi-threaded tokio runtime: the network
    /// runs there, the guests and the lease on threads of their own.
    ///
    /// # Errors
    /// Whatever keeps it from serving, each with what to do.
    pub async fn start(config: Config) -> Result<Self, NodeError> {
        let mut node = Self::begin(config).await?;
        match node.settle().await {
            Ok(()) => Ok(node),
            Err(error) => {
                node.stop(Duration::from_secs(1)).await;
                Err(error)
            }
        }
    }

    /// The first half of [`Node::start`]: the node has all its parts and registers; from here on it is to be stopped, not
    /// dropped.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn begin(config: Config) -> Result<Self, NodeError> {
        let (trust, identity) = config.identity()?;
        let roles = config.roles();
        let node = NodeId::from(config.node.as_str());
        let clock = Arc::new(Clock::new(0));
        let mut control = Control::prepare()?;

        let local = match roles.store {
            true => Some(stores::open_local(&config, trust.cluster).await?),
            false => None,
        };
        let door = Arc::new(Door::default());
        let facts = Facts {
            node: NodeFacts {
                cluster: trust.cluster,
                store: local.as_ref().map_or(0, |store| store.found.identity.store),
                node: node.clone(),
                incarnation: Incarnation::default(),
            },
            roles,
            shards: local
                .as_ref()
                .map_or(config.expected_shards.unwrap_or(0), |own| own.found.shards),
            hash: match &local {
                Some(own) => own.found.hash.clone(),
                None => config.expected_hash.clone().unwrap_or_default(),
            },
            addresses: config.advertise.clone(),
            format: FORMAT,
        };
        let served = ServerOptions::default;
        let peers = Arc::new(Peers {
            bulk: Handle::current(),
            control: control.runtime.clone(),
            heard: control.input.clone(),
            entities: local.as_ref().map(|store| EntityServer::new(store.sled.clone(), served())),
            rows: OnceLock::new(),
            gateway: OnceLock::new(),
        });
        let (server, dialer) = Server::bind_with_peers(
            config.listen,
            "listen",
            &identity,
            &trust,
            config.wire_limits(),
            PeerSide { facts: facts.clone(), service: Arc::new(Streams(peers.clone())) },
            door.clone(),
        )?;
        let server = Arc::new(server);
        let address = server.local_addr()?;
        let (mut vital, mut tasks) = (JoinSet::new(), JoinSet::new());
        let running = server.clone();
        vital.spawn(async move { running.run().await });
        let addresses = announced(&config, address);

        let types = Types::default();
        let cache = match roles.store {
            true => None,
            false => {
                let (dir, types) = (Cache::place(&config.data), types.clone());
                blocking(move || Cache::open(&dir, trust.cluster, types)).await?
            }
        };
        let remembered = cache.as_ref().map(Cache::load).unwrap_or_default();
        let stores = match &local {
            Some(own) => Stores {
                rows: own.sled.clone(),
                entities: own.sled.clone(),
                found: own.found.clone(),
                away: false,
            },
            None => {
                let joining = Joining {
                    config: config.clone(),
                    cluster: trust.cluster,
                    dialer: dialer.clone(),
                    control: control.runtime.clone(),
                };
                joining.reach(remembered.pool.clone(), &mut tasks).await?
            }
        };
        let Stores { rows, entities, found, away: store_away } = stores;
        // Set here and nowhere else.
        let _ = peers.rows.set(ClusterServer::new(rows.clone(), served()));
        let own = found.identity.clone();
        let facts = Facts {
            node: NodeFacts { store: own.store, ..facts.node },
            shards: found.shards,
            hash: found.hash.clone(),
            addresses: addresses.clone(),
            ..facts
        };
        server.set_peer_facts(facts.clone());
        clock.set(found.time);

        let mut settings = config.wasm_settings();
        if !roles.host {
            // It only checks what is deployed.
            settings.allocator = ostraca_wasm::Allocator::OnDemand;
        }
        let wasm = blocking(move || ostraca_wasm::Host::new(&settings)).await??;
        let hosting = roles.host.then(|| wasm.clone());
        let stats = Arc::new(Stats::default());
        let answers = Arc::new(Answerer::default());
        let count = match (roles.host, config.workers) {
            (false, _) => 0,
            (true, 0) => std::thread::available_parallelism().map_or(1, usize::from),
            (true, set) => set,
        };
        let mut gauges = Vec::new();
        let mut workers = Vec::new();
        let most = wasm.shape().max_live as usize;
        let (reports, heard) = mpsc::unbounded_channel();
        for index in 0..count {
            let gauge = Arc::new(Gauges::default());
            gauges.push(gauge.clone());
            let parts = Parts {
                index,
                settings: config.shard_settings(),
                cap: (most / count).max(1),
                clock: clock.clone(),
                store: entities.clone(),
                stats: stats.clone(),
                gauges: gauge,
                recorder: recorder(&config, index)?,
                reports: reports.clone(),
                answers: answers.clone(),
            };
            workers.push(spawn_worker(parts)?);
        }
        drop(reports);
        let inputs: Vec<_> = workers.iter().map(|(input, _)| input.clone()).collect();

        let told = inputs.clone();
        let loader = Loader::new(loader::Parts {
            types: types.clone(),
            store: entities.clone(),
            wasm: hosting.clone(),
            tell: Box::new(move |entry| {
                for worker in &told {
                    // A worker that has ended runs nothing.
                    let _ = worker.send(Input::Type(entry.clone()));
                }
            }),
            runtime: Handle::current(),
            budget: loader::BUDGET,
        });
        let deployer = Deployer {
            cluster: rows.clone(),
            store: entities.clone(),
            wasm: wasm.clone(),
            types: types.clone(),
            loader: loader.clone(),
            shards: found.shards,
            turn: Mutex::new(()),
        };

        let (away, mut unreachable) = mpsc::unbounded_channel();
        let links = Links::new(node.clone(), dialer.clone(), Handle::current(), away);
        let gateway = Gateway::new(
            Router::new(config.route_settings(), found.shards),
            Opener::new(clock.clone()),
            links,
            clock.clone(),
            types.clone(),
            found.shards,
            inputs.clone(),
        );
        gateway.links.serve(&gateway);
        answers.set(gateway.clone());
        // Both are set here and nowhere else.
        let _ = peers.gateway.set(gateway.clone());
        vital.spawn(gateway.clone().run());
        let told = control.input.clone();
        tasks.spawn(async move {
            while let Some(node) = unreachable.recv().await {
                // Nobody to hear it: the node stops.
                let _ = told.send(control::Input::Event(Event::Unreachable { node }));
            }
        });

        let (failures, failed) = mpsc::unbounded_channel();
        let (shown, view) = watch::channel(Arc::new(View::default()));
        let events = Arc::new(Events::default());
        let naming = server.clone();
        let registered = move |member: &Member| {
            let node = NodeFacts { incarnation: member.incarnation, ..facts.node.clone() };
            naming.set_peer_facts(Facts { node, ..facts.clone() });
        };
        let name = Name {
            node: node.clone(),
            roles,
            version: version(),
            addresses: addresses.clone(),
            shards: found.shards,
            seed: rand::random(),
        };
        let settings =
            ostraca_sharding::node::Settings { embedded: roles.store, ..config.node_settings() };
        let mut machine = Machine::new(settings, name, config.strategy());
        if !remembered.rows.is_empty() {
            loader.remembered(&remembered.types);
            machine.handle(clock.now(), Event::Cached(remembered.rows));
        }
        control.start(control::Parts {
            machine,
            cluster: own.cluster,
            rows,
            entities: entities.clone(),
            local: local.as_ref().map(|own| own.sled.clone()),
            workers: inputs,
            gateway: gateway.clone(),
            loader,
            cache,
            clock: clock.clone(),
            stats: stats.clone(),
            events: events.clone(),
            view: shown,
            dialer,
            registered: Box::new(registered),
            failures,
            every: config.renew,
        });
        let told = control.input.clone();
        tasks.spawn(pass_on(heard, told));
        let status = Status {
            node: config.node.as_str().into(),
            addresses,
            lease: u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX),
            clock,
            identity: {
                let entities = entities.clone();
                Box::new(move || entities.identity())
            },
            local: local.as_ref().map(|own| own.sled.clone()),
            wasm: hosting,
            stats,
            gauges,
            view: view.clone(),
        };
        let desk = Desk {
            deployer,
            status,
            store: entities,
            view: view.clone(),
            events: events.clone(),
            control: control.input.clone(),
            workers: workers.iter().map(|(input, _)| input.clone()).collect(),
            shards: found.shards,
        };
        door.open(Open { gateway: gateway.clone(), desk, takes_messages: roles.gateway });
        let summary = Summary {
            node: config.node.clone(),
            cluster: own.cluster,
            cluster_name: own.cluster_name.clone(),
            shards: found.shards,
            types: types.now().len(),
        };
        Ok(Self {
            server,
            address,
            summary,
            workers,
            control,
            gateway,
            view,
            events,
            types,
            shards: found.shards,
            store_away,
            vital,
            tasks,
            failed,
            _store: local.map(|own| own.sled),
        })
    }

    /// The second half of [`Node::start`]: waits until the node knows an owner of every shard and serves its own, and has
    /// compiled what is deployed; each for a while, and says so if it took longer.
    ///
    /// # Errors
    /// [`NodeError::NameInUse`]; what ended meanwhile.
    pub async fn settle(&mut self) -> Result<(), NodeError> {
        if self.store_away {
            return Ok(());
        }
        let (mut view, types, events) =
            (self.view.clone(), self.types.clone(), self.events.clone());
        let (shards, name) = (self.shards, self.summary.node.clone());
        tokio::select! {
            () = settled(&mut view, &types, shards) => {}
            places = rival(&events, &self.view) => {
                return Err(NodeError::NameInUse { node: name, places });
            }
            error = ended(&mut self.failed, &mut self.vital) => return Err(error),
        }
        self.summary.types = self.types.now().len();
        Ok(())
    }

    /// Where it takes clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Resolves when the node can serve no more. A store that stopped is no reason: the node says so to whoever asks.
    pub async fn ended(&mut self) -> NodeError {
        ended(&mut self.failed, &mut self.vital).await
    }

    /// Stops in good order, within about twice `grace` at the very worst: hands its shards over, or stops them where nobody
    /// takes them; says goodbye, answers what was taken, closes the network and the store.
    pub async fn stop(mut self, grace: Duration) {
        self.control.tell(Event::Leave);
        let left = |view: &Arc<View>| view.left;
        if tokio::time::timeout(grace, self.view.wait_for(left)).await.is_err() {
            tracing::warn!("the shards were not handed over within {grace:?}: they stop here");
            self.control.tell(Event::LeaveNow);
            if tokio::time::timeout(grace / 4, self.view.wait_for(left)).await.is_err() {
                tracing::warn!("the node could not say goodbye; its lease lapses by itself");
            }
        }
        if self._store.is_some() {
            // They cannot leave without the store: where all stop together, it is the last.
            let node = NodeId::from(self.summary.node.as_str());
            if self.view.borrow().others_live(&node) {
                // One that was told to stop at the same moment may not have said so yet.
                tokio::time::sleep(TOGETHER).await;
            }
            let gone = |view: &Arc<View>| !view.others_leave(&node);
            if tokio::time::timeout(grace / OTHERS, self.view.wait_for(gone)).await.is_err() {
                tracing::warn!("other nodes still leave, and now without the store");
            }
        }
        // Nothing new is taken from here on, and answers come and go until the endpoint closes.
        let closing = self.gateway.close(grace / 8);
        futures::join!(closing, self.server.shut_down(grace / 4));
        let mut stopped = Vec::new();
        for (input, _) in &self.workers {
            let (done, heard) = oneshot::channel();
            if input.send(Input::Stop(done)).is_ok() {
                stopped.push(heard);
            }
        }
        let all = futures::future::join_all(stopped);
        let in_time = tokio::time::timeout(grace / 8, all).await.is_ok();
        if !in_time {
            tracing::warn!("some shards did not stop in time; what they ran is not lost");
        }
        self.vital.shutdown().await;
        self.tasks.shutdown().await;
        let workers = std::mem::take(&mut self.workers);
        let control = self.control;
        let joined = blocking(move || {
            for (input, thread) in workers {
                drop(input);
                // One that has said so is at its end, and lets go of the store with it.
                if (in_time || thread.is_finished()) && thread.join().is_err() {
                    tracing::error!("a worker had panicked");
                }
            }
            control.stop();
        });
        if let Err(error) = joined.await {
            tracing::error!(%error, "the node did not stop in good order");
        }
    }
}

/// What ended that should not have. A control thread that panicked has told nobody.
async fn ended(
    failed: &mut mpsc::UnboundedReceiver<NodeError>,
    vital: &mut JoinSet<()>,
) -> NodeError {
    tokio::select! {
        error = failed.recv() => {
            error.unwrap_or_else(|| NodeError::Ended("the control thread".into()))
        }
        Some(task) = vital.join_next() => {
            let why = task.err().map_or_else(String::new, |error| format!(": {error}"));
            NodeError::Ended(format!("the network or the gateway{why}"))
        }
    }
}

/// Resolves when another process keeps this node's name, with where it is reached.
async fn rival(events: &Events, view: &watch::Receiver<Arc<View>>) -> String {
    let mut more = events.watch();
    let (mut last, mut seen) = (0, 0);
    loop {
        for event in events.after(last, usize::MAX) {
            last = event.number;
            let Notice::NameInUse(member) = event.notice else { continue };
            seen += 1;
            if seen >= RIVALS {
                let row = view.borrow().nodes.get(&member.node).cloned();
                return row.map_or_else(String::new, |row| row.addresses.join(", "));
            }
        }
        if more.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Waits until the node knows an owner of every shard and serves its own, and has compiled what is deployed.
async fn settled(view: &mut watch::Receiver<Arc<View>>, types: &Types, shards: u32) {
    let settled = tokio::time::timeout(SETTLE, view.wait_for(|view| view.settled(shards))).await;
    if settled.is_err() {
        tracing::warn!("not every shard has an owner yet: `ostraca status` says more");
    }
    if !types.settled(TYPES).await {
        tracing::warn!("some types are still being compiled");
    }
}

/// What workers say goes to the control thread, until every one of them has ended.
async fn pass_on(
    mut heard: mpsc::UnboundedReceiver<Report>,
    told: mpsc::UnboundedSender<control::Input>,
) {
    while let Some(report) = heard.recv().await {
        // Nobody to hear it: the node stops.
        let _ = told.send(control::Input::Report(report));
    }
}

/// The gateway, for workers that are made before it.
#[derive(Default)]
struct Answerer(OnceLock<Arc<Gateway>>);

impl Answerer {
    fn set(&self, gateway: Arc<Gateway>) {
        // Set once, by the start.
        let _ = self.0.set(gateway);
    }
}

impl Answers for Answerer {
    fn answered(&self, answers: &mut Vec<worker::Answered>) {
        if let Some(gateway) = self.0.get() {
            gateway.answered(answers);
        }
    }
}

/// Where others reach the node: what `advertise` says, or else where it listens.
fn announced(config: &Config, bound: SocketAddr) -> Vec<String> {
    if config.advertise.is_empty() && bound.ip().is_unspecified() {
        tracing::warn!(
            "other nodes cannot reach this one: it listens on {bound}; set `advertise` to an address of it"
        );
    }
    match config.advertise.is_empty() {
        true => vec![bound.to_string()],
        false => config.advertise.clone(),
    }
}

/// The program's version as one number that rises with it: 1.2.3 is 1,002,003.
fn version() -> u64 {
    let part = |text: &str| text.parse::<u64>().unwrap_or(0);
    (part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000 + part(env!("CARGO_PKG_VERSION_MINOR"))) * 1_000
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

fn recorder(config: &Config, index: usize) -> Result<Option<Recorder>, NodeError> {
    config
        .record
        .as_deref()
        .map(|dir| Recorder::create(dir, index, crate::clock::boot_millis()))
        .transpose()
        .map_err(|source| NodeError::File {
            action: "create",
            path: config.record.clone().unwrap_or_default(),
            source,
        })
}

type Worker = (mpsc::UnboundedSender<Input>, std::thread::JoinHandle<()>);

fn spawn_worker(parts: Parts) -> Result<Worker, NodeError> {
    let (input, inputs) = mpsc::unbounded_channel();
    let name = format!("ostraca-worker-{}", parts.index);
    let failed = |source| NodeError::Thread { name: name.clone(), source };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || runtime.block_on(worker::run(parts, inputs)))
        .map_err(failed)?;
    Ok((input, thread))
}

/// Runs what blocks on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| NodeError::Ended(format!("a thread of the node: {error}")))
}
