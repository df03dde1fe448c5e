//! Tests of which shards a machine claims and releases, and for which it has messages buffered.

use super::*;
use crate::node::Notice;

#[test]
fn r11_a_shard_is_held_under_the_epoch_of_its_row() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone()))])), [(1, 1)]);
    assert_eq!(alone.machine.held_shards().collect::<Vec<_>>(), [(ShardId(1), Epoch(1), false)]);
    alone.handle(Event::ShardServing { shard: ShardId(1), epoch: Epoch(1) });
    assert_eq!(alone.machine.held_shards().collect::<Vec<_>>(), [(ShardId(1), Epoch(1), true)]);
    let actions = alone.shards(&[(3, Some(me))]);
    assert_eq!((forgot(&actions), adopted(&actions)), (vec![(1, 1)], vec![(1, 3)]));
    let actions = alone.shards(&[(4, Some(member("b", 1)))]);
    assert_eq!((forgot(&actions), adopted(&actions)), (vec![(1, 3)], vec![]));
    assert_eq!(alone.machine.held_shards().count(), 0);
}

#[test]
fn r5_a_refused_claim_is_reported_until_its_row_is_above_it() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    alone.shards(&[(2, Some(me.clone())), (1, None)]);
    let (shard, epoch) = (ShardId(1), Epoch(2));
    alone.handle(Event::ShardLost { shard, epoch, current_epoch: Some(Epoch(5)) });
    let refused = [(shard, epoch, Epoch(5))];
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused_claims, refused);
    // The same chunk is written again, for another shard.
    alone.shards(&[(2, Some(me.clone())), (2, None)]);
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused_claims, refused);
    alone.shards(&[(6, Some(me)), (2, None)]);
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused_claims, []);
}

#[test]
fn r9_no_shard_is_adopted_after_a_lapse_or_without_rows() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.handle(Event::WatchLost);
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone()))])), []);
    assert_eq!(adopted(&alone.handle(Event::RowsListed(Some(Vec::new())))), [(1, 1)]);
    alone.wait(Settings::default().lease);
    assert!(alone.machine.is_suspended());
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone())), (1, Some(me))])), []);

    let mut alone = Alone::registered(Roles { manager: true, ..Roles::default() });
    let me = alone.me();
    assert_eq!(adopted(&alone.shards(&[(1, Some(me))])), [], "the node is not a host");
}

#[test]
fn r9_after_a_lapse_only_shards_with_current_claims_resume() {
    let claim = |node: &str, incarnation: Incarnation, epoch| {
        Some(crate::records::Claim {
            cluster: crate::ids::ClusterId(1),
            shard: crate::ids::ShardPath {
                namespace: "d".into(),
                pool: "d".into(),
                shard: ShardId(1),
            },
            epoch: Epoch(epoch),
            owner: Member { node: node.into(), incarnation },
            number: 1,
            extensions: Extensions::default(),
        })
    };
    let Settings { lease, renew_interval: renew, store_retry_interval: retry, .. } =
        Settings::default();
    let mut alone = Alone::of(HOST, Settings::default(), 8);
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.done();
    let me = alone.me();
    let mine = |epoch| (epoch, Some(me.clone()));
    alone.shards(&[mine(5), mine(5), mine(5), mine(5), mine(5), mine(5), mine(5), mine(5)]);
    for shard in 1..=5 {
        alone.handle(Event::ShardServing { shard: ShardId(shard), epoch: Epoch(5) });
    }
    alone.wait(renew);
    let answer = alone.writes.remove(0).0;
    alone.wait(lease);
    assert!(alone.machine.is_suspended());
    // The answer to its renewal is lost.
    alone.handle(Event::RowWritten { request_id: answer, result: Err(WriteError::Unknown) });
    let number = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::ReadClaims { request_id: number, shards } => {
                assert_eq!(shards.len(), 8);
                Some(*number)
            }
            _ => None,
        })
    };
    let own = alone.machine.nodes().find(|(node, _)| node.0 == me.node.0);
    let mut renewed = own.expect("its row").1.clone();
    renewed.renewals += 1;
    alone.writes.clear();
    alone.learn(key("me"), Row::Node(renewed));
    while alone.writes.is_empty() {
        alone.wait(10);
    }
    let first = number(&alone.done()).expect("its claims are read");
    alone.handle(Event::ClaimsRead { request_id: first, claims: None });
    assert_eq!(number(&alone.wait(retry - 1)), None);
    let second = number(&alone.wait(1)).expect("they are read again");
    assert!(second > first);
    let theirs = Incarnation { counter: 9, nonce: 9 };
    let claims = vec![
        claim("me", me.incarnation, 5),
        claim("me", theirs, 5),
        claim("b", me.incarnation, 5),
        claim("me", me.incarnation, 4),
        claim("b", theirs, 6),
        // For shards that are being claimed: no claim yet, another node's claim in the same epoch, and one in a higher
        // epoch.
        None,
        claim("b", theirs, 5),
        claim("b", theirs, 6),
    ];
    let late = alone.handle(Event::ClaimsRead { request_id: first, claims: Some(vec![None; 8]) });
    assert_eq!(forgot(&late), [], "the answer to an abandoned read");
    let actions = alone.handle(Event::ClaimsRead { request_id: second, claims: Some(claims) });
    assert_eq!(forgot(&actions), [(2, 5), (3, 5), (4, 5), (5, 5), (8, 5)]);
    assert!(!alone.machine.is_suspended());
    let held: Vec<_> = alone.machine.held_shards().map(|(shard, ..)| shard.0).collect();
    assert_eq!(held, [1, 6, 7]);
}

#[test]
fn r26_a_moved_claim_is_not_the_one_that_was_held() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    let mine = || (5, Some(me.clone()));
    alone.shards(&[mine(), mine(), mine(), mine()]);
    for shard in 1..=3 {
        alone.handle(Event::ShardServing { shard: ShardId(shard), epoch: Epoch(5) });
    }
    alone.wait(Settings::default().lease);
    assert!(alone.machine.is_suspended());
    let number = alone.all_done().iter().find_map(|action| match action {
        Action::ReadClaims { request_id: number, .. } => Some(*number),
        _ => None,
    });
    let claim = crate::records::Claim {
        cluster: crate::ids::ClusterId(1),
        shard: crate::ids::ShardPath { namespace: "d".into(), pool: "d".into(), shard: ShardId(1) },
        epoch: Epoch(5),
        owner: me.clone(),
        number: 1,
        extensions: Extensions::default(),
    };
    let placement = crate::records::Placement { store_id: 7, version: 1 };
    let moved = claim.moved_to(placement).expect("it fits");
    let incoming = claim.incoming_from(placement, 9).expect("it fits");
    // The last shard is still being claimed, which fails by itself.
    let claims = vec![Some(claim), Some(moved.clone()), Some(incoming), Some(moved)];
    let request_id = number.expect("its claims are read");
    let actions = alone.handle(Event::ClaimsRead { request_id, claims: Some(claims) });
    assert_eq!(forgot(&actions), [(2, 5), (3, 5)]);
    assert!(!alone.machine.is_suspended());
}

#[test]
fn a8_only_a_current_hand_off_buffers_messages() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    let id = |number| crate::rows::HandOffId { term: 1, number };
    let moving = Some(crate::rows::HandOffIntent { id: id(1), target: None });
    let shard =
        Assignment { epoch: Epoch(2), owner: Some(me), hand_off: moving, ..Assignment::default() };
    let rows =
        AssignmentsRow { term: 1, assignments: vec![shard], extensions: Extensions::default() };
    alone.learn(RowKey::Assignments(0), Row::Assignments(rows));
    let known = alone.revision;
    let mut held = |epoch, number, revision| {
        let (shard, epoch, incarnation) = (ShardId(1), Epoch(epoch), alone.me().incarnation);
        let hand_off = HandOff { term: 1, shard, epoch, incarnation, id: id(number) };
        let message = ControlMessage::BeginHandOff { hand_off, revision };
        let actions = alone.handle(Event::Received { from: member("m", 1), message });
        let acked = |it: &Action| {
            matches!(it, Action::Send { message: ControlMessage::BeginHandOffAck { .. }, .. })
        };
        assert!(actions.iter().any(acked), "acknowledged whether or not messages are buffered");
        actions.contains(&Action::BufferShard { shard, epoch })
    };
    assert!(held(2, 1, known), "the row names the hand-off");
    assert!(held(2, 9, known + 1), "the row is in transit");
    assert!(!held(2, 9, known), "the row does not name the hand-off");
    assert!(!held(1, 1, known), "the epoch has ended");
    assert!(!held(2, 9, known - 1), "the message is late");
}

#[test]
fn a11_a_hand_off_of_a_later_epoch_drops_the_held_shard() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    alone.shards(&[(2, Some(me.clone()))]);
    let mut stop = |epoch| {
        let (shard, epoch, incarnation) = (ShardId(1), Epoch(epoch), me.incarnation);
        let id = crate::rows::HandOffId { term: 1, number: 1 };
        let hand_off = HandOff { term: 1, shard, epoch, incarnation, id };
        let message = ControlMessage::HandOff(hand_off);
        let actions = alone.handle(Event::Received { from: member("m", 1), message });
        let stopped = ControlMessage::ShardStopped(hand_off);
        let reply = Action::Send { to: "m".into(), message: stopped };
        (forgot(&actions), actions.contains(&reply))
    };
    assert_eq!(stop(1), (vec![], false), "the message is late");
    assert_eq!(stop(5), (vec![(1, 2)], true));
}

#[test]
fn a_report_says_which_shards_serve() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    let mine = (1, Some(me.clone()));
    alone.shards(&[mine.clone(), mine.clone(), mine]);
    for shard in [2, 3] {
        alone.handle(Event::ShardServing { shard: ShardId(shard), epoch: Epoch(1) });
    }
    let id = crate::rows::HandOffId { term: 1, number: 1 };
    let (shard, epoch, incarnation) = (ShardId(3), Epoch(1), me.incarnation);
    let message = ControlMessage::HandOff(HandOff { term: 1, shard, epoch, incarnation, id });
    alone.handle(Event::Received { from: member("m", 1), message });
    let report = reported(&alone.wait(20)).expect("a report");
    let serving: Vec<_> = report.shards.iter().map(|held| held.serving).collect();
    assert_eq!(serving, [false, true, false], "claiming, serving, stopping");
}

/// What it claims delays the next answer, so claiming again and again could keep a slow store from recovering.
#[test]
fn r9_a_host_keeps_shards_it_gets_again_for_a_lease() {
    let mut alone = Alone::registered(HOST);
    let (me, lease) = (alone.me(), Settings::default().lease);
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone()))])), [(1, 1)]);
    let released = |actions: &[Action]| {
        actions.iter().any(|it| matches!(it, Action::Notify(Notice::ShardsReleased { .. })))
    };
    // The store never responds, but renewals succeed.
    let until_released = |alone: &mut Alone| {
        let began = alone.now;
        while !released(&alone.wait(10)) {
            alone.all_done();
            assert!(alone.now < began + 2 * lease, "it never releases them");
        }
        alone.all_done();
        alone.now - began
    };
    assert!(until_released(&mut alone) <= lease);
    for epoch in 2..5 {
        // No other host can have them.
        assert_eq!(adopted(&alone.shards(&[(epoch, Some(me.clone()))])), [(1, epoch)]);
        assert_eq!(until_released(&mut alone), lease, "epoch {epoch}");
    }
}
