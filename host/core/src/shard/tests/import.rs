//! The import of an exported entity.

use super::*;
use crate::codec;
use crate::records::{DelayedTell, Subscription, SubscriptionPage};
use crate::shard::timer_of_delayed_tell;

impl Harness {
    fn import(&mut self, sequence: u64, body: Bytes) -> u64 {
        let method = OperatorCommand::ImportEntity.method();
        let message = Message {
            id: MessageId { session: ScopedSessionId([9; 16]), sequence },
            kind: MessageKind::Command,
            method: method.into(),
            digest: MessageDigest::compute(&alice(), method, &body),
            body,
            ..self.template()
        };
        self.post(message)
    }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn copy() -> EntityCopy {
    EntityCopy {
        state: vec![(bytes("a"), bytes("1")), (bytes("b"), bytes("22"))],
        timers: vec![TimerCopy {
            name: "tick".into(),
            due: 9_000,
            interval: 0,
            payload: bytes("p"),
        }],
        journal: JournalCopy {
            first: 4,
            start: 300,
            events: vec![bytes("e"), bytes("ff")],
            snapshot: Some((3, bytes("s"))),
        },
        channels: vec![ChannelCopy {
            name: "news".into(),
            first: 7,
            start: 600,
            items: vec![(5, bytes("i"))],
        }],
        remembered: true,
        expires_at: Some(90_000),
        ..EntityCopy::default()
    }
}

#[test]
fn an_import_is_one_commit_with_everything() {
    let mut harness = Harness::serving();
    let keep = ChannelKeep { items: 10, bytes: 10_000 };
    let settings = TypeSettings { keep, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    let token = harness.import(1, copy().encode().expect("encodes"));
    let commit = harness.commits.last().expect("a commit").clone();
    let head = &commit.head;
    assert_eq!((head.version, head.deleted, head.remembered), (1, false, true));
    assert_eq!((head.state_bytes, head.expires_at), (205, Some(90_000)));
    assert_eq!((head.has_own_expiry(), head.timer_count()), (Ok(true), Ok(1)));
    let journal = head.journal().expect("an extent");
    assert_eq!((journal.first, journal.next, journal.snapshot), (4, 6, 3));
    assert_eq!((journal.start, journal.end), (300, 503));
    let channels = head.channels().expect("extents");
    let news = &channels["news"];
    assert_eq!((news.first.number, news.next, news.end, news.last_version), (7, 8, 701, 1));
    let has = |key: RecordKey| commit.writes.iter().any(|it| it.key == key && it.value.is_some());
    assert!(has(RecordKey::State(bytes("a"))) && has(RecordKey::Remembered));
    assert!(has(RecordKey::Timer { due: OWN_TIMERS, name: "tick".into() }));
    assert!(has(RecordKey::Timer { due: 9_000, name: "".into() }), "its wake-up");
    assert!(has(RecordKey::Journal { number: 5 }) && has(RecordKey::Journal { number: 0 }));
    assert!(has(RecordKey::ChannelItem { channel: "news".into(), number: 7 }));
    assert_eq!((harness.code_of(token), harness.starts), (None, 0), "not durable yet");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 1"));
    harness.tick(1);
    assert_eq!(harness.reasons, [StartReason::Remembered], "it is started like any remembered one");
}

#[test]
fn an_import_replaces_nothing_that_exists() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let body = copy().encode().expect("encodes");
    let token = harness.import(1, body.clone());
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::ENTITY_EXISTS));
    assert!(!harness.may_be_sent_again(token) && harness.commits.is_empty());
    // What could not be imported anywhere is said first: who replaces an entity must know it before the deletion.
    let token = harness.import(2, bytes("no copy"));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::INVALID_IMPORT));
    // Where it was deleted, an import starts it anew; the version continues.
    let mut harness = Harness::serving();
    harness.head = Some(Head { version: 8, deleted: true, ..Head::default() });
    harness.import(1, body);
    let head = &harness.commits.last().expect("a commit").head;
    assert_eq!((head.version, head.deleted), (9, false));
}

#[test]
fn an_import_brings_no_tells_that_are_not_granted() {
    for (target, method, is_granted) in [
        ("counter", "add", true),
        ("acme:counter", "add", false),
        ("order", "add", false),
        ("counter", OperatorCommand::DeleteEntity.method(), false),
    ] {
        let mut harness = Harness::serving();
        let settings = TypeSettings { tells: vec!["counter".into()], ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
        let tell = DelayedTell {
            target: Entity::new(target, "bob"),
            method: method.into(),
            body: Bytes::new(),
            content_type: "".into(),
            traceparent: "".into(),
            extensions: Default::default(),
        };
        let payload = codec::encode(&tell).expect("encodes").into();
        let name = timer_of_delayed_tell("later");
        let mut copy = copy();
        copy.timers.insert(0, TimerCopy { name, due: 9_000, interval: 0, payload });
        let token = harness.import(1, copy.encode().expect("encodes"));
        let refused = harness.code_of(token);
        assert_eq!(harness.commits.is_empty(), !is_granted, "{target}.{method}");
        assert_eq!(refused.as_deref(), (!is_granted).then_some(&*codes::INVALID_IMPORT));
    }
}

fn subscription(subscriber: &str, channel: &str) -> Subscription {
    let subscriber = Entity::new("counter", subscriber);
    Subscription { channel: channel.into(), subscriber, method: "m".into(), since: 7 }
}

/// A copy with these subscriptions.
fn with_subscriptions(subscriptions: Vec<Subscription>) -> Bytes {
    let mut copy = copy();
    copy.set_subscriptions(subscriptions).expect("encodes");
    copy.encode().expect("encodes")
}

#[test]
fn r27_an_import_restores_subscriptions_from_its_version_on() {
    let mut harness = Harness::publisher(9);
    // A subscription that was made before the entity existed stays as it is.
    harness.subscribed(1);
    let mut harness = harness.restarted();
    let tells = vec!["counter".into()];
    let settings = TypeSettings { revision: 2, tells, subscriptions: 9, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    let (known, new) = (subscription("r1", "news"), subscription("r2", "news"));
    let token = harness.import(1, with_subscriptions(vec![known, new]));
    let commit = harness.commits.last().expect("one commit");
    assert!(commit.writes.iter().any(|it| it.key == RecordKey::State(bytes("a"))));
    assert!(commit.head.channels().expect("extents").keys().eq([&Arc::from("news")]));
    harness.settle(CommitOutcome::Committed);
    assert!(harness.code_of(token).is_some_and(|code| code.starts_with("final")));
    assert_eq!(harness.counts(), (1, 2));
    let page = harness.items.get(&(SUBSCRIPTION_PAGES.into(), 1)).expect("a page");
    let stored = codec::decode::<SubscriptionPage>(&page.data).expect("decodes").subscriptions;
    let shown = stored.iter().map(|it| (&*it.subscriber.id, &*it.method, it.since));
    assert!(shown.eq([("r1", "method", 1), ("r2", "m", 2)]), "{stored:?}");
}

#[test]
fn r27_an_import_beyond_the_limit_of_subscriptions_is_refused() {
    let all = || vec![subscription("r1", "news"), subscription("r2", "news")];
    let mut harness = Harness::publisher(1);
    let token = harness.import(1, with_subscriptions(all()));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::TOO_MANY_SUBSCRIPTIONS));
    assert!(harness.commits.is_empty());
    let mut harness = Harness::serving();
    let token = harness.import(1, with_subscriptions(all()));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::SUBSCRIPTION_NOT_GRANTED));
    assert!(harness.commits.is_empty());
}

#[test]
fn an_import_with_damaged_subscriptions_is_refused() {
    let long = "x".repeat(600);
    let no_method = Subscription { method: "".into(), ..subscription("r1", "news") };
    for damaged in [
        vec![subscription("r1", "news"), subscription("r1", "news")],
        vec![subscription("r1", "a\n")],
        vec![subscription(&long, "news")],
        vec![no_method],
    ] {
        let mut harness = Harness::publisher(9);
        let token = harness.import(1, with_subscriptions(damaged));
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::INVALID_IMPORT));
        assert!(harness.commits.is_empty());
    }
}

#[test]
fn an_import_that_no_export_makes_is_refused() {
    let mut harness = Harness::serving();
    let token = harness.import(1, bytes("garbage"));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::INVALID_IMPORT));
    assert!(harness.commits.is_empty());
}

#[test]
fn a_refused_import_leaves_no_trace() {
    let mut harness = Harness::serving();
    let token = harness.import(1, copy().encode().expect("encodes"));
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::STORE_FULL));
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let commit = harness.commits.last().expect("a commit");
    assert_eq!((commit.head.version, commit.head.remembered), (1, false));
    assert!(commit.head.channels().expect("extents").is_empty());
}

#[test]
fn r24_an_imported_state_keeps_its_schema_and_is_migrated() {
    let mut harness = Harness::serving();
    let schema = SchemaSupport { version: 2, newest: 2 };
    let settings = TypeSettings { revision: 5, schema, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    let state = vec![(bytes("a"), bytes("1"))];
    let copy = EntityCopy { state, schema: 1, ..EntityCopy::default() };
    harness.import(1, copy.encode().expect("encodes"));
    let head = &harness.commits[0].head;
    assert_eq!((head.revision, head.schema()), (5, Ok(1)));
    harness.settle(CommitOutcome::Committed);
    harness.send(1, 0, MessageKind::Command);
    let Action::Migrate { revision, from_schema, .. } = harness.next_action() else {
        panic!("not migrated")
    };
    assert_eq!((revision, from_schema), (5, 1));
}
