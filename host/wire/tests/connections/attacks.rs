//! Bad input from clients with a certificate: it gets a stable code, affects only its own stream or connection, and
//! another client is served right after it.

use std::time::Duration;

use crate::common::{Node, envelope, frame, framed, in_time, nested, next, one, session_open};
use ostraca_wire::close_code::CloseCode;
use ostraca_wire::dial::Dialer;
use ostraca_wire::framed::FrameReader;
use ostraca_wire::hello;
use ostraca_wire::proto::admin_request::Request;
use ostraca_wire::proto::{
    AdminRequest, AdminResponse, ComponentFragment, DeployRequest, Envelope, Open, Outcome,
    SessionOpen, admin_response, open,
};
use ostraca_wire::{Error, Limits};
use prost::Message;

/// Sends bytes on a stream after the hellos, and returns the code with which the node resets the stream.
async fn reset_after(node: &Node, bytes: &[u8], finish: bool) -> Option<CloseCode> {
    let (_endpoint, connection) = node.greeted().await;
    let (mut send, mut recv) = connection.open_bi().await.expect("stream");
    send.write_all(bytes).await.expect("write");
    if finish {
        send.finish().expect("finish");
    }
    let code = match recv.read_to_end(1 << 20).await {
        Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => {
            CloseCode::from_number(code.into_inner())
        }
        other => panic!("no reset: {other:?}"),
    };
    // The connection itself stays open.
    let (mut send, mut recv) = connection.open_bi().await.expect("another stream");
    send.write_all(&session_open()).await.expect("write");
    send.write_all(&frame(&envelope(1, "echo", b"x"))).await.expect("write");
    send.finish().expect("finish");
    assert!(recv.read_to_end(10_000).await.expect("reply").len() > 4);
    code
}

#[tokio::test]
async fn a_malformed_stream_is_reset_alone_with_a_stable_code() {
    in_time(async {
        let node = Node::start();
        let with = |more: &[u8]| [session_open(), more.to_vec()].concat();
        let no_sequence = frame(&Envelope { sequence: 0, ..envelope(1, "echo", b"") });
        let short = Open {
            stream: Some(open::Stream::Session(SessionOpen { session: vec![1; 15].into() })),
        };
        let second = hello::client_hello(None, &Limits::default());
        let second = Open { stream: Some(open::Stream::Hello(second)) };
        let cases: [(&str, Vec<u8>, bool, CloseCode); 12] = [
            ("4 GiB at once", vec![0xff; 4], false, CloseCode::FrameTooLarge),
            ("4 GiB after a frame", with(&[0xff; 5]), false, CloseCode::FrameTooLarge),
            ("one byte too many", with(&12_001_u32.to_be_bytes()), false, CloseCode::FrameTooLarge),
            ("garbage", b"\0\0\0\x05GET /".to_vec(), false, CloseCode::InvalidFrame),
            ("garbage after a frame", with(b"\0\0\0\x05GET /"), false, CloseCode::InvalidFrame),
            ("no sequence", with(&no_sequence), false, CloseCode::InvalidFrame),
            ("empty frame", with(&[0; 4]), false, CloseCode::InvalidFrame),
            ("half a frame, finished", with(&[0, 0, 0, 9, 1]), true, CloseCode::TruncatedFrame),
            ("half a frame, abandoned", with(&[0, 0, 0, 9, 1]), false, CloseCode::FrameTimeout),
            ("an empty stream", Vec::new(), true, CloseCode::TruncatedFrame),
            ("a short session id", frame(&short), false, CloseCode::UnexpectedFrame),
            ("a second hello", frame(&second), false, CloseCode::UnexpectedFrame),
        ];
        for (what, bytes, finish, code) in cases {
            assert_eq!(reset_after(&node, &bytes, finish).await, Some(code), "{what}");
        }
        node.assert_responsive().await;
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn abandoned_streams_end_at_their_deadline_and_block_no_one() {
    in_time(async {
        let node = Node::start();
        let (_endpoint, connection) = node.greeted().await;
        let mut left = Vec::new();
        for _ in 0..99 {
            let (mut send, recv) = connection.open_bi().await.expect("stream");
            // One byte, so that the node learns of the stream.
            send.write_all(&[0]).await.expect("write");
            left.push((send, recv));
        }
        node.assert_responsive().await;
        for (_send, mut recv) in left {
            match recv.read_to_end(10).await {
                Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => {
                    let code = CloseCode::from_number(code.into_inner());
                    let deadlines = [Some(CloseCode::OpenTimeout), Some(CloseCode::FrameTimeout)];
                    assert!(deadlines.contains(&code), "{code:?}");
                }
                other => panic!("no reset: {other:?}"),
            }
        }
        node.assert_responsive().await;
        node.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refused_hello_ends_no_stream_before_its_reason() {
    in_time(async {
        let node = Node::start();
        let mut other = hello::client_hello(Some(node.ca.cluster()), &Limits::default());
        other.cluster_id = vec![0; 16].into();
        let other = frame(&Open { stream: Some(open::Stream::Hello(other)) });
        for _ in 0..300 {
            let (_endpoint, connection) = node.raw().await;
            let (mut send, mut recv) = connection.open_bi().await.expect("stream");
            send.write_all(&other).await.expect("write");
            match recv.read_to_end(10_000).await {
                Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(why))) => {
                    let code = Error::from(why).code();
                    assert_eq!(code, CloseCode::ClusterMismatch.code());
                }
                other => panic!("{other:?}"),
            }
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn little_is_received_before_the_hello() {
    in_time(async {
        let node = Node::start();
        let (_endpoint, connection) = node.raw().await;
        // The rest of the hello never comes.
        let (mut hello, _recv) = connection.open_bi().await.expect("stream");
        hello.write_all(&[0, 0]).await.expect("write");
        let (mut send, _recv) = connection.open_bi().await.expect("stream");
        let mut taken = 0;
        let closed = loop {
            match send.write(&[0; 4096]).await {
                Ok(bytes) => taken += bytes,
                Err(quinn::WriteError::ConnectionLost(why)) => break Error::from(why),
                Err(other) => panic!("{other:?}"),
            }
            assert!(taken < 256 << 10, "the node took {taken} bytes of a stranger");
        };
        assert_eq!(closed.code(), CloseCode::FrameTimeout.code());
        // Clients that were admitted may send more.
        let (_endpoint, connection) = node.greeted().await;
        while connection.stats().frame_rx.max_data == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_without_a_valid_hello_is_closed_with_why() {
    in_time(async {
        let node = Node::start();
        let closed = async |first: Option<Vec<u8>>| {
            let (_endpoint, connection) = node.raw().await;
            if let Some(first) = first {
                let (mut send, _recv) = connection.open_bi().await.expect("stream");
                send.write_all(&first).await.expect("write");
            }
            match Error::from(connection.closed().await) {
                Error::Closed { code, reason } => (code, reason),
                other => panic!("{other:?}"),
            }
        };
        let own = || hello::client_hello(Some(node.ca.cluster()), &Limits::default());
        let open = |hello| Some(frame(&Open { stream: Some(open::Stream::Hello(hello)) }));
        assert_eq!(closed(None).await.0, CloseCode::HelloTimeout);
        assert_eq!(closed(Some(vec![0xff; 100])).await.0, CloseCode::FrameTooLarge);
        assert_eq!(closed(Some(session_open())).await.0, CloseCode::InvalidHello);
        let mut newer = own();
        (newer.protocol_min, newer.protocol_max) = (2, 3);
        assert_eq!(closed(open(newer)).await.0, CloseCode::UnsupportedProtocol);
        let mut other = own();
        other.cluster_id = vec![0; 16].into();
        assert_eq!(closed(open(other)).await.0, CloseCode::ClusterMismatch);
        let mut demanding = own();
        demanding.required_features.push("time-travel".into());
        let (code, reason) = closed(open(demanding)).await;
        assert_eq!(code, CloseCode::UnknownFeature);
        assert!(reason.contains("time-travel"), "{reason}");
        node.assert_responsive().await;
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_bad_message_is_refused_alone_and_its_session_continues() {
    in_time(async {
        let node = Node::start();
        let link = node.link().await;
        let (mut writer, mut reader) = link.session([3; 16]).await.expect("session");
        let good = envelope(1, "echo", b"");
        let cases = [
            (Envelope { id: String::new(), ..good.clone() }, "invalid-entity-id"),
            (Envelope { id: "x".repeat(513), ..good.clone() }, "invalid-entity-id"),
            (Envelope { r#type: String::new(), ..good.clone() }, "invalid-message"),
            (Envelope { method: "m".repeat(256), ..good.clone() }, "invalid-message"),
            (Envelope { after: 1, ..good.clone() }, "invalid-message"),
            (Envelope { settled: 2, ..good.clone() }, "invalid-message"),
            (Envelope { kind: 9, ..good.clone() }, "invalid-message"),
            (Envelope { created_ms: 0, ..good.clone() }, "invalid-message"),
            (Envelope { session: vec![4; 16].into(), ..good.clone() }, "invalid-message"),
            (Envelope { body: vec![0; 10_001].into(), ..good.clone() }, "message-too-large"),
        ];
        for (bad, code) in cases {
            writer.put(&bad);
            writer.flush().await.expect("write");
            let reply = next(&mut reader).await.expect("reply");
            assert_eq!(reply.outcome(), Outcome::NotRun);
            assert_eq!(reply.problem.expect("problem").code, code);
        }
        // A forged principal is ignored.
        let body = vec![7; 10_000];
        let forged = Envelope { principal: "client/root".into(), ..envelope(2, "echo", &body) };
        writer.put(&forged);
        writer.flush().await.expect("write");
        let reply = next(&mut reader).await.expect("reply");
        assert_eq!((reply.sequence, &reply.body[..]), (2, &body[..]));
        assert_eq!(reply.content_type, "client/alice");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_id_that_is_not_utf8_is_refused_alone() {
    in_time(async {
        let node = Node::start();
        let (_endpoint, connection) = node.greeted().await;
        let (mut send, mut recv) = connection.open_bi().await.expect("stream");
        let mut bad = frame(&Envelope { id: "QQQ".into(), ..envelope(1, "echo", b"") });
        let place = bad.windows(3).position(|part| part == b"QQQ").expect("id");
        bad[place] = 0xff;
        let bytes = [session_open(), bad, frame(&envelope(2, "echo", b"next"))].concat();
        send.write_all(&bytes).await.expect("write");
        send.finish().expect("finish");
        let replies = recv.read_to_end(10_000).await.expect("replies");
        let text = String::from_utf8_lossy(&replies);
        assert!(text.contains("invalid-message") && text.contains("next"), "{text}");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_ticket_that_is_dropped_answers_unknown() {
    in_time(async {
        let node = Node::start();
        let reply = one(&node.link().await, "drop", b"").await.expect("reply");
        assert_eq!(reply.outcome(), Outcome::Unknown);
        assert_eq!(reply.problem.expect("problem").code, "abandoned");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_beyond_its_window_is_not_read_and_others_are() {
    in_time(async {
        let node = Node::start();
        let link = node.link().await;
        let (mut writer, mut reader) = link.session([3; 16]).await.expect("session");
        for sequence in 1..=1_000 {
            writer.put(&envelope(sequence, "hold", b""));
        }
        writer.flush().await.expect("write");
        let held = || node.echo.held.lock().expect("held").len();
        while held() < 256 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        node.assert_responsive().await;
        assert_eq!(held(), 256);
        // As soon as the window has capacity, reading continues.
        for sequence in 1..=1_000 {
            let request = loop {
                let first = {
                    let mut held = node.echo.held.lock().expect("held");
                    if held.is_empty() { None } else { Some(held.remove(0)) }
                };
                match first {
                    Some(request) => break request,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            };
            assert_eq!(request.ticket.sequence(), sequence);
            drop(request);
            assert_eq!(next(&mut reader).await.expect("reply").sequence, sequence);
            assert!(held() <= 256);
        }
        node.stop().await;
    })
    .await;
}

async fn deploy(
    node: &Node,
    deploy: DeployRequest,
    chunks: &[Vec<u8>],
) -> Result<AdminResponse, Error> {
    let request = AdminRequest { request: Some(Request::Deploy(deploy)) };
    let (mut writer, mut reader) = node.link().await.admin(request).await?;
    for data in chunks {
        writer.put(&ComponentFragment { data: data.clone().into() });
    }
    // The node does not read a refused upload to its end.
    let _ = writer.flush().await;
    writer.finish();
    let frame = reader.next().await?.ok_or_else(|| Error::ConnectionLost("no answer".into()))?;
    Ok(AdminResponse::decode(frame).expect("response"))
}

#[tokio::test]
async fn a_component_is_accepted_only_whole_with_its_digest() {
    in_time(async {
        let node = Node::start();
        let component = vec![42_u8; 30_000];
        let good = DeployRequest {
            manifest: "counter".into(),
            component_size: 30_000,
            digest: blake3::hash(&component).as_bytes().to_vec().into(),
            expected_revision: Some(0),
            ..DeployRequest::default()
        };
        let chunks: Vec<_> = component.chunks(10_000).map(<[u8]>::to_vec).collect();
        let answer = deploy(&node, good.clone(), &chunks).await.expect("response");
        let Some(admin_response::Response::Deployed(deployed)) = answer.response else {
            panic!("{answer:?}")
        };
        assert_eq!((deployed.r#type.as_str(), deployed.revision), ("counter", 30_000));
        let code = |answer: AdminResponse| match answer.response {
            Some(admin_response::Response::Problem(problem)) => problem.code,
            other => panic!("{other:?}"),
        };
        let large = DeployRequest { component_size: 1 << 40, ..good.clone() };
        assert_eq!(code(deploy(&node, large, &[]).await.expect("response")), "component-too-large");
        let other = DeployRequest { digest: vec![0; 32].into(), ..good.clone() };
        assert_eq!(code(deploy(&node, other, &chunks).await.expect("response")), "invalid-digest");
        let error = deploy(&node, good.clone(), &chunks[..2]).await.expect_err("half");
        assert_eq!(error.code(), "truncated-frame");
        let error = deploy(&node, DeployRequest { component_size: 5, ..good }, &chunks).await;
        assert_eq!(error.expect_err("too many bytes").code(), "unexpected-frame");
        node.assert_responsive().await;
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn long_responses_arrive_in_pages() {
    in_time(async {
        let node = Node::start();
        let request = Request::Deployments(Default::default());
        let request = AdminRequest { request: Some(request) };
        let (mut writer, mut reader) = node.link().await.admin(request).await.expect("stream");
        writer.flush().await.expect("write");
        let mut pages = Vec::new();
        while let Some(frame) = reader.next().await.expect("page") {
            let page = AdminResponse::decode(frame).expect("page");
            let Some(admin_response::Response::Deployments(all)) = page.response else {
                panic!("no page")
            };
            pages.push((all.deployments.len(), page.more));
        }
        assert_eq!(pages, [(256, true), (256, true), (88, false)]);
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_setting() {
    let node = Node::start();
    let error = ostraca_wire::endpoint::bind(node.address, "listen", &Limits::default(), None)
        .expect_err("in use");
    assert_eq!(error.code(), "address-in-use");
    let text = error.to_string();
    assert!(text.contains(&node.address.port().to_string()) && text.contains("listen"), "{text}");
    node.stop().await;
}

#[tokio::test]
async fn a_stopping_node_finishes_messages_and_says_why_it_closes() {
    in_time(async {
        let node = Node::start();
        let link = node.link().await;
        let (mut writer, mut reader) = link.session([3; 16]).await.expect("session");
        writer.put(&envelope(1, "hold", b""));
        writer.flush().await.expect("write");
        while node.echo.held.lock().expect("held").is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let stopping = {
            let (server, echo) = (node.server.clone(), node.echo.clone());
            async move {
                let answer = async {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    echo.held.lock().expect("held").clear();
                };
                tokio::join!(server.shut_down(Duration::from_secs(5)), answer);
            }
        };
        let hearing = async {
            let reply = next(&mut reader).await.expect("the reply to the accepted message");
            assert_eq!(reply.sequence, 1);
            match link.closed().await {
                Error::Closed { code, .. } => assert_eq!(code, CloseCode::ShuttingDown),
                other => panic!("{other:?}"),
            }
        };
        tokio::join!(stopping, hearing);
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn responses_fit_the_frame_limit_of_the_client() {
    in_time(async {
        let node = Node::start();
        let narrow = async |max_frame: u32| {
            let limits = Limits { max_frame, ..Limits::default() };
            let (identity, trust) = (node.ca.issue_client("alice"), node.ca.trust());
            let (identity, trust) = (identity.expect("identity"), trust.expect("trust"));
            let dialer = Dialer::new(Some(&identity), &trust, node.address, limits);
            dialer.expect("dialer").connect(node.address).await
        };
        // The reader refuses larger frames.
        let link = narrow(4_096).await.expect("link");
        let asked = async |request: Request| {
            let request = AdminRequest { request: Some(request) };
            let (mut writer, mut reader) = link.admin(request).await.expect("stream");
            writer.flush().await.expect("sent");
            let mut pages = Vec::new();
            while let Some(frame) = reader.next().await.expect("a frame that fits") {
                pages.push(AdminResponse::decode(frame).expect("a response"));
            }
            pages
        };
        let pages = asked(Request::Deployments(Default::default())).await;
        let count = |page: &AdminResponse| match &page.response {
            Some(admin_response::Response::Deployments(page)) => page.deployments.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(pages.iter().map(count).sum::<usize>(), 600);
        let last = pages.len() - 1;
        assert!(pages.iter().enumerate().all(|(at, page)| page.more == (at < last)));
        let code = |pages: Vec<AdminResponse>| match &pages[0].response {
            Some(admin_response::Response::Problem(problem)) => problem.code.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(asked(Request::Methods(Default::default())).await), "invalid-request");
        assert_eq!(code(asked(Request::Status(Default::default())).await), "reply-too-large");
        match narrow(1_000).await {
            Err(Error::Closed { code: CloseCode::InvalidHello, reason }) => {
                assert!(reason.contains("max_frame"), "{reason}");
            }
            other => panic!("{:?}", other.err()),
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_refusal_names_the_field_as_the_protocol_does() {
    in_time(async {
        let node = Node::start();
        let (_endpoint, connection) = node.greeted().await;
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        let mut bytes = frame(&envelope(1, "echo", b"x"));
        // The type is not UTF-8.
        let at = bytes.windows(4).position(|part| part == b"echo").expect("the type");
        bytes[at] = 0xff;
        send.write_all(&[session_open(), bytes].concat()).await.expect("write");
        let mut reader = FrameReader::new(recv, 10_000, Duration::from_secs(5));
        let problem = next(&mut reader).await.expect("a reply").problem.expect("a problem");
        assert_eq!(problem.code, "invalid-message");
        assert!(problem.message.contains("Envelope.type"), "{}", problem.message);
        assert!(!problem.message.contains("rotobuf"), "{}", problem.message);
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_deeply_nested_message_is_refused_alone() {
    in_time(async {
        let node = Node::start();
        let (_endpoint, connection) = node.greeted().await;
        let (mut send, recv) = connection.open_bi().await.expect("stream");
        let deep = [envelope(1, "echo", b"x").encode_to_vec(), nested(1_000)].concat();
        let bytes = [session_open(), framed(&deep), frame(&envelope(2, "echo", b"next"))].concat();
        send.write_all(&bytes).await.expect("write");
        let mut reader = FrameReader::new(recv, 10_000, Duration::from_secs(5));
        let refused = next(&mut reader).await.expect("a reply");
        let problem = refused.problem.clone().expect("a problem");
        assert_eq!((refused.sequence, refused.outcome()), (1, Outcome::NotRun));
        assert_eq!(
            (&*problem.code, &*problem.message),
            ("invalid-message", "unreadable: nested too deeply")
        );
        assert_eq!(next(&mut reader).await.expect("a reply").body, "next");
        node.stop().await;
    })
    .await;
}
