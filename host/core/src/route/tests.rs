//! Unit tests of the router, one rule each; [`random`] tests interleavings.

mod bounds;
mod random;

use super::*;
use crate::ids::Incarnation;

pub(super) fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter } }
}

/// Shard 1, at time 1,000, on node `me`, and the recorded results.
pub(super) struct Harness {
    pub(super) router: Router<u32>,
    pub(super) now: u64,
    /// (to, epoch, tag, item) of each sent message; `None` is this node.
    pub(super) sent: Vec<(Option<Member>, u64, u64, u32)>,
    pub(super) refused: Vec<(u32, Refusal)>,
}

pub(super) const ONE: ShardId = ShardId(1);

impl Harness {
    pub(super) fn with(settings: Settings) -> Self {
        let mut hand = Self {
            router: Router::new(settings, 4),
            now: 1_000,
            sent: Vec::new(),
            refused: Vec::new(),
        };
        hand.act(|router, now, out| router.set_local(now, Some(member("me", 1)), out));
        hand
    }

    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn mutated(mutation: Mutation) -> Self {
        Self::with(Settings { mutations: vec![mutation], ..Settings::default() })
    }

    /// Shard 1 is owned by `a` under epoch 1.
    fn owned() -> Self {
        let mut hand = Self::new();
        hand.update(1, Some(member("a", 1)), false);
        hand
    }

    pub(super) fn act<R>(
        &mut self,
        act: impl FnOnce(&mut Router<u32>, u64, &mut Vec<Action<u32>>) -> R,
    ) -> R {
        let mut out = Vec::new();
        let result = act(&mut self.router, self.now, &mut out);
        for step in out {
            match step {
                Action::Local { epoch, attempt_id: tag, item, .. } => {
                    self.sent.push((None, epoch.0, tag, item))
                }
                Action::Remote { to, epoch, attempt_id: tag, item } => {
                    self.sent.push((Some(to), epoch.0, tag, item));
                }
                Action::Refuse { item, refusal } => self.refused.push((item, refusal)),
                Action::Buffered => panic!("what is held is not pushed"),
            }
        }
        result
    }

    pub(super) fn route(&mut self, item: u32) {
        self.act(|router, now, out| router.route_into(now, ONE, item, 10, None, out));
    }

    pub(super) fn update(&mut self, epoch: u64, owner: Option<Member>, moving: bool) {
        self.act(|router, now, out| {
            router.update_route(now, ONE, Epoch(epoch), owner, moving, out)
        });
    }

    pub(super) fn answer(&mut self, tag: u64, verdict: AttemptResult) -> Option<(u32, bool)> {
        self.act(|router, now, out| router.on_attempt_result(now, tag, verdict, out))
    }

    pub(super) fn lost(&mut self, who: &Member) {
        self.act(|router, now, out| router.on_link_lost(now, who, out));
    }

    pub(super) fn wait(&mut self, millis: u64) {
        self.now += millis;
        self.act(|router, now, out| router.tick(now, out));
    }

    /// The items that were sent since the last call, in order, and the recipient of the last.
    pub(super) fn sent(&mut self) -> Vec<u32> {
        self.sent.drain(..).map(|(.., item)| item).collect()
    }

    fn last_tag(&self) -> u64 {
        self.sent.last().expect("something was sent").2
    }
}

#[test]
fn only_a_shard_of_this_incarnation_is_local() {
    let mut hand = Harness::owned();
    hand.route(1);
    assert_eq!(hand.sent[0].0, Some(member("a", 1)));
    hand.update(2, Some(member("me", 1)), false);
    hand.route(2);
    assert_eq!(hand.sent.last().map(|s| (s.0.clone(), s.1)), Some((None, 2)));
    // A former incarnation of this node owns nothing: only the rows can tell who does.
    hand.update(3, Some(member("me", 0)), false);
    hand.sent();
    hand.route(3);
    assert_eq!(hand.sent(), []);
    assert_eq!(hand.router.route_for(ONE), Some((Epoch(3), None)));
}

#[test]
fn messages_of_an_unknown_shard_are_buffered_in_order() {
    let mut hand = Harness::new();
    (1..=3).for_each(|item| hand.route(item));
    assert_eq!(hand.router.stats(), RouterStats { buffered: 3, buffered_bytes: 30, in_flight: 0 });
    hand.update(1, Some(member("a", 1)), false);
    assert_eq!(hand.sent(), [1, 2, 3]);
    assert_eq!(hand.router.stats(), RouterStats { buffered: 0, buffered_bytes: 0, in_flight: 3 });
}

#[test]
fn a_route_moves_only_to_higher_epochs() {
    let stays = |mut hand: Harness| {
        hand.update(5, Some(member("b", 1)), false);
        hand.update(4, Some(member("a", 1)), false);
        hand.route(1);
        hand.answer(
            hand.last_tag(),
            AttemptResult::NotOwner { epoch: Epoch(3), owner: Some(member("c", 1)) },
        );
        hand.wait(100);
        hand.sent.iter().all(|(to, epoch, ..)| *to == Some(member("b", 1)) && *epoch == 5)
    };
    assert!(stays(Harness::new()));
    assert!(!stays(Harness::mutated(Mutation::AcceptLowerEpochs)), "the rule is looked at");
}

#[test]
fn a_hand_off_buffers_messages_in_order_until_its_row() {
    let mut hand = Harness::owned();
    hand.route(1);
    hand.router.buffer_shard(hand.now, ONE, Epoch(1));
    hand.route(2);
    hand.route(3);
    hand.update(1, Some(member("a", 1)), true);
    assert_eq!(hand.sent(), [1], "the row shows the hand-off: they wait");
    hand.update(2, Some(member("b", 1)), false);
    assert_eq!(hand.sent.len(), 3);
    assert!(hand.sent.iter().all(|(to, ..)| *to == Some(member("b", 1))));
    assert_eq!(hand.sent(), [1, 2, 3], "what was sent again goes first");
    assert!(hand.refused.is_empty());
}

#[test]
fn an_abandoned_hand_off_frees_messages_to_the_same_owner() {
    let mut hand = Harness::owned();
    hand.router.buffer_shard(hand.now, ONE, Epoch(1));
    hand.route(1);
    hand.update(1, Some(member("a", 1)), true);
    hand.update(1, Some(member("a", 1)), false);
    assert_eq!(hand.sent(), [1]);
    hand.router.buffer_shard(hand.now, ONE, Epoch(0));
    hand.route(2);
    assert_eq!(hand.sent(), [2], "a hand-off of an epoch that has ended holds nothing");
}

#[test]
fn buffering_without_news_times_out_to_the_known_route() {
    let mut hand = Harness::owned();
    hand.router.buffer_shard(hand.now, ONE, Epoch(1));
    hand.wait(1);
    hand.route(1);
    // A repeated announcement does not extend it.
    hand.router.buffer_shard(hand.now, ONE, Epoch(1));
    hand.update(1, Some(member("a", 1)), true);
    hand.wait(9_998);
    assert_eq!(hand.sent(), []);
    hand.wait(1);
    assert_eq!(hand.sent.len(), 1, "it asks the owner, whose answer corrects the route");
    let tag = hand.last_tag();
    hand.answer(tag, AttemptResult::NotOwner { epoch: Epoch(2), owner: Some(member("b", 1)) });
    assert_eq!(hand.sent.last().and_then(|s| s.0.clone()), Some(member("b", 1)));
    assert_eq!(hand.answer(hand.last_tag(), AttemptResult::Answered), Some((1, false)));
}

#[test]
fn a_rejected_copy_leaves_no_doubt_and_keeps_the_order() {
    let mut hand = Harness::owned();
    hand.route(1);
    hand.route(2);
    assert_eq!(hand.answer(1, AttemptResult::NotOwner { epoch: Epoch(1), owner: None }), None);
    hand.route(3);
    assert_eq!(hand.answer(2, AttemptResult::Rebalancing), None);
    assert_eq!(hand.sent(), [1, 2]);
    hand.wait(100);
    assert_eq!(hand.sent.iter().map(|s| s.2).collect::<Vec<_>>(), [3, 4, 5], "new tags");
    assert_eq!(hand.sent(), [1, 2, 3]);
    assert_eq!(hand.answer(3, AttemptResult::Answered), Some((1, false)));
    assert_eq!(hand.answer(4, AttemptResult::NotSent), None);
    hand.wait(100);
    assert_eq!(hand.answer(hand.last_tag(), AttemptResult::Answered), Some((2, false)));
}

#[test]
fn a_message_whose_copy_may_have_run_stays_in_doubt() {
    let doubtful = |mut hand: Harness| {
        hand.update(1, Some(member("a", 1)), false);
        hand.route(1);
        hand.lost(&member("a", 1));
        hand.wait(100);
        let tag = hand.last_tag();
        hand.answer(tag, AttemptResult::NotOwner { epoch: Epoch(2), owner: Some(member("b", 1)) });
        hand.answer(hand.last_tag(), AttemptResult::Answered) == Some((1, true))
    };
    assert!(doubtful(Harness::new()));
    assert!(!doubtful(Harness::mutated(Mutation::ForgetInDoubt)), "the rule is looked at");
}

#[test]
fn a_higher_epoch_resends_in_flight_and_ignores_late_replies() {
    let mut hand = Harness::owned();
    hand.route(1);
    let late = hand.last_tag();
    hand.update(2, Some(member("b", 1)), false);
    assert_eq!(hand.sent(), [1, 1]);
    assert_eq!(hand.answer(late, AttemptResult::Answered), None);
    assert_eq!(hand.router.stats().in_flight, 1);
    assert_eq!(hand.answer(late + 1, AttemptResult::Answered), Some((1, true)));
}

#[test]
fn messages_in_flight_to_a_dead_node_wait_for_a_new_owner() {
    let mut hand = Harness::owned();
    hand.route(1);
    hand.route(2);
    hand.update(1, None, false);
    hand.lost(&member("a", 1));
    hand.route(3);
    hand.wait(5_000);
    assert_eq!(hand.sent(), [1, 2], "there is no owner to send it to");
    hand.update(2, Some(member("b", 1)), false);
    assert_eq!(hand.sent(), [1, 2, 3]);
    assert!(hand.refused.is_empty());
}

#[test]
fn messages_of_a_broken_link_are_resent_after_a_backoff() {
    let mut hand = Harness::owned();
    hand.route(1);
    hand.lost(&member("a", 1));
    hand.lost(&member("a", 1));
    assert_eq!(hand.sent(), [1]);
    assert_eq!(hand.router.next_wake(), Some(1_006));
    hand.wait(6);
    assert_eq!(hand.sent(), [1]);
}

#[test]
fn backoff_grows_until_a_reply_or_a_route_change() {
    let mut hand = Harness::owned();
    let bounce = |hand: &mut Harness| {
        let bounced = AttemptResult::NotOwner { epoch: Epoch(0), owner: None };
        hand.answer(hand.last_tag(), bounced);
        let pause = hand.router.next_wake().expect("it is sent again") - hand.now;
        hand.wait(pause);
        pause
    };
    hand.route(1);
    let grown: Vec<_> = (0..6).map(|_| bounce(&mut hand)).collect();
    assert_eq!(grown, [6, 12, 24, 48, 96, 100]);
    assert!(hand.answer(hand.last_tag(), AttemptResult::Answered).is_some());
    hand.route(2);
    assert_eq!([bounce(&mut hand), bounce(&mut hand)], [6, 12], "an answer resets the pause");
    hand.update(2, Some(member("b", 1)), false);
    assert_eq!(bounce(&mut hand), 6, "a new owner resets the pause");
}

#[test]
fn messages_of_an_ended_incarnation_are_resent_in_doubt() {
    let mut hand = Harness::new();
    hand.update(1, Some(member("me", 1)), false);
    hand.route(1);
    hand.act(|router, now, out| router.set_local(now, None, out));
    assert_eq!(hand.sent(), [1], "shards of a former incarnation have no live owner");
    hand.update(2, Some(member("me", 2)), false);
    hand.wait(200);
    assert_eq!(hand.sent(), [], "the table may know of an incarnation before its node does");
    hand.act(|router, now, out| router.set_local(now, Some(member("me", 2)), out));
    assert_eq!(hand.sent.last().map(|s| (s.0.clone(), s.1)), Some((None, 2)));
    assert_eq!(hand.answer(hand.last_tag(), AttemptResult::Answered), Some((1, true)));
}

#[test]
fn no_buffered_message_is_dropped_when_its_shard_moves() {
    let kept = |mut hand: Harness| {
        hand.update(1, Some(member("a", 1)), true);
        hand.route(1);
        hand.update(2, Some(member("b", 1)), false);
        hand.sent() == [1]
    };
    assert!(kept(Harness::new()));
    assert!(!kept(Harness::mutated(Mutation::DropBuffered)), "the rule is looked at");
}

#[test]
fn a_redirect_within_the_same_epoch_changes_no_route() {
    let mut hand = Harness::owned();
    hand.route(1);
    let other = Some(member("b", 1));
    hand.answer(hand.last_tag(), AttemptResult::NotOwner { epoch: Epoch(1), owner: other });
    assert_eq!(hand.router.route_for(ONE), Some((Epoch(1), Some(&member("a", 1)))));
}

#[test]
fn a_redirect_hint_names_only_a_newer_route_elsewhere() {
    let mut hand = Harness::owned();
    hand.update(3, Some(member("a", 1)), false);
    let told = |than, node| hand.router.redirect_hint(ONE, Epoch(than), node);
    let hint = OwnerHint { epoch: Epoch(3), owner: Some(member("a", 1)) };
    assert_eq!(told(2, "b"), Some(hint.clone()));
    assert_eq!(told(0, "b"), Some(hint));
    assert_eq!(told(3, "b"), None, "it is as new as the sender's");
    assert_eq!(told(4, "b"), None, "it is older than the sender's");
    assert_eq!(told(2, "a"), None, "it belongs to the asking node");
    assert_eq!(hand.router.redirect_hint(ShardId(2), Epoch(0), "b"), None, "it has no owner");
}

#[test]
fn backoff_ends_early_only_when_the_route_changes() {
    // Whether a bounced message leaves at once when its route is updated.
    let leaves = |owner: Option<&str>, hold: bool, epoch, to: &str| {
        let mut hand = Harness::new();
        hand.update(1, owner.map(|owner| member(owner, 1)), false);
        hand.route(1);
        if owner.is_some() {
            hand.answer(1, AttemptResult::Rebalancing);
        } else {
            hand.act(|router, now, _| router.retry_later(now, 0));
        }
        if hold {
            hand.router.buffer_shard(hand.now, ONE, Epoch(1));
        }
        hand.sent();
        hand.update(epoch, Some(member(to, 1)), false);
        hand.sent() == [1]
    };
    assert!(!leaves(Some("a"), false, 1, "a"), "nothing changed");
    assert!(leaves(Some("a"), false, 2, "a"), "a new epoch");
    assert!(leaves(Some("a"), true, 1, "a"), "the end of a hand-off");
    assert!(leaves(None, false, 1, "b"), "an owner where there was none");
}
