//! Answers operators' requests: deployments, status, entities, drains, settings.
//!
//! Requests arrive on client streams, with one call of [`AdminService::handle_request`] each, and are answered from
//! the node's view of the cluster and from the store. Requests for the in-memory state of a shard go to its owner
//! through the gateway. Commands for the node's state machine go through the control thread's input. The service
//! runs no background tasks and is not on the path of messages.
//!
//! Confusing at first: a deploy compiles on the node that receives it, even one that runs no entities, and then
//! waits for the hosts, which compile for themselves when they see the row.

mod audit;
mod authorities;
mod authorize;
mod backup;
mod catalog_problem;
mod cluster;
mod dead_letters;
mod deploy;
mod deploy_wait;
mod dry_run;
mod entities;
mod events;
mod export;
mod figures;
mod forget;
mod listing;
mod move_shards;
mod namespaces;
mod pages;
mod pauses;
mod placement;
mod policy;
mod pool_copy;
mod pools;
mod rebalance;
mod revocations;
mod rollouts;
mod shard_figures;
mod standing;
mod status;
mod subscriptions;
mod undeploy;
mod variables;
mod who_am_i;
mod wire_rollout;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_catalog::types::unknown_type;
use ostraca_catalog::{AccessRegistry, AuditLog, Loader, VariablesReader};
use ostraca_codes::codes;
use ostraca_config::manifest::Ceilings;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_config::user_file::closest_name;
use ostraca_control as control;
use ostraca_control::view::{ClusterView, EventLog};
use ostraca_core::ids::NodeId;
use ostraca_gateway::Gateway;
use ostraca_stats::{Stats, WorkerGauges};
use ostraca_store::{ClusterStore, EntityStore, MovableShards, StoreError};
use ostraca_store_ranges::RangedStore;
use ostraca_store_sled::SledStore;
use ostraca_wasm::WasmRuntime;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{self, Problem};
use ostraca_wire::server::{AdminOperation, AdminOutput};
use tokio::sync::{mpsc, watch};

pub use authorize::is_diagnostic;
use deploy::Deployer;
use dry_run::DryRunContext;
pub use listing::methods as describe_methods;
pub use standing::Caller;
use status::StatusReporter;

/// How long a request waits for its type to become known: after a deploy, the row takes a moment to reach this
/// node.
const TYPE_TIMEOUT: Duration = Duration::from_secs(2);

/// Dependencies of the service.
pub struct AdminDeps {
    /// This node.
    pub node: NodeId,
    /// Addresses at which other nodes reach this node.
    pub addresses: Vec<String>,
    /// The configured lease duration, used until the first renewal.
    pub lease: Duration,
    /// How long a deploy waits for the live hosts (`guests.deploy-wait-timeout`).
    pub deploy_wait_timeout: Duration,
    /// Upper bounds for the limits that a manifest may set.
    pub ceilings: Ceilings,
    /// Where rows are read and written.
    pub cluster_store: Arc<dyn ClusterStore>,
    /// Where stored entities are read and components are kept.
    pub entity_store: Arc<dyn EntityStore>,
    /// The stores of the state, if there are several; set once they are connected.
    pub ranges: Arc<OnceLock<RangedStore>>,
    /// The store of the state, if it is one that this node opened itself; set once it is open.
    pub movable: Arc<OnceLock<Arc<dyn MovableShards>>>,
    /// The store, if it is in this process.
    pub local_store: Option<Arc<SledStore>>,
    /// The database with the state of entities, in words; `None` if a node has it.
    pub database: Option<String>,
    /// The store with only the cluster's rows, in words; `None` if they are where the state is.
    pub rows_store: Option<String>,
    /// Checks components. A node without the role `host` also has a runtime, but without an instance pool.
    pub wasm: WasmRuntime,
    /// Whether this node runs entities.
    pub hosts: bool,
    /// Publishes the types that are deployed through this node.
    pub loader: Loader,
    /// Records the changes that operators ask for.
    pub audit: Arc<AuditLog>,
    /// Learns of a policy that is set through this node.
    pub access: AccessRegistry,
    /// Seals secrets, and learns of those that are set through this node.
    pub variables: VariablesReader,
    /// Asks other nodes for their in-memory state.
    pub gateway: Arc<Gateway>,
    /// Sends commands to the node's state machine.
    pub control: mpsc::UnboundedSender<control::Input>,
    /// The cluster as this node sees it.
    pub view: watch::Receiver<Arc<ClusterView>>,
    /// The cluster's events that this node observed.
    pub events: Arc<EventLog>,
    /// The node's counters.
    pub stats: Arc<Stats>,
    /// Maximum memory of all live instances in bytes (`guests.max-live-memory`).
    pub max_live_memory: u64,
    /// The workers' gauges.
    pub gauges: Vec<Arc<WorkerGauges>>,
    /// The name of the strategy with which this node spreads the shards of pools that name none.
    pub strategy: String,
    /// Maximum number of pinned shards (`rebalance.max-pins`).
    pub max_pins: usize,
    /// How many hosts the first allocation waits for (`rebalance.min-hosts`).
    pub min_hosts: usize,
}

/// Handles operators' requests.
pub struct AdminService {
    gateway: Arc<Gateway>,
    deployer: Deployer,
    status: StatusReporter,
    access: AccessRegistry,
    variables: VariablesReader,
    audit: Arc<AuditLog>,
    /// Held by who reads the audit logs.
    audit_turn: tokio::sync::Mutex<()>,
    entity_store: Arc<dyn EntityStore>,
    ranges: Arc<OnceLock<RangedStore>>,
    movable: Arc<OnceLock<Arc<dyn MovableShards>>>,
    /// Held while this node copies a pool.
    pool_copy_turn: Arc<tokio::sync::Mutex<()>>,
    view: watch::Receiver<Arc<ClusterView>>,
    events: Arc<EventLog>,
    control: mpsc::UnboundedSender<control::Input>,
    deploy_wait_timeout: Duration,
    /// The name of the strategy of pools that name none, as far as this node knows.
    strategy: String,
    max_pins: usize,
}

impl AdminService {
    /// Creates the service.
    #[must_use]
    pub fn new(parts: AdminDeps) -> Self {
        let entities = parts.entity_store.clone();
        let status = StatusReporter {
            node: parts.node.0.clone(),
            addresses: parts.addresses,
            configured_lease_ms: u64::try_from(parts.lease.as_millis()).unwrap_or(u64::MAX),
            clock: parts.gateway.clock.clone(),
            store_identity: Box::new(move || entities.identity()),
            local_store: parts.local_store,
            database: parts.database,
            rows_store: parts.rows_store,
            wasm: parts.hosts.then(|| parts.wasm.clone()),
            stats: parts.stats,
            max_live_memory: parts.max_live_memory,
            gauges: parts.gauges,
            view: parts.view.clone(),
            min_hosts: parts.min_hosts,
        };
        let deployer = Deployer::new(
            parts.cluster_store,
            parts.entity_store.clone(),
            parts.wasm,
            parts.gateway.types.clone(),
            parts.gateway.pools.clone(),
            parts.loader,
            parts.ceilings,
        );
        Self {
            gateway: parts.gateway,
            deployer,
            status,
            access: parts.access,
            variables: parts.variables,
            audit: parts.audit,
            audit_turn: tokio::sync::Mutex::default(),
            entity_store: parts.entity_store,
            ranges: parts.ranges,
            movable: parts.movable,
            pool_copy_turn: Arc::default(),
            view: parts.view,
            events: parts.events,
            control: parts.control,
            deploy_wait_timeout: parts.deploy_wait_timeout,
            strategy: parts.strategy,
            max_pins: parts.max_pins,
        }
    }

    /// Handles a request, if the caller has the permissions that it needs.
    ///
    /// # Errors
    /// A problem with a code from `docs/errors.md`.
    pub async fn handle_request(
        &self,
        caller: Caller<'_>,
        permissions: &Permissions,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        let principal = caller.principal;
        authorize::authorize(principal, permissions, &request)?;
        let permissions = if self.record(principal, &request).await? {
            // That took a while: the caller may have lost its permissions.
            let now = self.permissions_now(caller)?;
            authorize::authorize(principal, &now, &request)?;
            now
        } else {
            Arc::new(permissions.clone())
        };
        let guard = self.guard(caller, &request);
        let gateway = &self.gateway;
        let output = match request {
            AdminOperation::Deploy(upload) => {
                if let Some(wanted) = upload.dry_run.clone() {
                    let context = DryRunContext {
                        wanted,
                        permissions: (*permissions).clone(),
                        principal: principal.to_owned(),
                        pools: gateway.pools.get(),
                        utc: gateway.clock.now().utc,
                    };
                    let result = self.deployer.dry_run(upload, context).await?;
                    return Ok(AdminOutput::DryRun(Box::new(result)));
                }
                let inactive = upload.inactive;
                let deployed = self.deployer.deploy(principal, upload).await?;
                if inactive {
                    return Ok(AdminOutput::Deployed(deployed));
                }
                Ok(AdminOutput::Deployed(self.wait_for_hosts(gateway, deployed).await))
            }
            AdminOperation::Activate(request) => {
                let deployed =
                    self.deployer.activate(principal, request, gateway.clock.now().utc).await?;
                Ok(AdminOutput::Deployed(self.wait_for_hosts(gateway, deployed).await))
            }
            AdminOperation::Deployments(kind) => {
                let mut all = self.deployments(gateway, kind.as_deref()).await;
                all.retain(|it| permissions.allow_on(Permission::View, &it.r#type));
                Ok(AdminOutput::Deployments(all))
            }
            AdminOperation::Methods(name) => {
                let entry = gateway.types.wait(&name, TYPE_TIMEOUT).await;
                let entry = entry.ok_or_else(|| unknown_type(&gateway.types.snapshot(), &name))?;
                Ok(AdminOutput::Methods(describe_methods(&entry)))
            }
            AdminOperation::Node => Ok(AdminOutput::Node(self.status.node_info())),
            AdminOperation::Status => Ok(AdminOutput::Status(Box::new(self.status.now(gateway)))),
            AdminOperation::Nodes => {
                let mut nodes = self.nodes(gateway);
                if !permissions.allow_everywhere(Permission::View) {
                    listing::hide_pools(&mut nodes);
                }
                Ok(AdminOutput::Nodes(nodes))
            }
            AdminOperation::Shards(request) => self.shards(&request),
            AdminOperation::Entities(request) => self.entities(gateway, request).await,
            AdminOperation::Inspect(request) => self.inspect(gateway, request).await,
            AdminOperation::DeadLetters(request) => self.dead_letters(request).await,
            AdminOperation::Drain { node, undo } => self.drain(&node, undo),
            AdminOperation::Forget { node } => self.forget(&node).await,
            AdminOperation::Export(request) => self.export(gateway, request).await,
            AdminOperation::Backup => self.backup(),
            AdminOperation::MoveShards(request) => self.move_shards(request).await,
            AdminOperation::Undeploy(request) => self.undeploy(gateway, principal, request).await,
            AdminOperation::Cluster(request) => self.cluster(request).await,
            AdminOperation::Placement(request) => self.placement(principal, request).await,
            AdminOperation::ShardFigures => {
                Ok(AdminOutput::ShardFigures(self.shard_figures().await))
            }
            AdminOperation::Pools(request) => self.pools(principal, request).await,
            AdminOperation::PoolCopy(request) => self.copy_pool(request),
            AdminOperation::Namespaces(request) => self.namespaces(principal, request).await,
            AdminOperation::Policy(request) => self.policy(caller, request).await,
            AdminOperation::Audit(request) => self.audit_log(request).await,
            AdminOperation::Authorities(request) => self.authorities(caller, request).await,
            AdminOperation::Revocations(request) => self.revocations(caller, request).await,
            AdminOperation::Variables(request) => self.variables(caller, request).await,
            AdminOperation::Figures => Ok(AdminOutput::Figures(self.figures().await)),
            AdminOperation::WhoAmI => Ok(AdminOutput::WhoAmI(self.who_am_i(caller, &permissions))),
            AdminOperation::Pauses => Ok(AdminOutput::Pauses(self.pauses())),
            AdminOperation::RebalancePlan => self.plan().await.map(AdminOutput::RebalancePlan),
            AdminOperation::Rebalance => self.rebalance().await,
            AdminOperation::Events(request) => Ok(self.events(request)),
        };
        Ok(guard.apply(output?))
    }

    /// The node's status, as `ostraca status` shows it.
    #[must_use]
    pub fn status(&self) -> proto::Status {
        self.status.now(&self.gateway)
    }

    fn current_view(&self) -> Arc<ClusterView> {
        self.view.borrow().clone()
    }

    fn send_event(&self, event: ostraca_core::node::Event) {
        // If the control thread has ended, the node is shutting down.
        let _ = self.control.send(control::Input::Event(event));
    }
}

fn unknown_node(view: &ClusterView, node: &str) -> Problem {
    let near = closest_name(node, view.nodes.keys().map(|known| &*known.0));
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`ostraca nodes` lists them".into(),
    };
    problem(codes::UNKNOWN_NODE, format!("the cluster has no node `{node}`"), &help)
}

fn store_failed(error: &StoreError) -> Problem {
    let mut failed = problem(
        codes::STORE_UNAVAILABLE,
        error.to_string(),
        "`ostraca status` shows where the store is, and what to do",
    );
    failed.retryable = true;
    failed
}
