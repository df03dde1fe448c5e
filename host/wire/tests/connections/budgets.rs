//! What a node holds for its clients remains within its budgets, whatever they send and do not read.

use std::time::Duration;

use crate::common::{Node, envelope, in_time, limits, next, one};
use ostraca_wire::close_code::CloseCode;
use ostraca_wire::dial::ClientConnection;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::admin_request::Request;
use ostraca_wire::proto::subscription_frame::Frame;
use ostraca_wire::proto::{
    AdminRequest, AdminResponse, ComponentFragment, DeployRequest, Outcome, Problem, Subscribe,
    SubscriptionFrame, admin_response,
};
use ostraca_wire::{Error, Limits};
use prost::Message;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sends this many messages on a new stream without reading replies.
async fn flood(
    link: &ClientConnection,
    session: u8,
    count: u64,
    method: &str,
    body: &[u8],
) -> (FrameWriter, FrameReader) {
    let (mut writer, reader) = link.session([session; 16]).await.expect("stream");
    for sequence in 1..=count {
        writer.put(&envelope(sequence, method, body));
    }
    writer.flush().await.expect("sent");
    (writer, reader)
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not in time: {what}");
}

#[tokio::test]
async fn unread_replies_stay_within_the_budget() {
    in_time(async {
        let node = Node::start_with(Limits {
            connection_bytes: MIB,
            principal_bytes: 4 * MIB,
            reply_timeout: Duration::from_millis(200),
            ..limits()
        });
        let link = node.narrow_link_of("mallory").await;
        let mut streams = Vec::new();
        let mut most = 0;
        for session in 0..24 {
            // 614 MB of replies in total.
            streams.push(flood(&link, session, 256, "big", b"100000").await);
            most = most.max(node.server.charged_bytes());
        }
        until("replies are queued", || node.server.charged_bytes() >= MIB).await;
        for _ in 0..50 {
            most = most.max(node.server.charged_bytes());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(most < 4 * MIB, "{most} bytes were held");
        node.assert_responsive().await;
        // A client that reads nothing is disconnected, and all its charges are released.
        until("the streams end", || node.server.charged_bytes() == 0).await;
        let (_, mut reader) = streams.pop().expect("a stream");
        let ended = loop {
            match next(&mut reader).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, Error::Reset(CloseCode::ReplyTimeout)), "{ended:?}");
        node.assert_responsive().await;
        node.stop().await;
    })
    .await;
}

/// Subscribes to a channel that has this many pages of 100,000 bytes.
async fn subscribe(link: &ClientConnection, pages: u32) -> (FrameWriter, FrameReader) {
    let (r#type, id, channel) = ("t".into(), "i".into(), pages.to_string());
    let request = Subscribe { r#type, id, channel, ..Subscribe::default() };
    let (mut writer, reader) = link.subscribe(request).await.expect("stream");
    writer.flush().await.expect("sent");
    (writer, reader)
}

#[tokio::test]
async fn a_page_is_charged_until_it_is_taken() {
    in_time(async {
        let node = Node::start();
        let link = node.narrow_link_of("alice").await;
        let (_writer, mut reader) = subscribe(&link, 1).await;
        until("the page is charged", || node.server.charged_bytes() > 100_000).await;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(node.server.charged_bytes() > 100_000, "nobody has taken it");
        }
        reader.next().await.expect("a frame").expect("a page");
        until("it is taken", || node.server.charged_bytes() == 0).await;
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn unread_pages_stay_within_half_of_the_budget() {
    in_time(async {
        let node = Node::start_with(Limits { connection_bytes: 2 * MIB, ..limits() });
        let link = node.narrow_link_of("mallory").await;
        let mut streams = Vec::new();
        for _ in 0..20 {
            streams.push(subscribe(&link, 10).await);
        }
        until("half is used", || node.server.charged_bytes() > MIB - 110_000).await;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(node.server.charged_bytes() <= MIB, "{} bytes", node.server.charged_bytes());
        }
        // All of them are read, so that the connection's window is free.
        let reading = streams.into_iter().map(|(writer, mut reader)| async move {
            let _writer = writer;
            while let Ok(Some(frame)) = reader.next().await {
                let frame = SubscriptionFrame::decode(frame).expect("a frame");
                if let Some(Frame::Problem(problem)) = frame.frame {
                    return Some(problem);
                }
            }
            None
        });
        let refused = futures::future::join_all(
            reading.map(|reading| tokio::time::timeout(Duration::from_secs(2), reading)),
        );
        let refused: Vec<Problem> =
            refused.await.into_iter().filter_map(|ended| ended.ok().flatten()).collect();
        let problem = refused.first().expect("a refusal");
        assert_eq!(problem.details["setting"], "network.connection-bytes");
        assert!(problem.retryable && problem.retry_after_ms > 0, "{problem:?}");
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_reply_names_the_limit_that_was_reached() {
    in_time(async {
        let node = Node::start_with(Limits { connection_bytes: MIB, ..limits() });
        for (method, given_up) in [("big", Outcome::NotRun), ("large", Outcome::Unknown)] {
            let link = node.narrow_link_of("alice").await;
            let (_writer, mut reader) = flood(&link, 1, 200, method, b"100000").await;
            let (mut results, mut refused) = (0, 0);
            for _ in 0..200 {
                let reply = next(&mut reader).await.expect("a reply");
                if reply.outcome() == Outcome::Result {
                    results += 1;
                    continue;
                }
                refused += 1;
                let problem = reply.problem.clone().expect("a problem");
                assert_eq!((reply.outcome(), &*problem.code), (given_up, "overloaded"));
                assert_eq!(problem.details["setting"], "network.connection-bytes");
                assert!(problem.retryable && problem.retry_after_ms > 0, "{problem:?}");
            }
            assert!(results > 0 && refused > 0, "{results} and {refused}");
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_full_connection_is_not_read() {
    in_time(async {
        let node = Node::start_with(Limits { connection_bytes: 100 * KIB, ..limits() });
        let link = node.link_of("mallory").await;
        let body = vec![7; 9_000];
        let mut streams = Vec::new();
        for session in 0..20 {
            streams.push(flood(&link, session, 10, "hold", &body).await);
        }
        let held = || node.echo.held.lock().expect("held").len();
        until("the connection is full", || held() >= 10).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!((10..=14).contains(&held()), "{} messages are held", held());
        node.assert_responsive().await;
        // As messages are answered, more are read.
        let mut answered = 0;
        while answered < 200 {
            let batch = std::mem::take(&mut *node.echo.held.lock().expect("held"));
            answered += batch.len();
            drop(batch);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        for (_, reader) in &mut streams {
            for _ in 0..10 {
                next(reader).await.expect("a reply");
            }
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_principal_over_its_budget_is_refused_by_name() {
    in_time(async {
        let node = Node::start_with(Limits {
            connection_bytes: 100 * KIB,
            principal_bytes: 200 * KIB,
            ..limits()
        });
        let (mut open, mut links) = (Vec::new(), Vec::new());
        for connection in 0..3_u8 {
            let link = node.link_of("mallory").await;
            for session in 0..11 {
                open.push(flood(&link, connection * 20 + session, 1, "hold", &[7; 9_000]).await);
            }
            links.push(link);
        }
        until("both budgets are full", || node.server.charged_bytes() >= 200 * KIB).await;
        let link = node.link_of("mallory").await;
        let refused = one(&link, "echo", b"x").await.expect("a reply");
        let problem = refused.problem.clone().expect("a problem");
        assert_eq!((refused.outcome(), &*problem.code), (Outcome::NotRun, "overloaded"));
        assert_eq!(problem.details["setting"], "network.principal-bytes");
        assert!(problem.message.contains("client/mallory"), "{}", problem.message);
        // Another principal is still served.
        node.assert_responsive().await;
        // As messages are answered, more are read.
        let free = || {
            node.echo.held.lock().expect("held").clear();
            node.server.charged_bytes() == 0
        };
        until("the budgets are free", free).await;
        let reply = one(&link, "echo", b"x").await.expect("a reply");
        assert_eq!(reply.outcome(), Outcome::Result);
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn large_frames_cannot_block_each_other() {
    in_time(async {
        // The budget is smaller than the frames in progress; each must still complete.
        let node = Node::start_with(Limits {
            connection_bytes: 2 * MIB,
            max_message: 1 << 20,
            max_frame: (1 << 20) + 1_000,
            frame_timeout: Duration::from_secs(15),
            ..limits()
        });
        let link = node.link_of("alice").await;
        let body = vec![7; 1_000_000];
        let sessions = (0..20).map(|session| {
            let (link, body) = (&link, &body);
            async move {
                let (_writer, mut reader) = flood(link, session, 1, "echo", body).await;
                next(&mut reader).await.expect("a reply").body.len()
            }
        });
        for bytes in futures::future::join_all(sessions).await {
            assert_eq!(bytes, 1_000_000);
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn connections_and_streams_are_shared_among_principals() {
    in_time(async {
        let node = Node::start_with(Limits {
            max_connections: 8,
            principal_connections: 7,
            reserved_connections: 2,
            principal_streams: 3,
            ..limits()
        });
        let mut links = Vec::new();
        for _ in 0..6 {
            links.push(node.link_of("mallory").await);
        }
        // The last two connections are reserved for other principals.
        match node.try_link_of("mallory").await {
            Err(Error::Closed { code: CloseCode::TooManyConnections, reason }) => {
                assert!(reason.contains("network.reserved-connections"), "{reason}");
            }
            other => panic!("{:?}", other.err()),
        }
        let operator = node.link_of("operator").await;
        assert_eq!(one(&operator, "echo", b"x").await.expect("a reply").body, "x");

        let (link, other) = (&links[0], &links[1]);
        let held = [(link, 1), (link, 2), (other, 3)];
        let mut streams = Vec::new();
        for (link, session) in held {
            let (mut writer, mut reader) = link.session([session; 16]).await.expect("stream");
            writer.put(&envelope(1, "echo", b"x"));
            writer.flush().await.expect("sent");
            next(&mut reader).await.expect("a reply");
            streams.push((writer, reader));
        }
        let refused = one(other, "echo", b"x").await.expect_err("no stream left");
        assert!(matches!(refused, Error::Reset(CloseCode::TooManyStreams)), "{refused:?}");
        assert_eq!(one(&operator, "echo", b"x").await.expect("a reply").body, "x");
        node.stop().await;
    })
    .await;
}

/// Starts a deploy of ten bytes and sends the first byte.
async fn begin(link: &ClientConnection) -> (FrameWriter, FrameReader) {
    let (component_size, digest) = (10, vec![0; 32].into());
    let deploy = DeployRequest { component_size, digest, ..DeployRequest::default() };
    let request = AdminRequest { request: Some(Request::Deploy(deploy)) };
    let (mut writer, reader) = link.admin(request).await.expect("stream");
    writer.put(&ComponentFragment { data: vec![1].into() });
    writer.flush().await.expect("sent");
    (writer, reader)
}

async fn answer(reader: &mut FrameReader) -> Result<AdminResponse, Error> {
    let frame = reader.next().await?.ok_or_else(|| Error::ConnectionLost("no answer".into()))?;
    Ok(AdminResponse::decode(frame).expect("a response"))
}

fn one_upload() -> Limits {
    Limits { principal_uploads: 1, ..limits() }
}

async fn refusal(reader: &mut FrameReader) -> Problem {
    match answer(reader).await.expect("a response").response {
        Some(admin_response::Response::Problem(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_deploy_waits_for_an_upload_permit() {
    in_time(async {
        let upload_queue_timeout = Duration::from_secs(60);
        let node = Node::start_with(Limits { upload_queue_timeout, ..one_upload() });
        let link = node.link().await;
        let (mut first, mut first_answer) = begin(&link).await;
        let (mut second, mut second_answer) = begin(&link).await;
        second.put(&ComponentFragment { data: vec![1; 9].into() });
        second.flush().await.expect("sent");
        let early = tokio::time::timeout(Duration::from_millis(200), answer(&mut second_answer));
        assert!(early.await.is_err(), "the first holds the permit");
        first.put(&ComponentFragment { data: vec![1; 9].into() });
        first.flush().await.expect("sent");
        for reader in [&mut first_answer, &mut second_answer] {
            assert_eq!(refusal(reader).await.code, "invalid-digest");
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_stalled_upload_times_out_and_uses_one_permit() {
    in_time(async {
        let upload_fragment_timeout = Duration::from_secs(2);
        let places = Limits { max_uploads: 2, principal_uploads: 1, ..limits() };
        let node = Node::start_with(Limits { upload_fragment_timeout, ..places });
        let mallory = node.link_of("mallory").await;
        let (_first, mut stalled) = begin(&mallory).await;
        let (_second, mut refused) = begin(&mallory).await;
        let problem = refusal(&mut refused).await;
        assert_eq!(problem.code, "overloaded");
        assert_eq!(problem.details["setting"], "network.principal-uploads");
        assert!(problem.retryable);
        // The other permit is for other principals.
        let alice = node.link().await;
        let (mut writer, mut reader) = begin(&alice).await;
        writer.put(&ComponentFragment { data: vec![1; 9].into() });
        writer.flush().await.expect("sent");
        assert_eq!(refusal(&mut reader).await.code, "invalid-digest");
        let ended = answer(&mut stalled).await.expect_err("it stalled");
        assert!(matches!(ended, Error::Reset(CloseCode::UploadTimeout)), "{ended:?}");
        node.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answered_deploy_has_returned_its_permit() {
    in_time(async {
        let node =
            Node::start_with(Limits { upload_queue_timeout: Duration::ZERO, ..one_upload() });
        let link = node.link().await;
        for round in 0..3_000 {
            let (mut writer, mut reader) = begin(&link).await;
            writer.put(&ComponentFragment { data: vec![1; 9].into() });
            writer.flush().await.expect("sent");
            let problem = refusal(&mut reader).await;
            assert_eq!(problem.code, "invalid-digest", "round {round}: {}", problem.message);
        }
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_deploy_that_waits_after_its_upload_keeps_no_permit() {
    in_time(async {
        let node =
            Node::start_with(Limits { upload_queue_timeout: Duration::ZERO, ..one_upload() });
        let link = node.link().await;
        let mut waiting = Vec::new();
        // The deploys still wait, but their uploads are complete.
        for manifest in ["wait", "wait", "wait", ""] {
            let (manifest, digest) = (manifest.into(), blake3::hash(b"").as_bytes().to_vec());
            let deploy =
                DeployRequest { manifest, digest: digest.into(), ..DeployRequest::default() };
            let request = AdminRequest { request: Some(Request::Deploy(deploy)) };
            let (mut writer, reader) = link.admin(request).await.expect("stream");
            writer.flush().await.expect("sent");
            waiting.push((writer, reader));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (_writer, reader) = waiting.last_mut().expect("the last stream");
        match answer(reader).await.expect("a response").response {
            Some(admin_response::Response::Deployed(_)) => {}
            other => panic!("{other:?}"),
        }
        drop((waiting, link));
        node.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_trickling_upload_ends_at_its_deadline() {
    in_time(async {
        let upload_timeout = Duration::from_secs(1);
        let node = Node::start_with(Limits { upload_timeout, ..limits() });
        let link = node.link().await;
        let (mut writer, mut reader) = begin(&link).await;
        let trickle = async {
            // Each fragment is in time, but the whole upload is not.
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(200)).await;
                writer.put(&ComponentFragment { data: vec![1].into() });
                if writer.flush().await.is_err() {
                    return;
                }
            }
        };
        let (ended, ()) = tokio::join!(answer(&mut reader), trickle);
        let ended = ended.expect_err("it trickled");
        assert!(matches!(ended, Error::Reset(CloseCode::UploadTimeout)), "{ended:?}");
        node.stop().await;
    })
    .await;
}
