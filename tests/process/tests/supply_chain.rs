//! Checks the bans, licences and sources of `deny.toml`, and what an embedded client builds, with cargo alone.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ostraca_process_tests::artifacts;
use serde_json::Value;

fn policy() -> toml::Table {
    let text = std::fs::read_to_string(artifacts::root().join("deny.toml")).expect("deny.toml");
    text.parse().expect("TOML")
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .current_dir(artifacts::root())
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn strings(table: &toml::Table, section: &str, key: &str) -> Vec<String> {
    let list = table[section][key].as_array().expect("a list");
    list.iter().map(|one| one.as_str().expect("a string").to_owned()).collect()
}

/// Whether the allowed licences satisfy an SPDX expression. Splits at `OR`, then at `AND`, then removes parentheses.
fn met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    let parts = split(&expression, " OR ");
    if parts.len() > 1 {
        return parts.iter().any(|part| met(part, allowed));
    }
    let parts = split(&expression, " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| met(part, allowed));
    }
    let one = expression.trim();
    match one.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => met(inner, allowed),
        None => allowed.iter().any(|licence| licence == one),
    }
}

/// Splits outside of parentheses.
fn split(text: &str, word: &str) -> Vec<String> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= from && text[at..].starts_with(word) => {
                parts.push(text[from..at].to_owned());
                from = at + word.len();
            }
            _ => {}
        }
    }
    parts.push(text[from..].to_owned());
    parts
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source() {
    let policy = policy();
    let allowed = strings(&policy, "licenses", "allow");
    let registries = strings(&policy, "sources", "allow-registry");
    let banned: Vec<_> =
        policy["bans"]["deny"].as_array().expect("a list").iter().map(|ban| &ban["name"]).collect();
    let packages = packages();
    assert!(packages.len() > 100, "only {} packages were checked", packages.len());
    let mut wrong = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().expect("a name");
        let licence = package["license"].as_str().unwrap_or("none");
        if !met(licence, &allowed) {
            wrong.push(format!("{name}: licence {licence}"));
        }
        // A package without a source is a member of this workspace.
        if let Some(source) = package["source"].as_str()
            && !registries.iter().any(|known| source.strip_prefix("registry+") == Some(known))
        {
            wrong.push(format!("{name}: source {source}"));
        }
        if banned.iter().any(|ban| ban.as_str() == Some(name)) {
            wrong.push(format!("{name}: banned"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Features are unified over a whole workspace, so only the client's own dependency tree shows what an application
/// builds.
#[test]
fn an_embedded_client_builds_no_server_and_no_authority() {
    let output = Command::new(env!("CARGO"))
        .current_dir(artifacts::root())
        .args(["tree", "--locked", "-p", "ostraca-client", "-e", "normal,features"])
        .args(["--prefix", "none", "--no-dedupe"])
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("text");
    let has = |line: &str| tree.lines().any(|other| other.starts_with(line));
    assert!(has("ostraca-wire feature \"default\""), "{tree}");
    for line in ["ostraca-ca ", "rcgen ", "ostraca-wire feature \"server\"", "wasmtime "] {
        assert!(!has(line), "ostraca-client depends on {line}");
    }
}

/// The packages of a lock file, by name and version, with the names of their dependencies.
fn locked(path: &str) -> BTreeMap<(String, String), BTreeSet<String>> {
    let text = std::fs::read_to_string(artifacts::root().join(path)).expect("a lock file");
    let lock: toml::Table = text.parse().expect("TOML");
    let text_of = |value: &toml::Value| value.as_str().expect("a text").to_owned();
    let packages = lock["package"].as_array().expect("packages").iter().map(|package| {
        let dependencies = package.get("dependencies").and_then(toml::Value::as_array);
        // A version follows the name if there are several.
        let names = dependencies
            .into_iter()
            .flatten()
            .map(|dependency| text_of(dependency).split(' ').next().unwrap_or_default().to_owned());
        ((text_of(&package["name"]), text_of(&package["version"])), names.collect())
    });
    packages.collect()
}

/// The names of the packages that a crate in `host/` always depends on, apart from those of its tests.
fn declared(directory: &str) -> BTreeSet<String> {
    fn names(table: &toml::Table, into: &mut BTreeSet<String>) {
        for kind in ["dependencies", "build-dependencies"] {
            let listed = table.get(kind).and_then(toml::Value::as_table);
            for (name, properties) in listed.into_iter().flatten() {
                let package = properties.get("package").and_then(toml::Value::as_str);
                let is_optional = properties.get("optional").and_then(toml::Value::as_bool);
                if is_optional != Some(true) {
                    into.insert(package.unwrap_or(name).to_owned());
                }
            }
        }
    }
    let path = artifacts::root().join("host").join(directory).join("Cargo.toml");
    let text = std::fs::read_to_string(path).expect("a manifest");
    let manifest: toml::Table = text.parse().expect("TOML");
    let mut all = BTreeSet::new();
    names(&manifest, &mut all);
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flatten().filter_map(|(_, target)| target.as_table()) {
        names(target, &mut all);
    }
    all
}

/// The fuzz targets are a workspace of their own. Where its lock file lags behind, `cargo build --locked` fails there.
#[test]
fn the_fuzz_targets_lock_file_follows_the_workspace() {
    const HOW: &str = "copy the packages of `Cargo.lock` there; `cargo metadata --manifest-path \
                       tests/fuzz/Cargo.toml` removes those that are not used";
    let (workspace, fuzz) = (locked("Cargo.lock"), locked("tests/fuzz/Cargo.lock"));
    let own = ["ostraca-fuzz", "libfuzzer-sys", "jobserver"];
    let mut wrong = Vec::new();
    for ((name, version), dependencies) in &fuzz {
        let key = (name.clone(), version.clone());
        if !own.contains(&&**name) && !workspace.contains_key(&key) {
            wrong.push(format!("{name} {version} is not in the workspace's lock file"));
        }
        let Some(directory) = name.strip_prefix("ostraca-").filter(|name| *name != "fuzz") else {
            continue;
        };
        let missing = declared(directory);
        let missing = missing.difference(dependencies);
        wrong.extend(missing.map(|missing| format!("{name} lacks its dependency {missing}")));
    }
    assert!(fuzz.len() > 100, "only {} packages were checked", fuzz.len());
    assert!(wrong.is_empty(), "tests/fuzz/Cargo.lock: {wrong:#?}\n{HOW}");
}

#[test]
fn licence_expressions_follow_spdx_rules() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR MIT) AND Zlib", false),
    ] {
        assert_eq!(met(expression, &allowed), expected, "{expression}");
    }
}
