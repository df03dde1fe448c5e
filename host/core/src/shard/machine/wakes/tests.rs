use super::*;
use crate::shard::Settings;

fn entity(number: u64) -> Entity {
    Entity::new("t", format!("{number:02}"))
}

/// Wake-ups that have all been read: the store has none.
fn read(settings: Settings) -> (Context, Wakes) {
    let mut context = Context::new(settings);
    let mut wakes = Wakes::default();
    wakes.reset();
    wakes.scan(&mut context);
    let Some(Action::ScanWakes { number, from: None, .. }) = context.poll() else {
        panic!("no scan from the beginning")
    };
    wakes.on_page(&context, number, Ok((Vec::new(), false)));
    (context, wakes)
}

#[test]
fn wake_ups_beyond_the_bound_are_read_again() {
    let (mut context, mut wakes) = read(Settings { timer_page: 2, ..Settings::default() });
    for number in (1..=20).rev() {
        wakes.note(&context, &entity(number), Some(100 + number));
    }
    assert_eq!(wakes.by_time.len(), 8, "four pages are kept");
    context.now.utc = 1_000;
    let kept: Vec<_> = std::iter::from_fn(|| wakes.take_due(&context)).collect();
    assert!(kept.iter().eq(&(1..=8).map(entity).collect::<Vec<_>>()), "{kept:?}");
    wakes.scan(&mut context);
    let Some(Action::ScanWakes { from, .. }) = context.poll() else { panic!("no scan") };
    assert_eq!(from, Some((109, entity(9))), "from the first one that was dropped");
}

#[test]
fn of_two_times_of_an_entity_the_earlier_one_counts() {
    let (mut context, mut wakes) = read(Settings::default());
    wakes.reset();
    wakes.scan(&mut context);
    // While the page is read, one timer moves to an earlier time and one to a later time.
    wakes.note(&context, &entity(1), Some(100));
    wakes.note(&context, &entity(2), Some(200));
    let page = vec![(100, entity(2)), (200, entity(1))];
    wakes.on_page(&context, 2, Ok((page, false)));
    context.now.utc = 150;
    let due: Vec<_> = std::iter::from_fn(|| wakes.take_due(&context)).collect();
    assert_eq!(due, [entity(1), entity(2)], "no wake-up is late; an early one is corrected");
}

#[test]
fn postponed_entities_beyond_the_bound_are_found_later() {
    let settings = Settings { timer_page: 2, timer_max_backoff: 60_000, ..Settings::default() };
    let (mut context, mut wakes) = read(settings);
    context.now.utc = 1_000;
    for number in 1..=9 {
        wakes.hold(&entity(number));
        wakes.postpone(&context, &entity(number));
        assert!(wakes.on_left_memory(&context, &entity(number)));
    }
    assert_eq!(wakes.postponed.len(), 8);
    wakes.scan(&mut context);
    assert_eq!(context.poll(), None, "not at once: others must get their turn");
    context.now.mono = 60_000;
    assert_eq!(wakes.next_wake(&context), Some(1_000), "the end of the first pauses");
    wakes.scan(&mut context);
    assert!(matches!(context.poll(), Some(Action::ScanWakes { from: None, .. })));
}

#[test]
fn a_failed_scan_is_retried_after_a_pause() {
    let mut context = Context::new(Settings::default());
    let mut wakes = Wakes::default();
    wakes.reset();
    wakes.scan(&mut context);
    wakes.on_page(&context, 1, Err("no store".into()));
    wakes.scan(&mut context);
    let scans = std::iter::from_fn(|| context.poll()).count();
    assert_eq!((scans, wakes.next_wake(&context)), (1, Some(1_000)));
    context.now.mono = 1_000;
    wakes.scan(&mut context);
    assert!(matches!(context.poll(), Some(Action::ScanWakes { number: 2, .. })));
    wakes.on_page(&context, 1, Ok((vec![(5, entity(1))], false)));
    assert!(wakes.is_unread() && !wakes.knows(&entity(1)), "the result of another scan");
}

/// The number of the scan that was requested, and where it begins.
fn requested(context: &mut Context) -> Option<(u64, Option<Wake>)> {
    let Some(Action::ScanWakes { number, from, .. }) = context.poll() else { return None };
    Some((number, from))
}

#[test]
fn r25_far_wake_ups_do_not_stop_the_reading_of_near_ones() {
    for fails in [false, true] {
        let mut context = Context::new(Settings { timer_page: 2, ..Settings::default() });
        let mut wakes = Wakes::default();
        wakes.reset();
        wakes.scan(&mut context);
        let (number, _) = requested(&mut context).unwrap();
        for far in 1..=4 {
            wakes.note(&context, &entity(far), Some(1_000_000 + far));
        }
        let page = vec![(10, entity(8)), (11, entity(9))];
        wakes.on_page(&context, number, if fails { Err("busy".into()) } else { Ok((page, true)) });
        context.now.utc = 20;
        context.now.mono = 1_000;
        assert_eq!(wakes.next_wake(&context), if fails { None } else { Some(1_000) });
        while wakes.take_due(&context).is_some() {}
        wakes.scan(&mut context);
        let (_, from) = requested(&mut context).expect("the scan continues");
        assert_eq!(from, if fails { None } else { Some((11, entity(9))) });
    }
}

#[test]
fn r25_a_wake_up_that_is_dropped_during_a_scan_is_found() {
    let mut context = Context::new(Settings { timer_page: 2, ..Settings::default() });
    let mut wakes = Wakes::default();
    wakes.reset();
    wakes.scan(&mut context);
    let (number, _) = requested(&mut context).unwrap();
    for number in 1..=9 {
        wakes.note(&context, &entity(number), Some(100 + number));
    }
    wakes.on_page(&context, number, Ok((Vec::new(), false)));
    context.now.utc = 1_000;
    while wakes.take_due(&context).is_some() {}
    wakes.scan(&mut context);
    let (_, from) = requested(&mut context).expect("a scan for the one that was dropped");
    assert_eq!(from, Some((109, entity(9))));
}

#[test]
fn r25_entities_that_are_due_alternate_with_postponed_ones() {
    let settings = Settings { max_timer_entities: 1, ..Settings::default() };
    let (mut context, mut wakes) = read(settings);
    context.now.utc = 1_000;
    for number in 1..=4 {
        wakes.hold(&entity(number));
        wakes.postpone(&context, &entity(number));
        wakes.on_left_memory(&context, &entity(number));
    }
    for number in 5..=7 {
        wakes.note(&context, &entity(number), Some(number));
    }
    context.now.mono = 60_000;
    let mut order = Vec::new();
    while let Some(taken) = wakes.take_due(&context) {
        assert_eq!(wakes.take_due(&context), None, "there is only one place");
        wakes.release(&taken);
        order.push(taken);
    }
    assert_eq!(order, [1, 5, 2, 6, 3, 7, 4].map(entity));
}

#[test]
fn a_postponed_entity_and_a_resident_take_no_place() {
    let settings = Settings { max_timer_entities: 1, ..Settings::default() };
    let (mut context, mut wakes) = read(settings);
    context.now.utc = 1_000;
    wakes.hold(&entity(9));
    for number in 1..=3 {
        wakes.note(&context, &entity(number), Some(number));
        assert_eq!(wakes.take_due(&context), Some(entity(number)));
        wakes.postpone(&context, &entity(number));
    }
}

#[test]
fn pauses_double_up_to_the_bound_and_do_not_add_up() {
    let settings =
        Settings { timer_backoff: 1_000, timer_max_backoff: 3_000, ..Settings::default() };
    let (mut context, mut wakes) = read(settings);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        wakes.postpone(&context, &entity(1));
        // Nothing has happened since: this is the same pause.
        wakes.postpone(&context, &entity(1));
        let until = wakes.postponed_until(&context, &entity(1)).expect("a pause");
        pauses.push(until - context.mono());
        context.now.mono = until;
    }
    assert_eq!(pauses, [1_000, 2_000, 3_000, 3_000]);
}

#[test]
fn ended_pauses_let_residents_and_others_run() {
    let (mut context, mut wakes) = read(Settings::default());
    context.now.utc = 1_000;
    for number in 1..=3 {
        wakes.postpone(&context, &entity(number));
    }
    assert!(wakes.on_left_memory(&context, &entity(2)));
    let resident = wakes.end_pauses(&context, |it| *it != entity(3));
    assert_eq!(resident, [entity(1)], "it must be examined");
    assert_eq!(wakes.postponed_until(&context, &entity(1)), None);
    assert_eq!(wakes.take_due(&context), Some(entity(2)));
    assert!(wakes.postponed_until(&context, &entity(3)).is_some());
}

#[test]
fn nothing_is_due_without_a_place_or_the_time() {
    let settings = Settings { max_timer_entities: 1, ..Settings::default() };
    let (mut context, mut wakes) = read(settings);
    wakes.note(&context, &entity(1), Some(0));
    assert_eq!((wakes.take_due(&context), wakes.next_wake(&context)), (None, None), "no UTC");
    context.now.utc = 1_000;
    assert_eq!(wakes.next_wake(&context), Some(0));
    assert_eq!(wakes.take_due(&context), Some(entity(1)));
    wakes.note(&context, &entity(2), Some(900));
    wakes.postpone(&context, &entity(3));
    wakes.on_left_memory(&context, &entity(3));
    assert_eq!(wakes.next_wake(&context), None, "the place is taken");
    wakes.release(&entity(1));
    assert_eq!(wakes.next_wake(&context), Some(0));
}

/// What a scan read, and whether more follows.
type Page = (Vec<Wake>, bool);

/// The store's wake-ups, and the page in flight.
struct Store {
    wakes: BTreeSet<Wake>,
    times: BTreeMap<Entity, u64>,
    page: Option<(u64, Option<Wake>, Option<Page>)>,
}

impl Store {
    fn set(&mut self, entity: &Entity, due: Option<u64>) {
        if let Some(old) = self.times.remove(entity) {
            self.wakes.remove(&(old, entity.clone()));
        }
        if let Some(due) = due {
            self.times.insert(entity.clone(), due);
            self.wakes.insert((due, entity.clone()));
        }
    }

    fn read(&self, from: &Option<Wake>, most: usize) -> Page {
        let begin = from.clone().unwrap_or((0, Entity::new("", "")));
        let mut rest = self.wakes.range(begin..);
        let page = rest.by_ref().take(most).cloned().collect();
        (page, rest.next().is_some())
    }
}

/// Random histories of commits, new claims, failing entities, and scans that fail or return an early snapshot. Whenever
/// nothing is in flight, no due entity is overlooked; in the end, all have been woken.
#[test]
fn r25_no_history_overlooks_a_due_entity() {
    for seed in 1..=2_000_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut random = |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let settings = Settings {
            timer_page: 2 + random(3) as usize,
            max_timer_entities: 1 + random(3) as usize,
            timer_backoff: 20,
            timer_max_backoff: 80,
            ..Settings::default()
        };
        let page = settings.timer_page;
        let mut context = Context::new(settings);
        context.now.utc = 1;
        let mut wakes = Wakes::default();
        wakes.reset();
        let mut store = Store { wakes: BTreeSet::new(), times: BTreeMap::new(), page: None };
        let entities = 5 + random(60);
        for step in 0..600 {
            let calm = step >= 400;
            match random(if calm { 2 } else { 10 }) {
                0 => {
                    let passed = random(40);
                    context.now.mono += passed;
                    context.now.utc += passed;
                }
                1 => {
                    if let Some((number, from, read)) = store.page.take() {
                        let answer = read.unwrap_or_else(|| store.read(&from, page));
                        let fails = !calm && random(4) == 0;
                        let answer = if fails { Err("busy".into()) } else { Ok(answer) };
                        wakes.on_page(&context, number, answer);
                    }
                }
                2 if random(20) == 0 => {
                    wakes.reset();
                    store.page = None;
                }
                _ if !calm => {
                    // A turn of an entity that then leaves memory.
                    let entity = entity(random(entities));
                    if !wakes.is_held(&entity) {
                        let far = if random(2) == 0 { 50 } else { 5_000 };
                        let due = context.now.utc + random(far);
                        let due = (random(4) > 0).then_some(due);
                        store.set(&entity, due);
                        if due.is_some() || wakes.knows(&entity) || random(2) == 0 {
                            wakes.note(&context, &entity, due);
                        }
                    }
                }
                _ => {}
            }
            if calm && store.page.is_none() {
                context.now.mono += 20;
                context.now.utc += 20;
            }
            loop {
                wakes.scan(&mut context);
                if let Some((number, from)) = requested(&mut context) {
                    let read = (random(2) == 0).then(|| store.read(&from, page));
                    store.page = Some((number, from, read));
                }
                let Some(entity) = wakes.take_due(&context) else { break };
                let due = store.times.get(&entity).copied().filter(|due| *due <= context.now.utc);
                if due.is_some() && !calm && random(3) == 0 {
                    wakes.postpone(&context, &entity);
                    assert!(wakes.on_left_memory(&context, &entity));
                    continue;
                }
                if due.is_some() {
                    store.set(&entity, None);
                }
                wakes.release(&entity);
                wakes.note(&context, &entity, store.times.get(&entity).copied());
            }
            let waits =
                store.page.is_some() || wakes.retry_at.is_some() || wakes.reread_at.is_some();
            for (due, entity) in &store.wakes {
                let is_due = *due <= context.now.utc && !wakes.postponed.contains_key(entity);
                assert!(waits || !is_due, "seed {seed}, step {step}: {entity} was due at {due}");
            }
        }
        let first = store.wakes.first().map(|(due, _)| *due);
        assert!(first.is_none_or(|due| due > context.now.utc), "seed {seed}: {first:?}");
    }
}
