//! Stale gateways: one forwards an old message, another cannot reach the rest of its cluster (R17).

use std::time::Duration;

use ostraca_client::{CallError, CallOptions, Client, ConnectOptions, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::{ALL, Options};
use ostraca_process_tests::node_dir::{deploy_example, session_id};
use ostraca_process_tests::proxy::{Endpoint, Rule};

fn call_options(deadline: Duration) -> CallOptions {
    CallOptions { kind: MessageKind::Command, timeout: deadline, ..CallOptions::default() }
}

async fn value(client: &Client, entity: &Entity) -> String {
    let answer = client.session().query(entity, "get", "").await.expect("query");
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// A paused gateway does not count the time that messages spend in the machine's buffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_copy_buffered_at_a_paused_gateway_runs_only_once() {
    let settings = "[entities]\nmax-lanes = 2\n".into();
    let roles = [ALL, "gateway"];
    let options =
        Options { settings, proxied: false, shards: 8, ..Options::new("buffers", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let near = cluster.client(0).await.expect("client");
    deploy_example(&near, "counter").await.expect("deploy");
    let entity = Entity::new("counter", "one");
    let far = Client::connect_with(cluster.profile(1), ConnectOptions::default());
    let far = far.await.expect("client");
    assert_eq!(far.connected_to().expect("connected").0, "n2");
    let session = far.session_with_id(session_id(1), 1);
    session.query(&entity, "get", "").await.expect("its stream is open");

    cluster.pause(1).expect("pause");
    let short = call_options(Duration::from_millis(300));
    let lost = session
        .send(&entity, "add", "{\"by\":1}", &short)
        .await
        .expect_err("the gateway is paused");
    let CallError::Unknown { id, .. } = lost else { panic!("{lost:?}") };
    // The message is resent through the other gateway, and then its session is forgotten.
    let again = CallOptions { resend: Some(id), ..call_options(Duration::from_secs(60)) };
    let other = near.session_with_id(id.session, id.sequence + 1);
    other.send(&entity, "add", "{\"by\":1}", &again).await.expect("it runs");
    for _ in 0..4 {
        near.session().command(&entity, "add", "{\"by\":10}").await.expect("it runs");
    }
    assert_eq!(value(&near, &entity).await, "41");
    cluster.resume(1).expect("resume");
    // This query is sent on the stream of the buffered message, so it is answered after that message.
    session.query(&entity, "get", "").await.expect("answered");
    assert_eq!(value(&near, &entity).await, "41");
    far.close().await;
    near.close().await;
    cluster.stop().expect("stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_switches_from_a_gateway_cut_off_from_its_cluster() {
    let options = Options { shards: 8, ..Options::new("cut-off", &[ALL, "gateway", "gateway"]) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = cluster.client(1).await.expect("client");
    deploy_example(&client, "counter").await.expect("deploy");
    let entity = Entity::new("counter", "one");
    let session = client.session();
    session.command(&entity, "add", "{\"by\":1}").await.expect("it runs");
    assert_eq!(client.connected_to().expect("connected").0, "n2");
    for other in [0, 2] {
        cluster.network().both(Endpoint::Node(1), Endpoint::Node(other), Rule::CUT);
    }
    let answer =
        session.send(&entity, "add", "{\"by\":1}", &call_options(Duration::from_secs(60))).await;
    assert_eq!(answer.expect("through another gateway").body, "2");
    assert_ne!(client.connected_to().expect("connected").0, "n2");
    cluster.network().heal();
    client.close().await;
    cluster.stop().expect("stop");
}
