//! Activity between two reports of the nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use ostraca_client::{Figures, NodeFigures, WorkFigures};
use serde::Serialize;

/// The number of methods in a view.
const METHODS: usize = 100;
/// The number of entities in a view.
const HOTTEST: usize = 50;
/// A node that has this many methods in its report may have left out others.
const CUT: usize = 256;
/// How much the times between two reports may differ, on the node and here, in milliseconds: longer than a request.
const TOLERANCE: u64 = 15_000;

/// The last reports of nodes, and when they came.
pub(super) type Reports = BTreeMap<String, (Instant, NodeFigures)>;

/// Activity between two reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct View {
    /// By name.
    pub(super) nodes: Vec<NodeRow>,
    /// The slowest first.
    pub(super) methods: Vec<MethodRow>,
    /// The hottest first.
    pub(super) hottest: Vec<HotRow>,
    /// Live nodes that did not report, and why.
    pub(super) unresponsive: Vec<Unresponsive>,
}

/// One node. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct NodeRow {
    pub(super) node: String,
    pub(super) messages: f64,
    /// Messages that ended with an error, as not run or as unknown.
    pub(super) failures: f64,
    pub(super) turns: f64,
    pub(super) commits: f64,
    pub(super) p99_ms: Option<f64>,
    pub(super) shards: u64,
    pub(super) entities: u64,
    pub(super) instances: u64,
    pub(super) memory_bytes: u64,
    /// Messages in mailboxes and in the gateway's buffers.
    pub(super) waiting: u64,
    pub(super) uptime_ms: u64,
}

/// One method of one type, on all nodes together. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct MethodRow {
    pub(super) entity_type: String,
    /// A method, or other work in parentheses.
    pub(super) method: String,
    pub(super) rate: f64,
    pub(super) failures: f64,
    pub(super) mean_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// One entity and its turns per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct HotRow {
    pub(super) entity: String,
    pub(super) turns: u64,
    pub(super) node: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Unresponsive {
    pub(super) node: String,
    pub(super) reason: String,
}

/// What one kind of work did between two reports.
#[derive(Clone, Debug, Default)]
struct Delta {
    seconds: f64,
    failures: u64,
    buckets: Vec<u64>,
    total_us: u64,
}

/// The report that a node's figures are compared with.
fn former<'a>(
    before: &'a Reports,
    node: &NodeFigures,
    now: Instant,
    zero: &'a NodeFigures,
) -> Option<&'a NodeFigures> {
    let (came, report) = before.get(&node.node)?;
    let elapsed = u64::try_from(now.duration_since(*came).as_millis()).unwrap_or(u64::MAX);
    let went_on = node.uptime_ms.checked_sub(report.uptime_ms);
    match went_on {
        Some(ran) if ran.abs_diff(elapsed) <= TOLERANCE && !has_fallen(report, node) => {
            Some(report)
        }
        // It has started again, and counts from 0.
        _ if node.uptime_ms <= elapsed.saturating_add(TOLERANCE) => Some(zero),
        _ => None,
    }
}

/// Whether a figure is lower than before, which only a new start explains.
fn has_fallen(before: &NodeFigures, now: &NodeFigures) -> bool {
    let turns = |it: &NodeFigures| it.metrics.get("turns").copied().unwrap_or_default();
    turns(now) < turns(before)
}

impl View {
    /// Activity since the last report of each node.
    pub(super) fn between(before: &Reports, figures: &Figures, now: Instant) -> Self {
        let zero = NodeFigures::default();
        let mut view = Self::default();
        let mut methods: BTreeMap<(String, String), MethodTotal> = BTreeMap::new();
        for node in &figures.nodes {
            let former = former(before, node, now, &zero);
            view.nodes.push(node_row(former, node, &mut methods));
            view.hottest.extend(node.hottest.iter().map(|hot| HotRow {
                entity: format!("{}/{}", hot.r#type, hot.id),
                turns: hot.turns_per_second,
                node: node.node.clone(),
            }));
        }
        view.nodes.sort_by(|one, other| one.node.cmp(&other.node));
        view.hottest.sort_by(|one, other| {
            (Reverse(one.turns), &one.entity).cmp(&(Reverse(other.turns), &other.entity))
        });
        view.hottest.truncate(HOTTEST);
        view.methods = methods.into_iter().filter_map(|(name, it)| it.row(name)).collect();
        view.methods.sort_by(|one, other| other.p99_ms.total_cmp(&one.p99_ms));
        view.methods.truncate(METHODS);
        view.unresponsive = figures
            .unresponsive
            .iter()
            .map(|it| Unresponsive { node: it.node.clone(), reason: it.reason.clone() })
            .collect();
        view
    }

    /// Messages in a second, of all nodes.
    pub(super) fn messages(&self) -> f64 {
        self.nodes.iter().map(|node| node.messages).sum()
    }
}

/// A method's figures of all nodes.
#[derive(Default)]
struct MethodTotal {
    rate: f64,
    failures: f64,
    bounds: Vec<f64>,
    buckets: Vec<u64>,
    total_us: u64,
}

impl MethodTotal {
    fn add(&mut self, bounds: &[f64], delta: &Delta) {
        self.rate += per_second(delta.buckets.iter().sum(), delta.seconds);
        self.failures += per_second(delta.failures, delta.seconds);
        if self.buckets.is_empty() {
            self.bounds = bounds.to_vec();
            self.buckets = vec![0; delta.buckets.len()];
        }
        // Nodes of another release may have other buckets.
        if self.bounds == bounds && self.buckets.len() == delta.buckets.len() {
            add(&mut self.buckets, &delta.buckets);
            self.total_us += delta.total_us;
        }
    }

    /// `None` if nothing has happened.
    fn row(self, (entity_type, method): (String, String)) -> Option<MethodRow> {
        let count: u64 = self.buckets.iter().sum();
        Some(MethodRow {
            entity_type,
            method,
            rate: self.rate,
            failures: self.failures,
            mean_ms: self.total_us as f64 / 1e3 / count as f64,
            p50_ms: quantile(&self.bounds, &self.buckets, 0.5)? * 1e3,
            p99_ms: quantile(&self.bounds, &self.buckets, 0.99)? * 1e3,
        })
    }
}

fn node_row(
    former: Option<&NodeFigures>,
    node: &NodeFigures,
    methods: &mut BTreeMap<(String, String), MethodTotal>,
) -> NodeRow {
    let metric = |name: &str| node.metrics.get(name).copied().unwrap_or_default();
    let (mut seconds, mut buckets) = (0.0, Vec::new());
    if let Some(former) = former {
        seconds = (node.uptime_ms - former.uptime_ms).max(1) as f64 / 1e3;
        let known: BTreeMap<_, &WorkFigures> = former.work.iter().map(|it| (key(it), it)).collect();
        for work in &node.work {
            let before = known.get(&key(work)).copied();
            if before.is_none() && former.work.len() >= CUT {
                // What it did before is not known.
                continue;
            }
            let delta = delta(before, work, seconds);
            let name = if work.work == "message" {
                add(&mut buckets, &delta.buckets);
                work.method.clone()
            } else {
                format!("({})", work.work)
            };
            methods.entry((work.r#type.clone(), name)).or_default().add(&node.bounds, &delta);
        }
    }
    let rate = |name: &str| {
        let Some(former) = former else { return 0.0 };
        let before = former.metrics.get(name).copied().unwrap_or_default();
        per_second(metric(name).saturating_sub(before), seconds)
    };
    NodeRow {
        node: node.node.clone(),
        messages: rate("messages"),
        failures: rate("messages_failed"),
        turns: rate("turns"),
        commits: rate("commits"),
        p99_ms: quantile(&node.bounds, &buckets, 0.99).map(|it| it * 1e3),
        shards: metric("shards_serving"),
        entities: metric("entities_in_memory"),
        instances: metric("live_instances"),
        memory_bytes: metric("live_memory_bytes"),
        waiting: metric("queued_messages") + metric("buffered_messages"),
        uptime_ms: node.uptime_ms,
    }
}

fn key(work: &WorkFigures) -> (&str, &str, &str) {
    (&work.r#type, &work.work, &work.method)
}

fn delta(before: Option<&WorkFigures>, now: &WorkFigures, seconds: f64) -> Delta {
    let failures = |it: &WorkFigures| it.error + it.not_run + it.unknown;
    let former = before.map(|it| it.buckets.as_slice()).unwrap_or_default();
    let buckets = now.buckets.iter().enumerate();
    Delta {
        seconds,
        failures: failures(now).saturating_sub(before.map_or(0, failures)),
        buckets: buckets
            .map(|(at, count)| count.saturating_sub(former.get(at).copied().unwrap_or_default()))
            .collect(),
        total_us: now.total_us.saturating_sub(before.map_or(0, |it| it.total_us)),
    }
}

fn add(to: &mut Vec<u64>, more: &[u64]) {
    to.resize(to.len().max(more.len()), 0);
    for (sum, count) in to.iter_mut().zip(more) {
        *sum += count;
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// Estimates a quantile, assuming that values are spread evenly within a bucket. In the last bucket, which has no upper
/// bound, returns its lower bound; without values, `None`.
fn quantile(bounds: &[f64], buckets: &[u64], part: f64) -> Option<f64> {
    let count: u64 = buckets.iter().sum();
    if count == 0 {
        return None;
    }
    let wanted = part * count as f64;
    let mut below = 0.0;
    for (at, in_bucket) in buckets.iter().enumerate() {
        let in_bucket = *in_bucket as f64;
        let from = if at == 0 { 0.0 } else { bounds.get(at - 1).copied()? };
        if below + in_bucket >= wanted && in_bucket > 0.0 {
            let to = bounds.get(at).copied().unwrap_or(from);
            return Some(from + (to - from) * (wanted - below) / in_bucket);
        }
        below += in_bucket;
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ostraca_client::{HotEntity, NodeIssue};

    use super::*;

    fn work(kind: &str, method: &str, ok: u64, not_run: u64, buckets: [u64; 3]) -> WorkFigures {
        WorkFigures {
            r#type: "cart".into(),
            work: kind.into(),
            method: method.into(),
            ok,
            not_run,
            buckets: buckets.to_vec(),
            total_us: 1_000 * buckets.iter().sum::<u64>(),
            ..WorkFigures::default()
        }
    }

    fn node(name: &str, uptime_ms: u64, turns: u64, work: Vec<WorkFigures>) -> NodeFigures {
        let messages = work.iter().map(|it| it.ok + it.not_run).sum();
        let failed = work.iter().map(|it| it.not_run).sum();
        let metrics = [
            ("turns", turns),
            ("messages", messages),
            ("messages_failed", failed),
            ("shards_serving", 7),
        ];
        NodeFigures {
            node: name.into(),
            uptime_ms,
            metrics: metrics.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            work,
            bounds: vec![0.001, 0.01],
            ..NodeFigures::default()
        }
    }

    fn figures(nodes: Vec<NodeFigures>) -> Figures {
        Figures { nodes, unresponsive: Vec::new() }
    }

    /// The view of `now`, this long after `before`.
    fn view(before: Vec<NodeFigures>, now: &Figures, after_ms: u64) -> View {
        let came = Instant::now();
        let before = before.into_iter().map(|it| (it.node.clone(), (came, it))).collect();
        View::between(&before, now, came + Duration::from_millis(after_ms))
    }

    #[test]
    fn rates_are_differences_over_the_nodes_own_time() {
        let before = vec![
            node("n1", 51_000, 100, vec![work("message", "add", 90, 10, [100, 0, 0])]),
            node("n2", 50_000, 900, vec![]),
        ];
        let now = figures(vec![
            // Restarted meanwhile.
            node("n2", 4_000, 8, vec![work("message", "add", 8, 0, [0, 8, 0])]),
            node("n1", 53_000, 500, vec![work("message", "add", 480, 20, [200, 300, 0])]),
        ]);
        let seen = view(before, &now, 2_100);
        let names: Vec<_> = seen.nodes.iter().map(|it| it.node.as_str()).collect();
        assert_eq!(names, ["n1", "n2"]);
        let (first, second) = (&seen.nodes[0], &seen.nodes[1]);
        assert_eq!((first.messages, first.failures, first.turns), (200.0, 5.0, 200.0));
        assert_eq!((second.messages, second.failures, second.turns), (2.0, 0.0, 2.0));
        assert_eq!(first.shards, 7);
        let add = &seen.methods[0];
        assert_eq!((add.rate, add.failures, add.mean_ms), (202.0, 5.0, 1.0));
        // 100 of the 408 are below 1 ms, and the others evenly between 1 and 10 ms.
        assert!((add.p50_ms - (1.0 + 9.0 * 104.0 / 308.0)).abs() < 1e-9, "{}", add.p50_ms);
    }

    #[test]
    fn a_node_without_an_earlier_report_has_no_rates() {
        let add = || vec![work("message", "add", 90_000, 0, [90_000, 0, 0])];
        let now = figures(vec![node("n1", 900_000, 90_000, add())]);
        for before in [
            vec![],
            // It had just started then, and has started again long before its first report here.
            vec![node("n1", 1_000, 10, vec![])],
        ] {
            let seen = view(before, &now, 2_000);
            let row = &seen.nodes[0];
            assert_eq!((row.messages, row.turns, row.p99_ms, row.shards), (0.0, 0.0, None, 7));
            assert_eq!(seen.methods, []);
        }
        // Started again, and already older than at its last report, but with fewer turns.
        let before = vec![node("n1", 1_000, 10, add())];
        let now =
            figures(vec![node("n1", 2_000, 4, vec![work("message", "add", 4, 0, [4, 0, 0])])]);
        assert_eq!(view(before, &now, 10_000).nodes[0].messages, 2.0);
    }

    #[test]
    fn a_method_that_was_left_out_before_shows_no_burst() {
        let many = |ok: u64| -> Vec<_> {
            let method = |number: usize| work("message", &format!("m{number}"), ok, 0, [ok, 0, 0]);
            (0..CUT).map(method).collect()
        };
        let mut now = node("n1", 52_000, 9_000, many(11));
        now.work[0] = work("message", "new", 5_000, 0, [5_000, 0, 0]);
        let seen = view(vec![node("n1", 51_000, 100, many(10))], &figures(vec![now]), 1_000);
        assert_eq!(seen.methods.len(), METHODS);
        assert!(seen.methods.iter().all(|it| it.rate <= 1.0), "{:?}", seen.methods);
    }

    #[test]
    fn the_slowest_method_and_the_hottest_entity_come_first() {
        let hot = |id: &str, rate| HotEntity {
            r#type: "cart".into(),
            id: id.into(),
            turns_per_second: rate,
        };
        let mut all = figures(vec![
            node(
                "n1",
                1_000,
                0,
                vec![
                    work("message", "quick", 100, 0, [100, 0, 0]),
                    work("timer", "", 0, 0, [0, 100, 0]),
                    work("message", "never", 0, 0, [0, 0, 0]),
                    work("message", "slow", 1, 0, [0, 0, 1]),
                ],
            ),
            node("n2", 1_000, 0, vec![]),
        ]);
        all.nodes[0].hottest = vec![hot("b", 50), hot("a", 50)];
        all.nodes[1].hottest = vec![hot("c", 900)];
        all.unresponsive = vec![NodeIssue { node: "n3".into(), reason: "no response".into() }];
        let before = ["n1", "n2"].map(|name| node(name, 0, 0, vec![]));
        let view = view(before.into(), &all, 1_000);
        let methods: Vec<_> = view.methods.iter().map(|it| it.method.as_str()).collect();
        assert_eq!(methods, ["slow", "(timer)", "quick"], "what did nothing is not shown");
        assert_eq!(view.methods[0].p99_ms, 10.0, "the last bucket has no end");
        let hottest: Vec<_> = view.hottest.iter().map(|it| it.entity.as_str()).collect();
        assert_eq!(hottest, ["cart/c", "cart/a", "cart/b"]);
        assert_eq!((&*view.hottest[0].node, &*view.unresponsive[0].node), ("n2", "n3"));
    }
}
