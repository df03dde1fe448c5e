//! Cycles of asks, and the notes that find them (R20).

use super::asks::{ask_id, bob, new_ask, result, running};
use super::*;

#[test]
fn r20_an_ask_to_an_entity_that_waits_for_it_is_refused() {
    let mut harness = running();
    let carol = Entity::new("counter", "carol");
    let chain = [bob(), alice(), carol.clone()];
    let queued = harness.asked_by(&chain, 2, 4);
    harness.ask(0, new_ask(&bob(), "1"));
    let other = harness.asked_by(&chain, 3, 4);
    harness.ask(1, new_ask(&carol, "1"));
    let token = harness.asked_by(&chain, 1, 5);
    assert_eq!((harness.code_of(queued), harness.code_of(other)), (None, None), "no cycle yet");
    let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token).expect("a reply");
    let Outcome::NotRun { code, message, retry_after: None, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(*code, *codes::ASK_CYCLE);
    assert!(
        message.ends_with("counter/alice → counter/carol → counter/alice"),
        "only the cycle is shown: {message}"
    );
}

#[test]
fn r20_an_ask_at_a_waiting_entity_sends_a_probe() {
    let mut harness = running();
    let carol = Entity::new("counter", "carol");
    harness.asked_by(std::slice::from_ref(&carol), 1, 5);
    assert!(harness.notes.is_empty(), "alice is not waiting");
    harness.ask(0, new_ask(&bob(), "1"));
    harness.asked_by(std::slice::from_ref(&carol), 2, 6);
    let ask = harness.asks[0].1.clone();
    let [(target, AskNote::Probe { path, .. })] = &*harness.notes else {
        panic!("{:?}", harness.notes)
    };
    assert_eq!(*target, bob());
    let steps = [
        AskStep { id: ask_id(2), asker: carol, started: 6, is_queued: true },
        AskStep { id: ask.id, asker: alice(), started: ask.started, is_queued: false },
    ];
    assert_eq!(*path, steps);
}

#[test]
fn r20_a_probe_that_comes_back_ends_the_youngest_ask() {
    for (bobs, is_alices_younger) in [(500, true), (2_000, false)] {
        let mut harness = running();
        harness.ask(0, new_ask(&bob(), "1"));
        let mine = harness.asks[0].1.clone();
        let token = harness.asked_by(&[bob()], 7, bobs);
        harness.notes.clear();
        // The probe of alice's ask: bob waits for the ask that waits here.
        let path = vec![
            AskStep { id: mine.id, asker: alice(), started: mine.started, is_queued: true },
            AskStep { id: ask_id(7), asker: bob(), started: bobs, is_queued: false },
        ];
        let probe = AskNote::Probe { number: 4, path };
        harness.note(&probe);
        if is_alices_younger {
            let chain = vec![alice(), bob(), alice()];
            let note = AskNote::Cycle { id: mine.id, chain };
            assert_eq!(harness.notes, [(bob(), note)]);
            assert_eq!(harness.code_of(token), None, "the older ask waits");
        } else {
            assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::ASK_CYCLE));
            assert!(harness.notes.is_empty());
            harness.note(&probe);
            assert!(harness.notes.is_empty(), "it does not wait any more");
        }
    }
}

#[test]
fn r20_a_probe_passes_an_entity_whose_turn_was_asked() {
    let mut harness = Harness::serving();
    // Bob's turn has asked alice, and her turn asks carol, at whom that ask is queued. Carol waits for bob.
    let carol = Entity::new("counter", "carol");
    harness.asked_by(&[bob()], 1, 5);
    harness.ask(0, new_ask(&carol, "1"));
    let mine = harness.asks[0].1.clone();
    let path = vec![
        AskStep { id: ask_id(4), asker: carol.clone(), started: 900, is_queued: true },
        AskStep { id: ask_id(1), asker: bob(), started: 5, is_queued: false },
    ];
    harness.note(&AskNote::Probe { number: 4, path: path.clone() });
    let last = AskStep { id: mine.id, asker: alice(), started: mine.started, is_queued: false };
    let path = [&path[..], &[last]].concat();
    assert_eq!(harness.notes, [(carol, AskNote::Probe { number: 4, path })]);
}

#[test]
fn r20_an_ask_that_a_turn_handles_is_not_ended() {
    let mut harness = Harness::serving();
    harness.asked_by(&[bob()], 1, 2_000);
    harness.ask(0, new_ask(&bob(), "1"));
    let mine = harness.asks[0].1.clone();
    // The ask that alice's turn handles is younger, but only her own ask is queued.
    let path = vec![
        AskStep { id: mine.id, asker: alice(), started: mine.started, is_queued: true },
        AskStep { id: ask_id(1), asker: bob(), started: 2_000, is_queued: true },
    ];
    harness.note(&AskNote::Probe { number: 4, path });
    let note = AskNote::Cycle { id: mine.id, chain: vec![alice(), bob(), alice()] };
    assert_eq!(harness.notes, [(bob(), note)]);
}

#[test]
fn a_probe_follows_each_ask_of_a_waiting_entity_once() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.ask(1, new_ask(&bob(), "2"));
    let carol = Entity::new("counter", "carol");
    harness.asked_by(std::slice::from_ref(&carol), 1, 5);
    assert_eq!(harness.notes.len(), 2);
    let path = vec![
        AskStep { id: ask_id(3), asker: bob(), started: 1, is_queued: true },
        AskStep { id: ask_id(1), asker: carol, started: 5, is_queued: false },
    ];
    for (number, expected) in [(1, 4), (1, 4), (2, 6)] {
        harness.note(&AskNote::Probe { number, path: path.clone() });
        assert_eq!(harness.notes.len(), expected, "{number}");
    }
    // The ask does not wait here.
    let path = vec![AskStep { id: ask_id(9), asker: bob(), started: 1, is_queued: true }];
    harness.note(&AskNote::Probe { number: 3, path });
    assert_eq!(harness.notes.len(), 6);
}

#[test]
fn only_a_waiting_ask_is_ended_by_a_note() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let command = harness.send(2, 1, MessageKind::Command);
    let chain = vec![bob(), alice(), bob()];
    let client = MessageId { sequence: 2, ..harness.template().id };
    for id in [client, ask_id(4)] {
        harness.note(&AskNote::Cycle { id, chain: chain.clone() });
    }
    assert_eq!(harness.code_of(command), None, "no note ends a client's message");
    let before = harness.replies.len();
    for body in [&b""[..], b"\xff\xff\xff", &[0; 100_000]] {
        let body = Bytes::copy_from_slice(body);
        let (method, kind) = (ASK_NOTE.into(), MessageKind::Query);
        harness.post(Message { method, kind, sender: Some(bob()), body, ..harness.template() });
    }
    assert_eq!(harness.replies.len(), before + 3, "a damaged note is answered and ignored");
}

#[test]
fn a_lost_note_is_sent_again_while_its_sender_waits() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.asked_by(&[bob()], 7, 500);
    let (target, note) = harness.notes.remove(0);
    let lost = Event::AskNoteLost { entity: alice(), target: target.clone(), note: note.clone() };
    harness.handle(lost.clone());
    assert!(harness.notes.is_empty(), "after a pause");
    harness.now += 100;
    harness.handle(Event::Tick);
    assert_eq!(harness.notes, [(target, note)]);
    harness.answer_ask(result("r"));
    harness.handle(lost);
    harness.now += 100;
    harness.handle(Event::Tick);
    assert_eq!(harness.notes.len(), 1, "no turn waits any longer");
}

#[test]
fn notes_about_asks_are_bounded() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.asked_by(&[bob()], 7, 500);
    let (target, note) = harness.notes.remove(0);
    for _ in 0..100 {
        let (target, note) = (target.clone(), note.clone());
        harness.handle(Event::AskNoteLost { entity: alice(), target, note });
    }
    harness.now += 100;
    harness.handle(Event::Tick);
    assert_eq!(harness.notes.len(), 64, "lost notes");
    let step = AskStep { id: ask_id(7), asker: bob(), started: 500, is_queued: true };
    for number in 0..1_100 {
        harness.note(&AskNote::Probe { number: 1 << 40 | number, path: vec![step.clone()] });
    }
    assert_eq!(harness.notes.len(), 64 + 1_023, "probes, besides the first one");
    // A path of the maximum length is not extended, and a longer one is not read.
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.asked_by(&[bob()], 7, 500);
    harness.notes.clear();
    for (length, expected) in [(63, 1), (64, 1), (65, 1)] {
        let other = |id: u8| AskStep { id: ask_id(id), asker: bob(), started: 1, is_queued: true };
        let mut path: Vec<_> = (0..length - 1).map(|id| other(100 + id)).collect();
        path.push(step.clone());
        let note = AskNote::Probe { number: u64::from(length), path };
        assert_eq!(AskNote::decode(&note.encode()).is_some(), length <= 64);
        harness.note(&note);
        assert_eq!(harness.notes.len(), expected, "{length}");
    }
}

#[test]
fn only_nodes_send_notes_about_asks() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let token = harness.asked_by(&[bob()], 7, 500);
    let chain = vec![bob(), alice(), bob()];
    let body = AskNote::Cycle { id: ask_id(7), chain }.encode();
    let id = MessageId { sequence: 2, ..harness.template().id };
    let (method, kind) = (ASK_NOTE.into(), MessageKind::Query);
    harness.post(Message { id, method, kind, body, ..harness.template() });
    assert_eq!(harness.code_of(token), None, "without a sending entity, it is a client's message");
}

#[test]
fn r20_a_joined_copy_of_an_ask_sends_a_probe_too() {
    let mut harness = running();
    harness.asked_by(&[bob()], 7, 500);
    harness.ask(0, new_ask(&bob(), "1"));
    assert!(harness.notes.is_empty(), "alice did not wait yet");
    harness.asked_by(&[bob()], 7, 500);
    assert_eq!(harness.notes.len(), 1);
}

#[test]
fn a_late_note_of_a_cycle_ends_nothing() {
    let mut harness = Harness::serving();
    harness.silent = true;
    let token = harness.asked_by(&[bob()], 7, 500);
    harness.note(&AskNote::Cycle { id: ask_id(7), chain: vec![bob(), alice(), bob()] });
    assert_eq!(harness.code_of(token), None, "alice is being loaded, and waits for nothing");
}

#[test]
fn a_note_of_a_cycle_that_has_ended_ends_nothing() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let token = harness.asked_by(&[bob()], 7, 500);
    harness.answer_ask(result("a"));
    harness.note(&AskNote::Cycle { id: ask_id(7), chain: vec![bob(), alice(), bob()] });
    assert_eq!(harness.code_of(token), None, "alice's turn runs, and waits for nobody");
}

#[test]
fn a_note_ends_an_ask_only_while_the_cycle_exists() {
    let mut harness = running();
    harness.ask(0, new_ask(&Entity::new("counter", "carol"), "1"));
    let token = harness.asked_by(&[bob()], 7, 500);
    let cycle = |next: &str| {
        let chain = vec![bob(), alice(), Entity::new("counter", next), bob()];
        AskNote::Cycle { id: ask_id(7), chain }
    };
    harness.note(&cycle("dave"));
    assert_eq!(harness.code_of(token), None, "alice no longer waits for dave");
    harness.note(&cycle("carol"));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::ASK_CYCLE));
}

#[test]
fn the_bytes_of_notes_about_asks_do_not_change() {
    let step = AskStep { id: ask_id(1), asker: alice(), started: 300, is_queued: true };
    let id = "\x01".repeat(16) + "\x01";
    let probe = format!("\0\x02\x01{id}\x07counter\x05alice\u{ac}\x02\x01");
    let probe: Vec<u8> = probe.chars().map(|byte| byte as u8).collect();
    let note = AskNote::Probe { number: 2, path: vec![step] };
    assert_eq!((note.encode().as_ref(), AskNote::decode(&probe)), (&*probe, Some(note)));
    let cycle = format!("\x01{id}\x02\x07counter\x05alice\x07counter\x03bob");
    let note = AskNote::Cycle { id: ask_id(1), chain: vec![alice(), bob()] };
    let decoded = AskNote::decode(cycle.as_bytes());
    assert_eq!((note.encode().as_ref(), decoded), (cycle.as_bytes(), Some(note)));
}
