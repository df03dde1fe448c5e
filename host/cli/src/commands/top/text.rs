//! Formats a view as rows of text, for the live screen and for plain output.

use crate::output;

use super::rates::{HotRow, MethodRow, NodeRow, View};

/// The headers of the nodes.
pub(super) const NODES: [&str; 11] = [
    "NODE",
    "MESSAGES/S",
    "FAILED/S",
    "TURNS/S",
    "COMMITS/S",
    "P99",
    "SHARDS",
    "ENTITIES",
    "MEMORY",
    "WAITING",
    "UPTIME",
];
/// The headers of the methods.
pub(super) const METHODS: [&str; 7] =
    ["TYPE", "METHOD", "RATE/S", "FAILED/S", "MEAN", "P50", "P99"];
/// The headers of the entities.
pub(super) const HOTTEST: [&str; 3] = ["ENTITY", "TURNS/S", "NODE"];
/// The entities that are printed.
const PRINTED: usize = 10;

pub(super) fn node(row: &NodeRow) -> [String; 11] {
    [
        row.node.clone(),
        rate(row.messages),
        rate(row.failures),
        rate(row.turns),
        rate(row.commits),
        row.p99_ms.map(millis).unwrap_or_default(),
        row.shards.to_string(),
        row.entities.to_string(),
        output::size(row.memory_bytes),
        row.waiting.to_string(),
        output::span(row.uptime_ms),
    ]
}

pub(super) fn method(row: &MethodRow) -> [String; 7] {
    [
        row.entity_type.clone(),
        row.method.clone(),
        rate(row.rate),
        rate(row.failures),
        millis(row.mean_ms),
        millis(row.p50_ms),
        millis(row.p99_ms),
    ]
}

pub(super) fn hot(row: &HotRow) -> [String; 3] {
    [row.entity.clone(), row.turns.to_string(), row.node.clone()]
}

/// Prints a view.
pub(super) fn print(view: &View) {
    output::table(NODES, view.nodes.iter().map(node).collect());
    for it in &view.unresponsive {
        output::line(&format!("node {} did not report: {}", it.node, it.reason));
    }
    output::line("");
    if view.methods.is_empty() {
        output::line("no messages");
        return;
    }
    output::table(METHODS, view.methods.iter().map(method).collect());
    if !view.hottest.is_empty() {
        output::line("");
        output::table(HOTTEST, view.hottest.iter().take(PRINTED).map(hot).collect());
    }
}

/// A rate with as many digits as matter.
fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..10.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

/// A duration with as many digits as matter.
fn millis(millis: f64) -> String {
    match millis {
        ..1.0 => format!("{:.0} us", millis * 1e3),
        ..10.0 => format!("{millis:.1} ms"),
        ..1e3 => format!("{millis:.0} ms"),
        _ => format!("{:.1} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_matter() {
        let rates = [0.0, 0.04, 0.96, 9.94, 10.4, 12_345.6].map(rate);
        assert_eq!(rates, ["0", "0.0", "1.0", "9.9", "10", "12346"]);
        let durations = [0.08, 0.9, 1.25, 9.9, 12.4, 999.4, 1_000.0, 10_000.0].map(millis);
        assert_eq!(
            durations,
            ["80 us", "900 us", "1.2 ms", "9.9 ms", "12 ms", "999 ms", "1.0 s", "10.0 s"]
        );
    }
}
