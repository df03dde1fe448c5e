//! Channels: what subscribers get, when, and what they learn about items that they have missed (R3, R8).

use super::*;
use crate::records::ChannelCursor;

const WAIT: u32 = 1_000;

impl Harness {
    /// A serving machine whose channels keep this many items.
    fn keeping(items: u64) -> Self {
        let mut harness = Self::serving();
        harness.keep(items);
        harness
    }

    fn keep(&mut self, items: u64) {
        let keep = ChannelKeep { items, bytes: 1 << 20 };
        let settings = TypeSettings { keep, revision: 2, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// The next owner, whose channels keep this many items.
    fn succeeded(self, items: u64) -> Self {
        let mut next = self.restarted();
        next.keep(items);
        next
    }

    pub(super) fn answer_read(&mut self, action: Action) {
        let Action::ReadChannel { entity, reader, channel, from, max_items, .. } = action else {
            panic!("{action:?}")
        };
        let of = |((name, number), item): (&(Arc<str>, u64), &ChannelItem)| {
            (*name == channel && *number >= from).then(|| (*number, item.clone()))
        };
        let items = Ok(self.items.iter().filter_map(of).take(max_items).collect());
        self.handle(Event::ChannelRead { entity, reader, items });
    }

    /// Runs a command whose turn emits these items on the channel `news`. Its commit is left to the test.
    pub(super) fn emit(&mut self, sequence: u64, items: &[&'static str]) {
        self.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, id, message) = self.running.take().expect("a running turn");
        let emit = |item: &&'static str| Emit { channel: "news".into(), data: Bytes::from(*item) };
        let emits = items.iter().map(emit).collect();
        let result = TurnOutput { emits, ..turn(GuestReply::Result(Bytes::new()), false) };
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn: id, result });
    }

    pub(super) fn emitted(&mut self, sequence: u64, items: &[&'static str]) {
        self.emit(sequence, items);
        self.settle(CommitOutcome::Committed);
    }

    /// Asks for up to three items. Returns the request's token.
    fn read(&mut self, from: ChannelPosition) -> u64 {
        let (channel, extensions) = ("news".into(), crate::extensions::Extensions::default());
        let (max_items, max_bytes, wait_ms) = (3, 1 << 20, WAIT);
        let read = ChannelRead { channel, from, max_items, max_bytes, wait_ms, extensions };
        self.read_with(read.encode())
    }

    /// Asks for items, and returns the token and the read of the store that it causes. Actions are left to the test.
    fn scan(&mut self, from: ChannelPosition) -> (u64, Action) {
        self.silent = true;
        let token = self.read(from);
        let load = self.next_action();
        self.answer_load(&load);
        (token, self.next_action())
    }

    fn read_with(&mut self, body: Bytes) -> u64 {
        let (kind, method) = (MessageKind::Query, READ_CHANNEL.into());
        self.post(Message { kind, method, body, ..self.template() })
    }

    fn page(&self, token: u64) -> Option<ChannelPage> {
        let reply = self.replies.iter().find(|(other, _)| *other == token)?;
        match &reply.1 {
            Outcome::Final { reply: GuestReply::Result(body), .. } => {
                Some(ChannelPage::decode(body).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The items of a read's page as text, behind what is lost: `-2 c d`; `None` while the read waits.
    fn text(&self, token: u64) -> Option<String> {
        let page = self.page(token)?;
        let lost = match page.lost {
            Lost::Nothing => None,
            Lost::Items(lost) => Some(format!("-{lost}")),
            Lost::Unknown => Some("-?".into()),
        };
        let items = page.items.iter().map(|it| String::from_utf8_lossy(&it.data).into_owned());
        Some(lost.into_iter().chain(items).collect::<Vec<_>>().join(" "))
    }

    /// Reads from a position, and returns the page's text and the next position.
    fn follow(&mut self, from: ChannelPosition) -> (String, ChannelPosition) {
        let token = self.read(from);
        let page = self.page(token).expect("an answer");
        (self.text(token).unwrap(), ChannelPosition::After(page.next))
    }

    fn wait(&mut self, millis: u64) {
        self.now += millis;
        self.handle(Event::LeaseRenewed { sent_at: self.now, lease: 3_000 });
        self.handle(Event::Tick);
    }
}

fn after(version: u64, number: u64) -> ChannelPosition {
    ChannelPosition::After(ChannelCursor { generation: 0, version, number })
}

#[test]
fn r3_only_durable_items_reach_a_subscriber() {
    let mut harness = Harness::serving();
    let (nothing, now) = harness.follow(ChannelPosition::Now);
    assert_eq!(nothing, "", "the cursor is what matters");
    let token = harness.read(now);
    harness.emit(1, &["a"]);
    harness.emit(2, &["b", "c"]);
    assert_eq!(harness.text(token), None, "neither turn is durable");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.text(token).as_deref(), Some("a"));
    let page = harness.page(token).unwrap();
    assert_eq!((page.items[0].number, page.items[0].version), (1, 1));
    let rest = harness.read(ChannelPosition::After(page.next));
    assert_eq!(harness.text(rest), None);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.text(rest).as_deref(), Some("b c"));
}

#[test]
fn r3_items_of_a_refused_turn_are_never_returned() {
    let mut harness = Harness::serving();
    let (_, now) = harness.follow(ChannelPosition::Now);
    let token = harness.read(now);
    harness.emit(1, &["lost"]);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.text(token), None);
    harness.emitted(1, &["a"]);
    assert_eq!(harness.text(token).as_deref(), Some("a"));
    assert_eq!(harness.page(token).unwrap().next.number, 1, "the number was given back");
}

#[test]
fn r3_an_unknown_commit_is_read_from_the_store() {
    let mut harness = Harness::keeping(100);
    let (_, now) = harness.follow(ChannelPosition::Now);
    let token = harness.read(now);
    harness.emit(1, &["a"]);
    let commit = harness.commits[0].clone();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!(harness.text(token), None);
    // It was durable after all, which the next load shows, although nobody sends a message.
    harness.commits.push(commit);
    harness.settle(CommitOutcome::Committed);
    harness.grant();
    assert_eq!(harness.text(token).as_deref(), Some("a"));
}

#[test]
fn a_read_ends_without_items_when_its_time_is_over() {
    let mut harness = Harness::serving();
    let (_, now) = harness.follow(ChannelPosition::Now);
    let token = harness.read(now);
    harness.wait(u64::from(WAIT) - 1);
    assert_eq!(harness.text(token), None);
    assert_eq!(harness.machine.next_wake(), Some(harness.now + 1));
    harness.wait(1);
    assert_eq!(harness.text(token).as_deref(), Some(""));
    assert_eq!(ChannelPosition::After(harness.page(token).unwrap().next), now);
}

#[test]
fn kept_items_are_read_in_order_page_by_page() {
    let mut harness = Harness::keeping(100);
    for (sequence, item) in ["a", "b", "c", "d"].iter().enumerate() {
        harness.emitted(sequence as u64 + 1, &[item]);
    }
    let mut harness = harness.succeeded(100);
    let (first, next) = harness.follow(ChannelPosition::Oldest);
    let (second, end) = harness.follow(next);
    assert_eq!((&*first, &*second, end), ("a b c", "d", after(4, 4)));
    let token = harness.read(end);
    assert_eq!(harness.text(token), None, "it waits for the next one");
    assert_eq!((harness.starts, harness.rooms), (0, 0), "reads need no instance");
    harness.emitted(5, &["e"]);
    assert_eq!(harness.text(token).as_deref(), Some("e"));
}

#[test]
fn a_page_ends_at_its_size_but_holds_one_item() {
    let mut harness = Harness::keeping(100);
    harness.emitted(1, &["a", "b", "c"]);
    let read = |from, max_bytes| ChannelRead {
        channel: "news".into(),
        from,
        max_items: 9,
        max_bytes,
        wait_ms: 0,
        extensions: Default::default(),
    };
    let tokens =
        [250, 1].map(|size| harness.read_with(read(ChannelPosition::Oldest, size).encode()));
    let texts = tokens.map(|token| harness.text(token).unwrap());
    assert_eq!(texts, ["a b", "a"]);
    let mut harness = harness.succeeded(100);
    let tokens = [250, 1].map(|size| harness.read_with(read(after(1, 1), size).encode()));
    let texts = tokens.map(|token| harness.text(token).unwrap());
    assert_eq!(texts, ["b c", "b"], "also if only the item before it fits into the first scan");
}

#[test]
fn a_subscriber_learns_how_many_items_it_has_missed() {
    let mut harness = Harness::serving();
    let (_, now) = harness.follow(ChannelPosition::Now);
    harness.emitted(1, &["a", "b"]);
    let mut harness = harness.restarted();
    assert_eq!(harness.follow(now).0, "-2", "a channel that keeps nothing lost them");
    assert_eq!(harness.follow(after(1, 1)).0, "-1");
    let token = harness.read(after(1, 2));
    assert_eq!(harness.text(token), None, "nothing was lost");

    harness.keep(2);
    harness.emitted(2, &["c"]);
    harness.emitted(3, &["d"]);
    harness.emitted(4, &["e"]);
    assert_eq!(harness.items.len(), 2);
    assert_eq!(harness.succeeded(2).follow(after(1, 1)).0, "-2 d e", "b and c");
}

#[test]
fn followers_get_items_that_no_store_keeps() {
    let mut harness = Harness::serving();
    let (_, mut position) = harness.follow(ChannelPosition::Now);
    for (sequence, item) in ["a", "b", "c"].iter().enumerate() {
        // The item comes between two reads.
        harness.emitted(sequence as u64 + 1, &[item]);
        harness.wait(4_000);
        let (text, next) = harness.follow(position);
        assert_eq!(text, **item);
        position = next;
    }
    assert!(harness.items.is_empty());
    harness.wait(5_000);
    harness.emitted(4, &["d"]);
    assert_eq!(harness.follow(position).0, "-1", "nobody has read for a while");
}

#[test]
fn the_items_in_memory_are_bounded() {
    let settings = Settings { channel_buffer: 250, ..Settings::default() };
    let mut harness = Harness::with(settings);
    let (_, now) = harness.follow(ChannelPosition::Now);
    harness.emitted(1, &["a", "b", "c"]);
    assert_eq!(harness.follow(now).0, "-1 b c");
    harness.emitted(
        2,
        &["an item that is larger than the buffer, since it has very, very, very \
         many words, so many that nobody would read them all, and more than 250 bytes, as one \
         that counts them can see, because this sentence goes on and on, until it is long enough"],
    );
    assert!(harness.follow(now).0.starts_with("-3 an item"), "the last one always stays");
}

#[test]
fn a_read_begins_behind_a_version() {
    let mut harness = Harness::keeping(100);
    for sequence in 1..=40 {
        harness.emitted(sequence, &["x", "y"]);
    }
    harness.send(41, 40, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let numbers = |harness: &mut Harness, version| {
        let token = harness.read(ChannelPosition::AfterVersion(version));
        let page = harness.page(token)?;
        Some((page.lost, page.items.iter().map(|it| it.number).collect::<Vec<_>>()))
    };
    let mut harness = harness.succeeded(100);
    {
        for version in 0..40 {
            let (lost, found) = numbers(&mut harness, version).unwrap();
            let expected = version * 2 + 1..;
            assert_eq!(lost, Lost::Nothing, "{version}");
            assert!(!found.is_empty() && found.iter().copied().eq(expected.take(found.len())));
        }
        assert_eq!(numbers(&mut harness, 40), None, "it waits");
        assert_eq!(numbers(&mut harness, 41), None);
        assert_eq!(numbers(&mut harness, 42), Some((Lost::Unknown, vec![])), "no such version yet");
        harness.keep(16);
        harness.emitted(42, &["z"]);
        let first = harness.head.as_ref().unwrap().channels().unwrap()["news"].first.number;
        let (lost, found) = numbers(&mut harness, 3).unwrap();
        assert_eq!((lost, found[0]), (Lost::Unknown, first), "the first ones are gone");
    }
}

#[test]
fn behind_a_version_known_items_in_memory_are_skipped() {
    let mut harness = Harness::serving();
    harness.follow(ChannelPosition::Now);
    harness.emitted(1, &["a"]);
    harness.emitted(2, &["b"]);
    assert_eq!(harness.follow(ChannelPosition::AfterVersion(0)).0, "a b");
    assert_eq!(harness.follow(ChannelPosition::AfterVersion(1)).0, "b");
    let mut harness = harness.restarted();
    assert_eq!(harness.follow(ChannelPosition::AfterVersion(1)).0, "-?", "nothing is kept");
}

#[test]
fn r5_a_cursor_of_another_history_is_noticed() {
    let mut harness = Harness::keeping(100);
    for (sequence, item) in ["a", "b", "c"].iter().enumerate() {
        harness.emitted(sequence as u64 + 1, &[item]);
    }
    let unknown = |cursor| ChannelPosition::After(ChannelCursor { generation: 1, ..cursor });
    let mut harness = harness.succeeded(100);
    {
        let wrong = [
            ("an item that does not exist", after(3, 4)),
            ("another last item", after(2, 3)),
            ("an item of another version", after(1, 2)),
            (
                "an entity that was deleted since",
                unknown(ChannelCursor { version: 2, number: 2, generation: 0 }),
            ),
            ("a version that does not exist", after(9, 1)),
        ];
        for (why, position) in wrong {
            assert_eq!(harness.follow(position).0, "-? a b c", "{why}");
        }
        assert_eq!(harness.follow(after(2, 2)).0, "c");
    }
}

#[test]
fn e17_a_deletion_ends_the_history_of_a_channel() {
    let mut harness = Harness::keeping(100);
    harness.emitted(1, &["a", "b"]);
    let waiting = harness.read(after(1, 2));
    harness.send(2, 1, MessageKind::Command);
    let (generation, turn_id, _) = harness.running.take().expect("a running turn");
    let result = TurnOutput { delete: true, ..turn(GuestReply::Result(Bytes::new()), true) };
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: turn_id, result });
    assert_eq!(harness.text(waiting), None, "the deletion is not durable");
    while !harness.commits.is_empty() {
        harness.settle(CommitOutcome::Committed);
    }
    assert_eq!(harness.text(waiting).as_deref(), Some("-?"), "what it followed is gone");
    let head = harness.head.clone().expect("a head");
    assert_eq!((head.channels().unwrap().len(), head.is_purged()), (0, Ok(false)));
    assert!(harness.items.is_empty(), "its items are removed");
    let next = ChannelPosition::After(harness.page(waiting).unwrap().next);
    harness.emitted(3, &["c"]);
    assert_eq!(harness.follow(next).0, "c", "numbers begin anew");
    assert_eq!(harness.follow(after(1, 1)).0, "-? c", "a cursor from before");
}

#[test]
fn r8_a_read_is_answered_only_under_a_valid_lease() {
    let mut harness = Harness::serving();
    let (_, now) = harness.follow(ChannelPosition::Now);
    let token = harness.read(now);
    harness.emit(1, &["a"]);
    harness.now += 2_400;
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.text(token), None, "it is in the last fifth of the lease");
    harness.now += 5_000;
    harness.handle(Event::Tick);
    assert_eq!(harness.text(token), None);
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert_eq!(harness.text(token).as_deref(), Some("a"));
}

#[test]
fn r8_a_page_read_under_a_lapsed_lease_is_not_returned() {
    let mut harness = Harness::keeping(100);
    harness.emitted(1, &["a"]);
    let mut harness = harness.succeeded(100);
    let (token, scan) = harness.scan(ChannelPosition::Oldest);
    harness.now += 2_400;
    harness.answer_read(scan);
    assert_eq!(harness.code_of(token).as_deref(), Some("store-unavailable"));
    assert!(harness.may_be_sent_again(token));
}

#[test]
fn a_stopping_shard_refuses_waiting_reads_at_once() {
    for has_instance in [true, false] {
        let mut harness = Harness::serving();
        if has_instance {
            harness.emitted(1, &["a"]);
        }
        let (_, now) = harness.follow(ChannelPosition::Now);
        let token = harness.read(now);
        harness.handle(Event::Stop(StopReason::HandedOff));
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::REBALANCING));
        assert!(harness.may_be_sent_again(token));
        assert_eq!(harness.stopped, 1, "nothing stays in memory");
    }
}

#[test]
fn subscribers_keep_no_instance_awake() {
    let mut harness = Harness::serving();
    harness.emitted(1, &["a"]);
    let (_, mut now) = harness.follow(ChannelPosition::Now);
    let mut tokens = Vec::new();
    for _ in 0..130 {
        tokens.push(harness.read(now));
        harness.wait(1_000);
        now = ChannelPosition::After(harness.page(*tokens.last().unwrap()).unwrap().next);
    }
    assert_eq!((harness.dropped, harness.rooms), (1, 0), "it was idle for two minutes");
    let token = harness.read(now);
    harness.emitted(2, &["b"]);
    assert_eq!((harness.text(token).as_deref(), harness.starts), (Some("b"), 2));
}

#[test]
fn an_entity_without_subscribers_leaves_memory() {
    let mut harness = Harness::serving();
    let (_, now) = harness.follow(ChannelPosition::Now);
    let token = harness.read(now);
    harness.wait(1_000);
    assert_eq!(harness.text(token).as_deref(), Some(""));
    assert_eq!(harness.machine.stats().0, 1, "another read is likely");
    harness.wait(4_999);
    assert_eq!(harness.machine.stats().0, 1);
    harness.wait(1);
    assert_eq!(harness.machine.stats().0, 0);
}

#[test]
fn too_many_waiting_reads_are_refused_with_the_setting() {
    let mut harness = Harness::with(Settings { max_channel_reads: 2, ..Settings::default() });
    let (_, now) = harness.follow(ChannelPosition::Now);
    let [one, two, three] = [(); 3].map(|()| harness.read(now));
    assert_eq!(harness.code_of(three).as_deref(), Some(&*codes::TOO_MANY_SUBSCRIBERS));
    assert!(harness.may_be_sent_again(three));
    harness.emitted(1, &["a"]);
    let texts = [one, two].map(|token| harness.text(token).unwrap());
    assert_eq!(texts, ["a", "a"]);
    assert_eq!(harness.follow(now).0, "a", "there is room again");
}

#[test]
fn a_read_that_makes_no_sense_is_refused() {
    let mut harness = Harness::serving();
    let read = ChannelRead {
        channel: "news".into(),
        from: ChannelPosition::Now,
        max_items: 1,
        max_bytes: 1,
        wait_ms: 0,
        extensions: Default::default(),
    };
    let bodies = [
        Bytes::from_static(b"\xff"),
        ChannelRead { channel: "".into(), ..read.clone() }.encode(),
        ChannelRead { channel: "x".repeat(129).into(), ..read.clone() }.encode(),
        ChannelRead { channel: "a\nb".into(), ..read.clone() }.encode(),
        ChannelRead { max_items: 0, ..read.clone() }.encode(),
        ChannelRead { max_bytes: 0, ..read.clone() }.encode(),
    ];
    for body in bodies {
        let token = harness.read_with(body);
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::INVALID_MESSAGE));
        assert!(!harness.may_be_sent_again(token));
    }
    assert_eq!(harness.loads, 0);
}

#[test]
fn a_failed_read_of_the_store_is_retryable() {
    let mut harness = Harness::keeping(100);
    harness.emitted(1, &["a"]);
    let mut harness = harness.succeeded(100);
    let (token, scan) = harness.scan(ChannelPosition::Oldest);
    let Action::ReadChannel { entity, reader, .. } = scan else { panic!() };
    harness.handle(Event::ChannelRead { entity, reader, items: Err("broken".into()) });
    assert_eq!(harness.code_of(token).as_deref(), Some("store-unavailable"));
    assert!(harness.may_be_sent_again(token));
}

#[test]
fn items_that_the_store_does_not_have_end_the_read() {
    let mut harness = Harness::keeping(100);
    harness.emitted(1, &["a", "b"]);
    harness.items.clear();
    let mut harness = harness.succeeded(100);
    let (text, end) = harness.follow(ChannelPosition::Oldest);
    assert_eq!((&*text, end), ("-?", after(1, 2)), "it does not read forever");
}

#[test]
fn items_removed_during_a_read_count_as_lost() {
    let mut harness = Harness::keeping(2);
    harness.emitted(1, &["a"]);
    harness.emitted(2, &["b"]);
    let mut harness = harness.succeeded(2);
    let (token, scan) = harness.scan(after(0, 0));
    harness.silent = false;
    harness.emitted(3, &["c"]);
    harness.answer_read(scan);
    assert_eq!(harness.text(token).as_deref(), Some("-1 b c"));
}

#[test]
fn who_asks_for_the_oldest_item_loses_none() {
    let mut harness = Harness::keeping(2);
    harness.emitted(1, &["a"]);
    harness.emitted(2, &["b"]);
    let mut harness = harness.succeeded(2);
    let (token, scan) = harness.scan(ChannelPosition::Oldest);
    // The store has removed the first item, which the head in memory still counts.
    harness.silent = false;
    harness.items.remove(&("news".into(), 1));
    harness.answer_read(scan);
    assert_eq!(harness.text(token).as_deref(), Some("b"));
}

#[test]
fn a_damaged_channel_extent_fails_the_load() {
    let mut harness = Harness::serving();
    let mut head = Head { version: 1, ..Head::default() };
    let field = crate::codec::encode(&vec![(12_u32, Bytes::from_static(b"\xff"))]).unwrap();
    head.extensions = crate::codec::decode(&field).unwrap();
    harness.head = Some(head);
    let token = harness.read(ChannelPosition::Oldest);
    assert_eq!(harness.code_of(token).as_deref(), Some("store-unavailable"));
}
