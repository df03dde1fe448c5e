//! Each rule switched off, to see the oracle fail: an oracle that has never failed proves nothing.

use ostraca_sharding::shard::Mutation;
use ostraca_sim::store::Breach;
use ostraca_sim::{Options, run};

/// Runs seeds until one breaks a promise.
fn caught(options: &Options, most: u64) -> bool {
    (1..=most).any(|seed| {
        let broken = run(seed, options.clone()).breaches;
        // Shown by a failing test, and by `--nocapture`.
        broken.first().inspect(|first| eprintln!("seed {seed}: {first}")).is_some()
    })
}

fn without(mutation: Mutation) -> bool {
    caught(&Options { mutations: vec![mutation], ..Options::default() }, 2_000)
}

fn store_without(breach: Breach) -> bool {
    caught(&Options { breaches: vec![breach], ..Options::default() }, 2_000)
}

#[test]
fn promise_2_without_the_output_gate_replies_are_lost() {
    assert!(without(Mutation::NoGate));
}

#[test]
fn r1_without_the_version_chain_turns_are_lost() {
    assert!(store_without(Breach::EpochOnly));
}

#[test]
fn r1_without_claims_a_zombie_commit_lands() {
    assert!(store_without(Breach::NoClaims));
}

#[test]
fn r2_reads_of_unsynced_data_show_what_a_crash_undoes() {
    assert!(store_without(Breach::ReadUnsynced));
}

#[test]
fn r2_commits_acknowledged_before_the_sync_are_lost() {
    assert!(store_without(Breach::AckUnsynced));
}

#[test]
fn r3_an_unknown_outcome_told_as_not_run_has_an_effect() {
    assert!(without(Mutation::UnknownIsNotRun));
}

#[test]
fn r5_a_store_that_went_back_forgets_acknowledged_turns() {
    assert!(store_without(Breach::OldCopy));
}

#[test]
fn r3_a_refused_commit_that_is_delivered_again_and_taken_has_an_effect() {
    assert!(store_without(Breach::RefusalsPass));
}

#[test]
fn r6_a_cache_trusted_after_a_failed_sync_loses_turns() {
    assert!(store_without(Breach::TrustCache));
}

#[test]
fn promise_3_a_torn_turn_is_seen() {
    assert!(store_without(Breach::TornTurns));
}

#[test]
fn r8_a_query_answered_without_a_lease_is_stale() {
    assert!(without(Mutation::QueryWithoutLease));
}

#[test]
fn r9_a_turn_that_starts_while_its_shard_is_suspended_is_seen() {
    assert!(without(Mutation::RunWhileSuspended));
}

#[test]
fn r16_a_refusal_that_is_not_recorded_is_followed_by_the_effect() {
    assert!(without(Mutation::ForgetRefusals));
}

#[test]
fn r17_without_lanes_messages_run_twice() {
    assert!(without(Mutation::NoLanes));
}

#[test]
fn r17_without_after_a_session_runs_out_of_order() {
    assert!(without(Mutation::NoOrder));
}

#[test]
fn r17_a_lane_dropped_without_the_watermark_is_seen() {
    assert!(without(Mutation::DropLaneWithoutWatermark));
}

#[test]
fn r17_a_watermark_not_committed_with_the_head_is_seen() {
    assert!(without(Mutation::WatermarkNotCommitted));
}

#[test]
fn r17_a_message_stamped_anew_while_in_doubt_is_seen() {
    assert!(caught(&Options { restamps_in_doubt: true, ..Options::default() }, 2_000));
}

#[test]
fn r17_without_digests_a_reused_id_is_answered() {
    assert!(without(Mutation::NoDigest));
}

#[test]
fn r18_a_copy_that_does_not_join_is_answered_too_early() {
    assert!(without(Mutation::CopiesDontJoin));
}

#[test]
fn r21_effects_of_a_refused_turn_that_stay_in_memory_are_seen() {
    assert!(caught(&Options { keep_errors: true, ..Options::default() }, 2_000));
}

#[test]
fn r22_a_turn_started_after_its_deadline_is_seen() {
    assert!(without(Mutation::IgnoreDeadline));
}

#[test]
fn r3_an_entity_loaded_behind_its_own_commit_is_seen() {
    assert!(without(Mutation::LoadBehindCommit));
}

#[test]
fn r23_a_binding_changed_under_entities_loses_what_they_were() {
    assert!(caught(&Options { rebind: true, ..Options::default() }, 2_000));
}
