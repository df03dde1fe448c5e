//! What an entity forgets of its sessions, and which messages it never runs again (R17).

use super::*;

fn settings() -> Settings {
    Settings { max_lanes: 2, ..Settings::default() }
}

/// A message from a principal with the given creation time.
fn message(
    harness: &Harness,
    principal: &str,
    session: &[u8],
    sequence: u64,
    created: u64,
) -> Message {
    let id = MessageId { session: ScopedSessionId::derive(principal, session), sequence };
    let context =
        crate::message::MessageMetadata { principal: principal.into(), ..Default::default() };
    Message { id, created_ms: created, context: Arc::new(context), ..harness.template() }
}

impl Harness {
    /// A machine whose lease does not expire.
    fn relying(settings: Settings) -> Self {
        let mut harness = Self::with(settings);
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: u64::MAX / 8 });
        harness
    }

    /// Sends a message from `client/x`, and runs and commits it if it is admitted.
    fn run_one(&mut self, session: &[u8], sequence: u64, created: u64) -> Option<String> {
        self.run_for("client/x", session, sequence, created, 1)
    }

    fn run_for(
        &mut self,
        principal: &str,
        session: &[u8],
        sequence: u64,
        created: u64,
        bytes: usize,
    ) -> Option<String> {
        let token = self.post(message(self, principal, session, sequence, created));
        if self.running.is_some() {
            self.answer(GuestReply::Result(vec![7; bytes].into()));
            self.settle(CommitOutcome::Committed);
        }
        self.code_of(token)
    }

    fn stamp_of(&self, token: u64) -> Option<u64> {
        self.replies.iter().find(|(other, _)| *other == token).and_then(|(_, outcome)| {
            let Outcome::NotRun { suggested_created_ms: stamp, .. } = outcome else { return None };
            *stamp
        })
    }

    /// A new machine, as on the next owner, that knows only what was committed.
    fn again(self, settings: Settings) -> Self {
        let (head, lanes, now) = (self.head, self.lanes, self.now);
        let mut harness = Self::relying(settings);
        (harness.head, harness.lanes, harness.now) = (head, lanes, now);
        harness
    }
}

fn too_old() -> Option<String> {
    Some(codes::TOO_OLD.into())
}

#[test]
fn r17_a_copy_of_what_ran_in_a_dropped_lane_is_refused() {
    for head_lane_bytes in [0, 1_024] {
        let settings = Settings { inline_lane_bytes: head_lane_bytes, ..settings() };
        let mut harness = Harness::relying(settings.clone());
        for (version, session) in [b"a", b"b", b"c"].into_iter().enumerate() {
            let created = 900 + version as u64;
            let ran = harness.run_one(session, 1, created);
            assert_eq!(ran, Some(format!("final {}", version + 1)));
        }
        assert_eq!(harness.run_one(b"a", 1, 900), too_old(), "the lane of c replaced its lane");
        assert_eq!(
            harness.stamp_of(harness.tokens),
            Some(harness.now),
            "an acceptable creation time"
        );
        assert_eq!(harness.run_one(b"b", 1, 901).as_deref(), Some("final 2"), "its lane was kept");
        let mut harness = harness.again(settings);
        assert_eq!(harness.run_one(b"a", 1, 900), too_old(), "the head has the watermark");
        assert_eq!(harness.run_one(b"c", 1, 902).as_deref(), Some("final 3"));
        assert_eq!(
            harness.head.as_ref().map(|head| (head.version, head.watermark)),
            Some((3, 900))
        );
    }
}

#[test]
fn r17_a_fresh_message_of_a_forgotten_session_runs() {
    let mut harness = Harness::relying(settings());
    for (session, created) in [(b"a", 901), (b"b", 902), (b"c", 903)] {
        harness.run_one(session, 1, created);
    }
    assert_eq!(harness.run_one(b"a", 2, 901), too_old(), "it may be a copy of what ran");
    assert_eq!(harness.run_one(b"a", 2, 902).as_deref(), Some("final 4"), "restamped");
    assert_eq!(harness.run_one(b"a", 1, 901), Some(codes::SUPERSEDED.into()), "in its new lane");
}

#[test]
fn r17_without_a_dropped_lane_any_old_message_runs() {
    let mut harness = Harness::relying(settings());
    harness.now = 500_000_000;
    assert_eq!(harness.run_one(b"a", 1, 1).as_deref(), Some("final 1"));
    assert_eq!(harness.run_one(b"a", 1, 1).as_deref(), Some("final 1"));
}

#[test]
fn r17_a_query_of_a_forgotten_session_is_answered() {
    let mut harness = Harness::relying(settings());
    for (session, created) in [(b"a", 901), (b"b", 902), (b"c", 903)] {
        harness.run_one(session, 1, created);
    }
    let query = message(&harness, "client/x", b"a", 2, 1);
    let token = harness.post(Message { kind: MessageKind::Query, ..query });
    harness.run();
    assert_eq!(harness.code_of(token).as_deref(), Some("final 3"));
}

#[test]
fn r17_a_lane_unused_for_its_ttl_raises_the_watermark() {
    let settings = Settings { lane_ttl: 10_000, max_lanes: 10, ..settings() };
    let mut harness = Harness::relying(settings.clone());
    harness.run_one(b"a", 1, 990);
    harness.now += 10_001;
    let mut harness = harness.again(settings);
    assert_eq!(harness.run_one(b"a", 1, 990), too_old());
    assert_eq!(harness.run_one(b"b", 1, 991).as_deref(), Some("final 2"));
    assert_eq!(
        harness.head.as_ref().map(|head| (head.watermark, head.lanes.len())),
        Some((990, 1))
    );
}

#[test]
fn r17_a_watermark_ahead_of_the_clock_names_a_valid_time() {
    let mut harness = Harness::relying(settings());
    for (session, created) in [(b"a", 2_000), (b"b", 2_001), (b"c", 2_002)] {
        harness.run_one(session, 1, created);
    }
    assert_eq!(harness.run_one(b"d", 1, harness.now), too_old(), "cluster time went back");
    assert_eq!(harness.stamp_of(harness.tokens), Some(2_001));
    assert_eq!(harness.run_one(b"d", 1, 2_001).as_deref(), Some("final 4"));
}

#[test]
fn r17_a_creation_time_far_ahead_is_refused_with_the_time() {
    let mut harness = Harness::relying(Settings { max_clock_skew: 50, ..settings() });
    let ahead = harness.now + 51;
    assert_eq!(harness.run_one(b"a", 1, ahead), Some(codes::CREATED_IN_FUTURE.into()));
    assert_eq!(harness.stamp_of(harness.tokens), Some(harness.now));
    harness.now += 1;
    assert_eq!(harness.run_one(b"a", 1, ahead).as_deref(), Some("final 1"));
}

#[test]
fn r17_the_principal_with_most_lanes_loses_its_oldest() {
    let mut harness = Harness::relying(Settings { max_lanes: 3, ..settings() });
    harness.run_for("victim", b"v", 1, 1, 1);
    harness.run_for("greedy", b"2", 1, 901, 1);
    harness.run_for("greedy", b"1", 1, 900, 1);
    for session in 3..20_u8 {
        let ran = harness.run_for("greedy", &[session], 1, 905 + u64::from(session), 1);
        assert!(ran.is_some_and(|code| code.starts_with("final")));
        assert_eq!(harness.run_for("victim", b"v", 1, 1, 1).as_deref(), Some("final 1"));
    }
    assert_eq!(harness.run_for("greedy", b"1", 1, 900, 1), too_old());
    assert!(harness.head.as_ref().is_some_and(|head| head.watermark == 922));
}

#[test]
fn r17_on_equal_lane_counts_the_oldest_lane_is_dropped() {
    let mut harness = Harness::relying(settings());
    harness.run_for("p1", b"s", 1, 902, 1);
    harness.run_for("p2", b"s", 1, 901, 1);
    harness.run_for("p3", b"s", 1, 903, 1);
    assert_eq!(harness.run_for("p1", b"s", 1, 902, 1).as_deref(), Some("final 1"));
    assert_eq!(harness.run_for("p2", b"s", 1, 901, 1), too_old());
}

#[test]
fn r17_a_predecessor_in_a_dropped_lane_is_out_of_order() {
    let mut harness = Harness::relying(settings());
    for (session, created) in [(b"a", 901), (b"b", 902), (b"c", 903)] {
        harness.run_one(session, 1, created);
    }
    let follower = Message { after: 1, ..message(&harness, "client/x", b"a", 2, 950) };
    let token = harness.post(follower.clone());
    assert!(harness.running.is_none() && harness.code_of(token).is_none(), "it waits");
    harness.now += Settings::default().order_timeout;
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(token), Some(codes::OUT_OF_ORDER.into()));
    assert_eq!(harness.run_one(b"a", 2, 950).as_deref(), Some("final 4"));
}

#[test]
fn r17_replies_are_dropped_before_their_sequences() {
    for head_lane_bytes in [0, 100_000] {
        let settings = Settings {
            max_lanes: 100,
            unsettled_bytes: 4_000,
            inline_lane_bytes: head_lane_bytes,
            ..settings()
        };
        let mut harness = Harness::relying(settings.clone());
        for session in 0..20_u8 {
            harness.run_for("client/x", &[session], 1, 900, 1_000);
        }
        for _ in 0..2 {
            let first = harness.post(message(&harness, "client/x", &[0], 1, 900));
            let last = harness.post(message(&harness, "client/x", &[19], 1, 900));
            let answer = |harness: &Harness, token| {
                let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token)?;
                let Outcome::Final { reply: answer, version } = outcome else { return None };
                Some((answer.clone(), *version))
            };
            assert_eq!(answer(&harness, first), Some((GuestReply::Dropped, 1)));
            assert!(matches!(answer(&harness, last), Some((GuestReply::Result(_), 20))));
            let other = MessageDigest::compute(&alice(), "m", b"other");
            let reused = Message { digest: other, ..message(&harness, "client/x", &[0], 1, 900) };
            let reused = harness.post(reused);
            assert_eq!(harness.code_of(reused), Some(codes::ID_REUSED.into()), "digest is kept");
            harness = harness.again(settings.clone());
        }
        let stored: usize =
            harness.lanes.iter().flat_map(|lane| &lane.replies).map(|r| r.reply.len()).sum();
        assert!(stored <= 6_000, "{stored} bytes in spilled records");
    }
}

#[test]
fn r17_a_session_that_never_settles_loses_its_own_replies() {
    let settings = Settings { max_lanes: 100, unsettled_bytes: 8_000, ..settings() };
    let mut harness = Harness::relying(settings);
    harness.run_for("client/x", b"other", 1, 900, 1_000);
    for sequence in 1..50 {
        let ran = harness.run_for("client/x", b"hoards", sequence, 900, 1_000);
        assert_eq!(ran, Some(format!("final {}", sequence + 1)));
    }
    let token = harness.post(message(&harness, "client/x", b"other", 1, 900));
    let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token).expect("a reply");
    assert!(matches!(outcome, Outcome::Final { reply: GuestReply::Result(_), .. }), "{outcome:?}");
}

#[test]
fn r17_one_shot_sessions_keep_head_and_records_bounded() {
    let settings =
        Settings { max_lanes: 50, unsettled_bytes: 20_000, inline_lane_bytes: 400, ..settings() };
    let mut harness = Harness::relying(settings);
    let (mut heads, mut writes, mut lanes, mut stored) = (0, 0, 0, 0);
    let calls = std::env::var("ONE_SHOTS").ok().and_then(|calls| calls.parse().ok());
    for session in 0..calls.unwrap_or(5_000_u64) {
        harness.now += 1;
        harness.post(message(&harness, "client/x", &session.to_le_bytes(), 1, harness.now));
        harness.answer(GuestReply::Result(vec![7; 900].into()));
        let commit = &harness.commits[0];
        let beside = commit.writes.iter().filter(|write| matches!(write.key, RecordKey::Lane(_)));
        writes = writes.max(beside.count());
        heads = heads.max(postcard::to_stdvec(&commit.head).expect("a head").len());
        harness.settle(CommitOutcome::Committed);
        harness.replies.clear();
        lanes = lanes.max(harness.lanes.len());
        stored = stored.max(harness.lanes.iter().map(|lane| lane.replies[0].reply.len()).sum());
    }
    assert!(heads < 2_000, "a head of {heads} bytes");
    assert!(writes <= 4, "{writes} lanes written by one turn");
    assert!(lanes <= 50, "{lanes} records");
    assert!(stored <= 40_000, "{stored} bytes of replies in records");
}

#[test]
fn r17_a_record_of_an_inline_lane_is_stale() {
    let settings = Settings { max_lanes: 1, ..settings() };
    let mut harness = Harness::relying(settings.clone());
    harness.run_one(b"a", 1, 901);
    let mut former = (*harness.head.as_ref().expect("a head").lanes[0]).clone();
    former.newest_created = 800;
    harness.lanes.push(former);
    let mut harness = harness.again(settings);
    assert_eq!(harness.run_one(b"a", 2, 902).as_deref(), Some("final 2"));
    assert_eq!(
        harness.run_one(b"b", 1, 903).as_deref(),
        Some("final 3"),
        "another lane is dropped"
    );
    assert_eq!(harness.run_one(b"c", 1, 904).as_deref(), Some("final 4"), "and another one");
    assert_eq!(harness.lanes, []);
}

#[test]
fn r17_a_stale_record_of_an_inline_lane_is_deleted_once() {
    let mut harness = Harness::relying(settings());
    harness.run_one(b"a", 1, 901);
    harness.lanes.push((*harness.head.as_ref().expect("a head").lanes[0]).clone());
    let mut harness = harness.again(settings());
    harness.post(message(&harness, "client/x", b"a", 2, 902));
    harness.answer(GuestReply::Result(Bytes::new()));
    let session = ScopedSessionId::derive("client/x", b"a");
    let deletes =
        |write: &&RecordWrite| write.key == RecordKey::Lane(session) && write.value.is_none();
    assert_eq!(harness.commits[0].writes.iter().filter(deletes).count(), 1);
}

#[test]
fn r17_a_lane_stays_in_the_head_while_it_fits() {
    for (head_lane_bytes, beside) in [(81, 0), (80, 1)] {
        let mut harness =
            Harness::relying(Settings { inline_lane_bytes: head_lane_bytes, ..settings() });
        // 40 bytes for the lane, 40 for the reply, and its body.
        harness.run_for("client/x", b"a", 1, 900, 1);
        let head = harness.head.as_ref().expect("a head");
        assert_eq!((head.spilled_lane_count, harness.lanes.len()), (beside, beside as usize));
        assert_eq!(head.lanes.len(), 1 - beside as usize);
    }
}

#[test]
fn r17_a_dropped_lane_raises_the_watermark_to_its_newest() {
    let mut harness = Harness::relying(settings());
    for (sequence, created) in [(1, 901), (2, 910), (3, 905)] {
        harness.run_one(b"a", sequence, created);
    }
    harness.run_one(b"b", 1, 920);
    harness.run_one(b"c", 1, 921);
    assert_eq!(harness.head.as_ref().map(|head| head.watermark), Some(910));
    assert_eq!(harness.run_one(b"a", 4, 910), too_old());
}

#[test]
fn r17_loaded_replies_count_and_are_dropped_oldest_first() {
    let settings = Settings { max_lanes: 100, unsettled_bytes: 2_000, ..settings() };
    let mut harness = Harness::relying(settings.clone());
    harness.run_for("client/x", b"a", 1, 900, 800);
    let mut harness = harness.again(settings);
    harness.run_for("client/x", b"b", 1, 900, 800);
    harness.run_for("client/x", b"c", 1, 900, 800);
    let kept = |harness: &mut Harness, session: &[u8]| {
        let token = harness.post(message(harness, "client/x", session, 1, 900));
        harness.replies.iter().any(|(other, outcome)| {
            let whole = matches!(outcome, Outcome::Final { reply: GuestReply::Result(_), .. });
            *other == token && whole
        })
    };
    assert_eq!([b"a", b"b", b"c"].map(|session| kept(&mut harness, session)), [false, true, true]);
    let settles = Message { settled: 2, ..message(&harness, "client/x", b"b", 2, 900) };
    harness.post(settles);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert!(kept(&mut harness, b"c"), "the settled reply was dropped first");
}

#[test]
fn r17_a_hundred_old_records_are_deleted_in_two_commits() {
    let settings =
        Settings { max_lanes: 200, lane_ttl: 10_000, inline_lane_bytes: 0, ..settings() };
    let mut harness = Harness::relying(settings.clone());
    for session in 0..100_u8 {
        harness.run_one(&[session], 1, 900);
    }
    harness.now += 10_001;
    let mut harness = harness.again(settings);
    let left = |harness: &Harness| {
        harness.head.as_ref().map_or(0, |head| head.spilled_lane_count as usize)
    };
    harness.run_one(b"new", 1, harness.now);
    assert_eq!((harness.lanes.len(), left(&harness)), (37, 37), "64 are deleted, one is new");
    harness.run_one(b"new", 2, harness.now);
    assert_eq!((harness.lanes.len(), left(&harness)), (1, 1));
}

#[test]
fn r17_the_memory_of_refused_messages_is_bounded() {
    use super::super::lanes::{LaneDecision, Lanes};

    let harness = Harness::serving();
    let refused = |session: &[u8]| message(&harness, "client/x", session, 1, 900);
    let judged = |lanes: &Lanes, session: &[u8]| {
        let follower = Message { after: 1, ..message(&harness, "client/x", session, 2, 900) };
        lanes.check(&follower, true, true, None)
    };
    let mut lanes = Lanes::default();
    for session in [b"a", b"b", b"a"] {
        lanes.record_refused(&refused(session), 2);
    }
    assert_eq!(judged(&lanes, b"a"), LaneDecision::OutOfOrder);
    assert_eq!(judged(&lanes, b"b"), LaneDecision::OutOfOrder, "both are remembered");
    lanes.record_refused(&refused(b"c"), 2);
    assert_eq!(judged(&lanes, b"c"), LaneDecision::OutOfOrder);
    assert_eq!(judged(&lanes, b"a"), LaneDecision::Wait, "the earlier records are dropped");
}

/// Whether the reply to a message is kept in full, so that a copy gets it too.
fn is_whole(harness: &mut Harness, session: &[u8], sequence: u64) -> bool {
    let token = harness.post(message(harness, "client/x", session, sequence, 900));
    harness.replies.iter().any(|(other, outcome)| {
        let whole = matches!(outcome, Outcome::Final { reply: GuestReply::Result(_), .. });
        *other == token && whole
    })
}

#[test]
fn r17_settled_replies_are_dropped_and_free_room() {
    let settings = Settings { max_lanes: 100, unsettled_bytes: 2_000, ..settings() };
    let mut harness = Harness::relying(settings);
    harness.run_for("client/x", b"a", 1, 900, 400);
    harness.run_for("client/x", b"a", 2, 900, 400);
    harness.post(Message { settled: 2, ..message(&harness, "client/x", b"a", 3, 900) });
    harness.answer(GuestReply::Result(Bytes::new()));
    harness.settle(CommitOutcome::Committed);
    harness.run_for("client/x", b"b", 1, 900, 800);
    harness.run_for("client/x", b"c", 1, 900, 600);
    assert_eq!(harness.run_one(b"a", 1, 900), Some(codes::SUPERSEDED.into()), "it was settled");
    for (session, sequence) in [(b"a", 2), (b"a", 3), (b"b", 1), (b"c", 1)] {
        assert!(is_whole(&mut harness, session, sequence), "{session:?} {sequence}");
    }
}

#[test]
fn r17_one_session_may_use_half_of_the_reply_bytes() {
    for (unsettled_bytes, whole) in [(1_680, true), (1_678, false)] {
        let mut harness = Harness::relying(Settings { unsettled_bytes, ..settings() });
        harness.run_for("client/x", b"a", 1, 900, 800);
        assert_eq!(is_whole(&mut harness, b"a", 1), whole, "840 of {unsettled_bytes}");
        if whole {
            harness.run_for("client/x", b"b", 1, 900, 800);
            assert!(
                is_whole(&mut harness, b"a", 1) && is_whole(&mut harness, b"b", 1),
                "two sessions may use the whole limit"
            );
        }
    }
}

#[test]
fn r17_a_dropped_lane_frees_its_room_and_no_other_lane() {
    let settings = Settings { unsettled_bytes: 2_000, inline_lane_bytes: 10_000, ..settings() };
    let mut harness = Harness::relying(settings);
    for (session, created) in [(b"a", 901), (b"b", 902), (b"c", 903), (b"d", 904)] {
        harness.run_for("client/x", session, 1, created, 800);
    }
    let head = harness.head.as_ref().expect("a head");
    let sessions: Vec<_> = head.lanes.iter().map(|lane| lane.session).collect();
    assert_eq!(sessions, [b"c", b"d"].map(|session| ScopedSessionId::derive("client/x", session)));
    assert_eq!(head.spilled_lane_count, 0);
    assert!(is_whole(&mut harness, b"c", 1) && is_whole(&mut harness, b"d", 1));
}

#[test]
fn r17_old_lanes_are_dropped_together_when_room_is_needed() {
    let lanes = |harness: &Harness| harness.head.as_ref().map_or(0, |head| head.lanes.len());
    let settings = Settings { max_lanes: 3, lane_ttl: 6_400, ..settings() };
    let mut harness = Harness::relying(settings);
    harness.run_one(b"a", 1, 900);
    harness.run_one(b"b", 1, 901);
    harness.now += 6_401;
    harness.run_one(b"c", 1, 950);
    assert_eq!(lanes(&harness), 3, "there is space for one more");
    harness.run_one(b"d", 1, 960);
    assert_eq!(lanes(&harness), 2, "both old ones were dropped");
}

#[test]
fn r17_lane_ages_are_checked_at_intervals() {
    let settings = Settings { max_lanes: 3, lane_ttl: 6_400, ..settings() };
    let mut harness = Harness::relying(settings);
    harness.run_one(b"a", 1, 900);
    harness.now += 51;
    harness.run_one(b"x", 1, 999);
    harness.now += 6_350;
    harness.run_one(b"y", 1, 950);
    harness.run_one(b"z", 1, 960);
    // Exactly 1/64 of the time to live after that scan, no scan is made yet: the lane with the oldest messages is
    // dropped, not the one that has been unused longest.
    harness.now += 100;
    harness.run_one(b"w", 1, 970);
    assert_eq!(harness.run_one(b"x", 1, 999).as_deref(), Some("final 2"));
    assert_eq!(harness.run_one(b"y", 1, 950), too_old());
}

#[test]
fn r17_a_lane_is_kept_for_its_whole_ttl() {
    for (age, runs_again) in [(10_000, false), (10_001, true)] {
        let settings = Settings { lane_ttl: 10_000, ..settings() };
        let mut harness = Harness::relying(settings.clone());
        harness.run_one(b"a", 1, 900);
        harness.now += age;
        let mut harness = harness.again(settings);
        let ran = harness.run_one(b"a", 1, 901);
        assert_eq!(ran.as_deref(), Some(if runs_again { "final 2" } else { "final 1" }));
    }
}

#[test]
fn r17_reply_bodies_are_dropped_before_their_records() {
    let settings = Settings { max_lanes: 100, unsettled_bytes: 2_000, ..settings() };
    let mut harness = Harness::relying(settings);
    for session in [b"a", b"b", b"c", b"d"] {
        harness.run_for("client/x", session, 1, 900, 400);
    }
    harness.run_for("client/x", b"e", 1, 900, 900);
    let whole = [b"a", b"b", b"c", b"d", b"e"].map(|session| is_whole(&mut harness, session, 1));
    assert_eq!(whole, [false, false, true, true, true]);

    let mut harness =
        Harness::relying(Settings { unsettled_bytes: 100, ..super::lane_eviction::settings() });
    for sequence in 1..=3 {
        harness.run_one(b"a", sequence, 900);
    }
    assert_eq!(harness.run_one(b"a", 1, 900), Some(codes::SUPERSEDED.into()));
    assert_eq!(harness.run_one(b"a", 3, 900).as_deref(), Some("final 3"));
}

#[test]
fn r17_a_settled_reply_is_not_the_oldest_to_drop() {
    let settings = Settings { max_lanes: 100, unsettled_bytes: 2_000, ..settings() };
    let mut harness = Harness::relying(settings);
    harness.run_for("client/x", b"a", 1, 900, 400);
    harness.post(Message { settled: 2, ..message(&harness, "client/x", b"a", 2, 900) });
    harness.answer(GuestReply::Result(Bytes::new()));
    harness.settle(CommitOutcome::Committed);
    for (session, sequence, bytes) in
        [(b"b", 1, 400), (b"c", 1, 400), (b"a", 3, 400), (b"d", 1, 900)]
    {
        harness.run_for("client/x", session, sequence, 900, bytes);
    }
    assert!(!is_whole(&mut harness, b"b", 1), "the oldest unsettled reply");
    assert!(is_whole(&mut harness, b"a", 3) && is_whole(&mut harness, b"c", 1));
}
