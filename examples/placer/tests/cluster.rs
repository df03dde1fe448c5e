//! Two real nodes whose shards this program places, until it is killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ostraca_client::{Client, Profile, ShardInfo, ShardState};
use ostraca_node::config::{ClusterSettings, Role};
use ostraca_node::{Config, InitOptions, JoinOptions, Node, init, join};

const SHARDS: u32 = 12;
const SETTINGS: &str =
    "\n[rebalance]\nstrategy = \"external\"\nexternal-timeout = \"4 s\"\ninterval = \"1 s\"\n";

/// The program, which ends with the test.
struct Placer(Child);

impl Placer {
    fn start(profile: &Path, list: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_placer"))
            .arg(profile)
            .arg("default")
            .arg(list)
            .arg("1")
            .spawn();
        Self(child.expect("the program starts"))
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        // Kills it like `kill -9`. It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn start(home: &Path) -> Node {
    let file = home.join("ostraca.toml");
    let text = std::fs::read_to_string(&file).expect("a configuration");
    std::fs::write(&file, text + SETTINGS).expect("written");
    Node::start(Config::load(&file).expect("valid")).await.expect("a node that serves")
}

fn listen() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Waits until every shard is served, and this many by each node.
async fn wait(client: &Client, wanted: &[(&str, usize)]) {
    let wanted: BTreeMap<_, _> =
        wanted.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
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
            return;
        }
        assert!(Instant::now() < until, "{counts:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn e9_shards_follow_a_program_until_it_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("n1"), dir.path().join("n2"));
    let options = InitOptions {
        cluster_name: "placed".into(),
        node: "n1".into(),
        listen: listen(),
        shards: SHARDS,
        settings: ClusterSettings::default(),
        postgres: None,
        rows: None,
    };
    let cluster = init(&one, &options).expect("a new node");
    tokio::runtime::Runtime::new().expect("threads").block_on(async {
        let first = start(&one).await;
        let options = JoinOptions {
            node: "n2".into(),
            listen: listen(),
            roles: vec![Role::Host, Role::Gateway],
            join: vec![first.address().to_string()],
            ca: cluster.ca.clone(),
            postgres: None,
            rows: None,
        };
        join(&two, &options).expect("a node that joins");
        let second = start(&two).await;
        let profile =
            Profile::new(vec![first.address().to_string()], &cluster.ca_pem, &cluster.admin);
        let file = dir.path().join("profile.toml");
        profile.save(&file).expect("saved");
        let client = Client::connect(profile).await.expect("a connection");
        // It has said nothing yet.
        wait(&client, &[("n1", 6), ("n2", 6)]).await;
        let list = dir.path().join("partitions");
        std::fs::write(&list, "0 n2\n1 n2\n2 n1\n").expect("a list");
        let mut placer = Placer::start(&file, &list);
        wait(&client, &[("n1", 4), ("n2", 8)]).await;
        std::fs::write(&list, "0 n1\n1 n1\n2 n1\n").expect("a list");
        wait(&client, &[("n1", 12)]).await;
        // Killed, it says nothing any more.
        let rounds = std::env::var("ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(3);
        for _ in 0..rounds {
            drop(placer);
            wait(&client, &[("n1", 6), ("n2", 6)]).await;
            placer = Placer::start(&file, &list);
            wait(&client, &[("n1", 12)]).await;
        }
        client.close().await;
        second.stop(Duration::from_secs(5)).await;
        first.stop(Duration::from_secs(5)).await;
    });
}
