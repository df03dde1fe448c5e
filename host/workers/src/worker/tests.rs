//! Drives a worker step by step, with a memory store and a real guest: nothing happens unless a test drives it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use ostraca_catalog::ClusterClock;
use ostraca_codes::codes;
use ostraca_config::Manifest;
use ostraca_core::ids::{ClusterId, Epoch, Incarnation, MessageDigest, MessageId, ScopedSessionId};
use ostraca_core::message::{Message, Outcome};
use ostraca_core::quota::Full;
use ostraca_core::records::GuestReply;
use ostraca_core::rows::Member;
use ostraca_core::shard::{OperatorCommand, Ownership, Settings, SlotLimits};
use ostraca_store::{EntityStore, MemoryStore};
use ostraca_wire::server::Charge;

mod panics;

use super::*;
use crate::recording::replay;
use crate::{Caller, EntityInspection, EntityMessageContent, ReplySink};

#[derive(Default)]
struct RecordedReplies(Mutex<Vec<(u64, Outcome, Epoch)>>, Mutex<Vec<EntityMessage>>);

impl ReplySink for RecordedReplies {
    fn deliver_replies(&self, replies: &mut Vec<WorkerReply>) {
        let reported =
            replies.drain(..).map(|reported| (reported.tag, reported.outcome, reported.epoch));
        self.0.lock().expect("the lock is not poisoned").extend(reported);
    }

    fn send_messages(&self, messages: &mut Vec<EntityMessage>) {
        self.1.lock().expect("the lock is not poisoned").append(messages);
    }
}

enum TestCaller {
    Waits,
    Gone,
}

impl Caller for TestCaller {
    fn is_abandoned(&self) -> bool {
        matches!(self, Self::Gone)
    }
}

struct TestWorker {
    worker: Worker,
    reports: mpsc::UnboundedReceiver<WorkerReport>,
    replies: Arc<RecordedReplies>,
    sent: u64,
    folder: tempfile::TempDir,
}

impl TestWorker {
    fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new(1, ClusterId(1), "test")))
    }

    fn over(store: Arc<dyn EntityStore>) -> Self {
        Self::with_memory(store, u64::MAX)
    }

    fn with_memory(store: Arc<dyn EntityStore>, max_instance_memory: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (reports, heard_reports) = mpsc::unbounded_channel();
        let recorded = Arc::new(RecordedReplies::default());
        let recorder = Recorder::create(folder.path(), 0, 1).expect("a recorder");
        let parts = WorkerDeps {
            index: 0,
            settings: Settings::default(),
            instance_limits: SlotLimits { instances: 10, memory: max_instance_memory },
            pool_instance_limits: BTreeMap::new(),
            clock: Arc::new(ClusterClock::new(0)),
            random_key: Arc::default(),
            entity_store: store,
            stats: Arc::default(),
            tracer: ostraca_trace::Tracer::default(),
            turn_quotas: crate::TurnQuotas::default(),
            gauges: Arc::default(),
            recording_dir: None,
            reports: Arc::new(move |report| reports.send(report).expect("the test still receives")),
            replies: recorded.clone(),
        };
        Self {
            worker: Worker::new(parts, Some(recorder)),
            reports: heard_reports,
            replies: recorded,
            sent: 0,
            folder,
        }
    }

    fn renew(&mut self) {
        let now = self.worker.deps.clock.now().mono;
        self.worker.input(Input::LeaseRenewed(now, 3_000));
    }

    fn adopt(&mut self, shard: u32, epoch: u64) {
        let shard = ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(shard) };
        let incarnation = Incarnation { counter: 1, nonce: 9 };
        let (cluster, epoch, node) = (ClusterId(1), Epoch(epoch), "a".into());
        let owner = Ownership { cluster, shard, epoch, owner: Member { node, incarnation } };
        self.worker.input(Input::Adopt(Box::new(owner)));
    }

    fn stop(&mut self, shard: u32, epoch: u64) {
        let (shard, epoch) = (ShardId(shard), Epoch(epoch));
        let reason = StopReason::HandedOff;
        self.worker.input(Input::StopShard { shard, epoch, reason });
    }

    fn forget(&mut self, shard: u32, epoch: u64) {
        self.worker.input(Input::DropShard { shard: ShardId(shard), epoch: Epoch(epoch) });
    }

    /// What the worker holds in memory for the entity that receives the messages.
    fn inspect(&self, shard: u32) -> Vec<EntityInspection> {
        self.worker.inspect(ShardId(shard), &[Entity::new("misbehaving", "a")]).entities
    }

    fn send(&mut self, shard: u32, method: &str) -> u64 {
        self.send_as(shard, method, MessageKind::Command, TestCaller::Waits)
    }

    fn send_as(&mut self, shard: u32, method: &str, kind: MessageKind, caller: TestCaller) -> u64 {
        self.send_with(shard, method, "", kind, caller)
    }

    fn send_with(
        &mut self,
        shard: u32,
        method: &str,
        body: &'static str,
        kind: MessageKind,
        caller: TestCaller,
    ) -> u64 {
        self.sent += 1;
        let target = Entity::new("misbehaving", "a");
        let body = Bytes::from_static(body.as_bytes());
        let message = Message {
            sender: None,
            asked_by: None,
            reply_token: ReplyToken(self.sent),
            digest: MessageDigest::compute(&target, method, &body),
            target,
            id: MessageId {
                session: ScopedSessionId::derive("client/x", b"s"),
                sequence: self.sent,
            },
            after: 0,
            settled: 0,
            is_keyed: false,
            kind,
            method: method.into(),
            body,
            created_ms: 1,
            first_created_ms: 1,
            arrived_at: self.worker.deps.clock.now().mono,
            deadline: None,
            context: Arc::default(),
        };
        let back = ReplyTo::Gateway { tag: self.sent, caller: Arc::new(caller) };
        let (shard, message, charge) = (ShardId(shard), Arc::new(message), Charge::unmetered());
        let delivery = Delivery { shard, message, reply_to: back, charge };
        self.worker.input(Input::Messages(vec![delivery]));
        self.sent
    }

    /// Lets the store and the guests respond until nothing is in progress.
    async fn settle(&mut self) {
        loop {
            self.worker.assign_instance_slots();
            self.worker.flush_store_calls();
            self.worker.flush_replies();
            let Some(done) = self.worker.tasks.next().await else { return };
            self.worker.handle_completion(done);
        }
    }

    /// Drives the worker until a guest runs a message.
    async fn until_a_guest_runs(&mut self) {
        for _ in 0..5_000 {
            self.worker.assign_instance_slots();
            self.worker.flush_store_calls();
            let busy = |slot: &machines::MachineEntry| {
                slot.instances
                    .values()
                    .any(|(_, live)| matches!(live, machines::InstanceState::Busy(..)))
            };
            match self.worker.tasks.next().now_or_never() {
                Some(Some(done)) => self.worker.handle_completion(done),
                _ if self.worker.machines.iter().any(|(_, slot)| busy(slot)) => return,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        panic!("no guest runs");
    }

    fn reports(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            all.push(match report {
                WorkerReport::ShardServing(shard, epoch) => format!("serving {shard} {}", epoch.0),
                WorkerReport::ShardEscalated(shard, epoch) => {
                    format!("escalated {shard} {}", epoch.0)
                }
                WorkerReport::ShardStopped(shard, epoch) => format!("stopped {shard} {}", epoch.0),
                WorkerReport::ShardLost(owner, ..) => {
                    format!("lost {} {}", owner.shard.shard, owner.epoch.0)
                }
                WorkerReport::MigrationFailed { why, .. } => format!("migration failed: {why}"),
                WorkerReport::Panicked(_) => "panicked".into(),
            });
        }
        all
    }

    /// The outcome of a message, with the epoch of its reply.
    fn answer(&mut self, tag: u64) -> Option<(String, u64)> {
        self.worker.flush_replies();
        let recorded = self.replies.0.lock().expect("the lock is not poisoned");
        recorded.iter().find(|(other, ..)| *other == tag).map(|(_, outcome, epoch)| {
            let text = match outcome {
                Outcome::Final { .. } => "final".into(),
                Outcome::NotRun { code, .. } => code.to_string(),
                Outcome::Unknown { .. } => "unknown".into(),
            };
            (text, epoch.0)
        })
    }

    fn slots(&self) -> usize {
        self.worker.machines.iter().count()
    }

    fn replay(&mut self) -> u64 {
        self.worker.tick();
        let path = self.folder.path().join("incarnation-000001-worker-00.events");
        replay(&path).expect("the replay acts the same")
    }
}

/// The misbehaving guest, with a time limit of one minute per turn.
fn guest(host: &ostraca_wasm::WasmRuntime) -> Arc<DeployedType> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace");
    let target = "wasm32-unknown-unknown";
    let out = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("guests");
    let built = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--quiet", "--release", "-p", "misbehaving"])
        .args(["--target", target, "--target-dir"])
        .arg(&out)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .expect("cargo starts");
    assert!(built.success(), "the guest did not build");
    let module = std::fs::read(out.join(target).join("release/misbehaving.wasm")).expect("a guest");
    let component = ostraca_wasm::encode(&module).expect("an encodable module");
    let limits = ostraca_wasm::InstanceLimits {
        turn_time: Duration::from_secs(60),
        ask: vec!["misbehaving".into()],
        ..ostraca_wasm::InstanceLimits::default()
    };
    let program = host.prepare_blocking(&component, limits).expect("a valid component");
    let text = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[grants]\nask = [\"misbehaving\"]\n";
    let manifest = Manifest::parse(text, "entity.toml").expect("a valid manifest");
    Arc::new(DeployedType::new(1, manifest, &[], Some(program), [0; 32], 0))
}

fn host() -> ostraca_wasm::WasmRuntime {
    // These tests do not cover the compiler.
    let program = ostraca_wasm::CompilerProgram::InProcess;
    let compiler = ostraca_wasm::CompilerSettings { program, ..Default::default() };
    let settings = ostraca_wasm::RuntimeSettings {
        max_live_instances: Some(10),
        compiler,
        ..Default::default()
    };
    ostraca_wasm::WasmRuntime::new(&settings).expect("a runtime")
}

#[tokio::test]
async fn shards_that_come_and_go_leave_nothing_in_the_worker() {
    let mut driver = TestWorker::new();
    for round in 0..100 {
        for shard in 1..=3 {
            driver.adopt(shard, round * 2 + 1);
        }
        // Shard 1 is dropped while it claims, 2 is stopped while it claims, and 3 is stopped while it serves.
        driver.forget(1, round * 2 + 1);
        driver.stop(2, round * 2 + 1);
        driver.settle().await;
        driver.stop(3, round * 2 + 1);
        assert_eq!((driver.slots(), driver.worker.by_shard.len()), (0, 0));
        let (serving, reported) = (format!("serving 3 {}", round * 2 + 1), driver.reports());
        assert!(reported.contains(&serving) && reported.len() == 3, "{reported:?}");
        assert_eq!(reported.iter().filter(|report| report.starts_with("stopped")).count(), 2);
    }
    assert!(driver.worker.machines.capacity() <= 3, "indices are reused");
    assert!(driver.replay() >= 300);
}

#[tokio::test]
async fn r11_every_stop_is_answered_for_exactly_its_epoch() {
    let mut driver = TestWorker::new();
    driver.stop(1, 4);
    assert_eq!(driver.reports(), ["stopped 1 4"], "there is no machine");
    driver.adopt(1, 5);
    driver.adopt(1, 4);
    driver.adopt(1, 5);
    driver.settle().await;
    driver.stop(1, 4);
    assert_eq!(driver.reports(), ["serving 1 5"], "a higher epoch is current");
    driver.stop(1, 6);
    assert_eq!(driver.reports(), ["stopped 1 6"], "the current machine has a lower epoch");
    driver.stop(1, 5);
    driver.stop(1, 5);
    assert_eq!(driver.reports(), ["stopped 1 5", "stopped 1 5"]);
    driver.adopt(1, 7);
    driver.adopt(1, 8);
    driver.settle().await;
    assert_eq!(driver.reports(), ["serving 1 8"], "the machine of the lower epoch was dropped");
    assert_eq!(driver.slots(), 1);
}

#[tokio::test]
async fn s11_a_message_for_an_absent_shard_gets_not_owner() {
    let mut driver = TestWorker::new();
    let early = driver.send(1, "who");
    assert_eq!(driver.answer(early), Some((codes::NOT_OWNER.into(), 0)));
    driver.adopt(1, 3);
    driver.forget(1, 2);
    let here = driver.send(1, "who");
    assert_eq!(driver.answer(here), Some((codes::UNKNOWN_TYPE.into(), 3)));
    driver.forget(1, 3);
    let late = driver.send(1, "who");
    assert_eq!(driver.answer(late), Some((codes::NOT_OWNER.into(), 0)));
    assert!(driver.worker.pending_replies.is_empty());
}

#[tokio::test]
async fn quotas_hold_for_messages_and_for_shards_that_come_later() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 3);
    driver.settle().await;
    let now = driver.worker.deps.clock.now().mono;
    let one = BTreeMap::from([(Arc::from("default"), (1, 1))]);
    driver.worker.deps.turn_quotas.set(&one, now);
    let (first, second) = (driver.send(1, "who"), driver.send(1, "who"));
    assert_eq!(driver.answer(second), Some((codes::QUOTA_TURNS.into(), 3)), "at once");
    assert_eq!(driver.inspect(1)[0].mailbox_length, 1, "only the first one is there");
    driver.settle().await;
    assert_eq!(driver.answer(first), Some(("final".into(), 3)));
    let delete = OperatorCommand::DeleteEntity.method();
    let own = driver.send(1, delete);
    driver.settle().await;
    assert_eq!(driver.answer(own), Some(("final".into(), 3)), "no guest is called");
    assert_eq!(driver.worker.deps.turn_quotas.take_asked()["default"], 2);

    driver.worker.deps.turn_quotas.set(&BTreeMap::new(), now);
    let full = Full { entities: Some(7), state_bytes: None };
    let full = FullNamespaces::new(BTreeMap::from([("default".into(), full)]));
    driver.worker.input(Input::NamespacesFull(full));
    driver.adopt(2, 1);
    driver.settle().await;
    for shard in [1, 2] {
        let created = driver.send(shard, "set_keys");
        driver.settle().await;
        let code = driver.answer(created).map(|(code, _)| code);
        assert_eq!(code.as_deref(), Some("quota-entities"), "in shard {shard}");
    }
    driver.worker.input(Input::NamespacesFull(FullNamespaces::default()));
    let created = driver.send(2, "who");
    driver.settle().await;
    assert_eq!(driver.answer(created), Some(("final".into(), 1)));
}

#[tokio::test]
async fn stopped_waits_for_an_interrupted_instance_to_end() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 1);
    let runs = driver.send(1, "spin_for_ever");
    driver.until_a_guest_runs().await;
    let [ref inside] = driver.inspect(1)[..] else { panic!("the shard is here") };
    assert!(inside.active);
    driver.forget(1, 1);
    assert_eq!(driver.answer(runs), Some((codes::NOT_OWNER.into(), 1)), "it has had no effect");
    assert_eq!(driver.worker.instance_slots.granted(), 0, "its slot is free");
    driver.stop(1, 1);
    assert_eq!(driver.reports(), ["serving 1 1"], "its instance still exists");
    assert_eq!((driver.slots(), host.status().live_instances), (1, 1));
    // The shard's next machine works while the previous one still has an instance.
    driver.adopt(1, 2);
    driver.settle().await;
    assert_eq!(driver.reports().iter().filter(|report| *report == "stopped 1 1").count(), 1);
    assert_eq!((driver.slots(), host.status().live_instances), (1, 0));
    let again = driver.send(1, "who");
    driver.settle().await;
    assert!(driver.answer(again).is_some_and(|(outcome, epoch)| outcome == "final" && epoch == 2));
    assert!(driver.replay() > 10);
}

#[tokio::test]
async fn r9_a_suspended_worker_runs_nothing_in_a_new_shard() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.worker.input(Input::Suspend);
    driver.adopt(1, 1);
    let waits = driver.send(1, "who");
    driver.settle().await;
    assert_eq!((driver.answer(waits), host.status().live_instances), (None, 0));
    let [ref inside] = driver.inspect(1)[..] else { panic!("the shard is here") };
    assert!(!inside.active && inside.mailbox_length == 1);
    assert!(driver.inspect(2).is_empty(), "nothing is known about an absent shard");
    driver.worker.input(Input::Resume);
    driver.settle().await;
    assert_eq!(driver.answer(waits), Some(("final".into(), 1)));
}

#[tokio::test]
async fn r20_an_ask_belongs_to_the_turn_that_started_it() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 1);
    let first = driver.send(1, "who");
    driver.settle().await;
    assert_eq!(driver.answer(first).map(|(outcome, _)| outcome).as_deref(), Some("final"));
    // The first turn asks and ends without waiting, while a query is queued behind it.
    let command = MessageKind::Command;
    let asks = driver.send_with(1, "ask_and_keep", "\"b\"", command, TestCaller::Waits);
    let query = driver.send_as(1, "who", MessageKind::Query, TestCaller::Waits);
    driver.settle().await;
    for token in [asks, query] {
        assert_eq!(driver.answer(token).map(|(outcome, _)| outcome).as_deref(), Some("final"));
    }
    let sent = driver.replies.1.lock().expect("the lock is not poisoned");
    let [EntityMessage { content: EntityMessageContent::Ask(_, ask, _), .. }] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert!(!ask.query_only, "the ask of a command counted as one of the query");
}

#[tokio::test]
async fn the_answer_to_an_ask_reaches_the_waiting_guest() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 1);
    let body = r#"{"of":"misbehaving","id":"b","method":"m","body":"x","count":2,"ms":0}"#;
    let asks = driver.send_with(1, "ask", body, MessageKind::Command, TestCaller::Waits);
    for _ in 0..5_000 {
        driver.until_a_guest_runs().await;
        let _ = driver.worker.tasks.next().now_or_never();
        driver.worker.start_asks();
        driver.worker.flush_replies();
        if driver.replies.1.lock().expect("the lock is not poisoned").len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let sent = std::mem::take(&mut *driver.replies.1.lock().expect("the lock is not poisoned"));
    assert_eq!(sent.len(), 2, "both asks leave before any answer");
    for message in sent {
        let reply = GuestReply::Result(Bytes::from_static(b"1"));
        let event = message.answer(Outcome::Final { reply, version: 1 }).expect("an event");
        let EntityMessage { shard, epoch, .. } = message;
        driver.worker.input(Input::EntityAnswer { shard, epoch, event: Box::new(event) });
    }
    driver.settle().await;
    assert_eq!(driver.answer(asks).map(|(outcome, _)| outcome).as_deref(), Some("final"));
    assert!(driver.replay() > 5);
}

/// K29: `guests.max-live-memory`, from its setting to what `ostraca status` shows.
#[tokio::test]
async fn instances_beyond_the_memory_budget_are_passivated() {
    let host = host();
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    // Less than one instance takes.
    let mut driver = TestWorker::with_memory(store, 1 << 16);
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    let mut live = Vec::new();
    for shard in [1, 1, 2, 2] {
        driver.adopt(shard, 1);
        let runs = driver.send(shard, "who");
        driver.settle().await;
        assert!(driver.answer(runs).is_some_and(|(outcome, _)| outcome == "final"));
        driver.worker.gauge();
        let bytes = driver.worker.deps.gauges.live_bytes.load(Ordering::Relaxed);
        assert!(bytes > 1 << 16, "one instance runs, although it is larger: {bytes}");
        live.push((driver.worker.instance_slots.granted(), host.status().live_instances));
    }
    assert_eq!(live, [(1, 1); 4], "each instance makes room for the next one");
}
