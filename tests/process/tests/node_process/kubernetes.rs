//! A node whose rows are in Kubernetes: it starts and serves, and says what is wrong with an API server or a store there.

use std::time::{Duration, Instant};

use ostraca_client::{Client, Entity, NewPool};
use ostraca_process_tests::cluster::TIMEOUT;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use ostraca_test_servers::kubernetes::ApiServer;
use ostraca_test_servers::{free_port, postgres};

use super::bad_stores::{check_refuses, refused};

fn server() -> ApiServer {
    let server = ApiServer::start();
    server.objects(|objects| objects.add_namespace("shop"));
    server
}

/// `ostraca init` with rows in the namespace `shop` of this API server.
fn init(name: &str, url: &str, more: &[&str]) -> anyhow::Result<NodeDir> {
    init_in("shop", name, url, more)
}

fn init_in(namespace: &str, name: &str, url: &str, more: &[&str]) -> anyhow::Result<NodeDir> {
    let rows = ["--cluster", name, "--kubernetes", url, "--kubernetes-namespace", namespace];
    NodeDir::init_as(name, &[&rows, more].concat(), |_| {})
}

/// The node takes the smallest number in a pool without a manager, in a lease (E5), and serves its shards.
async fn number_is_taken(client: &Client, server: &ApiServer) {
    let (name, strategy) = ("free".to_owned(), "stateless".to_owned());
    let pool = NewPool { name, strategy, shards: 4, ..NewPool::default() };
    client.pools(Some(pool)).await.expect("created");
    let began = Instant::now();
    loop {
        let pools = client.pools(None).await.expect("listed");
        let free = pools.iter().find(|pool| pool.name == "free").expect("the pool");
        if free.numbers.first().is_some_and(|it| it.number == 0) {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{free:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let leases = server.objects(|objects| objects.leases("shop"));
    assert!(leases.iter().any(|it| it.contains("numbers") && it.contains("free")), "{leases:?}");
    let manifest = format!("pool = \"free\"\n{}", artifacts::manifest("account").expect("one"));
    let component = artifacts::component("account").expect("one");
    client.deploy(&manifest, component, None).await.expect("deployed");
    let account = Entity::new("account", "a");
    client.session().command(&account, "deposit", "5").await.expect("its shard is served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_a_node_serves_with_its_rows_in_leases() {
    let mut server = server();
    let home = init("one", &server.url(), &[]).expect("init");
    let config = home.config().display().to_string();
    let checked = home.command(&["config", "check", &config]).expect("it runs");
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    for part in ["rows", "cluster one", "Kubernetes, leases ostraca.* in the namespace shop"] {
        assert!(checked.contains(part), "no {part} in {checked}");
    }
    let counter = Entity::new("counter", "a");
    for expected in ["1", "2"] {
        let node = NodeProcess::start(&home).expect("start");
        let profile = home.profile(node.address).expect("profile");
        let client = Client::connect(profile).await.expect("connect");
        if expected == "1" {
            deploy_example(&client, "counter").await.expect("deploy");
            number_is_taken(&client, &server).await;
        }
        // The API server is away for longer than a lease: the node serves again by itself.
        server.stop();
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.resume();
        let session = client.session();
        let answer = session.command(&counter, "add", r#"{"by":1}"#).await.expect("an answer");
        assert_eq!(answer.body.as_ref(), expected.as_bytes());
        client.close().await;
        assert!(node.stop().expect("stopped").success());
    }
    assert!(home.dir().join("kubernetes.witness").exists());
}

#[test]
fn what_is_wrong_with_kubernetes_is_named() {
    let (server, database) = (server(), postgres::Server::start(""));
    let (url, closed) = (server.url(), format!("http://127.0.0.1:{}", free_port()));
    let one = init("one", &url, &[]).expect("init");

    // Nothing is created in the database if the API server does not answer, has a store of this name, or would not
    // create one.
    let [first, second] = std::array::from_fn(|_| database.database());
    let init_refused = |namespace: &str, url: &str, name: &str, more: &[&str], expected: &str| {
        let place = database.url(name);
        let more = [&["--postgres", &place][..], more].concat();
        let error = init_in(namespace, "two", url, &more).expect_err("refused").to_string();
        assert!(error.contains(expected), "no {expected}: {error}");
        let tables = database.sql_on(name, "SELECT to_regclass('ostraca.store') IS NULL");
        assert_eq!(tables.expect("asked").trim(), "t", "{expected}");
    };
    init_refused("shop", &url, &first, &[], "store-exists");
    init_refused("shop", &closed, &first, &[], "store-unreachable");
    init_refused("else", &url, &first, &[], "the namespace else does not exist");
    let place = database.url(&first);
    let other = ["--kubernetes-name", "two", "--postgres", &place];
    let two = init("two", &url, &other).expect("another name in the same namespace");
    drop(two);

    let set = |settings: &str| one.set(&format!("[kubernetes]\n{settings}")).expect("set");
    for (settings, code, expected) in [
        ("name = \"two\"", "store-cluster-mismatch", "the cluster two"),
        ("name = \"none\"", "store-missing", "leases none.*"),
        ("namespace = \"else\"\nname = \"ostraca\"", "store-missing", "in the namespace else"),
        ("url = \"in-cluster\"\nnamespace = \"\"", "invalid-config", "not in a pod"),
    ] {
        set(settings);
        refused(&one, code, expected);
        check_refuses(&one, code, expected);
    }
    set(&format!("url = {url:?}\nnamespace = \"shop\""));

    // Rights, and a token.
    let all = ["list leases", "watch leases", "create leases", "update leases", "delete leases"];
    server.restrict(&[("good", &all), ("few", &all[..2])]);
    refused(&one, "store-access-denied", "refuses to list leases");
    let few = one.dir().join("few");
    std::fs::write(&few, "few").expect("written");
    let token = ["--kubernetes-token-file", few.to_str().expect("a path")];
    init_refused("default", &url, &second, &token, "refuses to create leases");
    set("token-file = \"token\"");
    refused(&one, "file-error", "token");
    for (token, expected) in [("wrong", "does not accept the token"), ("few", "refuses to ")] {
        std::fs::write(one.dir().join("token"), token).expect("written");
        refused(&one, "store-access-denied", expected);
    }
    std::fs::write(one.dir().join("token"), "good\n").expect("written");
    let before = server.objects(|objects| objects.clone());
    let node = NodeProcess::start(&one).expect("start");
    assert!(node.stop().expect("stopped").success());

    // R5: an etcd that was restored, and an object that was.
    let now = server.objects(|objects| std::mem::replace(objects, before));
    refused(&one, "store-refused", "kubernetes.witness");
    server.objects(|objects| *objects = now);
    server.objects(|objects| objects.recreate("leases", "shop", "ostraca.store"));
    refused(&one, "store-rolled-back", "deleted and created again");
}
