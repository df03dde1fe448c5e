//! Tests commands on states that a real cluster has only for moments. A stub node answers as the test defines.
//! `tests/process/tests/texts.rs` covers what real nodes show and refuse. `BLESS=1 cargo test -p ostraca --test
//! cluster` rewrites the golden files; review them before you commit them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use ostraca_ca::Ca;
use ostraca_client::{
    AwakeReason, ChannelDetail, ChannelSubscriptions, ClusterStatus, DeadLetter, DeadLetters,
    DelayedTellDetail, EntityActivity, EntityDetail, EntityInfo, Event, Events, JournalDetail,
    NodeInfo, NodeIssue, NodeState, NodeStatus, Nodes, Problem, Profile, RebalancePlan,
    RebalanceProgress, ShardInfo, ShardMove, ShardState, StateKey, Status, StatusProblem,
    SubscriptionDetail, TellDetail, TimerDetail,
};
use ostraca_codes::codes;
use ostraca_core::ids::{ClusterId, Incarnation};
use ostraca_wire::hello::NodeDescriptor;
use ostraca_wire::proto::Entities;
use ostraca_wire::server::{
    AdminOperation, AdminOutput, AdminUpdate, ClientInfo, IncomingMessage, Server, Service,
    SessionInfo, update_channel,
};
use ostraca_wire::{Limits, problem};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Three nodes: one serves, one is draining, one is dead.
struct Stage;

impl Service for Stage {
    async fn handle_messages(&self, _: &Arc<SessionInfo>, batch: &mut Vec<IncomingMessage>) {
        batch.clear();
    }

    async fn handle_admin(
        &self,
        _: &Arc<ClientInfo>,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        let parts = match request {
            AdminOperation::Nodes => return Ok(AdminOutput::Nodes(nodes())),
            AdminOperation::Shards(_) => return Ok(AdminOutput::Shards(shards())),
            AdminOperation::Entities(_) => return Ok(AdminOutput::Entities(unanswered())),
            AdminOperation::Inspect(request) => {
                return Ok(AdminOutput::Entity(Box::new(detail(&request.id))));
            }
            AdminOperation::DeadLetters(_) => return Ok(AdminOutput::DeadLetters(dead_letters())),
            AdminOperation::RebalancePlan => return Ok(AdminOutput::RebalancePlan(plan())),
            AdminOperation::Status => return Ok(AdminOutput::Status(Box::new(status()))),
            AdminOperation::Node => {
                return Ok(AdminOutput::Node(NodeInfo {
                    node: "n1".into(),
                    version: "0.1.0".into(),
                    ..NodeInfo::default()
                }));
            }
            AdminOperation::Rebalance => [1, 2]
                .map(|moved| {
                    Ok(AdminUpdate::Rebalance(RebalanceProgress {
                        planned: 3,
                        moved,
                        in_flight: 2 - moved,
                        failed: moved / 2,
                        done: moved == 2,
                    }))
                })
                .into(),
            AdminOperation::Events(request) => {
                vec![Ok(AdminUpdate::Events(events(request.from_sequence)))]
            }
            _ => return Err(problem(codes::UNKNOWN_REQUEST, "not needed by these tests")),
        };
        let (sender, answer) = update_channel();
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

fn nodes() -> Nodes {
    let node = |name: &str, status: NodeStatus, shards| NodeState {
        name: name.into(),
        incarnation: "3-00000000deadbeef".into(),
        roles: vec!["manager".into(), "host".into(), "gateway".into()],
        addresses: vec![format!("10.0.0.{shards}:7411")],
        status: status.into(),
        version: "0.1.0".into(),
        registered_for_ms: 3_723_000,
        renewals: 4_964,
        store_available: name != "n2",
        shards,
        is_self: name == "n1",
        reachable: (name != "n1").then_some(name == "n3"),
        registered_at_unix_ms: 1_700_000_000_000,
        unanswered_keep_alives: if name == "n2" { 7 } else { 0 },
        unreachable: name == "n2",
    };
    Nodes {
        nodes: vec![
            node("n1", NodeStatus::Live, 84),
            node("n2", NodeStatus::Draining, 40),
            node("n3", NodeStatus::Dead, 4),
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
            ShardInfo {
                shard,
                epoch: 2,
                owner,
                state: state.into(),
                target_node: to,
                pool: "default".into(),
            }
        })
        .collect()
}

/// A page with entities of the third node, which does not respond to the queried node.
fn unanswered() -> Entities {
    let node = "n3".to_owned();
    let entity = EntityInfo {
        r#type: "counter".into(),
        id: "number 2".into(),
        shard: 200,
        version: 20,
        revision: 1,
        state_bytes: 1_400,
        active: None,
        owner: node.clone(),
    };
    let unanswered = vec![NodeIssue { node, reason: "n1 has no connection to it".into() }];
    Entities { entities: vec![entity], unresponsive_owners: unanswered, ..Entities::default() }
}

fn dead_letters() -> DeadLetters {
    let letter = |number, body: &'static [u8], size, failure: &str| DeadLetter {
        r#type: "order".into(),
        id: "17".into(),
        unix_ms: 1_764_000_000_000,
        body: body.into(),
        content_type: "application/json".into(),
        tell: Some(TellDetail {
            number,
            r#type: "account".into(),
            id: "alice".into(),
            method: "credit".into(),
            body_size: size,
            attempts: 10,
            failure: failure.into(),
        }),
    };
    DeadLetters {
        dead_letters: vec![
            letter(65_536, b"{\"amount\": 3}", 13, "trap: \u{1b}[31mno"),
            letter(65_537, &[0xff, 0x00], 5_000, "closed: the account is closed"),
        ],
        next_cursor: vec![0xab].into(),
    }
}

fn detail(id: &str) -> EntityDetail {
    EntityDetail {
        r#type: "counter".into(),
        id: id.into(),
        shard: 99,
        epoch: 4,
        owner: "n1".into(),
        exists: true,
        version: 12,
        revision: 2,
        last_commit_sequence: 8_191,
        lane_count: 3,
        unsettled_replies: 1,
        state_bytes: 2_048,
        key_count: 9,
        keys: vec![
            StateKey { key: "count".into(), size: 8, ..StateKey::default() },
            StateKey { key: "\u{1b}[31mred".into(), size: 2_040, ..StateKey::default() },
        ],
        active: Some(true),
        mailbox_length: Some(2),
        timer_count: 3,
        timers: vec![
            TimerDetail {
                name: "expire".into(),
                due_unix_ms: 1_800_000_000_000,
                payload_size: 5,
                ..TimerDetail::default()
            },
            TimerDetail {
                name: "report".into(),
                due_unix_ms: 1_800_000_060_000,
                interval_ms: 60_000,
                attempts: 2,
                failure: "trap: \u{1b}[31mred".into(),
                set_aside: true,
                ..TimerDetail::default()
            },
        ],
        journal: Some(JournalDetail {
            first_number: 101,
            next_number: 130,
            bytes: 4_096,
            snapshot_through: Some(100),
        }),
        remembered: true,
        channels: vec![
            ChannelDetail {
                name: "news".into(),
                next_number: 42,
                first_number: 33,
                bytes: 2_048,
                last_version: 40,
            },
            ChannelDetail {
                name: "typing".into(),
                next_number: 2,
                first_number: 2,
                ..ChannelDetail::default()
            },
        ],
        deleted: false,
        generation: 1,
        expires_unix_ms: None,
        outbox_count: 2,
        outbox: vec![TellDetail {
            number: 65_536,
            r#type: "counter".into(),
            id: "bob".into(),
            method: "add".into(),
            body_size: 10,
            ..TellDetail::default()
        }],
        delayed_tell_count: 1,
        delayed_tells: vec![DelayedTellDetail {
            name: "remind\u{7}".into(),
            due_unix_ms: 1_764_000_000_000,
            tell: Some(TellDetail {
                r#type: "mail".into(),
                id: "alice".into(),
                method: "send".into(),
                ..TellDetail::default()
            }),
            set_aside: false,
        }],
        dead_letter_count: 1,
        dead_letters: vec![TellDetail {
            number: 131_073,
            r#type: "counter".into(),
            id: "\u{1b}[31mred".into(),
            method: "take".into(),
            body_size: 3,
            attempts: 1,
            failure: "insufficient: only 2".into(),
        }],
        subscription_count: 3,
        channel_subscriptions: vec![
            ChannelSubscriptions { channel: "news".into(), count: 2 },
            ChannelSubscriptions { channel: "typing".into(), count: 1 },
        ],
        subscriptions: vec![
            SubscriptionDetail {
                channel: "news".into(),
                r#type: "reader".into(),
                id: "bob".into(),
                method: "receive".into(),
            },
            SubscriptionDetail {
                channel: "news".into(),
                r#type: "reader".into(),
                id: "\u{1b}[31mred".into(),
                method: "receive".into(),
            },
        ],
        activity: Some(EntityActivity {
            awake: vec![
                awake("messages", Some(2), None),
                awake("timer-due", None, Some(4_000)),
                awake("passivates", None, Some(61_000)),
            ],
            on_failure: "stop".into(),
            stopped_by: "trap: \u{1b}[31mred".into(),
            start_pause_ms: Some(250),
            failed_starts: 3,
        }),
        ..EntityDetail::default()
    }
}

fn awake(reason: &str, count: Option<u64>, ends_in_ms: Option<u64>) -> AwakeReason {
    AwakeReason { reason: reason.into(), count, ends_in_ms }
}

fn plan() -> RebalancePlan {
    let one = |shard, from: &str| ShardMove { shard, from: from.into(), to: "n3".into() };
    RebalancePlan {
        moves: vec![one(1, "n1"), one(2, "n1"), one(85, "n2")],
        blocked_reason: "no report from n2 for 4 s".into(),
    }
}

fn events(since: u64) -> Events {
    let event = |sequence, time_ms, kind: &str, text: &str, shard| Event {
        sequence,
        cluster_time_ms: time_ms,
        kind: kind.into(),
        message: text.into(),
        node: "n2".into(),
        shard,
        epoch: u64::from(shard > 0) * 3,
        unix_ms: 1_700_000_000_000 + time_ms,
        age_ms: 62_500 - time_ms,
    };
    Events {
        events: vec![
            event(7, 1_000, "node-joined", "node n2#3 joined", 0),
            event(8, 62_000, "shard-assigned", "shard 85 was assigned to n2#3, epoch 3", 85),
        ],
        missed: 6 - since.min(6),
        cluster_time_ms: 62_500,
    }
}

fn status() -> Status {
    Status {
        cluster_id: "0".repeat(32),
        node: "n1".into(),
        incarnation: "3-00000000deadbeef".into(),
        uptime_ms: 3_723_000,
        store: "sled at /var/lib/ostraca/store".into(),
        metrics: [
            ("turns".to_owned(), 3),
            ("queued_messages".to_owned(), 0),
            ("types".to_owned(), 2),
        ]
        .into(),
        info: [("cluster_name".to_owned(), "demo".to_owned())].into(),
        problems: vec![StatusProblem {
            code: "node-dead".into(),
            message: "1 node is dead: n3".into(),
            help: "start it again; `ostraca nodes` shows where it was".into(),
        }],
        cluster_status: Some(ClusterStatus {
            manager: "n1".into(),
            term: 5,
            term_age_ms: 60_000,
            nodes_live: 1,
            nodes_draining: 1,
            nodes_dead: 1,
            shards: 130,
            shards_assigned: 120,
            shards_unassigned: 6,
            shards_moving: 4,
            store_node: "n1".into(),
            store_available: true,
            since_renewal_ms: 400,
            lease_duration_ms: 3_000,
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
        let descriptor = NodeDescriptor {
            cluster: ca.cluster(),
            store_id: 7,
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
            descriptor,
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

    /// Runs a command and returns its exit code, standard output and standard error.
    fn ostraca(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::cargo_bin("ostraca").expect("the binary");
        command
            .current_dir(self.dir.path())
            .env_remove("RUST_LOG")
            .timeout(Duration::from_secs(60));
        command.env("OSTRACA_PROFILE", self.dir.path().join("profile.toml"));
        let output = command.args(args).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&self.address, "ADDRESS");
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// Compares a command's output, as text and as JSON, with the golden files of that name.
    fn shows(&self, name: &str, exit: i32, args: &[&str]) {
        for (name, format) in [(format!("{name}.txt"), "table"), (format!("{name}.json"), "json")] {
            let (code, out, err) = self.ostraca(&[&["--output", format], args].concat());
            assert_eq!((code, err.as_str()), (exit, ""), "{args:?}: {out}");
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
fn moving_and_unowned_shards_are_shown() {
    let theatre = Theatre::open();
    let (code, map, _) = theatre.ostraca(&["shards"]);
    assert_eq!(code, 0);
    same("shards.txt", &map);
    let (_, out, _) = theatre.ostraca(&["shards", "--output", "json"]);
    let all: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(all["shards_by_owner"], serde_json::json!({ "n1": 84, "n2": 40, "n3": 4 }));
    let moving = serde_json::json!({
        "shard": 121, "epoch": 2, "owner": "n2", "state": "moving", "target_node": "n1",
        "pool": "default",
    });
    assert_eq!(all["shards"][120], moving);
}

#[test]
fn nodes_and_events_of_every_kind_are_shown() {
    let theatre = Theatre::open();
    theatre.shows("nodes", 0, &["nodes"]);
    theatre.shows("events", 0, &["events"]);
}

#[test]
fn an_unhealthy_cluster_is_exit_code_8() {
    Theatre::open().shows("status", 8, &["status"]);
}

#[test]
fn entities_of_an_unresponsive_owner_come_from_the_store() {
    let theatre = Theatre::open();
    let args = &["entities", "--shard", "3"];
    let (code, out, err) = theatre.ostraca(args);
    assert_eq!(code, 3, "{out}{err}");
    same("entities-unanswered.txt", &out);
    same("entities-unanswered.err", &err);
    let (code, out, err) = theatre.ostraca(&[&["--output", "json"], &args[..]].concat());
    let (out, err): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(&out).expect("JSON"), serde_json::from_str(&err).expect("JSON"));
    assert_eq!((code, &err["error"]["code"]), (3, &"owner-unresponsive".into()));
    assert_eq!(out["unresponsive_owners"][0]["node"], "n3", "{out}");
}

#[test]
fn control_characters_in_keys_are_shown_as_escapes() {
    Theatre::open().shows("inspect", 0, &["inspect", "counter/alice"]);
}

#[test]
fn dead_letters_are_shown_with_their_reason_and_body() {
    let theatre = Theatre::open();
    theatre.shows("dead-letters", 0, &["dead-letters", "list", "--limit", "2"]);
    let args = ["dead-letters", "list", "order/17", "--values", "--limit", "2"];
    theatre.shows("dead-letters-values", 0, &args);
}

#[test]
fn a_blocked_or_partly_failed_rebalance_is_reported() {
    let theatre = Theatre::open();
    theatre.shows("plan", 0, &["rebalance", "--dry-run"]);
    theatre.shows("rebalance", 0, &["rebalance"]);
}
