//! Disables each rule of the cluster and expects a violation: an oracle that has never reported one proves nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_client::ledger::Mutation;
use ostraca_core::{node, route, shard};
use ostraca_oracle::ViolationKind as History;
use ostraca_sim::cluster::{GatewayMutation, Options, run};
use ostraca_sim::store::StoreMutation;
use ostraca_sim::{ViolationKind, WRONG_VERSIONS};

/// Seeds that every test runs, to report how many detect the violation.
const SAMPLE: u64 = 100;
/// The highest seed to run if the sample does not detect the violation.
const SEEDS: u64 = 12_000;

/// A stale query: by version, by value, or older than its own session's writes. The last comes with another violation:
/// a replaced owner answers with a state from before the session's write at the successor, which breaks both real time
/// and the session's order. So it only follows, and is never the named violation.
const STALE: &[ViolationKind] = &[
    ViolationKind::History(History::StaleQuery),
    ViolationKind::History(History::QueryValue),
    ViolationKind::History(History::StaleSessionRead),
];

/// A lease that is trusted for too long outlives its incarnation.
const RELIES: ViolationKind = ViolationKind::EndedLeaseTrusted;

/// Whether a seed causes the named violation. Fails on any violation that does not follow from it.
#[track_caller]
fn sees(options: &Options, named: ViolationKind, follows: &[ViolationKind], seed: u64) -> bool {
    let found = run(seed, options.clone()).violations;
    let unexpected = found.iter().find(|it| it.kind != named && !follows.contains(&it.kind));
    assert!(unexpected.is_none(), "seed {seed}: {unexpected:?} instead of {named:?}");
    found.iter().any(|it| it.kind == named)
}

/// At least `least` percent of the sample must cause the named violation, and at least one of all seeds.
#[track_caller]
fn breaks(options: &Options, named: ViolationKind, follows: &[ViolationKind], least: u64) {
    let seen = (1..=SAMPLE).filter(|seed| sees(options, named, follows, *seed)).count() as u64;
    // Shown by a failing test, and by `--nocapture`.
    eprintln!("{named:?}: seen by {seen} of {SAMPLE} seeds");
    assert!(seen * 100 >= least * SAMPLE, "only {seen} of {SAMPLE} seeds violate {named:?}");
    if seen == 0 {
        let seed = (SAMPLE + 1..=SEEDS).find(|seed| sees(options, named, follows, *seed));
        eprintln!("{named:?}: first seen by {seed:?}");
        assert!(seed.is_some(), "none of {SEEDS} seeds violates {named:?}");
    }
}

/// At least this percentage of the seeds must read a stale value, and none may cause any other violation, except the
/// causes of a stale read. `STALE=n` sets how many seeds run.
#[track_caller]
fn reads_stale(options: &Options, least: u64) {
    let options = &Options { leases_alone: true, ..options.clone() };
    let seeds = std::env::var("STALE").ok().and_then(|it| it.parse().ok()).unwrap_or(300);
    let (next, seen) = (AtomicU64::new(1), AtomicU64::new(0));
    // A replaced owner does not know the items of its successor.
    let mut follows = [&STALE[1..], &[RELIES, ViolationKind::ChannelWrong]].concat();
    if !options.shard_mutations.is_empty() {
        // A machine that trusts an expired lease also starts its own turns, for timers, and sends the tells that it
        // had to send when it was the owner.
        follows.extend([
            ViolationKind::TurnWithoutLease,
            ViolationKind::ToldTwice,
            ViolationKind::TellOrder,
        ]);
    }
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    let stale = sees(options, STALE[0], &follows, seed);
                    seen.fetch_add(u64::from(stale), Ordering::Relaxed);
                }
            });
        }
    });
    let seen = seen.into_inner();
    eprintln!("stale reads: seen by {seen} of {seeds} seeds");
    assert!(seen * 100 >= least * seeds, "only {seen} of {seeds} seeds read a stale value");
}

#[track_caller]
fn without(mutation: node::Mutation, named: ViolationKind, follows: &[ViolationKind], least: u64) {
    breaks(
        &Options { node_mutations: vec![mutation], ..Options::default() },
        named,
        follows,
        least,
    );
}

#[track_caller]
fn router_without(
    mutation: route::Mutation,
    named: ViolationKind,
    follows: &[ViolationKind],
    least: u64,
) {
    breaks(
        &Options { route_mutations: vec![mutation], ..Options::default() },
        named,
        follows,
        least,
    );
}

#[track_caller]
fn shard_without(
    mutation: shard::Mutation,
    named: ViolationKind,
    follows: &[ViolationKind],
    least: u64,
) {
    breaks(
        &Options { shard_mutations: vec![mutation], ..Options::default() },
        named,
        follows,
        least,
    );
}

#[track_caller]
fn client_without(mutation: Mutation, named: ViolationKind, follows: &[ViolationKind], least: u64) {
    breaks(
        &Options { client_mutations: vec![mutation], ..Options::default() },
        named,
        follows,
        least,
    );
}

#[test]
fn r7_assigning_before_mark_dead_is_detected() {
    without(node::Mutation::AssignWithoutDeath, ViolationKind::OwnerReplacedAlive, &[], 80);
}

#[test]
fn r7_registering_over_a_live_lease_is_detected() {
    without(
        node::Mutation::RegisterOverLiveLease,
        ViolationKind::RegisteredOverLiveLease,
        &[RELIES],
        15,
    );
}

#[test]
fn r8_relying_on_a_longer_lease_before_its_row_is_detected() {
    let node = vec![node::Mutation::ApplyLeaseImmediately];
    let options = Options { node_mutations: node, settings: true, ..Options::default() };
    // According to the lease in its row, such a node suspends too late.
    let follows = [STALE, &[ViolationKind::NotSuspended]].concat();
    breaks(&options, RELIES, &follows, 0);
}

#[test]
fn r9_taking_silence_for_an_ended_process_is_detected() {
    let options = Options { guesses_health: true, ..Options::default() };
    let follows = [STALE, &[RELIES, ViolationKind::ElectedOverLiveLease]].concat();
    breaks(&options, ViolationKind::MarkedDeadWithLiveLease, &follows, 60);
}

#[test]
fn e8_taking_an_unlapsed_shard_lease_is_detected() {
    // The former owner answers queries until it learns of the change.
    let follows = [STALE, &[ViolationKind::ChannelWrong]].concat();
    let mutation = node::Mutation::TakeUnlapsedShardLease;
    without(mutation, ViolationKind::ShardLeaseTaken, &follows, 5);
}

#[test]
fn r9_resuming_without_a_claim_check_is_detected() {
    without(
        node::Mutation::ResumeWithoutClaimCheck,
        ViolationKind::ResumedWithoutClaimCheck,
        &[],
        25,
    );
}

#[test]
fn r9_shards_kept_without_a_store_stay_unserved() {
    without(
        node::Mutation::KeepShardsWithoutStore,
        ViolationKind::Unserved,
        &[ViolationKind::Unanswered],
        0,
    );
}

#[test]
fn r10_deciding_before_sealing_is_detected() {
    without(node::Mutation::SkipSeal, ViolationKind::DecidedUnsealed, &[], 20);
}

#[test]
fn r11_counting_an_answer_to_another_hand_off_is_detected() {
    without(node::Mutation::SkipHandOffMatching, ViolationKind::OwnerReplacedAlive, &[], 0);
}

#[test]
fn r11_keeping_unreported_assignments_leaves_shards_unserved() {
    without(
        node::Mutation::KeepUnreportedAssignments,
        ViolationKind::Unserved,
        &[ViolationKind::Unanswered],
        0,
    );
}

#[test]
fn r11_ignoring_manager_silence_leaves_shards_unserved() {
    without(
        node::Mutation::IgnoreManagerSilence,
        ViolationKind::Unserved,
        &[ViolationKind::Unanswered],
        0,
    );
}

#[test]
fn r24_ignoring_unrunnable_types_is_detected() {
    without(node::Mutation::IgnoreUnrunnableTypes, ViolationKind::Unanswered, &[], 0);
}

#[test]
fn r12_requiring_all_acks_blocks_a_hand_off() {
    without(
        node::Mutation::RequireAllAcks,
        ViolationKind::WaitedForAcks,
        // Shards move to other databases in hand-offs.
        &[ViolationKind::Unanswered, ViolationKind::NotRelocated],
        10,
    );
}

#[test]
fn r7_assigning_a_shard_before_it_stopped_is_detected() {
    without(node::Mutation::AssignBeforeStopped, ViolationKind::OwnerReplacedAlive, &[], 80);
}

#[test]
fn r5_an_epoch_used_twice_is_detected() {
    without(node::Mutation::ReuseEpoch, ViolationKind::EpochOrder, &[], 90);
}

#[test]
fn r9_not_suspending_after_a_lapse_is_detected() {
    without(node::Mutation::SkipSuspend, ViolationKind::NotSuspended, &[], 40);
}

#[test]
fn r9_a_turn_without_a_lease_needs_two_mutations() {
    let options = Options {
        node_mutations: vec![node::Mutation::SkipSuspend],
        shard_mutations: vec![shard::Mutation::QueryWithoutLease],
        ..Options::default()
    };
    // A subscriber that has read an item from the new owner reads again from the former one, which answers without a
    // lease and does not know that item.
    let follows = [&[ViolationKind::NotSuspended, ViolationKind::ChannelWrong], STALE].concat();
    breaks(&options, ViolationKind::TurnWithoutLease, &follows, 0);
}

#[test]
fn s15_announcing_a_hand_off_before_writing_it_is_detected() {
    without(node::Mutation::SkipWriteAhead, ViolationKind::SentBeforeWritten, &[], 90);
}

#[test]
fn r16_not_run_for_a_message_in_doubt_is_detected() {
    // A message wrongly reported as not run leaves an unexplained version; if reported as too old, its client restamps
    // it and it runs again.
    let follows = &[
        ViolationKind::History(History::Unexplained),
        ViolationKind::History(History::CommandValue),
        ViolationKind::History(History::QueryValue),
        ViolationKind::RanTwice,
    ];
    router_without(route::Mutation::ForgetInDoubt, ViolationKind::EffectAfterNotRun, follows, 0);
}

#[test]
fn a11_dropping_messages_in_a_hand_off_is_detected() {
    // The sender of a dropped tell waits for the answer; with hosts on probation, the run may not come to its end.
    let follows = &[ViolationKind::TellNotSent, ViolationKind::Endless];
    router_without(route::Mutation::DropBuffered, ViolationKind::Unanswered, follows, 0);
}

#[test]
fn r13_a_route_to_a_lower_epoch_is_detected() {
    router_without(route::Mutation::AcceptLowerEpochs, ViolationKind::RouteBack, &[], 0);
}

#[test]
fn accepting_rows_that_a_watch_repeats_is_detected() {
    // A host applies an older row than the one that assigned it a shard, and later releases that shard because its store
    // does not respond. According to its reports, it has not seen the assignment yet, so the manager waits. In other
    // seeds, all shards are served, but their numbers stay uneven, which is reported as unanswered (seed 266), or the
    // manager takes a node that has ended for live, and waits for its acknowledgement (seed 401), or a gateway keeps an old
    // route (seed 442).
    let follows =
        &[ViolationKind::Unanswered, ViolationKind::WaitedForAcks, ViolationKind::TellNotSent];
    without(node::Mutation::AcceptOlderRows, ViolationKind::Unserved, follows, 0);
}

#[test]
fn r1_comparing_only_epochs_lets_a_former_owner_overwrite() {
    let options = Options { store_mutations: vec![StoreMutation::EpochOnly], ..Options::default() };
    // A former owner's commit restores a tell that has already run and that the owner's memory no longer has (seed 70).
    // And since the version does not count, a turn is committed although the turn before it was refused, for example
    // for lack of room. If the refused turn would have moved the entity's wake-up, the store has two: the second is in
    // no owner's memory and is left when the entity is deleted. If it would have removed the mark of a remembered
    // entity, the mark stays, but owners do not start the entity, since its head says that it has no mark. A commit that
    // takes the version back also makes the turns behind it look as if they had asked too early (seed 97).
    let more = [
        ViolationKind::TellNotSent,
        ViolationKind::DeletionLeft,
        ViolationKind::NotRecovered,
        ViolationKind::AskedUncommitted,
        ViolationKind::TellReturned,
    ];
    let follows = [WRONG_VERSIONS, &more].concat();
    breaks(&options, ViolationKind::RanTwice, &follows, 0);
}

#[test]
fn r2_answering_rows_before_they_are_durable_is_detected() {
    let options = Options { early_rows: true, ..Options::default() };
    breaks(&options, ViolationKind::SentBeforeWritten, &[], 0);
}

#[test]
fn r17_without_lanes_a_message_to_two_owners_runs_twice() {
    // A session whose message ran twice may wait for an answer that does not come (seed 12).
    let follows = [WRONG_VERSIONS, &[ViolationKind::Unanswered]].concat();
    shard_without(shard::Mutation::IgnoreLanes, ViolationKind::RanTwice, &follows, 50);
}

#[test]
fn promise_5_without_after_two_gateways_reorder_a_session() {
    shard_without(shard::Mutation::IgnoreOrder, ViolationKind::Superseded, WRONG_VERSIONS, 50);
}

#[test]
fn r8_a_query_of_a_deposed_owner_is_stale() {
    let shard = vec![shard::Mutation::QueryWithoutLease];
    // 164 of 300 seeds.
    reads_stale(&Options { shard_mutations: shard, ..Options::default() }, 50);
}

#[test]
fn r8_using_a_lease_for_twice_its_time_is_detected() {
    let shard = vec![shard::Mutation::DoubleLease];
    // 148 of 300 seeds.
    reads_stale(&Options { shard_mutations: shard, ..Options::default() }, 49);
}

#[test]
fn r8_a_renewal_counted_from_its_answer_is_detected() {
    let node = vec![node::Mutation::LeaseFromRenewalResponse];
    // 33 of 300 seeds.
    reads_stale(&Options { node_mutations: node, ..Options::default() }, 8);
}

#[test]
fn r8_a_registration_counted_from_its_answer_is_detected() {
    let node = vec![node::Mutation::LeaseFromRegistrationResponse];
    // 23 of 300 seeds.
    reads_stale(&Options { node_mutations: node, ..Options::default() }, 7);
}

#[test]
fn r9_a_probation_that_does_not_grow_moves_shards_too_often() {
    let node = vec![node::Mutation::ConstantProbation];
    let options = Options { node_mutations: node, slow_store: true, ..Options::default() };
    breaks(&options, ViolationKind::MovedTooOften, &[], 0);
}

#[test]
fn r17_dropping_a_lane_without_watermark_reruns_a_copy() {
    let mutation = shard::Mutation::DropLaneWithoutWatermark;
    shard_without(mutation, ViolationKind::RanTwice, WRONG_VERSIONS, 0);
}

#[test]
fn r17_a_watermark_left_out_of_the_head_reruns_a_copy() {
    let mutation = shard::Mutation::WatermarkNotCommitted;
    shard_without(mutation, ViolationKind::RanTwice, WRONG_VERSIONS, 0);
}

#[test]
fn r17_a_restamp_in_doubt_runs_a_message_twice() {
    // Messages in doubt are not given up as too old, but are restamped again and again.
    let follows = [WRONG_VERSIONS, &[ViolationKind::Unanswered]].concat();
    client_without(Mutation::RestampInDoubt, ViolationKind::RanTwice, &follows, 0);
}

#[test]
fn r16_a_client_that_forgets_its_doubt_is_detected() {
    client_without(Mutation::ForgetDoubt, ViolationKind::EffectAfterNotRun, WRONG_VERSIONS, 20);
}

#[test]
fn r16_treating_silence_as_not_run_runs_messages_twice() {
    // The connection is cut while the answer is in transit; nothing else causes silence.
    let options = Options { anew_after_silence: true, ..Options::default() };
    breaks(&options, ViolationKind::RanTwice, WRONG_VERSIONS, 5);
    breaks(&Options { client_cuts: true, ..options }, ViolationKind::RanTwice, WRONG_VERSIONS, 10);
}

#[test]
fn r16_treating_a_refusal_as_proof_is_detected() {
    client_without(
        Mutation::NotRunClearsDoubt,
        ViolationKind::EffectAfterNotRun,
        WRONG_VERSIONS,
        5,
    );
}

#[test]
fn r17_matching_replies_by_order_is_detected() {
    let named = ViolationKind::History(History::CommandValue);
    client_without(Mutation::MatchRepliesByOrder, named, WRONG_VERSIONS, 50);
}

#[test]
fn r17_settling_unread_replies_is_detected() {
    client_without(Mutation::SettleUnreadReplies, ViolationKind::Superseded, WRONG_VERSIONS, 20);
}

#[test]
fn promise_5_a_client_that_omits_after_is_overtaken() {
    client_without(Mutation::OmitAfter, ViolationKind::Superseded, WRONG_VERSIONS, 50);
}

#[test]
fn k19_accepting_messages_beyond_the_budget_is_detected() {
    let gateway = vec![GatewayMutation::TakeWithoutRoom];
    let options = Options { gateway_mutations: gateway, tight: true, ..Options::default() };
    breaks(&options, ViolationKind::OverBudget, &[], 40);
}

#[test]
fn r22_a_gateway_that_bounds_no_deadline_is_detected() {
    let gateway = vec![GatewayMutation::UnboundDeadlines];
    let options = Options { gateway_mutations: gateway, ..Options::default() };
    breaks(&options, ViolationKind::DeadlineUnbound, &[], 15);
}

#[test]
fn s11_6_a_gateway_that_skips_message_checks_is_detected() {
    let gateway = vec![GatewayMutation::DontCheck];
    let options = Options { gateway_mutations: gateway, ..Options::default() };
    breaks(&options, ViolationKind::InvalidMessageRan, WRONG_VERSIONS, 15);
}

#[test]
fn r20_a_time_from_each_copys_gateway_is_detected() {
    let gateway = vec![GatewayMutation::StampAtGateway];
    let options = Options { gateway_mutations: gateway, ..Options::default() };
    breaks(&options, ViolationKind::TurnTimeChanged, &[], 15);
}

#[test]
fn r16_forgetting_in_flight_messages_at_a_stop_is_detected() {
    // Most clients resend under the same id; only those that cannot wait report this outcome.
    let route = vec![route::Mutation::CloseWithoutInDoubt];
    let options = Options { route_mutations: route, leaves: true, ..Options::default() };
    breaks(&options, ViolationKind::EffectAfterNotRun, WRONG_VERSIONS, 0);
}

#[test]
fn r25_a_tell_sent_before_its_turn_is_durable_is_detected() {
    // Versions of turns that were not committed are reused, and so are the numbers of their tells: a target that ran
    // one of the lost tells mistakes the next ones for copies (seed 133), or runs a number again with the time of
    // another tell (seed 31).
    let follows = &[
        ViolationKind::ToldTwice,
        ViolationKind::TellOrder,
        ViolationKind::TellLost,
        ViolationKind::TurnTimeChanged,
    ];
    let named = ViolationKind::ToldUncommitted;
    shard_without(shard::Mutation::TellBeforeCommit, named, follows, 5);
}

#[test]
fn r19_a_tell_deleted_when_it_is_sent_is_detected() {
    shard_without(shard::Mutation::DeleteSentTell, ViolationKind::TellLost, &[], 5);
}

#[test]
fn r19_resending_under_the_old_number_is_detected() {
    // The target may have dropped the lane since, because the sender had nothing left to send up to that number. And an
    // old number comes before the tell in flight, whose answer then matches none (seed 76). A tell that runs again with
    // a later creation time asks again under the same ids, and the asked entities may have dropped those lanes (seed 7).
    let follows = &[
        ViolationKind::ToldTwice,
        ViolationKind::TellOrder,
        ViolationKind::TellNotSent,
        ViolationKind::AskRanTwice,
        ViolationKind::AskAnswerChanged,
    ];
    shard_without(shard::Mutation::ResendOldNumber, ViolationKind::TellReturned, follows, 5);
}

#[test]
fn r19_dropping_a_senders_lane_by_time_reruns_a_tell() {
    shard_without(
        shard::Mutation::DropSenderLanes,
        ViolationKind::ToldTwice,
        &[ViolationKind::TellOrder],
        0,
    );
}

#[test]
fn k31_forgetting_remembered_entities_is_detected() {
    shard_without(shard::Mutation::ForgetRemembered, ViolationKind::NotRecovered, &[], 5);
}

#[test]
fn r3_items_sent_before_their_commit_are_detected() {
    let follows = &[ViolationKind::ChannelWrong];
    shard_without(shard::Mutation::PublishBeforeCommit, ViolationKind::ItemNotDurable, follows, 0);
}

#[test]
fn r27_a_fan_out_that_leaves_out_a_page_is_detected() {
    let named = ViolationKind::SubscriptionWrong;
    shard_without(shard::Mutation::ForgetFanOutPage, named, &[], 3);
}

#[test]
fn e18_reusing_event_numbers_is_detected() {
    // A snapshot whose number was used before stays when its entity is deleted.
    let follows = &[ViolationKind::DeletionLeft];
    shard_without(shard::Mutation::ReuseEventNumbers, ViolationKind::JournalWrong, follows, 20);
}

#[test]
fn r20_an_ask_sent_before_earlier_turns_is_detected() {
    let named = ViolationKind::AskedUncommitted;
    shard_without(shard::Mutation::AskBeforeCommit, named, &[], 5);
}

#[test]
fn r20_asking_under_new_ids_runs_asks_twice() {
    shard_without(shard::Mutation::NewAskIds, ViolationKind::AskRanTwice, &[], 5);
}

#[test]
fn r20_ignoring_crossing_asks_is_detected() {
    let named = ViolationKind::AskCycleKept;
    shard_without(shard::Mutation::IgnoreCrossingAsks, named, &[], 0);
}

#[test]
fn r20_a_cycle_through_an_asked_turn_is_detected() {
    // Long asks delay messages; in time, each of them would be answered.
    let options = Options {
        shard_mutations: vec![shard::Mutation::ProbeQueuedAsksOnly],
        long_asks: true,
        ..Options::default()
    };
    breaks(&options, ViolationKind::AskCycleKept, &[ViolationKind::Unanswered], 0);
}

#[test]
fn r20_a_second_instance_that_becomes_stale_is_detected() {
    let named = ViolationKind::History(History::QueryValue);
    shard_without(shard::Mutation::KeepSecondInstance, named, STALE, 3);
}

#[test]
fn r15_keeping_waiting_turns_holds_up_a_stop() {
    shard_without(shard::Mutation::KeepWaitingTurns, ViolationKind::StopWaitsForAsk, &[], 5);
}

#[test]
fn r17_dropping_the_lane_of_a_key_runs_a_request_twice() {
    shard_without(shard::Mutation::DropKeyedLanes, ViolationKind::RanTwice, WRONG_VERSIONS, 2);
}

#[test]
fn e17_lanes_that_a_deletion_removes_are_missed() {
    let told = [ViolationKind::ToldTwice, ViolationKind::TellOrder, ViolationKind::AskRanTwice];
    let follows = [WRONG_VERSIONS, &told].concat();
    shard_without(shard::Mutation::DeleteLanes, ViolationKind::RanTwice, &follows, 2);
}

#[test]
fn e17_state_that_outlives_its_deletion_is_detected() {
    let values = [History::CommandValue, History::QueryValue].map(ViolationKind::History);
    let follows = [&values[..], &[ViolationKind::WrongSchema]].concat();
    shard_without(shard::Mutation::KeepDeletedState, ViolationKind::DeletionLeft, &follows, 5);
}

#[test]
fn e17_a_head_that_goes_before_its_lanes_is_missed() {
    let follows = [
        WRONG_VERSIONS,
        &[ViolationKind::TellOrder, ViolationKind::ToldTwice, ViolationKind::DeletionLeft],
        &[ViolationKind::AskRanTwice, ViolationKind::EffectAfterNotRun],
    ];
    let follows = follows.concat();
    shard_without(shard::Mutation::SweepEarly, ViolationKind::RanTwice, &follows, 1);
}

#[test]
fn e17_a_shard_that_forgets_removed_heads_is_detected() {
    let options =
        Options { store_mutations: vec![StoreMutation::ForgetFloor], ..Options::default() };
    let follows = [
        WRONG_VERSIONS,
        &[ViolationKind::TellOrder, ViolationKind::ToldTwice, ViolationKind::RanTwice],
        &[ViolationKind::History(History::StaleQuery), ViolationKind::ChannelWrong],
        &[ViolationKind::History(History::StaleSessionRead), ViolationKind::AskRanTwice],
        // A tell whose number its target has answered before is lost, and a command waits for it.
        &[ViolationKind::Unanswered, ViolationKind::History(History::DuplicateVersion)],
    ];
    let named = ViolationKind::History(History::LostCommit);
    breaks(&options, named, &follows.concat(), 1);
}

#[test]
fn e17_an_entity_that_ends_early_is_detected() {
    shard_without(shard::Mutation::ExpireEarly, ViolationKind::ExpiredEarly, &[], 2);
}

#[test]
fn r24_a_revision_on_state_of_another_schema_is_detected() {
    shard_without(shard::Mutation::SkipMigration, ViolationKind::WrongSchema, &[], 5);
}

#[test]
fn e15_a_passivation_that_comes_early_is_detected() {
    shard_without(shard::Mutation::PassivateEarly, ViolationKind::PassivatedEarly, &[], 2);
}

#[test]
fn k27_an_allocation_before_enough_hosts_is_detected() {
    without(node::Mutation::AllocateEarly, ViolationKind::AllocatedEarly, &[], 3);
}

#[test]
fn k39_a_shard_at_a_node_without_its_role_is_detected() {
    // The shares of the hosts that should have the shards never become even.
    let follows = [ViolationKind::Unanswered];
    without(node::Mutation::IgnorePoolRoles, ViolationKind::WrongPool, &follows, 3);
}

#[test]
fn k14_a_shard_that_waits_for_a_late_owner_is_detected() {
    let options = Options {
        node_mutations: vec![node::Mutation::IgnoreLateStarts],
        claims_hang: true,
        ..Options::default()
    };
    // In most runs all shards are served for a moment before that host joins; then what waits gets no answer.
    breaks(&options, ViolationKind::Unserved, &[ViolationKind::Unanswered], 10);
}

#[test]
fn a_pinned_shard_at_another_node_is_detected() {
    without(node::Mutation::IgnorePins, ViolationKind::NotPlaced, &[], 3);
}

#[test]
fn e9_wishes_that_never_expire_are_detected() {
    // What the program wanted at its end is not even.
    without(node::Mutation::TrustOldPlacements, ViolationKind::Unanswered, &[], 1);
}

#[test]
fn k33_a_shard_that_escalations_move_for_ever_is_detected() {
    let rule = node::Mutation::UnboundedEscalations;
    without(rule, ViolationKind::EscalatedTooOften, &[], 1);
}

#[test]
fn r26_ignoring_misplaced_shards_is_detected() {
    let node = vec![node::Mutation::IgnoreMisplacedShards];
    let options = Options { node_mutations: node, moves_data: true, ..Options::default() };
    breaks(&options, ViolationKind::NotRelocated, &[], 50);
}

#[test]
fn r26_a_move_without_a_mark_loses_commits() {
    // The former owner resumes after its lease, and commits where the data was.
    let options = Options {
        store_mutations: vec![StoreMutation::CopyWithoutMark],
        moves_data: true,
        pauses: true,
        clocks_stop: true,
        ..Options::default()
    };
    let follows =
        [WRONG_VERSIONS, &[ViolationKind::AskedUncommitted, ViolationKind::Unanswered]].concat();
    breaks(&options, ViolationKind::History(History::LostCommit), &follows, 0);
    // Without the mutation, the store refuses that.
    let options = Options { store_mutations: Vec::new(), ..options };
    for seed in 1..=SAMPLE {
        let found = run(seed, options.clone()).violations;
        assert!(found.is_empty(), "seed {seed}: {found:?}");
    }
}

#[test]
fn r26_a_move_outside_a_hand_off_loses_commits() {
    let store = vec![StoreMutation::MoveOutsideHandOff];
    let options = Options { store_mutations: store, moves_data: true, ..Options::default() };
    let follows = [
        WRONG_VERSIONS,
        &[ViolationKind::AskedUncommitted, ViolationKind::TurnTimeChanged],
        &[ViolationKind::TellOrder, ViolationKind::TellNotSent, ViolationKind::DeletionLeft],
        // The owner does not know that the data has moved.
        &[ViolationKind::NotRelocated],
        // The mark of a remembered entity may be among what is lost.
        &[ViolationKind::NotRecovered],
    ];
    let named = ViolationKind::History(History::LostCommit);
    breaks(&options, named, &follows.concat(), 15);
}

#[test]
fn e13_a_loser_that_goes_on_is_detected() {
    let node = vec![node::Mutation::IgnoreLostArbitration];
    let options = Options { node_mutations: node, arbitrates: true, ..Options::default() };
    // The sides cannot forward messages to each other, so nothing settles.
    let follows = [
        ViolationKind::Unanswered,
        ViolationKind::Unserved,
        ViolationKind::TellNotSent,
        ViolationKind::NotRelocated,
        ViolationKind::NotPlaced,
        ViolationKind::NotRecovered,
        ViolationKind::SubscriberBehind,
        ViolationKind::DeletionLeft,
        ViolationKind::TimerNotFired,
    ];
    // Most partitions end before somebody loses.
    breaks(&options, ViolationKind::LoserWentOn, &follows, 3);
}
