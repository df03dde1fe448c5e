//! Calls between nodes: in order, concurrent, bounded, and each of them ends.

use std::time::Duration;

use crate::common::in_time;
use crate::common::peers::{PeerNode, pair, until};
use bytes::Bytes;
use futures::future::join_all;
use ostraca_wire::Error;
use ostraca_wire::peer::rpc_client::RpcClient;
use ostraca_wire::peer::{Alpn, PeerLink, StreamKind};

async fn calls(from: &PeerNode, to: &PeerNode) -> (PeerLink, RpcClient) {
    let link = from.to(to, Alpn::Control).await.expect("link");
    let calls = link.open_rpc(StreamKind::ClusterStore).await.expect("calls");
    (link, calls)
}

#[tokio::test]
async fn calls_are_handled_in_the_order_in_which_they_were_made() {
    in_time(async {
        let (one, two) = pair();
        let (_link, calls) = calls(&one, &two).await;
        for round in 0..20_u8 {
            let bodies: Vec<Bytes> = (0..60).map(|n| Bytes::from(vec![round, n])).collect();
            let mut responses: Vec<_> =
                bodies.iter().map(|body| calls.call(body.clone())).collect();
            // The order in which they are awaited does not matter, nor does one that is never awaited.
            drop(responses.remove(30));
            responses.reverse();
            let responses: Vec<_> =
                join_all(responses).await.into_iter().map(Result::unwrap).collect();
            let mut expected = bodies.clone();
            expected.remove(30);
            expected.reverse();
            assert_eq!(responses, expected);
            until(|| two.streams.calls() == bodies.len()).await;
            assert_eq!(std::mem::take(&mut *two.streams.called.lock().expect("called")), bodies);
        }
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_response_does_not_wait_for_earlier_ones() {
    in_time(async {
        let (one, two) = pair();
        let (_link, calls) = calls(&one, &two).await;
        let held = calls.call("hold".into());
        assert_eq!(calls.call("quick".into()).await.expect("response"), "quick");
        two.streams.release.notify_one();
        assert_eq!(held.await.expect("response"), "hold");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_broken_link_ends_every_request_and_accepts_no_more() {
    in_time(async {
        let (one, two) = pair();
        let (link, calls) = calls(&one, &two).await;
        let held: Vec<_> = (0..20).map(|_| calls.call("hold".into())).collect();
        until(|| two.streams.calls() == 20).await;
        link.close();
        for answer in join_all(held).await {
            let error = answer.expect_err("lost");
            assert!(matches!(error, Error::ConnectionLost(_)), "{error:?}");
        }
        calls.closed().await;
        let error = calls.call("late".into()).await.expect_err("closed");
        assert!(matches!(error, Error::NotSent(_)) && error.is_retryable(), "{error:?}");
        until(|| !two.streams.ended.lock().expect("ended").is_empty()).await;

        // The same happens if the other node stops.
        let (_link, calls) = self::calls(&one, &two).await;
        let held = calls.call("hold".into());
        until(|| two.streams.calls() == 21).await;
        let streams = two.streams.clone();
        two.stop().await;
        assert!(matches!(held.await.expect_err("lost"), Error::ConnectionLost(_)));
        // Its handler, which never finishes, delays nothing.
        assert_eq!(streams.ended.lock().expect("ended").len(), 2);
        one.stop().await;
    })
    .await;
}

#[tokio::test]
async fn requests_never_handed_over_are_reported_as_not_sent() {
    in_time(async {
        let (one, two) = pair();
        let (_link, calls) = calls(&one, &two).await;
        // On a single-threaded runtime, the stream's task has not run since.
        let late = calls.call("late".into());
        drop(calls);
        let error = late.await.expect_err("closed");
        assert!(matches!(error, Error::NotSent(_)), "{error:?}");
        assert_eq!(two.streams.calls(), 0);
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn beyond_the_bound_a_call_is_refused_by_name_and_not_sent() {
    in_time(async {
        let (one, two) = pair();
        let (_link, calls) = calls(&one, &two).await;
        let held: Vec<_> = (0..64).map(|_| calls.call("hold".into())).collect();
        let error = calls.call("more".into()).await.expect_err("refused");
        assert_eq!(error.code(), "overloaded");
        assert!(
            error.to_string().contains("`peers.in-flight-requests`") && error.is_retryable(),
            "{error}"
        );
        until(|| two.streams.calls() == 64).await;
        two.streams.release.notify_waiters();
        join_all(held).await.into_iter().for_each(|answer| assert!(answer.is_ok()));
        calls.call("more".into()).await.expect("capacity again");

        let error = calls.call(vec![0; 100_000].into()).await.expect_err("refused");
        assert_eq!(error.code(), "frame-too-large");
        assert!(error.to_string().starts_with("a call of 100000 bytes"), "{error}");
        let error = calls.call("large".into()).await.expect_err("too large");
        assert!(error.to_string().starts_with("an answer of 200000 bytes"), "{error}");
        calls.call("more".into()).await.expect("the stream continues");
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_stopping_node_answers_the_requests_it_accepted() {
    in_time(async {
        let (one, two) = pair();
        let (_link, calls) = calls(&one, &two).await;
        let held = calls.call("hold".into());
        until(|| two.streams.calls() == 1).await;
        let stopping = {
            let server = two.server.clone();
            tokio::spawn(async move { server.shut_down(Duration::from_secs(3)).await })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        two.streams.release.notify_one();
        assert_eq!(held.await.expect("response"), "hold");
        stopping.await.expect("stopped");
        calls.closed().await;
        one.stop().await;
        two.stop().await;
    })
    .await;
}
