//! Fields that a later release adds to heads and lanes survive this release's turns (`docs/formats.md`).

use super::*;
use crate::codec;
use crate::extensions::{Extensible, Extensions};

/// A field of a later release: number 64, optional.
fn noted<T: Extensible>() -> Extensions<T> {
    codec::decode(&[1, 64, 3, b'n', b'e', b'w']).expect("an unknown field that may be ignored")
}

#[test]
fn a_turn_keeps_unknown_fields_of_head_lane_and_reply() {
    for head_lane_bytes in [4_096, 0] {
        let mut harness =
            Harness::with(Settings { inline_lane_bytes: head_lane_bytes, ..Settings::default() });
        harness.send(1, 0, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        // A node that runs the later release owns the entity for a while.
        let head = harness.head.as_mut().expect("a head");
        head.extensions = noted();
        let lanes = head.lanes.iter_mut().map(Arc::make_mut).chain(&mut harness.lanes);
        let mut count = 0;
        for lane in lanes {
            count += 1;
            lane.extensions = noted();
            lane.replies.iter_mut().for_each(|reply| reply.extensions = noted());
        }
        assert_eq!(count, 1, "the lane of one session");
        let (head, lanes) = (harness.head.take(), std::mem::take(&mut harness.lanes));
        let mut harness =
            Harness::with(Settings { inline_lane_bytes: head_lane_bytes, ..Settings::default() });
        (harness.head, harness.lanes) = (head, lanes);
        harness.send(2, 1, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        let head = harness.head.expect("a head");
        assert_eq!((head.version, head.extensions), (2, noted()));
        let lane =
            head.lanes.iter().map(|lane| &**lane).chain(&harness.lanes).next().expect("a lane");
        assert_eq!((lane.last_sequence, &lane.extensions), (2, &noted()));
        assert_eq!(lane.replies[0].extensions, noted());
    }
}
