//! Entities that subscribe to another entity's channels, and how items reach them (R27).

use super::tells::ran;
use super::*;

fn reader(number: u64) -> Entity {
    Entity::new("counter", format!("r{number}"))
}

impl Harness {
    pub(super) fn publisher(subscriptions: u64) -> Self {
        let mut harness = Self::with(Settings { fan_out_page: 2, ..Settings::default() });
        let tells = vec!["counter".into()];
        let settings =
            TypeSettings { revision: 2, tells, subscriptions, ..TypeSettings::default() };
        harness.deploy(settings);
        harness
    }

    /// Delivers a tell to alice.
    fn deliver(&mut self, sender: &Entity, number: u64, method: &str, body: Bytes) -> u64 {
        let session = ScopedSessionId::of_entity(sender);
        let digest = MessageDigest::compute(&alice(), method, &body);
        let id = MessageId { session, sequence: number };
        let (sender, method) = (Some(sender.clone()), method.into());
        self.post(Message { sender, id, method, body, digest, settled: number, ..self.template() })
    }

    fn topic(&mut self, topic: TopicMessage, from: u64, number: u64, body: &'static str) -> u64 {
        self.deliver(&reader(from), number, topic.method(), Bytes::from(body))
    }

    pub(super) fn subscribed(&mut self, from: u64) {
        let token = self.topic(TopicMessage::Subscribe, from, from * 100, "news\nmethod");
        self.settle(CommitOutcome::Committed);
        assert!(self.code_of(token).is_some_and(|code| code.starts_with("final")));
    }

    /// Runs the turns of fan-outs that alice has told herself, and answers all tells. Returns the items, each as
    /// `SUBSCRIBER:ITEM`, in the order in which they were sent.
    fn spread(&mut self) -> String {
        let mut items = Vec::new();
        while !self.tells.is_empty() {
            let (number, tell) = self.tells[0].clone();
            if tell.target == alice() {
                self.deliver(&alice(), number, &tell.method, tell.body.clone());
                // A copy is answered without a commit.
                self.settle_all();
            } else {
                items.push(format!("{}:{}", tell.target.id, String::from_utf8_lossy(&tell.body)));
            }
            self.answer_tell(ran());
            while !self.commits.is_empty() {
                self.settle(CommitOutcome::Committed);
            }
        }
        items.join(" ")
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        let head = self.head.as_ref().expect("a head");
        let counts = head.subscriptions().expect("a field");
        (counts.pages, counts.subscriptions)
    }
}

#[test]
fn r27_an_item_reaches_each_subscriber_page_by_page() {
    let mut harness = Harness::publisher(9);
    for from in 1..=5 {
        harness.subscribed(from);
    }
    assert_eq!((harness.counts(), harness.starts), ((3, 5), 0), "the guest has no part in it");
    assert!(harness.head.as_ref().is_some_and(|head| head.deleted), "there is no entity yet");
    harness.emit(1, &["a"]);
    assert_eq!(harness.reasons, [StartReason::FirstMessage]);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.spread(), "r1:a r2:a r3:a r4:a r5:a");
    harness.emitted(2, &["b", "c"]);
    let items = harness.spread();
    for from in 1..=5 {
        let (b, c) = (items.find(&format!("r{from}:b")), items.find(&format!("r{from}:c")));
        assert!(b.is_some() && b < c, "{items}");
    }
    assert_eq!(items.split(' ').count(), 10);
    assert_eq!(harness.outbox.len(), 0);
}

#[test]
fn r27_a_subscription_applies_between_its_two_turns() {
    let mut harness = Harness::publisher(9);
    harness.subscribed(1);
    harness.emitted(1, &["a"]);
    harness.subscribed(2);
    assert_eq!(harness.spread(), "r1:a", "it was emitted before");
    harness.emitted(2, &["b"]);
    harness.topic(TopicMessage::Unsubscribe, 1, 101, "news");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.counts(), (1, 1));
    harness.topic(TopicMessage::Subscribe, 1, 102, "news\nmethod");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.spread(), "r2:b", "what it had not been sent when it left");
    harness.emitted(3, &["c"]);
    assert_eq!(harness.spread(), "r1:c r2:c".to_owned());
    harness.topic(TopicMessage::Unsubscribe, 2, 201, "other");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.counts(), (1, 2), "another channel");
}

#[test]
fn r27_a_new_owner_continues_the_fan_out() {
    let mut harness = Harness::publisher(9);
    for from in 1..=5 {
        harness.subscribed(from);
    }
    harness.emitted(1, &["a"]);
    // The first page is sent; its tells and the next page are in the outbox when the owner ends.
    let (number, tell) = harness.tells[0].clone();
    harness.deliver(&alice(), number, &tell.method, tell.body.clone());
    harness.settle(CommitOutcome::Committed);
    let mut next = harness.restarted();
    let tells = vec!["counter".into()];
    next.deploy(TypeSettings { revision: 2, tells, ..TypeSettings::default() });
    next.tick(1_000);
    // The answer to the first page was lost, so it is delivered again.
    let items = next.spread();
    let mut items: Vec<_> = items.split(' ').collect();
    items.sort_unstable();
    assert_eq!(items, ["r1:a", "r2:a", "r3:a", "r4:a", "r5:a"]);
}

#[test]
fn r27_slow_subscribers_hold_a_fan_out_back() {
    let mut harness = Harness::publisher(9);
    for from in 1..=4 {
        harness.subscribed(from);
    }
    for sequence in 1..=9 {
        harness.emitted(sequence, &["i"]);
    }
    // No subscriber answers.
    while let Some(at) = harness.tells.iter().position(|(_, tell)| tell.target == alice()) {
        let (number, tell) = harness.tells.remove(at);
        harness.deliver(&alice(), number, &tell.method, tell.body.clone());
        harness.settle(CommitOutcome::Committed);
        let (sender, target, created_ms) = (alice(), alice(), tell.created_ms);
        let outcome = ran();
        harness.handle(Event::TellAnswered { sender, target, number, created_ms, outcome });
        harness.settle_all();
    }
    let waiting = |harness: &Harness| {
        harness.outbox.iter().filter(|(_, tell)| tell.target != alice()).count()
    };
    assert_eq!(waiting(&harness), 8, "four pages of two");
    while let Some((number, tell)) = harness.tells.first().cloned() {
        harness.tells.remove(0);
        if tell.target == alice() {
            harness.deliver(&alice(), number, &tell.method, tell.body.clone());
            harness.settle(CommitOutcome::Committed);
        }
        let (sender, target, created_ms) = (alice(), tell.target.clone(), tell.created_ms);
        let outcome = ran();
        harness.handle(Event::TellAnswered { sender, target, number, created_ms, outcome });
        harness.settle_all();
        assert!(waiting(&harness) <= 8 + 8, "done tells are deleted later");
    }
    assert_eq!(harness.outbox.len(), 0, "nothing is lost, and nothing waits");
}

#[test]
fn a_subscription_beyond_a_limit_or_a_grant_is_refused() {
    let mut harness = Harness::publisher(2);
    for (from, body, expected) in [
        (1, "news\nm", None),
        (2, "news\nm", None),
        (3, "news\nm", Some(codes::TOO_MANY_SUBSCRIPTIONS)),
        (4, "news", Some(codes::INVALID_MESSAGE)),
        (5, "\nm", Some(codes::INVALID_MESSAGE)),
    ] {
        let token = harness.topic(TopicMessage::Subscribe, from, from * 100, body);
        harness.settle(CommitOutcome::Committed);
        let reply = harness.replies.iter().find(|(other, _)| *other == token);
        let Some((_, Outcome::Final { reply, .. })) = reply else { panic!("{reply:?}") };
        match (reply, expected) {
            (GuestReply::Result(_), None) => {}
            (GuestReply::Error { code, .. }, Some(expected)) if *code == expected.as_str() => {}
            other => panic!("{other:?}"),
        }
    }
    let stranger = Entity::new("stranger", "s");
    harness.deliver(&stranger, 1, TopicMessage::Subscribe.method(), Bytes::from("news\nm"));
    assert!(matches!(&harness.commits[0].head.lanes.last().expect("a lane").replies[0].reply,
            GuestReply::Error { code, .. } if *code == codes::SUBSCRIPTION_NOT_GRANTED.as_str()));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.counts(), (1, 2));
}

#[test]
fn subscriptions_are_read_when_they_are_needed() {
    let mut harness = Harness::publisher(9);
    for from in 1..=3 {
        harness.subscribed(from);
    }
    let tells: Vec<Arc<str>> = vec!["counter".into()];
    let mut next = harness.restarted();
    next.deploy(TypeSettings { revision: 2, tells, ..TypeSettings::default() });
    next.silent = true;
    let token = next.topic(TopicMessage::Subscribe, 4, 400, "news\nm");
    let load = next.next_action();
    next.answer_load(&load);
    let read = next.next_action();
    let Action::ReadChannel { entity, reader, channel, from: 1, .. } = read.clone() else {
        panic!("{read:?}")
    };
    assert_eq!(&*channel, SUBSCRIPTION_PAGES);
    let items = Err("the store is away".into());
    next.handle(Event::ChannelRead { entity, reader, items });
    assert!(next.may_be_sent_again(token));
    let token = next.topic(TopicMessage::Subscribe, 4, 400, "news\nm");
    let load = next.next_action();
    next.answer_load(&load);
    let read = next.next_action();
    next.answer_read(read);
    next.settle(CommitOutcome::Committed);
    assert!(next.code_of(token).is_some_and(|code| code.starts_with("final")));
    assert_eq!(next.counts(), (2, 4));
}

#[test]
fn e17_a_deletion_ends_subscriptions() {
    let mut harness = Harness::publisher(9);
    for from in 1..=5 {
        harness.subscribed(from);
    }
    harness.emitted(1, &["a"]);
    harness.delete_by_turn(2);
    harness.settle_all();
    assert_eq!(harness.counts(), (0, 0));
    assert!(harness.items.is_empty(), "{:?}", harness.items.keys());
    assert_eq!(harness.spread(), "", "an item that was on its way is not sent");
    harness.emitted(3, &["b"]);
    assert_eq!(harness.spread(), "");
    harness.subscribed(6);
    harness.emitted(4, &["c"]);
    assert_eq!(harness.spread(), "r6:c");
}

#[test]
fn a_refused_subscription_is_forgotten() {
    let mut harness = Harness::publisher(9);
    harness.subscribed(1);
    let token = harness.topic(TopicMessage::Subscribe, 2, 200, "news\nm");
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert!(harness.may_be_sent_again(token));
    harness.emitted(1, &["a"]);
    assert_eq!(harness.spread(), "r1:a");
    assert_eq!(harness.counts(), (1, 1));
}
