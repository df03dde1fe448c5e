//! What a real node refuses, in the sentences that the tests of the command line have from a stage: both are held
//! against the files in `host/cli/tests/golden/cluster`.

use std::path::Path;

use ostraca_client::Client;
use ostraca_process_tests::home::deploy_example;
use ostraca_process_tests::{Home, Node};

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host/cli/tests/golden/cluster");
    std::fs::read_to_string(folder.join(name)).expect("a golden text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_node_refuses_in_the_golden_sentences() {
    let home = Home::init("texts").expect("init");
    let mut node = Node::start(&home).expect("start");
    let profile = home.profile(node.address).expect("profile");
    profile.save(&home.dir().join("profile.toml")).expect("saved");
    let client = Client::connect(profile).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    client.close().await;
    let commands: [(&str, i32, &[&str]); 3] = [
        ("drain-no-host.err", 1, &["drain", "n1"]),
        ("forget-live.err", 2, &["forget", "n1"]),
        ("tell-query.err", 5, &["tell", "counter/alice", "get"]),
    ];
    for (name, exit, words) in commands {
        let output = home.command(words).expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(exit), &*golden(name)), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let unknown = home.command(&["forget", "n33"]).expect("it runs");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said.starts_with("unknown-node\n") && said.contains("no node `n33`"), "{said}");
    assert!(node.stop().expect("stop").success());
}
