//! Malicious components and guests on a real node: the node survives each of them, other entities still answer, and
//! the refusal names the limit.

#[path = "../../../../host/wasm/tests/common/handmade.rs"]
mod handmade;

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use handmade::{doubling, nested_loops, with_nested};
use ostraca_client::{AdminError, CallOptions, Client, Entity, Problem, Session};
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::zoo::{self, Sink};
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};

/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(60);
const MANIFEST: &str = "type = \"odd\"\ncomponent = \"odd.wasm\"\n";

struct World {
    home: NodeDir,
    node: NodeProcess,
    client: Client,
    neighbour: Session,
}

impl World {
    async fn start(name: &str, settings: &str) -> Self {
        let home = NodeDir::init(name).expect("init");
        home.set(settings).expect("settings");
        let node = NodeProcess::start(&home).expect("start");
        let client = Client::connect(home.profile(node.address).expect("profile")).await;
        let client = client.expect("connect");
        deploy_example(&client, "counter").await.expect("deploy");
        let neighbour = client.session();
        Self { home, node, client, neighbour }
    }

    async fn neighbour_answers(&self, after: &str) {
        let entity = Entity::new("counter", "neighbour");
        let answer = self.neighbour.command(&entity, "add", "1").await;
        assert!(answer.is_ok(), "after {after}, the neighbour answered {answer:?}");
    }

    async fn refused(&self, component: Vec<u8>) -> Problem {
        match self.client.deploy(MANIFEST, component.into(), None).await {
            Err(AdminError::Refused(problem)) => *problem,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }
}

/// The number of running child processes of a process.
fn children(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the node runs");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let path = task.ok()?.path().join("children");
        Some(std::fs::read_to_string(path).ok()?.split_whitespace().count())
    };
    tasks.filter_map(of).sum()
}

/// The peak memory of a process in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the node runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_self_multiplying_component_is_refused_by_its_count() {
    let world = World::start("multiplies", "").await;
    let before = peak_kib(world.node.pid());
    let problem = world.refused(with_nested(&doubling(26))).await;
    assert_eq!(problem.code, "too-many-core-instances", "{problem:?}");
    assert!(problem.message.contains("core-instances in [components] allows 64"), "{problem:?}");
    assert!(problem.help.contains("`core-instances`"), "{problem:?}");
    let more = peak_kib(world.node.pid()) - before;
    assert!(more < 64 << 10, "the node used {more} KiB");
    world.neighbour_answers("doubling instances").await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_compilation_delays_nobody_and_ends_with_its_client() {
    let world = World::start("compiles-long", "").await;
    let profile = world.home.profile(world.node.address).expect("profile");
    let attacker = Client::connect(profile).await.expect("connect");
    let attack = tokio::spawn(async move {
        attacker.deploy(MANIFEST, nested_loops(20_000).into(), None).await.map(drop)
    });
    let until = Instant::now() + TIMEOUT;
    while children(world.node.pid()) == 0 {
        assert!(Instant::now() < until && !attack.is_finished(), "no compilation started");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.neighbour_answers("a compilation began").await;
    deploy_guest(&world.client, "misbehaving", "").await.expect("another deploy succeeds");
    assert!(!attack.is_finished(), "the compilation should still be running");
    // The client disconnects: nobody waits for the compiler any more.
    attack.abort();
    while children(world.node.pid()) > 0 {
        assert!(Instant::now() < until, "the compiler is still running");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.neighbour_answers("it was abandoned").await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compilation_beyond_its_bounds_is_refused_by_name() {
    let bounds = "[compiler]\ntimeout = \"2 s\"\nmax-memory = \"160 MiB\"";
    let world = World::start("compiles-bounded", "").await;
    world.client.close().await;
    world.node.stop().expect("it stops");
    world.home.set(bounds).expect("settings");
    let node = NodeProcess::start(&world.home).expect("start");
    let client = Client::connect(world.home.profile(node.address).expect("profile")).await;
    let client = client.expect("connect");
    let world = World { neighbour: client.session(), client, node, ..world };
    let slow = world.refused(nested_loops(10_000)).await;
    assert!(["compile-time-limit", "compile-memory-limit"].contains(&&*slow.code), "{slow:?}");
    assert!(slow.message.contains("in [compiler]") && !slow.help.is_empty(), "{slow:?}");
    world.neighbour_answers("a compilation beyond its bounds").await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_texts_are_truncated_and_forge_nothing() {
    let world = World::start("texts", "").await;
    let limits = "[limits]\nmemory = \"64 MiB\"\nactivation-time = \"30 s\"";
    deploy_guest(&world.client, "misbehaving", limits).await.expect("deploy");
    let session = world.client.session();
    let send = async |id: &str, method: &str, body: &str| {
        let entity = Entity::new("misbehaving", id);
        let error = session.command(&entity, method, body.to_owned()).await.expect_err("it fails");
        (error.code().to_owned(), error.to_string())
    };
    let logged = world.node.log().len();
    for (id, expected) in [("long-start", "start-failed"), ("huge-start", "value-too-large")] {
        let (code, text) = send(id, "add", "{\"key\":\"k\",\"by\":1}").await;
        assert_eq!(code, expected, "{id}");
        assert!(text.len() < 5_000, "{} bytes", text.len());
    }
    assert!(world.node.log().len() - logged < 64 << 10, "the log is truncated too");
    world.neighbour_answers("a huge error").await;
    for (id, what, expected) in [
        ("control-start", "reply", "start-failed"),
        ("e", "panic", "panicked"),
        ("e", "code", "invalid-error-code"),
    ] {
        let (code, text) = send(id, "control", &format!("{what:?}")).await;
        assert_eq!(code, expected, "{text}");
        assert!(!text.contains(['\n', '\u{1b}', '\r', '\u{202e}']), "{text:?}");
    }
    let profile = world.home.profile(world.node.address).expect("profile");
    profile.save(&world.home.dir().join("profile.toml")).expect("saved");
    let entity = Entity::new("misbehaving", "e\nf\u{1b}[2J");
    session.command(&entity, "control", "\"log\"").await.expect("it logs");
    for (what, id) in [("refuse", "e"), ("panic", "x\u{1b}[2J\ny")] {
        let words = ["send", &format!("misbehaving/{id}"), "control", &format!("{what:?}")];
        for format in ["table", "json"] {
            let output = world.home.command(&[&words[..], &["--output", format]].concat());
            let error = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
            assert!(error.contains("forged"), "{error}");
            assert!(!error.lines().any(|line| line.starts_with("2026-01-01")), "{error}");
            assert!(!error.contains(['\u{1b}', '\r', '\u{7}', '\0', '\u{202e}']), "{error:?}");
        }
    }
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = CallOptions {
        traceparent: format!("{trace}\n2026-01-01T00:00:00Z forged{}", "x".repeat(10_000)),
        ..CallOptions::default()
    };
    session.send(&Entity::new("misbehaving", "e"), "control", "\"panic\"", &options).await.ok();
    let log = world.node.log();
    let line = log.lines().find(|line| line.contains(trace)).expect("a failure names its trace");
    assert!(line.contains("origin=\"node-1\" ") && line.len() < 4_000, "{line}");
    assert!(log.contains("forged: all is well"), "the log contains the text");
    assert!(!log.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z")), "a forged line");
    assert!(!log.contains(['\r', '\u{7}', '\0', '\u{202e}']), "unescaped control characters");
    world.neighbour_answers("control characters").await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deceptively_harmless_guests_affect_no_neighbour() {
    let world = World::start("harmless", "").await;
    deploy_guest(&world.client, "misbehaving", "").await.expect("deploy");
    let session = world.client.session();
    let short = CallOptions { timeout: Duration::from_secs(2), ..CallOptions::default() };
    for _ in 0..5 {
        // Calls `passivate` before its first message.
        let entity = Entity::new("misbehaving", "passivate-start");
        let add = session.send(&entity, "add", "{\"key\":\"k\",\"by\":1}", &short);
        world.neighbour_answers("a start that asks to be dropped").await;
        // The call completes, regardless of the outcome.
        let _ = add.await;
    }
    world.neighbour_answers("a start that asks to be dropped").await;
    // Many small keys, written as fast as possible.
    let entity = Entity::new("misbehaving", "keys");
    for _ in 0..3 {
        let fill = session.command(&entity, "fill", "{\"keys\":5000,\"bytes\":1}").await;
        assert_eq!(fill.expect_err("more keys than a turn may write").code(), "turn-too-large");
        world.neighbour_answers("five thousand small keys").await;
    }
    world.client.close().await;
}

/// The functions that `wit/` offers to guests, such as `state.get`.
fn host_functions() -> Vec<String> {
    let exports = ["types", "methods", "handler", "stop", "schemas", "timer-handler", "migration"];
    let file = artifacts::root().join("wit/ostraca-entity.wit");
    let (mut interface, mut found) = (String::new(), Vec::new());
    for line in std::fs::read_to_string(file).expect("the WIT").lines() {
        if let Some(name) = line.strip_prefix("interface ") {
            interface = name.trim_end_matches(" {").to_owned();
        } else if let Some((name, _)) = line.trim().split_once(": func(")
            && !exports.contains(&&*interface)
        {
            found.push(format!("{interface}.{}", name.trim_start_matches('%')));
        }
    }
    found
}

#[tokio::test]
async fn every_host_function_has_an_attack() {
    let attacks = zoo::attacks(&Sink::start().await.expect("a server"));
    let attacked: Vec<_> = attacks.iter().flat_map(|it| it.functions.split(", ")).collect();
    let functions = host_functions();
    assert!(functions.len() > 30, "{functions:?}");
    let is_attacked = |function: &&String| {
        let of_interface = function.split_once('.').map(|(interface, _)| format!("{interface}.*"));
        attacked.iter().any(|it| it == *function || Some(*it) == of_interface.as_deref())
    };
    let missing: Vec<_> = functions.iter().filter(|it| !is_attacked(it)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The attacks, in a short version of `make bench ONLY=ZOO`: each ends in a permitted way, and neighbours are served
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attacks_end_at_their_limit_and_neighbours_answer() {
    let world = World::start("zoo", zoo::SETTINGS).await;
    let sink = Sink::start().await.expect("a server");
    deploy_guest(&world.client, "misbehaving", &zoo::manifest(&sink)).await.expect("deploy");
    let attacks = zoo::attacks(&sink);
    let rounds = attacks.iter().flat_map(|attack| (0..attack.kinds()).map(move |n| (attack, n)));
    let client = &world.client;
    let attacking = stream::iter(rounds)
        .map(|(attack, round)| async move {
            let end = attack.round(client, round).await;
            (!attack.ends.contains(&&*end)).then(|| format!("{}: {end}", attack.name))
        })
        .buffer_unordered(4)
        .filter_map(async |wrong| wrong)
        .collect::<Vec<_>>();
    let wrong = {
        let mut attacking = pin!(attacking);
        loop {
            tokio::select! {
                wrong = &mut attacking => break wrong,
                () = world.neighbour_answers("attacks began") => {}
            }
        }
    };
    assert!(wrong.is_empty(), "{wrong:#?}");
    world.neighbour_answers("all attacks").await;
    world.client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_beyond_the_nodes_ceilings_is_refused() {
    let settings = "[guests]\nmemory-ceiling = \"128 MiB\"\nturn-time-ceiling = \"1 s\"";
    let world = World::start("ceilings", settings).await;
    let counter = artifacts::component("counter").expect("component");
    let deploy = async |limit: &str, component: Bytes| {
        let manifest = format!("{MANIFEST}[limits]\n{limit}\n");
        world.client.deploy(&manifest, component, None).await
    };
    for (limit, code, expected_text) in [
        ("memory = \"129 MiB\"", "memory-ceiling", "128 MiB"),
        ("turn-time = \"2 s\"", "turn-time-ceiling", "1 s"),
    ] {
        match deploy(limit, counter.clone()).await {
            Err(AdminError::Refused(problem)) => {
                assert_eq!(problem.code, code, "{problem:?}");
                assert!(problem.message.contains(expected_text), "{problem:?}");
            }
            other => panic!("{limit}: {other:?}"),
        }
    }
    deploy("memory = \"128 MiB\"\nturn-time = \"1 s\"", counter).await.expect("within them");
    world.client.close().await;
}
