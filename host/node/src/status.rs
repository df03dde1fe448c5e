//! What `ostraca status` shows: whether the node is well, and if not, what to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_sharding::ids::Incarnation;
use ostraca_store_sled::SledStore;
use ostraca_wire::proto;

use crate::clock::Clock;
use crate::stats::{Gauges, Stats};
use crate::types::Types;

/// Where the figures come from.
#[derive(Clone)]
pub(crate) struct Status {
    pub(crate) node: Arc<str>,
    pub(crate) incarnation: Incarnation,
    pub(crate) addresses: Vec<String>,
    pub(crate) lease: u64,
    pub(crate) clock: Arc<Clock>,
    pub(crate) store: Arc<SledStore>,
    pub(crate) wasm: ostraca_wasm::Host,
    pub(crate) stats: Arc<Stats>,
    pub(crate) gauges: Vec<Arc<Gauges>>,
}

impl Status {
    /// What the node is.
    pub(crate) fn node(&self) -> proto::NodeInfo {
        proto::NodeInfo {
            cluster: self.store.identity().cluster.to_string(),
            node: self.node.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            addresses: self.addresses.clone(),
        }
    }

    /// How it does.
    pub(crate) fn now(&self, types: &Types) -> proto::Status {
        let identity = self.store.identity();
        let shape = self.wasm.shape();
        let sum = |pick: fn(&Gauges) -> &std::sync::atomic::AtomicU64| -> u64 {
            self.gauges.iter().map(|gauges| Stats::get(pick(gauges))).sum()
        };
        let (shards, serving) = (sum(|g| &g.shards), sum(|g| &g.serving));
        let stats = &self.stats;
        let mut problems = Vec::new();
        if let Some(why) = self.store.stopped() {
            problems.push(trouble(
                "store-stopped",
                format!("a write to the store failed, and it writes no more: {why}"),
                "mend the disk, then start the node again: nothing acknowledged is lost",
            ));
        }
        let since = self.clock.now().mono.saturating_sub(Stats::get(&stats.renewed));
        if since >= self.lease {
            problems.push(trouble(
                "lease-lapsed",
                format!("the node's lease was last renewed {since} ms ago; nothing is answered until it is"),
                "look at the store: it is slow or does not answer",
            ));
        }
        if serving < shards {
            problems.push(trouble(
                "shards-not-serving",
                format!("{} of {shards} shards do not serve yet", shards - serving),
                "wait a little; if it stays so, look at the store",
            ));
        }
        if let Some(why) = &shape.fell_back {
            problems.push(trouble(
                "allocator-fell-back",
                format!("instances are mapped on demand, as there is no pool: {why}"),
                "set `allocator = \"pooling\"` to make this an error at start",
            ));
        }
        let numbers = BTreeMap::from([
            ("types".into(), types.now().len() as u64),
            ("shards".into(), shards),
            ("shards_serving".into(), serving),
            ("live_instances".into(), u64::from(shape.live)),
            ("max_live_instances".into(), u64::from(shape.max_live)),
            ("entities_in_memory".into(), sum(|g| &g.entities)),
            ("queued".into(), sum(|g| &g.queued)),
            ("turns".into(), Stats::get(&stats.turns)),
            ("commits".into(), Stats::get(&stats.commits)),
            ("activations".into(), Stats::get(&stats.activations)),
            ("failed_turns".into(), Stats::get(&stats.failures)),
            ("not_run".into(), Stats::get(&stats.not_run)),
            ("unknown".into(), Stats::get(&stats.unknown)),
            ("store_sequence".into(), identity.sequence),
            ("store_opened".into(), identity.opened),
        ]);
        let texts = BTreeMap::from([
            ("cluster_name".into(), identity.cluster_name.clone()),
            ("allocator".into(), shape.allocator.name().into()),
        ]);
        proto::Status {
            cluster: identity.cluster.to_string(),
            node: self.node.to_string(),
            incarnation: format!("{}-{:016x}", self.incarnation.counter, self.incarnation.nonce),
            uptime_ms: self.clock.uptime(),
            store: format!("sled at {}", self.store.dir().display()),
            numbers,
            texts,
            problems,
            overview: None,
        }
    }
}

fn trouble(code: &str, text: String, help: &str) -> proto::StatusProblem {
    proto::StatusProblem { code: code.into(), text, help: help.into() }
}
