//! Commands are durable before the reply, and nothing is acknowledged when the disk fails (promise 2, R3).

use std::time::Duration;

use ostraca_client::{CallError, CallOptions, Client, Entity, MessageKind};
use ostraca_process_tests::history::now;
use ostraca_process_tests::io_recorder::{Call, IoRecorder, place};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completed_sync_lies_between_each_command_and_its_reply() {
    let home = NodeDir::init("synced").expect("init");
    let place = place().expect("place");
    let preload = IoRecorder::new(home.dir(), place.path(), false).expect("recorder");
    let node = NodeProcess::start_as(&home, |command| preload.on(command)).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let session = client.session();
    let mut commands = Vec::new();
    for n in 0..1_000 {
        let entity = Entity::new("counter", format!("{}", n % 10));
        let sent = now();
        session.command(&entity, "add", "{\"by\":1}").await.expect("answer");
        commands.push((sent, now()));
    }
    client.close().await;
    node.stop().expect("stop");

    let store = home.store().join("sled").join("db");
    let records = preload.records().expect("records");
    let syncs: Vec<_> = records.iter().filter(|record| record.is_sync_of(&store)).collect();
    let writes: Vec<_> = records
        .iter()
        .filter(|record| record.call == Call::Write && record.path == store)
        .collect();
    for (sent, answered) in &commands {
        let durable = syncs.iter().any(|sync| {
            sync.start > *sent
                && sync.end < *answered
                && writes.iter().any(|write| write.start > *sent && write.end <= sync.start)
        });
        assert!(durable, "no write and sync between {sent} and {answered}");
    }
    println!("{} commands, {} syncs, {} writes", commands.len(), syncs.len(), writes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_syncs_stop_replies_and_writes_and_show_in_status() {
    let home = NodeDir::init("sync-fails").expect("init");
    let place = place().expect("place");
    let preload = IoRecorder::new(home.dir(), place.path(), false).expect("recorder");
    let node = NodeProcess::start_as(&home, |command| preload.on(command)).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let (session, entity) = (client.session(), Entity::new("counter", "a"));
    for _ in 0..5 {
        session.command(&entity, "add", "{\"by\":1}").await.expect("answer");
    }
    preload.fail_syncs(true).expect("trigger");
    let short = CallOptions {
        kind: MessageKind::Command,
        timeout: Duration::from_secs(2),
        ..CallOptions::default()
    };
    let calls: Vec<_> =
        (0..20).map(|_| session.send(&entity, "add", "{\"by\":1}", &short)).collect();
    let mut doubtful = Vec::new();
    for call in calls {
        let id = call.id();
        match call.await {
            Err(CallError::Unknown { .. }) => doubtful.push((id, true)),
            Err(CallError::NotRun { .. }) => doubtful.push((id, false)),
            ended => panic!("expected no reply without a successful sync, got {ended:?}"),
        }
    }
    let status = client.status().await.expect("the node still responds");
    let codes: Vec<_> = status.problems.iter().map(|problem| problem.code.as_str()).collect();
    assert!(codes.contains(&"store-stopped"), "the status shows it: {:?}", status.problems);
    // The store remains stopped after the disk has recovered, because the disk's contents are unknown.
    preload.fail_syncs(false).expect("trigger");
    let ended = session.send(&entity, "add", "{\"by\":1}", &short).await;
    assert!(
        matches!(ended, Err(CallError::Unknown { .. } | CallError::NotRun { .. })),
        "{ended:?}"
    );
    node.kill_9().expect("kill");

    let node = NodeProcess::start(&home).expect("start again");
    let mut expected = 5;
    for (sequence, unknown) in doubtful {
        if unknown {
            let again = Some(sequence);
            let options =
                CallOptions { kind: MessageKind::Command, resend: again, ..CallOptions::default() };
            let answer = session
                .send(&entity, "add", "{\"by\":1}", &options)
                .await
                .expect("a final outcome");
            expected += 1;
            assert_eq!(answer.body, expected.to_string());
        }
    }
    // The last command, sent after the others, may also have run.
    let held = session.query(&entity, "get", "").await.expect("query").body;
    let held: u64 = String::from_utf8_lossy(&held).parse().expect("number");
    assert!(held == expected || held == expected + 1, "holds {held}, with {expected} acknowledged");
    client.close().await;
    node.stop().expect("stop");
}
