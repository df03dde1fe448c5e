//! The files for Prometheus and Grafana.

use std::collections::BTreeSet;
use std::path::Path;

use ostraca_test_servers::prometheus::promtool;
use serde_json::Value;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring")
}

#[test]
fn prometheus_accepts_its_configuration_and_the_alerts() {
    let (accepted, said) = promtool(&folder(), &["check", "config", "prometheus.yml"]);
    assert!(accepted && said.contains("12 rules found"), "{said}");
}

#[test]
fn each_alert_fires_when_it_should_and_not_before() {
    let (passed, said) = promtool(&folder(), &["test", "rules", "alerts.test.yml"]);
    assert!(passed, "{said}");
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).expect(name);
    let (alerts, tests) = (read("alerts.yml"), read("alerts.test.yml"));
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for name in names {
        let of_alert = format!("alertname: {name}\n");
        let tested = tests.match_indices(&of_alert).map(|(at, _)| &tests[at + of_alert.len()..]);
        let fires: Vec<_> =
            tested.map(|rest| rest.trim_start().starts_with("exp_alerts:")).collect();
        assert!(fires.contains(&true) && fires.contains(&false), "{name} is not tested");
    }
}

#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let documented = read(&folder().join("../../docs/metrics.md"));
    let names: BTreeSet<&str> = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    assert!(names.len() > 50, "{names:?}");
    let dashboard: Value =
        serde_json::from_str(&read(&folder().join("grafana-dashboard.json"))).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut text: Vec<String> =
        targets.map(|target| target["expr"].as_str().expect("an expression").into()).collect();
    assert!(text.len() > 30);
    let alerts = read(&folder().join("alerts.yml"));
    // Without the annotations, which speak of metrics in sentences.
    text.extend(alerts.lines().filter(|it| !it.contains("description:")).map(Into::into));
    let mut used = BTreeSet::new();
    for word in text.iter().flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
    {
        let is_metric = word.starts_with("ostraca_") || word.starts_with("process_");
        if is_metric {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            let known = names.contains(word) || base.is_some_and(|base| names.contains(base));
            assert!(known, "there is no metric {word}");
            used.insert(word);
        }
    }
    assert!(used.len() > 25, "{used:?}");
}
