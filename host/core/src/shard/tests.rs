//! Unit tests of the shard machine, one rule each; the simulator tests interleavings.

mod costs;
mod dormant;
mod formats;
mod lane_eviction;
mod passivate;
mod serve;
mod stale_completions;
mod start;
mod stop;
mod suspend;
mod timeouts;

use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::codes;

use super::*;
use crate::ids::{
    ClusterId, Entity, Epoch, Incarnation, MessageDigest, MessageId, ScopedSessionId, ShardId,
    ShardPath, TurnId,
};
use crate::message::{Message, MessageKind, Now, Outcome, OwnerHint, ReplyToken};
use crate::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, GuestReply, Head, LoadedEntity,
    RecordKey, RecordWrite,
};
use crate::rows::Member;

/// A machine, a clock, and the recorded actions.
struct Harness {
    machine: Machine,
    now: u64,
    tokens: u64,
    head: Option<Head>,
    lanes: Vec<crate::records::Lane>,
    commits: Vec<Commit>,
    replies: Vec<(u64, Outcome)>,
    running: Option<(u64, TurnId, Arc<Message>)>,
    loads: usize,
    claims: Vec<Arc<Claim>>,
    dropped: usize,
    /// How often an eviction was refused because the instance was busy.
    busy: usize,
    /// Starts and stop hooks of instances.
    starts: usize,
    hooks: usize,
    runs: usize,
    /// Slots requested and not yet returned.
    rooms: usize,
    /// Counts of `Stopped` and `Lost`.
    stopped: usize,
    lost: usize,
    /// The test answers for store, slots and sandbox.
    silent: bool,
    asked: Vec<Action>,
}

fn alice() -> Entity {
    Entity::new("counter", "alice")
}

impl Harness {
    fn new(settings: Settings) -> Self {
        let owner = Ownership {
            cluster: ClusterId(1),
            shard: ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(1) },
            epoch: Epoch(1),
            owner: Member { node: "a".into(), incarnation: Incarnation { counter: 1, nonce: 9 } },
        };
        let mut hand = Self {
            machine: Machine::new(settings, owner),
            now: 1_000,
            tokens: 0,
            head: None,
            lanes: Vec::new(),
            commits: Vec::new(),
            replies: Vec::new(),
            running: None,
            loads: 0,
            claims: Vec::new(),
            dropped: 0,
            busy: 0,
            starts: 0,
            hooks: 0,
            runs: 0,
            rooms: 0,
            stopped: 0,
            lost: 0,
            silent: false,
            asked: Vec::new(),
        };
        hand.obey();
        hand.handle(Event::TypeDeployed {
            entity_type: "counter".into(),
            settings: TypeSettings::default(),
        });
        hand.handle(Event::LeaseRenewed { sent_at: 1_000, lease: 3_000 });
        hand
    }

    fn serving() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let mut hand = Self::new(settings);
        hand.grant();
        hand
    }

    fn grant(&mut self) {
        let number = self.claims.last().expect("a claim").number;
        self.handle(Event::ClaimResult { number, outcome: ClaimOutcome::Granted });
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(Now { mono: self.now, cluster_time: self.now }, event);
        self.obey();
    }

    /// Executes all actions except turns and commits, which the test executes.
    fn obey(&mut self) {
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Claim(claim) => self.claims.push(claim),
                Action::Commit(commit) => self.commits.push(*commit),
                Action::Reply { token, outcome } => self.replies.push((token.0, outcome)),
                Action::Run { generation, turn, message, .. } => {
                    self.runs += 1;
                    self.running = Some((generation, turn, message));
                }
                Action::Load { .. } if self.silent => {
                    self.loads += 1;
                    self.asked.push(action);
                }
                Action::Load { entity, generation } => {
                    self.loads += 1;
                    let loaded =
                        LoadedEntity { head: self.head.clone(), lanes: self.lanes.clone() };
                    self.handle(Event::Loaded { entity, generation, result: Ok(loaded) });
                }
                Action::RequestSlot { .. } if self.silent => {
                    self.rooms += 1;
                    self.asked.push(action);
                }
                Action::RequestSlot { entity, generation } => {
                    self.rooms += 1;
                    self.handle(Event::SlotGranted { entity, generation });
                }
                Action::Activate { .. } if self.silent => {
                    self.starts += 1;
                    self.asked.push(action);
                }
                Action::Activate { entity, generation, .. } => {
                    self.starts += 1;
                    let result =
                        ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), false));
                    self.handle(Event::ActivationResult { entity, generation, result });
                }
                Action::CallStopHook { .. } => {
                    self.hooks += 1;
                    self.asked.push(action);
                }
                Action::DropInstance { .. } => self.dropped += 1,
                Action::RefuseEviction { .. } => self.busy += 1,
                Action::ReleaseSlot { .. } => self.rooms -= 1,
                Action::Stopped => self.stopped += 1,
                Action::Lost { .. } => self.lost += 1,
                _ => {}
            }
        }
    }

    fn send(&mut self, sequence: u64, after: u64, kind: MessageKind) -> u64 {
        self.send_from(b"s", sequence, after, kind, "1")
    }

    fn send_from(
        &mut self,
        session: &[u8],
        sequence: u64,
        after: u64,
        kind: MessageKind,
        body: &str,
    ) -> u64 {
        let id = MessageId { session: ScopedSessionId::derive("client/x", session), sequence };
        let body = Bytes::copy_from_slice(body.as_bytes());
        let digest = MessageDigest::compute(&alice(), "m", &body);
        self.post(Message { id, after, kind, body, digest, ..self.template() })
    }

    fn template(&self) -> Message {
        Message {
            reply_token: ReplyToken(0),
            target: alice(),
            id: MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 1 },
            after: 0,
            settled: 0,
            kind: MessageKind::Command,
            method: "m".into(),
            body: Bytes::from_static(b"1"),
            digest: MessageDigest::compute(&alice(), "m", b"1"),
            created_ms: self.now,
            arrived_at: self.now,
            deadline: None,
            context: Default::default(),
        }
    }

    fn post(&mut self, message: Message) -> u64 {
        self.tokens += 1;
        self.handle(Event::Message(Arc::new(Message {
            reply_token: ReplyToken(self.tokens),
            ..message
        })));
        self.tokens
    }

    /// The oldest pending action.
    fn ask(&mut self) -> Action {
        assert!(!self.asked.is_empty(), "nothing was asked");
        self.asked.remove(0)
    }

    fn answer_load(&mut self, action: &Action) {
        let Action::Load { entity, generation } = action else { panic!("{action:?}") };
        let (entity, generation) = (entity.clone(), *generation);
        let loaded = LoadedEntity { head: self.head.clone(), lanes: self.lanes.clone() };
        self.handle(Event::Loaded { entity, generation, result: Ok(loaded) });
    }

    /// Completes the running turn.
    fn answer(&mut self, answer: GuestReply) {
        let (generation, id, message) = self.running.take().expect("a running turn");
        let writes =
            message.kind == MessageKind::Command && matches!(answer, GuestReply::Result(_));
        let result = turn(answer, writes);
        self.handle(Event::TurnDone {
            entity: message.target.clone(),
            generation,
            turn: id,
            result,
        });
    }

    fn run(&mut self) {
        self.answer(GuestReply::Result(Bytes::from_static(b"r")));
    }

    /// Answers the oldest commit; the next load returns what was committed.
    fn settle(&mut self, outcome: CommitOutcome) {
        let commit = self.commits.remove(0);
        if outcome == CommitOutcome::Committed {
            for write in &commit.writes {
                if let RecordKey::Lane(session) = &write.key {
                    self.lanes.retain(|lane| lane.session != *session);
                    let lane = write.value.as_ref().map(|value| crate::codec::decode(value));
                    self.lanes.extend(lane.map(|lane| lane.expect("a lane")));
                }
            }
            self.head = Some(commit.head.clone());
        }
        self.handle(Event::CommitResults(vec![(commit.entity, commit.head.turn, outcome)]));
    }

    fn hint_of(&self, token: u64) -> Option<OwnerHint> {
        self.replies.iter().find(|(other, _)| *other == token).and_then(|(_, outcome)| {
            let Outcome::NotRun { owner_hint: hint, .. } = outcome else { return None };
            hint.as_deref().cloned()
        })
    }

    fn may_be_sent_again(&self, token: u64) -> bool {
        let of = |(other, outcome): &&(u64, Outcome)| {
            *other == token && matches!(outcome, Outcome::NotRun { retry_after: Some(_), .. })
        };
        self.replies.iter().any(|reply| of(&reply))
    }

    fn code_of(&self, token: u64) -> Option<String> {
        self.replies.iter().find(|(other, _)| *other == token).map(|(_, outcome)| match outcome {
            Outcome::Final { version, .. } => format!("final {version}"),
            Outcome::NotRun { code, .. } => code.to_string(),
            Outcome::Unknown { .. } => "unknown".into(),
        })
    }
}

fn turn(answer: GuestReply, writes: bool) -> TurnOutput {
    let writes = if writes {
        vec![(Bytes::from_static(b"k"), Some(Bytes::from_static(b"v")))]
    } else {
        Vec::new()
    };
    TurnOutput {
        result: TurnResult::Replied(answer),
        writes,
        state_bytes: Some(2),
        passivate: false,
    }
}

#[test]
fn promise_2_replies_wait_for_commits_and_turns_do_not() {
    let mut hand = Harness::serving();
    let first = hand.send(1, 0, MessageKind::Command);
    hand.run();
    assert_eq!(hand.code_of(first), None, "not durable yet");
    let second = hand.send(2, 1, MessageKind::Command);
    hand.run();
    assert_eq!(
        hand.commits.iter().map(|c| (c.expected_version, c.head.version)).collect::<Vec<_>>(),
        [(0, 1), (1, 2)]
    );
    hand.settle(CommitOutcome::Committed);
    assert_eq!((hand.code_of(first).as_deref(), hand.code_of(second)), (Some("final 1"), None));
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(second).as_deref(), Some("final 2"));
}

#[test]
fn r1_a_refused_turn_also_refuses_all_that_built_on_it() {
    let mut hand = Harness::serving();
    let tokens = [hand.send(1, 0, MessageKind::Command)];
    hand.run();
    let behind = hand.send(2, 1, MessageKind::Command);
    hand.run();
    let query = hand.send(3, 2, MessageKind::Query);
    hand.run();
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(hand.loads, 1, "R3: no load while a commit of the entity is pending");
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    for token in [tokens[0], behind, query] {
        assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::COMMIT_REFUSED));
    }
    hand.send(4, 0, MessageKind::Command);
    assert_eq!(hand.loads, 2, "what ran ahead is discarded and loaded again");
}

#[test]
fn a_turn_too_large_for_any_store_is_refused_for_good() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("19 MiB".into())));
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::TURN_TOO_LARGE));
    assert!(!hand.may_be_sent_again(token), "not on this node, and on no other");
    let later = hand.send(2, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert!(hand.may_be_sent_again(later), "a disk may have room again");
}

#[test]
fn r3_unknown_commit_outcome_forces_a_new_claim() {
    let mut hand = Harness::serving();
    let first = hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!(hand.code_of(first).as_deref(), Some("unknown"));
    assert_eq!(hand.claims.iter().map(|claim| claim.number).collect::<Vec<_>>(), [1, 2]);
    hand.send(1, 0, MessageKind::Command);
    assert!(hand.running.is_none(), "nothing runs before the new claim is granted");
    hand.grant();
    assert!(hand.running.is_some());
    hand.run();
    assert_eq!(hand.commits[0].claim.number, 2);
}

#[test]
fn r8_a_query_is_answered_only_under_a_valid_lease() {
    let mut hand = Harness::serving();
    let query = hand.send(1, 0, MessageKind::Query);
    hand.now += 2_400;
    hand.run();
    assert_eq!(hand.code_of(query).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
    let later = hand.send(2, 0, MessageKind::Query);
    assert!(hand.running.is_none(), "no turn starts in the last fifth of the lease");
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.run();
    assert_eq!(hand.code_of(later).as_deref(), Some("final 0"));
}

#[test]
fn r16_a_refusal_is_recorded_and_answered_again_to_every_copy() {
    let mut hand = Harness::serving();
    let first = hand.send(1, 0, MessageKind::Command);
    hand.answer(GuestReply::Error { code: "no".into(), message: String::new() });
    hand.settle(CommitOutcome::Committed);
    let copy = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(first), hand.code_of(copy));
    assert_eq!(hand.code_of(copy).as_deref(), Some("final 1"));
}

#[test]
fn r17_a_message_waits_for_its_predecessor() {
    let mut hand = Harness::serving();
    hand.send(2, 1, MessageKind::Command);
    assert!(hand.running.is_none());
    hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.running.as_ref().map(|(_, _, m)| m.id.sequence), Some(1));
    hand.run();
    assert_eq!(hand.running.as_ref().map(|(_, _, m)| m.id.sequence), Some(2));
}

#[test]
fn r17_a_missing_predecessor_ends_as_out_of_order_in_time() {
    let mut hand = Harness::serving();
    let token = hand.send(2, 1, MessageKind::Command);
    hand.now = hand.machine.next_wake().expect("a bound");
    hand.handle(Event::Tick);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::OUT_OF_ORDER));
}

#[test]
fn r17_a_follower_of_a_failed_message_need_not_wait() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    let follower = hand.send(2, 1, MessageKind::Command);
    let (generation, id, _) = hand.running.take().expect("a running turn");
    let failed =
        TurnResult::Failed { code: "trap".into(), message: String::new(), retry_after: None };
    let result =
        TurnOutput { result: failed, writes: Vec::new(), state_bytes: None, passivate: false };
    hand.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!(hand.dropped, 1, "a failed instance is dropped");
    assert_eq!(hand.code_of(follower).as_deref(), Some(&*codes::OUT_OF_ORDER));
}

#[test]
fn a_refused_turn_keeps_its_instance() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    let (generation, id, _) = hand.running.take().expect("a running turn");
    let (code, message) = ("overloaded".into(), String::new());
    let refused = TurnResult::Refused { code, message, retry_after: 100 };
    let result =
        TurnOutput { result: refused, writes: Vec::new(), state_bytes: None, passivate: false };
    hand.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!((hand.dropped, hand.code_of(token).as_deref()), (0, Some("overloaded")));
    // A copy runs in the same instance.
    hand.send(1, 0, MessageKind::Command);
    let (again, ..) = hand.running.expect("a running turn");
    assert_eq!(again, generation);
}

#[test]
fn r17_an_id_reused_with_another_body_is_an_error() {
    let mut hand = Harness::serving();
    hand.send_from(b"s", 1, 0, MessageKind::Command, "1");
    let meanwhile = hand.send_from(b"s", 1, 0, MessageKind::Command, "2");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    let afterwards = hand.send_from(b"s", 1, 0, MessageKind::Command, "2");
    for token in [meanwhile, afterwards] {
        assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::ID_REUSED));
    }
}

#[test]
fn r17_lanes_spilled_from_the_head_are_found_again() {
    let mut hand = Harness::with(Settings { inline_lane_bytes: 100, ..Settings::default() });
    for session in [b"a", b"b", b"c"] {
        hand.send_from(session, 1, 0, MessageKind::Command, "1");
        hand.run();
        hand.settle(CommitOutcome::Committed);
    }
    let head = hand.head.clone().expect("a head");
    assert_eq!((head.lanes.len(), head.spilled_lane_count), (1, 2));
    // A new machine: all state comes from the store.
    let (head, lanes) = (hand.head.take(), std::mem::take(&mut hand.lanes));
    let mut hand = Harness::with(Settings { inline_lane_bytes: 100, ..Settings::default() });
    (hand.head, hand.lanes) = (head, lanes);
    for (version, session) in [b"a", b"b", b"c"].into_iter().enumerate() {
        let copy = hand.send_from(session, 1, 0, MessageKind::Command, "1");
        assert_eq!(hand.code_of(copy), Some(format!("final {}", version + 1)));
    }
    assert!(hand.running.is_none(), "nothing ran twice");
}

#[test]
fn r18_a_copy_joins_the_turn_and_shares_its_outcome() {
    let mut hand = Harness::serving();
    let one = hand.send(1, 0, MessageKind::Command);
    let two = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let three = hand.send(1, 0, MessageKind::Command);
    assert!(hand.running.is_none() && hand.commits.len() == 1);
    hand.settle(CommitOutcome::Committed);
    for token in [one, two, three] {
        assert_eq!(hand.code_of(token).as_deref(), Some("final 1"));
    }
}

#[test]
fn r22_a_deadline_prevents_a_start_but_interrupts_no_turn() {
    let mut hand = Harness::serving();
    let running = hand.send(1, 0, MessageKind::Command);
    hand.tokens += 1;
    let late = Message {
        reply_token: ReplyToken(hand.tokens),
        id: MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 2 },
        deadline: Some(hand.now + 50),
        ..Message::clone(&hand.running.as_ref().expect("a running turn").2)
    };
    hand.handle(Event::Message(Arc::new(late)));
    hand.now += 60;
    hand.run();
    assert_eq!(hand.code_of(hand.tokens).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(running).as_deref(), Some("final 1"));
}

#[test]
fn r24_a_revision_older_than_the_head_does_not_run() {
    let mut hand = Harness::serving();
    hand.head = Some(Head { version: 3, revision: 9, ..Head::default() });
    let token = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::REVISION_TOO_LOW));
    assert!(
        matches!(hand.replies[0].1, Outcome::NotRun { retry_after: Some(_), .. }),
        "another node may have the revision already: {:?}",
        hand.replies
    );
    let deploy = |hand: &mut Harness, revision| {
        let settings = TypeSettings { revision, ..TypeSettings::default() };
        hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    };
    deploy(&mut hand, 9);
    deploy(&mut hand, 8);
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    assert_eq!(
        hand.commits[0].head.revision, 9,
        "a late announcement of an older revision is ignored"
    );
}

#[test]
fn stopped_follows_the_last_commit_and_the_last_instance() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    hand.handle(Event::Stop(StopReason::HandedOff));
    let late = hand.send(2, 1, MessageKind::Command);
    assert_eq!(hand.code_of(late).as_deref(), Some(&*codes::REBALANCING));
    hand.run();
    assert_eq!(hand.stopped, 0, "its commit is pending");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(token).as_deref(), Some("final 1"));
    assert_eq!(hand.stopped, 1);
}

#[test]
fn a_full_mailbox_refuses_and_parked_messages_make_room() {
    let mut hand = Harness::serving();
    let settings = TypeSettings { mailbox_capacity: 2, revision: 1, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let parked = [hand.send(2, 1, MessageKind::Command), hand.send(3, 2, MessageKind::Command)];
    hand.run();
    let first = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(parked[1]).as_deref(), Some(&*codes::MAILBOX_FULL));
    assert_eq!(hand.code_of(first), None, "the one that the others wait for was admitted");
    hand.send(8, 7, MessageKind::Command);
    let full = hand.send(9, 8, MessageKind::Command);
    assert_eq!(hand.code_of(full).as_deref(), Some(&*codes::MAILBOX_FULL));
}
