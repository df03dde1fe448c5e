use std::sync::Arc;

use ostraca_core::ids::{Epoch, Incarnation, NodeId, ScopedSessionId, ShardId, TurnId};
use ostraca_core::records::{
    ChannelItem, CommitRefusal, Head, JournalEvent, JournalSnapshot, Lane, RecordKey, RecordWrite,
    Tell, Timer,
};
use ostraca_core::rows::Member;
use ostraca_store::{ScanKind, ScannedRecord};

use super::*;

fn shard() -> ShardPath {
    ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(300) }
}

fn claim() -> Claim {
    Claim {
        cluster: ClusterId(1),
        shard: shard(),
        epoch: Epoch(2),
        owner: Member {
            node: NodeId::from("a"),
            incarnation: Incarnation { counter: 3, nonce: 4 },
        },
        number: 5,
        extensions: Default::default(),
    }
}

fn turn() -> Commit {
    let turn = TurnId { nonce: 4, shard: 300, epoch: Epoch(2), number: 6 };
    Commit {
        claim: Arc::new(claim()),
        entity: Entity::new("t", "i"),
        expected_version: 7,
        head: Head { version: 8, revision: 1, turn, ..Head::default() },
        writes: vec![
            RecordWrite { key: RecordKey::State("k".into()), value: Some("v".into()) },
            RecordWrite { key: RecordKey::Lane(ScopedSessionId([9; 16])), value: None },
            RecordWrite { key: RecordKey::Timer { due: 300, name: "t".into() }, value: None },
        ],
        extensions: Default::default(),
    }
}

const SHARD: [u8; 6] = [1, b'n', 1, b'p', 0xac, 2];
/// The encoded tell of these tests.
const TELL: [u8; 18] = [1, b't', 1, b'i', 1, b'm', 1, b'b', 1, b'c', 1, b'p', 1, 2, 3, 4, 1, b'f'];
const CLAIM: [u8; 14] = [1, 1, b'n', 1, b'p', 0xac, 2, 2, 1, b'a', 3, 4, 5, 0];

fn golden<T: WireMessage + PartialEq + std::fmt::Debug>(message: &T, parts: &[&[u8]]) {
    let bytes = [&[VERSION][..], &parts.concat(), &[0]].concat();
    assert_eq!(encode(message).unwrap(), bytes, "{message:?}");
    assert_eq!(decode::<T>(&bytes).unwrap(), *message);
}

#[test]
fn the_bytes_of_requests_do_not_change() {
    golden(
        &Request::Hello(Hello { cluster: ClusterId(1), client: 300, link: 2 }),
        &[&[0, 1, 0xac, 2, 2]],
    );
    golden(&Request::Claim(vec![claim()]), &[&[1, 1], &CLAIM]);
    golden(&Request::CurrentClaims(vec![shard()]), &[&[2, 1], &SHARD]);
    let head = [8, 1, 4, 0xac, 2, 2, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let timer = [2, 0xac, 2, 1, b't', 0];
    let writes = [&[3, 0, 1, b'k', 1, 1, b'v', 1][..], &[9; 16], &[0], &timer, &[0]].concat();
    golden(
        &Request::Commit(vec![turn()]),
        &[&[3, 1], &CLAIM, &[1, b't', 1, b'i', 7], &head, &writes],
    );
    let entity = [1, b't', 1, b'i'];
    golden(&Request::Load(vec![(shard(), Entity::new("t", "i"))]), &[&[4, 1], &SHARD, &entity]);
    let heads =
        Scan { shard: shard(), kind: ScanKind::Heads, after: None, max_records: 300, max_bytes: 4 };
    golden(&Request::Scan(heads.clone()), &[&[5], &SHARD, &[0, 0, 0xac, 2, 4]]);
    let kind = ScanKind::State(Entity::new("t", "i"));
    let from = Some((300, Entity::new("t", "i")));
    let wakes = Scan { kind: ScanKind::Wakes { from }, ..heads.clone() };
    let wake = [&[2, 1, 0xac, 2][..], &entity, &[0, 0xac, 2, 4]].concat();
    golden(&Request::Scan(wakes), &[&[5], &SHARD, &wake]);
    let from = Some(Entity::new("t", "i"));
    let letters = Scan { kind: ScanKind::DeadLetters { from }, ..heads.clone() };
    let letters_bytes = [&[3, 1][..], &entity, &[0, 0xac, 2, 4]].concat();
    golden(&Request::Scan(letters), &[&[5], &SHARD, &letters_bytes]);
    let kind_of_journal = ScanKind::Journal { entity: Entity::new("t", "i"), from: 300 };
    let journal = Scan { kind: kind_of_journal, ..heads.clone() };
    let journal_bytes = [&[4][..], &entity, &[0xac, 2, 0, 0xac, 2, 4]].concat();
    golden(&Request::Scan(journal), &[&[5], &SHARD, &journal_bytes]);
    let from = Some(Entity::new("t", "i"));
    let marks = Scan { kind: ScanKind::Remembered { from }, ..heads.clone() };
    let marks_bytes = [&[5, 1][..], &entity, &[0, 0xac, 2, 4]].concat();
    golden(&Request::Scan(marks), &[&[5], &SHARD, &marks_bytes]);
    let (entity_of_channel, channel) = (Entity::new("t", "i"), "c".into());
    let kind_of_channel = ScanKind::Channel { entity: entity_of_channel, channel, from: 300 };
    let channel = Scan { kind: kind_of_channel, ..heads.clone() };
    let channel_bytes = [&[6][..], &entity, &[1, b'c', 0xac, 2, 0, 0xac, 2, 4]].concat();
    golden(&Request::Scan(channel), &[&[5], &SHARD, &channel_bytes]);
    let state = Scan { kind, after: Some("k".into()), ..heads };
    golden(&Request::Scan(state), &[&[5], &SHARD, &[1], &entity, &[1, 1, b'k', 0xac, 2, 4]]);
    let fragment = Request::PutBlob { upload: 1, total: 300, offset: 2, bytes: "b".into() };
    golden(&fragment, &[&[6, 1, 0xac, 2, 2, 1, b'b']]);
    golden(
        &Request::GetBlob { digest: [3; 32], offset: 1, max_bytes: 2 },
        &[&[7], &[3; 32], &[1, 2]],
    );
    golden(&Request::Get("k".into()), &[&[8, 1, b'k']]);
    golden(&Request::List("k".into()), &[&[9, 1, b'k']]);
    let cas = CompareAndSet { key: "k".into(), expected: Some(300), value: Some("v".into()) };
    golden(&Request::CompareAndSet(cas), &[&[10, 1, b'k', 1, 0xac, 2, 1, 1, b'v']]);
    let watch = Request::Watch { watch: 1, prefix: "k".into(), revision: 300, poll_timeout_ms: 2 };
    golden(&watch, &[&[11, 1, 1, b'k', 0xac, 2, 2]]);
    golden(&Request::CancelWatch(1), &[&[12, 1]]);
    golden(&Request::Ping, &[&[13]]);
}

#[test]
fn the_bytes_of_replies_do_not_change() {
    let golden = |answer: ResponseBody, bytes: &[&[u8]]| {
        golden(&Response { durable_sequence: 300, body: answer }, &[&[0xac, 2], &bytes.concat()]);
    };
    let identity = StoreIdentity {
        store_id: 1,
        cluster: ClusterId(2),
        cluster_name: "c".into(),
        open_count: 3,
        open_nonce: 4,
        durable_sequence: 5,
    };
    golden(ResponseBody::Refused("r".into()), &[&[0, 1, b'r']]);
    golden(
        ResponseBody::Hello { identity, open_nonces: vec![4] },
        &[&[1, 1, 2, 1, b'c', 3, 4, 5, 1, 4]],
    );
    let current = Box::new(claim());
    let outcomes = vec![
        ClaimOutcome::Granted,
        ClaimOutcome::Refused { current: current.clone() },
        ClaimOutcome::OtherCluster { store_cluster: ClusterId(2) },
        ClaimOutcome::Failed("f".into()),
    ];
    golden(ResponseBody::Claim(outcomes), &[&[2, 4, 0, 1], &CLAIM, &[2, 2, 3, 1, b'f']]);
    golden(
        ResponseBody::CurrentClaims(Ok(vec![Some(claim()), None])),
        &[&[3, 0, 2, 1], &CLAIM, &[0]],
    );
    let outcomes = vec![
        CommitOutcome::Committed,
        CommitOutcome::AlreadyCommitted,
        CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current: Some(current) }),
        CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 300 }),
        CommitOutcome::Refused(CommitRefusal::LimitReached("l".into())),
        CommitOutcome::Refused(CommitRefusal::TooLarge("t".into())),
        CommitOutcome::Unknown("u".into()),
    ];
    let rest = [2, 1, 0xac, 2, 2, 2, 1, b'l', 2, 3, 1, b't', 3, 1, b'u'];
    golden(ResponseBody::Commit(outcomes), &[&[4, 7, 0, 1, 2, 0, 1], &CLAIM, &rest]);
    let lane = Lane {
        session: ScopedSessionId([9; 16]),
        last_sequence: 1,
        used_at: 2,
        newest_created: 3,
        principal_tag: 4,
        replies: vec![],
        extensions: Default::default(),
    };
    let timer = Timer {
        name: "t".into(),
        generation: 1,
        due: 2,
        interval: 3,
        payload: "p".into(),
        attempts: 4,
        retry_at: 5,
        failure: "f".into(),
        set_aside: false,
        extensions: Default::default(),
    };
    let tell = Tell {
        target: Entity::new("t", "i"),
        method: "m".into(),
        body: "b".into(),
        content_type: "c".into(),
        traceparent: "p".into(),
        created_ms: 1,
        utc_ms: 2,
        attempts: 3,
        retry_at: 4,
        failure: "f".into(),
        extensions: Default::default(),
    };
    let outbox = vec![(300, tell.clone())];
    let dead_letters = vec![(300, tell.clone())];
    let (lanes, timers) = (vec![lane], vec![timer]);
    let loaded = LoadedEntity { head: None, lanes, timers, outbox, dead_letters };
    let unavailable = Err(StoreError::Unavailable("u".into()));
    let lane = [&[9; 16][..], &[1, 2, 3, 4, 0, 0]].concat();
    golden(
        ResponseBody::Load(vec![Ok(loaded), unavailable]),
        &[
            &[5, 2, 0, 0, 1],
            &lane,
            &[1, 1, b't', 1, 2, 3, 1, b'p', 4, 5, 1, b'f', 0, 0],
            &[1, 0xac, 2],
            &TELL,
            &[0, 1, 0xac, 2],
            &TELL,
            &[0],
            &[1, 0, 1, b'u'],
        ],
    );
    let head = ScannedRecord::Head(Entity::new("t", "i"), Box::default());
    let wake = ScannedRecord::Wake(300, Entity::new("t", "i"));
    let letter = ScannedRecord::DeadLetter(Entity::new("t", "i"), 300, Box::new(tell));
    let data = Bytes::from_static(b"d");
    let event = JournalEvent { start: 300, data: data.clone(), extensions: Default::default() };
    let snapshot =
        JournalSnapshot { through: 300, version: 6, data, extensions: Default::default() };
    let journal = [ScannedRecord::Event(2, event), ScannedRecord::Snapshot(snapshot)];
    let mark = ScannedRecord::Remembered(Entity::new("t", "i"));
    let mut records = vec![head, ScannedRecord::State("k".into(), "v".into()), wake, letter];
    records.extend(journal);
    records.push(mark);
    let (data, extensions) = (Bytes::from_static(b"d"), Default::default());
    let item = ChannelItem { version: 300, utc_ms: 5, data, extensions };
    records.push(ScannedRecord::ChannelItem(2, item));
    let page = Page { records, next_cursor: Some("k".into()) };
    let head = [&[0, 1, b't', 1, b'i'][..], &[0; 15]].concat();
    let rest = [1, 1, b'k', 1, b'v', 2, 0xac, 2, 1, b't', 1, b'i'];
    let letter = [3, 1, b't', 1, b'i', 0xac, 2];
    let journal = [0, 4, 2, 0xac, 2, 1, b'd', 0, 5, 0xac, 2, 6, 1, b'd', 0];
    let mark = [6, 1, b't', 1, b'i', 7, 2, 0xac, 2, 5, 1, b'd', 0];
    let expected = [&[6, 0, 8][..], &head, &rest, &letter, &TELL, &journal, &mark, &[1, 1, b'k']];
    golden(ResponseBody::Scan(Ok(page)), &expected);
    golden(ResponseBody::PutBlob(Ok(Some([3; 32]))), &[&[7, 0, 1], &[3; 32]]);
    golden(ResponseBody::GetBlob(Ok(Some(("b".into(), 300)))), &[&[8, 0, 1, 1, b'b', 0xac, 2]]);
    let row = StoredRow { key: "k".into(), revision: 300, value: "v".into() };
    let row_bytes = [1, b'k', 0xac, 2, 1, b'v'];
    golden(ResponseBody::Get(Ok(Some(row.clone()))), &[&[9, 0, 1], &row_bytes]);
    golden(
        ResponseBody::List(Ok((vec![row.clone()], 300))),
        &[&[10, 0, 1], &row_bytes, &[0xac, 2]],
    );
    golden(ResponseBody::CompareAndSet(Ok(300)), &[&[11, 0, 0xac, 2]]);
    golden(
        ResponseBody::CompareAndSet(Err(CompareAndSetError::RevisionMismatch(Some(row.clone())))),
        &[&[11, 1, 0, 1], &row_bytes],
    );
    for (number, error) in [
        (0, StoreError::Unavailable("e".into())),
        (1, StoreError::Stopped("e".into())),
        (2, StoreError::Corrupt("e".into())),
        (3, StoreError::LimitExceeded("e".into())),
    ] {
        golden(
            ResponseBody::CompareAndSet(Err(CompareAndSetError::Store(error))),
            &[&[11, 1, 1, number, 1, b'e']],
        );
    }
    let events = vec![
        RowEvent::Set(row),
        RowEvent::Deleted { key: "k".into(), revision: 300 },
        RowEvent::ResyncRequired,
    ];
    golden(ResponseBody::Watch(events), &[&[12, 3, 0], &row_bytes, &[1, 1, b'k', 0xac, 2, 2]]);
    golden(ResponseBody::CancelWatch, &[&[13]]);
    golden(ResponseBody::Unsupported { call: 300 }, &[&[14, 0xac, 2]]);
    golden(ResponseBody::Ping, &[&[15]]);
}

#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = encode(&Request::CancelWatch(1)).unwrap().to_vec();
    bytes[0] = 9;
    let error = decode::<Request>(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::UnsupportedVersion(9));
    assert!(
        error.to_string().contains("version 9")
            && error.to_string().contains("only versions 2 to 2 are supported")
    );
}

#[test]
fn malformed_bytes_are_reported_as_malformed() {
    let whole = encode(&Request::Commit(vec![turn()])).unwrap();
    assert_eq!(decode::<Request>(b""), Err(DecodeError::Empty));
    for cut in 1..whole.len() {
        assert!(
            matches!(decode::<Request>(&whole[..cut]), Err(DecodeError::Malformed(_))),
            "{cut}"
        );
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(matches!(decode::<Request>(&longer), Err(DecodeError::Malformed(_))));
    assert!(matches!(decode::<Request>(&[VERSION, 200]), Err(DecodeError::Malformed(_))));
    // A length beyond the end of the body.
    let too_long = [VERSION, COMMIT, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(decode::<Request>(&too_long), Err(DecodeError::Malformed(_))));
}

#[test]
fn only_calls_that_carry_data_may_be_large() {
    let large = vec![(shard(), Entity::new("t", "i")); 100];
    let bytes = encode(&Request::Load(large)).unwrap();
    let error = decode_request(&bytes, 100).unwrap_err();
    assert_eq!(error, DecodeError::TooLarge { bytes: bytes.len(), limit: 100 });
    assert!(error.to_string().contains("exceeds the limit of"));
    let turns = encode(&Request::Commit(vec![turn(); 100])).unwrap();
    assert!(decode_request(&turns, 100).is_ok());
    let fragment =
        Request::PutBlob { upload: 1, total: 300, offset: 2, bytes: vec![0; 200].into() };
    assert!(decode_request(&encode(&fragment).unwrap(), 100).is_ok());
}

/// The extension block that a later release appends to each call.
struct LaterRequest;

impl Extensible for LaterRequest {
    const NAME: &'static str = "Request";
    const FIELDS: &'static [u32] = &[1, 2];
}

fn later(call: &impl Serialize, field: Option<u32>) -> Vec<u8> {
    let mut block = Extensions::<LaterRequest>::default();
    field.inspect(|number| block.set(*number, &"x").unwrap());
    codec::append_encoded(vec![VERSION], &(call, block)).unwrap()
}

#[test]
fn a_request_of_a_later_release_is_read_or_refused_by_name() {
    let received = |bytes: &[u8]| decode_request(bytes, 1_000);
    let watch = Request::CancelWatch(7);
    assert_eq!(received(&later(&watch, None)), Ok(watch.clone()));
    assert_eq!(received(&later(&watch, Some(2))), Ok(watch.clone()));
    let error = received(&later(&watch, Some(1))).expect_err("a required field");
    assert!(error.to_string().contains("field 1 of Request is required"), "{error}");
    // An unknown kind is reported as unknown, regardless of its content.
    assert_eq!(received(&later(&(CALLS, 1_u64), None)), Err(DecodeError::UnknownRequest(CALLS)));
    assert_eq!(received(&later(&300_u32, None)), Err(DecodeError::UnknownRequest(300)));
    // For a known kind, malformed content is reported as malformed.
    assert!(matches!(received(&later(&(12_u32, "x"), None)), Err(DecodeError::Malformed(_))));
    let last = encode(&Request::Ping).unwrap();
    assert_eq!(u32::from(last[1]), CALLS - 1, "the last known kind");
}

#[test]
fn a_later_release_understands_messages_of_this_one() {
    let bytes = encode(&Request::CancelWatch(7)).unwrap();
    let (received, _): (Request, Extensions<LaterRequest>) = codec::decode(&bytes[1..]).unwrap();
    assert_eq!(received, Request::CancelWatch(7));
    let reply = Response { durable_sequence: 9, body: ResponseBody::Unsupported { call: 13 } };
    let bytes = encode(&reply).unwrap();
    let (decoded, _): (Response, Extensions<LaterRequest>) = codec::decode(&bytes[1..]).unwrap();
    assert_eq!(decoded, reply);
}

#[test]
fn a_commit_keeps_unknown_fields_of_its_own_and_of_its_head() {
    // An optional field with number 2. Below, it becomes number 3, which is required.
    let mut turn = turn();
    turn.head.extensions = codec::decode(&[1, 2, 1, 9]).unwrap();
    turn.extensions = codec::decode(&[1, 2, 1, 8]).unwrap();
    let request = Request::Commit(vec![turn]);
    let bytes = encode(&request).unwrap();
    assert_eq!(decode::<Request>(&bytes), Ok(request));
    let at = bytes.windows(4).position(|four| four == [1, 2, 1, 9]).unwrap();
    let mut required = bytes.to_vec();
    required[at + 1] = 3;
    let error = decode::<Request>(&required).unwrap_err().to_string();
    assert!(error.contains("field 3 of Head is required"), "{error}");
}
