//! Disables each rule and expects a violation: an oracle that has never reported one proves nothing.
//!
//! Every test names the expected violation and its possible consequences. Any other violation fails the test.

use ostraca_client::ledger;
use ostraca_core::shard::Mutation;
use ostraca_oracle::ViolationKind as History;
use ostraca_sim::store::StoreMutation;
use ostraca_sim::{Options, ViolationKind, WRONG_VERSIONS, run};

const SEEDS: u64 = 2_000;

/// [`WRONG_VERSIONS`], and further consequences within one entity's machine.
fn wrong_versions() -> Vec<ViolationKind> {
    let alone =
        [ViolationKind::History(History::ConflictingOutcomes), ViolationKind::ReusedIdAnswered];
    [WRONG_VERSIONS, &alone].concat()
}

/// Consequences of commits that land although their machine has given them up: a commit of one revision may then land
/// on what the next revision has written.
fn late_commits() -> Vec<ViolationKind> {
    [&wrong_versions()[..], &[ViolationKind::RevisionFell]].concat()
}

/// Runs seeds until one causes the named violation. Only violations that follow from it may accompany it.
#[track_caller]
fn breaks(options: &Options, named: ViolationKind, follows: &[ViolationKind]) {
    for seed in 1..=SEEDS {
        let found = run(seed, options.clone()).breaches;
        let unexpected = found.iter().find(|it| it.kind != named && !follows.contains(&it.kind));
        assert!(unexpected.is_none(), "seed {seed}: {unexpected:?} instead of {named:?}");
        if let Some(found) = found.iter().find(|it| it.kind == named) {
            // Shown by `--nocapture`.
            eprintln!("seed {seed}: {found:?}");
            return;
        }
    }
    panic!("none of {SEEDS} seeds violates {named:?}");
}

#[track_caller]
fn without(mutation: Mutation, named: ViolationKind, follows: &[ViolationKind]) {
    breaks(&Options { mutations: vec![mutation], ..Options::default() }, named, follows);
}

#[track_caller]
fn store_without(breach: StoreMutation, named: ViolationKind, follows: &[ViolationKind]) {
    breaks(&Options { store_mutations: vec![breach], ..Options::default() }, named, follows);
}

/// Options with which calls are refused or redelivered more often, and more clients treat a refusal as final.
fn refusals() -> Options {
    Options { refused_calls: 10, repeated_calls: 30, impatient: 60, ..Options::default() }
}

/// Options with which zombies get more queries than commands, and for a long time, since a zombie learns from its first
/// commit that it lost the shard.
fn zombies() -> Options {
    Options { zombies: true, queries: 8, messages: 1_000, ..Options::default() }
}

#[test]
fn with_no_mutation_denser_faults_break_nothing() {
    for options in [refusals(), zombies(), late_redeployments()] {
        for seed in 1..=200 {
            let found = run(seed, options.clone()).breaches;
            assert!(found.is_empty(), "seed {seed}, {options:?}: {found:?}");
        }
    }
}

#[test]
fn promise_2_without_the_output_gate_replies_are_lost() {
    without(
        Mutation::ReplyBeforeCommit,
        ViolationKind::History(History::LostCommit),
        &wrong_versions(),
    );
}

#[test]
fn r1_without_the_version_chain_turns_are_lost() {
    store_without(
        StoreMutation::EpochOnly,
        ViolationKind::History(History::DuplicateVersion),
        &wrong_versions(),
    );
}

#[test]
fn r1_without_claims_a_zombie_commit_lands() {
    store_without(StoreMutation::NoClaims, ViolationKind::RanTwice, &late_commits());
}

#[test]
fn r2_reads_of_unsynced_data_show_what_a_crash_undoes() {
    // The entity was loaded with a turn that a crash undid: from then on, all of its commits are refused.
    store_without(StoreMutation::ReadUnsynced, ViolationKind::Unanswered, &wrong_versions());
}

#[test]
fn r2_commits_acknowledged_before_the_sync_are_lost() {
    store_without(
        StoreMutation::AckUnsynced,
        ViolationKind::History(History::LostCommit),
        &wrong_versions(),
    );
}

#[test]
fn r3_reporting_an_unknown_outcome_as_not_run_is_detected() {
    without(Mutation::UnknownIsNotRun, ViolationKind::EffectAfterNotRun, &late_commits());
}

#[test]
fn r5_a_rolled_back_store_forgets_acknowledged_turns() {
    let follows = [&wrong_versions()[..], &[ViolationKind::Unanswered]].concat();
    store_without(StoreMutation::OldCopy, ViolationKind::History(History::LostCommit), &follows);
}

#[test]
fn r3_accepting_a_redelivered_refused_commit_is_detected() {
    let options = Options { store_mutations: vec![StoreMutation::RefusalsPass], ..refusals() };
    breaks(&options, ViolationKind::EffectAfterNotRun, &late_commits());
}

#[test]
fn r6_a_cache_trusted_after_a_failed_sync_loses_turns() {
    store_without(
        StoreMutation::TrustCache,
        ViolationKind::History(History::LostCommit),
        &wrong_versions(),
    );
}

#[test]
fn promise_3_a_torn_turn_is_detected() {
    store_without(
        StoreMutation::TornTurns,
        ViolationKind::History(History::CommandValue),
        &wrong_versions(),
    );
}

#[test]
fn r8_a_query_answered_without_a_lease_is_stale() {
    // A session's own write makes the stale answer two violations, of which the oracle may name either.
    let follows = &[
        ViolationKind::History(History::QueryValue),
        ViolationKind::History(History::StaleSessionRead),
    ];
    let options = Options { mutations: vec![Mutation::QueryWithoutLease], ..zombies() };
    breaks(&options, ViolationKind::History(History::StaleQuery), follows);
}

#[test]
fn r9_a_turn_started_while_suspended_is_detected() {
    without(Mutation::RunWhileSuspended, ViolationKind::TurnWithoutLease, &[]);
}

#[test]
fn r16_an_unrecorded_application_error_is_detected() {
    let named = ViolationKind::History(History::DuplicateVersion);
    without(Mutation::SkipErrorRecording, named, &wrong_versions());
}

#[test]
fn r17_without_lanes_messages_run_twice() {
    without(Mutation::IgnoreLanes, ViolationKind::RanTwice, &wrong_versions());
}

#[test]
fn r17_without_after_a_session_runs_out_of_order() {
    without(Mutation::IgnoreOrder, ViolationKind::Superseded, &wrong_versions());
}

#[test]
fn r17_a_lane_dropped_without_the_watermark_is_detected() {
    without(Mutation::DropLaneWithoutWatermark, ViolationKind::RanTwice, &wrong_versions());
}

#[test]
fn r17_a_watermark_not_committed_with_the_head_is_detected() {
    without(Mutation::WatermarkNotCommitted, ViolationKind::RanTwice, &wrong_versions());
}

#[test]
fn r17_restamping_a_message_in_doubt_is_detected() {
    let client = vec![ledger::Mutation::RestampInDoubt];
    let options = Options { client_mutations: client, ..Options::default() };
    breaks(&options, ViolationKind::RanTwice, &wrong_versions());
}

#[test]
fn r16_shard_clients_that_forget_their_doubt_are_detected() {
    let client = vec![ledger::Mutation::ForgetDoubt];
    let options = Options { client_mutations: client, ..Options::default() };
    breaks(&options, ViolationKind::EffectAfterNotRun, &wrong_versions());
}

#[test]
fn r17_without_digests_a_reused_id_is_answered() {
    without(Mutation::IgnoreDigest, ViolationKind::ReusedIdAnswered, &[]);
}

#[test]
fn r18_a_copy_that_does_not_join_is_answered_too_early() {
    without(
        Mutation::CopiesDontJoin,
        ViolationKind::History(History::LostCommit),
        &wrong_versions(),
    );
}

#[test]
fn r21_effects_of_a_refused_turn_in_memory_are_detected() {
    let options = Options { keep_errors: true, ..Options::default() };
    // If the sender of a command gave up, its wrong value shows only in later answers.
    let follows = [History::QueryValue, History::Unexplained].map(ViolationKind::History);
    breaks(&options, ViolationKind::History(History::CommandValue), &follows);
}

#[test]
fn r22_a_turn_started_after_its_deadline_is_detected() {
    without(Mutation::IgnoreDeadline, ViolationKind::TurnAfterDeadline, &[]);
}

/// Options with which one node learns of redeployments late, and the other receives the older one again.
fn late_redeployments() -> Options {
    Options { late_redeployments: true, ..Options::default() }
}

#[test]
fn r24_an_older_revision_that_runs_is_detected() {
    let options = Options { mutations: vec![Mutation::RunOlderRevision], ..late_redeployments() };
    breaks(&options, ViolationKind::RevisionFell, &[]);
}

#[test]
fn r24_an_older_deployment_that_is_accepted_is_detected() {
    let options =
        Options { mutations: vec![Mutation::AcceptOlderDeployment], ..late_redeployments() };
    // Entities that the newer revision wrote do not run until the next deployment.
    breaks(&options, ViolationKind::Unanswered, &[ViolationKind::RevisionFell]);
}

#[test]
fn r3_loading_an_entity_during_its_commit_is_detected() {
    let named = ViolationKind::History(History::DuplicateVersion);
    without(Mutation::LoadDuringCommit, named, &wrong_versions());
}

#[test]
fn r23_changing_a_binding_loses_existing_entities() {
    let options = Options { rebind: true, ..Options::default() };
    breaks(&options, ViolationKind::History(History::DuplicateVersion), &wrong_versions());
}

#[test]
fn r25_a_timer_that_fires_early_is_detected() {
    without(Mutation::FireEarly, ViolationKind::FiredEarly, &[]);
}

#[test]
fn r25_a_timer_that_fires_twice_is_detected() {
    without(Mutation::KeepFiredTimer, ViolationKind::FiredVoid, &[ViolationKind::TimerNotFired]);
}

#[test]
fn r25_a_timer_without_a_wake_up_is_detected() {
    without(Mutation::SkipWakeIndex, ViolationKind::TimerNotFired, &[ViolationKind::WakeUpWrong]);
}
