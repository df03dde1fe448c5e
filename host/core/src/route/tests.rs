//! Unit tests of the router, one rule each; [`random`] tests interleavings.

mod bounds;
mod moved;
mod random;

use super::*;
use crate::ids::Incarnation;

pub(super) fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter } }
}

/// A router on node `me`, at first at time 1,000, and its recorded results.
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
        let mut harness = Self {
            router: Router::new(settings, 4),
            now: 1_000,
            sent: Vec::new(),
            refused: Vec::new(),
        };
        harness.act(|router, now, out| router.set_local(now, Some(member("me", 1)), out));
        harness
    }

    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn mutated(mutation: Mutation) -> Self {
        Self::with(Settings { mutations: vec![mutation], ..Settings::default() })
    }

    /// Shard 1 is owned by `a` under epoch 1.
    fn owned() -> Self {
        let mut harness = Self::new();
        harness.update(1, Some(member("a", 1)), false);
        harness
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
                Action::Buffered => panic!("a buffered message is not pushed"),
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

    /// The items that were sent since the last call, in order.
    pub(super) fn sent(&mut self) -> Vec<u32> {
        self.sent.drain(..).map(|(.., item)| item).collect()
    }

    fn last_tag(&self) -> u64 {
        self.sent.last().expect("something was sent").2
    }
}

#[test]
fn only_a_shard_of_this_incarnation_is_local() {
    let mut harness = Harness::owned();
    harness.route(1);
    assert_eq!(harness.sent[0].0, Some(member("a", 1)));
    harness.update(2, Some(member("me", 1)), false);
    harness.route(2);
    assert_eq!(harness.sent.last().map(|s| (s.0.clone(), s.1)), Some((None, 2)));
    // A former incarnation of this node owns nothing: only the rows show who does.
    harness.update(3, Some(member("me", 0)), false);
    harness.sent();
    harness.route(3);
    assert_eq!(harness.sent(), []);
    assert_eq!(harness.router.route_for(ONE), Some((Epoch(3), None)));
}

#[test]
fn messages_of_an_unknown_shard_are_buffered_in_order() {
    let mut harness = Harness::new();
    (1..=3).for_each(|item| harness.route(item));
    assert_eq!(
        harness.router.stats(),
        RouterStats { buffered: 3, buffered_bytes: 30, in_flight: 0 }
    );
    harness.update(1, Some(member("a", 1)), false);
    assert_eq!(harness.sent(), [1, 2, 3]);
    assert_eq!(
        harness.router.stats(),
        RouterStats { buffered: 0, buffered_bytes: 0, in_flight: 3 }
    );
}

#[test]
fn a_route_moves_only_to_higher_epochs() {
    let stays = |mut harness: Harness| {
        harness.update(5, Some(member("b", 1)), false);
        harness.update(4, Some(member("a", 1)), false);
        harness.route(1);
        harness.answer(
            harness.last_tag(),
            AttemptResult::NotOwner { epoch: Epoch(3), owner: Some(member("c", 1)) },
        );
        harness.wait(100);
        harness.sent.iter().all(|(to, epoch, ..)| *to == Some(member("b", 1)) && *epoch == 5)
    };
    assert!(stays(Harness::new()));
    assert!(!stays(Harness::mutated(Mutation::AcceptLowerEpochs)), "the mutation takes effect");
}

#[test]
fn a_hand_off_buffers_messages_in_order_until_its_row() {
    let mut harness = Harness::owned();
    harness.route(1);
    harness.router.buffer_shard(harness.now, ONE, Epoch(1));
    harness.route(2);
    harness.route(3);
    harness.update(1, Some(member("a", 1)), true);
    assert_eq!(harness.sent(), [1], "the row shows the hand-off: messages wait");
    harness.update(2, Some(member("b", 1)), false);
    assert_eq!(harness.sent.len(), 3);
    assert!(harness.sent.iter().all(|(to, ..)| *to == Some(member("b", 1))));
    assert_eq!(harness.sent(), [1, 2, 3], "resent messages go first");
    assert!(harness.refused.is_empty());
}

#[test]
fn an_abandoned_hand_off_frees_messages_to_the_same_owner() {
    let mut harness = Harness::owned();
    harness.router.buffer_shard(harness.now, ONE, Epoch(1));
    harness.route(1);
    harness.update(1, Some(member("a", 1)), true);
    harness.update(1, Some(member("a", 1)), false);
    assert_eq!(harness.sent(), [1]);
    harness.router.buffer_shard(harness.now, ONE, Epoch(0));
    harness.route(2);
    assert_eq!(harness.sent(), [2], "a hand-off of an ended epoch buffers nothing");
}

#[test]
fn buffering_times_out_to_the_known_route() {
    let mut harness = Harness::owned();
    harness.router.buffer_shard(harness.now, ONE, Epoch(1));
    harness.wait(1);
    harness.route(1);
    // A repeated announcement does not extend the buffering.
    harness.router.buffer_shard(harness.now, ONE, Epoch(1));
    harness.update(1, Some(member("a", 1)), true);
    harness.wait(9_998);
    assert_eq!(harness.sent(), []);
    harness.wait(1);
    assert_eq!(harness.sent.len(), 1, "the router tries the owner, which corrects the route");
    let tag = harness.last_tag();
    harness.answer(tag, AttemptResult::NotOwner { epoch: Epoch(2), owner: Some(member("b", 1)) });
    assert_eq!(harness.sent.last().and_then(|s| s.0.clone()), Some(member("b", 1)));
    assert_eq!(harness.answer(harness.last_tag(), AttemptResult::Answered), Some((1, false)));
}

#[test]
fn a_rejected_copy_leaves_no_doubt_and_keeps_the_order() {
    let mut harness = Harness::owned();
    harness.route(1);
    harness.route(2);
    assert_eq!(harness.answer(1, AttemptResult::NotOwner { epoch: Epoch(1), owner: None }), None);
    harness.route(3);
    assert_eq!(harness.answer(2, AttemptResult::Rebalancing), None);
    assert_eq!(harness.sent(), [1, 2]);
    harness.wait(100);
    assert_eq!(harness.sent.iter().map(|s| s.2).collect::<Vec<_>>(), [3, 4, 5], "new tags");
    assert_eq!(harness.sent(), [1, 2, 3]);
    assert_eq!(harness.answer(3, AttemptResult::Answered), Some((1, false)));
    assert_eq!(harness.answer(4, AttemptResult::NotSent), None);
    harness.wait(100);
    assert_eq!(harness.answer(harness.last_tag(), AttemptResult::Answered), Some((2, false)));
}

#[test]
fn a_message_whose_copy_may_have_run_stays_in_doubt() {
    let doubtful = |mut harness: Harness| {
        harness.update(1, Some(member("a", 1)), false);
        harness.route(1);
        harness.lost(&member("a", 1));
        harness.wait(100);
        let tag = harness.last_tag();
        harness
            .answer(tag, AttemptResult::NotOwner { epoch: Epoch(2), owner: Some(member("b", 1)) });
        harness.answer(harness.last_tag(), AttemptResult::Answered) == Some((1, true))
    };
    assert!(doubtful(Harness::new()));
    assert!(!doubtful(Harness::mutated(Mutation::ForgetInDoubt)), "the mutation takes effect");
}

#[test]
fn k18_a_message_sent_once_ends_in_doubt_instead_of_twice() {
    let once = |harness: &mut Harness| {
        harness.act(|router, now, out| router.route_once_into(now, ONE, 1, 10, None, out));
        harness.route(2);
    };
    for (mutation, again) in [(None, false), (Some(Mutation::ResendOnce), true)] {
        let owned = || {
            let mut harness = mutation.map_or_else(Harness::new, Harness::mutated);
            harness.update(1, Some(member("a", 1)), false);
            once(&mut harness);
            assert_eq!(harness.sent(), [1, 2]);
            harness
        };
        let ends = |harness: &mut Harness| {
            let refused: Vec<_> =
                harness.refused.iter().map(|(item, why)| (*item, why.code, why.in_doubt)).collect();
            let (resent, refused) = (harness.sent(), &refused[..]);
            match again {
                false => assert_eq!(
                    (&resent[..], refused),
                    (&[2][..], &[(1, codes::CONNECTION_LOST, true)][..])
                ),
                true => assert_eq!((&resent[..], refused), (&[1, 2][..], &[][..])),
            }
        };
        // Its link is lost.
        let mut harness = owned();
        harness.lost(&member("a", 1));
        harness.wait(100);
        ends(&mut harness);
        // Its shard has another owner.
        let mut harness = owned();
        harness.update(2, Some(member("b", 1)), false);
        ends(&mut harness);
        assert_eq!(harness.router.stats().in_flight, if again { 2 } else { 1 });
    }
}

#[test]
fn k18_a_message_sent_once_waits_and_bounces_like_any_other() {
    let mut harness = Harness::new();
    harness.act(|router, now, out| router.route_once_into(now, ONE, 1, 10, None, out));
    assert_eq!(harness.sent(), []);
    harness.update(1, Some(member("a", 1)), false);
    let owner = Some(member("b", 1));
    // It waited for an owner; its first copy did not run.
    harness.answer(harness.last_tag(), AttemptResult::NotOwner { epoch: Epoch(2), owner });
    assert_eq!(harness.answer(harness.last_tag(), AttemptResult::Answered), Some((1, false)));
    assert_eq!(harness.sent(), [1, 1]);
    assert!(harness.refused.is_empty());
}

#[test]
fn a_higher_epoch_resends_in_flight_and_ignores_late_replies() {
    let mut harness = Harness::owned();
    harness.route(1);
    let late = harness.last_tag();
    harness.update(2, Some(member("b", 1)), false);
    assert_eq!(harness.sent(), [1, 1]);
    assert_eq!(harness.answer(late, AttemptResult::Answered), None);
    assert_eq!(harness.router.stats().in_flight, 1);
    assert_eq!(harness.answer(late + 1, AttemptResult::Answered), Some((1, true)));
}

#[test]
fn messages_in_flight_to_a_dead_node_wait_for_a_new_owner() {
    let mut harness = Harness::owned();
    harness.route(1);
    harness.route(2);
    harness.update(1, None, false);
    harness.lost(&member("a", 1));
    harness.route(3);
    harness.wait(5_000);
    assert_eq!(harness.sent(), [1, 2], "there is no owner to send them to");
    harness.update(2, Some(member("b", 1)), false);
    assert_eq!(harness.sent(), [1, 2, 3]);
    assert!(harness.refused.is_empty());
}

#[test]
fn messages_of_a_broken_link_are_resent_after_a_backoff() {
    let mut harness = Harness::owned();
    harness.route(1);
    harness.lost(&member("a", 1));
    harness.lost(&member("a", 1));
    assert_eq!(harness.sent(), [1]);
    assert_eq!(harness.router.next_wake(), Some(1_006));
    harness.wait(6);
    assert_eq!(harness.sent(), [1]);
}

#[test]
fn backoff_grows_until_a_reply_or_a_route_change() {
    let mut harness = Harness::owned();
    let bounce = |harness: &mut Harness| {
        let bounced = AttemptResult::NotOwner { epoch: Epoch(0), owner: None };
        harness.answer(harness.last_tag(), bounced);
        let pause = harness.router.next_wake().expect("it is sent again") - harness.now;
        harness.wait(pause);
        pause
    };
    harness.route(1);
    let grown: Vec<_> = (0..6).map(|_| bounce(&mut harness)).collect();
    assert_eq!(grown, [6, 12, 24, 48, 96, 100]);
    assert!(harness.answer(harness.last_tag(), AttemptResult::Answered).is_some());
    harness.route(2);
    assert_eq!([bounce(&mut harness), bounce(&mut harness)], [6, 12], "an answer resets the pause");
    harness.update(2, Some(member("b", 1)), false);
    assert_eq!(bounce(&mut harness), 6, "a new owner resets the pause");
}

#[test]
fn messages_of_an_ended_incarnation_are_resent_in_doubt() {
    let mut harness = Harness::new();
    harness.update(1, Some(member("me", 1)), false);
    harness.route(1);
    harness.act(|router, now, out| router.set_local(now, None, out));
    assert_eq!(harness.sent(), [1], "shards of a former incarnation have no live owner");
    harness.update(2, Some(member("me", 2)), false);
    harness.wait(200);
    assert_eq!(harness.sent(), [], "the table may learn of an incarnation before its node does");
    harness.act(|router, now, out| router.set_local(now, Some(member("me", 2)), out));
    assert_eq!(harness.sent.last().map(|s| (s.0.clone(), s.1)), Some((None, 2)));
    assert_eq!(harness.answer(harness.last_tag(), AttemptResult::Answered), Some((1, true)));
}

#[test]
fn no_buffered_message_is_dropped_when_its_shard_moves() {
    let kept = |mut harness: Harness| {
        harness.update(1, Some(member("a", 1)), true);
        harness.route(1);
        harness.update(2, Some(member("b", 1)), false);
        harness.sent() == [1]
    };
    assert!(kept(Harness::new()));
    assert!(!kept(Harness::mutated(Mutation::DropBuffered)), "the mutation takes effect");
}

#[test]
fn a_redirect_within_the_same_epoch_changes_no_route() {
    let mut harness = Harness::owned();
    harness.route(1);
    let other = Some(member("b", 1));
    harness.answer(harness.last_tag(), AttemptResult::NotOwner { epoch: Epoch(1), owner: other });
    assert_eq!(harness.router.route_for(ONE), Some((Epoch(1), Some(&member("a", 1)))));
}

#[test]
fn a_redirect_hint_names_only_a_newer_route_elsewhere() {
    let mut harness = Harness::owned();
    harness.update(3, Some(member("a", 1)), false);
    let hint_for = |than, node| harness.router.redirect_hint(ONE, Epoch(than), node);
    let hint = OwnerHint { epoch: Epoch(3), owner: Some(member("a", 1)) };
    assert_eq!(hint_for(2, "b"), Some(hint.clone()));
    assert_eq!(hint_for(0, "b"), Some(hint));
    assert_eq!(hint_for(3, "b"), None, "it is as new as the sender's");
    assert_eq!(hint_for(4, "b"), None, "it is older than the sender's");
    assert_eq!(hint_for(2, "a"), None, "it belongs to the sender");
    assert_eq!(harness.router.redirect_hint(ShardId(2), Epoch(0), "b"), None, "it has no owner");
}

#[test]
fn backoff_ends_early_only_when_the_route_changes() {
    // Whether a bounced message is sent immediately when its route is updated.
    let leaves = |owner: Option<&str>, hold: bool, epoch, to: &str| {
        let mut harness = Harness::new();
        harness.update(1, owner.map(|owner| member(owner, 1)), false);
        harness.route(1);
        if owner.is_some() {
            harness.answer(1, AttemptResult::Rebalancing);
        } else {
            harness.act(|router, now, _| router.retry_later(now, 0));
        }
        if hold {
            harness.router.buffer_shard(harness.now, ONE, Epoch(1));
        }
        harness.sent();
        harness.update(epoch, Some(member(to, 1)), false);
        harness.sent() == [1]
    };
    assert!(!leaves(Some("a"), false, 1, "a"), "nothing changed");
    assert!(leaves(Some("a"), false, 2, "a"), "a new epoch");
    assert!(leaves(Some("a"), true, 1, "a"), "the end of a hand-off");
    assert!(leaves(None, false, 1, "b"), "an owner where there was none");
}
