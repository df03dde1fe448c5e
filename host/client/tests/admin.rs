//! Streamed responses: they arrive as they are produced, end normally or with a problem, and may be dropped at any
//! time.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Node, Running, authority, in_time};
use ostraca_client::{
    DrainProgress, EntitiesRequest, Event, Events, RebalancePlan, ShardInfo, ShardMove,
};
use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::{Entities, Problem};
use ostraca_wire::server::{AdminOperation, AdminOutput, AdminUpdate, update_channel};
use tokio::sync::mpsc;

type Sender = mpsc::Sender<Result<AdminUpdate, Problem>>;

/// A node that gives the test the sender of a streamed response, so that the test sends the updates.
struct Stage {
    ca: ostraca_ca::Ca,
    running: Running,
    sender: Arc<Mutex<Option<Sender>>>,
}

impl Stage {
    fn start() -> Self {
        let ca = authority();
        let sender = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&sender);
        let node = Node::with_admin(
            |_, _| {},
            move |request| match request {
                AdminOperation::Drain { .. }
                | AdminOperation::Events(_)
                | AdminOperation::Rebalance => {
                    let (sender, answer) = update_channel();
                    *kept.lock().expect("sender") = Some(sender);
                    Ok(answer)
                }
                AdminOperation::Shards(_) => Ok(AdminOutput::Shards(
                    (1..=600).map(|shard| ShardInfo { shard, ..ShardInfo::default() }).collect(),
                )),
                AdminOperation::RebalancePlan => Ok(AdminOutput::RebalancePlan(RebalancePlan {
                    moves: vec![ShardMove::default(); 300],
                    blocked_reason: "h".into(),
                })),
                AdminOperation::Entities(request) => Ok(AdminOutput::Entities(Entities {
                    next_cursor: request.limit.to_string().into(),
                    ..Entities::default()
                })),
                _ => Err(problem(codes::UNKNOWN_REQUEST, "not in this test")),
            },
        );
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        Self { ca, running, sender }
    }

    async fn client(&self) -> ostraca_client::Client {
        common::client(&self.ca, &self.running.address).await
    }

    async fn sender(&self) -> Sender {
        loop {
            if let Some(sender) = self.sender.lock().expect("sender").take() {
                return sender;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn progress(left: u32) -> AdminUpdate {
    AdminUpdate::Drain(DrainProgress { remaining: left, ..DrainProgress::default() })
}

#[tokio::test]
async fn updates_arrive_as_they_are_made_and_then_end() {
    in_time(async {
        let stage = Stage::start();
        let client = stage.client().await;
        let mut updates = client.drain("n2", false).await.expect("a stream");
        let sender = stage.sender().await;
        for left in [2, 1, 0] {
            sender.send(Ok(progress(left))).await.expect("received");
            assert_eq!(updates.next().await.expect("update").expect("some").remaining, left);
        }
        drop(sender);
        assert_eq!(updates.next().await.expect("the end"), None);
        assert_eq!(updates.next().await.expect("still the end"), None);
        client.close().await;
        stage.running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_problem_ends_a_streamed_response() {
    in_time(async {
        let stage = Stage::start();
        let client = stage.client().await;
        let mut updates = client.drain("n2", false).await.expect("a stream");
        let sender = stage.sender().await;
        sender.send(Err(problem(codes::NO_OTHER_HOST, "none"))).await.expect("received");
        let error = updates.next().await.expect_err("a problem");
        assert_eq!(error.code(), "no-other-host");
        assert_eq!(updates.next().await.expect("the end"), None);
        let error = client.drain("", false).await.expect("a stream").next().await;
        assert_eq!(error.expect_err("refused").code(), "invalid-request");
        client.close().await;
        stage.running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn the_node_notices_that_a_client_stopped_listening() {
    in_time(async {
        let stage = Stage::start();
        let client = stage.client().await;
        let mut updates = client.events(true, 0).await.expect("a stream");
        let sender = stage.sender().await;
        let page = Events { events: vec![Event::default()], missed: 1, cluster_time_ms: 2 };
        sender.send(Ok(AdminUpdate::Events(page.clone()))).await.expect("received");
        assert_eq!(updates.next().await.expect("an update"), Some(page));
        drop(updates);
        sender.closed().await;
        client.close().await;
        stage.running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_stopping_node_does_not_wait_for_event_followers() {
    in_time(async {
        let stage = Stage::start();
        let client = stage.client().await;
        let mut updates = client.events(true, 0).await.expect("a stream");
        let sender = stage.sender().await;
        let stopping = Arc::clone(&stage.running.server);
        // This takes far less than the timeout: nothing waits for the reader.
        stopping.shut_down(Duration::from_secs(20)).await;
        sender.closed().await;
        assert_eq!(updates.next().await.expect_err("cut off").code(), "connection-lost");
        client.close().await;
        stage.running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn long_lists_arrive_in_pages_within_their_limits() {
    in_time(async {
        let stage = Stage::start();
        let client = stage.client().await;
        let shards = client.shards().await.expect("shards");
        assert!(shards.iter().map(|it| it.shard).eq(1..=600));
        let plan = client.rebalance_plan().await.expect("a plan");
        assert_eq!((plan.moves.len(), plan.blocked_reason.as_str()), (300, "h"));
        for (asked, given) in [(0, "100"), (7, "7"), (5_000, "1000")] {
            let request = EntitiesRequest { limit: asked, ..EntitiesRequest::default() };
            assert_eq!(client.entities(request).await.expect("a page").next_cursor, given);
        }
        client.close().await;
        stage.running.stop().await;
    })
    .await;
}
