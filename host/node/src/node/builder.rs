//! A node's parts, each built by its own function; [`Node::launch`](super::Node::launch) defines the order.

use std::sync::{Arc, OnceLock};

use ostraca_catalog::AccessRegistry;
use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::loader::{self, Loader};
use ostraca_catalog::types::TypeRegistry;
use ostraca_config::Config;
use ostraca_control::cache::RouteCache;
use ostraca_control::{self as control, ControlThread};
use ostraca_core::assign::AllocationStrategy;
use ostraca_core::ids::{ClusterId, NodeId};
use ostraca_core::node::{Event, Machine, NodeIdentity};
use ostraca_core::pools::Pool;
use ostraca_gateway::{Gateway, GatewayDeps};
use ostraca_stats::Stats;
use ostraca_store::MovableShards;
use ostraca_store_ranges::RangedStore;
use ostraca_store_sled::SledStore;
use ostraca_trace::Tracer;
use ostraca_wasm::WasmRuntime;
use ostraca_wire::peer::PeerDialer;
use ostraca_workers::{Input, RandomKey};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Summary;
use super::store_access::{StoreConnector, StoreHandles};
use crate::blocking::blocking;
use crate::error::NodeError;
use crate::release::version;
use crate::stores::{self, LocalStore};

/// The inputs from which every part is built.
pub(super) struct NodeBuilder {
    pub(super) config: Config,
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) clock: Arc<ClusterClock>,
    pub(super) random_key: Arc<OnceLock<RandomKey>>,
    /// The stores of the state, once they are connected, if there are several.
    pub(super) ranges: Arc<OnceLock<RangedStore>>,
    /// The store of the state, if it is one that this node opened itself.
    pub(super) movable: Arc<OnceLock<Arc<dyn MovableShards>>>,
    pub(super) stats: Arc<Stats>,
    pub(super) tracer: Tracer,
    pub(super) types: TypeRegistry,
    pub(super) access: AccessRegistry,
}

impl NodeBuilder {
    /// Must be called within the runtime of the bulk connections.
    pub(super) fn new(config: Config, cluster: ClusterId) -> Result<Self, NodeError> {
        let node = NodeId::from(config.node.as_str());
        let clock = Arc::new(ClusterClock::new(0));
        let stats = Arc::new(Stats::new(config.max_metric_methods()));
        let tracer = match config.trace_settings() {
            Some(settings) => {
                Tracer::start(&settings, &node.0, &cluster.to_string(), Handle::current())?
            }
            None => Tracer::default(),
        };
        Ok(Self {
            config,
            cluster,
            tracer,
            node,
            clock,
            random_key: Arc::default(),
            ranges: Arc::default(),
            movable: Arc::default(),
            stats,
            types: TypeRegistry::default(),
            access: AccessRegistry::default(),
        })
    }

    /// Opens the store, if it belongs to this node.
    pub(super) async fn open_local_store(&self) -> Result<Option<LocalStore>, NodeError> {
        match self.config.roles().store {
            true => stores::open_local(&self.config, self.cluster, &self.stats).await.map(Some),
            false => Ok(None),
        }
    }

    /// Opens the route cache of the previous run; the store node has none.
    pub(super) async fn cache(&self) -> Result<Option<RouteCache>, NodeError> {
        if self.config.roles().store {
            return Ok(None);
        }
        let (dir, types) = (RouteCache::dir(&self.config.data), self.types.clone());
        let (cluster, access) = (self.cluster, self.access.clone());
        blocking(move || RouteCache::open(&dir, cluster, types, access)).await
    }

    /// Connects to the stores outside this process. `own` has the state of entities, if it is in this one.
    pub(super) fn connector(
        &self,
        own: Option<Arc<SledStore>>,
        dialer: &PeerDialer,
        control: &ControlThread,
    ) -> StoreConnector {
        StoreConnector {
            config: self.config.clone(),
            cluster: self.cluster,
            own,
            dialer: dialer.clone(),
            control_runtime: control.runtime.clone(),
            clock: self.clock.clone(),
            random_key: self.random_key.clone(),
            ranges: self.ranges.clone(),
            movable: self.movable.clone(),
            stats: self.stats.clone(),
        }
    }

    /// Creates the runtime that compiles components and, on a host, runs them.
    pub(super) async fn wasm(&self) -> Result<WasmRuntime, NodeError> {
        let mut settings = self.config.wasm_settings();
        if !self.config.is_host() {
            // This node only checks deployed components; it does not run them.
            settings.allocator = ostraca_wasm::Allocator::OnDemand;
        }
        Ok(blocking(move || WasmRuntime::new(&settings)).await??)
    }

    pub(super) fn loader(
        &self,
        stores: &StoreHandles,
        wasm: Option<WasmRuntime>,
        workers: Vec<mpsc::UnboundedSender<Input>>,
    ) -> Loader {
        let (roles, pool_roles) = (self.config.roles(), self.config.pool_roles());
        let hosts_pool = move |pool: &Pool| match &pool.role {
            None => roles.host,
            Some(role) => pool_roles.contains(role),
        };
        Loader::new(loader::LoaderDeps {
            types: self.types.clone(),
            entity_store: stores.entity_store.clone(),
            wasm,
            pools: stores.cluster_info.pools.clone(),
            hosts_pool: Box::new(hosts_pool),
            notify_workers: Box::new(move |entry| {
                for worker in &workers {
                    // A worker that has ended no longer runs anything.
                    let _ = worker.send(Input::TypeDeployed(entry.clone()));
                }
            }),
            runtime: Handle::current(),
            budget: loader::BUDGET,
        })
    }

    /// Creates the gateway and its links. Nodes that the links cannot reach are reported to the node's machine.
    pub(super) fn gateway(
        &self,
        dialer: &PeerDialer,
        stores: &StoreHandles,
        workers: Vec<mpsc::UnboundedSender<Input>>,
        control: &ControlThread,
    ) -> Arc<Gateway> {
        let control = control.input.clone();
        Gateway::new(GatewayDeps {
            node: self.node.clone(),
            pools: stores.cluster_info.pools.clone(),
            route_settings: self.config.route_settings(),
            timeout_limits: self.config.timeout_limits(),
            max_channel_feeds: self.config.max_channel_feeds(),
            utc_limits: self.config.utc_limits(),
            clock: self.clock.clone(),
            types: self.types.clone(),
            workers,
            dialer: dialer.clone(),
            runtime: Handle::current(),
            unreachable: Arc::new(move |node| {
                // The receiver is dropped only when the node is stopping.
                let _ = control.send(control::Input::Event(Event::NodeUnreachable { node }));
            }),
            stats: self.stats.clone(),
            tracer: self.tracer.clone(),
        })
    }

    /// Creates the node's machine. `strategy` takes the place of the configured one.
    pub(super) fn machine(
        &self,
        addresses: &[String],
        stores: &StoreHandles,
        strategy: Option<Arc<dyn AllocationStrategy>>,
    ) -> Machine {
        let roles = self.config.roles();
        let name = NodeIdentity {
            node: self.node.clone(),
            roles,
            version: version(),
            addresses: addresses.to_vec(),
            pool_roles: self.config.pool_roles(),
            weight: self.config.weight(),
            pools: (*stores.cluster_info.pools.get()).clone(),
            seed: rand::random(),
        };
        let settings = self.config.node_settings();
        let strategy = match strategy {
            Some(own) => Box::new(own),
            None => self.config.strategy(),
        };
        Machine::new(settings, name, strategy)
    }

    pub(super) fn summary(&self, stores: &StoreHandles) -> Summary {
        let identity = &stores.cluster_info.identity;
        Summary {
            node: self.config.node.clone(),
            cluster: identity.cluster,
            cluster_name: identity.cluster_name.clone(),
            shards: stores.cluster_info.pools.get().shard_count(),
            types: self.types.snapshot().len(),
        }
    }
}
