//! Tests what the command line guarantees in every state of the cluster. Where a test needs a node, the node runs in
//! a separate process.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn ostraca(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostraca"));
    command.args(args).current_dir(dir).env_remove("RUST_LOG").env_remove("OSTRACA_PROFILE");
    command
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

fn run(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("runs");
    (status.code(), text(stdout), text(stderr))
}

/// The error of a command, as JSON.
fn error(dir: &Path, exit: i32, args: &[&str]) -> Value {
    let (code, out, err) = run(ostraca(dir, &[args, &["--output", "json"]].concat()));
    assert_eq!((code, out.as_str()), (Some(exit), ""), "{args:?}: {err}");
    let error: Value = serde_json::from_str(&err).expect("JSON on standard error");
    assert_eq!(error["error"]["exit"], exit, "{error}");
    error["error"].clone()
}

/// A development node, killed at the end of the test.
struct Dev {
    process: Child,
    address: String,
    /// The node's output up to the last line of the start message.
    lines: Vec<String>,
}

impl Dev {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let args = [&["dev"], args].concat();
        let mut process = ostraca(dir, &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut output = BufReader::new(process.stdout.take().expect("its output")).lines();
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| !line.starts_with("  ostraca deploy")) {
            lines.push(output.next().expect("a line").expect("text"));
        }
        let address = lines[0].rsplit(' ').next().expect("its address").into();
        Self { process, address, lines }
    }

    fn stop(mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        assert!(self.process.wait().expect("waits").success());
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn usage_errors_are_json_when_json_is_requested() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        &["sendd"][..],
        &["send", "counter/alice"],
        &["send", "counter/alice", "get", "--timeout", "soon"],
        &["drain", "n1", "--undo", "--timeout", "1s"],
    ] {
        let error = error(dir.path(), 2, args);
        assert_eq!(error["code"], "usage", "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(!message.is_empty() && !message.contains("error:"), "{message:?}");
        assert!(error["help"].as_str().is_some_and(|help| help.contains("--help")), "{error}");
    }
    let (code, out, err) = run(ostraca(dir.path(), &["sendd"]));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with("error: "), "{err}");
    // Help is a result, in every output format.
    let (code, out, _) = run(ostraca(dir.path(), &["--output", "json", "--help"]));
    assert_eq!((code, out.contains("Usage:")), (Some(0), true), "{out}");
}

#[test]
fn a_directory_argument_means_the_configuration_in_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let made = ["init", "n1", "--listen", "127.0.0.1:0", "--shards", "1"];
    assert_eq!(run(ostraca(dir, &made)).0, Some(0));
    for args in [&["config", "check", "n1"][..], &["config", "show", "n1"]] {
        assert_eq!(run(ostraca(dir, args)).0, Some(0), "{args:?}");
    }
    // The configuration is read: the error comes from a later step.
    std::fs::remove_dir_all(dir.join("n1/store")).expect("removed");
    assert_eq!(error(dir, 7, &["run", "--config", "n1"])["code"], "store-missing");
    std::fs::create_dir(dir.join("empty")).expect("made");
    let wrong = error(dir, 2, &["run", "--config", "empty"]);
    assert!(wrong["message"].as_str().is_some_and(|it| it.contains("empty/ostraca.toml")));
}

#[test]
fn k36_a_new_cluster_is_checked_and_reset() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path();
    assert_eq!(run(ostraca(place, &["init", "n1"])).0, Some(0));
    for apply in [&[][..], &["--apply"]] {
        let (code, out, err) = run(ostraca(place, &[&["repair", "n1"], apply].concat()));
        assert_eq!(code, Some(0), "{err}");
        assert!(out.ends_with("no contradictions\n"), "{out}");
    }
    let (code, out, _) = run(ostraca(place, &["repair", "n1", "--output", "json"]));
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &report["found"]), (Some(0), &Value::Array(Vec::new())));
    let (code, out, err) = run(ostraca(place, &["reset", "sharding", "n1"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(out.contains("would be reset") && err.contains("--yes"), "{out}{err}");
    let (code, out, err) = run(ostraca(place, &["reset", "sharding", "n1", "--yes"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("was reset"), "{out}");
}

#[test]
fn an_invalid_profile_is_an_input_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    std::fs::write(dir.join("bad.toml"), "addresses = 3").expect("written");
    for profile in ["bad.toml", "no-such-file.toml"] {
        let wrong = error(dir, 2, &["status", "--profile", profile]);
        assert_eq!(wrong["code"], "invalid-profile", "{wrong}");
    }
    assert_eq!(error(dir, 3, &["status"])["code"], "no-profile");
}

#[test]
fn the_deadline_includes_the_time_to_connect() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = silent.local_addr().expect("its address").to_string();
    assert_eq!(run(ostraca(dir, &["init", "n1", "--shards", "1"])).0, Some(0));
    let issue = ["ca", "issue", "client", "me", "--ca", "n1/ca", "--address", &at];
    assert_eq!(run(ostraca(dir, &issue)).0, Some(0));
    for verb in ["send", "tell"] {
        let args = [verb, "a/b", "get", "--profile", "me.toml", "--timeout", "300ms"];
        let error = error(dir, 3, &args);
        assert_eq!(error["code"], "no-node-reachable", "{error}");
        assert!(error["message"].as_str().is_some_and(|it| it.contains("300ms")), "{error}");
    }
}

#[test]
fn a_dev_node_reuses_its_address_while_it_is_free() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let first = Dev::start(dir, &[]);
    let address = first.address.clone();
    first.stop();
    let second = Dev::start(dir, &[]);
    assert_eq!(second.address, address);
    assert!(!second.lines.iter().any(|line| line.contains("is in use")), "{:?}", second.lines);
    second.stop();
    // Another process uses the port now.
    let taken = UdpSocket::bind(&address).expect("the port");
    let third = Dev::start(dir, &[]);
    assert_ne!(third.address, address);
    let warned = |line: &String| line.contains(&address) && line.contains("is in use");
    assert!(third.lines.iter().any(warned), "{:?}", third.lines);
    // Clients in the directory find the node nevertheless.
    assert_eq!(run(ostraca(dir, &["nodes"])).0, Some(0));
    drop(taken);
    third.stop();
}

#[test]
fn the_environment_profile_wins_and_a_difference_is_noted() {
    let (here, there) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let (here, there) = (here.path(), there.path());
    let (node, other) = (Dev::start(here, &[]), Dev::start(there, &[]));
    let with = |variable: &Path, args: &[&str]| {
        let mut command = ostraca(here, args);
        command.env("OSTRACA_PROFILE", variable);
        run(command)
    };
    let address = |out: &str| {
        let status: Value = serde_json::from_str(out).expect("JSON");
        status["address"].as_str().expect("an address").to_owned()
    };
    let other_profile = there.join(".ostraca/profile.toml");
    let (code, out, err) = with(&other_profile, &["status"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(&other.address), "{out}");
    assert!(
        err.starts_with("note: ") && err.contains(&other_profile.display().to_string()),
        "{err}"
    );
    assert!(err.contains(&here.join(".ostraca/profile.toml").display().to_string()), "{err}");
    // Programs parse standard error as one error, if there is one.
    let (code, out, err) = with(&other_profile, &["status", "--output", "json"]);
    assert_eq!((code, err.as_str(), address(&out)), (Some(0), "", other.address.clone()));
    // The option takes precedence over both, and the directory's own profile causes no warning.
    let own = here.join(".ostraca/profile.toml");
    let own_text = own.display().to_string();
    let (_, out, err) =
        with(&other_profile, &["status", "--output", "json", "--profile", &own_text]);
    assert_eq!((err.as_str(), address(&out)), ("", node.address.clone()));
    assert_eq!(with(&own, &["status"]).2, "");
    node.stop();
    other.stop();
}

#[test]
fn verbose_logs_what_the_client_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Dev::start(dir.path(), &[]);
    let (code, _, quiet) = run(ostraca(dir.path(), &["status"]));
    assert_eq!((code, quiet.as_str()), (Some(0), ""));
    let (code, _, verbose) = run(ostraca(dir.path(), &["status", "-v"]));
    assert_eq!(code, Some(0));
    for word in ["connected", &node.address, "profile.toml"] {
        assert!(verbose.contains(word), "{word}: {verbose}");
    }
    node.stop();
}

#[test]
fn rebalance_and_its_dry_run_have_the_same_json_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Dev::start(dir.path(), &[]);
    let shape = |args: &[&str]| {
        let (code, out, err) = run(ostraca(dir.path(), args));
        assert_eq!(code, Some(0), "{err}");
        let it: Value = serde_json::from_str(&out).expect("JSON");
        let names: Vec<_> = it.as_object().expect("an object").keys().cloned().collect();
        (names, it["dry_run"].clone())
    };
    let (names, dry) = shape(&["rebalance", "--dry-run", "--output", "json"]);
    assert_eq!(dry, true);
    assert_eq!(shape(&["rebalance", "--output", "json"]), (names, Value::from(false)));
    node.stop();
}
