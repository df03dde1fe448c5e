//! The data of `ostraca status`: whether the node and its cluster are healthy, and if not, what to do.

mod problems;

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_catalog::clock::ClusterClock;
use ostraca_codes::codes;
use ostraca_control::view::ClusterView;
use ostraca_core::rows::NodeStatus;
use ostraca_gateway::Gateway;
use ostraca_stats::{Stats, WorkerGauges};
use ostraca_store::StoreIdentity;
use ostraca_store_sled::SledStore;
use ostraca_wire::proto;
use tokio::sync::watch;

use problems::Diagnosis;

/// The sources of the data.
pub(crate) struct StatusReporter {
    pub(crate) node: Arc<str>,
    pub(crate) addresses: Vec<String>,
    pub(crate) configured_lease_ms: u64,
    pub(crate) clock: Arc<ClusterClock>,
    /// The cluster's store, as this node knows it.
    pub(crate) store_identity: Box<dyn Fn() -> StoreIdentity + Send + Sync>,
    /// The store, if it is in this process.
    pub(crate) local_store: Option<Arc<SledStore>>,
    /// The database with the state of entities, in words.
    pub(crate) database: Option<String>,
    /// The store with only the cluster's rows, in words.
    pub(crate) rows_store: Option<String>,
    /// `None` on a node without the role `host`.
    pub(crate) wasm: Option<ostraca_wasm::WasmRuntime>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) max_live_memory: u64,
    pub(crate) gauges: Vec<Arc<WorkerGauges>>,
    pub(crate) view: watch::Receiver<Arc<ClusterView>>,
    /// How many hosts the first allocation waits for.
    pub(crate) min_hosts: usize,
}

impl StatusReporter {
    /// This node's own description.
    pub(crate) fn node_info(&self) -> proto::NodeInfo {
        proto::NodeInfo {
            cluster_id: (self.store_identity)().cluster.to_string(),
            node: self.node.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            addresses: self.addresses.clone(),
        }
    }

    /// The duration of the current lease: the cluster's setting may have changed since the node started.
    fn lease_now(&self) -> u64 {
        match Stats::get(&self.stats.lease_ms) {
            0 => self.configured_lease_ms,
            lease => lease,
        }
    }

    /// The cluster's state, as this node sees it.
    fn cluster(&self, view: &ClusterView, lease_age: u64) -> proto::ClusterStatus {
        let now = self.clock.now().mono;
        let count = |of: fn(&ostraca_core::rows::NodeRow) -> bool| -> u32 {
            u32::try_from(view.nodes.values().filter(|row| of(row)).count()).unwrap_or(u32::MAX)
        };
        let live = |row: &ostraca_core::rows::NodeRow| row.status == NodeStatus::Live;
        let mut cluster = proto::ClusterStatus {
            term_age_ms: now.saturating_sub(view.manager_since_ms),
            nodes_live: count(|row| {
                row.status == NodeStatus::Live && !row.is_draining_or_leaving()
            }),
            nodes_draining: count(|row| {
                row.status == NodeStatus::Live && row.is_draining_or_leaving()
            }),
            nodes_dead: count(|row| row.status == NodeStatus::Dead),
            shards: u32::try_from(view.shards.len()).unwrap_or(u32::MAX),
            store_available: lease_age < self.lease_now(),
            since_renewal_ms: lease_age,
            lease_duration_ms: self.lease_now(),
            ..proto::ClusterStatus::default()
        };
        if let Some(manager) = view.manager.as_ref().filter(|row| view.alive(&row.holder)) {
            cluster.manager = manager.holder.node.to_string();
            cluster.term = manager.term;
        }
        for row in view.shards.iter() {
            match &row.owner {
                Some(owner) if view.alive(owner) && row.hand_off.is_some() => {
                    cluster.shards_moving += 1
                }
                Some(owner) if view.alive(owner) => cluster.shards_assigned += 1,
                _ => cluster.shards_unassigned += 1,
            }
        }
        let store = view.nodes.iter().find(|(_, row)| row.roles.store && live(row));
        cluster.store_node = store.map_or_else(String::new, |(node, _)| node.to_string());
        cluster
    }

    /// The current status.
    pub(crate) fn now(&self, gateway: &Gateway) -> proto::Status {
        let view = self.view.borrow().clone();
        let identity = (self.store_identity)();
        let sum = |pick: fn(&WorkerGauges) -> &std::sync::atomic::AtomicU64| -> u64 {
            self.gauges.iter().map(|gauges| Stats::get(pick(gauges))).sum()
        };
        let (shards, serving) = (sum(|g| &g.shards), sum(|g| &g.serving));
        let stats = &self.stats;
        let renewed = Some(Stats::get(&stats.last_renewal_ms)).filter(|at| *at > 0);
        let since = renewed
            .map_or_else(|| self.clock.uptime(), |at| self.clock.now().mono.saturating_sub(at));
        let cluster = self.cluster(&view, since);
        let diagnosis = Diagnosis {
            view: &view,
            cluster: &cluster,
            local_node: &self.node,
            since_renewal_ms: since,
            registered: renewed.is_some(),
            lease_ms: self.lease_now(),
            min_hosts: self.min_hosts,
        };
        let mut problems = Vec::new();
        if let Some(why) = self.local_store.as_ref().and_then(|store| store.stop_reason()) {
            problems.push(problems::store_stopped(&why));
        }
        if let Some(why) = self.local_store.as_ref().and_then(|store| store.low_disk_reason()) {
            problems.push(problems::store_low(&why));
        }
        let refused = stats.store_refused.borrow().clone();
        match &refused {
            // Refusing the store is why the lease lapses; the store's node is not at fault.
            Some(why) => problems.push(problems::store_refused(why)),
            None => problems.extend(diagnosis.lease()),
        }
        let failing = stats.failing_entities.by_type();
        problems.extend(failing.iter().filter_map(|it| problems::failing(&self.node, it)));
        problems.extend(diagnosis.shards(shards, serving));
        problems.extend(diagnosis.nodes(&gateway.unreachable_nodes()));
        problems.extend(diagnosis.unrunnable_type_problems());
        problems.extend(gateway.types.broken().iter().map(|(name, why)| {
            problems::status_problem(
                codes::TYPE_BROKEN,
                format!("`{name}` cannot be run on this node: {why}"),
                "deploy it again: `ostraca deploy` shows what is wrong",
            )
        }));
        let forgotten = Stats::get(&stats.stopped_forgotten);
        if forgotten > 0 {
            problems.push(problems::status_problem(
                codes::STOPPED_LIMIT,
                format!(
                    "{forgotten} stopped entities may have started again since the node started: a shard keeps no more than `entities.max-stopped`"
                ),
                "deploy a revision that does not fail, or raise `entities.max-stopped`",
            ));
        }
        let panics = Stats::get(&stats.panics)
            + self.local_store.as_ref().map_or(0, |store| store.read_panics());
        if panics > 0 {
            problems.push(problems::status_problem(
                codes::PANICS,
                format!("the node has contained {panics} panics of its own code since it started"),
                "report them with the node's log; restart the node if messages keep failing",
            ));
        }
        let router = gateway.router_stats();
        let mut metrics = BTreeMap::from([
            ("types".into(), gateway.types.snapshot().len() as u64),
            ("held_shards".into(), shards),
            ("shards_serving".into(), serving),
            ("entities_in_memory".into(), sum(|g| &g.entities)),
            ("queued_messages".into(), sum(|g| &g.queued)),
            ("buffered_messages".into(), router.buffered as u64),
            ("in_flight_messages".into(), router.in_flight as u64),
            ("channel_feeds".into(), gateway.channel_feeds() as u64),
            ("turns".into(), Stats::get(&stats.turns)),
            ("commits".into(), Stats::get(&stats.commits)),
            ("activations".into(), Stats::get(&stats.activations)),
            ("migrations".into(), Stats::get(&stats.migrations)),
            ("failed_migrations".into(), Stats::get(&stats.failed_migrations)),
            ("failed_turns".into(), Stats::get(&stats.failed_turns)),
            ("failing_entities".into(), stats.failing_entities.count().0),
            ("messages_not_run".into(), Stats::get(&stats.not_run)),
            ("messages_unknown".into(), Stats::get(&stats.unknown)),
            ("contained_panics".into(), panics),
            ("control_messages_dropped".into(), Stats::get(&stats.control_messages_dropped)),
            ("control_messages_ignored".into(), Stats::get(&stats.control_messages_ignored)),
            ("store_sequence".into(), identity.durable_sequence),
            ("store_open_count".into(), identity.open_count),
        ]);
        // Unknown until the rows are read: it must not seem to fall.
        let epochs: u64 = view.shards.iter().map(|row| row.epoch.0).sum();
        if epochs > 0 {
            metrics.insert("ownership_changes".into(), epochs);
        }
        let mut info = BTreeMap::from([("cluster_name".into(), identity.cluster_name.clone())]);
        if !failing.is_empty() {
            let more = if stats.failing_entities.count().1 { ", and more" } else { "" };
            let types: Vec<_> = failing.iter().map(problems::failing_type).collect();
            info.insert("failing_types".into(), format!("{}{more}", types.join("; ")));
        }
        if let Some(shape) = self.wasm.as_ref().map(ostraca_wasm::WasmRuntime::status) {
            metrics.insert("live_instances".into(), u64::from(shape.live_instances));
            metrics.insert("max_live_instances".into(), u64::from(shape.max_live_instances));
            metrics.insert("live_memory_bytes".into(), sum(|g| &g.live_bytes));
            metrics.insert("max_live_memory_bytes".into(), self.max_live_memory);
            info.insert("allocator".into(), shape.allocator.name().into());
            if let Some(why) = &shape.fallback_reason {
                problems.push(problems::status_problem(
                    codes::ALLOCATOR_FALLBACK,
                    format!(
                        "pooling allocator unavailable; instances are allocated on demand: {why}"
                    ),
                    "set `allocator = \"pooling\"` to make this an error at start",
                ));
            }
        }
        let mut store = match (&self.local_store, &self.database) {
            (Some(store), _) => format!("sled at {}", store.dir().display()),
            (None, Some(database)) => database.clone(),
            (None, None) if cluster.store_node.is_empty() => "another node's".into(),
            (None, None) => format!("of node {}", cluster.store_node),
        };
        if let Some(rows) = &self.rows_store {
            store = format!("{store}; the cluster's rows: {rows}");
        }
        let incarnation = view.member.as_ref().map(|member| member.incarnation).unwrap_or_default();
        proto::Status {
            cluster_id: identity.cluster.to_string(),
            node: self.node.to_string(),
            incarnation: incarnation.to_string(),
            uptime_ms: self.clock.uptime(),
            store,
            metrics,
            info,
            problems,
            cluster_status: Some(cluster),
        }
    }
}
