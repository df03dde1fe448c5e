//! A running node: its parts, in the order in which they start and stop.
//!
//! Starting: store, registration, guests' host, workers with a machine a shard, deployments, lease, claims, and
//! only then the door. Stopping goes the other way round: the door closes, what was taken is answered, every shard
//! is given up in good order, the lease says goodbye, the store closes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ostraca_sharding::ids::{ClusterId, NodeId};
use ostraca_store_sled::SledStore;
use ostraca_wire::hello::NodeFacts;
use ostraca_wire::server::Server;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::Config;
use crate::deploy::Deployer;
use crate::error::NodeError;
use crate::lease::{Lease, Renewal};
use crate::ownership::{Cluster, Registration};
use crate::record::Recorder;
use crate::service::Door;
use crate::stats::{Gauges, Stats};
use crate::status::Status;
use crate::types::Types;
use crate::worker::{self, Input, Parts, Report};

/// How long a start waits for the shards' claims: they are one batch, so this is only a bound.
const CLAIMS: Duration = Duration::from_secs(60);

/// A node that serves.
pub struct Node {
    server: Arc<Server<Door>>,
    address: SocketAddr,
    summary: Summary,
    workers: Vec<(mpsc::UnboundedSender<Input>, std::thread::JoinHandle<()>)>,
    lease: Option<Lease>,
    tasks: TaskTracker,
    failed: mpsc::UnboundedReceiver<NodeError>,
    _store: Arc<SledStore>,
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

impl Node {
    /// Starts a node; it serves when this returns. Must be called within a multi-threaded tokio runtime: the network
    /// runs there, the guests on threads of their own.
    ///
    /// # Errors
    /// Whatever keeps it from serving, each with what to do.
    pub async fn start(config: Config) -> Result<Self, NodeError> {
        let (trust, identity) = config.identity()?;
        let (dir, mut options) = (config.store_dir(), config.store_options());
        options.cluster = Some(trust.cluster);
        let store = blocking(move || SledStore::open(&dir, &options)).await??;
        let store = Arc::new(store);
        let cluster: Cluster = store.clone();
        let own = store.identity();

        let node = NodeId::from(config.node.as_str());
        let registration =
            Registration::take(&*cluster, node.clone(), config.advertise.clone()).await?;
        let wasm_settings = config.wasm_settings();
        let wasm = blocking(move || ostraca_wasm::Host::new(&wasm_settings)).await??;

        let clock = Arc::new(Clock::new(registration.time));
        let stats = Arc::new(Stats::default());
        let count = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            set => set,
        };
        let (reports, mut heard) = mpsc::unbounded_channel();
        let mut workers = Vec::new();
        let mut gauges = Vec::new();
        let cap = (wasm.shape().max_live as usize / count).max(1);
        for index in 0..count {
            let gauge = Arc::new(Gauges::default());
            gauges.push(gauge.clone());
            let recorder = config
                .record
                .as_deref()
                .map(|dir| Recorder::create(dir, index, registration.incarnation.counter))
                .transpose()
                .map_err(|source| NodeError::File {
                    action: "create",
                    path: config.record.clone().unwrap_or_default(),
                    source,
                })?;
            let parts = Parts {
                index,
                settings: config.shard_settings(),
                cap,
                clock: clock.clone(),
                store: store.clone(),
                stats: stats.clone(),
                gauges: gauge,
                recorder,
                reports: reports.clone(),
            };
            workers.push(spawn_worker(parts)?);
        }
        drop(reports);
        let inputs: Vec<_> = workers.iter().map(|(input, _)| input.clone()).collect();

        let types = Types::default();
        let deployer = Deployer {
            cluster: cluster.clone(),
            store: store.clone(),
            wasm: wasm.clone(),
            types: types.clone(),
            workers: inputs.clone(),
            shards: registration.shards,
            turn: Mutex::new(()),
        };
        deployer.restore().await?;

        let owners = registration.assign(&*cluster, &own).await?;
        let shards = registration.shards;
        for owner in owners {
            let worker = Door::worker_of(owner.shard.shard, count);
            // A worker that has ended is noticed below: its shards never serve.
            let _ = inputs[worker].send(Input::Adopt(Box::new(owner)));
        }
        let renewal = Renewal {
            registration: registration.clone(),
            cluster: cluster.clone(),
            store: store.clone(),
            clock: clock.clone(),
            stats: stats.clone(),
            workers: inputs.clone(),
            every: config.renew,
        };
        let lease = blocking(move || Lease::start(renewal)).await??;

        let (failures, failed) = mpsc::unbounded_channel();
        let mut serving = 0;
        while serving < shards {
            match tokio::time::timeout(CLAIMS, heard.recv()).await {
                Ok(Some(Report::Serving)) => serving += 1,
                Ok(Some(Report::Lost(owner, standing, why))) => {
                    let above = standing.map_or(owner.epoch, |standing| standing.epoch);
                    tracing::warn!(shard = %owner.shard, %why, "claiming above the epoch that stands");
                    let shard = owner.shard.shard;
                    let owner = registration.assign_above(&*cluster, &own, shard, above).await?;
                    let _ =
                        inputs[Door::worker_of(shard, count)].send(Input::Adopt(Box::new(owner)));
                }
                Ok(Some(Report::Panicked(_)) | None) => {
                    return Err(NodeError::Ended("a worker ended while starting".into()));
                }
                Err(_) => {
                    let text =
                        format!("only {serving} of {shards} shards could be claimed within 60 s");
                    return Err(NodeError::Ended(text));
                }
            }
        }

        let facts = NodeFacts {
            cluster: own.cluster,
            store: own.store,
            node,
            incarnation: registration.incarnation,
        };
        let status = Status {
            node: config.node.as_str().into(),
            incarnation: registration.incarnation,
            addresses: config.advertise.clone(),
            lease: u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX),
            clock: clock.clone(),
            store: store.clone(),
            wasm,
            stats,
            gauges,
        };
        let summary = Summary {
            node: config.node.clone(),
            cluster: own.cluster,
            cluster_name: own.cluster_name.clone(),
            shards,
            types: types.now().len(),
        };
        let door = Door {
            types,
            shards,
            clock,
            workers: inputs.clone(),
            deployer,
            status,
            tokens: std::sync::atomic::AtomicU64::new(0),
            content_types: std::sync::Mutex::default(),
        };
        let limits = config.wire_limits();
        let server = Server::bind(
            config.listen,
            "listen",
            &identity,
            &trust,
            limits,
            facts,
            Arc::new(door),
        )?;
        let server = Arc::new(server);
        let address = server.local_addr()?;
        let tasks = TaskTracker::new();
        let running = server.clone();
        tasks.spawn(async move { running.run().await });
        tasks.spawn(async move {
            // A shard lost while serving: with one node this is a fault of the store, and the shard is claimed anew.
            while let Some(report) = heard.recv().await {
                if let Report::Panicked(worker) = report {
                    // Nobody to hear it: the node is stopping.
                    let _ = failures.send(NodeError::Ended(format!("worker {worker} panicked")));
                }
                let Report::Lost(owner, standing, why) = report else { continue };
                tracing::error!(shard = %owner.shard, %why, "a shard was lost; it is claimed anew");
                let above = standing.map_or(owner.epoch, |standing| standing.epoch);
                let shard = owner.shard.shard;
                match registration.assign_above(&*cluster, &own, shard, above).await {
                    Ok(owner) => {
                        let _ = inputs[Door::worker_of(shard, count)]
                            .send(Input::Adopt(Box::new(owner)));
                    }
                    Err(error) => tracing::error!(%error, "the shard could not be assigned"),
                }
            }
            // Nobody to hear it: the node is stopping.
            let _ = failures.send(NodeError::Ended("every worker ended".into()));
        });
        tasks.close();
        Ok(Self {
            server,
            address,
            summary,
            workers,
            lease: Some(lease),
            tasks,
            failed,
            _store: store,
        })
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
        match self.failed.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Stops in good order, within `grace`: takes nothing new, answers what was taken, stops every instance, gives the
    /// shards and the lease up.
    pub async fn stop(mut self, grace: Duration) {
        self.server.shut_down(grace).await;
        let mut stopped = Vec::new();
        for (input, _) in &self.workers {
            let (done, heard) = oneshot::channel();
            if input.send(Input::Stop(done)).is_ok() {
                stopped.push(heard);
            }
        }
        let all = futures::future::join_all(stopped);
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!("some shards did not stop within {grace:?}; what they ran is not lost");
        }
        let workers = std::mem::take(&mut self.workers);
        let lease = self.lease.take();
        let joined = blocking(move || {
            for (input, thread) in workers {
                drop(input);
                if thread.is_finished() && thread.join().is_err() {
                    tracing::error!("a worker had panicked");
                }
            }
            if let Some(lease) = lease {
                lease.stop();
            }
        });
        if let Err(error) = joined.await {
            tracing::error!(%error, "the node did not stop in good order");
        }
        // A worker that cannot end, as on a disk that hangs, must not keep the process.
        let _ = tokio::time::timeout(grace, self.tasks.wait()).await;
    }
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
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| NodeError::Ended(format!("a thread of the node: {error}")))
}
