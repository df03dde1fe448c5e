//! Each rule switched off, to see the oracle fail: an oracle that has never failed proves nothing.
//!
//! Every test names the breach that must follow, and what may follow from that. Any other breach fails the test.

use ostraca_oracle::Broken as History;
use ostraca_sharding::shard::Mutation;
use ostraca_sim::store::Breach;
use ostraca_sim::{Broken, Options, run};

const SEEDS: u64 = 2_000;

/// What clients see where turns that were answered are not there any more, or are there twice.
const WRONG_VERSIONS: &[Broken] = &[
    Broken::History(History::SharedVersion),
    Broken::History(History::StaleCommand),
    Broken::History(History::StaleQuery),
    Broken::History(History::SessionOrder),
    Broken::History(History::QueryOvertook),
    Broken::History(History::CommandValue),
    Broken::History(History::QueryValue),
    Broken::History(History::Unexplained),
    Broken::History(History::Lost),
    Broken::History(History::TwoAnswers),
    Broken::RanTwice,
    Broken::EffectAfterNotRun,
    Broken::Overtaken,
    Broken::ReusedIdAnswered,
];

/// Runs seeds until one breaks what is named. What follows from that may break too, and nothing else.
#[track_caller]
fn breaks(options: &Options, named: Broken, follows: &[Broken]) {
    for seed in 1..=SEEDS {
        let found = run(seed, options.clone()).breaches;
        let stray = found.iter().find(|it| it.broken != named && !follows.contains(&it.broken));
        assert!(stray.is_none(), "seed {seed}: {stray:?}, where {named:?} is to break");
        if let Some(found) = found.iter().find(|it| it.broken == named) {
            // Shown by `--nocapture`.
            eprintln!("seed {seed}: {found:?}");
            return;
        }
    }
    panic!("no seed of {SEEDS} breaks {named:?}");
}

#[track_caller]
fn without(mutation: Mutation, named: Broken, follows: &[Broken]) {
    breaks(&Options { mutations: vec![mutation], ..Options::default() }, named, follows);
}

#[track_caller]
fn store_without(breach: Breach, named: Broken, follows: &[Broken]) {
    breaks(&Options { breaches: vec![breach], ..Options::default() }, named, follows);
}

#[test]
fn promise_2_without_the_output_gate_replies_are_lost() {
    without(Mutation::NoGate, Broken::History(History::Lost), WRONG_VERSIONS);
}

#[test]
fn r1_without_the_version_chain_turns_are_lost() {
    store_without(Breach::EpochOnly, Broken::History(History::SharedVersion), WRONG_VERSIONS);
}

#[test]
fn r1_without_claims_a_zombie_commit_lands() {
    store_without(Breach::NoClaims, Broken::RanTwice, WRONG_VERSIONS);
}

#[test]
fn r2_reads_of_unsynced_data_show_what_a_crash_undoes() {
    let named = Broken::History(History::Unexplained);
    store_without(Breach::ReadUnsynced, named, &[WRONG_VERSIONS, &[Broken::Unanswered]].concat());
}

#[test]
fn r2_commits_acknowledged_before_the_sync_are_lost() {
    store_without(Breach::AckUnsynced, Broken::History(History::Lost), WRONG_VERSIONS);
}

#[test]
fn r3_an_unknown_outcome_told_as_not_run_has_an_effect() {
    without(Mutation::UnknownIsNotRun, Broken::EffectAfterNotRun, WRONG_VERSIONS);
}

#[test]
fn r5_a_store_that_went_back_forgets_acknowledged_turns() {
    store_without(Breach::OldCopy, Broken::History(History::Lost), WRONG_VERSIONS);
}

#[test]
fn r3_a_refused_commit_that_is_delivered_again_and_taken_has_an_effect() {
    store_without(Breach::RefusalsPass, Broken::EffectAfterNotRun, WRONG_VERSIONS);
}

#[test]
fn r6_a_cache_trusted_after_a_failed_sync_loses_turns() {
    store_without(Breach::TrustCache, Broken::History(History::Lost), WRONG_VERSIONS);
}

#[test]
fn promise_3_a_torn_turn_is_seen() {
    store_without(Breach::TornTurns, Broken::History(History::CommandValue), WRONG_VERSIONS);
}

#[test]
fn r8_a_query_answered_without_a_lease_is_stale() {
    let follows = &[Broken::History(History::QueryValue)];
    without(Mutation::QueryWithoutLease, Broken::History(History::StaleQuery), follows);
}

#[test]
fn r9_a_turn_that_starts_while_its_shard_is_suspended_is_seen() {
    without(Mutation::RunWhileSuspended, Broken::TurnWithoutLease, &[]);
}

#[test]
fn r16_a_refusal_that_is_not_recorded_is_followed_by_the_effect() {
    let named = Broken::History(History::SharedVersion);
    without(Mutation::ForgetRefusals, named, WRONG_VERSIONS);
}

#[test]
fn r17_without_lanes_messages_run_twice() {
    without(Mutation::NoLanes, Broken::RanTwice, WRONG_VERSIONS);
}

#[test]
fn r17_without_after_a_session_runs_out_of_order() {
    without(Mutation::NoOrder, Broken::Overtaken, WRONG_VERSIONS);
}

#[test]
fn r17_without_digests_a_reused_id_is_answered() {
    without(Mutation::NoDigest, Broken::ReusedIdAnswered, &[]);
}

#[test]
fn r18_a_copy_that_does_not_join_is_answered_too_early() {
    without(Mutation::CopiesDontJoin, Broken::History(History::Lost), WRONG_VERSIONS);
}

#[test]
fn r21_effects_of_a_refused_turn_that_stay_in_memory_are_seen() {
    let options = Options { keep_errors: true, ..Options::default() };
    let follows = &[Broken::History(History::QueryValue)];
    breaks(&options, Broken::History(History::CommandValue), follows);
}

#[test]
fn r22_a_turn_started_after_its_deadline_is_seen() {
    without(Mutation::IgnoreDeadline, Broken::TurnAfterDeadline, &[]);
}

#[test]
fn r3_an_entity_loaded_behind_its_own_commit_is_seen() {
    let named = Broken::History(History::SharedVersion);
    without(Mutation::LoadBehindCommit, named, WRONG_VERSIONS);
}

#[test]
fn r23_a_binding_changed_under_entities_loses_what_they_were() {
    let options = Options { rebind: true, ..Options::default() };
    breaks(&options, Broken::History(History::SharedVersion), WRONG_VERSIONS);
}
