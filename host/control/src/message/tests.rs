use ostraca_core::ids::{Epoch, Incarnation, ShardId};
use ostraca_core::node::{HandOff, NodeReport, ReportedShard};
use ostraca_core::rows::HandOffId;
use serde::Deserialize;

use super::*;

fn member() -> Member {
    Member { node: "n1".into(), incarnation: Incarnation { counter: 3, nonce: 200 } }
}

fn one() -> NodeId {
    "n1".into()
}

#[test]
fn a_control_message_has_golden_bytes_and_one_sender() {
    let from = member();
    let report = NodeReport {
        incarnation: from.incarnation,
        applied_chunks: vec![(0, 7)],
        shards: vec![ReportedShard { shard: ShardId(5), epoch: Epoch(2), serving: true }],
        store_available: true,
        refused_claims: Vec::new(),
        extensions: Extensions::default(),
    };
    let message = ControlMessage::Report(Box::new(report));
    let bytes = encode(&from, &message).expect("encodes");
    let golden = [2, 2, b'n', b'1', 3, 200, 1, 5, 3, 200, 1, 1, 0, 7, 1, 5, 2, 1, 1, 0, 0, 0];
    assert_eq!(bytes.as_ref(), golden);
    assert_eq!(decode(&one(), &bytes), Ok((from, message)));
    assert_eq!(decode(&"n2".into(), &bytes), Err(IgnoreReason::SenderMismatch(one())));
    for cut in 0..bytes.len() {
        assert!(decode(&one(), &bytes[..cut]).is_err(), "{cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(decode(&one(), &longer), Err(IgnoreReason::Malformed(_))));
    let newer = [&[VERSION + 1], &bytes[1..]].concat();
    assert_eq!(decode(&one(), &newer), Err(IgnoreReason::UnsupportedVersion(VERSION + 1)));
}

#[test]
fn every_kind_of_control_message_keeps_its_number() {
    let (term, shard, epoch) = (1, ShardId(2), Epoch(3));
    let (incarnation, id) = (member().incarnation, HandOffId { term: 1, number: 4 });
    let hand_off = HandOff { term, shard, epoch, incarnation, id };
    let kinds = [
        (1, ControlMessage::BeginHandOff { hand_off, revision: 5 }),
        (2, ControlMessage::BeginHandOffAck { term, shard, epoch, id }),
        (3, ControlMessage::HandOff(hand_off)),
        (4, ControlMessage::ShardStopped(hand_off)),
        (5, ControlMessage::Report(Box::default())),
        (6, ControlMessage::Rebalance),
        (7, ControlMessage::NodeUnreachable { node: one() }),
        (8, ControlMessage::Loads(vec![(shard, 5)])),
        (9, ControlMessage::MoveShard { shard, to: one() }),
        (10, ControlMessage::KeepAlive { to: incarnation, number: 6 }),
        (11, ControlMessage::KeepAliveAck { to: incarnation, number: 6 }),
        (12, ControlMessage::ArbiterFlag { number: 7 }),
    ];
    for (number, message) in kinds {
        let bytes = codec::encode(&message).expect("encodes");
        assert_eq!(bytes[0], number, "{message:?}");
        // A kind that is missing here, or in KINDS, would be ignored by every node.
        assert!(u32::from(number) < ControlMessage::KIND_COUNT);
        let bytes = encode(&member(), &message).expect("encodes");
        assert_eq!(decode(&one(), &bytes), Ok((member(), message)));
    }
}

/// The messages of a later release: one more kind, one more field in a report, and fields after the message.
#[derive(Serialize, Deserialize)]
enum Later {
    Wrote,
    BeginHandOff,
    BeginHandOffAck,
    HandOff,
    ShardStopped,
    Report(LaterReport),
    Rebalance,
    Unreachable { node: NodeId },
    Loads,
    MoveShard,
    KeepAlive,
    KeepAliveAck,
    ArbiterFlag,
    Gossip { about: String },
}

#[derive(Serialize, Deserialize)]
struct LaterReport {
    incarnation: Incarnation,
    seen: Vec<(u32, u64)>,
    held: Vec<ReportedShard>,
    store_answers: bool,
    refused: Vec<(ShardId, Epoch, Epoch)>,
    extensions: Extensions<Self>,
}

const LOAD: u32 = 2;
const POOL: u32 = 3;

impl Extensible for LaterReport {
    const NAME: &'static str = "NodeReport";
    const FIELDS: &'static [u32] = &[LOAD, POOL];
}

struct LaterMessage;

impl Extensible for LaterMessage {
    const NAME: &'static str = "ControlMessage";
    const FIELDS: &'static [u32] = &[LOAD, POOL];
}

fn later(message: &Later, field: Option<u32>) -> Vec<u8> {
    let mut block = Extensions::<LaterMessage>::default();
    field.inspect(|number| block.set(*number, &"x").expect("fits"));
    codec::append_encoded(vec![VERSION], &(member(), message, block)).expect("encodes")
}

fn later_report(field: Option<u32>) -> Later {
    let mut extensions = Extensions::default();
    field.inspect(|number| extensions.set(*number, &"x").expect("fits"));
    let incarnation = member().incarnation;
    let (seen, held, refused) = (Vec::new(), Vec::new(), Vec::new());
    Later::Report(LaterReport { incarnation, seen, held, store_answers: true, refused, extensions })
}

#[test]
fn a_message_of_a_later_release_is_read_or_ignored_whole() {
    let decoded =
        |message: &Later, field| decode(&one(), &later(message, field)).map(|(_, message)| message);
    let node = one();
    assert_eq!(
        decoded(&Later::Unreachable { node: node.clone() }, Some(LOAD)),
        Ok(ControlMessage::NodeUnreachable { node })
    );
    assert!(matches!(decoded(&later_report(Some(LOAD)), None), Ok(ControlMessage::Report(_))));
    for refused in
        [decoded(&Later::Rebalance, Some(POOL)), decoded(&later_report(Some(POOL)), None)]
    {
        let error = refused.expect_err("a required field");
        assert!(error.to_string().contains("field 3"), "{error}");
    }
    let unknown = decoded(&Later::Gossip { about: "n2".into() }, None);
    assert_eq!(unknown, Err(IgnoreReason::UnknownKind(ControlMessage::KIND_COUNT)));
}

#[test]
fn a_later_release_understands_messages_of_this_one() {
    let message = ControlMessage::Report(Box::new(NodeReport {
        store_available: true,
        ..NodeReport::default()
    }));
    let bytes = encode(&member(), &message).expect("encodes");
    let (from, later, _): (Member, Later, Extensions<LaterMessage>) =
        codec::decode(&bytes[1..]).expect("decodes");
    assert!(from == member() && matches!(later, Later::Report(report) if report.store_answers));
}
