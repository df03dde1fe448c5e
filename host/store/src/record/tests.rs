//! Golden bytes of every record: a change here is a new format.

use super::*;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, MessageDigest, NodeId, ScopedSessionId, ShardId,
    ShardPath, TurnId,
};
use ostraca_core::records;
use ostraca_core::records::{
    GuestReply, JournalEvent, JournalExtent, JournalSnapshot, RecordedReply,
};
use ostraca_core::rows::Member;

fn lane() -> Lane {
    let error = GuestReply::Error { code: "no".into(), message: "why".into() };
    let recorded = |sequence, answer| RecordedReply {
        sequence,
        digest: MessageDigest([0xdd; 16]),
        version: sequence + 300,
        reply: answer,
        extensions: Default::default(),
    };
    Lane {
        session: ScopedSessionId([0x55; 16]),
        last_sequence: 2,
        used_at: 1_000,
        newest_created: 129,
        principal_tag: 130,
        replies: vec![
            recorded(1, GuestReply::Result(Bytes::from_static(b"ok"))),
            recorded(2, error),
            recorded(3, GuestReply::Dropped),
        ],
        extensions: Default::default(),
    }
}

fn head() -> Head {
    Head {
        version: 5,
        revision: 3,
        turn: TurnId { nonce: 200, shard: 7, epoch: Epoch(2), number: 9 },
        commit_sequence: 4097,
        lanes: vec![],
        spilled_lane_count: 1,
        remembered: true,
        expires_at: Some(128),
        deleted: false,
        state_bytes: 16,
        watermark: 131,
        extensions: Default::default(),
    }
}

fn claim_record() -> ClaimRecord {
    let claim = Claim {
        cluster: ClusterId(1),
        shard: ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(7) },
        epoch: Epoch(2),
        owner: Member {
            node: NodeId::from("a"),
            incarnation: Incarnation { counter: 3, nonce: 4 },
        },
        number: 5,
        extensions: Default::default(),
    };
    ClaimRecord { claim, reserved_sequence: 4096, extensions: Default::default() }
}

#[test]
fn the_bytes_of_a_head_do_not_change() {
    let golden = [
        2, 3, 0, 0, 0, // header
        5, 3, 0xc8, 1, 7, 2, 9, 0x81, 0x20, 0, 1, 1, 1, 0x80, 1, 0, 16, 0x83, 1, 0,
    ];
    assert_eq!(Codec::default().encode(b"k", &head()).unwrap(), golden);
    assert_eq!(Codec::default().decode::<Head>(b"k", &golden).unwrap(), head());
}

#[test]
fn the_bytes_of_a_lane_do_not_change() {
    let mut golden = vec![4, 3, 0, 0, 0];
    golden.extend([0x55; 16]);
    golden.extend([2, 0xe8, 7, 0x81, 1, 0x82, 1, 3, 1]);
    golden.extend([0xdd; 16]);
    golden.extend([0xad, 2, 0, 2, b'o', b'k', 0, 2]);
    golden.extend([0xdd; 16]);
    golden.extend([0xae, 2, 1, 2, b'n', b'o', 3, b'w', b'h', b'y', 0, 3]);
    golden.extend([0xdd; 16]);
    golden.extend([0xaf, 2, 2, 0, 0]);
    assert_eq!(Codec::default().encode(b"k", &lane()).unwrap(), golden);
    assert_eq!(Codec::default().decode::<Lane>(b"k", &golden).unwrap(), lane());
}

#[test]
fn the_bytes_of_a_claim_do_not_change() {
    let golden = [
        1, 3, 0, 0, 0, // header
        1, 1, b'n', 1, b'p', 7, 2, 1, b'a', 3, 4, 5, 0, 0x80, 0x20, 0,
    ];
    assert_eq!(Codec::default().encode(b"k", &claim_record()).unwrap(), golden);
    assert_eq!(Codec::default().decode::<ClaimRecord>(b"k", &golden).unwrap(), claim_record());
}

#[test]
fn the_bytes_of_a_claim_with_a_floor_do_not_change() {
    let mut head = Head { version: 300, watermark: 7, ..Head::default() };
    head.set_generation(2).unwrap();
    let mut floor = HeadFloor { tell_watermark: 9, ..HeadFloor::default() };
    floor.raise(&head).unwrap();
    let mut record = claim_record();
    record.set_floor(&floor).unwrap();
    let golden = [
        1, 3, 0, 0, 0, // header
        1, 1, b'n', 1, b'p', 7, 2, 1, b'a', 3, 4, 5, 0, 0x80, 0x20, // claim and sequences
        1, 1, 6, 0xac, 2, 2, 7, 9, 0, // the floor
    ];
    assert_eq!(Codec::default().encode(b"k", &record).unwrap(), golden);
    let decoded = Codec::default().decode::<ClaimRecord>(b"k", &golden).unwrap();
    assert_eq!(decoded.floor(), Ok(Some(floor)));
    assert_eq!(claim_record().floor(), Ok(None), "a shard that removed no head");
}

#[test]
fn a_head_that_is_not_stored_has_field_26() {
    let floor = HeadFloor { version: 5, generation: 1, watermark: 3, ..HeadFloor::default() };
    let mut head = floor.head().unwrap();
    assert_eq!((head.version, head.watermark, head.deleted), (5, 3, true));
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 7..], [2, 14, 1, 1, 26, 1, 1], "two fields of one byte");
    head.set_removed(false).unwrap();
    assert_eq!(head.is_removed(), Ok(false));
}

#[test]
fn the_bytes_of_a_timer_do_not_change() {
    let timer = Timer {
        name: "remind".into(),
        generation: 300,
        due: 1_000,
        interval: 128,
        payload: Bytes::from_static(b"p"),
        attempts: 2,
        retry_at: 129,
        failure: "why".into(),
        set_aside: true,
        extensions: Default::default(),
    };
    let golden = [
        5, 3, 0, 0, 0, // header
        6, b'r', b'e', b'm', b'i', b'n', b'd', 0xac, 2, 0xe8, 7, 0x80, 1, 1, b'p', 2, 0x81, 1, 3,
        b'w', b'h', b'y', 1, 0,
    ];
    assert_eq!(Codec::default().encode(b"k", &timer).unwrap(), golden);
    assert_eq!(Codec::default().decode::<Timer>(b"k", &golden).unwrap(), timer);
}

#[test]
fn a_head_counts_its_timers_in_field_4() {
    let mut head = head();
    head.set_timer_count(2).unwrap();
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 4..], [1, 4, 1, 2], "one field: number 4, one byte, 2");
    assert_eq!(codec::decode::<Head>(&bytes).unwrap().timer_count().unwrap(), 2);
    head.set_timer_count(0).unwrap();
    assert!(head.extensions.is_empty(), "a head without timers is no longer than before");
}

#[test]
fn the_bytes_of_a_tell_do_not_change() {
    let tell = Tell {
        target: Entity::new("cart", "7"),
        method: "add".into(),
        body: Bytes::from_static(b"b"),
        content_type: "c".into(),
        traceparent: "p".into(),
        created_ms: 300,
        utc_ms: 128,
        attempts: 2,
        retry_at: 129,
        failure: "why".into(),
        extensions: Default::default(),
    };
    let golden = [
        6, 3, 0, 0, 0, // header
        4, b'c', b'a', b'r', b't', 1, b'7', 3, b'a', b'd', b'd', 1, b'b', 1, b'c', 1, b'p', 0xac,
        2, 0x80, 1, 2, 0x81, 1, 3, b'w', b'h', b'y', 0,
    ];
    assert_eq!(Codec::default().encode(b"k", &tell).unwrap(), golden);
    assert_eq!(Codec::default().decode::<Tell>(b"k", &golden).unwrap(), tell);
}

#[test]
fn a_head_counts_its_outbox_in_field_6_and_bounds_tells_in_8() {
    let mut head = head();
    head.set_outbox_counts((2, 1)).unwrap();
    head.set_tell_watermark(300).unwrap();
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 9..], [2, 6, 2, 2, 1, 8, 2, 0xac, 2]);
    let decoded = codec::decode::<Head>(&bytes).unwrap();
    assert_eq!(decoded.outbox_counts().unwrap(), (2, 1));
    assert_eq!(decoded.tell_watermark().unwrap(), 300);
    head.set_outbox_counts((0, 0)).unwrap();
    head.set_tell_watermark(0).unwrap();
    assert!(head.extensions.is_empty());
}

#[test]
fn the_bytes_of_a_journal_do_not_change() {
    let data = Bytes::from_static(b"d");
    let event = JournalEvent { start: 300, data: data.clone(), extensions: Default::default() };
    let snapshot =
        JournalSnapshot { through: 128, version: 3, data, extensions: Default::default() };
    let stored = |body| Codec::default().encode_bytes(RecordKind::Journal, b"k", body);
    assert_eq!(
        stored(codec::encode(&event).unwrap()),
        [7, 3, 0, 0, 0, 0xac, 2, 1, b'd', 0],
        "header, then the event"
    );
    assert_eq!(stored(codec::encode(&snapshot).unwrap()), [7, 3, 0, 0, 0, 0x80, 1, 3, 1, b'd', 0]);
}

#[test]
fn a_head_knows_its_deletions_by_fields_14_and_16() {
    let mut head = head();
    head.set_generation(3).unwrap();
    head.set_purged(true).unwrap();
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 7..], [2, 14, 1, 3, 16, 1, 1], "two fields of one byte");
    let decoded = codec::decode::<Head>(&bytes).unwrap();
    assert_eq!((decoded.generation(), decoded.is_purged()), (Ok(3), Ok(true)));
    head.set_generation(0).unwrap();
    head.set_purged(false).unwrap();
    assert!(head.extensions.is_empty(), "a head that was never deleted is no longer than before");
}

#[test]
fn a_head_knows_its_journal_by_field_10() {
    let mut head = head();
    let extent = JournalExtent {
        first: 2,
        next: 300,
        start: 1,
        end: 128,
        snapshot: 3,
        snapshot_bytes: 4,
        snapshot_version: 5,
    };
    head.set_journal(&extent).unwrap();
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 12..], [1, 10, 9, 2, 0xac, 2, 1, 0x80, 1, 3, 4, 5]);
    assert_eq!(codec::decode::<Head>(&bytes).unwrap().journal().unwrap(), extent);
    head.set_journal(&JournalExtent::default()).unwrap();
    assert!(head.extensions.is_empty());
}

#[test]
fn the_bytes_of_a_channels_item_do_not_change() {
    let (data, extensions) = (Bytes::from_static(b"d"), Default::default());
    let item = records::ChannelItem { version: 300, utc_ms: 128, data, extensions };
    let stored =
        Codec::default().encode_bytes(RecordKind::ChannelItem, b"k", codec::encode(&item).unwrap());
    assert_eq!(stored, [11, 3, 0, 0, 0, 0xac, 2, 0x80, 1, 1, b'd', 0]);
}

#[test]
fn a_head_knows_its_channels_by_field_12() {
    let mut head = head();
    let cut = |number, version, start| records::ChannelCut { number, version, start };
    let extent = records::ChannelExtent {
        next: 300,
        last_version: 9,
        first: cut(2, 3, 4),
        end: 128,
        stored: 1,
        cuts: vec![cut(5, 6, 7)],
        ..records::ChannelExtent::new("c".into())
    };
    let channels = [(extent.name.clone(), extent)].into();
    head.set_channels(&channels).unwrap();
    let bytes = codec::encode(&head).unwrap();
    let field = [1, 1, b'c', 0xac, 2, 9, 2, 3, 4, 0x80, 1, 1, 1, 5, 6, 7];
    assert_eq!(bytes[bytes.len() - 19..], [&[1, 12, 16][..], &field].concat());
    assert_eq!(codec::decode::<Head>(&bytes).unwrap().channels().unwrap(), channels);
    head.set_channels(&Default::default()).unwrap();
    assert!(head.extensions.is_empty());
}

#[test]
fn a_head_counts_its_subscriptions_in_field_24() {
    let mut head = head();
    let counts = records::SubscriptionCounts { pages: 2, subscriptions: 300 };
    head.set_subscriptions(counts).unwrap();
    let bytes = codec::encode(&head).unwrap();
    assert_eq!(bytes[bytes.len() - 6..], [1, 24, 3, 2, 0xac, 2]);
    assert_eq!(codec::decode::<Head>(&bytes).unwrap().subscriptions(), Ok(counts));
    head.set_subscriptions(Default::default()).unwrap();
    assert!(head.extensions.is_empty(), "a head without subscriptions is no longer than before");
}

#[test]
fn the_bytes_of_a_page_of_subscriptions_do_not_change() {
    let subscription = records::Subscription {
        channel: "c".into(),
        subscriber: Entity::new("t", "i"),
        method: "m".into(),
        since: 300,
    };
    let subscriptions = vec![subscription];
    let page = records::SubscriptionPage { subscriptions, extensions: Default::default() };
    let bytes = codec::encode(&page).unwrap();
    assert_eq!(bytes, [1, 1, b'c', 1, b't', 1, b'i', 1, b'm', 0xac, 2, 0]);
    assert_eq!(codec::decode::<records::SubscriptionPage>(&bytes).unwrap(), page);
}

#[test]
fn the_bytes_of_an_item_on_its_way_do_not_change() {
    let item = ostraca_core::shard::FanOut {
        channel: "c".into(),
        version: 300,
        page: 2,
        data: Bytes::from_static(b"d"),
        extensions: Default::default(),
    };
    assert_eq!(item.encode()[..], [1, b'c', 0xac, 2, 2, 1, b'd', 0]);
    assert_eq!(ostraca_core::shard::FanOut::decode(&item.encode()), Some(item));
}

#[test]
fn a_senders_lane_names_it_in_required_field_1() {
    let mut lane = lane();
    lane.set_sender(&Entity::new("t", "i")).unwrap();
    let bytes = codec::encode(&lane).unwrap();
    assert_eq!(bytes[bytes.len() - 7..], [1, 1, 4, 1, b't', 1, b'i']);
    assert_eq!(
        codec::decode::<Lane>(&bytes).unwrap().sender().unwrap(),
        Some(Entity::new("t", "i"))
    );
}

#[test]
fn the_bytes_of_state_do_not_change() {
    let record = Codec::default().encode_bytes(RecordKind::State, b"k", &b"value"[..]);
    assert_eq!(record, b"\x03\x03\0\0\0value");
    assert_eq!(Codec::default().decode_bytes(RecordKind::State, b"k", &record).unwrap(), "value");
}

#[test]
fn the_numbers_of_kinds_do_not_change() {
    use RecordKind::*;
    let numbered = [
        (1, Claim),
        (2, Head),
        (3, State),
        (4, Lane),
        (5, Timer),
        (6, Outbox),
        (7, Journal),
        (8, Remembered),
        (9, DeadLetter),
        (10, Fragment),
        (11, ChannelItem),
        (32, Row),
        (33, Meta),
    ];
    for number in 0..=u8::MAX {
        let kind = numbered.iter().find(|(n, _)| *n == number).map(|(_, kind)| *kind);
        assert_eq!(RecordKind::from_number(number), kind);
        assert!(kind.is_none_or(|kind| kind as u8 == number));
    }
}

#[test]
fn an_unknown_kind_format_flag_or_key_is_corrupt() {
    let codec = Codec::default();
    let good = codec.encode(b"k", &head()).unwrap();
    for (at, value) in [
        (0, 0),
        (0, 4),
        (0, 200),
        (1, 0),
        (1, 2),
        (1, 4),
        (2, 1),
        (2, 2),
        (2, 0x80),
        (3, 1),
        (4, 1),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        let error = codec.decode::<Head>(b"k", &bad).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "byte {at} = {value}: {error}");
    }
}

#[test]
fn a_truncated_or_extended_record_is_corrupt() {
    let codec = Codec::default();
    let mut record = codec.encode(b"k", &lane()).unwrap();
    for end in 0..record.len() {
        let error = codec.decode::<Lane>(b"k", &record[..end]).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "cut at {end}");
    }
    record.push(0);
    assert!(matches!(codec.decode::<Lane>(b"k", &record), Err(StoreError::Corrupt(_))));
}

#[test]
fn every_body_passes_the_seal_with_its_key() {
    /// XORs with the key's first byte: enough to check what passes through.
    #[derive(Debug)]
    struct Xor;
    impl Seal for Xor {
        fn seal(&self, key: &[u8], body: Vec<u8>) -> (u16, Vec<u8>) {
            (258, body.iter().map(|byte| byte ^ key[0]).collect())
        }
        fn open<'a>(
            &self,
            key: &[u8],
            key_id: u16,
            body: &'a [u8],
        ) -> Result<Cow<'a, [u8]>, StoreError> {
            assert_eq!(key_id, 258);
            Ok(body.iter().map(|byte| byte ^ key[0]).collect::<Vec<_>>().into())
        }
    }
    let codec = Codec::new(Arc::new(Xor));
    let record = codec.encode_bytes(RecordKind::State, b"\x01", &b"abc"[..]);
    assert_eq!(record, b"\x03\x03\0\x02\x01`cb");
    assert_eq!(codec.decode_bytes(RecordKind::State, b"\x01", &record).unwrap(), "abc");
    assert!(Codec::default().decode_bytes(RecordKind::State, b"\x01", &record).is_err());
}
