//! Every setting reaches the structure from which its machine is built, and nothing else (K40). `reach.txt` says which
//! field each one reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::texts::documented;
use super::{ClusterSettings, Config};

/// Where the table is.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/tests/reach.txt");

/// Settings that have only one valid value.
const FIXED: [&str; 1] = ["namespace"];

/// A setting with another value than its default.
struct Case {
    /// Settings that the file has besides it: some settings have an effect only with others.
    context: Vec<(String, String)>,
    /// Whether it is set in the cluster's row rather than in the file.
    is_clusters: bool,
    key: String,
    value: String,
    /// The fields that must change, with their new values.
    reached: BTreeSet<String>,
}

/// Splits `key = value`.
fn assignment(text: &str) -> (String, String) {
    let (key, value) = text.split_once(" = ").unwrap_or_else(|| panic!("no value: {text}"));
    (key.trim().into(), value.trim().into())
}

fn cases() -> Vec<Case> {
    let (mut cases, mut context, mut is_clusters) = (Vec::<Case>::new(), Vec::new(), false);
    let table = std::fs::read_to_string(TABLE).expect("the table");
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(settings) = line.strip_prefix("with ") {
            is_clusters = settings == "a row of the cluster";
            let is_file = !is_clusters && settings != "nothing else";
            let settings = is_file.then(|| settings.split("; ").map(assignment).collect());
            context = settings.unwrap_or_default();
        } else if let Some(field) = line.strip_prefix("    ") {
            let case = cases.last_mut().expect("a setting above its fields");
            assert!(case.reached.insert(field.into()), "{field} is listed twice");
        } else {
            let (key, value) = assignment(line);
            let context = context.clone();
            cases.push(Case { context, is_clusters, key, value, reached: BTreeSet::new() });
        }
    }
    cases
}

/// All that is built from a configuration, as text: by the function of [`Config`] or by the field.
fn built(config: &Config) -> Vec<(&'static str, String)> {
    macro_rules! text_of {
        ($($function:ident($($argument:expr),*),)*) => {
            vec![$((stringify!($function), format!("{:#?}", config.$function($($argument),*)))),*]
        };
    }
    let mut all = text_of![
        ceilings(),
        control_inbox_limits(),
        deploy_wait_timeout(),
        further_databases(),
        health_check(),
        health_check_timeout(),
        http_settings(),
        identity_files(),
        is_host(),
        lease_settings(7, &config.cluster_settings()),
        load_settings(),
        max_channel_feeds(),
        max_live_memory(),
        max_metric_methods(),
        max_pins(),
        metrics_address(),
        node_settings(),
        pool_roles(),
        postgres_options(),
        roles(),
        route_settings(),
        rows_store(),
        store_call_timeout(),
        store_dir(),
        store_options(),
        strategy(),
        timeout_limits(),
        trace_settings(),
        utc_limits(),
        wasm_settings(),
        weight(),
        wire_limits(),
        worker_settings(2, 8_000),
    ];
    let Config { node, data, listen, advertise, join, namespace, lease, renew_interval, .. } =
        config;
    let Config { expected_shards, expected_hash, .. } = config;
    let fields: [(_, &dyn std::fmt::Debug); 10] = [
        ("node", node),
        ("data", data),
        ("listen", listen),
        ("advertise", advertise),
        ("join", join),
        ("namespace", namespace),
        ("lease", lease),
        ("renew_interval", renew_interval),
        ("expected_shards", expected_shards),
        ("expected_hash", expected_hash),
    ];
    all.extend(fields.map(|(name, value)| (name, format!("{value:#?}"))));
    all
}

/// Each value in the debug text of a structure, as `path: value`, with the path by itself.
fn fields(config: &Config) -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for (part, text) in built(config) {
        let mut path = vec![part];
        for line in text.lines() {
            let line = line.trim().trim_end_matches(',');
            if ["}", ")", "]"].contains(&line) {
                path.pop();
                continue;
            }
            let is_name = |it: &str| it.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let (name, value) = match line.split_once(": ") {
                Some((name, value)) if is_name(name) => (name, value),
                _ => ("", line),
            };
            let opened = value.strip_suffix(['{', '(', '[']);
            path.push(name);
            let place = path.iter().filter(|it| !it.is_empty()).copied().collect::<Vec<_>>();
            let shown = opened.unwrap_or(value).trim();
            if !shown.is_empty() {
                all.insert((place.join("."), shown.to_owned()));
            }
            if opened.is_none() {
                path.pop();
            }
        }
    }
    all
}

impl Case {
    /// The configuration, with the case's setting if it is in the file.
    fn config(&self, is_changed: bool) -> Config {
        let own = (self.key.clone(), self.value.clone());
        let mut settings: BTreeMap<_, _> = self.context.iter().cloned().collect();
        settings.entry("node".into()).or_insert("\"n\"".into());
        settings.extend((is_changed && !self.is_clusters).then_some(own));
        let text: String =
            settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let parsed = Config::parse(&text, "dir/ostraca.toml");
        let mut config = parsed.unwrap_or_else(|error| panic!("{text}{error:?}"));
        if self.is_clusters {
            let mut row = ClusterSettings::default();
            if is_changed {
                row.set(&self.key, self.value.trim_matches('"')).expect("a valid value");
            }
            config.apply_cluster_settings(&row);
        }
        config
    }

    /// The fields that the setting changes, with their new values.
    fn changed(&self) -> BTreeSet<String> {
        let (before, after) = (fields(&self.config(false)), fields(&self.config(true)));
        let paths: BTreeSet<_> = after.difference(&before).map(|(path, _)| path).collect();
        let gone = before.difference(&after).filter(|(path, _)| !paths.contains(path));
        let new = after.difference(&before).map(|(path, value)| format!("{path}: {value}"));
        new.chain(gone.map(|(path, _)| format!("{path} is gone"))).collect()
    }
}

#[test]
fn k40_each_setting_reaches_its_machine_alone() {
    let mut wrong = String::new();
    for case in cases() {
        let changed = case.changed();
        if changed.is_empty() || changed != case.reached {
            wrong += &format!("{} = {}\n", case.key, case.value);
            for field in changed {
                wrong += &format!("    {field}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "settings that reach something else than `reach.txt` says:\n{wrong}");
}

#[test]
fn k40_no_setting_is_missing_in_the_table() {
    let mut known: BTreeSet<_> =
        cases().into_iter().filter(|case| !case.is_clusters).map(|case| case.key).collect();
    known.extend(FIXED.map(Into::into));
    assert_eq!(documented(), known);
    let clusters = cases().into_iter().filter(|case| case.is_clusters).map(|case| case.key);
    let named = ClusterSettings::default().named().map(|(name, _)| name.to_owned());
    assert_eq!(clusters.collect::<Vec<_>>(), named);
}

#[test]
fn k40_the_node_asks_for_all_that_is_built() {
    fn read(dir: &Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("one")) {
            let path = entry.path();
            match path.is_dir() {
                true => read(&path, into),
                false => *into += &std::fs::read_to_string(&path).expect("a source"),
            }
        }
    }
    let mut sources = String::new();
    for dir in ["node/src", "control/src", "catalog/src"] {
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir), &mut sources);
    }
    let config = Config::parse("node = \"n\"", "ostraca.toml").expect("a configuration");
    // Only the configuration itself reads the first; the second has one value.
    let own = ["identity_files", "namespace"];
    for (part, _) in built(&config).into_iter().filter(|(part, _)| !own.contains(part)) {
        let name = format!("config.{part}");
        let is_end = |at: usize| {
            let next = sources[at + name.len()..].bytes().next();
            next.is_some_and(|b| !b.is_ascii_alphanumeric() && b != b'_')
        };
        let is_used = sources.match_indices(&name).any(|(at, _)| is_end(at));
        assert!(is_used, "nothing in the node uses `{part}` of the configuration");
    }
}
