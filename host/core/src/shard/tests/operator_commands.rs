//! Operators' commands that are not about dead letters (K31).

use super::*;

impl Harness {
    fn send_command(&mut self, sequence: u64, command: OperatorCommand) -> u64 {
        let message = Message {
            id: MessageId { session: ScopedSessionId([7; 16]), sequence },
            kind: MessageKind::Command,
            method: command.method().into(),
            body: Bytes::new(),
            ..self.template()
        };
        self.post(message)
    }

    fn forget(&mut self, sequence: u64) -> u64 {
        self.send_command(sequence, OperatorCommand::ForgetEntity)
    }

    /// A machine that has just run a turn of alice that marked her.
    fn remembering() -> Self {
        let mut harness = Self::serving();
        harness.send(1, 0, MessageKind::Command);
        let (generation, turn, _) = harness.running.take().expect("a running turn");
        let result = super::turn(GuestReply::Result(Bytes::new()), true);
        let result = TurnOutput { remember: Some(true), ..result };
        harness.handle(Event::TurnDone { entity: alice(), generation, turn, result });
        harness
    }

    fn removes_the_mark(&self) -> bool {
        let commit = self.commits.last().expect("a commit");
        let removes = RecordWrite { key: RecordKey::Remembered, value: None };
        commit.writes.contains(&removes) && !commit.head.remembered
    }
}

#[test]
fn k31_an_operator_forgets_an_entity_without_its_guest() {
    let mut harness = Harness::remembering();
    harness.settle(CommitOutcome::Committed);
    let token = harness.forget(1);
    assert!(harness.removes_the_mark() && harness.code_of(token).is_none(), "not durable yet");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.code_of(token).as_deref(), harness.runs), (Some("final 2"), 1));
    assert_eq!(harness.dropped, 0, "the instance continues");
    // A copy of the command gets the recorded answer.
    let copy = harness.forget(1);
    assert_eq!((harness.code_of(copy).as_deref(), harness.commits.len()), (Some("final 2"), 0));
    let again = harness.forget(2);
    assert_eq!(harness.code_of(again).as_deref(), Some(&*codes::NOT_REMEMBERED));
    harness.tick(1_000_000);
    assert_eq!((harness.dropped, harness.starts), (1, 1), "it may be dropped when idle");
}

#[test]
fn k31_forgetting_reads_what_is_durable() {
    let mut harness = Harness::remembering();
    let token = harness.forget(1);
    assert_eq!((harness.commits.len(), harness.code_of(token)), (1, None), "it waits for the mark");
    harness.settle(CommitOutcome::Committed);
    assert!(harness.removes_the_mark());
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 2"));
}

#[test]
fn k31_forgetting_starts_nothing_and_leaves_nothing_in_memory() {
    let mut harness = Harness::remembering();
    harness.settle(CommitOutcome::Committed);
    let mut next = harness.restarted();
    let token = next.forget(1);
    next.settle(CommitOutcome::Committed);
    assert_eq!(next.code_of(token).as_deref(), Some("final 2"));
    assert_eq!((next.starts, next.machine.stats().0), (0, 0));
    let mut unborn = Harness::serving();
    let token = unborn.forget(1);
    assert_eq!(unborn.code_of(token).as_deref(), Some(&*codes::NOT_REMEMBERED));
    assert_eq!((unborn.commits.len(), unborn.starts), (0, 0), "it does not create the entity");
}

#[test]
fn k31_an_entity_that_never_starts_can_be_forgotten() {
    let mut harness = Harness::remembering();
    harness.settle(CommitOutcome::Committed);
    let mut next = Harness::new(Settings::default());
    (next.head, next.lanes, next.marks) = (harness.head, harness.lanes, Some(vec![alice()]));
    next.silent = true;
    next.grant();
    let (mut token, mut attempts, mut forgotten) = (None, 0, 0);
    for _ in 0..200 {
        if next.pending_actions.is_empty() {
            let Some(at) = next.machine.next_wake() else { break };
            if forgotten > 0 && at > forgotten + 100_000 {
                break;
            }
            next.tick(at);
            continue;
        }
        match next.next_action() {
            action @ Action::Load { .. } => next.answer_load(&action),
            Action::RequestSlot { entity, generation, .. } => {
                next.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                assert_eq!(forgotten, 0, "it is started no more");
                attempts += 1;
                let result = ActivationOutcome::Started(trapped_turn());
                next.handle(Event::ActivationResult { entity, generation, result });
                if attempts == 4 {
                    token = Some(next.forget(1));
                }
            }
            _ => {}
        }
        if !next.commits.is_empty() {
            next.settle(CommitOutcome::Committed);
            forgotten = next.now;
        }
    }
    let outcome = next.code_of(token.expect("a command"));
    assert_eq!((outcome.as_deref(), next.machine.stats().0), (Some("final 2"), 0));
}

#[test]
fn k31_a_refused_forget_command_keeps_the_mark() {
    let mut harness = Harness::remembering();
    harness.settle(CommitOutcome::Committed);
    let mut next = Harness::new(Settings::default());
    (next.head, next.lanes) = (harness.head, harness.lanes);
    // The command arrives before recovery has read the marks, so there is no instance.
    next.marks = None;
    next.grant();
    let token = next.forget(1);
    next.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(next.code_of(token).as_deref(), Some(&*codes::STORE_FULL));
    assert_eq!(next.starts, 1, "the entity is still remembered, so it is started");
    next.forget(1);
    assert!(next.removes_the_mark());
}
