//! A newcomer's steps: create a project, build it, deploy it to a development node and send messages; then every
//! possible outcome of a message. One test, since the first build takes about a minute.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Timeout of every step, far longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn ostraca(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostraca"));
    command.args(args).current_dir(dir).env_remove("RUST_LOG").env_remove("OSTRACA_PROFILE");
    // A separate target directory: another build must not replace the files that are read here.
    command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("journey"));
    command
}

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = ostraca(dir, args).output().expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(dir, args);
    assert_eq!(code, Some(0), "{args:?}: {out}{err}");
    out
}

fn refused(dir: &Path, exit: i32, code: &str, args: &[&str]) -> String {
    let (found, out, err) = run(dir, args);
    assert_eq!(found, Some(exit), "{args:?}: {out}{err}");
    assert!(err.starts_with(&format!("{code}\n")), "{args:?}: {err}");
    assert_eq!(out, "", "{args:?}");
    err
}

/// A node in a separate process, killed if the test fails.
struct Node {
    process: Child,
    address: String,
}

impl Node {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child = ostraca(dir, args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut node = Self { process: child, address: String::new() };
        let first = lines.next().expect("a line").expect("text");
        assert!(first.starts_with("ready: node "), "{first}");
        node.address = first.rsplit(' ').next().expect("its address").into();
        // Keep reading, or the node would block on its output.
        std::thread::spawn(move || lines.for_each(drop));
        node
    }

    /// Requests a stop, and returns the exit code.
    fn stop(mut self) -> Option<i32> {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait().expect("waits") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the node did not stop");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Loads the completion script into bash, and completes the last word. The script gives up after seconds, so a slow
/// machine gets several attempts.
fn completes(dir: &Path, words: &[&str], expected: &str) {
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "eval \"$(ostraca completions bash)\"; COMP_WORDS=(ostraca {}); COMP_CWORD={}\n\
         _ostraca_names ostraca {}; echo \"${{COMPREPLY[*]}}\"",
        quoted.join(" "),
        quoted.len(),
        quoted[quoted.len() - 1]
    );
    let program = Path::new(env!("CARGO_BIN_EXE_ostraca")).parent().expect("its directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("a PATH"));
    let until = Instant::now() + TIMEOUT;
    loop {
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(dir).env("PATH", &path);
        let output = bash.env_remove("OSTRACA_PROFILE").output().expect("bash runs");
        let found = String::from_utf8(output.stdout).expect("text");
        if found.trim_end() == expected {
            return;
        }
        assert!(Instant::now() < until, "{words:?}: {found:?} instead of {expected:?}");
    }
}

/// Methods that take seconds, so that a caller's deadline can pass while they run, and one that overflows.
const SLOW: &str = "
    /// Takes seconds.
    #[message]
    pub fn slow(&mut self, rounds: u64) -> usize {
        for round in 0..rounds {
            std::hint::black_box(round);
        }
        self.greetings.push(String::new());
        self.greetings.len()
    }

    /// Takes seconds and changes nothing.
    #[message]
    pub fn ponder(&self, rounds: u64) -> u64 {
        (0..rounds).map(std::hint::black_box).fold(0, u64::wrapping_add)
    }

    /// Adds the number of greetings.
    #[message]
    pub fn count_from(&mut self, from: u64) -> u64 {
        from + self.greetings.len() as u64
    }

    /// Reads the standard library's clock, which guests of this target do not have.
    #[message]
    pub fn now(&self) -> bool {
        std::time::SystemTime::now() > std::time::UNIX_EPOCH
    }

    /// Returns the last greeting.";

#[test]
fn a_new_project_builds_deploys_and_answers() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(dir, &["new", "hello"]);
    refused(dir, 2, "file-exists", &["new", "hello"]);
    let help = refused(dir, 2, "no-component", &["deploy", "hello"]);
    assert!(help.contains("ostraca build hello"), "{help}");
    let source = dir.join("hello/src/lib.rs");
    let text = std::fs::read_to_string(&source).expect("the source");
    let slow = text.replacen("\n    /// Returns the last greeting.", SLOW, 1);
    assert_ne!(slow, text);
    std::fs::write(&source, slow).expect("written");
    let manifest = dir.join("hello/entity.toml");
    let text = std::fs::read_to_string(&manifest).expect("the manifest");
    std::fs::write(&manifest, text + "\n[limits]\nturn-time = \"30 s\"\n").expect("written");
    let built = ok(dir, &["build", "hello"]);
    assert!(
        built.contains(
            "greet (command), slow (command), ponder (query), count_from (command), now (query), last (query)"
        ),
        "{built}"
    );

    let node = Node::start(dir, &["dev"]);
    assert!(ok(dir, &["deployments"]).starts_with("nothing is deployed"));
    assert!(ok(dir, &["deploy", "hello"]).starts_with("hello: deployed, revision 1"));
    assert!(ok(dir, &["deploy", "hello"]).starts_with("hello: unchanged, revision 1"));
    // Another node with the same data directory is refused, and the running one is not disturbed.
    refused(dir, 7, "store-in-use", &["dev"]);

    assert_eq!(ok(dir, &["send", "hello/alice", "greet", "\"hello\""]), "1\n");
    assert_eq!(ok(dir, &["send", "hello/alice", "last"]), "\"hello\"\n");
    refused(dir, 4, "empty-greeting", &["send", "hello/alice", "greet", "\" \""]);
    let wrong = ["send", "hello/alice", "greet", "{\"t\": 1}"];
    let err = refused(dir, 2, "schema-mismatch", &wrong);
    assert!(err.contains("unknown member \"t\"") && err.contains("greet("), "{err}");
    refused(dir, 4, "invalid-arguments", &[&wrong[..], &["--no-check"]].concat());
    refused(dir, 5, "wrong-kind", &["send", "hello/alice", "greet", "\"a\"", "--query"]);
    let err = refused(dir, 5, "unknown-type", &["send", "helo/alice", "last"]);
    assert!(err.contains("did you mean `hello`?"), "{err}");
    let err = refused(dir, 5, "unknown-method", &["send", "hello/alice", "shout"]);
    assert!(err.contains("greet, slow, ponder, count_from, now, last"), "{err}");

    called_over_http(dir);

    // The component behaves as in its tests: nothing wraps silently.
    let most = u64::MAX.to_string();
    let err = refused(dir, 5, "panicked", &["send", "hello/alice", "count_from", &most]);
    assert!(err.contains("overflow"), "{err}");
    let err = refused(dir, 5, "panicked", &["send", "hello/alice", "now"]);
    assert!(err.contains("use `ostraca_sdk::clock`"), "{err}");
    let args = ["send", "hello/alice", "greet", "\" \"", "--output", "json"];
    let (_, _, err) = run(dir, &args);
    let error: serde_json::Value = serde_json::from_str(&err).expect("JSON");
    assert!(error["error"]["details"]["version"].is_u64(), "{error}");

    completes(dir, &["activ"], "activate");
    completes(dir, &["send", "he"], "hello/");
    completes(dir, &["methods", ""], "hello");
    completes(dir, &["send", "hello/alice", "c"], "count_from");
    completes(dir, &["tell", "hello/alice", ""], "greet slow count_from");

    outcome_in_doubt(dir);
    query_without_an_answer(dir);

    let status: serde_json::Value =
        serde_json::from_str(&ok(dir, &["status", "--output", "json"])).expect("JSON");
    assert_eq!((&status["healthy"], &status["node"]), (&true.into(), &"dev".into()));
    assert!(ok(dir, &["status"]).ends_with("no problems found\n"));
    let methods = ok(dir, &["methods", "hello"]);
    assert!(methods.contains("greet(text: string) -> integer "), "{methods}");
    assert!(methods.contains("last() -> string"), "{methods}");
    values_are_shown(dir);
    incompatible_schema_is_reported(dir, &source);
    assert_eq!(node.stop(), Some(0));
    refused(dir, 3, "no-node-reachable", &["send", "hello/alice", "last"]);

    let node = Node::start(dir, &["dev"]);
    assert_eq!(ok(dir, &["send", "hello/alice", "last"]), "\"\"\n");
    exported_and_imported(dir);
    refused(dir, 5, "type-in-use", &["undeploy", "hello"]);
    let undeployed = ok(dir, &["undeploy", "hello", "--delete-state"]);
    assert!(undeployed.contains("hello is undeployed; its last revision was"), "{undeployed}");
    refused(dir, 5, "unknown-type", &["send", "hello/alice", "last"]);
    assert_eq!(node.stop(), Some(0));
}

/// The gateway and the token that `dev` makes are enough for a call by any HTTP client.
fn called_over_http(dir: &Path) {
    let read = |name: &str| std::fs::read_to_string(dir.join(".ostraca").join(name)).expect(name);
    let mode = std::fs::metadata(dir.join(".ostraca/token")).expect("a token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (address, token) = (read("http-address"), read("token"));
    let call = |authorization: &str| {
        let mut stream = std::net::TcpStream::connect(address.trim()).expect("a connection");
        let request = format!(
            "GET /v1/default/hello/alice/call/last HTTP/1.1\r\nhost: {}\r\n{authorization}connection: close\r\n\r\n",
            address.trim()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("received");
        response
    };
    let response = call(&format!("authorization: Bearer {token}\r\n"));
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("\"hello\""), "{response}");
    assert!(call("").starts_with("HTTP/1.1 401 "));
}

/// A deadline passes while the turn runs: the outcome is unknown, and the printed command retrieves it.
fn outcome_in_doubt(dir: &Path) {
    let args = ["send", "hello/alice", "slow", "3000000000", "--timeout", "300ms"];
    let (code, out, err) = run(dir, &args);
    assert_eq!((code, out.as_str()), (Some(6), ""), "{err}");
    assert!(err.contains("`ostraca status`"), "{err}");
    let again = err.lines().find_map(|line| line.trim().strip_prefix("ostraca ")).expect(&err);
    let mut args: Vec<_> = again.split(' ').collect();
    assert_eq!(args[..5], ["send", "hello/alice", "slow", "3000000000", "--id"]);
    args.extend(["--timeout", "60s"]);
    assert_eq!(ok(dir, &args), "2\n");
    assert_eq!(ok(dir, &args), "2\n");
    let id = args[5];
    refused(dir, 5, "id-reused", &["send", "hello/alice", "greet", "\"other\"", "--id", id]);
}

/// What an import replaces is kept in a file, and nothing is deleted for a file that cannot be imported.
fn exported_and_imported(dir: &Path) {
    ok(dir, &["send", "hello/bob", "greet", "\"bob\""]);
    let last = |expected| assert_eq!(ok(dir, &["send", "hello/bob", "last"]), expected);
    let said = ok(dir, &["export", "hello/alice", "--file", "alice"]);
    assert!(said.starts_with("hello/alice at version "), "{said}");
    let import = ["import", "hello/bob", "--file", "alice"];
    let replace = [&import[..], &["--replace"]].concat();
    let err = refused(dir, 5, "entity-exists", &import);
    assert!(err.contains("--replace"), "{err}");

    // Neither an export that no message can hold, nor one whose journal begins beyond every number, deletes anything.
    let large =
        [&b"\x08\x01\x32\x88\x80\x80\x01\x0a\x01k\x12\x80\x80\x80\x01"[..], &[b'x'; 2 << 20]]
            .concat();
    let damaged = b"\x08\x01\x42\x0a\x08\x80\x80\x80\x80\x80\x80\x80\x80\x20";
    for (content, code, says) in
        [(&large[..], "message-too-large", "max-message"), (damaged, "invalid-import", "")]
    {
        std::fs::write(dir.join("refused"), content).expect("written");
        let import = ["import", "hello/bob", "--replace", "--file", "refused"];
        let err = refused(dir, 5, code, &import);
        assert!(err.contains(says), "{err}");
    }
    last("\"bob\"\n");

    ok(dir, &replace);
    last("\"\"\n");
    let err = refused(dir, 2, "file-error", &replace);
    assert!(err.contains("alice.replaced exists") && err.contains("move it away"), "{err}");
    std::fs::rename(dir.join("alice.replaced"), dir.join("bob")).expect("moved");
    ok(dir, &["import", "hello/bob", "--replace", "--file", "bob"]);
    last("\"bob\"\n");
    ok(dir, &["import", "hello/carl", "--file", "bob.replaced", "--replace"]);
    assert_eq!(ok(dir, &["send", "hello/carl", "last"]), "\"\"\n");
    assert!(!dir.join("bob.replaced.replaced").exists(), "there was nothing to keep");
}

fn inspected(dir: &Path, args: &[&str]) -> serde_json::Value {
    let args = [&["inspect", "hello/alice", "--output", "json"], args].concat();
    serde_json::from_str(&ok(dir, &args)).expect("JSON")
}

fn values_are_shown(dir: &Path) {
    let plain = inspected(dir, &[]);
    assert_eq!(plain["keys"][0].get("value"), None, "{plain}");
    let shown = inspected(dir, &["--values"]);
    assert_eq!(shown["keys"][0]["value"]["greetings"][0], "hello", "{shown}");
    assert!(ok(dir, &["inspect", "hello/alice", "--values"]).contains("{\"greetings\":[\"hello\""));
}

/// A deployed component that cannot read the entities' state is reported, and deploying the former one fixes it.
fn incompatible_schema_is_reported(dir: &Path, source: &Path) {
    let former = dir.join("hello/target/ostraca/hello.wasm");
    let kept = std::fs::read(&former).expect("the component");
    let text = std::fs::read_to_string(source).expect("the source");
    let changed =
        text.replacen("greetings: Vec<String>,", "greetings: Vec<String>,\n    mood: u8,", 1);
    assert_ne!(changed, text);
    std::fs::write(source, changed).expect("written");
    ok(dir, &["deploy", "--build", "hello"]);

    let err = refused(dir, 5, "state-does-not-decode", &["send", "hello/alice", "last"]);
    assert!(err.contains("missing field `mood`") && err.contains("previous component"), "{err}");
    let (code, out, _) = run(dir, &["status", "--output", "json"]);
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let problem = &status["problems"][0];
    assert_eq!((code, &problem["code"]), (Some(8), &"entities-failing".into()), "{status}");
    let text = problem["message"].as_str().expect("a message");
    assert!(text.contains("1 entity of `hello`") && text.contains("hello/alice"), "{text}");
    assert!(problem["help"].as_str().is_some_and(|it| it.contains("previous one")), "{status}");
    assert_eq!(status["metrics"]["failing_entities"], 1, "{status}");
    let failure = inspected(dir, &[])["last_failure"].clone();
    assert_eq!(
        (&failure["code"], &failure["consecutive_failures"]),
        (&"state-does-not-decode".into(), &1.into())
    );
    assert!(ok(dir, &["inspect", "hello/alice"]).contains("state-does-not-decode"));

    std::fs::write(source, text).expect("written");
    std::fs::write(&former, kept).expect("written");
    ok(dir, &["deploy", "hello"]);
    assert_eq!(ok(dir, &["send", "hello/alice", "last"]), "\"\"\n");
    assert!(ok(dir, &["status"]).ends_with("no problems found\n"));
    assert_eq!(inspected(dir, &[])["last_failure"], serde_json::Value::Null);
}

/// A deadline passes while a query runs: nothing is in doubt, whether or not the caller declared it as a query.
fn query_without_an_answer(dir: &Path) {
    for flags in [&[][..], &["--query"]] {
        let args = ["send", "hello/carol", "ponder", "3000000000", "--timeout", "500ms"];
        let err = refused(dir, 5, "query-unanswered", &[&args[..], flags].concat());
        assert!(err.contains("changed nothing") && err.contains("ostraca status"), "{err}");
        assert!(!err.contains("--id"), "{err}");
    }
}

/// Repeats the request until the answer is as expected.
fn until(dir: &Path, args: &[&str], wanted: impl Fn(Option<i32>, &serde_json::Value) -> bool) {
    let until = Instant::now() + TIMEOUT;
    loop {
        let (code, out, err) = run(dir, &[args, &["--output", "json"]].concat());
        let value = serde_json::from_str(&out).unwrap_or_default();
        if wanted(code, &value) {
            return;
        }
        assert!(Instant::now() < until, "{args:?}: {code:?} {out}{err}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Events of many shards are grouped into one line, unless each is requested.
fn many_shards_are_one_line(events: &str, each: &str) {
    let of_shards =
        |line: &&str| line.contains("shard-assigned") || line.contains("hand-off-started");
    assert!(each.lines().filter(of_shards).count() >= 24, "{each}");
    assert!(events.lines().filter(of_shards).count() < 8, "{events}");
    assert!(events.contains("16 shards assigned (n1 16)"), "{events}");
    let others = |text: &str| text.lines().filter(|line| line.contains("node-joined")).count();
    assert_eq!((others(events), others(each)), (2, 2), "{events}");
    // Each event has wall-clock time, like log lines.
    assert!(events.lines().all(|line| line.contains("Z  ") && line.contains("T")), "{events}");
}

#[test]
fn a_second_node_joins_drains_dies_and_returns() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(dir, &["init", "n1", "--node", "n1", "--listen", "127.0.0.1:0", "--shards", "16"]);
    let first = Node::start(dir, &["run", "--config", "n1/ostraca.toml"]);
    let at = first.address.as_str();
    ok(dir, &["ca", "issue", "client", "admin", "--ca", "n1/ca", "--out", "a", "--address", at]);
    let ask = |args: &[&'static str]| [args, &["--profile", "a/admin.toml"]].concat();
    let shares = |of: [u32; 2]| {
        move |_: Option<i32>, it: &serde_json::Value| {
            it["shards_by_owner"] == serde_json::json!({ "n1": of[0], "n2": of[1] })
        }
    };
    ok(dir, &["init", "n2", "--join", at, "--ca", "n1/ca", "--listen", "127.0.0.1:0"]);
    let second = Node::start(dir, &["run", "--config", "n2/ostraca.toml"]);
    until(dir, &ask(&["shards"]), shares([8, 8]));
    many_shards_are_one_line(&ok(dir, &ask(&["events"])), &ok(dir, &ask(&["events", "--shards"])));

    let drained = ok(dir, &ask(&["drain", "n2"]));
    assert!(drained.starts_with("n2 is drained: 8 shards"), "{drained}");
    let err = refused(dir, 1, "no-other-host", &ask(&["drain", "n1"]));
    assert!(err.contains("help:"), "{err}");
    ok(dir, &ask(&["drain", "n1", "--undo"]));
    ok(dir, &ask(&["drain", "n2", "--undo"]));
    until(dir, &ask(&["shards"]), shares([8, 8]));
    refused(dir, 2, "unknown-node", &ask(&["drain", "n3"]));

    // After a kill, the node's shards go to the other node, and the cluster is unhealthy until the node is back.
    drop(second);
    until(dir, &ask(&["status"]), |code, status| {
        code == Some(8) && status["problems"][0]["code"] == "node-dead"
    });
    until(dir, &ask(&["shards"]), |_, it| it["shards_by_owner"] == serde_json::json!({ "n1": 16 }));
    let args = ["run", "--config", "n2/ostraca.toml", "--join", at];
    let second = Node::start(dir, &args);
    until(dir, &ask(&["shards"]), shares([8, 8]));
    until(dir, &ask(&["status"]), |code, status| code == Some(0) && status["healthy"] == true);

    assert_eq!(second.stop(), Some(0));
    // Times are wall-clock times: the same from every node, whatever happens to cluster time.
    until(dir, &ask(&["nodes"]), |_, it| {
        let node = &it["nodes"][1];
        let since = node["registered_at"].as_str().is_some_and(|since| since.starts_with("20"));
        let age = node["registered_for_ms"].as_u64().is_some_and(|age| age < 600_000);
        node["status"] == "left" && since && age
    });
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn secrets_and_settings_are_set_listed_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(dir, &["init", "n1", "--node", "n1", "--listen", "127.0.0.1:0", "--shards", "16"]);
    let key = std::fs::metadata(dir.join("n1/ca/secret.key")).expect("a key");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let exists = ok(dir, &["secret", "key", "--ca", "n1/ca"]);
    assert!(exists.starts_with("n1/ca/secret.key exists already\n"), "{exists}");
    let node = Node::start(dir, &["run", "--config", "n1/ostraca.toml"]);
    let at = node.address.as_str();
    for name in ["admin", "bob"] {
        ok(dir, &["ca", "issue", "client", name, "--ca", "n1/ca", "--out", "c", "--address", at]);
    }
    let profile = ["--profile", "c/admin.toml"];
    let set = |text: &[u8], args: &[&str]| {
        let mut child = ostraca(dir, &[&["secret", "set"], args, &profile].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        // It ends without reading if it refuses the arguments.
        let _ = child.stdin.take().expect("its input").write_all(text);
        let output = child.wait_with_output().expect("ends");
        let shown = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(shown).expect("text"))
    };
    let expected = "secret api-key of shop is set\nnote: no type shop is deployed yet\n";
    assert_eq!(set(b"hidden\n", &["shop", "api-key"]), (Some(0), expected.into()));
    for (text, args, code) in [
        (&b"\n"[..], ["shop", "api-key"], "invalid-variable"),
        (b"hidden", ["shop", "api key"], "invalid-variable"),
        (b"hidden", ["sh/op", "api-key"], "invalid-variable"),
        (b"\xff", ["shop", "api-key"], "invalid-variable"),
        (&[b'x'; 65 << 10], ["shop", "api-key"], "variables-too-large"),
        (&[b'x'; 200 << 10], ["shop", "api-key"], "variables-too-large"),
    ] {
        let (exit, shown) = set(text, &args);
        assert!(shown.starts_with(&format!("{code}\n")), "{args:?}: {shown}");
        assert_eq!(exit, Some(2), "{args:?}: {shown}");
    }
    let admin = |args: &[&'static str]| [args, &profile].concat();
    ok(dir, &admin(&["setting", "set", "shop", "greeting", "good day"]));
    let listed = ok(dir, &admin(&["secret", "list", "shop"]));
    assert!(
        listed.starts_with("TYPE  SECRET ") && listed.contains("\nshop  api-key  "),
        "{listed}"
    );
    assert!(!listed.contains("hidden") && !listed.contains("greeting"), "{listed}");
    let listed = ok(dir, &admin(&["setting", "list", "shop"]));
    assert!(listed.contains("  greeting  good day  20") && !listed.contains("api-key"), "{listed}");
    let all = ok(dir, &admin(&["secret", "list"]));
    assert!(all.contains("\nshop  api-key  "), "{all}");
    let json = ok(dir, &admin(&["secret", "list", "shop", "--output", "json"]));
    assert!(json.contains("\"granted\": false") && !json.contains("\"value\""), "{json}");
    refused(dir, 5, "access-denied", &["secret", "list", "shop", "--profile", "c/bob.toml"]);
    let remove = admin(&["secret", "remove", "shop", "api-key"]);
    assert_eq!(ok(dir, &remove), "secret api-key of shop is removed\n");
    refused(dir, 2, "invalid-variable", &remove);
    assert_eq!(ok(dir, &admin(&["secret", "list", "shop"])), "shop has no secrets\n");
    let log = ok(dir, &admin(&["audit"]));
    assert!(log.contains("secret set") && log.contains("setting set"), "{log}");
    assert!(!log.contains("hidden") && !log.contains("good day"), "{log}");
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn a_policy_is_shown_checked_set_and_recovered() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(dir, &["init", "n1", "--node", "n1", "--listen", "127.0.0.1:0", "--shards", "16"]);
    let node = Node::start(dir, &["run", "--config", "n1/ostraca.toml"]);
    let at = node.address.as_str();
    for name in ["admin", "bob"] {
        ok(dir, &["ca", "issue", "client", name, "--ca", "n1/ca", "--out", "c", "--address", at]);
    }
    let admin = |args: &[&'static str]| [args, &["--profile", "c/admin.toml"]].concat();
    let bob = |args: &[&'static str]| [args, &["--profile", "c/bob.toml"]].concat();

    let shown = ok(dir, &admin(&["policy", "show"]));
    assert!(shown.starts_with("# default policy; none was set yet\n"), "{shown}");
    // What is shown is a policy.
    std::fs::write(dir.join("policy.toml"), &shown).expect("written");
    let checked = ok(dir, &["policy", "check", "policy.toml", "--principal", "client/bob"]);
    assert_eq!(
        checked,
        "policy.toml: valid\nclient/bob has the roles: client, viewer\n  on all types, and the cluster: command, query, view\n"
    );
    ok(dir, &bob(&["status"]));
    let refusal = refused(dir, 5, "access-denied", &bob(&["drain", "n1"]));
    assert!(refusal.contains("`operate` on all types") && refusal.contains("help:"), "{refusal}");
    refused(dir, 5, "access-denied", &bob(&["policy", "set", "policy.toml"]));
    let set = ok(dir, &admin(&["policy", "set", "policy.toml", "--expect-revision", "0"]));
    assert_eq!(set, "the policy now has revision 1\n");
    let twice = admin(&["policy", "set", "policy.toml", "--expect-revision", "0"]);
    refused(dir, 2, "policy-changed", &twice);
    assert!(ok(dir, &admin(&["policy", "show"])).starts_with("# revision 1\n"));

    let revoke = admin(&["revoke", "client/bob", "--reason", "gone", "--certificate", "c/bob.pem"]);
    let revoked = ok(dir, &revoke);
    assert!(revoked.starts_with("revoked: client/bob, certificate/"), "{revoked}");
    let refusal = refused(dir, 3, "revoked", &bob(&["nodes"]));
    assert!(refusal.contains("client/bob is revoked"), "{refusal}");
    let listed = ok(dir, &admin(&["revocations"]));
    assert!(listed.contains("client/bob") && listed.contains("client/admin  gone"), "{listed}");
    refused(dir, 2, "invalid-credential", &admin(&["revoke", "bob"]));
    let undo = admin(&["revoke", "client/bob", "--undo", "--certificate", "c/bob.pem"]);
    assert!(ok(dir, &undo).starts_with("accepted again: client/bob"));
    assert_eq!(ok(dir, &admin(&["revocations"])), "nothing is revoked\n");
    ok(dir, &bob(&["nodes"]));

    // A token, once the policy accepts the authority's tokens and grants their holder a role.
    let issuer = ok(dir, &["token", "key", "--ca", "n1/ca"]);
    let grant = "[[grants]]\nprincipals = [\"token/ostraca/carol\"]\nroles = [\"viewer\"]\n";
    std::fs::write(dir.join("tokens.toml"), format!("{shown}\n{grant}\n{issuer}"))
        .expect("written");
    ok(dir, &admin(&["policy", "set", "tokens.toml"]));
    let issue = ["token", "issue", "carol", "--ca", "n1/ca", "--ttl", "1h"];
    let issued = ok(dir, &[&issue[..], &["--out", "c", "--address", at]].concat());
    assert!(
        issued.starts_with("issued a token for token/ostraca/carol, valid until 20"),
        "{issued}"
    );
    ok(dir, &["status", "--profile", "c/carol.toml"]);
    let refusal = refused(dir, 5, "access-denied", &["drain", "n1", "--profile", "c/carol.toml"]);
    assert!(refusal.contains("`token/ostraca/carol` may not"), "{refusal}");
    let printed = ok(dir, &issue);
    assert_eq!((printed.matches('.').count(), printed.lines().count()), (2, 1), "{printed}");
    refused(dir, 2, "invalid-value", &["token", "issue", "carol", "--ca", "n1/ca", "--ttl", "31d"]);
    refused(dir, 2, "invalid-identity", &["token", "issue", "a/b", "--ca", "n1/ca"]);

    let log = ok(dir, &admin(&["audit", "--since", "1h"]));
    let revoked = log.lines().filter(|line| line.contains("client/admin  revoke"));
    // One for each credential, of which one was refused afterwards.
    assert_eq!(revoked.count(), 5, "{log}");
    assert!(log.starts_with("TIME ") && log.contains("  gone\n"), "{log}");
    refused(
        dir,
        5,
        "access-denied",
        &["policy", "set", "tokens.toml", "--profile", "c/carol.toml"],
    );
    let none = ok(dir, &admin(&["audit", "--principal", "token/ostraca/carol"]));
    assert_eq!(none, "nothing was asked for\n");

    // Nobody may change this one: only the node can.
    std::fs::write(dir.join("locked.toml"), "").expect("written");
    let check = ok(dir, &["policy", "check", "locked.toml", "--principal", "client/admin"]);
    assert!(check.contains("only a node can change this policy"), "{check}");
    assert!(check.contains("client/admin has no role and may do nothing"), "{check}");
    refused(dir, 2, "policy-lock-out", &admin(&["policy", "set", "locked.toml"]));
    ok(dir, &admin(&["policy", "set", "locked.toml", "--force"]));
    refused(dir, 5, "access-denied", &admin(&["policy", "show"]));
    // The node listens on a port of its own, which its configuration does not name.
    let config = std::fs::read_to_string(dir.join("n1/ostraca.toml")).expect("read");
    let config = config.replace("127.0.0.1:0", at);
    std::fs::write(dir.join("n1/ostraca.toml"), config).expect("written");
    ok(dir, &["policy", "set", "policy.toml", "--as-node", "n1"]);
    assert!(ok(dir, &admin(&["policy", "show"])).starts_with("# revision 4\n"));
    refused(dir, 3, "invalid-token", &["status", "--profile", "c/carol.toml"]);
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn a_node_made_by_init_runs_until_it_is_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(
        dir,
        &[
            "init",
            "n1",
            "--listen",
            "127.0.0.1:0",
            "--shards",
            "8",
            "--cluster",
            "c",
            "--node",
            "n",
        ],
    );
    assert_eq!(ok(dir, &["config", "check", "n1/ostraca.toml"]), "n1/ostraca.toml: valid\n");
    let node = Node::start(dir, &["run", "--config", "n1/ostraca.toml"]);
    assert_eq!(node.stop(), Some(0));
    ok(dir, &["ca", "issue", "client", "bob", "--ca", "n1/ca", "--out", "bob"]);
    refused(
        dir,
        2,
        "file-exists",
        &["ca", "issue", "client", "bob", "--ca", "n1/ca", "--out", "bob"],
    );
    refused(dir, 2, "directory-not-empty", &["init", "n1"]);
    // The store is gone: an empty directory never becomes a store implicitly (R5).
    std::fs::remove_dir_all(dir.join("n1/store")).expect("removed");
    refused(dir, 7, "store-missing", &["run", "--config", "n1/ostraca.toml"]);
    std::fs::create_dir(dir.join("n1/store")).expect("made");
    refused(dir, 7, "store-empty", &["run", "--config", "n1/ostraca.toml"]);
}
