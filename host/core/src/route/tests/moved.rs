//! A pool is copied while messages to its entities wait (M1, R23).

use super::*;

const TWO: ShardId = ShardId(2);

impl Harness {
    fn take(&mut self, from: ShardId, place: impl Fn(&u32) -> ShardId) {
        self.act(|router, now, out| router.move_buffered(now, from..=from, place, out));
    }

    fn update_two(&mut self) {
        self.act(|router, now, out| {
            router.update_route(now, TWO, Epoch(1), Some(member("b", 1)), false, out);
        });
    }
}

#[test]
fn m1_waiting_messages_follow_their_entities() {
    let mut harness = Harness::new();
    for item in 1..=4 {
        harness.route(item);
    }
    harness.act(|router, now, out| router.route_into(now, TWO, 5, 10, None, out));
    harness.take(ONE, |item| if *item == 3 { ONE } else { TWO });
    assert!(harness.sent.is_empty(), "nobody owns either");
    harness.update_two();
    let to = |harness: &Harness| -> Vec<u32> { harness.sent.iter().map(|it| it.3).collect() };
    assert_eq!(to(&harness), [1, 2, 4, 5], "in their order of arrival");
    assert_eq!(harness.router.stats().buffered, 1, "one belongs where it was");
    harness.update(1, Some(member("a", 1)), false);
    assert_eq!(to(&harness), [1, 2, 4, 5, 3]);
    assert!(harness.refused.is_empty());
}

#[test]
fn m1_a_shard_with_an_owner_gets_them_at_once() {
    let mut harness = Harness::new();
    harness.route(1);
    harness.update_two();
    harness.take(ONE, |_| TWO);
    assert_eq!(harness.sent.len(), 1);
    assert_eq!(harness.router.stats().buffered, 0);
}

#[test]
fn m1_a_moved_message_keeps_its_buffer_timeout() {
    let mut harness = Harness::new();
    let timeout = Settings::default().buffer_timeout;
    harness.route(1);
    harness.now += timeout - 1;
    harness.take(ONE, |_| TWO);
    harness.act(|router, now, out| router.tick(now, out));
    assert!(harness.refused.is_empty());
    harness.now += 1;
    harness.act(|router, now, out| router.tick(now, out));
    assert_eq!(harness.refused.len(), 1);
    assert!(harness.refused[0].1.message.contains("shard 2"), "{:?}", harness.refused);
}
