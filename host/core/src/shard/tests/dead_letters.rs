//! Dead letters: resending and dropping them (R19).

use super::super::dead_letters::MAX_RESENT_BYTES;
use super::*;

fn tell(method: &str, bytes: usize) -> NewTell {
    NewTell {
        target: Entity::new("counter", "bob"),
        method: method.into(),
        body: vec![0; bytes].into(),
        content_type: "".into(),
        traceparent: "".into(),
        utc_ms: 5,
    }
}

impl Harness {
    /// Runs a command whose turn sends tells with bodies of these sizes; bob refuses all. Returns the tells' numbers.
    fn with_dead_letters(settings: Settings, bodies: &[usize]) -> (Self, Vec<u64>) {
        let mut harness = Self::with(settings);
        harness.send(1, 0, MessageKind::Command);
        let (generation, turn, _) = harness.running.take().expect("a running turn");
        let tells = bodies.iter().map(|bytes| tell("a", *bytes)).collect();
        let result = TurnOutput { tells, ..super::turn(GuestReply::Result(Bytes::new()), true) };
        harness.handle(Event::TurnDone { entity: alice(), generation, turn, result });
        harness.settle(CommitOutcome::Committed);
        let numbers = bodies.iter().map(|_| harness.answer_first(refused())).collect();
        (harness, numbers)
    }

    fn answer_first(&mut self, outcome: Outcome) -> u64 {
        let number = self.answer_tell(outcome);
        self.settle(CommitOutcome::Committed);
        number
    }

    fn send_dead_letter_command(
        &mut self,
        sequence: u64,
        action: DeadLetterAction,
        numbers: &[u64],
    ) -> u64 {
        let message = Message {
            id: MessageId { session: ScopedSessionId([7; 16]), sequence },
            kind: MessageKind::Command,
            method: action.method().into(),
            body: encode_dead_letters(numbers).into(),
            ..self.template()
        };
        self.post(message)
    }

    /// The numbers of the dead letters that a command handled.
    fn handled(&self, token: u64) -> Option<Vec<u64>> {
        let (_, outcome) = self.replies.iter().rev().find(|(other, _)| *other == token)?;
        match outcome {
            Outcome::Final { reply: GuestReply::Result(body), .. } => decode_dead_letters(body),
            other => panic!("{other:?}"),
        }
    }

    fn dead(&self) -> Vec<u64> {
        self.dead_letters.iter().map(|(number, _)| *number).collect()
    }
}

fn refused() -> Outcome {
    let reply = GuestReply::Error { code: "no".into(), message: "why".into() };
    Outcome::Final { reply, version: 1 }
}

#[test]
fn r19_a_resent_dead_letter_is_a_new_tell_behind_all_others() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1, 1]);
    assert_eq!(harness.dead(), numbers);
    let starts = harness.starts;
    harness.now += 500;
    let token = harness.send_dead_letter_command(1, DeadLetterAction::Resend, &numbers[..1]);
    assert!(harness.tells.is_empty(), "nothing leaves before the commit");
    assert_eq!(harness.handled(token), None);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(token).as_deref(), Some(&numbers[..1]));
    assert_eq!((harness.dead(), harness.starts), (numbers[1..].to_vec(), starts));
    let (number, sent) = harness.tells[0].clone();
    assert!(number > numbers[1], "its old number was answered");
    assert_eq!((sent.attempts, sent.retry_at, &*sent.failure, sent.utc_ms), (0, 0, "", 5));
    assert_eq!(sent.created_ms, harness.now, "it is a new message");
    assert_eq!(harness.head.as_ref().unwrap().outbox_counts(), Ok((1, 1)));
    // A copy of the command gets the recorded answer.
    let copy = harness.send_dead_letter_command(1, DeadLetterAction::Resend, &numbers[..1]);
    assert_eq!(harness.handled(copy).as_deref(), Some(&numbers[..1]));
    harness.answer_first(super::tells::ran());
    assert_eq!((harness.outbox.len(), harness.tells.len()), (0, 0));
}

#[test]
fn r19_dropped_dead_letters_leave_room_in_the_outbox() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[7, 7, 7]);
    let token =
        harness.send_dead_letter_command(1, DeadLetterAction::Drop, &[numbers[2], 1, numbers[0]]);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(token), Some(vec![numbers[2], numbers[0]]));
    assert_eq!((harness.dead(), harness.tells.len()), (vec![numbers[1]], 0));
    assert_eq!(harness.head.as_ref().unwrap().outbox_counts(), Ok((0, 1)));
}

#[test]
fn dead_letter_commands_leave_nothing_in_memory() {
    let (harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1]);
    let mut next = harness.restarted();
    let token = next.send_dead_letter_command(1, DeadLetterAction::Drop, &numbers);
    next.settle(CommitOutcome::Committed);
    assert_eq!(next.handled(token), Some(numbers));
    assert_eq!((next.starts, next.machine.stats().0, next.dead_letters.len()), (0, 0, 0));
}

#[test]
fn dead_letters_that_are_gone_are_refused_by_code() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1]);
    harness.send_dead_letter_command(1, DeadLetterAction::Drop, &numbers);
    harness.settle(CommitOutcome::Committed);
    for action in [DeadLetterAction::Drop, DeadLetterAction::Resend] {
        let token = harness.send_dead_letter_command(2, action, &numbers);
        assert_eq!(harness.code_of(token).as_deref(), Some("unknown-dead-letter"));
        assert!(!harness.may_be_sent_again(token) && harness.commits.is_empty());
    }
    let mut unborn = Harness::serving();
    let token = unborn.send_dead_letter_command(1, DeadLetterAction::Drop, &[7]);
    assert_eq!(unborn.code_of(token).as_deref(), Some("unknown-dead-letter"));
    assert_eq!((unborn.head, unborn.starts), (None, 0), "the command does not create the entity");
}

#[test]
fn a_dead_letter_stays_if_its_command_does_not_commit() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1]);
    let token = harness.send_dead_letter_command(1, DeadLetterAction::Resend, &numbers);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.code_of(token).as_deref(), Some("store-full"));
    assert!(harness.tells.is_empty());
    let again = harness.send_dead_letter_command(1, DeadLetterAction::Resend, &numbers);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(again), Some(numbers));
    assert_eq!((harness.tells.len(), harness.dead_letters.len()), (1, 0));
}

#[test]
fn one_command_resends_as_much_as_a_commit_can_hold() {
    let half = MAX_RESENT_BYTES / 2;
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[half; 3]);
    let token = harness.send_dead_letter_command(1, DeadLetterAction::Resend, &numbers);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(token).as_deref(), Some(&numbers[..2]));
    assert_eq!(harness.dead(), numbers[2..]);
}

#[test]
fn dead_letter_commands_report_only_what_is_durable() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1]);
    let first = harness.send_dead_letter_command(1, DeadLetterAction::Drop, &numbers);
    let second = harness.send_dead_letter_command(2, DeadLetterAction::Resend, &numbers);
    assert_eq!((harness.code_of(second), harness.commits.len()), (None, 1));
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!(harness.code_of(first).as_deref(), Some("store-full"));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(second), Some(numbers), "the dead letter was still there");
}

#[test]
fn dead_letter_commands_run_one_after_the_other() {
    let (mut harness, numbers) = Harness::with_dead_letters(Settings::default(), &[1, 1]);
    let first = harness.send_dead_letter_command(1, DeadLetterAction::Drop, &numbers[..1]);
    let second = harness.send_dead_letter_command(2, DeadLetterAction::Drop, &numbers[1..]);
    assert_eq!(harness.commits.len(), 1);
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.handled(first).as_deref(), Some(&numbers[..1]));
    assert_eq!(harness.handled(second).as_deref(), Some(&numbers[1..]));
}
