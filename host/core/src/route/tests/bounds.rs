//! What ends by a bound or a timeout: each gets an answer that names the limit.

use ostraca_codes::Code;

use super::super::*;
use super::{Harness, ONE, member};

fn small() -> Settings {
    Settings {
        buffered_messages: 2,
        buffered_bytes: 50,
        link_messages: 2,
        link_bytes: 100,
        ..Settings::default()
    }
}

fn codes_of(hand: &Harness) -> Vec<(u32, Code, bool)> {
    hand.refused.iter().map(|(item, r)| (*item, r.code, r.in_doubt)).collect()
}

#[test]
fn a_full_buffer_names_its_limit_and_keeps_its_messages() {
    let mut hand = Harness::with(small());
    (1..=3).for_each(|item| hand.route(item));
    assert_eq!(codes_of(&hand), [(3, codes::OVERLOADED, false)]);
    assert!(hand.refused[0].1.message.contains("`buffered-messages` (2)"));
    assert_eq!(hand.refused[0].1.retry_after, Some(100), "after `retry`");
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 4, 31, None, out));
    assert!(hand.refused[1].1.message.contains("`buffered-bytes` (50)"));
    hand.update(1, Some(member("a", 1)), false);
    assert_eq!(hand.sent(), [1, 2]);
}

#[test]
fn messages_returned_by_a_lost_link_may_exceed_the_bounds() {
    let mut hand = Harness::with(Settings { buffered_messages: 0, ..small() });
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    hand.route(2);
    hand.lost(&member("a", 1));
    assert_eq!(hand.router.stats().buffered, 2);
    hand.wait(100);
    assert_eq!(hand.sent(), [1, 2, 1, 2]);
    assert!(hand.refused.is_empty());
}

#[test]
fn a_full_window_buffers_and_serves_shards_in_turn() {
    let mut hand = Harness::with(small());
    let two = ShardId(2);
    hand.update(1, Some(member("a", 1)), false);
    let a = Some(member("a", 1));
    hand.act(|router, now, out| router.update_route(now, two, Epoch(1), a, false, out));
    (1..=4).for_each(|item| hand.route(item));
    hand.act(|router, now, out| router.route_into(now, two, 5, 10, None, out));
    assert_eq!(hand.sent(), [1, 2]);
    hand.answer(1, AttemptResult::Answered);
    hand.answer(2, AttemptResult::Answered);
    assert_eq!(hand.sent(), [3, 5], "shard 2 does not wait for all of shard 1");
    // Another node's window is its own.
    let b = Some(member("b", 1));
    hand.act(|router, now, out| router.update_route(now, two, Epoch(2), b, false, out));
    assert_eq!(hand.sent(), [5, 4]);
}

#[test]
fn a_message_larger_than_the_window_is_sent_alone() {
    let mut hand = Harness::with(Settings { buffered_bytes: 1_000, ..small() });
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    hand.act(|router, now, out| router.route_into(now, ONE, 2, 500, None, out));
    hand.act(|router, now, out| {
        router.update_route(now, ShardId(2), Epoch(1), Some(member("a", 1)), false, out);
        router.route_into(now, ShardId(2), 3, 10, None, out);
    });
    assert_eq!(hand.sent(), [1]);
    hand.answer(1, AttemptResult::Answered);
    assert_eq!(hand.sent(), [2]);
    hand.answer(2, AttemptResult::Answered);
    assert_eq!(hand.sent(), [3]);
}

#[test]
fn a_buffer_timeout_names_what_the_message_waited_for() {
    let mut hand = Harness::with(Settings { link_messages: 1, ..Settings::default() });
    hand.route(1);
    let b = |router: &mut Router<u32>, now, out: &mut Vec<_>, moving| {
        router.update_route(now, ShardId(2), Epoch(1), Some(member("b", 1)), moving, out);
    };
    hand.act(|router, now, out| b(router, now, out, false));
    for item in [2, 3] {
        hand.act(|router, now, out| router.route_into(now, ShardId(2), item, 10, None, out));
    }
    hand.wait(9_999);
    assert!(hand.refused.is_empty());
    hand.wait(1);
    assert_eq!(
        codes_of(&hand),
        [(1, codes::NO_OWNER, false), (3, codes::OVERLOADED, false)],
        "and what is in flight is its owner's to answer"
    );
    assert!(hand.refused.iter().all(|(_, r)| r.message.contains("`buffer-timeout`")));
    assert!(hand.refused[0].1.message.starts_with("shard 1 has no live owner"));
    assert!(hand.refused[1].1.message.contains("`link-messages` (1)"));
    assert_eq!(hand.router.next_wake(), None);
}

#[test]
fn a_message_rejected_forever_ends_at_its_buffer_timeout() {
    let mut hand = Harness::with(Settings::default());
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    let mut rounds = 0;
    while let Some((.., tag, _)) = hand.sent.pop().filter(|_| rounds < 200) {
        rounds += 1;
        // Time in flight is not counted: the owner may be slow.
        hand.now += 50;
        hand.answer(tag, AttemptResult::Rebalancing);
        hand.wait(100);
    }
    assert_eq!(rounds, 101, "10,000 ms of waiting, 100 at a time");
    assert_eq!(codes_of(&hand), [(1, codes::NO_OWNER, false)]);
}

#[test]
fn an_endless_hand_off_refuses_messages_as_rebalancing() {
    let mut hand = Harness::with(Settings::default());
    hand.update(1, Some(member("a", 1)), true);
    hand.route(1);
    hand.wait(10_000);
    hand.answer(1, AttemptResult::Rebalancing);
    hand.wait(0);
    assert_eq!(codes_of(&hand), [(1, codes::REBALANCING, false)]);
}

#[test]
fn a_passed_deadline_reports_whether_it_is_in_doubt() {
    let mut hand = Harness::with(Settings { max_backoff: 1_600, ..Settings::default() });
    hand.act(|router, now, out| router.route_into(now, ONE, 1, 10, Some(now), out));
    hand.update(1, Some(member("a", 1)), false);
    hand.act(|router, now, out| router.route_into(now, ONE, 2, 10, Some(now + 70), out));
    hand.lost(&member("a", 1));
    hand.act(|router, now, out| router.route_into(now, ONE, 3, 10, Some(now + 99), out));
    assert_eq!(hand.router.next_wake(), Some(1_070));
    hand.wait(70);
    // The tick is late: the message due to be sent has no time left.
    hand.wait(30);
    assert_eq!(
        codes_of(&hand),
        [
            (1, codes::DEADLINE_EXCEEDED, false),
            (2, codes::DEADLINE_EXCEEDED, true),
            (3, codes::DEADLINE_EXCEEDED, false)
        ]
    );
    assert!(hand.refused.iter().all(|(_, r)| r.retry_after.is_none()));
    assert_eq!(hand.sent(), [2]);
}

#[test]
fn closing_the_router_refuses_all_its_messages() {
    let mut hand = Harness::with(Settings::default());
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 2, 10, None, out));
    hand.act(|router, now, out| router.close(now, out));
    assert_eq!(codes_of(&hand), [(1, codes::REBALANCING, true), (2, codes::REBALANCING, false)]);
    assert_eq!((hand.router.stats(), hand.router.next_wake()), (RouterStats::default(), None));
}

#[test]
fn a_stop_waits_a_bounded_time_for_in_flight_messages() {
    let mut hand = Harness::with(Settings::default());
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    hand.route(2);
    let until = hand.now + 50;
    let mut done = false;
    let mut round = |hand: &mut Harness| {
        hand.act(|router, now, out| done = router.shut_down_step(now, until, out));
        done
    };
    assert!(!round(&mut hand));
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 3, 10, None, out));
    assert!(!round(&mut hand));
    assert_eq!(codes_of(&hand), [(3, codes::REBALANCING, false)]);
    let tag = hand.sent[0].2;
    assert_eq!(hand.answer(tag, AttemptResult::Answered), Some((1, false)));
    hand.wait(49);
    assert!(!round(&mut hand));
    hand.wait(1);
    assert!(round(&mut hand));
    assert_eq!(codes_of(&hand)[1..], [(2, codes::REBALANCING, true)]);
    assert!(round(&mut hand), "nothing is left");
}

#[test]
fn refusing_buffered_messages_keeps_those_in_flight() {
    let mut hand = Harness::with(Settings::default());
    hand.update(1, Some(member("a", 1)), false);
    hand.route(1);
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 2, 10, None, out));
    hand.act(|router, now, out| router.refuse_buffered(now, out));
    assert_eq!(codes_of(&hand), [(2, codes::REBALANCING, false)]);
    assert_eq!(hand.router.stats(), RouterStats { in_flight: 1, ..RouterStats::default() });
    let tag = hand.sent[0].2;
    assert_eq!(
        hand.answer(tag, AttemptResult::Answered),
        Some((1, false)),
        "nothing was put in doubt"
    );
}

#[test]
fn a_message_for_a_nonexistent_shard_is_refused() {
    let mut hand = Harness::with(Settings::default());
    for shard in [0, 5, u32::MAX] {
        hand.act(|router, now, out| router.route_into(now, ShardId(shard), 1, 1, None, out));
    }
    assert_eq!(codes_of(&hand), [(1, codes::NO_OWNER, false); 3]);
}

#[test]
fn buffered_bytes_may_reach_their_limit_exactly() {
    let mut hand = Harness::with(small());
    hand.route(1);
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 2, 40, None, out));
    assert_eq!(hand.router.stats(), RouterStats { buffered: 2, buffered_bytes: 50, in_flight: 0 });
    hand.act(|router, now, out| router.route_into(now, ShardId(2), 3, 1, None, out));
    assert_eq!(codes_of(&hand), [(3, codes::OVERLOADED, false)]);
}

#[test]
fn a_moving_shard_does_not_disturb_the_turns_of_others() {
    let mut hand = Harness::with(Settings { link_messages: 1, ..small() });
    for shard in 1..=3 {
        hand.act(|router, now, out| {
            let a = Some(member("a", 1));
            router.update_route(now, ShardId(shard), Epoch(1), a, false, out);
            router.route_into(now, ShardId(shard), shard, 10, None, out);
        });
    }
    assert_eq!(hand.sent(), [1]);
    let b = Some(member("b", 1));
    hand.act(|router, now, out| router.update_route(now, ShardId(2), Epoch(2), b, false, out));
    assert_eq!(hand.sent(), [2], "to its new owner");
    hand.answer(1, AttemptResult::Answered);
    assert_eq!(hand.sent(), [3], "shard 3 still waits for the window");
}
