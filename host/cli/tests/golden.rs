//! Compares the errors for invalid input files with the files in `golden/`: each `NAME.toml` has its `NAME.txt`.
//! `BLESS=1 cargo test -p ostraca --test golden` rewrites them; review them before you commit them.

use std::path::{Path, PathBuf};

use assert_cmd::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn ostraca() -> Command {
    let mut command = Command::cargo_bin("ostraca").expect("the binary");
    command.current_dir(folder()).env_remove("RUST_LOG").env_remove("OSTRACA_PROFILE");
    command
}

fn same(name: &str, text: &[u8]) {
    let file = folder().join(name);
    let text = String::from_utf8_lossy(text);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, text.as_bytes()).expect("written");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, golden, "{name}");
}

/// Checks that each file of a kind is refused with exit code 2, its golden error, and nothing on standard output.
fn all_are_refused(kind: &str, command: &[&str]) {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).expect("the directory") {
        let name = entry.expect("a file").file_name().into_string().expect("a name");
        let Some(stem) = name.strip_suffix(".toml").filter(|stem| stem.starts_with(kind)) else {
            continue;
        };
        let refused = ostraca().args(command).arg(&name).assert().code(2).stdout("");
        same(&format!("{stem}.txt"), &refused.get_output().stderr);
        seen += 1;
    }
    assert!(seen >= 5, "{seen} files of {kind}");
}

#[test]
fn an_invalid_manifest_is_refused_with_its_line_marked() {
    all_are_refused("manifest-", &["deploy"]);
}

#[test]
fn an_invalid_policy_is_refused_with_its_line_marked() {
    all_are_refused("policy-", &["policy", "check"]);
}

#[test]
fn an_invalid_configuration_is_refused_with_its_line_marked() {
    all_are_refused("config-", &["config", "check"]);
}

#[test]
fn the_demo_configurations_are_valid_and_consistent() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/demo");
    for name in ["n1", "n2", "n3"] {
        let file = demo.join(format!("{name}.toml"));
        ostraca().args(["config", "check"]).arg(&file).assert().success();
        let shown = ostraca().args(["config", "show"]).arg(&file).assert().success();
        let config: toml::Table =
            String::from_utf8_lossy(&shown.get_output().stdout).parse().expect("TOML");
        assert_eq!(config["node"].as_str(), Some(name));
        let listen = config["listen"].as_str().expect("an address").to_owned();
        assert_eq!(listen, format!("127.0.0.1:741{}", &name[1..]));
        let joins = config["join"].as_array().expect("a list");
        assert_eq!(joins.is_empty(), name == "n1");
        assert!(joins.iter().all(|it| it.as_str() != Some(&listen)), "{name} joins itself");
    }
}

#[test]
fn invalid_json_arguments_are_refused_with_the_spot_marked() {
    for (name, json) in [
        ("json-ends-early", "{\"by\": 3"),
        ("json-bare-word", "hello"),
        ("json-second-line", "{\n  \"by\": 3,\n}"),
        ("json-not-ascii", "[\"é\", é]"),
    ] {
        let refused = ostraca().args(["send", "a/b", "add", json]).assert().code(2).stdout("");
        same(&format!("{name}.txt"), &refused.get_output().stderr);
    }
}

#[test]
fn errors_are_json_when_json_is_requested() {
    let refused = ostraca()
        .args(["--output", "json", "deploy", "manifest-unknown-key.toml"])
        .assert()
        .code(2)
        .stdout("");
    same("error-as-json.txt", &refused.get_output().stderr);
}

#[test]
fn the_help_lists_every_command_and_exit_code() {
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help-send", &["send", "--help"]),
        ("help-run", &["run", "--help"]),
        ("help-build", &["build", "--help"]),
        ("help-events", &["events", "--help"]),
        ("help-inspect", &["inspect", "--help"]),
        ("help-init", &["init", "--help"]),
        ("help-drain", &["drain", "--help"]),
        ("help-top", &["top", "--help"]),
        ("help-forget", &["forget", "--help"]),
        ("help-export", &["export", "--help"]),
        ("help-import", &["import", "--help"]),
        ("help-undeploy", &["undeploy", "--help"]),
        ("help-forget-entity", &["forget-entity", "--help"]),
        ("help-restart-entity", &["restart-entity", "--help"]),
        ("help-cluster", &["cluster", "--help"]),
        ("help-policy", &["policy", "--help"]),
        ("help-policy-set", &["policy", "set", "--help"]),
        ("help-revoke", &["revoke", "--help"]),
        ("help-audit", &["audit", "--help"]),
        ("help-token-issue", &["token", "issue", "--help"]),
        ("help-pool-copy", &["pool", "copy", "--help"]),
        ("help-repair", &["repair", "--help"]),
        ("help-reset-sharding", &["reset", "sharding", "--help"]),
        ("help-entities", &["entities", "--help"]),
        ("help-dead-letters", &["dead-letters", "--help"]),
        ("help-dead-letters-resend", &["dead-letters", "resend", "--help"]),
    ] {
        let shown = ostraca().args(args).assert().success();
        same(&format!("{name}.txt"), &shown.get_output().stdout);
    }
}

#[test]
fn impossible_arguments_are_usage_errors() {
    let long = format!("counter/{}", "x".repeat(513));
    for args in [
        &["sendd"][..],
        &["send", "counter", "get"],
        &["send", "/alice", "get"],
        &["send", "counter/", "get"],
        &["send", &long, "get"],
        &["send", "counter/alice", "get", "--id", "12"],
        &["send", "counter/alice", "get", "--id", "00112233445566778899aabbccddeeff-1"],
        &["send", "counter/alice", "get", "--command", "--query"],
        &["send", "counter/alice", "get", "--timeout", "soon"],
        &["dead-letters"],
        &["dead-letters", "drop", "order/17"],
        &["dead-letters", "drop", "order", "--all"],
        &["dead-letters", "resend", "order/17", "1", "--all"],
        &["dead-letters", "list", "--values"],
        &["forget-entity", "order"],
        &["new", "Hello"],
        &["new", "../hello"],
        &["new", "fn"],
        &["deploy", "no-such-directory"],
        &["init", "."],
        &["run", "--config", "no-such-file"],
        &["status", "--log", "=="],
        &["inspect", "counter"],
        &["tell", "counter/alice"],
        &["entities", "--shard", "0"],
        &["drain", "n1", "--undo", "--timeout", "1s"],
        &["completions", "tcsh"],
        &["init", "n2", "--join", "127.0.0.1:1"],
        &["init", "n2", "--join", "127.0.0.1", "--ca", "ca"],
        &["init", "n2", "--join", "127.0.0.1:1", "--ca", "no-such-directory"],
        &["init", "n1", "--listen", "localhost:7411"],
        &["init", "n2", "--join", "127.0.0.1:1", "--ca", "ca", "--shards", "8"],
        &["init", "n2", "--roles", "host"],
    ] {
        ostraca().args(args).assert().code(2).stdout("");
    }
}

#[test]
fn completions_of_each_shell_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let shown = ostraca().args(["completions", shell]).assert().success();
        let script = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
        for word in ["rebalance", "drain", "forget", "undo", "dry-run", "inspect", "completions"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn a_missing_profile_is_exit_code_3() {
    let empty = tempfile::tempdir().expect("a directory");
    let refused = ostraca().current_dir(empty.path()).arg("status").assert().code(3).stdout("");
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.starts_with("no-profile"), "{text}");
}

#[test]
fn a_result_that_could_not_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ostraca"));
    let output = command.args(["config", "default"]).stdout(full).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.starts_with(b"output-write-failed\n"));
}
