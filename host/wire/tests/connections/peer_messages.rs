//! Messages that nodes forward to each other: each is answered, their number is bounded, and none is forgotten.

use std::sync::Arc;

use crate::common::peers::{PeerNode, Sink, forward, pair, small, until};
use crate::common::{self, authority, frame, in_time};
use ostraca_wire::close_code::CloseCode;
use ostraca_wire::frame::FrameBuffer;
use ostraca_wire::peer::forwarding::{Forward, MessageLink};
use ostraca_wire::peer::{Alpn, PeerLink};
use ostraca_wire::proto::{
    self, ControlOpen, EntityStoreOpen, Envelope, ForwardedReply, ForwardingOpen, Outcome,
    PeerOpen, RpcRequest, RpcResponse, peer_open,
};
use ostraca_wire::{ALPN_CONTROL, ALPN_PEER, Limits};
use prost::Message;

async fn link(from: &PeerNode, to: &PeerNode) -> (PeerLink, MessageLink, Arc<Sink>) {
    let link = from.to(to, Alpn::Bulk).await.expect("link");
    let sink = Arc::new(Sink::default());
    let messages = link.open_forwarding(sink.clone()).await.expect("messages");
    (link, messages, sink)
}

#[tokio::test]
async fn each_message_is_answered_under_its_tag() {
    in_time(async {
        let (one, two) = pair();
        let (_link, messages, sink) = link(&one, &two).await;
        for round in 0..20 {
            let tags = round * 60 + 1..=(round + 1) * 60;
            let mut batch: Vec<Forward> =
                tags.clone().map(|tag| forward(tag, "echo", &tag.to_be_bytes())).collect();
            messages.send(&mut batch).expect("capacity");
            assert!(batch.is_empty());
            until(|| sink.count() == 60).await;
            for ((tag, reply), expected) in
                sink.replies.lock().expect("replies").drain(..).zip(tags)
            {
                assert_eq!((tag, reply.sequence), (expected, expected));
                assert_eq!(&reply.body[..], tag.to_be_bytes());
                assert_eq!(reply.content_type, "client/alice by one#1 at one");
            }
        }
        assert_eq!(messages.in_flight(), 0);
        messages.send(&mut vec![forward(9_999, "drop", b"")]).expect("capacity");
        until(|| sink.count() == 1).await;
        let (_, reply) = sink.replies.lock().expect("replies").remove(0);
        assert_eq!(reply.outcome(), Outcome::Unknown);
        assert_eq!(reply.problem.expect("problem").code, "abandoned");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn beyond_the_window_messages_stay_with_their_sender() {
    in_time(async {
        let (one, two) = pair();
        let (_link, messages, sink) = link(&one, &two).await;
        let mut batch: Vec<Forward> = (1..=100).map(|tag| forward(tag, "hold", b"")).collect();
        let error = messages.send(&mut batch).expect_err("full");
        assert_eq!(error.code(), "overloaded");
        assert!(error.to_string().contains("`peers.in-flight-messages`"), "{error}");
        assert_eq!((batch.len(), batch[0].tag, messages.in_flight()), (36, 65, 64));
        assert_eq!(batch[0], forward(65, "hold", b""));
        until(|| two.streams.held() == 64).await;
        two.streams.held.lock().expect("held").drain(..10).for_each(drop);
        until(|| sink.count() == 10).await;
        messages.send(&mut batch).expect_err("full again");
        assert_eq!(batch.len(), 26);
        until(|| two.streams.held() == 64).await;
        let large = forward(1_000, "echo", &[0; 100_000]);
        let error = messages.send(&mut vec![large]).expect_err("too large");
        assert_eq!(error.code(), "frame-too-large");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_sender_beyond_the_window_is_not_read() {
    in_time(async {
        let (one, two) = pair();
        let (_endpoint, connection) = greeted(&two, ALPN_PEER).await;
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        // The sender asks for a smaller window than the node would give, and sends more than it asked for.
        let window = ForwardingOpen { max_in_flight_messages: 5, max_in_flight_bytes: 0 };
        let mut bytes = frame(&PeerOpen { stream: Some(peer_open::Stream::Forwarding(window)) });
        for tag in 1..=50 {
            bytes.extend(framed(forward(tag, "hold", b"")));
        }
        send.write_all(&bytes).await.expect("write");
        send.finish().expect("finish");
        until(|| two.streams.held() == 5).await;
        let mut buffer = FrameBuffer::new(10_000);
        for tag in 1..=50_u64 {
            until(|| two.streams.held() > 0).await;
            assert!(two.streams.held() <= 5);
            drop(two.streams.held.lock().expect("held").remove(0));
            let reply = loop {
                if let Some(frame) = buffer.next_frame().expect("frame") {
                    break ForwardedReply::decode(frame).expect("reply");
                }
                let chunk = recv.read_chunk(10_000, true).await.expect("read").expect("more");
                buffer.push(&chunk.bytes);
            };
            assert_eq!(reply.tag, tag);
        }
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn senders_that_share_a_stream_get_replies_in_turn() {
    const REPLY: usize = 90_000;
    in_time(async {
        let ca = Arc::new(authority());
        let one = PeerNode::start(&ca, "one");
        let mut limits = small();
        (limits.peers.in_flight_messages, limits.peers.in_flight_message_bytes) = (1_000, 16 << 20);
        let identity = ca.issue_node("two", &[]).expect("identity");
        let two = PeerNode::start_as(
            &ca,
            &identity,
            limits,
            common::peers::peer_descriptor(&ca, "two"),
            tokio::runtime::Handle::current(),
        );
        let (_endpoint, connection) = greeted(&two, ALPN_PEER).await;
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        let open = peer_open::Stream::Forwarding(ForwardingOpen::default());
        let mut bytes = frame(&PeerOpen { stream: Some(open) });
        let of = |tag, principal: &str, method: &str, body: &[u8]| {
            let mut forward = forward(tag, method, body);
            forward.envelope.principal = principal.into();
            framed(forward)
        };
        // Far more replies than the link accepts, and none of them is read.
        for tag in 1..=900 {
            bytes.extend(of(tag, "client/mallory", "big", REPLY.to_string().as_bytes()));
        }
        bytes.extend(of(901, "client/bob", "hold", b""));
        send.write_all(&bytes).await.expect("write");
        until(|| two.streams.held() == 1).await;
        drop(two.streams.held.lock().expect("held").remove(0));

        let mut buffer = FrameBuffer::new(1 << 20);
        let (mut before, mut all, mut refused) = (None, 0, 0);
        for _ in 1..=901 {
            let ForwardedReply { tag, reply } = loop {
                if let Some(frame) = buffer.next_frame().expect("frame") {
                    break ForwardedReply::decode(frame).expect("reply");
                }
                let chunk = recv.read_chunk(1 << 20, true).await.expect("read").expect("more");
                buffer.push(&chunk.bytes);
            };
            let reply = reply.expect("a reply");
            if tag == 901 {
                before = Some(all);
            } else if reply.outcome() == Outcome::Result {
                all += REPLY;
            } else {
                let problem = reply.problem.clone().expect("a problem");
                assert_eq!((reply.outcome(), &*problem.code), (Outcome::NotRun, "overloaded"));
                assert_eq!(problem.details["setting"], "peers.in-flight-message-bytes");
                refused += 1;
            }
        }
        // Only what QUIC had already accepted precedes it.
        let before = before.expect("a reply to bob");
        assert!(before < 4 << 20, "after {before} bytes of another sender");
        assert!(all > 6 << 20 && all < 14 << 20 && refused > 700, "{all} bytes, {refused} refused");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_broken_link_separates_in_doubt_from_not_sent_messages() {
    in_time(async {
        let (one, two) = pair();
        let (link, messages, sink) = link(&one, &two).await;
        messages
            .send(&mut vec![forward(1, "echo", b""), forward(2, "hold", b"")])
            .expect("capacity");
        until(|| sink.count() == 1 && two.streams.held() == 1).await;
        // On a single-threaded runtime, the link's task has not run since.
        messages.send(&mut vec![forward(3, "hold", b"")]).expect("capacity");
        link.close();
        messages.closed().await;
        let lost = sink.lost.lock().expect("lost").clone().expect("lost");
        assert!(lost.in_doubt.contains(&2) && !lost.in_doubt.contains(&1), "{lost:?}");
        assert!(lost.in_doubt.contains(&3) || lost.not_sent == [3], "{lost:?}");
        let mut batch = vec![forward(4, "echo", b"")];
        assert_eq!(messages.send(&mut batch).expect_err("closed").code(), "not-sent");
        assert_eq!(batch.len(), 1);

        // Dropping the sending half ends the link; what was not handed over was not sent.
        let (_link, messages, sink) = self::link(&one, &two).await;
        messages.send(&mut vec![forward(7, "hold", b"")]).expect("capacity");
        drop(messages);
        until(|| sink.lost.lock().expect("lost").is_some()).await;
        assert_eq!(sink.lost.lock().expect("lost").clone().expect("lost").not_sent, [7]);
        one.stop().await;
        two.stop().await;
    })
    .await;
}

/// A connection with a node's certificate, after the hellos, on which the test can send anything.
async fn greeted(to: &PeerNode, alpn: &[u8]) -> (quinn::Endpoint, quinn::Connection) {
    let identity = to.ca.issue_node("three", &[]).expect("identity");
    let (endpoint, connection) = to.raw(&identity, alpn).await.expect("handshake");
    let hello = common::peers::peer_descriptor(&to.ca, "three").hello(&Limits::default());
    let (mut send, mut recv) = connection.open_bi().await.expect("stream");
    let open = PeerOpen { stream: Some(peer_open::Stream::Hello(hello)) };
    send.write_all(&frame(&open)).await.expect("hello");
    recv.read_to_end(10_000).await.expect("hello");
    (endpoint, connection)
}

fn framed(Forward { tag, envelope }: Forward) -> Vec<u8> {
    frame(&proto::ForwardedMessage { tag, envelope: Some(envelope) })
}

#[tokio::test]
async fn a_malformed_peer_stream_is_reset_alone_with_its_code() {
    in_time(async {
        let (one, two) = pair();
        let open = |stream| frame(&PeerOpen { stream: Some(stream) });
        let messages = open(peer_open::Stream::Forwarding(ForwardingOpen::default()));
        let store = open(peer_open::Stream::EntityStore(EntityStoreOpen {}));
        let control = open(peer_open::Stream::Control(ControlOpen {}));
        let hello = open(peer_open::Stream::Hello(Default::default()));
        let with = |kind: &[u8], more: &[u8]| [kind, more].concat();
        let garbage = b"\0\0\0\x05GET /";
        let large = 100_001_u32.to_be_bytes();
        let untagged = framed(forward(0, "echo", b""));
        let empty = frame(&proto::ForwardedMessage { tag: 1, envelope: None });
        let call = frame(&RpcRequest { tag: 0, body: "x".into() });
        let answer = frame(&RpcResponse { tag: 0, body: "x".into(), omitted_size: 1 });
        let cases = [
            ("garbage", ALPN_PEER, garbage.to_vec(), CloseCode::InvalidFrame),
            ("4 GiB at once", ALPN_PEER, vec![0xff; 4], CloseCode::FrameTooLarge),
            ("a second hello", ALPN_PEER, hello, CloseCode::UnexpectedFrame),
            ("control on bulk", ALPN_PEER, control.clone(), CloseCode::UnexpectedFrame),
            ("bulk on control", ALPN_CONTROL, messages.clone(), CloseCode::UnexpectedFrame),
            ("garbage for a message", ALPN_PEER, with(&messages, garbage), CloseCode::InvalidFrame),
            ("a large message", ALPN_PEER, with(&messages, &large), CloseCode::FrameTooLarge),
            (
                "a message without a tag",
                ALPN_PEER,
                with(&messages, &untagged),
                CloseCode::InvalidFrame,
            ),
            (
                "a tag without a message",
                ALPN_PEER,
                with(&messages, &empty),
                CloseCode::InvalidFrame,
            ),
            (
                "half a message",
                ALPN_PEER,
                with(&messages, &[0, 0, 0, 9, 1]),
                CloseCode::FrameTimeout,
            ),
            ("garbage for a call", ALPN_PEER, with(&store, garbage), CloseCode::InvalidFrame),
            ("a large call", ALPN_PEER, with(&store, &large), CloseCode::FrameTooLarge),
            ("a request without a tag", ALPN_PEER, with(&store, &call), CloseCode::InvalidFrame),
            ("garbage for control", ALPN_CONTROL, with(&control, garbage), CloseCode::InvalidFrame),
            (
                "a response without a request",
                ALPN_CONTROL,
                with(&control, &answer),
                CloseCode::InvalidFrame,
            ),
        ];
        for (what, alpn, bytes, code) in cases {
            let (_endpoint, connection) = greeted(&two, alpn).await;
            let (mut send, mut recv) = connection.open_bi().await.expect("stream");
            send.write_all(&bytes).await.expect("write");
            match recv.read_to_end(1 << 20).await {
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(found))) => {
                    assert_eq!(CloseCode::from_number(found.into_inner()), Some(code), "{what}");
                }
                other => panic!("no reset for {what}: {other:?}"),
            }
            // The connection itself stays open.
            let kind = if alpn == ALPN_PEER { &store } else { &control };
            let (mut send, mut recv) = connection.open_bi().await.expect("another stream");
            let call = frame(&RpcRequest { tag: 1, body: "hi".into() });
            send.write_all(&with(kind, &call)).await.expect("write");
            send.finish().expect("finish");
            let bytes = recv.read_to_end(10_000).await.expect("response");
            assert_eq!(
                bytes,
                frame(&RpcResponse { tag: 1, body: "hi".into(), omitted_size: 0 }),
                "{what}"
            );
        }
        let (_link, messages, sink) = link(&one, &two).await;
        messages.send(&mut vec![forward(1, "echo", b"")]).expect("capacity");
        until(|| sink.count() == 1).await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_bad_message_is_refused_alone_and_its_stream_continues() {
    in_time(async {
        let (one, two) = pair();
        let (_link, messages, sink) = link(&one, &two).await;
        let good = forward(1, "echo", b"").envelope;
        let cases = [
            (Envelope { session: Vec::new().into(), ..good.clone() }, "invalid-message"),
            (Envelope { principal: String::new(), ..good.clone() }, "invalid-message"),
            (Envelope { hops: 2, ..good.clone() }, "invalid-message"),
            (Envelope { id: String::new(), ..good.clone() }, "invalid-entity-id"),
            (Envelope { method: "m".repeat(256), ..good.clone() }, "invalid-message"),
            (Envelope { body: vec![0; 10_001].into(), ..good.clone() }, "message-too-large"),
        ];
        for (tag, (envelope, code)) in (1..).zip(cases) {
            messages.send(&mut vec![Forward { tag, envelope }]).expect("capacity");
            until(|| sink.count() == 1).await;
            let (found, reply) = sink.replies.lock().expect("replies").remove(0);
            assert_eq!((found, reply.outcome()), (tag, Outcome::NotRun));
            assert_eq!(reply.problem.expect("problem").code, code);
        }
        messages.send(&mut vec![forward(99, "echo", b"x")]).expect("capacity");
        until(|| sink.count() == 1).await;
        assert_eq!(&sink.replies.lock().expect("replies")[0].1.body[..], b"x");

        // The method is not UTF-8, but the tag and the sequence can still be decoded.
        let (_endpoint, connection) = greeted(&two, ALPN_PEER).await;
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        let mut bad = framed(forward(5, "QQQ", b""));
        let place = bad.windows(3).position(|part| part == b"QQQ").expect("method");
        bad[place] = 0xff;
        let open = peer_open::Stream::Forwarding(ForwardingOpen::default());
        let bytes = [frame(&PeerOpen { stream: Some(open) }), bad].concat();
        send.write_all(&bytes).await.expect("write");
        send.finish().expect("finish");
        let bytes = recv.read_to_end(10_000).await.expect("reply");
        let reply = ForwardedReply::decode(&bytes[4..]).expect("reply");
        assert_eq!((reply.tag, reply.reply.expect("reply").sequence), (5, 5));

        // A message that is nested too deeply is refused in the same way.
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        let mut envelope = forward(6, "echo", b"").envelope.encode_to_vec();
        envelope.extend(common::nested(1_000));
        let mut deep = vec![0x08, 6, 0x12];
        prost::encode_length_delimiter(envelope.len(), &mut deep).expect("capacity");
        deep.extend(envelope);
        let open = peer_open::Stream::Forwarding(ForwardingOpen::default());
        let bytes = [frame(&PeerOpen { stream: Some(open) }), common::framed(&deep)].concat();
        send.write_all(&bytes).await.expect("write");
        send.finish().expect("finish");
        let bytes = recv.read_to_end(10_000).await.expect("reply");
        let ForwardedReply { tag, reply } = ForwardedReply::decode(&bytes[4..]).expect("reply");
        let reply = reply.expect("reply");
        let problem = reply.problem.expect("problem");
        assert_eq!((tag, reply.sequence, &*problem.code), (6, 6, "invalid-message"));
        assert_eq!(problem.message, "unreadable: ForwardedMessage.envelope: nested too deeply");
        one.stop().await;
        two.stop().await;
    })
    .await;
}
