//! The page about the settings of the reference texts names each of them, and ours as they are (K40).

use std::collections::BTreeSet;
use std::path::Path;

use super::Config;

/// The settings of row K40, and those that the texts of S and A name.
const NAMED: [&str; 30] = [
    "guardian-name",
    "role",
    "remember-entities",
    "coordinator-failure-backoff",
    "retry-interval",
    "buffer-size",
    "handoff-timeout",
    "shard-start-timeout",
    "shard-failure-backoff",
    "entity-restart-backoff",
    "rebalance-interval",
    "journal-plugin-id",
    "snapshot-plugin-id",
    "state-store-mode",
    "snapshot-after",
    "least-shard-allocation-strategy.rebalance-threshold",
    "least-shard-allocation-strategy.max-simultaneous-rebalance",
    "waiting-for-state-timeout",
    "updating-state-timeout",
    "entity-recovery-strategy",
    "coordinator-singleton",
    "use-dispatcher",
    "min-nr-of-members",
    "rebalanceInterval",
    "allocationStrategy",
    "handOffTimeout",
    "handOffStopMessage",
    "numberOfShards",
    "pingTimeout",
    "rebalanceRetryInterval",
];

/// The names of all settings in the default text, those in comments too.
pub(super) fn documented() -> BTreeSet<String> {
    let (mut section, mut names) = (String::new(), BTreeSet::new());
    for line in Config::default_toml().lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned() + ".";
        }
        let Some((key, _)) = line.strip_prefix("# ").unwrap_or(line).split_once(" = ") else {
            continue;
        };
        if key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
            names.insert(format!("{section}{key}"));
        }
    }
    names
}

/// The texts in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn k40_each_setting_of_the_texts_has_a_row() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings-of-the-texts.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Text"));
    let rows: Vec<Vec<_>> =
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    for row in &rows {
        assert_eq!(row.len(), 5, "{row:?}");
        assert!(!row[4].is_empty(), "no reason: {row:?}");
    }
    let texts: Vec<_> = rows.iter().flat_map(|row| quoted(row[0])).collect();
    for name in NAMED {
        assert!(texts.contains(&name), "the page has no row for `{name}`");
    }

    let known = documented();
    let defaults: toml::Table = Config::default_toml().parse().expect("TOML");
    for row in &rows {
        let settings = quoted(row[2]);
        for (section, key) in settings.iter().filter_map(|name| name.split_once('.')) {
            let name = format!("{section}.{key}");
            assert!(known.contains(&name) || section == "lifecycle", "no setting `{name}`");
        }
        // The default that the page gives is the one in the file.
        if let [name] = settings[..] {
            let value = match name.split_once('.') {
                None => defaults.get(name),
                Some((section, key)) => defaults.get(section).and_then(|table| table.get(key)),
            };
            let Some(value) = value.filter(|value| !value.is_array()) else { continue };
            let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            let shown = row[3].replace(',', "").replace("port ", "127.0.0.1:").replace('`', "");
            assert!(shown.starts_with(&value), "`{name}` is {value}, not {}", row[3]);
        }
    }
}
