//! Checks the CI itself: the hosted CI's workflow only calls `.ci/run` and `.ci/install`, and `.ci/run` does not miss a
//! failure.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ostraca_process_tests::artifacts;
use yaml_rust2::{Yaml, YamlLoader};

fn workflow() -> Yaml {
    let folder = artifacts::root().join(".github/workflows");
    let files: Vec<_> = fs::read_dir(&folder)
        .expect("the workflows")
        .map(|file| file.expect("a file").file_name())
        .collect();
    assert_eq!(files, ["ci.yml"], "another workflow would not be covered by these tests");
    let text = fs::read_to_string(folder.join("ci.yml")).expect("the workflow");
    YamlLoader::load_from_str(&text).expect("YAML").swap_remove(0)
}

fn keys(map: &Yaml) -> BTreeSet<&str> {
    map.as_hash().expect("a map").keys().map(|key| key.as_str().expect("a string")).collect()
}

/// Each job, and the only command that it runs.
const JOBS: [(&str, &str); 2] = [("ci", "bash .ci/run"), ("install", "bash .ci/install")];

fn steps<'a>(workflow: &'a Yaml, job: &str) -> &'a [Yaml] {
    workflow["jobs"][job]["steps"].as_vec().expect("the steps")
}

/// The inputs of the job's step that uses this action.
fn inputs<'a>(workflow: &'a Yaml, job: &str, action: &str) -> &'a Yaml {
    let mut used = steps(workflow, job).iter().filter(|step| {
        step["uses"].as_str().is_some_and(|it| it.split('@').next() == Some(action))
    });
    let step = used.next().unwrap_or_else(|| panic!("{action} is not used"));
    assert!(used.next().is_none(), "{action} is used twice");
    &step["with"]
}

#[test]
fn the_workflow_runs_the_scripts_and_nothing_of_its_own() {
    let workflow = workflow();
    assert_eq!(keys(&workflow["jobs"]), JOBS.map(|(job, _)| job).into());
    for (job, script) in JOBS {
        // No `if`, no `env`, no `continue-on-error`: nothing that changes what a script does or its result.
        assert_eq!(keys(&workflow["jobs"][job]), ["runs-on", "timeout-minutes", "steps"].into());
        let mut commands = Vec::new();
        for step in steps(&workflow, job) {
            match step["run"].as_str() {
                Some(command) => {
                    assert_eq!(keys(step), ["run"].into());
                    commands.push(command);
                }
                None => assert_eq!(keys(step), ["uses", "with"].into()),
            }
        }
        assert_eq!(commands, [script]);
        let last = steps(&workflow, job).last().expect("a step");
        assert_eq!(last["run"].as_str(), Some(script));
        let file = artifacts::root().join(script.strip_prefix("bash ").expect("a script"));
        assert!(file.exists(), "{file:?}");
    }
}

#[test]
fn the_workflow_has_a_timeout_and_least_permissions() {
    let workflow = workflow();
    assert_eq!(
        keys(&workflow),
        ["name", "on", "permissions", "concurrency", "jobs"].into(),
        "nothing else may apply to all steps"
    );
    assert_eq!(keys(&workflow["on"]), ["push", "pull_request"].into());
    for trigger in ["push", "pull_request"] {
        assert!(
            workflow["on"][trigger].is_null(),
            "{trigger} is limited to some branches or paths"
        );
    }
    assert_eq!(keys(&workflow["permissions"]), ["contents"].into());
    assert_eq!(workflow["permissions"]["contents"].as_str(), Some("read"));
    for (job, _) in JOBS {
        assert_eq!(workflow["jobs"][job]["timeout-minutes"].as_i64(), Some(90));
    }
}

#[test]
fn the_workflow_checks_out_history_and_caches_by_lock_file() {
    let workflow = workflow();
    let mut cached = BTreeSet::new();
    for (job, _) in JOBS {
        let checkout = inputs(&workflow, job, "actions/checkout");
        assert_eq!(checkout["fetch-depth"].as_i64(), Some(0));
        assert_eq!(checkout["persist-credentials"].as_bool(), Some(false));
        let cache = inputs(&workflow, job, "actions/cache");
        let paths: BTreeSet<_> = cache["path"].as_str().expect("paths").lines().collect();
        let expected = ["~/.cargo/registry/index", "~/.cargo/registry/cache", "target"];
        assert_eq!(paths, expected.into());
        let key = cache["key"].as_str().expect("a key");
        assert!(key.contains("hashFiles('Cargo.lock'"));
        assert!(cached.insert(key), "two jobs share a cache key");
    }
}

#[test]
fn actions_are_pinned_to_commits() {
    let workflow = workflow();
    let steps = JOBS.iter().flat_map(|(job, _)| steps(&workflow, job));
    for action in steps.filter_map(|step| step["uses"].as_str()) {
        let (name, commit) = action.split_once('@').expect("a version");
        assert!(name.starts_with("actions/"), "{name} has an unknown author");
        let hexadecimal = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(commit.len() == 40 && hexadecimal, "{action}: a tag can be moved");
    }
}

#[test]
fn rustup_installs_what_the_makefile_needs() {
    let read = |file: &str| fs::read_to_string(artifacts::root().join(file)).expect("a file");
    let makefile = read("Makefile");
    let variable = |name: &str| {
        let line = makefile.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(" = ")).expect("a variable").to_owned()
    };
    let toolchain: toml::Table = read("rust-toolchain.toml").parse().expect("TOML");
    let strings = |key: &str| -> BTreeSet<String> {
        let list = toolchain["toolchain"][key].as_array().expect("a list");
        list.iter().map(|one| one.as_str().expect("a string").to_owned()).collect()
    };
    let targets = variable("WASM").split(' ').map(str::to_owned).collect();
    assert_eq!(strings("targets"), targets);
    assert_eq!(strings("components"), ["rustfmt".to_owned(), "clippy".to_owned()].into());
    // Cargo checks the version: naming it as the channel would require another toolchain.
    assert_eq!(toolchain["toolchain"]["channel"].as_str(), Some("stable"));
    let workspace: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let version = workspace["workspace"]["package"]["rust-version"].as_str().expect("a version");
    assert_eq!(version, variable("RUST"));
}

/// Runs `.ci/run` with a `make` that prints this output and exits with these codes. Returns whether the script
/// succeeds, and what it prints.
fn ci_run(dir: &Path, test_output: &str, lint_status: u8, test_status: u8) -> (bool, String) {
    let make = dir.join("make");
    fs::write(dir.join("output"), test_output).expect("written");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = lint ] && exit {lint_status}\n[ \"$1\" = test ] || exit 9\ncat '{}'\nexit {test_status}\n",
        dir.join("output").display()
    );
    fs::write(&make, script).expect("written");
    fs::set_permissions(&make, fs::Permissions::from_mode(0o755)).expect("executable");
    let path = std::env::var("PATH").expect("a path");
    let output = Command::new("sh")
        .arg(artifacts::root().join(".ci/run"))
        .env("PATH", format!("{}:{path}", dir.display()))
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .output()
        .expect("run");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn suite(name: &str, result: &str) -> String {
    format!(
        "     Running tests/{name}.rs (/x/target/debug/deps/{name}-0123456789abcdef)\n\n{result}"
    )
}

fn ok(seconds: &str) -> String {
    format!(
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in {seconds}s\n\n"
    )
}

#[test]
fn ci_run_lists_the_ten_slowest_suites() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut output: String =
        (1..=12).map(|n| suite(&format!("suite{n}"), &ok(&format!("{n}.50")))).collect();
    // Documentation tests may report twice for one crate.
    output += &format!("   Doc-tests ostraca_client\n\n{}{}", ok("20.00"), ok("80.25"));
    let (passed, printed) = ci_run(dir.path(), &output, 0, 0);
    assert!(passed, "{printed}");
    let (_, table) = printed.split_once("in seconds:\n").expect("a table");
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 11, "{table}");
    assert_eq!(lines[0].trim(), "100.25  documentation of ostraca_client");
    assert_eq!(lines[1].trim(), "12.50  tests/suite12.rs (suite12)");
    assert_eq!(lines[9].trim(), "4.50  tests/suite4.rs (suite4)");
    assert_eq!(lines[10], "28 passed, 0 failed");
}

#[test]
fn ci_run_fails_if_anything_fails_or_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let good = suite("good", &ok("1.00"));
    let with = |result: &str| format!("{good}{}", suite("bad", result));
    let result = |counts: &str| with(&format!("test result: ok. {counts}; finished in 1.00s\n"));
    for (why, output, lint, test) in [
        ("lint fails", good.clone(), 1, 0),
        ("make test fails", good.clone(), 0, 2),
        ("no test ran", String::new(), 0, 0),
        ("a suite crashed", with("signal: 11\n"), 0, 0),
        ("a suite crashed in the middle", format!("{}{good}", suite("bad", "")), 0, 0),
        ("a test was ignored", result("2 passed; 0 failed; 1 ignored; 0 filtered out"), 0, 0),
        ("a test was left out", result("2 passed; 0 failed; 0 ignored; 1 filtered out"), 0, 0),
    ] {
        let (passed, printed) = ci_run(dir.path(), &output, lint, test);
        assert!(!passed, "{why}, but it passed: {printed}");
    }
    assert!(ci_run(dir.path(), &good, 0, 0).0);
}
