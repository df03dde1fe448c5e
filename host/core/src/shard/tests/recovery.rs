//! When recovery reads marks, starts entities, and leaves them alone (K31, K34).

use super::*;

fn named(number: usize) -> Entity {
    Entity::new("counter", format!("e{number:03}"))
}

fn marks(count: usize) -> Option<Vec<Entity>> {
    Some((0..count).map(named).collect())
}

/// A machine that serves, and whose store has these marks. The test itself responds to loads and activations.
fn recovering(settings: Settings, marks: Option<Vec<Entity>>) -> Harness {
    let mut harness = Harness::new(settings);
    harness.head = Some(Head { version: 7, remembered: true, ..Head::default() });
    (harness.marks, harness.silent) = (marks, true);
    harness.grant();
    harness.pending_actions.retain(|action| !matches!(action, Action::ScanWakes { .. }));
    harness
}

impl Harness {
    /// The entities whose loads are pending.
    fn loading(&self) -> Vec<Entity> {
        let load = |action: &Action| match action {
            Action::Load { entity, .. } => Some(entity.clone()),
            _ => None,
        };
        self.pending_actions.iter().filter_map(load).collect()
    }

    fn fail_load(&mut self) {
        let Action::Load { entity, generation } = self.next_action() else { panic!("a load") };
        self.handle(Event::Loaded { entity, generation, result: Err("down".into()) });
    }

    /// Takes the pending action of this kind for an entity.
    fn take_for(&mut self, entity: &Entity, is: impl Fn(&Action) -> Option<&Entity>) -> Action {
        let at = self.pending_actions.iter().position(|action| is(action) == Some(entity));
        self.pending_actions.remove(at.expect("an action"))
    }

    /// Starts an entity whose load is pending, with this output.
    fn start(&mut self, entity: &Entity, output: TurnOutput) {
        let load = self.take_for(entity, |action| match action {
            Action::Load { entity, .. } => Some(entity),
            _ => None,
        });
        self.answer_load(&load);
        let request = self.take_for(entity, |action| match action {
            Action::RequestSlot { entity, .. } => Some(entity),
            _ => None,
        });
        let Action::RequestSlot { generation, .. } = request else { return };
        self.handle(Event::SlotGranted { entity: entity.clone(), generation });
        self.take_for(entity, |action| match action {
            Action::Activate { entity, .. } => Some(entity),
            _ => None,
        });
        let (entity, result) = (entity.clone(), ActivationOutcome::Started(output));
        self.handle(Event::ActivationResult { entity, generation, result });
    }

    /// Lets recovery start an entity until it pauses after failures.
    fn fail_starts(&mut self, entity: &Entity) {
        for _ in 0..3 {
            while self.loading().is_empty() {
                let next = self.machine.next_wake().expect("another attempt");
                self.tick(next);
            }
            self.start(entity, trapped_turn());
        }
        assert_eq!(self.loading(), [], "it pauses after its third failed start");
    }

    fn deploy_type(&mut self, entity_type: &str, revision: u64) {
        let settings = TypeSettings { revision, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: entity_type.into(), settings });
    }

    fn trap(&mut self) {
        let (generation, turn, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        let result = trapped_turn();
        self.handle(Event::TurnDone { entity, generation, turn, result });
    }

    fn run_with(&mut self, output: TurnOutput) {
        let (generation, turn, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn, result: output });
        self.settle(CommitOutcome::Committed);
    }
}

fn replied() -> TurnOutput {
    turn(GuestReply::Result(Bytes::new()), true)
}

#[test]
fn k31_a_failed_scan_of_marks_is_repeated_after_a_pause() {
    let mut harness = recovering(Settings::default(), None);
    assert_eq!(harness.mark_scans.len(), 1);
    let number = harness.mark_scans[0];
    harness.handle(Event::RememberedScanned { number, page: Err("down".into()) });
    assert_eq!(harness.mark_scans.len(), 1, "not at once");
    let next = harness.machine.next_wake().expect("another scan");
    assert_eq!(next, harness.now + 1_000);
    harness.marks = marks(1);
    harness.tick(next);
    assert_eq!((harness.mark_scans.len(), harness.loading()), (2, vec![named(0)]));
}

#[test]
fn k31_a_failed_scan_that_cannot_be_repeated_waits() {
    let settings = Settings { timer_page: 4, recovery_starts: 1, ..Settings::default() };
    let mut harness = recovering(settings, None);
    let number = harness.mark_scans[0];
    harness.handle(Event::RememberedScanned { number, page: Err("down".into()) });
    // Meanwhile, remembered entities fail; only one of them is started at a time.
    for number in 0..5 {
        harness.post(Message { target: named(number), ..harness.template() });
        harness.start(&named(number), turn(GuestReply::Result(Bytes::new()), false));
        harness.trap();
    }
    assert_eq!(harness.loading().len(), 1);
    harness.tick(harness.now + 1_000);
    assert_eq!(harness.mark_scans.len(), 1, "enough entities are known");
    assert!(harness.machine.next_wake().is_none_or(|at| at > harness.now), "time alone won't help");
}

#[test]
fn k31_recovery_pauses_while_the_store_fails() {
    let settings = Settings { recovery_starts: 2, ..Settings::default() };
    let mut harness = recovering(settings, marks(30));
    assert_eq!(harness.loading().len(), 2);
    harness.fail_load();
    harness.fail_load();
    assert_eq!(harness.loading(), [], "nothing else is loaded now");
    let next = harness.machine.next_wake().expect("another attempt");
    assert_eq!(next, harness.now + 1_000);
    harness.tick(next);
    assert_eq!(harness.loading().len(), 2);
}

#[test]
fn k31_marks_that_found_no_space_are_read_again() {
    let settings = Settings { timer_page: 2, recovery_starts: 1, ..Settings::default() };
    let mut harness = recovering(settings, None);
    let number = harness.mark_scans[0];
    let page = Ok((marks(12).unwrap(), false));
    harness.handle(Event::RememberedScanned { number, page });
    harness.marks = marks(12);
    let mut started = Vec::new();
    while started.len() < 8 {
        let next = harness.loading().remove(0);
        harness.start(&next, turn(GuestReply::Result(Bytes::new()), false));
        started.push(next);
    }
    assert_eq!((harness.mark_scans.len(), harness.loading()), (1, vec![]), "four were dropped");
    while harness.mark_scans.len() == 1 {
        let next = harness.machine.next_wake().expect("another scan");
        harness.tick(next);
    }
    assert_eq!(harness.now, 31_000);
    assert_eq!(harness.loading(), [named(8)], "those that run already are skipped");
}

#[test]
fn k31_marks_read_again_wake_no_passivated_entity() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run_with(TurnOutput { remember: Some(true), passivate: true, ..replied() });
    assert_eq!((harness.starts, harness.dropped), (1, 1));
    harness.marks = Some(vec![alice(), Entity::new("later", "e")]);
    // The shard is claimed again after an unknown outcome, so the marks are read again.
    let remembered = harness.head.take();
    harness.post(Message { target: named(1), ..harness.template() });
    harness.run();
    harness.settle(CommitOutcome::Unknown("lost".into()));
    harness.head = remembered;
    let scans = harness.mark_scans.len();
    harness.grant();
    assert_eq!(harness.mark_scans.len(), scans + 1);
    assert_eq!(harness.starts, 2, "only the other entity was started, by its message");
}

#[test]
fn k31_recovery_restarts_an_entity_that_a_message_woke() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run_with(TurnOutput { remember: Some(true), passivate: true, ..replied() });
    harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.starts, 2);
    harness.trap();
    assert_eq!(harness.starts, 3, "it is no longer passivated, so a trap restarts it");
}

#[test]
fn k34_an_entity_in_a_pause_takes_no_place_of_recovery() {
    let settings = Settings { recovery_starts: 1, ..Settings::default() };
    let other = Entity::new("later", "e");
    let mut harness = recovering(settings, Some(vec![named(0), other]));
    harness.fail_starts(&named(0));
    harness.marks = marks(2);
    harness.deploy_type("later", 1);
    assert_eq!(harness.loading(), [named(1)], "the marks were read again");
}

#[test]
fn k33_a_deployment_ends_the_pause_of_a_remembered_entity() {
    let mut harness = recovering(Settings::default(), marks(1));
    harness.fail_starts(&named(0));
    harness.deploy_type("counter", 2);
    assert_eq!(harness.loading(), [named(0)], "its new revision may start");
}

#[test]
fn k31_recovery_retries_a_start_that_it_left_to_a_message() {
    let mut harness = recovering(Settings::default(), None);
    harness.post(Message { target: named(0), ..harness.template() });
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("a slot is requested")
    };
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    // The marks arrive while the message's start is under way, so recovery leaves the entity to it.
    let page = Ok((marks(1).unwrap(), false));
    harness.handle(Event::RememberedScanned { number: harness.mark_scans[0], page });
    let (code, message) = ("instance-limit".into(), String::new());
    let result = ActivationOutcome::Failed { code, message, retry_after: Some(10) };
    harness.handle(Event::ActivationResult { entity, generation, result });
    harness.pending_actions.clear();
    harness.tick(harness.now + 1_000);
    assert_eq!(harness.loading(), [named(0)]);
}

#[test]
fn k31_recovery_waits_for_the_revision_that_an_entity_needs() {
    let mut harness = recovering(Settings::default(), marks(1));
    harness.head = Some(Head { version: 7, revision: 9, remembered: true, ..Head::default() });
    let load = harness.next_action();
    harness.answer_load(&load);
    for _ in 0..5 {
        harness.tick(harness.now + 1_000);
    }
    assert_eq!(harness.loading(), [], "it is not loaded again and again");
    harness.deploy_type("counter", 9);
    assert_eq!(harness.loading(), [named(0)]);
}

#[test]
fn k31_an_entity_that_restarts_often_displaces_no_other() {
    let settings = Settings {
        timer_page: 2,
        recovery_starts: 1,
        instance_slot_timeout: 100,
        ..Settings::default()
    };
    let mut harness = recovering(settings, marks(1));
    // The only place of recovery belongs to an entity that waits for a slot.
    let load = harness.next_action();
    harness.answer_load(&load);
    // Meanwhile messages start another remembered entity, which fails each time: as often as there is space.
    for sequence in 1..=8 {
        harness.now += 1;
        let template = harness.template();
        let id = MessageId { sequence, ..template.id };
        harness.post(Message { target: named(1), id, ..template });
        harness.start(&named(1), turn(GuestReply::Result(Bytes::new()), false));
        harness.trap();
    }
    // The first one gets no slot in time, and is tried again later.
    harness.tick(1_100);
    assert!(harness.machine.awaits_recovery(&named(0)), "it has not been forgotten");
    assert_eq!(harness.loading(), [named(1)]);
    harness.start(&named(1), turn(GuestReply::Result(Bytes::new()), false));
    harness.tick(2_100);
    assert_eq!(harness.loading(), [named(0)]);
    assert_eq!(harness.mark_scans.len(), 1, "no mark is read again");
}
