//! The file for compose: its references, the rights of its containers, and its set-up, which runs here without stores.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use ostraca_deploy_tests::yaml::{documents, keys, string, strings};
use ostraca_deploy_tests::{longest_stop, root, text, tools};
use serde_json::Value;

use crate::configurations;

const FOLDER: &str = "deploy/compose";
const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn compose() -> Value {
    let mut all = documents(&text(&format!("{FOLDER}/compose.yaml")));
    assert_eq!(all.len(), 1);
    all.swap_remove(0)
}

/// The services that use the image of Ostraca.
fn of_ostraca(compose: &Value) -> Vec<(&str, &Value)> {
    let services = compose["services"].as_object().expect("services").iter();
    let own = services.filter(|(_, it)| string(&it["image"]).starts_with("${OSTRACA_IMAGE:-"));
    own.map(|(name, it)| (name.as_str(), it)).collect()
}

/// Source and target of a service's volumes.
fn volumes(service: &Value) -> Vec<(&str, &str)> {
    let all = strings(&service["volumes"]).into_iter();
    all.map(|volume| {
        let (source, target) = volume.split_once(':').expect("a source and a target");
        (source, target.trim_end_matches(":ro"))
    })
    .collect()
}

#[test]
fn references_of_compose_resolve() {
    let compose = compose();
    let services = compose["services"].as_object().expect("services");
    let mut used: [BTreeSet<&str>; 3] = Default::default();
    for (name, service) in services {
        for (needed, how) in service["depends_on"].as_object().into_iter().flatten() {
            let other = services.get(needed).unwrap_or_else(|| panic!("{name} needs {needed}"));
            match string(&how["condition"]) {
                "service_healthy" => assert!(other["healthcheck"].is_object(), "{needed}"),
                // Only what ends can complete.
                "service_completed_successfully" => {
                    assert!(other.get("restart").is_none(), "{needed}")
                }
                other => panic!("{name}: {other}"),
            }
            // compose starts a service that is needed only if its profile is on.
            let on = |it: &Value| {
                strings(&it["profiles"]).iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()
            };
            assert!(on(other).is_empty() || on(other) == on(service), "{name} needs {needed}");
        }
        used[0].extend(strings(&service["networks"]));
        used[1].extend(strings(&service["secrets"]));
        for (source, _) in volumes(service) {
            match source.strip_prefix("./") {
                Some(file) => assert!(root().join(FOLDER).join(file).is_file(), "{name}: {file}"),
                None => drop(used[2].insert(source)),
            }
        }
    }
    for (used, section) in used.into_iter().zip(["networks", "secrets", "volumes"]) {
        assert_eq!(used, keys(&compose[section]).into_iter().collect(), "{section}");
    }
}

#[test]
fn compose_files_contain_no_secret() {
    let compose = compose();
    let ignored = text(&format!("{FOLDER}/.gitignore"));
    for secret in compose["secrets"].as_object().expect("secrets").values() {
        let file = string(&secret["file"]);
        let folder = Path::new(file).parent().expect("a folder").display().to_string();
        assert!(ignored.lines().any(|line| line == format!("/{folder}/")), "{file} is not ignored");
        assert!(
            text(&format!("{FOLDER}/README.md")).contains(file),
            "README.md does not create {file}"
        );
    }
    for (name, service) in compose["services"].as_object().expect("services") {
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            let is_file = variable.ends_with("_FILE") && string(value).starts_with("/run/secrets/");
            assert!(!variable.contains("PASSWORD") || is_file, "{name}: {variable}");
        }
    }
}

#[test]
fn services_of_compose_run_without_rights() {
    let compose = compose();
    let own = of_ostraca(&compose);
    assert!(own.len() > NODES.len());
    for (name, service) in own {
        assert_eq!(service["user"], "10001:10001", "{name}");
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert!(service.get("privileged").is_none() && service.get("tmpfs").is_none(), "{name}");
        for volume in strings(&service["volumes"]) {
            let writable = !volume.ends_with(":ro");
            assert!(!writable || volume.ends_with(":/var/lib/ostraca"), "{name}: {volume}");
        }
        for port in strings(&service["ports"]) {
            assert!(
                port.starts_with("127.0.0.1:") && port.ends_with(":7411/udp"),
                "{name}: {port}"
            );
        }
    }
}

#[test]
fn long_running_services_are_watched_and_restarted() {
    let compose = compose();
    for (name, service) in compose["services"].as_object().expect("services") {
        if service.get("profiles").is_some() {
            continue;
        }
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        let test = strings(&service["healthcheck"]["test"]);
        assert_eq!(test[0], "CMD", "{name}: the image has no shell");
        if NODES.contains(&name.as_str()) {
            assert_eq!(test[1..4], ["/usr/bin/ostraca", "nodes", "--profile"], "{name}");
            let given = string(&service["stop_grace_period"]).trim_end_matches('s');
            assert!(given.parse::<u64>().expect("seconds") > longest_stop(), "{name}: {given} s");
        }
    }
}

#[test]
fn configurations_of_compose_are_valid() {
    let compose = compose();
    let paths = NODES.map(|node| format!("{FOLDER}/{node}.toml"));
    for (node, config) in NODES.iter().zip(configurations::of_nodes(&paths)) {
        let service = &compose["services"][*node];
        assert_eq!(config["node"].as_str(), Some(*node));
        assert_eq!(configurations::address(&config), format!("{node}:7411"));
        let file = (&*format!("./{node}.toml"), strings(&service["command"])[2]);
        assert!(volumes(service).contains(&file), "{file:?}");
        assert!(volumes(service).contains(&(*node, "/var/lib/ostraca")));
        let postgres = config["postgres"].as_table().expect("a table");
        let secret =
            postgres["password-file"].as_str().and_then(|path| path.strip_prefix("/run/secrets/"));
        assert_eq!(strings(&service["secrets"]), [secret.expect("a secret")]);
        // Without encryption, the stores must not be reachable from outside.
        assert_eq!(postgres["tls"].as_str(), Some("off"));
    }
    assert_eq!(compose["networks"]["stores"]["internal"], true);
    for store in ["postgres", "etcd"] {
        assert_eq!(strings(&compose["services"][store]["networks"]), ["stores"]);
        assert!(compose["services"][store].get("ports").is_none(), "{store}");
    }
}

/// Runs a step of the set-up, with the service's volumes in this directory. Steps that need a store get none.
fn run_step(compose: &Value, name: &str, dir: &Path) {
    let service = &compose["services"][name];
    let mut command = Command::new(tools::ostraca());
    for argument in strings(&service["command"]) {
        if name == "init" && (argument.starts_with("--postgres") || argument.starts_with("--etcd"))
        {
            continue;
        }
        let mut argument = argument.to_owned();
        for (source, target) in volumes(service) {
            let place = dir.join(source);
            argument = argument.replace(target, &place.display().to_string());
        }
        command.arg(argument);
    }
    tools::succeed(&mut command);
}

#[test]
fn the_set_up_of_compose_makes_what_nodes_read() {
    let compose = compose();
    let dir = tempfile::tempdir_in(tools::scratch()).expect("a directory");
    for step in ["init", "init-n1", "init-n2", "init-n3", "issue-probe", "setup"] {
        run_step(&compose, step, dir.path());
    }
    for node in NODES {
        for file in ["ca/ca.pem", "ca/secret.key", "node.pem", "node.key"] {
            assert!(dir.path().join(node).join(file).is_file(), "{node}: {file}");
        }
        assert!(
            !dir.path().join(node).join("ca/ca.key").exists(),
            "{node} has the authority's key"
        );
        let service = &compose["services"][node];
        let profile = strings(&service["healthcheck"]["test"])[4];
        assert!(profile_at(dir.path(), service, profile).contains("127.0.0.1:7411"));
        assert!(volumes(service).iter().all(|(source, _)| *source != "authority"), "{node}");
    }
    let cli = &compose["services"]["cli"];
    let profile = profile_at(dir.path(), cli, string(&cli["environment"]["OSTRACA_PROFILE"]));
    assert!(NODES.iter().all(|node| profile.contains(&format!("{node}:7411"))), "{profile}");
}

/// The text of a profile in one of a service's volumes.
fn profile_at(dir: &Path, service: &Value, path: &str) -> String {
    let mounted = volumes(service).into_iter().find_map(|(source, target)| {
        Some(dir.join(source).join(path.strip_prefix(target)?.trim_start_matches('/')))
    });
    let file = mounted.unwrap_or_else(|| panic!("{path} is in no volume"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
