//! Secrets and settings of types, on a cluster of two nodes: who reads them, and where a secret never appears.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{client, guest, joined, make, start};
use ostraca_client::{AdminError, Client, Entity};
use ostraca_node::Node;
use ostraca_wire::proto::{
    AuditRequest, Variable, VariableKind, VariableName, Variables, VariablesRequest,
};

const GRACE: Duration = Duration::from_secs(20);
/// Within this time, a change has reached every node.
const SPREAD: Duration = Duration::from_secs(5);
const TYPE: &str = "misbehaving";
const MANIFEST: &str = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[grants]\nsecrets = [\"api-key\"]\nsettings = [\"greeting\"]\n";
/// Nothing else has these texts.
const SECRET: &str = "Zq7-hidden-Xw9";
const GREETING: &str = "Vk3-shown-Tb5";

async fn request(client: &Client, change: VariablesRequest) -> Result<Variables, AdminError> {
    client.variables(VariablesRequest { r#type: TYPE.into(), ..change }).await
}

async fn set(client: &Client, kind: VariableKind, name: &str, value: &str) -> Variables {
    let set = Variable {
        kind: kind.into(),
        name: name.into(),
        value: value.into(),
        ..Variable::default()
    };
    let change = VariablesRequest { set: Some(set), ..Default::default() };
    request(client, change).await.expect("set")
}

async fn remove(client: &Client, kind: VariableKind, name: &str) -> Variables {
    let removed = VariableName { kind: kind.into(), name: name.into() };
    let change = VariablesRequest { remove: Some(removed), ..Default::default() };
    request(client, change).await.expect("removed")
}

/// Waits until all of these entities, which are on both nodes, find that the secret is this text.
async fn wait_secret(client: &Client, text: &str, expected: bool) {
    let since = Instant::now();
    let body = format!("{{\"name\":\"api-key\",\"text\":{text:?}}}");
    for id in 0..20 {
        let entity = Entity::new(TYPE, format!("e{id}"));
        loop {
            let reply = client.session().command(&entity, "is_secret", body.clone()).await;
            if reply.expect("a reply").body == expected.to_string() {
                break;
            }
            assert!(since.elapsed() < SPREAD, "{entity} after {SPREAD:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The log of this process, at its most verbose.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The files below a directory that contain a text, as it is or in hexadecimal.
fn files_with(text: &str, directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_with(text, &path));
        } else if has(&fs::read(&path).expect("a file"), text) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn has(bytes: &[u8], text: &str) -> bool {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    [text, &hex].iter().any(|form| bytes.windows(form.len()).any(|part| part == form.as_bytes()))
}

/// What the cluster shows of itself to an operator who may see everything, and a backup.
async fn shown(admin: &Client) -> Vec<u8> {
    let mut all = Vec::new();
    for id in 0..20 {
        let entity = Entity::new(TYPE, format!("e{id}"));
        let detail = admin.inspect(&entity, true).await.expect("inspected");
        write!(all, "{detail:?}").expect("written");
        let export = admin.export(&entity).await.expect("exported");
        write!(all, "{export:?}").expect("written");
    }
    let audit = admin.audit(AuditRequest::default()).await.expect("the audit log");
    let variables = request(admin, VariablesRequest::default()).await.expect("listed");
    let (status, deployments) = (admin.status().await, admin.deployments().await);
    let (status, deployments) = (status.expect("a status"), deployments.expect("deployments"));
    write!(all, "{audit:?}{status:?}{deployments:?}").expect("written");
    for variable in &variables.variables {
        write!(all, "{variable:?}{}", variable.value).expect("written");
    }
    all
}

async fn backup(admin: &Client) -> Vec<u8> {
    let mut parts = admin.backup().await.expect("a backup");
    let mut all = Vec::new();
    while let Some(part) = parts.next().await.expect("a part") {
        write!(all, "{part:?}").expect("written");
    }
    all
}

async fn stop(nodes: Vec<Node>) {
    for node in nodes.into_iter().rev() {
        node.stop(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_read_by_guests_and_appears_nowhere() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_env_filter("info,ostraca=trace,quinn=debug,h2=debug,hyper=debug,rustls=debug")
        .with_writer(move || writer.clone())
        .init();
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(&dir.path().join("n1"));
    let first = start(&dir.path().join("n1")).await;
    let second = start(&joined(dir.path(), &first, &cluster)).await;
    let admin = client(&first, &cluster).await;

    // Before the type is deployed.
    let before = set(&admin, VariableKind::Secret, "api-key", SECRET).await;
    assert!(!before.deployed && before.variables[0].value.is_empty());
    admin.deploy(MANIFEST, guest("misbehaving"), None).await.expect("deployed");
    wait_secret(&admin, SECRET, true).await;
    let all = set(&admin, VariableKind::Setting, "greeting", GREETING).await;
    assert!(all.deployed && all.variables.iter().all(|it| it.granted));

    let seen = shown(&admin).await;
    assert!(has(&seen, GREETING) && has(&seen, "api-key") && !has(&seen, SECRET));
    let copied = backup(&admin).await;
    assert!(has(&copied, "api-key") && !has(&copied, SECRET));

    // A new one counts on both nodes, and after a node's restart.
    set(&admin, VariableKind::Secret, "api-key", "another").await;
    wait_secret(&admin, "another", true).await;
    set(&admin, VariableKind::Secret, "api-key", SECRET).await;
    wait_secret(&admin, SECRET, true).await;
    admin.close().await;
    second.stop(GRACE).await;
    let second = start(&dir.path().join("n2")).await;
    let admin = client(&second, &cluster).await;
    wait_secret(&admin, SECRET, true).await;
    remove(&admin, VariableKind::Secret, "api-key").await;
    wait_secret(&admin, SECRET, false).await;
    set(&admin, VariableKind::Secret, "api-key", SECRET).await;
    admin.close().await;
    stop(vec![first, second]).await;

    let logged = log.0.lock().expect("a log").clone();
    assert!(has(&logged, "misbehaving") && !has(&logged, SECRET), "it is in the log");
    let none: Vec<String> = Vec::new();
    assert_eq!(files_with(SECRET, dir.path()), none);
    assert_ne!(files_with(GREETING, dir.path()), none, "the search finds what is not sealed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_deploys_the_name_again_inherits_no_secret() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(&dir.path().join("n1"));
    let first = start(&dir.path().join("n1")).await;
    let admin = client(&first, &cluster).await;
    admin.deploy(MANIFEST, guest("misbehaving"), None).await.expect("deployed");
    set(&admin, VariableKind::Secret, "api-key", SECRET).await;
    admin.undeploy(TYPE).await.expect("undeployed");
    let left = request(&admin, VariablesRequest::default()).await.expect("listed");
    assert_eq!(left.variables.len(), 0);
    admin.deploy(MANIFEST, guest("misbehaving"), None).await.expect("deployed");
    let (entity, body) =
        (Entity::new(TYPE, "first"), format!("{{\"name\":\"api-key\",\"text\":{SECRET:?}}}"));
    let reply = admin.session().command(&entity, "is_secret", body).await.expect("a reply");
    assert_eq!(reply.body, "false");
    // What was set for a type that was never deployed goes in the same way.
    let refused = admin.undeploy("other").await.expect_err("refused");
    assert_eq!(refused.code(), "unknown-type");
    let set = Variable {
        kind: VariableKind::Secret.into(),
        name: "api-key".into(),
        value: SECRET.into(),
        ..Variable::default()
    };
    let change = VariablesRequest { r#type: "other".into(), set: Some(set), ..Default::default() };
    admin.variables(change).await.expect("set");
    let all = admin.variables(VariablesRequest::default()).await.expect("listed");
    assert_eq!(all.variables.iter().map(|it| &*it.r#type).collect::<Vec<_>>(), ["other"]);
    admin.undeploy("other").await.expect("its values are removed");
    let all = admin.variables(VariablesRequest::default()).await.expect("listed");
    assert_eq!(all.variables.len(), 0);
    admin.close().await;
    first.stop(GRACE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_key_refuses_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = make(&dir.path().join("n1"));
    fs::remove_file(cluster.ca.join("secret.key")).expect("removed");
    let first = start(&dir.path().join("n1")).await;
    let admin = client(&first, &cluster).await;
    let set_it = |name: &str, value: &str| VariablesRequest {
        set: Some(Variable {
            kind: VariableKind::Secret.into(),
            name: name.into(),
            value: value.into(),
            ..Variable::default()
        }),
        ..Default::default()
    };
    for (name, value, code) in [
        ("api-key", SECRET, "no-secret-key"),
        ("api-key", "", "invalid-variable"),
        ("api key", SECRET, "invalid-variable"),
    ] {
        let refused = request(&admin, set_it(name, value)).await.expect_err("refused");
        assert_eq!(refused.code(), code, "{name:?}");
    }
    // Settings need no key, and their bound has a name.
    set(&admin, VariableKind::Setting, "greeting", GREETING).await;
    let large = Variable {
        kind: VariableKind::Setting.into(),
        name: "large".into(),
        value: "x".repeat(64 << 10),
        ..Variable::default()
    };
    let change = VariablesRequest { set: Some(large), ..Default::default() };
    let refused = request(&admin, change).await.expect_err("refused");
    assert_eq!(refused.code(), "variables-too-large");
    let kept = request(&admin, VariablesRequest::default()).await.expect("listed");
    assert_eq!(kept.variables.len(), 1);
    admin.close().await;
    first.stop(GRACE).await;
}
