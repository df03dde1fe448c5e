//! A client whose gateway is up but cut off from its cluster switches to another gateway, over real connections and in
//! real time.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::{Node, Running, authority, in_time, result};
use ostraca_ca::Ca;
use ostraca_client::{CallOptions, Client, ConnectOptions, Entity, Profile};
use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::{Outcome, Reply};
use ostraca_wire::server::{IncomingMessage, Ticket};

async fn impatient(ca: &Ca, addresses: &[&Running], leave_after: Duration) -> Client {
    let identity = ca.issue_client("test").expect("identity");
    let addresses = addresses.iter().map(|node| node.address.clone()).collect();
    let profile = Profile::new(addresses, ca.certificate_pem(), &identity);
    let options = ConnectOptions { stall_timeout: leave_after, ..ConnectOptions::default() };
    Client::connect_with(profile, options).await.expect("connect")
}

fn bounce(request: IncomingMessage) {
    let mut cut_off = problem(codes::NO_OWNER, "the shard has no live owner");
    cut_off.retryable = true;
    cut_off.retry_after_ms = 10;
    request.ticket.reply(Reply {
        outcome: Outcome::NotRun.into(),
        problem: Some(cut_off),
        ..Reply::default()
    });
}

fn answer(request: IncomingMessage) {
    request.ticket.reply(result(1, request.envelope.body.clone()));
}

const SOON: Duration = Duration::from_millis(300);

fn patient() -> CallOptions {
    CallOptions { timeout: Duration::from_secs(25), ..CallOptions::default() }
}

#[tokio::test]
async fn a_client_switches_from_a_gateway_that_rejects_everything() {
    in_time(async {
        let ca = authority();
        let cut_off = Running::start(&ca, &Node::new(|_, it| bounce(it)), "127.0.0.1:0");
        let well = Running::start(&ca, &Node::new(|_, it| answer(it)), "127.0.0.1:0");
        let client = impatient(&ca, &[&cut_off, &well], SOON).await;
        assert_eq!(client.connected_to().expect("connected").1.to_string(), cut_off.address);
        let entity = Entity::new("counter", "a");
        let answer = client.session().send(&entity, "add", "[1]", &patient()).await;
        assert_eq!(answer.expect("a reply from the other gateway").body.as_ref(), b"[1]");
        assert_eq!(client.connected_to().expect("connected").1.to_string(), well.address);
        client.close().await;
        cut_off.stop().await;
        well.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_switches_from_a_silent_gateway() {
    in_time(async {
        let ca = authority();
        let held: Mutex<Vec<Ticket>> = Mutex::default();
        let silent = Node::new(move |_, request| held.lock().expect("held").push(request.ticket));
        let silent = Running::start(&ca, &silent, "127.0.0.1:0");
        let well = Running::start(&ca, &Node::new(|_, it| answer(it)), "127.0.0.1:0");
        let client = impatient(&ca, &[&silent, &well], SOON).await;
        let entity = Entity::new("counter", "a");
        let answer = client.session().send(&entity, "add", "[1]", &patient()).await;
        assert_eq!(answer.expect("a reply from the other gateway").body.as_ref(), b"[1]");
        client.close().await;
        silent.stop().await;
        well.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_with_a_single_gateway_keeps_retrying_it() {
    in_time(async {
        let ca = authority();
        let bounces = Mutex::new(40);
        let node = Node::new(move |_, request| {
            let mut bounces = bounces.lock().expect("count");
            match *bounces {
                0 => answer(request),
                _ => {
                    *bounces -= 1;
                    bounce(request);
                }
            }
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = impatient(&ca, &[&running], Duration::from_millis(20)).await;
        let session = client.session();
        let entity = Entity::new("counter", "a");
        let calls: Vec<_> =
            (0..8).map(|_| session.send(&entity, "add", "[1]", &patient())).collect();
        for call in calls {
            call.await.expect("a reply in the end");
        }
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn one_slow_turn_among_replies_causes_no_gateway_switch() {
    in_time(async {
        let ca = authority();
        let slow: Mutex<Option<IncomingMessage>> = Mutex::default();
        let node = Node::new(move |_, request| {
            let mut slow = slow.lock().expect("slow");
            match request.envelope.method.as_str() {
                "slow" => *slow = Some(request),
                "end" => {
                    answer(request);
                    answer(slow.take().expect("the first copy, still unanswered"));
                }
                _ => answer(request),
            }
        });
        let node = Running::start(&ca, &node, "127.0.0.1:0");
        let other = Running::start(&ca, &Node::new(|_, it| bounce(it)), "127.0.0.1:0");
        let client = impatient(&ca, &[&node, &other], Duration::from_secs(3)).await;
        let entity = Entity::new("counter", "a");
        let session = client.session();
        let slow = session.send(&entity, "slow", "[1]", &patient());
        let busy = client.session();
        for _ in 0..50 {
            busy.send(&entity, "add", "[1]", &patient()).await.expect("a reply");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(client.connected_to().expect("connected").1.to_string(), node.address);
        busy.send(&entity, "end", "[1]", &patient()).await.expect("a reply");
        slow.await.expect("a reply");
        client.close().await;
        node.stop().await;
        other.stop().await;
    })
    .await;
}
