//! The core's cost per message: `cargo run --release -p ostraca-core --example hot_paths`.
//!
//! Prints one line of JSON per path. With two arguments, a path and a number of rounds, it runs only that path and
//! prints the elapsed nanoseconds. `make bench` runs it this way under valgrind.
#![allow(clippy::print_stdout, reason = "a measurement on a terminal")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_core::assign::{AllocationView, BuiltinStrategy, Host, ShardPlacement};
use ostraca_core::codec;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, MessageDigest, MessageId, NodeId, ScopedSessionId,
    ShardId, ShardPath, TurnId,
};
use ostraca_core::message::{Message, MessageKind, Now, Outcome, ReplyToken};
use ostraca_core::records::{
    ClaimOutcome, CommitOutcome, GuestReply, Head, Lane, LoadedEntity, RecordedReply,
};
use ostraca_core::route::{self, AttemptResult, Router};
use ostraca_core::rows::Member;
use ostraca_core::shard::{
    Action, ActivationOutcome, Event, Machine, Ownership, Settings, TurnOutput, TurnResult,
    TypeSettings,
};

/// A path's name, a description of one round, the default number of rounds, and the function that runs it.
type Path = (&'static str, &'static str, u64, fn(u64) -> Duration);

const PATHS: [Path; 6] = [
    ("route", "a message to a shard of this node, and its reply", 1_000_000, route),
    ("turn", "a command is admitted, run and committed, and its reply leaves", 200_000, turn),
    ("copy", "a copy of a command that ran is answered from its lane", 1_000_000, copy),
    ("plan", "the moves of 4,096 shards after one more of 100 nodes has joined", 500, plan),
    ("encode head", "two lanes with a reply each", 1_000_000, encode_head),
    ("decode head", "two lanes with a reply each", 1_000_000, decode_head),
];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            for (path, what, rounds, run) in PATHS {
                let ns = run(rounds).as_secs_f64() * 1e9 / rounds as f64;
                println!(r#"{{"path":"{path}","ns":{ns:.1},"rounds":{rounds},"what":"{what}"}}"#);
            }
        }
        [path, rounds] => {
            let rounds = rounds.parse().expect("a number");
            let (.., run) = PATHS.into_iter().find(|it| it.0 == path).expect("a path");
            println!("{}", run(rounds).as_nanos());
        }
        _ => panic!("hot_paths [PATH ROUNDS]"),
    }
}

fn route(rounds: u64) -> Duration {
    const SHARDS: u32 = 1_024;
    let member =
        Member { node: NodeId::from("a"), incarnation: Incarnation { counter: 1, nonce: 1 } };
    let mut router: Router<Arc<u64>> = Router::new(route::Settings::default(), SHARDS);
    let mut steps = Vec::new();
    router.set_local(0, Some(member.clone()), &mut steps);
    for shard in 1..=SHARDS {
        router.update_route(0, ShardId(shard), Epoch(1), Some(member.clone()), false, &mut steps);
    }
    let message = Arc::new(0);
    let begun = Instant::now();
    for number in 0..rounds {
        let shard = ShardId(number as u32 % SHARDS + 1);
        let deadline = Some(number + 60_000);
        router.route_into(number, shard, Arc::clone(&message), 300, deadline, &mut steps);
        let Some(route::Action::Local { attempt_id, .. }) = steps.pop() else {
            panic!("the shard belongs to this node")
        };
        let reply =
            router.on_attempt_result(number, attempt_id, AttemptResult::Answered, &mut steps);
        assert!(black_box(reply).is_some() && steps.is_empty(), "the message is answered once");
    }
    begun.elapsed()
}

/// A shard's machine with a live entity, whose sandbox and store respond instantly.
struct Shard {
    machine: Machine,
    session: ScopedSessionId,
    entity: Entity,
    method: Arc<str>,
    replies: u64,
}

impl Shard {
    const NOW: Now = Now { mono: 1_000, cluster_time: 1_000, utc: 0 };

    fn new() -> Self {
        let owner = Ownership {
            cluster: ClusterId(1),
            shard: ShardPath {
                namespace: "default".into(),
                pool: "default".into(),
                shard: ShardId(1),
            },
            epoch: Epoch(1),
            owner: Member { node: "a".into(), incarnation: Incarnation { counter: 1, nonce: 1 } },
        };
        let mut shard = Self {
            machine: Machine::new(Settings::default(), owner),
            session: ScopedSessionId::derive("client/a", b"session"),
            entity: Entity::new("counter", "alice"),
            method: "add".into(),
            replies: 0,
        };
        let settings = TypeSettings::default();
        shard.tell(Event::TypeDeployed { entity_type: "counter".into(), settings });
        shard.tell(Event::LeaseRenewed { sent_at: Self::NOW.mono, lease: 3_000 });
        shard.tell(Event::ClaimResult { number: 1, outcome: ClaimOutcome::Granted });
        shard
    }

    fn tell(&mut self, event: Event) {
        self.machine.handle(Self::NOW, event);
        while let Some(action) = self.machine.poll() {
            let answer = match action {
                Action::Load { entity, generation } => {
                    let result = Ok(LoadedEntity::default());
                    Event::Loaded { entity, generation, result }
                }
                Action::RequestSlot { entity, generation, .. } => {
                    Event::SlotGranted { entity, generation }
                }
                Action::Activate { entity, generation, .. } => {
                    let result = ActivationOutcome::Started(output(Vec::new()));
                    Event::ActivationResult { entity, generation, result }
                }
                Action::Run { generation, turn, message, .. } => {
                    let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"v"));
                    let result = output(vec![(key, Some(value))]);
                    Event::TurnDone { entity: message.target.clone(), generation, turn, result }
                }
                Action::Commit(commit) => {
                    let result = (commit.entity, commit.head.turn, CommitOutcome::Committed);
                    Event::CommitResults(vec![result])
                }
                Action::Reply { outcome, .. } => {
                    assert!(matches!(outcome, Outcome::Final { .. }), "{outcome:?}");
                    self.replies += 1;
                    continue;
                }
                _ => continue,
            };
            self.machine.handle(Self::NOW, answer);
        }
    }

    /// Sends the session's message with this sequence; all earlier ones are settled.
    fn send(&mut self, sequence: u64, digest: MessageDigest) {
        let message = Message {
            reply_token: ReplyToken(self.replies),
            target: self.entity.clone(),
            id: MessageId { session: self.session, sequence },
            after: 0,
            settled: sequence,
            is_keyed: false,
            kind: MessageKind::Command,
            method: Arc::clone(&self.method),
            body: Bytes::from_static(b"1"),
            digest,
            created_ms: Self::NOW.cluster_time,
            first_created_ms: Self::NOW.cluster_time,
            arrived_at: Self::NOW.mono,
            deadline: Some(Self::NOW.mono + 10_000),
            context: Arc::default(),
            sender: None,
            asked_by: None,
        };
        self.tell(Event::Message(Arc::new(message)));
    }

    fn digest(&self) -> MessageDigest {
        MessageDigest::compute(&self.entity, &self.method, b"1")
    }
}

fn output(writes: Vec<(Bytes, Option<Bytes>)>) -> TurnOutput {
    let result = TurnResult::Replied(GuestReply::Result(Bytes::from_static(b"1")));
    TurnOutput { writes, state_bytes: Some(2), ..TurnOutput::without_effects(result) }
}

fn turn(rounds: u64) -> Duration {
    let mut shard = Shard::new();
    let digest = shard.digest();
    shard.send(1, digest);
    let begun = Instant::now();
    for sequence in 0..rounds {
        shard.send(sequence + 2, digest);
    }
    let took = begun.elapsed();
    assert_eq!(shard.replies, rounds + 1);
    took
}

fn copy(rounds: u64) -> Duration {
    let mut shard = Shard::new();
    let digest = shard.digest();
    shard.send(1, digest);
    let begun = Instant::now();
    for _ in 0..rounds {
        shard.send(1, digest);
    }
    let took = begun.elapsed();
    assert_eq!(shard.replies, rounds + 1);
    took
}

fn plan(rounds: u64) -> Duration {
    const SHARDS: usize = 4_096;
    let host = |number: u64| Host::new(format!("node-{number:03}").as_str().into(), 1);
    let strategy = BuiltinStrategy::Average.build();
    let mut view = AllocationView {
        hosts: (0..100).map(host).collect(),
        shards: vec![ShardPlacement::default(); SHARDS],
        seed: 1,
        measured: true,
    };
    for chosen in strategy.allocate(&view) {
        view.shards[chosen.shard.0 as usize - 1].owner = Some(chosen.to);
    }
    view.hosts.push(host(100));
    let begun = Instant::now();
    for _ in 0..rounds {
        let moves = strategy.rebalance(black_box(&view), usize::MAX);
        assert!(!black_box(moves).is_empty(), "the new node gets shards");
    }
    begun.elapsed()
}

fn head() -> Head {
    let lane = |session: &[u8]| Lane {
        session: ScopedSessionId::derive("client/a", session),
        last_sequence: 1_000,
        used_at: 1_700_000_000_000,
        newest_created: 1_700_000_000_000,
        principal_tag: 1,
        replies: vec![RecordedReply {
            sequence: 1_000,
            digest: MessageDigest::compute(&Entity::new("counter", "alice"), "add", b"1"),
            version: 2_000,
            reply: GuestReply::Result(Bytes::from_static(b"1000")),
            extensions: Extensions::default(),
        }],
        extensions: Extensions::default(),
    };
    Head {
        version: 2_000,
        revision: 1,
        turn: TurnId::default(),
        lanes: vec![lane(b"one").into(), lane(b"two").into()],
        state_bytes: 100,
        ..Head::default()
    }
}

fn encode_head(rounds: u64) -> Duration {
    let head = head();
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(codec::encode(black_box(&head)).expect("a head"));
    }
    begun.elapsed()
}

fn decode_head(rounds: u64) -> Duration {
    let bytes = codec::encode(&head()).expect("a head");
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(codec::decode::<Head>(black_box(&bytes)).expect("a head"));
    }
    begun.elapsed()
}
