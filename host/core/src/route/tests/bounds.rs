//! Messages that end because of a limit or a timeout: each gets an answer that names the limit.

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

fn codes_of(harness: &Harness) -> Vec<(u32, Code, bool)> {
    harness.refused.iter().map(|(item, r)| (*item, r.code, r.in_doubt)).collect()
}

#[test]
fn a_full_buffer_names_its_limit_and_keeps_its_messages() {
    let mut harness = Harness::with(small());
    (1..=3).for_each(|item| harness.route(item));
    assert_eq!(codes_of(&harness), [(3, codes::OVERLOADED, false)]);
    assert!(harness.refused[0].1.message.contains("`buffered-messages` (2)"));
    assert_eq!(harness.refused[0].1.retry_after, Some(100), "after `max_backoff`");
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 4, 31, None, out));
    assert!(harness.refused[1].1.message.contains("`buffered-bytes` (50)"));
    harness.update(1, Some(member("a", 1)), false);
    assert_eq!(harness.sent(), [1, 2]);
}

#[test]
fn messages_returned_by_a_lost_link_may_exceed_the_bounds() {
    let mut harness = Harness::with(Settings { buffered_messages: 0, ..small() });
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    harness.route(2);
    harness.lost(&member("a", 1));
    assert_eq!(harness.router.stats().buffered, 2);
    harness.wait(100);
    assert_eq!(harness.sent(), [1, 2, 1, 2]);
    assert!(harness.refused.is_empty());
}

#[test]
fn a_full_window_buffers_and_serves_shards_in_turn() {
    let mut harness = Harness::with(small());
    let two = ShardId(2);
    harness.update(1, Some(member("a", 1)), false);
    let a = Some(member("a", 1));
    harness.act(|router, now, out| router.update_route(now, two, Epoch(1), a, false, out));
    (1..=4).for_each(|item| harness.route(item));
    harness.act(|router, now, out| router.route_into(now, two, 5, 10, None, out));
    assert_eq!(harness.sent(), [1, 2]);
    harness.answer(1, AttemptResult::Answered);
    harness.answer(2, AttemptResult::Answered);
    assert_eq!(harness.sent(), [3, 5], "shard 2 does not wait for all of shard 1");
    // Another node's window is separate.
    let b = Some(member("b", 1));
    harness.act(|router, now, out| router.update_route(now, two, Epoch(2), b, false, out));
    assert_eq!(harness.sent(), [5, 4]);
}

#[test]
fn a_message_larger_than_the_window_is_sent_alone() {
    let mut harness = Harness::with(Settings { buffered_bytes: 1_000, ..small() });
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    harness.act(|router, now, out| router.route_into(now, ONE, 2, 500, None, out));
    harness.act(|router, now, out| {
        router.update_route(now, ShardId(2), Epoch(1), Some(member("a", 1)), false, out);
        router.route_into(now, ShardId(2), 3, 10, None, out);
    });
    assert_eq!(harness.sent(), [1]);
    harness.answer(1, AttemptResult::Answered);
    assert_eq!(harness.sent(), [2]);
    harness.answer(2, AttemptResult::Answered);
    assert_eq!(harness.sent(), [3]);
}

#[test]
fn a_buffer_timeout_names_what_the_message_waited_for() {
    let mut harness = Harness::with(Settings { link_messages: 1, ..Settings::default() });
    harness.route(1);
    let b = |router: &mut Router<u32>, now, out: &mut Vec<_>, moving| {
        router.update_route(now, ShardId(2), Epoch(1), Some(member("b", 1)), moving, out);
    };
    harness.act(|router, now, out| b(router, now, out, false));
    for item in [2, 3] {
        harness.act(|router, now, out| router.route_into(now, ShardId(2), item, 10, None, out));
    }
    harness.wait(9_999);
    assert!(harness.refused.is_empty());
    harness.wait(1);
    assert_eq!(
        codes_of(&harness),
        [(1, codes::NO_OWNER, false), (3, codes::OVERLOADED, false)],
        "messages in flight are answered by their owner"
    );
    assert!(harness.refused.iter().all(|(_, r)| r.message.contains("`buffer-timeout`")));
    assert!(harness.refused[0].1.message.starts_with("shard 1 has no live owner"));
    assert!(harness.refused[1].1.message.contains("`link-messages` (1)"));
    assert_eq!(harness.router.next_wake(), None);
}

#[test]
fn a_message_rejected_forever_ends_at_its_buffer_timeout() {
    let mut harness = Harness::with(Settings::default());
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    let mut rounds = 0;
    while let Some((.., tag, _)) = harness.sent.pop().filter(|_| rounds < 200) {
        rounds += 1;
        // Time in flight does not count: the owner may be slow.
        harness.now += 50;
        harness.answer(tag, AttemptResult::Rebalancing);
        harness.wait(100);
    }
    assert_eq!(rounds, 101, "10,000 ms of waiting, 100 at a time");
    assert_eq!(codes_of(&harness), [(1, codes::NO_OWNER, false)]);
}

#[test]
fn an_endless_hand_off_refuses_messages_as_rebalancing() {
    let mut harness = Harness::with(Settings::default());
    harness.update(1, Some(member("a", 1)), true);
    harness.route(1);
    harness.wait(10_000);
    harness.answer(1, AttemptResult::Rebalancing);
    harness.wait(0);
    assert_eq!(codes_of(&harness), [(1, codes::REBALANCING, false)]);
}

#[test]
fn a_passed_deadline_reports_whether_it_is_in_doubt() {
    let mut harness = Harness::with(Settings { max_backoff: 1_600, ..Settings::default() });
    harness.act(|router, now, out| router.route_into(now, ONE, 1, 10, Some(now), out));
    harness.update(1, Some(member("a", 1)), false);
    harness.act(|router, now, out| router.route_into(now, ONE, 2, 10, Some(now + 70), out));
    harness.lost(&member("a", 1));
    harness.act(|router, now, out| router.route_into(now, ONE, 3, 10, Some(now + 99), out));
    assert_eq!(harness.router.next_wake(), Some(1_070));
    harness.wait(70);
    // The tick is late: the message that is due has no time left.
    harness.wait(30);
    assert_eq!(
        codes_of(&harness),
        [
            (1, codes::DEADLINE_EXCEEDED, false),
            (2, codes::DEADLINE_EXCEEDED, true),
            (3, codes::DEADLINE_EXCEEDED, false)
        ]
    );
    assert!(harness.refused.iter().all(|(_, r)| r.retry_after.is_none()));
    assert_eq!(harness.sent(), [2]);
}

#[test]
fn closing_the_router_refuses_all_its_messages() {
    let mut harness = Harness::with(Settings::default());
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 2, 10, None, out));
    harness.act(|router, now, out| router.close(now, out));
    assert_eq!(codes_of(&harness), [(1, codes::REBALANCING, true), (2, codes::REBALANCING, false)]);
    assert_eq!(
        (harness.router.stats(), harness.router.next_wake()),
        (RouterStats::default(), None)
    );
}

#[test]
fn a_stop_waits_a_bounded_time_for_in_flight_messages() {
    let mut harness = Harness::with(Settings::default());
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    harness.route(2);
    let until = harness.now + 50;
    let mut done = false;
    let mut round = |harness: &mut Harness| {
        harness.act(|router, now, out| done = router.shut_down_step(now, until, out));
        done
    };
    assert!(!round(&mut harness));
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 3, 10, None, out));
    assert!(!round(&mut harness));
    assert_eq!(codes_of(&harness), [(3, codes::REBALANCING, false)]);
    let tag = harness.sent[0].2;
    assert_eq!(harness.answer(tag, AttemptResult::Answered), Some((1, false)));
    harness.wait(49);
    assert!(!round(&mut harness));
    harness.wait(1);
    assert!(round(&mut harness));
    assert_eq!(codes_of(&harness)[1..], [(2, codes::REBALANCING, true)]);
    assert!(round(&mut harness), "no message is left");
}

#[test]
fn refusing_buffered_messages_keeps_those_in_flight() {
    let mut harness = Harness::with(Settings::default());
    harness.update(1, Some(member("a", 1)), false);
    harness.route(1);
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 2, 10, None, out));
    harness.act(|router, now, out| router.refuse_buffered(now, out));
    assert_eq!(codes_of(&harness), [(2, codes::REBALANCING, false)]);
    assert_eq!(harness.router.stats(), RouterStats { in_flight: 1, ..RouterStats::default() });
    let tag = harness.sent[0].2;
    assert_eq!(
        harness.answer(tag, AttemptResult::Answered),
        Some((1, false)),
        "no message is in doubt"
    );
}

#[test]
fn a_message_for_a_nonexistent_shard_is_refused() {
    let mut harness = Harness::with(Settings::default());
    for shard in [0, 5, u32::MAX] {
        harness.act(|router, now, out| router.route_into(now, ShardId(shard), 1, 1, None, out));
    }
    assert_eq!(codes_of(&harness), [(1, codes::NO_OWNER, false); 3]);
}

#[test]
fn buffered_bytes_may_reach_their_limit_exactly() {
    let mut harness = Harness::with(small());
    harness.route(1);
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 2, 40, None, out));
    assert_eq!(
        harness.router.stats(),
        RouterStats { buffered: 2, buffered_bytes: 50, in_flight: 0 }
    );
    harness.act(|router, now, out| router.route_into(now, ShardId(2), 3, 1, None, out));
    assert_eq!(codes_of(&harness), [(3, codes::OVERLOADED, false)]);
}

#[test]
fn a_moving_shard_does_not_disturb_the_turns_of_others() {
    let mut harness = Harness::with(Settings { link_messages: 1, ..small() });
    for shard in 1..=3 {
        harness.act(|router, now, out| {
            let a = Some(member("a", 1));
            router.update_route(now, ShardId(shard), Epoch(1), a, false, out);
            router.route_into(now, ShardId(shard), shard, 10, None, out);
        });
    }
    assert_eq!(harness.sent(), [1]);
    let b = Some(member("b", 1));
    harness.act(|router, now, out| router.update_route(now, ShardId(2), Epoch(2), b, false, out));
    assert_eq!(harness.sent(), [2], "sent to its new owner");
    harness.answer(1, AttemptResult::Answered);
    assert_eq!(harness.sent(), [3], "shard 3 still waits for the window");
}
