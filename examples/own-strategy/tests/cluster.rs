//! Two real nodes whose manager has the strategy of this example.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ostraca_client::{Client, Profile, ShardInfo, ShardState};
use ostraca_node::config::{ClusterSettings, Role};
use ostraca_node::{InitOptions, JoinOptions, init, join};

const SHARDS: u32 = 16;

/// A node's process, which ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a node, and returns its address.
fn start(home: &Path, per_host: &str) -> (Process, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_own-strategy"))
        .arg(home.join("ostraca.toml"))
        .arg(per_host)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let output = child.stdout.take().expect("its output");
    let process = Process(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving at ").expect("an address").to_owned();
    (process, address)
}

fn listen() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

#[test]
fn k22_a_node_places_shards_by_a_strategy_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("n1"), dir.path().join("n2"));
    let options = InitOptions {
        cluster_name: "packed".into(),
        node: "n1".into(),
        listen: listen(),
        shards: SHARDS,
        settings: ClusterSettings::default(),
        postgres: None,
        rows: None,
    };
    let cluster = init(&one, &options).expect("a new node");
    let (_first, address) = start(&one, "11");
    let options = JoinOptions {
        node: "n2".into(),
        listen: listen(),
        roles: vec![Role::Host, Role::Gateway],
        join: vec![address.clone()],
        ca: cluster.ca.clone(),
        postgres: None,
        rows: None,
    };
    join(&two, &options).expect("a node that joins");
    let (_second, _) = start(&two, "11");
    tokio::runtime::Runtime::new().expect("threads").block_on(async {
        let profile = Profile::new(vec![address], &cluster.ca_pem, &cluster.admin);
        let client = Client::connect(profile).await.expect("a connection");
        let wanted = BTreeMap::from([("n1".into(), 11), ("n2".into(), 5)]);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let shards = client.shards().await.expect("the shards");
            let mut counts = BTreeMap::<String, usize>::new();
            let owned =
                |it: &&ShardInfo| matches!(it.state(), ShardState::Serving | ShardState::Assigned);
            for shard in shards.iter().filter(owned) {
                *counts.entry(shard.owner.clone()).or_default() += 1;
            }
            if counts == wanted {
                break;
            }
            assert!(Instant::now() < until, "{counts:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        client.close().await;
    });
}
