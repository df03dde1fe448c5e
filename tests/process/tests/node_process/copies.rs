//! A message id that is sent twice gets one turn and one reply (R17, R18; promise 4).

use std::time::Duration;

use ostraca_client::{
    CallError, CallOptions, Client, ConnectOptions, Entity, MessageId, MessageKind, Reply, Session,
};
use ostraca_process_tests::node_dir::{deploy_example, session_id};
use ostraca_process_tests::proxy::{Network, Rule};
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_wire::Limits;

async fn start(name: &str) -> (NodeDir, NodeProcess, Client) {
    let home = NodeDir::init(name).expect("init");
    let node = NodeProcess::start(&home).expect("start");
    let client = connect(&home, &node).await;
    deploy_example(&client, "counter").await.expect("deploy");
    (home, node, client)
}

async fn connect(home: &NodeDir, node: &NodeProcess) -> Client {
    Client::connect(home.profile(node.address).expect("profile")).await.expect("connect")
}

fn again(id: MessageId) -> CallOptions {
    let again = Some(id);
    CallOptions {
        kind: MessageKind::Command,
        timeout: Duration::from_secs(60),
        resend: again,
        ..CallOptions::default()
    }
}

fn same(one: &Reply, other: &Reply) {
    assert_eq!((&one.body, one.version, one.id), (&other.body, other.version, other.id));
}

async fn value(session: &Session, entity: &Entity) -> String {
    let answer = session.query(entity, "get", "").await.expect("query");
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_on_two_connections_at_once_runs_once() {
    let (home, node, one) = start("twice").await;
    let two = connect(&home, &node).await;
    let reader = one.session();
    for number in 0..200 {
        let entity = Entity::new("counter", format!("{}", number % 7));
        let before: u64 = value(&reader, &entity).await.parse().expect("number");
        let id = session_id(number);
        let calls = [&one, &two].map(|client| {
            let message = MessageId { session: id, sequence: 1, created_ms: 1, utc_ms: 0 };
            client.session_with_id(id, 1).send(&entity, "add", "{\"by\":3}", &again(message))
        });
        let [a, b] = calls;
        let (a, b) = tokio::join!(a, b);
        same(&a.expect("answer"), &b.expect("answer"));
        assert_eq!(value(&reader, &entity).await, (before + 3).to_string());
    }
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_after_a_kill_gets_the_recorded_reply() {
    let (home, node, client) = start("after-kill").await;
    let entity = Entity::new("counter", "a");
    let session = client.session_with_id(session_id(1), 1);
    let first = session.command(&entity, "add", "{\"by\":5}").await.expect("answer");
    node.kill_9().expect("kill");
    let node = NodeProcess::start(&home).expect("start again");
    let second =
        session.send(&entity, "add", "{\"by\":5}", &again(first.id)).await.expect("answer");
    same(&first, &second);
    // Another process of the same client knows only the id.
    let other = connect(&home, &node).await;
    let third = other
        .session_with_id(session_id(1), 2)
        .send(&entity, "add", "{\"by\":5}", &again(first.id))
        .await;
    same(&first, &third.expect("answer"));
    assert_eq!(value(&session, &entity).await, "5");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_after_a_lost_reply_gets_the_recorded_reply() {
    let (home, node, client) = start("lost-reply").await;
    let network = Network::before(node.address).expect("network");
    let limits = Limits {
        idle_timeout: Duration::from_millis(800),
        keep_alive_interval: Duration::from_millis(200),
        ..ConnectOptions::default().limits
    };
    let options = ConnectOptions { limits, ..ConnectOptions::default() };
    let profile = home.profile(network.front(0)).expect("profile");
    let far = Client::connect_with(profile, options).await.expect("connect");
    let session = far.session_with_id(session_id(1), 1);
    let entity = Entity::new("counter", "a");
    let first = session.command(&entity, "add", "{\"by\":1}").await.expect("answer");
    assert_eq!(first.body, "1");
    let mut expected = 1;
    for sequence in 2..=6 {
        // The message is sent, and the network is cut before or after the node runs it.
        let id = MessageId { sequence, ..first.id };
        let call = session.send(&entity, "add", "{\"by\":1}", &again(id));
        tokio::time::sleep(Duration::from_micros(300 * sequence)).await;
        network.around(0, Rule::CUT);
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        network.forget(0);
        network.heal();
        let answer = call.await.expect("answer");
        expected += 1;
        assert_eq!(answer.body, expected.to_string(), "sequence {sequence}");
    }
    assert_eq!(value(&client.session(), &entity).await, expected.to_string());
    far.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_with_another_body_is_an_error_and_runs_nothing() {
    let (_home, _node, client) = start("id-reused").await;
    let entity = Entity::new("counter", "a");
    let session = client.session_with_id(session_id(1), 1);
    let first = session.command(&entity, "add", "{\"by\":5}").await.expect("answer");
    let refused =
        session.send(&entity, "add", "{\"by\":6}", &again(first.id)).await.expect_err("refused");
    assert!(matches!(refused, CallError::NotRun { .. }), "{refused:?}");
    assert_eq!(refused.code(), "id-reused");
    same(
        &first,
        &session.send(&entity, "add", "{\"by\":5}", &again(first.id)).await.expect("answer"),
    );
    assert_eq!(value(&session, &entity).await, "5");
    client.close().await;
}
