//! Each rule of the cluster switched off, to see a run fail: an oracle that has never failed proves nothing.

use ostraca_sharding::{node, route, shard};
use ostraca_sim::cluster::{Options, run};
use ostraca_sim::store::Breach;

/// Runs seeds until one breaks a promise in the way that is looked for: a breach of another kind proves nothing.
fn caught(options: &Options, sign: &str) -> bool {
    (1..=12_000).any(|seed| {
        let broken = run(seed, options.clone()).breaches;
        let found = broken.iter().find(|breach| breach.contains(sign));
        // Shown by a failing test, and by `--nocapture`.
        found.inspect(|found| eprintln!("seed {seed}: {found}")).is_some()
    })
}

fn without(mutation: node::Mutation, sign: &str) -> bool {
    caught(&Options { node: vec![mutation], ..Options::default() }, sign)
}

fn router_without(mutation: route::Mutation, sign: &str) -> bool {
    caught(&Options { route: vec![mutation], ..Options::default() }, sign)
}

#[test]
fn r7_a_new_owner_before_the_old_one_is_marked_dead_is_seen() {
    assert!(without(node::Mutation::AssignWithoutDeath, "while the former owner held it (R7)"));
}

#[test]
fn r7_a_life_registered_over_a_live_lease_is_seen() {
    assert!(without(node::Mutation::RegisterAtOnce, "registered"));
}

#[test]
fn r8_a_lease_judged_by_who_slept_is_seen() {
    // Where sleep is the only fault, it is seen sooner.
    let node = vec![node::Mutation::TrustOldObservations];
    assert!(caught(&Options { node, pauses: true, ..Options::default() }, "(R8)"));
}

#[test]
fn r9_a_node_that_resumes_without_reading_its_claims_is_seen() {
    assert!(without(node::Mutation::ResumeBlindly, "read its claims back (R9)"));
}

#[test]
fn r9_a_node_that_keeps_its_shards_without_a_store_leaves_them_unserved() {
    assert!(without(node::Mutation::KeepWithoutStore, "nobody serves"));
}

#[test]
fn r10_a_manager_that_decides_before_it_sealed_is_seen() {
    assert!(without(node::Mutation::NoSeal, "(R10)"));
}

#[test]
fn r11_an_answer_to_another_hand_off_that_counts_is_seen() {
    assert!(without(node::Mutation::NoMatching, "while the former owner held it (R7)"));
}

#[test]
fn r11_a_shard_that_its_owner_does_not_list_stays_unserved() {
    assert!(without(node::Mutation::TrustSilence, "nobody serves"));
}

#[test]
fn r11_a_node_that_goes_on_unheard_leaves_what_it_gave_up_unserved() {
    assert!(without(node::Mutation::StayUnheard, "nobody serves"));
}

#[test]
fn r12_acknowledgements_with_a_veto_hold_a_hand_off_up() {
    assert!(without(node::Mutation::AcksVeto, "waited for acknowledgements"));
}

#[test]
fn r7_a_shard_handed_on_before_it_stopped_is_seen() {
    assert!(without(node::Mutation::DontAwaitStop, "while the former owner held it (R7)"));
}

#[test]
fn r5_an_epoch_used_twice_is_seen() {
    assert!(without(node::Mutation::SameEpoch, "(R5)"));
}

#[test]
fn r9_a_node_that_does_not_know_that_its_lease_lapsed_is_seen() {
    assert!(without(node::Mutation::NoSuspend, "(R9)"));
}

#[test]
fn r9_turns_of_a_lapsed_node_start_only_if_node_and_shard_both_forget_the_lease() {
    let options = Options {
        node: vec![node::Mutation::NoSuspend],
        shard: vec![shard::Mutation::QueryWithoutLease],
        ..Options::default()
    };
    assert!(caught(&options, "started a turn"));
}

#[test]
fn s15_a_hand_off_told_before_it_is_written_is_seen() {
    assert!(without(node::Mutation::NotAhead, "(S15)"));
}

#[test]
fn r16_a_refusal_of_a_message_in_doubt_that_is_told_as_not_run_is_seen() {
    assert!(router_without(route::Mutation::ForgetDoubt, "told not run"));
}

#[test]
fn a11_messages_dropped_in_a_hand_off_are_missed() {
    assert!(router_without(route::Mutation::DropHeld, "unanswered"));
}

#[test]
fn r13_a_route_that_goes_back_is_seen() {
    assert!(router_without(route::Mutation::RoutesGoBack, "(R13)"));
}

#[test]
fn r1_without_the_exact_claim_and_the_version_a_former_owner_overwrites() {
    let options = Options { store: vec![Breach::EpochOnly], ..Options::default() };
    assert!(caught(&options, "share version"));
}

#[test]
fn r2_rows_answered_before_they_are_durable_are_acted_on_too_early() {
    let options = Options { early_rows: true, ..Options::default() };
    assert!(caught(&options, "that no row has"));
}

#[test]
fn r17_without_lanes_a_message_that_is_sent_to_two_owners_runs_twice() {
    let options = Options { shard: vec![shard::Mutation::NoLanes], ..Options::default() };
    assert!(caught(&options, "made versions"));
}

#[test]
fn promise_5_without_after_a_session_through_two_gateways_runs_out_of_order() {
    let options = Options { shard: vec![shard::Mutation::NoOrder], ..Options::default() };
    assert!(caught(&options, "was overtaken"));
}

#[test]
fn r8_a_query_of_a_deposed_owner_is_stale() {
    let shard = vec![shard::Mutation::QueryWithoutLease];
    let options = Options { shard, pauses: true, messages: 400, ..Options::default() };
    assert!(caught(&options, "before it was sent"));
}

#[test]
fn r9_a_probation_that_does_not_grow_moves_shards_too_often() {
    let node = vec![node::Mutation::ForgetProbation];
    let options = Options { node, slow_store: true, ..Options::default() };
    assert!(caught(&options, "at most"));
}

fn shard_without(mutation: shard::Mutation, sign: &str) -> bool {
    caught(&Options { shard: vec![mutation], ..Options::default() }, sign)
}

#[test]
fn r17_a_dropped_lane_falls_to_a_copy_in_another_gateway() {
    assert!(shard_without(shard::Mutation::DropLaneWithoutWatermark, "made versions"));
}

#[test]
fn r17_a_watermark_left_out_of_the_head_falls_to_a_copy() {
    assert!(shard_without(shard::Mutation::WatermarkNotCommitted, "made versions"));
}

#[test]
fn r17_a_restamp_in_doubt_runs_a_message_twice() {
    let options = Options { restamps_in_doubt: true, ..Options::default() };
    assert!(caught(&options, "made versions"));
}
