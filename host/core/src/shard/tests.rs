//! Unit tests of the shard machine, one rule each; the simulator tests interleavings.

mod ask_cycles;
mod asks;
mod calls;
mod channels;
mod costs;
mod dead_letters;
mod delayed_tells;
mod deletion;
mod dormant;
mod expiry;
mod formats;
mod idempotency_keys;
mod import;
mod journal;
mod lane_eviction;
mod migrations;
mod operator_commands;
mod passivate;
mod recovery;
mod remembered;
mod second_instance;
mod serve;
mod stale_completions;
mod start;
mod stop;
mod storage_quota;
mod stored;
mod subscriptions;
mod supervision;
mod suspend;
mod sweep;
mod tells;
mod timeouts;
mod timers;

use std::collections::BTreeMap;
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
    ChannelItem, Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, GuestReply, Head,
    HeadFloor, JournalExtent, LoadedEntity, OWN_TIMERS, RecordKey, RecordWrite, SubscriptionCounts,
    Tell, Timer,
};
use crate::rows::Member;

/// A machine, a clock, and the recorded actions.
struct Harness {
    machine: Machine,
    now: u64,
    tokens: u64,
    head: Option<Head>,
    lanes: Vec<crate::records::Lane>,
    timers: Vec<Timer>,
    outbox: Vec<(u64, Tell)>,
    dead_letters: Vec<(u64, Tell)>,
    /// The kept items of channels.
    items: BTreeMap<(Arc<str>, u64), ChannelItem>,
    /// Tells that were sent and have not been answered.
    tells: Vec<(u64, Arc<Tell>)>,
    asked: Vec<Entity>,
    /// Asks that were sent and have not been answered, with the turn and the time for which it waits.
    asks: Vec<(TurnId, Arc<Ask>, u64)>,
    /// The answers that turns got, by place.
    answers: Vec<(u32, Outcome)>,
    notes: Vec<(Entity, AskNote)>,
    /// Calls that may be made, by place.
    released: Vec<(u32, IdempotencyKey)>,
    /// The keys of the state that scans return.
    keys: Vec<Bytes>,
    /// Whether the harness responds to scans of keys.
    answers_keys: bool,
    /// Why instances were started.
    reasons: Vec<StartReason>,
    /// The wake-ups that scans return.
    wakes: Vec<(u64, Entity)>,
    firing: Option<(u64, TurnId, Arc<Firing>)>,
    firings: usize,
    gave_up: usize,
    scans: usize,
    /// The remembered entities that scans return, or no answer.
    marks: Option<Vec<Entity>>,
    /// The floor of the shard, and how many heads were removed.
    floor: HeadFloor,
    removals: usize,
    /// The numbers of the scans for remembered entities.
    mark_scans: Vec<u64>,
    commits: Vec<Commit>,
    replies: Vec<(u64, Outcome)>,
    running: Option<(u64, TurnId, Arc<Message>)>,
    /// The journal as the last message's turn sees it.
    journal: JournalExtent,
    loads: usize,
    claims: Vec<Arc<Claim>>,
    dropped: usize,
    /// How often an eviction was refused because the instance was busy.
    busy: usize,
    /// Counts of instances' starts and stop hooks.
    starts: usize,
    hooks: usize,
    /// The revision that the last start ran.
    started_revision: u64,
    runs: usize,
    /// Number of slots requested and not returned yet.
    rooms: usize,
    /// How often a failure was escalated, and the stopped entities that were forgotten.
    escalated: usize,
    forgotten: Vec<Entity>,
    /// Counts of `Stopped` and `Lost`.
    stopped: usize,
    lost: usize,
    /// Whether the test itself responds to loads, scans, slot requests and activations.
    silent: bool,
    pending_actions: Vec<Action>,
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
        let mut harness = Self {
            machine: Machine::new(settings, owner),
            now: 1_000,
            tokens: 0,
            head: None,
            lanes: Vec::new(),
            timers: Vec::new(),
            outbox: Vec::new(),
            dead_letters: Vec::new(),
            items: BTreeMap::new(),
            tells: Vec::new(),
            asked: Vec::new(),
            asks: Vec::new(),
            answers: Vec::new(),
            notes: Vec::new(),
            released: Vec::new(),
            keys: Vec::new(),
            answers_keys: true,
            reasons: Vec::new(),
            wakes: Vec::new(),
            firing: None,
            firings: 0,
            gave_up: 0,
            scans: 0,
            marks: Some(Vec::new()),
            floor: HeadFloor::default(),
            removals: 0,
            mark_scans: Vec::new(),
            commits: Vec::new(),
            replies: Vec::new(),
            running: None,
            journal: JournalExtent::default(),
            loads: 0,
            claims: Vec::new(),
            dropped: 0,
            busy: 0,
            starts: 0,
            started_revision: 0,
            hooks: 0,
            runs: 0,
            rooms: 0,
            escalated: 0,
            forgotten: Vec::new(),
            stopped: 0,
            lost: 0,
            silent: false,
            pending_actions: Vec::new(),
        };
        harness.execute_actions();
        harness.handle(Event::TypeDeployed {
            entity_type: "counter".into(),
            settings: TypeSettings::default(),
        });
        harness.handle(Event::LeaseRenewed { sent_at: 1_000, lease: 3_000 });
        harness
    }

    fn serving() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let mut harness = Self::new(settings);
        harness.grant();
        harness
    }

    fn grant(&mut self) {
        let number = self.claims.last().expect("a claim").number;
        self.handle(Event::ClaimResult { number, outcome: ClaimOutcome::Granted });
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(Now { mono: self.now, cluster_time: self.now, utc: self.now }, event);
        self.execute_actions();
    }

    /// Executes all actions except turns and commits, which the test completes.
    fn execute_actions(&mut self) {
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Claim(claim) => self.claims.push(claim),
                Action::Commit(commit) => self.commits.push(*commit),
                Action::Reply { token, outcome } => self.replies.push((token.0, outcome)),
                Action::Run { generation, turn, message, records, .. } => {
                    self.runs += 1;
                    self.journal = records.map_or_else(JournalExtent::default, |it| it.journal);
                    self.running = Some((generation, turn, message));
                }
                Action::ScanRemembered { number, from, max_records } => {
                    self.mark_scans.push(number);
                    let Some(marks) = self.marks.clone() else { continue };
                    let rest =
                        marks.into_iter().filter(|it| from.as_ref().is_none_or(|of| it >= of));
                    let mut page: Vec<_> = rest.collect();
                    let more = page.len() > max_records;
                    page.truncate(max_records);
                    self.handle(Event::RememberedScanned { number, page: Ok((page, more)) });
                }
                Action::ScanWakes { .. } if self.silent => {
                    self.scans += 1;
                    self.pending_actions.push(action);
                }
                Action::ScanWakes { number, .. } => {
                    self.scans += 1;
                    let page = Ok((self.wakes.clone(), false));
                    self.handle(Event::WakesScanned { number, page });
                }
                Action::ScanHeads { .. } => self.pending_actions.push(action),
                Action::ScanKeys { .. } if !self.answers_keys => self.pending_actions.push(action),
                Action::ScanKeys { entity, generation, max_records } => {
                    let page: Vec<_> = self.keys.iter().take(max_records).cloned().collect();
                    let page = Ok((page, self.keys.len() > max_records));
                    self.handle(Event::KeysScanned { entity, generation, page });
                }
                Action::Fire { generation, turn, firing, .. } => {
                    self.firings += 1;
                    self.firing = Some((generation, turn, firing));
                }
                Action::TimerGaveUp { .. } => self.gave_up += 1,
                Action::Tell { number, tell, .. } => self.tells.push((number, tell)),
                Action::AskSender { sender, .. } => self.asked.push(sender),
                Action::Ask { turn, ask, remaining, .. } => self.asks.push((turn, ask, remaining)),
                Action::AnswerAsk { place, outcome, .. } => self.answers.push((place, *outcome)),
                Action::ReleaseCall { place, key, .. } => self.released.push((place, key)),
                Action::SendAskNote { target, note, .. } => self.notes.push((target, *note)),
                Action::ReadChannel { .. } if self.silent => self.pending_actions.push(action),
                Action::ReadChannel { .. } => self.answer_read(action),
                Action::Load { .. } if self.silent => {
                    self.loads += 1;
                    self.pending_actions.push(action);
                }
                Action::Load { entity, generation } => {
                    self.loads += 1;
                    let loaded = LoadedEntity {
                        head: self.head.clone(),
                        lanes: self.lanes.clone(),
                        timers: self.timers.clone(),
                        outbox: self.outbox.clone(),
                        dead_letters: self.dead_letters.clone(),
                    };
                    self.handle(Event::Loaded { entity, generation, result: Ok(loaded) });
                }
                Action::RequestSlot { .. } if self.silent => {
                    self.rooms += 1;
                    self.pending_actions.push(action);
                }
                Action::RequestSlot { entity, generation, .. } => {
                    self.rooms += 1;
                    self.handle(Event::SlotGranted { entity, generation });
                }
                Action::Activate { .. } if self.silent => {
                    self.starts += 1;
                    self.pending_actions.push(action);
                }
                Action::Activate { entity, generation, revision, reason, .. } => {
                    self.starts += 1;
                    self.started_revision = revision;
                    self.reasons.push(reason);
                    let result =
                        ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), false));
                    self.handle(Event::ActivationResult { entity, generation, result });
                }
                Action::Migrate { .. } | Action::MigrationFailed { .. } => {
                    self.pending_actions.push(action);
                }
                Action::CallStopHook { .. } => {
                    self.hooks += 1;
                    self.pending_actions.push(action);
                }
                Action::DropInstance { .. } => self.dropped += 1,
                Action::RefuseEviction { .. } => self.busy += 1,
                Action::ReleaseSlot { .. } => self.rooms -= 1,
                Action::Escalate { .. } => self.escalated += 1,
                Action::ForgetStopped { entity } => self.forgotten.push(entity),
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
            sender: None,
            asked_by: None,
            id: MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 1 },
            after: 0,
            settled: 0,
            is_keyed: false,
            kind: MessageKind::Command,
            method: "m".into(),
            body: Bytes::from_static(b"1"),
            digest: MessageDigest::compute(&alice(), "m", b"1"),
            created_ms: self.now,
            first_created_ms: self.now,
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

    /// A new machine for the shard, as after a hand-off or a restart. It knows only what is in the store.
    fn restarted(self) -> Self {
        let mut next = Self::with_store(Settings::clone(self.machine.settings()), |next| {
            (next.head, next.lanes, next.timers) = (self.head, self.lanes, self.timers);
            (next.outbox, next.dead_letters) = (self.outbox, self.dead_letters);
            (next.wakes, next.now, next.items) = (self.wakes, self.now, self.items);
            next.keys = self.keys;
        });
        next.handle(Event::LeaseRenewed { sent_at: next.now, lease: 3_000 });
        next
    }

    fn with_store(settings: Settings, fill: impl FnOnce(&mut Self)) -> Self {
        let mut harness = Self::new(settings);
        fill(&mut harness);
        harness.grant();
        harness
    }

    /// The oldest pending action.
    fn next_action(&mut self) -> Action {
        assert!(!self.pending_actions.is_empty(), "no action is pending");
        self.pending_actions.remove(0)
    }

    fn answer_load(&mut self, action: &Action) {
        let Action::Load { entity, generation } = action else { panic!("{action:?}") };
        let (entity, generation) = (entity.clone(), *generation);
        let loaded = LoadedEntity {
            head: self.head.clone(),
            lanes: self.lanes.clone(),
            timers: self.timers.clone(),
            outbox: self.outbox.clone(),
            dead_letters: self.dead_letters.clone(),
        };
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
                if let RecordWrite { key: RecordKey::State(key), value: None } = write {
                    self.keys.retain(|other| other != key);
                }
                if let RecordKey::Lane(session) = &write.key {
                    self.lanes.retain(|lane| lane.session != *session);
                    let lane = write.value.as_ref().map(|value| crate::codec::decode(value));
                    self.lanes.extend(lane.map(|lane| lane.expect("a lane")));
                }
                if let RecordKey::ChannelItem { channel, number } = &write.key {
                    let item = write.value.as_ref().map(|value| crate::codec::decode(value));
                    match item {
                        Some(item) => {
                            self.items.insert((channel.clone(), *number), item.expect("an item"))
                        }
                        None => self.items.remove(&(channel.clone(), *number)),
                    };
                }
                if let RecordKey::Outbox { target, number } = &write.key {
                    self.outbox.retain(|(other, tell)| (other, &tell.target) != (number, target));
                    let tell = write.value.as_ref().map(|value| crate::codec::decode(value));
                    self.outbox.extend(tell.map(|tell| (*number, tell.expect("a tell"))));
                }
                if let RecordKey::DeadLetter { number } = &write.key {
                    self.dead_letters.retain(|(other, _)| other != number);
                    let tell = write.value.as_ref().map(|value| crate::codec::decode(value));
                    self.dead_letters.extend(tell.map(|tell| (*number, tell.expect("a tell"))));
                }
                if let RecordKey::Timer { due: OWN_TIMERS, name } = &write.key {
                    self.timers.retain(|timer| timer.name != *name);
                    let timer = write.value.as_ref().map(|value| crate::codec::decode(value));
                    self.timers.extend(timer.map(|timer| timer.expect("a timer")));
                }
                if let RecordKey::Timer { due, name } = &write.key
                    && name.is_empty()
                {
                    self.wakes.retain(|(at, _)| at != due);
                    self.wakes.extend(write.value.as_ref().map(|_| (*due, alice())));
                }
            }
            self.head = Some(commit.head.clone());
            if commit.head.is_removed() == Ok(true) {
                self.removals += 1;
                self.floor.raise(&commit.head).expect("a head");
                self.head = Some(self.floor.head().expect("fits"));
            }
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

fn trapped_turn() -> TurnOutput {
    let (code, message) = ("trap".into(), String::new());
    TurnOutput::without_effects(TurnResult::Failed { code, message, retry_after: None })
}

fn turn(answer: GuestReply, writes: bool) -> TurnOutput {
    let writes = if writes {
        vec![(Bytes::from_static(b"k"), Some(Bytes::from_static(b"v")))]
    } else {
        Vec::new()
    };
    let result = TurnResult::Replied(answer);
    TurnOutput { writes, state_bytes: Some(2), ..TurnOutput::without_effects(result) }
}

#[test]
fn promise_2_replies_wait_for_commits_and_turns_do_not() {
    let mut harness = Harness::serving();
    let first = harness.send(1, 0, MessageKind::Command);
    harness.run();
    assert_eq!(harness.code_of(first), None, "not durable yet");
    let second = harness.send(2, 1, MessageKind::Command);
    harness.run();
    assert_eq!(
        harness.commits.iter().map(|c| (c.expected_version, c.head.version)).collect::<Vec<_>>(),
        [(0, 1), (1, 2)]
    );
    harness.settle(CommitOutcome::Committed);
    assert_eq!(
        (harness.code_of(first).as_deref(), harness.code_of(second)),
        (Some("final 1"), None)
    );
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(second).as_deref(), Some("final 2"));
}

#[test]
fn r1_a_refused_turn_also_refuses_all_that_built_on_it() {
    let mut harness = Harness::serving();
    let tokens = [harness.send(1, 0, MessageKind::Command)];
    harness.run();
    let behind = harness.send(2, 1, MessageKind::Command);
    harness.run();
    let query = harness.send(3, 2, MessageKind::Query);
    harness.run();
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(harness.loads, 1, "R3: no load while a commit of the entity is pending");
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    for token in [tokens[0], behind, query] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::COMMIT_REFUSED));
    }
    harness.send(4, 0, MessageKind::Command);
    assert_eq!(harness.loads, 2, "what ran ahead is discarded and loaded again");
}

#[test]
fn a_turn_too_large_for_any_store_is_refused_for_good() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("19 MiB".into())));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::TURN_TOO_LARGE));
    assert!(!harness.may_be_sent_again(token), "it would fail on every node");
    let later = harness.send(2, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert!(harness.may_be_sent_again(later), "the disk may have space again");
}

#[test]
fn r3_unknown_commit_outcome_forces_a_new_claim() {
    let mut harness = Harness::serving();
    let first = harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!(harness.code_of(first).as_deref(), Some("unknown"));
    assert_eq!(harness.claims.iter().map(|claim| claim.number).collect::<Vec<_>>(), [1, 2]);
    harness.send(1, 0, MessageKind::Command);
    assert!(harness.running.is_none(), "nothing runs before the new claim is granted");
    harness.grant();
    assert!(harness.running.is_some());
    harness.run();
    assert_eq!(harness.commits[0].claim.number, 2);
}

#[test]
fn r8_a_query_is_answered_only_under_a_valid_lease() {
    let mut harness = Harness::serving();
    let query = harness.send(1, 0, MessageKind::Query);
    harness.now += 2_400;
    harness.run();
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
    let later = harness.send(2, 0, MessageKind::Query);
    assert!(harness.running.is_none(), "no turn starts in the last fifth of the lease");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.run();
    assert_eq!(harness.code_of(later).as_deref(), Some("final 0"));
}

#[test]
fn r16_a_refusal_is_recorded_and_answered_again_to_every_copy() {
    let mut harness = Harness::serving();
    let first = harness.send(1, 0, MessageKind::Command);
    harness.answer(GuestReply::Error { code: "no".into(), message: String::new() });
    harness.settle(CommitOutcome::Committed);
    let copy = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(first), harness.code_of(copy));
    assert_eq!(harness.code_of(copy).as_deref(), Some("final 1"));
}

#[test]
fn r17_a_message_waits_for_its_predecessor() {
    let mut harness = Harness::serving();
    harness.send(2, 1, MessageKind::Command);
    assert!(harness.running.is_none());
    harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.running.as_ref().map(|(_, _, m)| m.id.sequence), Some(1));
    harness.run();
    assert_eq!(harness.running.as_ref().map(|(_, _, m)| m.id.sequence), Some(2));
}

#[test]
fn r17_a_missing_predecessor_ends_as_out_of_order_in_time() {
    let mut harness = Harness::serving();
    let token = harness.send(2, 1, MessageKind::Command);
    harness.now = harness.machine.next_wake().expect("a wake-up");
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::OUT_OF_ORDER));
}

#[test]
fn r17_a_follower_of_a_failed_message_need_not_wait() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    let follower = harness.send(2, 1, MessageKind::Command);
    let (generation, id, _) = harness.running.take().expect("a running turn");
    let result = trapped_turn();
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!(harness.dropped, 1, "a failed instance is dropped");
    assert_eq!(harness.code_of(follower).as_deref(), Some(&*codes::OUT_OF_ORDER));
}

#[test]
fn a_refused_turn_keeps_its_instance() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    let (generation, id, _) = harness.running.take().expect("a running turn");
    let (code, message) = ("overloaded".into(), String::new());
    let refused = TurnResult::Refused { code, message, retry_after: 100 };
    let result = TurnOutput::without_effects(refused);
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!((harness.dropped, harness.code_of(token).as_deref()), (0, Some("overloaded")));
    // A copy runs in the same instance.
    harness.send(1, 0, MessageKind::Command);
    let (again, ..) = harness.running.expect("a running turn");
    assert_eq!(again, generation);
}

#[test]
fn r17_an_id_reused_with_another_body_is_an_error() {
    let mut harness = Harness::serving();
    harness.send_from(b"s", 1, 0, MessageKind::Command, "1");
    let meanwhile = harness.send_from(b"s", 1, 0, MessageKind::Command, "2");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let afterwards = harness.send_from(b"s", 1, 0, MessageKind::Command, "2");
    for token in [meanwhile, afterwards] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::ID_REUSED));
    }
}

#[test]
fn r17_lanes_spilled_from_the_head_are_found_again() {
    let mut harness = Harness::with(Settings { inline_lane_bytes: 100, ..Settings::default() });
    for session in [b"a", b"b", b"c"] {
        harness.send_from(session, 1, 0, MessageKind::Command, "1");
        harness.run();
        harness.settle(CommitOutcome::Committed);
    }
    let head = harness.head.clone().expect("a head");
    assert_eq!((head.lanes.len(), head.spilled_lane_count), (1, 2));
    // A new machine: all state comes from the store.
    let (head, lanes) = (harness.head.take(), std::mem::take(&mut harness.lanes));
    let mut harness = Harness::with(Settings { inline_lane_bytes: 100, ..Settings::default() });
    (harness.head, harness.lanes) = (head, lanes);
    for (version, session) in [b"a", b"b", b"c"].into_iter().enumerate() {
        let copy = harness.send_from(session, 1, 0, MessageKind::Command, "1");
        assert_eq!(harness.code_of(copy), Some(format!("final {}", version + 1)));
    }
    assert!(harness.running.is_none(), "nothing ran twice");
}

#[test]
fn r18_a_copy_joins_the_turn_and_shares_its_outcome() {
    let mut harness = Harness::serving();
    let one = harness.send(1, 0, MessageKind::Command);
    let two = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let three = harness.send(1, 0, MessageKind::Command);
    assert!(harness.running.is_none() && harness.commits.len() == 1);
    harness.settle(CommitOutcome::Committed);
    for token in [one, two, three] {
        assert_eq!(harness.code_of(token).as_deref(), Some("final 1"));
    }
}

#[test]
fn r22_a_deadline_prevents_a_start_but_interrupts_no_turn() {
    let mut harness = Harness::serving();
    let running = harness.send(1, 0, MessageKind::Command);
    harness.tokens += 1;
    let late = Message {
        reply_token: ReplyToken(harness.tokens),
        id: MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 2 },
        deadline: Some(harness.now + 50),
        ..Message::clone(&harness.running.as_ref().expect("a running turn").2)
    };
    harness.handle(Event::Message(Arc::new(late)));
    harness.now += 60;
    harness.run();
    assert_eq!(harness.code_of(harness.tokens).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(running).as_deref(), Some("final 1"));
}

#[test]
fn r24_a_revision_older_than_the_head_does_not_run() {
    let mut harness = Harness::serving();
    harness.head = Some(Head { version: 3, revision: 9, ..Head::default() });
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::REVISION_TOO_LOW));
    assert!(
        matches!(harness.replies[0].1, Outcome::NotRun { retry_after: Some(_), .. }),
        "another node may have the revision already: {:?}",
        harness.replies
    );
    let deploy = |harness: &mut Harness, revision| {
        let settings = TypeSettings { revision, ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    };
    deploy(&mut harness, 9);
    deploy(&mut harness, 8);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    assert_eq!(
        harness.commits[0].head.revision, 9,
        "a late announcement of an older revision is ignored"
    );
}

#[test]
fn stopped_follows_the_last_commit_and_the_last_instance() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    harness.handle(Event::Stop(StopReason::HandedOff));
    let late = harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.code_of(late).as_deref(), Some(&*codes::REBALANCING));
    harness.run();
    assert_eq!(harness.stopped, 0, "its commit is pending");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 1"));
    assert_eq!(harness.stopped, 1);
}

#[test]
fn a_full_mailbox_refuses_and_parked_messages_make_room() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { mailbox_capacity: 2, revision: 1, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let parked =
        [harness.send(2, 1, MessageKind::Command), harness.send(3, 2, MessageKind::Command)];
    harness.run();
    let first = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(parked[1]).as_deref(), Some(&*codes::MAILBOX_FULL));
    assert_eq!(harness.code_of(first), None, "the message that the others wait for is admitted");
    harness.send(8, 7, MessageKind::Command);
    let full = harness.send(9, 8, MessageKind::Command);
    assert_eq!(harness.code_of(full).as_deref(), Some(&*codes::MAILBOX_FULL));
}
