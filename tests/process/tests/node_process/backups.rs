//! The store of a running cluster is backed up under load and restored: what was acknowledged before is there, no
//! transfer is half done, and the cluster goes on (promises 1 and 3, R5, R19).

use std::process::Output;
use std::time::{Duration, Instant};

use ostraca_client::{Client, Entity, Session};
use ostraca_process_tests::bank::{
    BankSize, Order, Status, TransferLoad, account, check_no_dead_letters, deploy_bank,
    open_accounts,
};
use ostraca_process_tests::node::refused_start;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};
use ostraca_test_servers::postgres::Server;

const SIZE: BankSize = BankSize { accounts: 30, closed: 2, cents: 10_000, concurrent: 16 };

fn run(home: &NodeDir, arguments: &[&str]) -> Output {
    home.command(arguments).expect("it runs")
}

fn done(home: &NodeDir, arguments: &[&str]) -> String {
    let out = run(home, arguments);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[track_caller]
fn refused(home: &NodeDir, arguments: &[&str], code: &str, text: &str) {
    let out = run(home, arguments);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(stderr.contains(code) && stderr.contains(text), "no {code}, {text}: {stderr}");
    assert!(!out.status.success());
}

/// Lets commands reach this node.
fn reach(home: &NodeDir, node: &NodeProcess) {
    let profile = home.profile(node.address).expect("profile");
    profile.save(&home.dir().join("profile.toml")).expect("saved");
}

async fn connect(home: &NodeDir, node: &NodeProcess) -> Client {
    Client::connect(home.profile(node.address).expect("profile")).await.expect("connect")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_backup_under_load_is_restored_twice() {
    let home = NodeDir::init_as("bank", &["--cluster", "bank"], |_| {}).expect("init");
    let node = NodeProcess::start(&home).expect("start");
    reach(&home, &node);
    let client = connect(&home, &node).await;
    deploy_bank(&client).await.expect("deploy");
    open_accounts(&client, SIZE).await.expect("accounts");
    let load = TransferLoad::start(std::slice::from_ref(&client), 7, SIZE);
    load.resume();
    load.progress(100).await.expect("transfers");

    let backups = home.dir().with_file_name("backups");
    let backups = backups.display().to_string();
    let config = home.config().display().to_string();
    let ended_first = ended(&load);
    let taken = done(&home, &["backup", &backups]);
    assert!(taken.contains("backed up the cluster bank as 2"), "{taken}");
    load.progress(100).await.expect("transfers during and after the backup");
    let ended_second = ended(&load);
    done(&home, &["backup", &backups]);
    load.progress(50).await.expect("transfers after the backup");
    refused(&home, &["restore", &backups, "--to", &config], "directory-not-empty", "not empty");
    drop(load);
    client.close().await;
    node.kill_9().expect("kill");

    // The disk is lost; the node's other files are not.
    let first = taken.split_whitespace().nth(6).expect("a name");
    refused(&home, &["restore", &backups, "--to", &config], "directory-not-empty", "not empty");
    std::fs::rename(home.store(), home.dir().join("store-lost")).expect("moved away");
    refused(&home, &["restore", "/none", "--to", &config], "unknown-backup", "check the path");
    let other = ["restore", &backups, "--backup", "x", "--to", &config];
    refused(&home, &other, "unknown-backup", first);
    let text = done(&home, &["restore", &backups, "--to", &config]);
    assert!(text.contains("of the cluster bank"), "{text}");
    goes_on(&home, &ended_second).await;

    // Once more, from the older backup, to PostgreSQL.
    let server = Server::start("");
    let url = server.url(&server.database());
    done(&home, &["restore", &backups, "--backup", first, "--to", &url]);
    home.set(&format!("[postgres]\nurl = {url:?}")).expect("set");
    goes_on(&home, &ended_first).await;
}

type Ends = Vec<(Order, Status)>;

/// The transfers that have ended, as clients saw it.
fn ended(load: &TransferLoad) -> Ends {
    let ends = load.transfers().ends().into_iter();
    ends.filter_map(|(order, end)| end.map(|end| (order, end))).collect()
}

/// The restored cluster has all transfers that had ended, finishes those that were under way, and takes new commands.
async fn goes_on(home: &NodeDir, ended: &Ends) {
    let node = NodeProcess::start(home).expect("start");
    let client = connect(home, &node).await;
    let session = client.session();
    assert!(ended.len() >= 100);
    for (order, end) in ended {
        let found = order.status(&session).await.expect("a status");
        assert_eq!((found.state, &found.reason), (end.state, &end.reason), "{order:?}");
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut cents = SIZE.total();
    for _ in 0..2 {
        while balances(&session).await != cents {
            assert!(Instant::now() < until, "{} of {cents} cents", balances(&session).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Nothing moves any more: the sum stays.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(balances(&session).await, cents);
        session.command(&account(0), "deposit", "5").await.expect("a deposit");
        cents += 5;
    }
    check_no_dead_letters(&client).await.expect("no dead letters");
    client.close().await;
    assert!(node.stop().expect("stop").success());
}

/// The cents in all accounts.
async fn balances(session: &Session) -> u64 {
    let mut sum = 0;
    for number in 0..SIZE.accounts {
        let answer = session.query(&account(number), "balance", "").await.expect("a balance");
        sum += String::from_utf8_lossy(&answer.body).parse::<u64>().expect("a number");
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_nodes_of_before_refuse_a_restored_store() {
    let home = NodeDir::init("lost").expect("init");
    let node = NodeProcess::start(&home).expect("start");
    let address = node.address.to_string();
    let ca = home.dir().join("ca").display().to_string();
    let joining = ["--ca", &ca, "--join", &address];
    let second = NodeDir::init_as("second", &joining, |_| {}).expect("init");
    let other = NodeProcess::start(&second).expect("start");
    reach(&home, &other);
    let backups = home.dir().with_file_name("backups-lost");
    let backups = backups.display().to_string();
    // The profile names a node without the store, so the command finds the one with it.
    done(&home, &["backup", &backups]);
    assert!(other.stop().expect("stop").success());
    assert!(node.stop().expect("stop").success());
    std::fs::remove_dir_all(home.store()).expect("lost");
    let config = home.config().display().to_string();
    done(&home, &["restore", &backups, "--to", &config]);
    // As after a crash before the last file: it is continued later, and comes to the same.
    std::fs::remove_file(home.store().join("format")).expect("removed");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    done(&home, &["restore", &backups, "--to", &config]);
    let node = NodeProcess::start(&home).expect("start");
    let (exit, stderr) = refused_start(&second.config()).expect("it ends");
    assert!(exit == 7 && stderr.contains("store-refused"), "{stderr}");
    assert!(stderr.contains("joined-store.witness"), "{stderr}");
    std::fs::remove_file(second.dir().join("joined-store.witness")).expect("removed");
    let other = NodeProcess::start(&second).expect("start");
    assert!(other.stop().expect("stop").success());
    assert!(node.stop().expect("stop").success());
}

/// Adds to a counter, and returns its value.
async fn count(home: &NodeDir, node: &NodeProcess, by: u32) -> String {
    let client = connect(home, node).await;
    let (session, entity) = (client.session(), Entity::new("counter", "a"));
    let body = format!("{{\"by\":{by}}}");
    let answer = session.command(&entity, "add", body).await.expect("an answer");
    client.close().await;
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_restored_database_becomes_another_store() {
    let server = Server::start("");
    let (before, after) = (server.database(), server.database());
    let url = server.url(&before);
    let home = NodeDir::init_as("dump", &["--postgres", &url], |_| {}).expect("init");
    let node = NodeProcess::start(&home).expect("start");
    reach(&home, &node);
    let client = connect(&home, &node).await;
    deploy_example(&client, "counter").await.expect("deploy");
    client.close().await;
    assert_eq!(count(&home, &node, 3).await, "3");
    server.dump_and_restore("ostraca", &before, &after);
    assert_eq!(count(&home, &node, 2).await, "5");
    // The witness is written each second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(node.stop().expect("stop").success());

    home.set(&format!("[postgres]\nurl = {:?}", server.url(&after))).expect("set");
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert!(exit == 7 && stderr.contains("it was rolled back"), "{stderr}");
    let config = home.config().display().to_string();
    let text = done(&home, &["store", "accept", "--restored", &config]);
    assert!(text.contains("remove postgres.witness"), "{text}");
    let (exit, stderr) = refused_start(&home.config()).expect("it ends");
    assert!(exit == 7 && stderr.contains("it is another store"), "{stderr}");
    std::fs::remove_file(home.dir().join("postgres.witness")).expect("removed");
    let node = NodeProcess::start(&home).expect("start");
    reach(&home, &node);
    assert_eq!(count(&home, &node, 1).await, "4", "as of the dump");
    // Every epoch is above those of before.
    let shards = done(&home, &["shards", "--list", "--output", "json"]);
    let shards: serde_json::Value = serde_json::from_str(&shards).expect("JSON");
    let shards = shards["shards"].as_array().expect("shards");
    let epochs = shards.iter().map(|shard| shard["epoch"].as_u64().expect("an epoch"));
    assert!(epochs.clone().all(|epoch| epoch > 1 << 50), "{:?}", epochs.min());
    assert!(node.stop().expect("stop").success());
}
