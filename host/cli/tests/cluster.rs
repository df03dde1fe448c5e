//! The commands about a cluster, against a node that says what the test wants: states that a real cluster has for
//! moments only, and texts held against `golden/`. What a node refuses, it refuses here in a real one's sentences:
//! `tests/process/tests/texts.rs` holds those against the same files. `BLESS=1 cargo test -p ostraca --test cluster` writes them anew, to
//! be read before they are committed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use ostraca_client::{
    ClusterStatus, DrainProgress, EntityDetail, EntityInfo, Event, Events, Forgotten, Move,
    NodeInfo, NodeStanding, NodeState, Nodes, Problem, Profile, RebalancePlan, RebalanceProgress,
    ShardInfo, ShardState, StateKey, Status, StatusProblem, Unanswered,
};
use ostraca_sharding::ids::{ClusterId, Incarnation};
use ostraca_wire::hello::NodeFacts;
use ostraca_wire::identity::Ca;
use ostraca_wire::proto::{Entities, Outcome, Reply};
use ostraca_wire::server::{
    Admin, AdminAnswer, Part, Peer, Request, Server, Service, SessionInfo, growing,
};
use ostraca_wire::{Limits, problem};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Three nodes: one serves, one drains, one is dead.
struct Stage;

impl Service for Stage {
    async fn messages(&self, _: &Arc<SessionInfo>, batch: &mut Vec<Request>) {
        for request in batch.drain(..) {
            match request.envelope.method.as_str() {
                "get" => request.ticket.not_run(problem("wrong-kind", "`get` is a query")),
                _ => request.ticket.answer(Reply {
                    outcome: Outcome::Result.into(),
                    entity_version: 12,
                    ..Reply::default()
                }),
            }
        }
    }

    async fn admin(&self, _: &Arc<Peer>, request: Admin) -> Result<AdminAnswer, Problem> {
        let parts = match request {
            Admin::Nodes => return Ok(AdminAnswer::Nodes(nodes())),
            Admin::Shards => return Ok(AdminAnswer::Shards(shards())),
            Admin::Entities(request) if request.shard == 3 => {
                return Ok(AdminAnswer::Entities(unanswered()));
            }
            Admin::Entities(request) => {
                let from = request.after.first().map_or(1, |at| u32::from(*at));
                return Ok(AdminAnswer::Entities(entities(from, request.limit)));
            }
            Admin::Inspect(request) => {
                return Ok(AdminAnswer::Entity(Box::new(detail(&request.id))));
            }
            Admin::Plan => return Ok(AdminAnswer::Plan(plan())),
            Admin::Status => return Ok(AdminAnswer::Status(Box::new(status()))),
            Admin::Node => {
                return Ok(AdminAnswer::Node(NodeInfo {
                    node: "n1".into(),
                    version: "0.1.0".into(),
                    ..NodeInfo::default()
                }));
            }
            Admin::Forget { node } => return forget(node),
            Admin::Drain { node, undo } => drain(&node, undo),
            Admin::Rebalance => [1, 2]
                .map(|moved| {
                    Ok(Part::Rebalance(RebalanceProgress {
                        planned: 3,
                        moved,
                        in_flight: 2 - moved,
                        failed: moved / 2,
                        done: moved == 2,
                    }))
                })
                .into(),
            Admin::Events(request) => vec![Ok(Part::Events(events(request.since)))],
            _ => return Err(problem("unknown-request", "not on this stage")),
        };
        let (sender, answer) = growing();
        tokio::spawn(async move {
            for part in parts {
                if sender.send(part).await.is_err() {
                    return;
                }
            }
        });
        Ok(answer)
    }
}

fn forget(node: String) -> Result<AdminAnswer, Problem> {
    match node.as_str() {
        "n1" => {
            let text = "node `n1` lives: only one that is gone can be forgotten";
            let help = "stop it first, in good order with SIGTERM; one that died is marked dead within seconds by \
                        the manager";
            Err(Problem { help: help.into(), ..problem("node-live", text) })
        }
        "n3" => Ok(AdminAnswer::Forgotten(Forgotten { node, unchanged: false })),
        "n4" => Ok(AdminAnswer::Forgotten(Forgotten { node, unchanged: true })),
        _ => Err(problem("unknown-node", format!("the cluster has no node `{node}`"))),
    }
}

fn drain(node: &str, undo: bool) -> Vec<Result<Part, Problem>> {
    let part = |left, done| {
        let node = node.to_owned();
        Ok(Part::Drain(DrainProgress { node, total: 44, left, in_flight: left.min(32), done }))
    };
    match (node, undo) {
        (_, true) => vec![part(44, true)],
        ("n2", _) => vec![part(44, false), part(12, false), part(0, true)],
        ("n1", _) => {
            let mut none = problem("no-other-host", "no other node can take the shards of `n1`");
            none.help = "start another node with the role `host`, or undo another drain".into();
            vec![part(44, false), Err(none)]
        }
        // It never ends: the client is done with waiting.
        _ => (0..1_000).map(|_| part(7, false)).collect(),
    }
}

fn nodes() -> Nodes {
    let node = |name: &str, standing: NodeStanding, shards| NodeState {
        name: name.into(),
        incarnation: "3-00000000deadbeef".into(),
        roles: vec!["manager".into(), "host".into(), "gateway".into()],
        addresses: vec![format!("10.0.0.{shards}:7411")],
        standing: standing.into(),
        version: "0.1.0".into(),
        age_ms: 3_723_000,
        renewals: 4_964,
        store_answers: name != "n2",
        shards,
        answering: name == "n1",
        reachable: (name != "n1").then_some(name == "n3"),
        since_wall_ms: 1_700_000_000_000,
    };
    Nodes {
        nodes: vec![
            node("n1", NodeStanding::Live, 84),
            node("n2", NodeStanding::Draining, 40),
            node("n3", NodeStanding::Dead, 4),
        ],
        manager: "n1".into(),
        term: 5,
    }
}

fn shards() -> Vec<ShardInfo> {
    (1..=130)
        .map(|shard| {
            let (owner, state, to) = match shard {
                1..=80 => ("n1", ShardState::Serving, ""),
                81..=84 => ("n1", ShardState::Claiming, ""),
                85..=120 => ("n2", ShardState::Assigned, ""),
                121..=124 => ("n2", ShardState::Moving, "n1"),
                125..=128 => ("n3", ShardState::Unassigned, ""),
                _ => ("", ShardState::Unassigned, ""),
            };
            let (owner, to) = (owner.into(), to.into());
            ShardInfo { shard, epoch: 2, owner, state: state.into(), to }
        })
        .collect()
}

/// Seven entities, in pages of two whatever is asked for.
fn entities(from: u32, limit: u32) -> Entities {
    let until = (from + limit.min(2)).min(8);
    let entities = (from..until).map(|at| EntityInfo {
        r#type: "counter".into(),
        id: format!("number {at}"),
        shard: at * 100,
        version: 10 * u64::from(at),
        revision: 1,
        state_bytes: 700 * u64::from(at),
        live: [Some(true), Some(false), None][at as usize % 3],
        owner: ["n1", "n2", ""][at as usize % 3].into(),
    });
    let next = if until == 8 { Vec::new() } else { vec![u8::try_from(until).expect("small")] };
    Entities { entities: entities.collect(), next: next.into(), unanswered: Vec::new() }
}

/// A page of the third node's, which does not answer the one that was asked.
fn unanswered() -> Entities {
    let node = "n3".to_owned();
    let mut page = entities(2, 1);
    for entity in &mut page.entities {
        (entity.owner, entity.live) = (node.clone(), None);
    }
    page.next = page.next.slice(..0);
    page.unanswered = vec![Unanswered { node, why: "n1 has no connection to it".into() }];
    page
}

fn detail(id: &str) -> EntityDetail {
    let nobody = EntityDetail {
        r#type: "counter".into(),
        id: id.into(),
        shard: 99,
        epoch: 4,
        owner: "n1".into(),
        live: Some(false),
        ..EntityDetail::default()
    };
    match id {
        "nobody" => nobody,
        "silent" => EntityDetail {
            exists: true,
            version: 2,
            owner: "n3".into(),
            live: None,
            unanswered: Some(Unanswered { node: "n3".into(), why: "no answer within 2s".into() }),
            ..nobody
        },
        _ => EntityDetail {
            exists: true,
            version: 12,
            revision: 2,
            sequence: 8_191,
            lanes: 3,
            unsettled: 1,
            state_bytes: 2_048,
            keys_total: 9,
            keys: vec![
                StateKey { key: "count".into(), size: 8, ..StateKey::default() },
                StateKey { key: "\u{1b}[31mred".into(), size: 2_040, ..StateKey::default() },
            ],
            live: Some(true),
            waiting: Some(2),
            ..nobody
        },
    }
}

fn plan() -> RebalancePlan {
    let one = |shard, from: &str| Move { shard, from: from.into(), to: "n3".into() };
    RebalancePlan {
        moves: vec![one(1, "n1"), one(2, "n1"), one(85, "n2")],
        held_up: "n2 was not heard of for 4 s".into(),
    }
}

fn events(since: u64) -> Events {
    let event = |sequence, time_ms, kind: &str, text: &str, shard| Event {
        sequence,
        time_ms,
        kind: kind.into(),
        text: text.into(),
        node: "n2".into(),
        shard,
        epoch: u64::from(shard > 0) * 3,
        wall_ms: 1_700_000_000_000 + time_ms,
        age_ms: 62_500 - time_ms,
    };
    Events {
        events: vec![
            event(7, 1_000, "node-joined", "n2 joined (life 3)", 0),
            event(8, 62_000, "shard-assigned", "shard 85 is n2's, epoch 3", 85),
        ],
        missed: 6 - since.min(6),
        now_ms: 62_500,
    }
}

fn status() -> Status {
    Status {
        cluster: "0".repeat(32),
        node: "n1".into(),
        incarnation: "3-00000000deadbeef".into(),
        uptime_ms: 3_723_000,
        store: "sled at /var/lib/ostraca/store".into(),
        numbers: [("turns".to_owned(), 3), ("queued".to_owned(), 0), ("types".to_owned(), 2)]
            .into(),
        texts: [("cluster_name".to_owned(), "demo".to_owned())].into(),
        problems: vec![StatusProblem {
            code: "node-dead".into(),
            text: "1 node is dead: n3".into(),
            help: "start it again; `ostraca nodes` shows where it was".into(),
        }],
        overview: Some(ClusterStatus {
            manager: "n1".into(),
            term: 5,
            manager_for_ms: 60_000,
            nodes_live: 1,
            nodes_draining: 1,
            nodes_dead: 1,
            shards: 130,
            shards_assigned: 120,
            shards_unassigned: 6,
            shards_moving: 4,
            store_node: "n1".into(),
            store_answers: true,
            lease_age_ms: 400,
            lease_ms: 3_000,
        }),
    }
}

struct Theatre {
    dir: TempDir,
    address: String,
    _runtime: Runtime,
}

impl Theatre {
    fn open() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let ca = Ca::create(ClusterId(7)).expect("an authority");
        let facts = NodeFacts {
            cluster: ca.cluster(),
            store: 7,
            node: "n1".into(),
            incarnation: Incarnation { counter: 3, nonce: 2 },
        };
        let (identity, trust) = (ca.issue_node("n1", &[]), ca.trust());
        let guard = runtime.enter();
        let server = Server::bind(
            "127.0.0.1:0".parse().expect("an address"),
            "listen",
            &identity.expect("an identity"),
            &trust.expect("trust"),
            Limits::default(),
            facts,
            Arc::new(Stage),
        );
        let server = server.expect("bound");
        let address = server.local_addr().expect("an address").to_string();
        runtime.spawn(async move { server.run().await });
        drop(guard);
        let dir = tempfile::tempdir().expect("a directory");
        let client = ca.issue_client("test").expect("an identity");
        let profile = Profile::new(vec![address.clone()], ca.certificate_pem(), &client);
        profile.save(&dir.path().join("profile.toml")).expect("saved");
        Self { dir, address, _runtime: runtime }
    }

    /// Runs a command: exit code, standard output, standard error.
    fn ostraca(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = Command::cargo_bin("ostraca").expect("the binary");
        command
            .current_dir(self.dir.path())
            .env_remove("RUST_LOG")
            .timeout(Duration::from_secs(60));
        command.env("OSTRACA_PROFILE", self.dir.path().join("profile.toml"));
        let output = command.args(words).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&self.address, "ADDRESS");
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// The same for people and for programs, held against the golden texts of that name.
    fn shows(&self, name: &str, exit: i32, words: &[&str]) {
        for (name, format) in [(format!("{name}.txt"), "table"), (format!("{name}.json"), "json")] {
            let (code, out, err) = self.ostraca(&[&["--output", format], words].concat());
            assert_eq!((code, err.as_str()), (exit, ""), "{words:?}: {out}");
            same(&name, &out);
        }
    }
}

fn same(name: &str, text: &str) {
    let file: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cluster").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, text).expect("written");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, golden, "{name}");
}

#[test]
fn a_cluster_is_shown_to_people_and_to_programs() {
    let theatre = Theatre::open();
    theatre.shows("nodes", 0, &["nodes"]);
    theatre.shows("entities", 0, &["entities", "counter", "--limit", "5"]);
    theatre.shows("entities-rest", 0, &["entities", "counter", "--after", "06"]);
    theatre.shows("inspect", 0, &["inspect", "counter/alice"]);
    theatre.shows("inspect-nobody", 0, &["inspect", "counter/nobody"]);
    theatre.shows("events", 0, &["events"]);
    theatre.shows("plan", 0, &["rebalance", "--dry-run"]);
    let (code, map, _) = theatre.ostraca(&["shards"]);
    same("shards.txt", &map);
    let (listed, list, _) = theatre.ostraca(&["shards", "--list"]);
    assert_eq!((code, listed, list.lines().count()), (0, 0, 131));
    let (_, out, _) = theatre.ostraca(&["shards", "--output", "json"]);
    let all: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(all["counts"], serde_json::json!({ "n1": 84, "n2": 40, "n3": 4 }));
    let moving = serde_json::json!({
        "shard": 121, "epoch": 2, "owner": "n2", "state": "moving", "to": "n1",
    });
    assert_eq!(all["shards"][120], moving);
    let (code, _, err) = theatre.ostraca(&["entities", "--after", "0x"]);
    assert!(code == 2 && err.starts_with("bad-cursor\n"), "{err}");
}

#[test]
fn a_cluster_that_is_not_well_is_exit_code_8() {
    Theatre::open().shows("status", 8, &["status"]);
}

#[test]
fn a_node_that_does_not_say_what_it_has_in_memory_is_named_and_the_rest_is_shown() {
    let theatre = Theatre::open();
    for (name, words) in [
        ("entities-unanswered", &["entities", "--shard", "3"][..]),
        ("inspect-unanswered", &["inspect", "counter/silent"]),
    ] {
        let (code, out, err) = theatre.ostraca(words);
        assert_eq!(code, 3, "{out}{err}");
        same(&format!("{name}.txt"), &out);
        same(&format!("{name}.err"), &err);
        let (code, out, err) = theatre.ostraca(&[&["--output", "json"], words].concat());
        let (out, err): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&out).expect("JSON"), serde_json::from_str(&err).expect("JSON"));
        assert_eq!((code, &err["error"]["code"]), (3, &"node-silent".into()));
        let who = [&out["unanswered"][0]["node"], &out["unanswered"]["node"]];
        assert!(who.contains(&&"n3".into()), "{out}");
    }
}

#[test]
fn a_node_that_is_gone_is_forgotten_and_one_that_lives_is_not() {
    let theatre = Theatre::open();
    theatre.shows("forget", 0, &["forget", "n3"]);
    theatre.shows("forget-again", 0, &["forget", "n4"]);
    let (code, out, err) = theatre.ostraca(&["forget", "n1"]);
    assert_eq!((code, out.as_str()), (2, ""));
    same("forget-live.err", &err);
    let (code, _, err) = theatre.ostraca(&["forget", "n33"]);
    assert!(
        code == 2
            && err.starts_with(
                "unknown-node
"
            ),
        "{err}"
    );
}

#[test]
fn a_drain_and_a_rebalance_are_followed_to_their_end() {
    let theatre = Theatre::open();
    theatre.shows("drain", 0, &["drain", "n2"]);
    theatre.shows("drain-undo", 0, &["drain", "n2", "--undo"]);
    theatre.shows("rebalance", 0, &["rebalance"]);
}

#[test]
fn a_drain_that_cannot_end_says_what_to_do() {
    let theatre = Theatre::open();
    let (code, out, err) = theatre.ostraca(&["drain", "n1"]);
    assert_eq!((code, out.as_str()), (1, ""));
    same("drain-no-host.err", &err);
    let (code, out, err) = theatre.ostraca(&["drain", "n3", "--timeout", "300ms"]);
    assert_eq!((code, out.as_str()), (1, ""));
    same("drain-unfinished.err", &err);
    let (code, out, err) = theatre.ostraca(&["drain", "n22"]);
    assert_eq!((code, out.as_str()), (2, ""));
    same("drain-unknown.err", &err);
}

#[test]
fn a_tell_is_acknowledged_and_a_query_is_none() {
    let theatre = Theatre::open();
    let (code, out, _) = theatre.ostraca(&["tell", "counter/alice", "add", "1"]);
    assert_eq!((code, out.as_str()), (0, "done, version 12\n"));
    let words = ["tell", "counter/alice", "add", "1", "--output", "json"];
    let (code, out, _) = theatre.ostraca(&words);
    let told: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(code == 0 && told["version"] == 12 && told["id"].is_string(), "{out}");
    let (code, out, err) = theatre.ostraca(&["tell", "counter/alice", "get"]);
    assert_eq!((code, out.as_str()), (5, ""));
    same("tell-query.err", &err);
}
