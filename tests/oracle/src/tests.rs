//! Each test breaks one promise in a small history, which the oracle must report.

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
        given_up: None,
        outcome: Outcome::Final { version, value: Ok(value.into()) },
    }
}

fn get(sent: u64, received: u64, version: u64, value: u64) -> Operation {
    let mut operation = add(100 + sent, 0, sent, received, version, value);
    operation.command = false;
    operation.method = "get".into();
    operation
}

/// A command whose sender gave up on it.
fn unknown(session: &str, sequence: u64, by: u64, sent: u64) -> Operation {
    let mut operation = add(sequence, by, sent, sent + 1, 0, 0);
    operation.session = session.into();
    operation.outcome = Outcome::Unknown;
    operation
}

fn of(session: &str, mut operation: Operation) -> Operation {
    operation.session = session.into();
    operation
}

/// The distinct kinds of violations found.
fn broken(history: &[Operation], stored: u64) -> BTreeSet<ViolationKind> {
    let end = End { versions: [("counter/a".into(), stored)].into(), ..End::default() };
    let found = check(|_| Counter { value: 0, limit: 1_000 }, history, &end);
    found.into_iter().map(|finding| finding.kind).collect()
}

fn only(kind: ViolationKind) -> BTreeSet<ViolationKind> {
    BTreeSet::from([kind])
}

#[test]
fn a_sequential_history_passes() {
    let history = [
        add(1, 5, 0, 10, 1, 5),
        of("t", get(11, 12, 1, 5)),
        add(2, 2, 13, 20, 2, 7),
        of("t", get(11, 30, 2, 7)),
    ];
    assert_eq!(broken(&history, 2), BTreeSet::new());
}

#[test]
fn a_lost_acknowledged_command_is_detected() {
    let history = [add(1, 5, 0, 10, 1, 5), add(2, 5, 11, 12, 2, 10)];
    assert_eq!(broken(&history, 1), only(ViolationKind::LostCommit));
}

#[test]
fn a_command_that_ran_twice_is_detected() {
    // No command explains the version that the first run made.
    let history = [add(1, 5, 0, 10, 2, 10)];
    assert_eq!(broken(&history, 2), only(ViolationKind::Unexplained));
}

#[test]
fn a_stale_query_is_detected() {
    let history = [add(1, 5, 0, 10, 1, 5), of("t", get(11, 12, 0, 0))];
    assert_eq!(broken(&history, 1), only(ViolationKind::StaleQuery));
}

#[test]
fn a_session_out_of_order_is_detected() {
    let history = [add(1, 5, 0, 10, 2, 7), add(2, 2, 0, 10, 1, 2)];
    assert_eq!(broken(&history, 2), only(ViolationKind::SessionOrder));
}

#[test]
fn two_commands_with_one_version_are_detected() {
    let history = [add(1, 5, 0, 10, 1, 5), of("t", add(1, 5, 0, 10, 1, 5))];
    assert_eq!(broken(&history, 1), only(ViolationKind::DuplicateVersion));
}

#[test]
fn one_id_with_two_outcomes_is_detected() {
    let history = [add(1, 5, 0, 10, 1, 5), add(1, 5, 0, 10, 2, 10)];
    assert!(broken(&history, 2).contains(&ViolationKind::ConflictingOutcomes));
}

#[test]
fn a_refused_command_with_an_effect_is_detected() {
    let mut refused = add(1, 5, 0, 10, 0, 0);
    refused.outcome = Outcome::NotRun;
    let history = [refused, add(2, 1, 11, 12, 2, 6)];
    assert_eq!(broken(&history, 2), only(ViolationKind::Unexplained));
}

#[test]
fn an_unknown_command_explains_a_version_and_its_value() {
    let history = [unknown("t", 1, 5, 0), add(1, 2, 0, 10, 2, 7), get(11, 12, 2, 7)];
    assert_eq!(broken(&history, 2), BTreeSet::new());
    // The unknown command did not run, or has not run yet.
    let history = [unknown("t", 1, 5, 0), add(1, 2, 0, 10, 1, 2), get(11, 12, 1, 2)];
    assert_eq!(broken(&history, 1), BTreeSet::new());
}

#[test]
fn a_value_behind_a_hole_is_compared() {
    let history = [unknown("t", 1, 5, 0), add(1, 2, 0, 10, 2, 8)];
    assert_eq!(broken(&history, 2), only(ViolationKind::CommandValue));
    let history = [unknown("t", 1, 5, 0), add(1, 2, 0, 10, 2, 7), of("u", get(11, 12, 2, 6))];
    assert_eq!(broken(&history, 2), only(ViolationKind::QueryValue));
}

#[test]
fn a_value_is_the_sum_of_a_set_of_unknown_commands() {
    let unknowns = || vec![unknown("t", 1, 3, 0), unknown("u", 1, 5, 0), unknown("v", 1, 9, 0)];
    let with = |version, value| {
        let mut history = unknowns();
        history.push(add(1, 1, 0, 10, version, value));
        history
    };
    // Any two of the commands, in any order.
    for sum in [8, 12, 14] {
        assert_eq!(broken(&with(3, sum + 1), 3), BTreeSet::new(), "{sum}");
    }
    // One command twice, or a sum that the commands cannot give.
    for sum in [6, 10, 18, 7] {
        assert_eq!(broken(&with(3, sum + 1), 3), only(ViolationKind::CommandValue), "{sum}");
    }
    // What one value shows also holds for the next: 3 and 5 have run, so 9 may run next, and 5 may not.
    let later = |value| {
        let mut history = with(3, 9);
        history.push(add(2, 1, 11, 20, 5, value));
        history
    };
    assert_eq!(broken(&later(19), 5), BTreeSet::new());
    assert_eq!(broken(&later(15), 5), only(ViolationKind::CommandValue));
}

#[test]
fn an_unknown_command_explains_one_version_only() {
    let history = [unknown("t", 1, 5, 0), add(1, 2, 0, 10, 3, 12)];
    assert_eq!(broken(&history, 3), only(ViolationKind::Unexplained));
}

#[test]
fn a_later_command_explains_nothing_seen_before_it() {
    // Version 2 was acknowledged before the only unknown command was sent.
    let history = [add(1, 2, 0, 10, 2, 7), unknown("t", 1, 5, 11)];
    assert_eq!(broken(&history, 2), only(ViolationKind::Unexplained));
    let history = [of("u", get(0, 10, 1, 5)), unknown("t", 1, 5, 11)];
    assert_eq!(broken(&history, 1), only(ViolationKind::Unexplained));
}

#[test]
fn an_unknown_command_does_not_run_behind_its_follower() {
    let history = [unknown("s", 1, 5, 0), add(2, 2, 0, 10, 1, 2)];
    assert_eq!(broken(&history, 2), only(ViolationKind::Unexplained));
    let history = [add(1, 2, 0, 10, 2, 7), unknown("s", 2, 5, 0)];
    assert_eq!(broken(&history, 2), only(ViolationKind::Unexplained));
}

#[test]
fn unknown_commands_of_a_session_run_in_its_order() {
    // 3 and then 5, never 5 and then 3.
    let unknowns = || vec![unknown("t", 1, 3, 0), unknown("t", 2, 5, 0)];
    let with = |value| {
        let mut history = unknowns();
        history.push(add(1, 1, 0, 10, 2, value));
        history.push(add(2, 1, 0, 11, 4, 10));
        history
    };
    assert_eq!(broken(&with(4), 4), BTreeSet::new());
    assert_eq!(broken(&with(6), 4), only(ViolationKind::Unexplained));
}

#[test]
fn an_unknown_application_error_takes_only_a_version() {
    let history = [unknown("t", 1, 2_000, 0), add(1, 2, 0, 10, 2, 2)];
    assert_eq!(broken(&history, 2), BTreeSet::new());
}

#[test]
fn a_query_does_not_overtake_a_command_of_its_session() {
    // Both were in flight at the same time, so real time does not order them.
    let mut query = get(0, 20, 0, 0);
    query.sequence = 2;
    assert_eq!(
        broken(&[add(1, 5, 0, 10, 1, 5), query.clone()], 1),
        only(ViolationKind::StaleSessionRead)
    );
    let other = of("t", query);
    assert_eq!(broken(&[add(1, 5, 0, 10, 1, 5), other], 1), BTreeSet::new());
}

#[test]
fn a_query_overtakes_only_commands_not_given_up_before_it() {
    let mut command = add(1, 5, 0, 40, 1, 5);
    let mut query = get(10, 20, 0, 0);
    query.sequence = 2;
    command.given_up = Some(10);
    assert_eq!(broken(&[command.clone(), query.clone()], 1), BTreeSet::new());
    command.given_up = Some(9);
    assert_eq!(broken(&[command.clone(), query], 1), only(ViolationKind::StaleSessionRead));
    let later = add(2, 5, 10, 20, 1, 5);
    command.outcome = Outcome::Final { version: 2, value: Ok(10.into()) };
    command.given_up = Some(10);
    assert_eq!(broken(&[command, later], 2), only(ViolationKind::SessionOrder));
}

#[test]
fn a_query_that_is_resent_may_follow_a_later_command() {
    let mut query = get(0, 20, 1, 5);
    query.sequence = 1;
    assert_eq!(broken(&[query, add(2, 5, 0, 10, 1, 5)], 1), BTreeSet::new());
}

#[test]
fn a_late_reply_to_a_copy_says_nothing_about_order() {
    let copy = add(1, 5, 30, 40, 1, 5);
    let history = [add(1, 5, 0, 10, 1, 5), add(2, 2, 11, 20, 2, 7), copy];
    assert_eq!(broken(&history, 2), BTreeSet::new());
    // The sender gave the first copy up, and the second one learnt the outcome.
    let history = [unknown("s", 1, 5, 0), add(1, 5, 30, 40, 1, 5), add(2, 2, 11, 20, 2, 7)];
    assert_eq!(broken(&history, 2), BTreeSet::new());
}

#[test]
fn too_many_choices_are_reported() {
    let mut history: Vec<_> =
        (0..60).map(|n| unknown(&format!("t{n}"), 1, 1 << (n % 30), 0)).collect();
    history.push(add(1, 1, 0, 10, 31, 3));
    let verdict =
        check_with_report(|_| Counter { value: 0, limit: u64::MAX }, &history, &End::default());
    assert_eq!(verdict.not_compared, ["counter/a"]);
    assert!(verdict.violations.is_empty());
}

/// At each hole, at most [`values::MOST`] choices are followed, however many holes and unknown commands there are.
#[test]
fn a_long_history_of_holes_is_checked_quickly() {
    let mut history: Vec<_> =
        (0..120).map(|n| unknown(&format!("t{n}"), 1, 1 << (n % 40), 0)).collect();
    history.push(of("u", get(0, 400, 100, 3)));
    let begun = std::time::Instant::now();
    let verdict =
        check_with_report(|_| Counter { value: 0, limit: u64::MAX }, &history, &End::default());
    assert_eq!(verdict.not_compared, ["counter/a"]);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    // A version that nothing explains is a violation, not a case of too many choices.
    let history = [add(1, 2, 0, 10, 2, 7)];
    let verdict =
        check_with_report(|_| Counter { value: 0, limit: u64::MAX }, &history, &End::default());
    assert_eq!((verdict.not_compared.len(), verdict.violations.len()), (0, 1));
}

/// No violation is found in runs that keep every promise, although some commands ran without being answered.
#[test]
fn runs_that_keep_every_promise_pass() {
    for seed in 1..400_u64 {
        let mut noise = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = |below: u64| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            (noise >> 20) % below
        };
        let mut counter = Counter { value: 0, limit: 40 };
        let (mut history, mut version) = (Vec::new(), 0);
        for now in 1..80 {
            let session = format!("s{}", draw(4));
            let (sent, received) = (now * 10 - draw(30).min(now * 10 - 1), now * 10 + draw(30));
            // Within a session, one message is in flight at a time.
            let last = history.iter().filter(|it: &&Operation| it.session == session);
            let sent = last.map(|it| it.received.min(now * 10)).max().unwrap_or(0).max(sent);
            let mut operation = of(&session, add(now, 1 + draw(9), sent, received, 0, 0));
            if draw(3) == 0 {
                operation.command = false;
                operation.method = "get".into();
                let value = counter.query("get", &operation.arguments);
                operation.outcome = Outcome::Final { version, value };
            } else {
                operation.method = if draw(3) == 0 { "take".into() } else { "add".into() };
                let runs = draw(6) > 0;
                let mut value = Ok(Value::Null);
                if runs {
                    value = counter.command(&operation.method, &operation.arguments);
                    version += 1;
                }
                operation.outcome = match runs && draw(4) > 0 {
                    true => Outcome::Final { version, value },
                    false => Outcome::Unknown,
                };
            }
            history.push(operation);
        }
        let end = End { versions: [("counter/a".into(), version)].into(), ..End::default() };
        let found = check(|_| Counter { value: 0, limit: 40 }, &history, &end);
        assert!(found.is_empty(), "seed {seed}: {found:#?}");
    }
}
