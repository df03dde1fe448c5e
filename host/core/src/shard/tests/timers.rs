//! Timers: waking, firing, and the effects of refusals and hand-offs (R14, R25).

use super::*;

fn set(name: &str, due: u64, interval: u64) -> TimerChange {
    TimerChange::Set { name: name.into(), due, interval, payload: Bytes::from_static(b"p") }
}

fn cancel(name: &str) -> TimerChange {
    TimerChange::Cancel { name: name.into() }
}

fn with(timers: Vec<TimerChange>) -> TurnOutput {
    TurnOutput { timers, ..turn(GuestReply::Result(Bytes::new()), true) }
}

fn failed(retry_after: Option<u32>) -> TurnOutput {
    let result = TurnResult::Failed { code: "trap".into(), message: "why".into(), retry_after };
    TurnOutput { result, ..with(Vec::new()) }
}

impl Harness {
    /// Runs a command whose turn makes these changes.
    pub(super) fn command(&mut self, sequence: u64, timers: Vec<TimerChange>) {
        self.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, id, message) = self.running.take().expect("a running turn");
        let (entity, result) = (message.target.clone(), with(timers));
        self.handle(Event::TurnDone { entity, generation, turn: id, result });
    }

    /// Like `command`, but also commits the turn.
    pub(super) fn committed(&mut self, sequence: u64, timers: Vec<TimerChange>) {
        self.command(sequence, timers);
        self.settle(CommitOutcome::Committed);
    }

    pub(super) fn tick(&mut self, now: u64) {
        self.now = now;
        self.handle(Event::LeaseRenewed { sent_at: now, lease: 3_000 });
        self.handle(Event::Tick);
    }

    /// Completes the running firing.
    fn fired(&mut self, result: TurnOutput) -> Arc<Firing> {
        let (generation, turn, firing) = self.firing.take().expect("a firing");
        self.handle(Event::TurnDone { entity: alice(), generation, turn, result });
        firing
    }

    pub(super) fn evicted(&mut self) {
        self.handle(Event::Evict { entity: alice() });
        assert_eq!(self.machine.stats().0, 0, "the entity is not in memory");
    }
}

#[test]
fn r25_a_timer_fires_once_and_never_early() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    let counted = |head: &Option<Head>| head.as_ref().unwrap().timer_count().unwrap();
    assert_eq!((counted(&harness.head), harness.machine.next_wake()), (1, Some(1_500)));
    harness.tick(1_499);
    assert_eq!(harness.firings, 0);
    harness.tick(1_500);
    let firing = harness.fired(with(vec![]));
    assert_eq!((&*firing.name, firing.due, firing.utc_ms), ("t", 1_500, 1_500));
    harness.settle(CommitOutcome::Committed);
    harness.tick(5_000);
    assert_eq!((harness.firings, harness.timers.len(), harness.wakes.len()), (1, 0, 0));
    assert_eq!(counted(&harness.head), 0, "a load need not look for timers");
}

#[test]
fn r25_a_sleeping_entity_is_woken_by_its_timer() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.evicted();
    assert_eq!(harness.machine.next_wake(), Some(1_500));
    harness.tick(1_500);
    assert_eq!((harness.starts, harness.firings), (2, 1));
    harness.fired(with(vec![]));
    harness.settle(CommitOutcome::Committed);
    harness.evicted();
    assert_eq!(harness.machine.next_wake(), None);
}

#[test]
fn r25_a_new_owner_finds_timers_by_their_wake_ups() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    let mut next = harness.restarted();
    assert_eq!((next.scans, next.loads), (1, 0), "only wake-ups are read");
    next.tick(1_499);
    assert_eq!(next.loads, 0);
    next.tick(1_600);
    assert_eq!(next.fired(with(vec![])).due, 1_500);
    next.settle(CommitOutcome::Committed);
    let mut last = next.restarted();
    last.tick(9_000);
    assert_eq!(last.firings, 0, "it has fired");
}

#[test]
fn r25_a_cancelled_or_replaced_timer_does_not_fire() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("a", 1_500, 0), set("b", 1_500, 0)]);
    // Neither before the commit of the turn that cancels it, nor after it.
    harness.command(2, vec![cancel("a"), set("b", 2_000, 0)]);
    harness.tick(1_999);
    assert_eq!(harness.firings, 0);
    harness.settle(CommitOutcome::Committed);
    harness.tick(2_000);
    let firing = harness.fired(with(vec![]));
    assert_eq!((&*firing.name, firing.generation), ("b", 2));
    harness.settle(CommitOutcome::Committed);
    harness.tick(9_000);
    assert_eq!(harness.firings, 1);
}

#[test]
fn r25_a_refused_turn_leaves_the_timers_of_before() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.command(2, vec![cancel("t")]);
    harness.settle(CommitOutcome::Unknown("lost".into()));
    let number = harness.claims.last().unwrap().number;
    harness.handle(Event::ClaimResult { number, outcome: ClaimOutcome::Granted });
    harness.tick(1_500);
    assert_eq!(harness.firings, 1, "the turn that cancelled it did not commit");
    harness.fired(with(vec![]));
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    harness.tick(3_000);
    assert_eq!(harness.firings, 2, "a firing that did not commit happens again");
}

#[test]
fn r25_a_refused_firing_waits_before_the_next_attempt() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    for (attempt, pause) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        harness.fired(with(vec![]));
        harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
        let again = harness.now + pause;
        harness.tick(again - 1);
        assert_eq!(harness.firings, attempt, "it waits");
        assert_eq!(harness.machine.next_wake(), Some(again));
        harness.tick(again);
        assert_eq!(harness.firings, attempt + 1);
    }
}

#[test]
fn r25_a_failing_firing_ends_set_aside() {
    let mut harness = Harness::with(Settings { timer_attempts: 3, ..Settings::default() });
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(failed(None));
    harness.settle(CommitOutcome::Committed);
    harness.tick(2_499);
    assert_eq!(harness.firings, 1, "it backs off");
    harness.tick(2_500);
    assert_eq!(harness.fired(failed(Some(10))).attempt, 2);
    harness.tick(3_500);
    assert_eq!(
        harness
            .fired(turn(GuestReply::Error { code: "no".into(), message: "why".into() }, false))
            .attempt,
        2,
        "an attempt that failed because of the node does not count"
    );
    harness.settle(CommitOutcome::Committed);
    // The number of attempts is in the store.
    let mut next = harness.restarted();
    next.tick(5_500);
    assert_eq!(next.fired(failed(None)).attempt, 3);
    next.settle(CommitOutcome::Committed);
    assert_eq!((next.gave_up, next.timers.len(), next.wakes.len()), (1, 1, 0));
    assert_eq!((next.timers[0].set_aside, &*next.timers[0].failure), (true, "trap: why"));
    next.tick(900_000);
    assert_eq!(next.firings, 1);
}

#[test]
fn r25_a_firing_too_large_for_any_store_counts_as_failed() {
    let mut harness = Harness::with(Settings { timer_attempts: 1, ..Settings::default() });
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(with(vec![]));
    harness.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("18 MiB".into())));
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.firings, harness.gave_up), (1, 1));
    assert!(harness.timers[0].set_aside && &*harness.timers[0].failure == "18 MiB");
}

#[test]
fn r14_a_shard_serves_before_its_wake_ups_are_read() {
    let mut harness = Harness::new(Settings::default());
    harness.silent = true;
    harness.grant();
    assert!(matches!(harness.next_action(), Action::ScanWakes { .. }));
    harness.silent = false;
    harness.send(1, 0, MessageKind::Command);
    assert!(harness.running.is_some());

    let mutations = vec![Mutation::ReadTimersFirst];
    let mut late = Harness::new(Settings { mutations, ..Settings::default() });
    late.silent = true;
    late.grant();
    let Action::ScanWakes { number, .. } = late.next_action() else { panic!("no scan") };
    late.silent = false;
    late.send(1, 0, MessageKind::Command);
    assert!(late.running.is_none(), "the violation of the rule is visible");
    late.handle(Event::WakesScanned { number, page: Ok((Vec::new(), false)) });
    assert!(late.running.is_some());
}

#[test]
fn r14_messages_and_firings_take_turns() {
    let mut harness = Harness::serving();
    harness.committed(1, (0..3).map(|n| set(&n.to_string(), 1_500, 0)).collect());
    harness.now = 2_000;
    harness.handle(Event::LeaseRenewed { sent_at: 2_000, lease: 3_000 });
    harness.send(2, 1, MessageKind::Command);
    harness.send(3, 2, MessageKind::Command);
    let mut order = String::new();
    for _ in 0..5 {
        if harness.running.is_some() {
            order.push('m');
            harness.run();
        } else {
            order.push('t');
            harness.fired(with(vec![]));
        }
    }
    assert_eq!(order, "tmtmt");
}

#[test]
fn r14_a_message_moves_an_entity_before_timers() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.evicted();
    harness.silent = true;
    harness.tick(1_500);
    let load = harness.next_action();
    harness.answer_load(&load);
    let slot = harness.next_action();
    assert!(matches!(slot, Action::RequestSlot { purpose: SlotPurpose::Timer, .. }), "{slot:?}");
    let Action::RequestSlot { generation: first, .. } = slot else { return };
    harness.send(2, 1, MessageKind::Command);
    let slot = harness.next_action();
    let Action::RequestSlot { generation, purpose: SlotPurpose::Message, .. } = slot else {
        panic!("{slot:?}")
    };
    assert_eq!(generation, first, "the same slot");
    harness.send(3, 2, MessageKind::Command);
    assert!(harness.pending_actions.is_empty(), "one request is enough");
}

#[test]
fn timers_hold_a_bounded_number_of_entities() {
    let bound = Settings { max_timer_entities: 2, ..Settings::default() };
    let mut harness = Harness::new(bound);
    harness.wakes = (0..5).map(|n| (1, Entity::new("counter", n.to_string()))).collect();
    harness.silent = true;
    harness.grant();
    let Action::ScanWakes { number, .. } = harness.next_action() else { panic!("no scan") };
    let page = Ok((harness.wakes.clone(), false));
    harness.handle(Event::WakesScanned { number, page });
    assert_eq!(harness.loads, 2);
    let Action::Load { entity, generation } = harness.next_action() else { panic!("no load") };
    let result = Ok(LoadedEntity::default());
    harness.handle(Event::Loaded { entity, generation, result });
    assert_eq!(harness.loads, 3, "an entity with nothing due gives its place to the next");
    let Action::Load { entity, generation } = harness.next_action() else { panic!("no load") };
    harness.handle(Event::Loaded { entity, generation, result: Err("gone".into()) });
    assert_eq!(harness.loads, 4, "so does one that cannot be loaded");
}

#[test]
fn an_entity_that_fired_gives_its_place_to_the_next() {
    let mut harness = Harness::new(Settings { max_timer_entities: 1, ..Settings::default() });
    harness.wakes = vec![(1_500, Entity::new("counter", "bob"))];
    harness.grant();
    harness.committed(1, vec![set("t", 1_400, 0)]);
    harness.tick(1_400);
    harness.fired(with(vec![]));
    harness.settle(CommitOutcome::Committed);
    let loads = harness.loads;
    harness.tick(1_500);
    assert_eq!(harness.loads, loads + 1, "the first one still has its instance, and nothing due");
}

#[test]
fn r25_a_timer_set_during_a_scan_is_not_overlooked() {
    let mut harness = Harness::new(Settings::default());
    harness.silent = true;
    harness.grant();
    let Action::ScanWakes { number, .. } = harness.next_action() else { panic!("no scan") };
    harness.silent = false;
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.evicted();
    // The store read the page before that commit.
    harness.handle(Event::WakesScanned { number, page: Ok((Vec::new(), false)) });
    harness.tick(1_500);
    assert_eq!(harness.firings, 1);
}

#[test]
fn r25_a_start_turn_sets_timers_too() {
    let mut harness = Harness::serving();
    harness.silent = true;
    harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("no request")
    };
    harness.handle(Event::SlotGranted { entity, generation });
    let Action::Activate { entity, generation, .. } = harness.next_action() else {
        panic!("no activation")
    };
    harness.silent = false;
    let timers = vec![set("t", 1_500, 0)];
    let output = TurnOutput { timers, ..turn(GuestReply::Result(Bytes::new()), false) };
    let result = ActivationOutcome::Started(output);
    harness.handle(Event::ActivationResult { entity, generation, result });
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.timers.len(), harness.wakes.len()), (1, 1));
}

#[test]
fn a_firing_counts_as_use_and_may_passivate() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("a", 120_000, 0), set("b", 130_000, 0)]);
    harness.tick(120_000);
    harness.fired(with(vec![]));
    harness.settle(CommitOutcome::Committed);
    harness.tick(125_000);
    assert_eq!(harness.dropped, 0, "the firing was a use");
    harness.tick(130_000);
    harness.fired(TurnOutput { passivate: true, ..with(vec![]) });
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.dropped, harness.machine.stats().0), (1, 0));
}

#[test]
fn r9_no_timer_fires_while_suspended() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.evicted();
    harness.handle(Event::Suspend);
    harness.tick(1_600);
    assert_eq!((harness.firings, harness.loads), (0, 1));
    assert_eq!(harness.machine.next_wake(), None);
    harness.handle(Event::Resume);
    assert_eq!(harness.firings, 1);
}

#[test]
fn timers_of_an_unknown_type_wait() {
    let mut harness = Harness::new(Settings::default());
    harness.wakes = vec![(1, Entity::new("unknown", "x"))];
    harness.grant();
    assert_eq!((harness.loads, harness.machine.next_wake()), (0, Some(2_000)));
    let settings = TypeSettings::default();
    harness.handle(Event::TypeDeployed { entity_type: "unknown".into(), settings });
    assert_eq!(harness.loads, 1, "at once");
}

#[test]
fn a_page_of_wake_ups_that_cannot_run_is_followed_by_the_next() {
    let mut harness = Harness::new(Settings { timer_page: 4, ..Settings::default() });
    harness.silent = true;
    harness.grant();
    let Action::ScanWakes { number, .. } = harness.next_action() else { panic!("no scan") };
    let unknown = |id: &str| (1, Entity::new("unknown", id));
    // More than half a page is in memory until these have been postponed.
    let page = Ok((["a", "b", "c", "d"].map(unknown).to_vec(), true));
    harness.handle(Event::WakesScanned { number, page });
    let next = harness.next_action();
    assert!(matches!(&next, Action::ScanWakes { from: Some(it), .. } if *it == unknown("d")));
}

#[test]
fn r25_a_refused_firing_fails_beside_one_that_built_on_it() {
    let mut harness = Harness::with(Settings { timer_attempts: 1, ..Settings::default() });
    harness.committed(1, vec![set("a", 1_500, 0), set("b", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(with(vec![]));
    harness.fired(with(vec![]));
    let (first, second) = (harness.commits[0].head.turn, harness.commits[1].head.turn);
    harness.commits.clear();
    for (turn, refusal) in [
        (first, CommitRefusal::TooLarge("18 MiB".into())),
        (second, CommitRefusal::VersionMismatch { stored: 1 }),
    ] {
        let outcome = CommitOutcome::Refused(refusal);
        harness.handle(Event::CommitResults(vec![(alice(), turn, outcome)]));
    }
    harness.settle(CommitOutcome::Committed);
    let aside = harness.timers.iter().find(|timer| timer.set_aside);
    assert_eq!((harness.gave_up, aside.map(|timer| &*timer.name)), (1, Some("a")));
    assert_eq!(&*harness.fired(with(vec![])).name, "b", "the other one fires");
}

#[test]
fn r25_a_refused_message_does_not_hide_a_refused_firing() {
    let mut harness = Harness::with(Settings { timer_attempts: 1, ..Settings::default() });
    harness.committed(1, vec![set("a", 1_500, 0)]);
    harness.tick(1_500);
    harness.send(2, 1, MessageKind::Command);
    harness.fired(with(vec![]));
    harness.run();
    for _ in 0..2 {
        harness.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("18 MiB".into())));
    }
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.firings, harness.gave_up), (1, 1));
}

#[test]
fn r25_a_refusal_counts_for_the_timer_that_was_refused() {
    let mut harness = Harness::with(Settings { timer_attempts: 1, ..Settings::default() });
    harness.committed(1, vec![set("a", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(with(vec![]));
    harness.send(2, 1, MessageKind::Command);
    let (generation, turn, message) = harness.running.take().expect("a running turn");
    harness.settle(CommitOutcome::Refused(CommitRefusal::TooLarge("18 MiB".into())));
    // The message's turn was dropped with its instance and runs again: it sets the timer again.
    let late =
        Event::TurnDone { entity: message.target.clone(), generation, turn, result: with(vec![]) };
    harness.handle(late);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.gave_up, 1, "the refused one is set aside");
}

#[test]
fn a_message_joining_a_timers_wait_for_a_slot_keeps_its_time() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.evicted();
    harness.silent = true;
    harness.tick(1_500);
    let load = harness.next_action();
    harness.answer_load(&load);
    harness.tick(11_400);
    let token = harness.send(2, 1, MessageKind::Command);
    harness.tick(21_399);
    assert_eq!(harness.code_of(token), None);
    harness.tick(21_400);
    assert_eq!(harness.code_of(token).as_deref(), Some("overloaded"));
}

#[test]
fn timers_wait_while_the_node_does_not_know_the_time() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.now = 2_000;
    for utc in [0, 2_000] {
        let now = Now { mono: harness.now, cluster_time: harness.now, utc };
        harness.machine.handle(now, Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.machine.handle(now, Event::Tick);
        harness.execute_actions();
        assert_eq!(harness.firings, usize::from(utc > 0));
        assert!(utc > 0 || harness.machine.next_wake() == Some(3_000), "it is examined again");
        harness.now = 3_000;
    }
}

#[test]
fn wake_ups_are_read_by_pages_and_none_is_lost() {
    let page = Settings { timer_page: 2, ..Settings::default() };
    let mut harness = Harness::new(page);
    let all: Vec<(u64, Entity)> =
        (0..40).map(|n| (1 + n / 7, Entity::new("counter", format!("{n:02}")))).collect();
    harness.silent = true;
    harness.grant();
    let mut woken = Vec::new();
    for _ in 0..1_000 {
        if harness.pending_actions.is_empty() {
            break;
        }
        match harness.next_action() {
            Action::ScanWakes { number, from, max_records } => {
                let rest = all.iter().filter(|wake| from.as_ref().is_none_or(|from| *wake >= from));
                let mut rest: Vec<_> = rest.cloned().collect();
                let more = rest.len() > max_records;
                rest.truncate(max_records);
                harness.handle(Event::WakesScanned { number, page: Ok((rest, more)) });
            }
            Action::Load { entity, generation } => {
                woken.push(entity.clone());
                let result = Ok(LoadedEntity::default());
                harness.handle(Event::Loaded { entity, generation, result });
            }
            other => panic!("{other:?}"),
        }
    }
    woken.sort();
    woken.dedup();
    assert_eq!(woken.len(), 40);
}

#[test]
fn a_firing_that_the_node_refuses_is_repeated_after_a_pause() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    let (code, message) = ("overloaded".into(), String::new());
    let refused = TurnResult::Refused { code, message, retry_after: 100 };
    harness.fired(TurnOutput::without_effects(refused));
    assert_eq!(harness.firings, 1, "not at once");
    let next = harness.machine.next_wake().expect("another attempt");
    assert_eq!(next, 2_500);
    harness.tick(next);
    assert_eq!((harness.firings, harness.dropped), (2, 0), "in the same instance");
}

#[test]
fn r25_a_late_firing_reads_the_time_at_which_it_fires() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_900);
    let firing = harness.fired(with(vec![]));
    assert_eq!((firing.due, firing.utc_ms), (1_500, 1_900));
}

#[test]
fn a_firing_that_traps_drops_its_instance() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(failed(None));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.dropped, 1);
    harness.tick(9_000);
    assert_eq!((harness.starts, harness.firings), (2, 2), "in a new instance");
}

#[test]
fn a_firing_that_fails_through_the_node_waits_and_counts_not() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(failed(Some(100)));
    assert_eq!((harness.firings, harness.dropped), (1, 1), "not at once");
    harness.tick(2_500);
    assert_eq!(harness.fired(with(vec![])).attempt, 1);
}

#[test]
fn e15_a_firing_sets_the_delay_of_its_passivation() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![set("t", 1_500, 0)]);
    harness.tick(1_500);
    harness.fired(TurnOutput { passivate_after: Some(Some(300)), ..with(vec![]) });
    harness.settle(CommitOutcome::Committed);
    harness.tick(1_799);
    assert_eq!(harness.dropped, 0);
    harness.tick(1_800);
    assert_eq!(harness.dropped, 1);
}
