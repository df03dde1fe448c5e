//! What the objects show to people, and what pods prove.

use ostraca_store::{ClusterStore, StoredRow};
use ostraca_store_kubernetes::{KubernetesStore, OpenError, Options, PodHealth, ProcessState};
use ostraca_test_servers::kubernetes::{ApiServer, Rates};
use serde_json::json;

use super::{CLUSTER, cas, create, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_a_nodes_row_is_a_lease_with_labels() {
    let server = ApiServer::start();
    let options = Options { holder: "node-0".into(), ..options(&server) };
    let store = KubernetesStore::create(options, CLUSTER, "test").await.expect("a store");
    store.compare_and_set(cas("nodes/n1", None, "1")).await.expect("written");
    let name = server.objects(|it| it.leases("default"))[0].clone();
    assert!(name.starts_with("ostraca.nodes-n1."), "{name}");
    let object = server.objects(|it| it.object("leases", "default", &name)).expect("a lease");
    assert_eq!(object["metadata"]["labels"]["ostraca.dev/store"], "ostraca");
    assert_eq!(object["metadata"]["labels"]["ostraca.dev/rows"], "nodes");
    assert_eq!(object["metadata"]["annotations"]["ostraca.dev/key"], "nodes/n1");
    assert_eq!(object["spec"]["holderIdentity"], "node-0");
    assert!(object["spec"]["renewTime"].as_str().is_some_and(|it| it.ends_with('Z')));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_times_and_holders_decide_nothing() {
    let server = ApiServer::start();
    let store = create(&server).await;
    let made = store.compare_and_set(cas("nodes/n1", None, "1")).await.expect("written");
    let name = server.objects(|it| it.leases("default"))[0].clone();
    let mut object = server.objects(|it| it.object("leases", "default", &name)).expect("a lease");
    object["spec"] = json!({
        "holderIdentity": "somebody", "renewTime": "1999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 1,
    });
    server.objects(|it| it.put("leases", "default", object));
    let row = store.get("nodes/n1").await.expect("read").expect("a row");
    assert!(row.value == "1" && row.revision > made);
    store.compare_and_set(cas("nodes/n1", Some(row.revision), "2")).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_openings_are_forgotten() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let server = ApiServer::start();
    drop(create(&server).await);
    server.objects(|it| {
        let mut object = it.object("leases", "default", "ostraca.store").expect("the store");
        let openings: Vec<u8> = (0..10_000_u64).flat_map(|it| it.to_be_bytes()).collect();
        object["metadata"]["annotations"]["ostraca.dev/openings"] =
            STANDARD.encode(openings).into();
        it.put("leases", "default", object);
    });
    let store = KubernetesStore::open(options(&server)).await.expect("opened");
    let known = store.open_nonces();
    assert_eq!(known.len(), 10_000);
    assert_eq!((known[0], known[9998]), (1, 9999));
    assert_eq!(known[9999], store.identity().open_nonce);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_rows_are_listed_in_pages() {
    let server = ApiServer::start();
    let options = Options { page_rows: 7, ..options(&server) };
    let store = KubernetesStore::create(options, CLUSTER, "test").await.expect("a store");
    let value = "v".repeat(64 << 10);
    let keys: Vec<_> = (0..30).map(|at| format!("shards/default/{at:05}")).collect();
    let mut expected = Vec::new();
    for key in &keys {
        let revision = store.compare_and_set(cas(key, None, &value)).await.expect("written");
        expected.push(StoredRow { key: key.clone(), revision, value: value.clone().into() });
    }
    store.compare_and_set(cas("nodes/a", None, "1")).await.expect("written");
    let before = server.requests("list leases");
    assert!(store.list("shards/").await.expect("rows").0 == expected);
    assert_eq!(server.requests("list leases") - before, 5, "pages of seven rows");
    // A list without a whole first part of a key reads all rows.
    assert!(store.list("shards").await.expect("rows").0 == expected);
    assert_eq!(store.list("").await.expect("rows").0.len(), 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_only_a_terminated_container_proves_the_end() {
    let mut server = ApiServer::start();
    let health = PodHealth::new(options(&server)).expect("options");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("termination-log");
    let mark = async || health.mark_this_process("n1", &log).await;
    assert!(matches!(mark().await, Err(OpenError::Pod { .. })), "no pod");
    let unnamed = health.mark_this_process("", &log).await;
    assert!(matches!(unnamed, Err(OpenError::UnnamedPod)), "{unnamed:?}");
    let put = |uid: &str, state: serde_json::Value| {
        let statuses = json!([{ "name": "ostraca", "state": state }]);
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "n1", "uid": uid },
            "status": { "phase": "Failed", "containerStatuses": statuses },
        });
        server.objects(|it| it.put("pods", "default", pod));
    };
    put("u1", json!({ "running": {} }));
    let missing = mark().await.expect_err("no log").to_string();
    assert!(missing.contains("termination-log"), "{missing}");
    assert!(!log.exists(), "the kubelet would never read it");

    // The container of an earlier run left its mark, too.
    std::fs::write(&log, "an earlier message, longer than any mark that a process leaves in it")
        .expect("a log");
    let earlier = mark().await.expect("marked");
    let process = mark().await.expect("marked");
    assert_eq!(std::fs::read_to_string(&log).expect("a log"), process.mark);
    let ended = |mark: &str| {
        json!({ "terminated": {
            "exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z", "containerID": "containerd://1",
            "message": mark,
        } })
    };
    let proves = async || health.check(&process).await == ProcessState::Ended { exit_code: 1 };
    assert!(!proves().await, "it runs");
    put("u2", ended(&process.mark));
    assert!(!proves().await, "another pod of that name");
    put("u1", ended(&earlier.mark));
    assert!(!proves().await, "an earlier run");
    put("u1", ended(&process.mark));
    assert!(proves().await, "it has ended");
    server.restrict(&[]);
    assert!(!proves().await, "no permission");
    assert!(matches!(mark().await, Err(OpenError::Permission { .. })), "no permission");
    server.inject(Some(Rates { unavailable: 1000, ..Rates::default() }), 0);
    assert!(!proves().await, "an error");
    server.inject(None, 0);
    server.objects(|it| it.remove("pods", "default", "n1"));
    assert!(!proves().await, "the pod was deleted");
    server.stop();
    let found = health.check(&process).await;
    assert!(matches!(found, ProcessState::Unproven { .. }), "no server: {found:?}");
}
