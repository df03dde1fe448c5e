//! Each test breaks one promise in a small history and sees the oracle say so.

use super::*;

fn add(sequence: u64, by: u64, sent: u64, received: u64, version: u64, value: u64) -> Operation {
    Operation {
        entity: "counter/a".into(),
        session: "s".into(),
        sequence,
        command: true,
        method: "add".into(),
        arguments: by.into(),
        sent,
        received,
        outcome: Outcome::Final { version, value: Ok(value.into()) },
    }
}

fn get(sent: u64, received: u64, version: u64, value: u64) -> Operation {
    let mut operation = add(100 + sent, 0, sent, received, version, value);
    operation.command = false;
    operation.method = "get".into();
    operation
}

fn breaches(history: &[Operation], stored: u64) -> Vec<String> {
    let end = End { versions: [("counter/a".into(), stored)].into(), ..End::default() };
    check(|_| Counter { value: 0, limit: 1_000 }, history, &end)
}

#[test]
fn a_sequential_history_passes() {
    let history =
        [add(1, 5, 0, 10, 1, 5), get(11, 12, 1, 5), add(2, 2, 13, 20, 2, 7), get(11, 30, 2, 7)];
    assert_eq!(breaches(&history, 2), Vec::<String>::new());
}

#[test]
fn a_lost_acknowledged_command_is_seen() {
    assert!(!breaches(&[add(1, 5, 0, 10, 1, 5), add(2, 5, 11, 12, 2, 10)], 1).is_empty());
}

#[test]
fn a_command_that_ran_twice_is_seen() {
    // Both the doubled value and the hole in the versions show it.
    assert!(!breaches(&[add(1, 5, 0, 10, 2, 10)], 2).is_empty());
}

#[test]
fn a_stale_query_is_seen() {
    assert!(!breaches(&[add(1, 5, 0, 10, 1, 5), get(11, 12, 0, 0)], 1).is_empty());
}

#[test]
fn a_session_out_of_order_is_seen() {
    assert!(!breaches(&[add(1, 5, 0, 10, 2, 7), add(2, 2, 0, 10, 1, 2)], 2).is_empty());
}

#[test]
fn two_commands_with_one_version_are_seen() {
    let mut other = add(1, 5, 0, 10, 1, 5);
    other.session = "t".into();
    assert!(!breaches(&[add(1, 5, 0, 10, 1, 5), other], 1).is_empty());
}

#[test]
fn one_id_with_two_answers_is_seen() {
    assert!(!breaches(&[add(1, 5, 0, 10, 1, 5), add(1, 5, 0, 10, 2, 10)], 2).is_empty());
}

#[test]
fn a_refused_command_with_an_effect_is_seen() {
    let mut refused = add(1, 5, 0, 10, 0, 0);
    refused.outcome = Outcome::NotRun;
    assert!(!breaches(&[refused, add(2, 1, 11, 12, 2, 6)], 2).is_empty());
}
