//! Commands with idempotency keys: their replies are kept for a time, and never dropped for others (R17).

use super::*;
use crate::ids::session_of_idempotency_key;
use crate::message::MessageMetadata;

const TTL: u64 = 10_000;

fn settings() -> Settings {
    Settings {
        idempotency_ttl: TTL,
        lane_ttl: 1_000,
        max_lanes: 2,
        unsettled_bytes: 1_000,
        ..Settings::default()
    }
}

fn serving(settings: &Settings) -> Harness {
    let mut harness = Harness::with(settings.clone());
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: u64::MAX / 8 });
    harness
}

fn keyed(harness: &Harness, principal: &str, key: &str, body: &'static [u8]) -> Message {
    let session = ScopedSessionId::derive(principal, &session_of_idempotency_key(key));
    let context = MessageMetadata { principal: principal.into(), ..Default::default() };
    Message {
        id: MessageId { session, sequence: 1 },
        is_keyed: true,
        body: Bytes::from_static(body),
        digest: MessageDigest::compute(&alice(), "m", body),
        context: Arc::new(context),
        ..harness.template()
    }
}

impl Harness {
    fn run_message(&mut self, message: Message, bytes: usize) -> Option<String> {
        let token = self.post(message);
        if self.running.is_some() {
            self.answer(GuestReply::Result(vec![7; bytes].into()));
            self.settle(CommitOutcome::Committed);
        }
        self.code_of(token)
    }

    fn run_key(&mut self, principal: &str, key: &str) -> Option<String> {
        let message = keyed(self, principal, key, b"1");
        self.run_message(message, 100)
    }

    fn run_plain(&mut self, session: &[u8]) -> Option<String> {
        let id = MessageId { session: ScopedSessionId::derive("p", session), sequence: 1 };
        let message = Message { id, ..self.template() };
        self.run_message(message, 400)
    }

    /// The next owner's machine, which knows only what was committed.
    fn next_owner(self, settings: &Settings) -> Self {
        let mut next = serving(settings);
        (next.head, next.lanes, next.now) = (self.head, self.lanes, self.now);
        next.handle(Event::LeaseRenewed { sent_at: next.now, lease: u64::MAX / 8 });
        next
    }
}

fn ran(version: u64) -> Option<String> {
    Some(format!("final {version}"))
}

#[test]
fn r17_a_keys_reply_is_kept_for_its_ttl_and_no_longer() {
    let mut harness = serving(&settings());
    assert_eq!(harness.run_key("p", "k"), ran(1));
    harness.now += TTL;
    assert_eq!(harness.run_key("p", "k"), ran(1), "a request with a later creation time");
    let mut harness = harness.next_owner(&settings());
    assert_eq!(harness.run_key("p", "k"), ran(1), "at the next owner");
    harness.now += 1;
    assert_eq!(harness.run_key("p", "k"), ran(2), "it runs again");
    harness.now += TTL + 1;
    let mut harness = harness.next_owner(&settings());
    assert_eq!(harness.run_key("p", "other"), ran(3));
    assert_eq!(harness.lanes.len(), 1, "the record of the first key is deleted");
}

#[test]
fn r17_an_early_copy_of_an_expired_key_does_not_run() {
    let mut harness = serving(&settings());
    let early = keyed(&harness, "p", "k", b"1");
    harness.now += 5;
    assert_eq!(harness.run_key("p", "k"), ran(1));
    harness.now += TTL + 1;
    let late = keyed(&harness, "p", "k", b"1");
    assert_eq!(harness.run_message(early, 1), Some(codes::TOO_OLD.into()));
    assert_eq!(harness.run_message(late, 1), ran(2));
}

#[test]
fn r17_sessions_and_their_replies_push_out_no_key() {
    let mut harness = serving(&settings());
    assert_eq!(harness.run_key("p", "k"), ran(1));
    for session in 0..10_u8 {
        harness.now += 1;
        assert!(harness.run_plain(&[session]).is_some_and(|it| it.starts_with("final")));
    }
    let token = harness.post(keyed(&harness, "p", "k", b"1"));
    let reply = harness.replies.iter().find(|(other, _)| *other == token);
    let whole = GuestReply::Result(vec![7; 100].into());
    assert_eq!(reply.map(|(_, it)| it), Some(&Outcome::Final { reply: whole, version: 1 }));
    let lanes = harness.head.as_ref().map_or(0, |head| head.lanes.len());
    assert_eq!((lanes, harness.lanes.len()), (2, 1), "keys do not count as sessions");
}

#[test]
fn r17_keys_and_their_replies_push_out_no_session() {
    let mut harness = serving(&settings());
    harness.run_plain(b"s");
    for key in 0..20 {
        harness.now += 1;
        assert_eq!(harness.run_key("p", &key.to_string()), ran(2 + key));
    }
    let token = harness.run_plain(b"s");
    assert_eq!(token, ran(1));
    let dropped =
        |(_, it): &(u64, Outcome)| matches!(it, Outcome::Final { reply: GuestReply::Dropped, .. });
    assert!(!harness.replies.iter().any(dropped));
}

#[test]
fn r17_a_principal_uses_no_more_keys_than_are_left() {
    let settings = Settings { idempotency_keys: 8, ..settings() };
    let mut harness = serving(&settings);
    let full = Some(codes::TOO_MANY_IDEMPOTENCY_KEYS.to_string());
    for key in ["1", "2", "3", "4"] {
        assert!(harness.run_key("greedy", key) != full);
    }
    assert_eq!(harness.run_key("greedy", "5"), full);
    let mut harness = harness.next_owner(&settings);
    assert_eq!(harness.run_key("greedy", "5"), full, "also after a hand-off");
    assert_eq!(harness.run_key("greedy", "1"), ran(1), "old keys still get their reply");
    assert_eq!(harness.run_key("modest", "1"), ran(5));
    assert_eq!(harness.run_key("modest", "2"), ran(6));
    assert_eq!(harness.run_key("modest", "3"), full);
    assert_eq!(harness.run_plain(b"s"), ran(7), "messages without a key run");
    harness.now += TTL + 1;
    assert_eq!(harness.run_key("greedy", "5"), ran(8), "the others have expired");
}

#[test]
fn r17_the_bytes_of_keys_replies_are_bounded() {
    let settings = Settings { idempotency_bytes: 1_000, ..settings() };
    let mut harness = serving(&settings);
    let full = Some(codes::TOO_MANY_IDEMPOTENCY_KEYS.to_string());
    for key in ["1", "2", "3", "4"] {
        assert!(harness.run_key("p", key) != full, "560 bytes of 1,000");
    }
    assert_eq!(harness.run_key("p", "5"), full);
    let mut harness = harness.next_owner(&settings);
    assert_eq!(harness.run_key("p", "5"), full, "also after a hand-off");
    harness.now += TTL + 1;
    assert_eq!(harness.run_key("p", "5"), ran(5));
}

#[test]
fn r17_a_key_names_one_request_of_one_principal() {
    let mut harness = serving(&settings());
    assert_eq!(harness.run_key("p", "k"), ran(1));
    assert_eq!(harness.run_key("q", "k"), ran(2), "another principal's key is another key");
    let other = keyed(&harness, "p", "k", b"2");
    let reused = Some(codes::IDEMPOTENCY_KEY_REUSED.to_string());
    assert_eq!(harness.run_message(other.clone(), 1), reused);
    // A copy that is pending is compared, too.
    let first = harness.post(keyed(&harness, "p", "new", b"1"));
    let joined = harness.post(keyed(&harness, "p", "new", b"1"));
    let other = Message { id: keyed(&harness, "p", "new", b"1").id, ..other };
    let refused = harness.post(other);
    assert_eq!(harness.code_of(refused), reused);
    harness.answer(GuestReply::Result(Bytes::new()));
    harness.settle(CommitOutcome::Committed);
    assert_eq!([first, joined].map(|token| harness.code_of(token)), [ran(3), ran(3)]);
}

#[test]
fn r17_a_query_uses_no_key() {
    let mut harness = serving(&settings());
    assert_eq!(harness.run_key("p", "k"), ran(1));
    let query = Message { kind: MessageKind::Query, ..keyed(&harness, "p", "q", b"1") };
    harness.post(query);
    harness.run();
    assert_eq!((harness.commits.len(), harness.lanes.len()), (0, 1));
    assert_eq!(harness.run_key("p", "q"), ran(2));
}

#[test]
fn r17_a_key_stands_for_one_command_only() {
    let settings = settings();
    let mut harness = serving(&settings);
    let reused = Some(codes::IDEMPOTENCY_KEY_REUSED.to_string());
    let second = |harness: &Harness, is_keyed: bool| {
        let first = keyed(harness, "p", "k", b"1");
        let id = MessageId { sequence: 2, ..first.id };
        Message { id, is_keyed, ..first }
    };
    let early = second(&harness, true);
    assert_eq!(harness.run_message(early, 1), reused, "the first command has number 1");
    assert_eq!(harness.run_key("p", "k"), ran(1));
    let (flagged, plain) = (second(&harness, true), second(&harness, false));
    assert_eq!(harness.run_message(flagged, 1), reused);
    assert_eq!(harness.run_message(plain, 1), Some(codes::ID_REUSED.into()));
    let mut harness = harness.next_owner(&settings);
    let plain = second(&harness, false);
    assert_eq!(harness.run_message(plain, 1), Some(codes::ID_REUSED.into()), "after a hand-off");
    assert_eq!(harness.lanes[0].replies.len(), 1);
}

#[test]
fn e17_keys_outlive_the_deletion_of_their_entity() {
    let settings = settings();
    let mut harness = serving(&settings);
    assert_eq!(harness.run_key("p", "k"), ran(1));
    harness.post(keyed(&harness, "p", "delete", b"1"));
    let (generation, turn_id, _) = harness.running.take().expect("a turn");
    let mut output = turn(GuestReply::Result(Bytes::new()), false);
    output.delete = true;
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: turn_id, result: output });
    while !harness.commits.is_empty() {
        harness.settle(CommitOutcome::Committed);
    }
    let mut harness = harness.next_owner(&settings);
    assert_eq!(harness.run_key("p", "k"), ran(1));
    assert_eq!(harness.run_key("p", "delete"), ran(2));
    let until = harness.head.as_ref().and_then(|head| head.expires_at);
    assert!(until.is_some(), "the head goes later");
}
