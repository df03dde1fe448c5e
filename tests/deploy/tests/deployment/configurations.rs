//! What the configurations for compose and for Kubernetes have in common.

use std::process::Command;

use ostraca_deploy_tests::{root, tools};
use toml::Table;

/// A node's configuration as `ostraca` reads it, with all defaults. Fails if `ostraca` refuses it.
fn checked(path: &str) -> Table {
    let file = root().join(path);
    for what in [&["check", "--offline"][..], &["show"]] {
        let mut command = Command::new(tools::ostraca());
        let shown = tools::succeed(command.arg("config").args(what).arg(&file));
        if what == ["show"] {
            return shown.parse().expect("TOML");
        }
    }
    unreachable!("`show` is the last one")
}

/// The configurations of all nodes of a cluster, which must differ in their own name, pod and address only.
pub(crate) fn of_nodes(paths: &[String]) -> Vec<Table> {
    let all: Vec<_> = paths.iter().map(|path| checked(path)).collect();
    assert_eq!(all.len(), 3);
    let common = |config: &Table| {
        let mut config = config.clone();
        // A node's pod has its name.
        let pod = config["kubernetes"].as_table_mut().and_then(|section| section.remove("pod"));
        assert!(pod.is_none_or(|pod| pod == config["node"]));
        for own in ["node", "advertise"] {
            config.remove(own).expect("set");
        }
        config
    };
    assert!(all.iter().all(|config| common(config) == common(&all[0])), "{paths:?} differ");
    for config in &all {
        // On separate machines or in separate containers, the others do not reach a loopback address.
        assert_eq!(config["listen"].as_str(), Some("0.0.0.0:7411"));
        assert_eq!(config["data"].as_str(), Some("/var/lib/ostraca"));
        let roles: Vec<_> = config["roles"].as_array().expect("roles").iter().collect();
        assert!(roles.iter().all(|role| role.as_str() != Some("store")), "{roles:?}");
        assert!(config["postgres"]["url"].as_str().is_some_and(|url| !url.contains("password")));
    }
    all
}

/// The only address that a node announces.
pub(crate) fn address(config: &Table) -> &str {
    let advertised = config["advertise"].as_array().expect("a list");
    assert_eq!(advertised.len(), 1, "{advertised:?}");
    advertised[0].as_str().expect("an address")
}
