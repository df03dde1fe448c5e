//! Only the core decides: replaying a node's recording through the core gives the same actions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca_client::{Client, Entity};
use ostraca_node::recording::replay;
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::{deploy_example, deploy_guest};
use ostraca_process_tests::{NodeDir, NodeProcess};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_events_give_the_same_actions_in_the_core() {
    let home = NodeDir::init("replay").expect("init");
    // Only a few instances may be live, so that the recording contains evictions.
    home.set("recording-dir = \"record\"\n[guests]\nmax-live-instances = 50").expect("set");
    let node = NodeProcess::start(&home).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    deploy_guest(&client, "misbehaving", "").await.expect("deploy");
    let sessions: Vec<_> = (0..4).map(|_| client.session()).collect();
    let until = Instant::now() + Duration::from_secs(120);
    let next = |_, n: u64| (Entity::new("counter", format!("{}", n % 200)), "1".to_owned());
    closed_loop(&sessions, 8, "add", 2_000, until, Arc::new(next)).await.expect("answers");
    // Also record refusals and traps.
    let odd = Entity::new("misbehaving", "a");
    for (method, body) in [("trap", ""), ("refuse", "\"no\""), ("add", "{\"key\":\"k\",\"by\":1}")]
    {
        let ended = sessions[0].call(&odd, method, body).await;
        assert_eq!(ended.is_ok(), method == "add", "{ended:?}");
    }
    client.close().await;
    assert!(node.stop().expect("stop").success());
    let mut steps = 0;
    for file in std::fs::read_dir(home.dir().join("record")).expect("recordings") {
        steps += replay(&file.expect("a file").path()).expect("the same actions");
    }
    println!("{steps} steps replayed");
    assert!(steps > 4_000, "only {steps} steps were recorded");
}
