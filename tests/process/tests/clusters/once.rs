//! Messages that are sent only once (K18).

use std::time::Duration;

use ostraca_client::{CallError, CallOptions, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::history::until_answered;
use ostraca_process_tests::node_dir::deploy_example;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k18_a_message_sent_once_is_unknown_if_its_owner_dies() {
    let options = Options { proxied: false, ..Options::three("once") };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = cluster.client(0).await.expect("a client");
    deploy_example(&client, "counter").await.expect("deployed");
    let id = cluster.ids_owned_by(2, "once", 1).await.expect("an id").remove(0);
    let entity = Entity::new("counter", id.as_str());
    let (one, other) = (client.session(), client.session());
    let reply = one.command(&entity, "add", "100").await.expect("a reply");
    assert_eq!(&reply.body[..], b"100");

    // Its owner gets the messages, but does not answer any more.
    cluster.pause(2).expect("paused");
    let once = CallOptions { retry: false, ..until_answered(MessageKind::Command) };
    let once = one.send(&entity, "add", "1", &once);
    let retried = other.send(&entity, "add", "10", &until_answered(MessageKind::Command));
    let mut command = cluster.command_line(0).expect("a command");
    command.args(["send", &format!("counter/{id}"), "add", "3", "--no-retry"]);
    let sent = tokio::task::spawn_blocking(move || command.output());
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.kill_9(2).expect("killed");
    let sent = sent.await.expect("no panic").expect("it runs");
    assert_eq!(sent.status.code(), Some(6), "its outcome is unknown: {sent:?}");
    let lost = once.await.expect_err("no reply");
    assert!(matches!(lost, CallError::Unknown { .. }), "{lost:?}");
    let reply = retried.await.expect("the next owner answers");
    let value: u64 = std::str::from_utf8(&reply.body).expect("text").parse().expect("a number");
    assert!([110, 111, 113, 114].contains(&value), "each ran at most once: {value}");
    // Later messages of the session do not wait for it. It cannot run after the reply of a later owner's turn.
    let reply = one.command(&entity, "add", "1000").await.expect("a reply");
    assert_eq!(std::str::from_utf8(&reply.body).expect("text"), (value + 1_000).to_string());
    client.close().await;
    cluster.stop().expect("stop");
}
