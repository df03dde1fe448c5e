//! The metrics of a node, family by family.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ostraca_stats::{Distribution, Ending, Histogram, HttpStats, Methods, Stats, WorkerGauges};
use ostraca_store_sled::SledStore;
use ostraca_wire::proto;
use ostraca_wire::server::NetworkStats;

use crate::page::{Label, Metric, Page, bytes, number, seconds};

/// Whether a figure of the status only rises while the node runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

use Kind::{Counter, Gauge};

/// The figures of `ostraca status`, by their names there.
const OF_STATUS: [(&str, Kind, Metric); 27] = [
    ("types", Gauge, number("ostraca_types", "Deployed types that the node knows.")),
    ("held_shards", Gauge, number("ostraca_shards_held", "Shards that the node holds.")),
    (
        "shards_serving",
        Gauge,
        number(
            "ostraca_shards_serving",
            "Shards that the node holds and whose claim is confirmed.",
        ),
    ),
    (
        "ownership_changes",
        Counter,
        number(
            "ostraca_ownership_changes",
            "Sum of the epochs of all shards of the cluster; each change of owner adds 1.",
        ),
    ),
    (
        "entities_in_memory",
        Gauge,
        number("ostraca_entities_in_memory", "Entities that the node holds in memory."),
    ),
    (
        "failing_entities",
        Gauge,
        number(
            "ostraca_entities_failing",
            "Entities whose last turn failed through a fault of their own.",
        ),
    ),
    (
        "queued_messages",
        Gauge,
        number(
            "ostraca_messages_queued",
            "Messages that wait for a turn in the mailboxes of entities.",
        ),
    ),
    (
        "buffered_messages",
        Gauge,
        number(
            "ostraca_messages_buffered",
            "Messages that wait in the gateway, for an owner or a link.",
        ),
    ),
    (
        "in_flight_messages",
        Gauge,
        number(
            "ostraca_messages_in_flight",
            "Messages that the gateway has sent to their owners and that are not answered yet.",
        ),
    ),
    (
        "channel_feeds",
        Gauge,
        number("ostraca_channel_feeds", "Channels that the node follows for its subscribers."),
    ),
    ("turns", Counter, number("ostraca_turns", "Turns of messages and timers that were started.")),
    ("failed_turns", Counter, number("ostraca_turns_failed", "Turns in which the guest failed.")),
    ("commits", Counter, number("ostraca_commits", "Commits that were sent to the store.")),
    ("activations", Counter, number("ostraca_activations", "Instances that were started.")),
    (
        "migrations",
        Counter,
        number("ostraca_migrations", "Migrations of entities that were started."),
    ),
    (
        "failed_migrations",
        Counter,
        number(
            "ostraca_migrations_failed",
            "Migrations that failed, so that the entity stays on an earlier revision.",
        ),
    ),
    (
        "messages_not_run",
        Counter,
        number("ostraca_messages_not_run", "Messages that the node's shards answered as not run."),
    ),
    (
        "messages_unknown",
        Counter,
        number(
            "ostraca_messages_unknown",
            "Messages that the node's shards answered with an unknown outcome.",
        ),
    ),
    (
        "contained_panics",
        Counter,
        number("ostraca_panics_contained", "Contained panics of the node's own code."),
    ),
    (
        "control_messages_dropped",
        Counter,
        number(
            "ostraca_control_messages_dropped",
            "Control messages of other nodes that were dropped, because the inbox was full.",
        ),
    ),
    (
        "control_messages_ignored",
        Counter,
        number(
            "ostraca_control_messages_ignored",
            "Control messages of other nodes that this release does not understand.",
        ),
    ),
    (
        "store_sequence",
        Gauge,
        number("ostraca_store_sequence", "The store's durable sequence (R5)."),
    ),
    (
        "store_open_count",
        Gauge,
        number("ostraca_store_open_count", "How often the store was opened."),
    ),
    ("live_instances", Gauge, number("ostraca_instances_live", "Instances in memory.")),
    ("max_live_instances", Gauge, number("ostraca_instances_max", "The limit of instances.")),
    (
        "live_memory_bytes",
        Gauge,
        bytes("ostraca_instances_memory", "Memory of the live instances."),
    ),
    (
        "max_live_memory_bytes",
        Gauge,
        bytes(
            "ostraca_instances_max_memory",
            "The limit on the memory of live instances (`guests.max-live-memory`).",
        ),
    ),
];

/// What the node says about itself.
pub(crate) fn node(page: &mut Page<'_>, status: &proto::Status) -> fmt::Result {
    let name = |key: &str| status.info.get(key).map_or("", String::as_str);
    page.info(
        number("ostraca_node", "The node."),
        &[
            ("node", status.node.as_str()),
            ("cluster", name("cluster_name")),
            ("cluster_id", status.cluster_id.as_str()),
            ("version", env!("CARGO_PKG_VERSION")),
        ],
    )?;
    for (key, kind, metric) in OF_STATUS {
        // A node that runs no entities has no figures about instances.
        let Some(value) = status.metrics.get(key).copied() else { continue };
        match kind {
            Counter => page.counter(metric, value)?,
            Gauge => page.gauge(metric, value)?,
        }
    }
    let mut problems: BTreeMap<&str, u64> = BTreeMap::new();
    for problem in &status.problems {
        *problems.entry(&problem.code).or_default() += 1;
    }
    page.gauges(
        number("ostraca_problems", "Problems that `ostraca status` shows on this node, by code."),
        problems.into_iter().map(|(code, count)| ([("code", code)], count)),
    )
}

/// What the node sees of the cluster.
pub(crate) fn cluster(page: &mut Page<'_>, seen: Option<&proto::ClusterStatus>) -> fmt::Result {
    let Some(seen) = seen else { return Ok(()) };
    let states = |all: [(&'static str, u32); 3]| {
        all.map(|(state, count)| ([("state", state)], u64::from(count)))
    };
    page.gauges(
        number("ostraca_cluster_nodes", "Nodes of the cluster as this node sees them."),
        states([
            ("live", seen.nodes_live),
            ("draining", seen.nodes_draining),
            ("dead", seen.nodes_dead),
        ]),
    )?;
    page.gauges(
        number("ostraca_cluster_shards", "Shards of the cluster as this node sees them."),
        states([
            ("assigned", seen.shards_assigned),
            ("moving", seen.shards_moving),
            ("unassigned", seen.shards_unassigned),
        ]),
    )?;
    page.gauge(number("ostraca_manager_term", "The manager's term."), seen.term)?;
    let lease = |millis: u64| millis as f64 / 1_000.0;
    page.gauge(
        seconds("ostraca_lease", "How long a lease of the node lasts."),
        lease(seen.lease_duration_ms),
    )?;
    page.gauge(
        seconds("ostraca_lease_remaining", "What is left of the node's lease; 0 if it has lapsed."),
        lease(seen.lease_duration_ms.saturating_sub(seen.since_renewal_ms)),
    )
}

/// Rates, errors and durations of each method.
pub(crate) fn methods(page: &mut Page<'_>, methods: &Methods) -> fmt::Result {
    let all = methods.all();
    let of_messages = || all.iter().filter(|((_, work), _)| work.name() == "message");
    page.counters(
        number("ostraca_messages", "Messages that ended at this node's shards, by outcome."),
        of_messages().flat_map(|((entity_type, work), stats)| {
            Ending::ALL.map(|ending| {
                let labels: [Label<'_>; 3] =
                    [("type", entity_type), ("method", work.method()), ("outcome", ending.name())];
                (labels, stats.ended(ending))
            })
        }),
    )?;
    page.histograms(
        seconds(
            "ostraca_message_duration",
            "Time from a message's arrival at its shard until its reply: its wait in the mailbox, its turn, and its commit.",
        ),
        of_messages().map(|((entity_type, work), stats)| {
            ([("type", &**entity_type), ("method", work.method())], stats.messages())
        }),
    )?;
    page.histograms(
        seconds(
            "ostraca_turn_duration",
            "Time of turns in the guest, with what they wait for: reads of state, asks and calls.",
        ),
        all.iter().map(|((entity_type, work), stats)| {
            let labels: [Label<'_>; 3] =
                [("type", entity_type), ("work", work.name()), ("method", work.method())];
            (labels, stats.turns())
        }),
    )
}

/// Distributions of the node as a whole.
pub(crate) fn durations(
    page: &mut Page<'_>,
    stats: &Stats,
    workers: &[Arc<WorkerGauges>],
) -> fmt::Result {
    let sum = |of: fn(&WorkerGauges) -> &Histogram| {
        Distribution::sum(workers.iter().map(|worker| of(worker)))
    };
    page.histogram(
        number("ostraca_commit_batch", "Commits that a worker sent to the store together."),
        &sum(|worker| &worker.commit_batches),
    )?;
    page.histogram(
        number(
            "ostraca_entity_lanes",
            "Lanes that an entity had at a commit: one for each session, sending entity or idempotency key.",
        ),
        &sum(|worker| &worker.entity_lanes),
    )?;
    page.histogram(
        seconds("ostraca_commit_duration", "Time until the store answered a batch of commits."),
        &sum(|worker| &worker.commit_durations),
    )?;
    page.histogram(
        seconds(
            "ostraca_shard_pause",
            "Time for which a shard of the cluster was moving or had no live owner, according to the rows that this node saw.",
        ),
        &stats.shard_pauses.durations.distribution(),
    )?;
    page.histogram(
        seconds("ostraca_lease_slack", "What was left of the node's lease when it was renewed."),
        &stats.lease_slack.distribution(),
    )
}

/// The network.
pub(crate) fn network(page: &mut Page<'_>, network: &NetworkStats) -> fmt::Result {
    page.gauge(
        number("ostraca_quic_connections", "Open QUIC connections, to clients and nodes."),
        network.connections,
    )?;
    page.gauge(
        number("ostraca_quic_node_connections", "QUIC connections that other nodes have opened."),
        network.node_connections,
    )?;
    let results = [
        ("accepted", network.accepted_handshakes),
        ("refused", network.refused_handshakes),
        ("ignored", network.ignored_handshakes),
        ("outgoing", network.outgoing_handshakes),
    ];
    page.counters(
        number(
            "ostraca_quic_handshakes",
            "Handshakes of QUIC, by result; `outgoing` are those that this node began.",
        ),
        results.map(|(result, count)| ([("result", result)], count)),
    )?;
    page.gauge(
        bytes(
            "ostraca_network_charged",
            "Bytes of clients' messages and replies held in memory; limited by `network.node-bytes`.",
        ),
        network.charged_bytes,
    )
}

/// The HTTP gateway.
pub(crate) fn http(page: &mut Page<'_>, http: &HttpStats) -> fmt::Result {
    page.counters(
        number(
            "ostraca_http_responses",
            "Responses of the HTTP gateway by status class, without `/livez` and `/readyz`.",
        ),
        http.responses().into_iter().map(|(class, count)| ([("status", class)], count)),
    )?;
    page.histogram(
        seconds(
            "ostraca_http_request_duration",
            "Time until the HTTP gateway began to answer a request.",
        ),
        &http.durations().distribution(),
    )
}

/// The store in this process.
pub(crate) fn store(page: &mut Page<'_>, stats: &Stats, store: &SledStore) -> fmt::Result {
    page.histogram(
        number("ostraca_store_batch", "Calls that this node's store wrote and synced together."),
        &stats.store_batches.distribution(),
    )?;
    page.histogram(
        seconds("ostraca_store_sync_duration", "Time of a sync of this node's store to its disk."),
        &stats.store_syncs.distribution(),
    )?;
    match store.disk_usage() {
        Ok(usage) => {
            page.gauge(
                bytes(
                    "ostraca_store_used",
                    "What this node's store takes on its disk, without components.",
                ),
                usage.used_bytes,
            )?;
            page.gauge(
                bytes(
                    "ostraca_store_free",
                    "Free space on the disk of this node's store; commits are refused below `store.low-water-bytes`.",
                ),
                usage.free_bytes,
            )
        }
        Err(error) => {
            tracing::warn!(%error, "cannot find out the space of the store");
            Ok(())
        }
    }
}

/// Namespaces with quotas.
pub(crate) fn namespaces(page: &mut Page<'_>, all: &[proto::NamespaceInfo]) -> fmt::Result {
    let mut quotas = Vec::new();
    let mut used = Vec::new();
    for namespace in all {
        let Some(quota) = &namespace.quotas else { continue };
        let usage = namespace.usage.as_ref();
        for (resource, quota, usage) in [
            ("entities", quota.entities, usage.map(|it| it.entities)),
            ("state-bytes", quota.state_bytes, usage.map(|it| it.state_bytes)),
            ("turns-per-second", quota.turns_per_second, usage.map(|it| it.turns_per_second)),
        ] {
            let Some(quota) = quota else { continue };
            let labels: [Label<'_>; 2] =
                [("namespace", namespace.name.as_str()), ("resource", resource)];
            quotas.push((labels, quota));
            used.extend(usage.map(|usage| (labels, usage)));
        }
    }
    page.gauges(
        number("ostraca_namespace_quota", "What the entities of a namespace may use at most."),
        quotas,
    )?;
    page.gauges(
        number(
            "ostraca_namespace_used",
            "What they use on all nodes, as this node last measured it; refused turns count too.",
        ),
        used,
    )
}
