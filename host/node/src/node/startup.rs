//! The order in which a node's parts are built: each part after those that it depends on. [`super::builder`] has the
//! functions that build them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_admin::{AdminDeps, AdminService};
use ostraca_catalog::bootstrap;
use ostraca_catalog::clock::wall_millis;
use ostraca_catalog::{AuditLog, VariablesReader};
use ostraca_config::Config;
use ostraca_control::cache::RouteCache;
use ostraca_control::view::{ClusterView, EventLog};
use ostraca_control::{self as control, ControlThread};
use ostraca_core::node::Event;
use ostraca_http::{HttpGateway, MetricsServer, Probes, TypeWait};
use ostraca_metrics::{MetricsSources, NodeMetrics};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::builder::NodeBuilder;
use super::network::Network;
use super::store_access::{self, StoreHandles};
use super::workers::Workers;
use super::{HTTP_GRACE, HttpTask, MetricsTask, Node, NodeParts};
use crate::error::NodeError;
use crate::health;
use crate::quotas::QuotaKeeper;
use crate::renewal::Renewal;
use crate::service::{ClientBackend, TYPE_TIMEOUT};
use crate::stores::LocalStore;

/// How long a start waits for the policy. Without it, the node begins with the one of its previous run.
const POLICY_TIMEOUT: Duration = Duration::from_secs(1);

impl Node {
    /// The first half of [`Node::start`]: builds all parts and starts the registration. From then on the node must
    /// be stopped, not dropped.
    ///
    /// # Errors
    /// The same as for [`Node::start`].
    pub fn launch(config: Config) -> BoxFuture<'static, Result<Self, NodeError>> {
        Self::launch_with(config, NodeParts::default())
    }

    /// Like [`Node::launch`], with parts that the program supplies.
    ///
    /// # Errors
    /// The same as for [`Node::start`].
    pub fn launch_with(
        config: Config,
        parts: NodeParts,
    ) -> BoxFuture<'static, Result<Self, NodeError>> {
        Self::build(config, parts).boxed()
    }

    async fn build(mut config: Config, parts: NodeParts) -> Result<Self, NodeError> {
        if parts.health_check.is_some() {
            config.set_supplied_health_check();
        }
        let (trust, identity) = config.load_identity()?;
        let keys = config.load_secret_keys()?;
        if keys.is_none() {
            tracing::info!(
                "no key for secrets (`identity.secret-keys`): this node can neither read nor set secrets"
            );
        }
        let mut basis = NodeBuilder::new(config, trust.cluster)?;
        let roles = basis.config.roles();
        let mut control = ControlThread::spawn(basis.config.control_inbox_limits(), &basis.stats)?;

        let own = basis.open_local_store().await?;
        let mut network = Network::bind(&basis, &identity, &trust, &control, own.as_ref())?;
        let (mut vital, mut tasks) = (JoinSet::new(), JoinSet::new());
        let http = match basis.config.http_settings() {
            Some(settings) => Some(HttpGateway::bind(settings).await?),
            None => None,
        };
        let metrics = match basis.config.metrics_address() {
            Some(address) => Some(MetricsServer::bind(address).await?),
            None => None,
        };
        let server = network.server.clone();
        vital.spawn(async move { server.run().await });

        let cache = basis.cache().await?;
        let remembered = cache.as_ref().map(RouteCache::load).unwrap_or_default();
        let stores = match own {
            Some(LocalStore { sled, cluster_info: Some(found) }) => {
                // Nothing else was set before.
                let _ = basis.movable.set(sled.clone());
                StoreHandles::from_local(sled, found)
            }
            own => {
                let own = own.map(|own| own.sled);
                let connector = basis.connector(own, &network.dialer, &control);
                connector.connect_or_defer(remembered.pools.clone(), &mut tasks).await?
            }
        };
        network.set_cluster_info(&stores);
        basis.config.apply_cluster_settings(&stores.cluster_info.settings);
        basis.clock.advance_to(stores.cluster_info.cluster_time);
        store_access::apply_cluster_info(&stores.cluster_info, &basis.clock, &basis.random_key);
        let rows_outside = basis.config.has_rows_outside();
        // The first node of a new cluster without a store's node, which would have written it.
        let has_no_utc = rows_outside && !stores.deferred && stores.cluster_info.utc_ms == 0;
        if (stores.local_store.is_some() && !rows_outside) || has_no_utc {
            let (rows, wall) = (&*stores.cluster_store, Some(wall_millis()));
            match bootstrap::advance_cluster_time(rows, &basis.clock, wall).await {
                // Another node that started at the same moment has written it.
                Err(ostraca_catalog::Error::RowConflict(_)) if rows_outside => {}
                result => result?,
            }
        }

        let wasm = basis.wasm().await?;
        let hosting = basis.config.is_host().then(|| wasm.clone());
        let variables = VariablesReader::new(basis.cluster, keys, wasm.variables().clone());
        let total_instances = wasm.status().max_live_instances as usize;
        let workers = Workers::start(&basis, &stores, &control, total_instances)?;
        let loader = basis.loader(&stores, hosting, workers.inputs());
        let gateway = basis.gateway(&network.dialer, &stores, workers.inputs(), &control);
        workers.set_gateway(&gateway);
        network.set_gateway(&gateway);
        vital.spawn(gateway.clone().run());

        let strategy = parts.strategy.clone();
        let strategy_name =
            strategy.as_ref().map_or_else(|| basis.config.strategy().name(), |own| own.name());
        let strategy_name = strategy_name.to_owned();
        let mut machine = basis.machine(&network.addresses, &stores, strategy);
        let mut health = health::start(&basis.config, parts.health_check).await?;
        if let Some(process) = health.as_mut().and_then(|health| health.pod.take()) {
            machine.set_process(process);
        }
        if let Some(process) = health.as_mut().and_then(|health| health.host.take()) {
            machine.set_host_process(process);
        }
        if !stores.deferred {
            // Clients are admitted by the policy in force, not by that of the previous run, if the store answers.
            let read = basis.access.read(&*stores.cluster_store);
            let _ = tokio::time::timeout(POLICY_TIMEOUT, read).await;
        }
        if !remembered.rows.is_empty() {
            loader.load_cached(&remembered.types);
            basis.access.load_cached(&remembered.access, remembered.access_read_ms);
            machine.handle(basis.clock.now(), Event::CachedRows(remembered.rows));
        }
        let (failures, failed) = mpsc::unbounded_channel();
        let (shown, view) = watch::channel(Arc::new(ClusterView::default()));
        let events = Arc::new(EventLog::default());
        control.start(control::ControlDeps {
            machine,
            cluster: stores.cluster_info.identity.cluster,
            cluster_store: stores.cluster_store.clone(),
            entity_store: stores.entity_store.clone(),
            ranges: basis.ranges.clone(),
            local_store: stores.local_store.clone(),
            workers: workers.inputs(),
            gateway: gateway.clone(),
            loader: loader.clone(),
            access: basis.access.clone(),
            variables: variables.clone(),
            cache,
            clock: basis.clock.clone(),
            stats: basis.stats.clone(),
            events: events.clone(),
            view: shown,
            dialer: network.dialer.clone(),
            registered: network.on_registered(),
            health_checks: health.map(|health| health.checks),
            failures,
            renew_interval: basis.config.renew_interval,
            config: basis.config.clone(),
        });

        let (node, rows) = (&basis.node.0, stores.cluster_store.clone());
        let audit = Arc::new(AuditLog::new(node, rows, basis.clock.clone()));
        let admin = AdminService::new(AdminDeps {
            node: basis.node.clone(),
            addresses: network.addresses.clone(),
            lease: basis.config.lease,
            deploy_wait_timeout: basis.config.deploy_wait_timeout(),
            ceilings: basis.config.ceilings(),
            cluster_store: stores.cluster_store.clone(),
            entity_store: stores.entity_store.clone(),
            ranges: basis.ranges.clone(),
            movable: basis.movable.clone(),
            local_store: stores.local_store.clone(),
            database: basis.config.postgres_options().map(|database| database.place()),
            rows_store: basis.config.rows_store().map(|rows| rows.place()),
            wasm,
            hosts: basis.config.is_host(),
            loader,
            access: basis.access.clone(),
            variables,
            audit: audit.clone(),
            gateway: gateway.clone(),
            control: control.input.clone(),
            view: view.clone(),
            events: events.clone(),
            stats: basis.stats.clone(),
            max_live_memory: basis.config.max_live_memory(),
            gauges: workers.gauges.clone(),
            strategy: strategy_name,
            max_pins: basis.config.max_pins(),
            min_hosts: basis.config.node_settings().min_hosts,
        });
        let admin = Arc::new(admin);
        tasks.spawn(admin.clone().run_rollouts());
        let (access, rows) = (basis.access.clone(), stores.cluster_store.clone());
        tasks.spawn(async move { access.keep_fresh(&*rows).await });
        let renewal = Renewal {
            config: basis.config.clone(),
            store: stores.cluster_store.clone(),
            server: network.server.clone(),
            dialer: network.dialer.clone(),
            identity,
            trust,
        };
        tasks.spawn(renewal.run());
        let quotas = QuotaKeeper {
            gateway: gateway.clone(),
            view: view.clone(),
            turns: workers.turn_quotas.clone(),
            workers: workers.inputs(),
        };
        tasks.spawn(quotas.run());
        let figures = Arc::downgrade(&admin);
        gateway.set_figures_source(Box::new(move || {
            figures.upgrade().map(|admin| admin.own_figures())
        }));
        let plans = Arc::downgrade(&admin);
        gateway.set_plan_source(Box::new(move || {
            let admin = plans.upgrade();
            async move { admin?.plan_as_manager().await }.boxed()
        }));
        network.client_service.set_backend(ClientBackend {
            gateway: gateway.clone(),
            admin: admin.clone(),
            audit,
            accepts_messages: roles.gateway,
        });
        let metrics = metrics.map(|server| {
            let (endpoint, address) = (network.server.clone(), server.address());
            tracing::info!(url = %format_args!("http://{address}/metrics"), "metrics");
            let namespaces = admin.clone();
            let metrics = NodeMetrics::new(MetricsSources {
                status: Box::new(move || admin.status()),
                network: Box::new(move || endpoint.network_stats()),
                namespaces: Box::new(move || namespaces.limited_namespaces()),
                stats: basis.stats.clone(),
                workers: workers.gauges.clone(),
                store: stores.local_store.clone(),
            });
            let (source, stop) = (Arc::new(move || metrics.render()), CancellationToken::new());
            MetricsTask { address, task: tokio::spawn(server.run(source, stop.clone())), stop }
        });
        let min_hosts = basis.config.node_settings().min_hosts;
        let http = http.map(|http| {
            let (address, url, stop) = (http.address(), http.url(), CancellationToken::new());
            tracing::info!(%url, "HTTP gateway");
            let view = view.clone();
            let (own, leaving) = (basis.node.clone(), Arc::new(AtomicBool::new(false)));
            let ends = leaving.clone();
            let readiness = Arc::new(move || {
                let view = view.borrow();
                let row = view.nodes.get(&own);
                let draining = row.is_none_or(|row| row.is_draining_or_leaving());
                match (draining || ends.load(Ordering::Relaxed), view.is_ready(min_hosts)) {
                    (true, _) => Err("the node is draining or stopping".to_owned()),
                    (_, false) => Err("not every shard has an owner that serves it".to_owned()),
                    _ => Ok(()),
                }
            });
            let types = basis.types.clone();
            let type_wait: TypeWait = Arc::new(move |name| {
                let types = types.clone();
                async move { drop(types.wait(&name, TYPE_TIMEOUT).await) }.boxed()
            });
            let probes = Probes { readiness, type_wait, stats: basis.stats.clone() };
            let links = http.login_links().clone();
            let running = http.run(network.server.clone(), probes, stop.clone(), HTTP_GRACE);
            HttpTask { address, url, links, leaving, stop, task: tokio::spawn(running) }
        });
        Ok(Self {
            http,
            metrics,
            summary: basis.summary(&stores),
            server: network.server,
            address: network.address,
            workers: workers.threads,
            control,
            gateway,
            view,
            events,
            tracer: basis.tracer,
            types: basis.types,
            min_hosts,
            started_without_store: stores.deferred,
            vital,
            tasks,
            failed,
            stats: basis.stats,
            store: stores.local_store,
        })
    }
}
