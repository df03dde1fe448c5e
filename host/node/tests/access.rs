//! Who may do what: roles, the policy and revocations, over QUIC, on a cluster of two nodes.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{COUNTER, client, config, counter, joined, make, start};
use ostraca_ca::Ca;
use ostraca_ca::tokens::signing_key;
use ostraca_client::{AdminError, CallError, CallOptions, Client, Entity, Profile, SubscribeFrom};
use ostraca_core::ids::ClusterId;
use ostraca_node::{InitializedCluster, Node};
use ostraca_token::Claims;
use ostraca_wire::Limits;
use ostraca_wire::dial::Dialer;
use ostraca_wire::identity::{Identity, fingerprint_of_pem};
use ostraca_wire::proto::{AuditRequest, PolicyRequest, RevocationsRequest};

const GRACE: Duration = Duration::from_secs(20);
/// Within this time, a change of policy or revocations has taken effect on every node.
const SPREAD: Duration = Duration::from_secs(5);

const POLICY: &str = r#"
    [roles.support]
    permissions = ["query", "view", "read-state"]

    [[grants]]
    principals = ["client/admin"]
    roles = ["operator"]

    [[grants]]
    principals = ["client/deployer"]
    roles = ["deployer"]

    [[grants]]
    principals = ["client/sender"]
    roles = ["client"]
    types = ["counter"]

    [[grants]]
    principals = ["client/viewer"]
    roles = ["viewer"]

    [[grants]]
    principals = ["token/ostraca/viewer"]
    roles = ["viewer"]

    [[grants]]
    principals = ["client/support"]
    roles = ["support"]

    [[grants]]
    principals = ["client/elsewhere"]
    roles = ["operator"]
    types = ["other"]
"#;

struct Cluster {
    dir: tempfile::TempDir,
    cluster: InitializedCluster,
    nodes: Vec<Node>,
    admin: Client,
}

impl Cluster {
    /// Two nodes, of which the first has the store, with a deployed counter.
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let cluster = make(&dir.path().join("n1"));
        let first = start(&dir.path().join("n1")).await;
        let second = start(&joined(dir.path(), &first, &cluster)).await;
        let admin = client(&first, &cluster).await;
        admin.deploy(COUNTER, counter(), None).await.expect("deployed");
        Self { dir, cluster, nodes: vec![first, second], admin }
    }

    fn identity(&self, name: &str) -> Identity {
        let ca = Ca::load(&self.cluster.ca).expect("the authority");
        ca.issue_client(name).expect("an identity")
    }

    async fn connect(&self, node: usize, identity: &Identity) -> Client {
        self.try_connect(node, identity).await.expect("a connection")
    }

    async fn try_connect(&self, node: usize, identity: &Identity) -> Result<Client, String> {
        let address = self.nodes[node].address().to_string();
        let profile = Profile::new(vec![address], &self.cluster.ca_pem, identity);
        Client::connect(profile).await.map_err(|error| error.code().to_string())
    }

    /// A policy with the authority's tokens.
    fn policy_with_tokens(&self, policy: &str) -> String {
        let jwks = signing_key(&self.cluster.ca).expect("a key").jwks();
        format!("{policy}\n[issuers.ostraca]\nissuer = \"ostraca\"\njwks = '''{jwks}'''\n")
    }

    /// A token for `token/ostraca/NAME` with this id, which lasts some seconds.
    fn token(&self, name: &str, id: &str, aud: ClusterId, seconds: u64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        let claims = Claims {
            iss: "ostraca".into(),
            sub: name.into(),
            aud: aud.to_string(),
            iat: now,
            exp: now + seconds,
            jti: id.into(),
        };
        signing_key(&self.cluster.ca).expect("a key").issue(&claims).expect("issued")
    }

    /// Connects with the token in a file.
    async fn connect_with_token(&self, node: usize, file: &Path) -> Result<Client, String> {
        let address = self.nodes[node].address().to_string();
        let cluster = self.cluster.cluster;
        let profile =
            Profile::with_token(vec![address], cluster, &self.cluster.ca_pem, file.to_owned());
        Client::connect(profile).await.map_err(|error| error.code().to_string())
    }

    async fn set_policy(&self, text: &str) -> Result<u64, AdminError> {
        set_policy(&self.admin, text, false).await
    }

    async fn stop(self) {
        self.admin.close().await;
        for node in self.nodes.into_iter().rev() {
            node.stop(GRACE).await;
        }
    }
}

async fn set_policy(client: &Client, text: &str, force: bool) -> Result<u64, AdminError> {
    let request = PolicyRequest { text: Some(text.into()), force, ..Default::default() };
    client.policy(request).await.map(|state| state.revision)
}

/// Waits until something holds, for at most the time that a change takes to spread.
async fn soon<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < SPREAD, "{what} took longer than {SPREAD:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a request was not refused for lack of a permission. Other refusals come later, and are fine.
fn is_permitted<T>(result: &Result<T, AdminError>) -> bool {
    result.as_ref().err().is_none_or(|error| error.code() != "access-denied")
}

fn may_run<T>(result: &Result<T, CallError>) -> bool {
    result.as_ref().err().is_none_or(|error| error.code() != "access-denied")
}

/// What a client may do, as one letter for each operation.
async fn letters(client: &Client, policy: &str) -> String {
    let alice = Entity::new("counter", "alice");
    let session = client.session();
    let mut letters = String::new();
    let mut add = |letter: char, permitted: bool| letters.extend(permitted.then_some(letter));
    add('c', may_run(&session.command(&alice, "add", "1").await));
    add('q', may_run(&session.query(&alice, "get", "").await));
    add('m', may_run(&session.forget_entity(&alice, &CallOptions::default()).await));
    let mut items = client.subscribe(&alice, "news", SubscribeFrom::Oldest);
    let refused = items.established().await.err();
    add('f', refused.is_none_or(|error| error.code() != "access-denied"));
    add('d', is_permitted(&client.deploy(COUNTER, counter(), None).await));
    add('v', is_permitted(&client.status().await));
    add('e', is_permitted(&client.inspect(&alice, false).await));
    add('r', is_permitted(&client.inspect(&alice, true).await));
    let drain = async { client.drain("nowhere", false).await?.next().await };
    add('x', is_permitted(&drain.await));
    add('n', is_permitted(&client.nodes().await));
    add('M', is_permitted(&client.methods("counter").await));
    add('p', is_permitted(&client.policy(PolicyRequest::default()).await));
    add('P', is_permitted(&set_policy(client, policy, true).await));
    let restore = RevocationsRequest { restore: vec!["client/x".into()], ..Default::default() };
    add('R', is_permitted(&client.revocations(restore).await));
    letters
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_what_the_policy_says() {
    let cluster = Cluster::start().await;
    let policy = cluster.policy_with_tokens(POLICY);
    cluster.set_policy(&policy).await.expect("set");
    let table = BTreeMap::from([
        ("admin", "cqmfdverxnMpPR"),
        ("deployer", "dvenMp"),
        ("sender", "cqfnM"),
        ("viewer", "venMp"),
        ("support", "qfvernMp"),
        ("elsewhere", "n"),
        ("nobody", ""),
    ]);
    for node in [0, 1] {
        for (name, allowed) in &table {
            let client = cluster.connect(node, &cluster.identity(name)).await;
            // The policy must have reached this node.
            soon(name, async || letters(&client, &policy).await == *allowed).await;
            assert_eq!(letters(&client, &policy).await, *allowed, "{name} at node {node}");
            client.close().await;
            // The holder of a token has the roles of its own principal only.
            let file = cluster.dir.path().join("token");
            let token = cluster.token(name, "1", cluster.cluster.cluster, 60);
            std::fs::write(&file, token).expect("written");
            let client = cluster.connect_with_token(node, &file).await.expect("connected");
            let allowed = if *name == "viewer" { "venMp" } else { "" };
            assert_eq!(letters(&client, &policy).await, allowed, "token of {name} at {node}");
            client.close().await;
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_client_ends_soon_on_every_node() {
    let cluster = Cluster::start().await;
    let alice = Entity::new("counter", "alice");
    let revoke = |revoke: &[String], restore: &[String]| RevocationsRequest {
        revoke: revoke.to_vec(),
        restore: restore.to_vec(),
        reason: "a test".into(),
    };
    let (bob, carol, carol2) =
        (cluster.identity("bob"), cluster.identity("carol"), cluster.identity("carol"));
    let certificate = fingerprint_of_pem(carol.certificate_pem()).expect("a certificate");
    let subjects = ["client/bob".to_owned(), format!("certificate/{certificate}")];

    // Bare connections, since the client would connect again; and subscriptions that wait for items.
    let trust = Ca::load(&cluster.cluster.ca).and_then(|ca| ca.trust()).expect("trust");
    let mut links = Vec::new();
    for node in &cluster.nodes {
        for identity in [&bob, &carol, &carol2] {
            let dialer = Dialer::new(Some(identity), &trust, node.address(), Limits::default());
            let link = dialer.expect("dialer").connect(node.address()).await.expect("connected");
            links.push(link);
        }
    }
    let follower = cluster.connect(1, &bob).await;
    let mut items = follower.subscribe(&alice, "news", SubscribeFrom::Now);
    items.established().await.expect("established");
    let other = cluster.connect(1, &carol2).await;
    other.session().command(&alice, "add", "1").await.expect("added");

    let since = Instant::now();
    let revoked = cluster.admin.revocations(revoke(&subjects, &[])).await.expect("revoked");
    assert_eq!(revoked.len(), 2);
    let shown = (&*revoked[0].subject, &*revoked[0].by, &*revoked[0].reason);
    assert_eq!(shown, ("client/bob", "client/admin", "a test"));
    for (index, link) in links.iter().enumerate() {
        let closed = tokio::time::timeout(SPREAD, link.closed());
        match index % 3 {
            2 => {}
            which => {
                let error = closed.await.expect("closed in time").to_string();
                assert!(error.contains("revoked") && error.contains(&subjects[which]), "{error}");
            }
        }
    }
    assert!(since.elapsed() < SPREAD);
    for node in [0, 1] {
        for identity in [&bob, &carol] {
            let refused = cluster.try_connect(node, identity).await.err();
            assert_eq!(refused.as_deref(), Some("revoked"), "node {node}");
        }
    }
    // The subscription gets nothing more, and the other certificate of the same client still counts.
    other.session().command(&alice, "add", "1").await.expect("added");
    let next = tokio::time::timeout(Duration::from_secs(1), items.next()).await;
    assert!(!matches!(next, Ok(Ok(_))), "{next:?}");

    cluster.admin.revocations(revoke(&[], &subjects)).await.expect("restored");
    soon("restoring", async || cluster.try_connect(1, &bob).await.is_ok()).await;
    let mistakes = [
        "node/n2",
        "bob",
        "certificate/ab",
        "token/x",
        "entity/a",
        "client/",
        "client/bob-*",
        "client/bob ",
        "token/Corp/x",
        "token/corp/*",
        "token-id/corp/",
    ];
    for mistake in mistakes {
        let refused = cluster.admin.revocations(revoke(&[mistake.into()], &[])).await;
        let code = refused.err().map(|error| error.code().to_owned());
        assert_eq!(code.as_deref(), Some("invalid-credential"), "{mistake}");
    }
    follower.close().await;
    other.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_do_not_undo_a_revocation() {
    let cluster = Cluster::start().await;
    let both =
        "[[grants]]\nprincipals = [\"client/admin\", \"client/eve\"]\nroles = [\"operator\"]\n";
    cluster.set_policy(both).await.expect("set");
    let admin = cluster.connect(1, &cluster.identity("admin")).await;
    let eve = cluster.connect(0, &cluster.identity("eve")).await;
    let subject = vec!["client/eve".to_owned()];
    let restore = || RevocationsRequest { restore: subject.clone(), ..Default::default() };
    soon("the policy", async || is_permitted(&eve.revocations(restore()).await)).await;
    let revoke = RevocationsRequest { revoke: subject.clone(), ..Default::default() };
    for round in 0..5 {
        // Each is recorded in the audit log, one after the other, before it is carried out.
        let flood = (0..300).map(|_| eve.revocations(restore()));
        let revoked = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            admin.revocations(revoke.clone()).await.expect("revoked");
        };
        tokio::join!(futures::future::join_all(flood), revoked);
        let all = admin.revocations(RevocationsRequest::default()).await.expect("the list");
        assert_eq!(all.len(), 1, "round {round}: eve is no longer revoked");
        admin.revocations(restore()).await.expect("restored");
        soon("restoring", async || is_permitted(&eve.revocations(restore()).await)).await;
    }
    eve.close().await;
    admin.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_response_ends_with_the_permission() {
    let cluster = Cluster::start().await;
    cluster.set_policy(POLICY).await.expect("set");
    let viewer = cluster.connect(0, &cluster.identity("viewer")).await;
    soon("the policy", async || is_permitted(&viewer.status().await)).await;
    let mut events = viewer.events(true, 0).await.expect("followed");
    events.next().await.expect("some events").expect("not the end");
    let without = POLICY.replace("[\"client/viewer\"]", "[\"client/nobody\"]");
    cluster.set_policy(&without).await.expect("set");
    let refused = async {
        for undo in [false, true].into_iter().cycle() {
            // Something happens.
            let drain = async { cluster.admin.drain("n2", undo).await?.next().await };
            drain.await.expect("progress");
            let next = tokio::time::timeout(Duration::from_millis(200), events.next()).await;
            if let Ok(Err(error)) = next {
                return error.code().to_owned();
            }
        }
        String::new()
    };
    let code = tokio::time::timeout(GRACE, refused).await.expect("the end of the response");
    assert_eq!(code, "access-denied");
    viewer.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_method_counts_as_a_command() {
    let cluster = Cluster::start().await;
    cluster.set_policy(POLICY).await.expect("set");
    let alice = Entity::new("counter", "alice");
    for (name, expected) in [("sender", "unknown-method"), ("support", "access-denied")] {
        let client = cluster.connect(0, &cluster.identity(name)).await;
        soon("the policy", async || is_permitted(&client.methods("counter").await)).await;
        let refused = client.session().query(&alice, "no-such-method", "").await;
        assert_eq!(refused.expect_err("refused").code(), expected, "{name}");
        client.close().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_in_the_audit_log_with_its_principal() {
    let cluster = Cluster::start().await;
    cluster.set_policy(POLICY).await.expect("set");
    let admin = cluster.connect(1, &cluster.identity("admin")).await;
    soon("the policy", async || is_permitted(&admin.status().await)).await;
    let session = admin.session();
    let alice = Entity::new("counter", "alice");
    session.command(&alice, "add", "1").await.expect("added");
    session.delete_entity(&alice, &CallOptions::default()).await.expect("deleted");
    // An entity's own method is nobody's business, and what is refused was not asked for.
    let viewer = cluster.connect(1, &cluster.identity("viewer")).await;
    let delete = viewer.session().delete_entity(&alice, &CallOptions::default()).await;
    assert!(!may_run(&delete), "{delete:?}");
    let drain = async { viewer.drain("n2", true).await?.next().await };
    assert!(!is_permitted(&drain.await));
    let drain = async { admin.drain("n2", true).await?.next().await };
    drain.await.expect("undone");
    let revoke = vec!["client/bob".to_owned()];
    let revoke = RevocationsRequest { revoke, reason: "left".into(), ..Default::default() };
    cluster.admin.revocations(revoke).await.expect("revoked");

    let log = cluster.admin.audit(AuditRequest::default()).await.expect("the log");
    assert!(log.iter().all(|it| it.principal == "client/admin" && it.unix_ms > 0), "{log:?}");
    assert!(log.is_sorted_by_key(|it| it.unix_ms), "{log:?}");
    // The clocks of two nodes may differ a little.
    let of = |node: &str| {
        let own = log.iter().filter(|it| it.node == node);
        own.map(|it| format!("{} {} {}", it.action, it.target, it.details)).collect::<Vec<_>>()
    };
    let (first, second) = (of("n1"), of("n2"));
    assert!(first[0].starts_with("deploy counter component "), "{first:?}");
    assert!(first[1].starts_with("policy set  "), "{first:?}");
    assert_eq!(&first[2..], ["revoke client/bob left"]);
    assert_eq!(second, ["delete counter/alice ", "drain n2 undone"]);
    let since = AuditRequest { since_unix_ms: log[4].unix_ms, ..Default::default() };
    assert_eq!(cluster.admin.audit(since).await.expect("the log").last(), log.last());
    let of = AuditRequest { principal: "client/bob".into(), ..Default::default() };
    assert_eq!(cluster.admin.audit(of).await.expect("the log"), []);
    viewer.close().await;
    admin.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_out_is_refused_and_a_node_can_undo_it() {
    let cluster = Cluster::start().await;
    let code = |result: Result<u64, AdminError>| result.err().map(|it| it.code().to_owned());
    assert_eq!(code(cluster.set_policy("[[grant]]").await).as_deref(), Some("invalid-policy"));
    assert_eq!(code(cluster.set_policy("").await).as_deref(), Some("policy-lock-out"));
    let state = cluster.admin.policy(PolicyRequest::default()).await.expect("the policy");
    assert_eq!(state.revision, 0, "nothing was set");
    let stale = PolicyRequest {
        text: Some(POLICY.into()),
        expected_revision: Some(1),
        ..Default::default()
    };
    let refused = cluster.admin.policy(stale).await.map(|state| state.revision);
    assert_eq!(code(refused).as_deref(), Some("policy-changed"));

    assert_eq!(set_policy(&cluster.admin, "", true).await.expect("forced"), 1);
    assert_eq!(code(cluster.set_policy(POLICY).await).as_deref(), Some("access-denied"));
    let bob = cluster.connect(1, &cluster.identity("bob")).await;
    soon("the empty policy", async || !is_permitted(&bob.nodes().await)).await;
    // The other node's own identity, at that node.
    let (_, identity) = config(&cluster.dir.path().join("n2")).load_identity().expect("identity");
    let node = cluster.connect(1, &identity).await;
    assert_eq!(set_policy(&node, POLICY, false).await.expect("set"), 2);
    node.close().await;
    soon("the policy", async || is_permitted(&cluster.admin.status().await)).await;
    bob.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_from_the_rows_refuses_clients() {
    let mut cluster = Cluster::start().await;
    let brief = format!("revocation-staleness = \"2 s\"\n{POLICY}");
    cluster.set_policy(&brief).await.expect("set");
    let sender = cluster.connect(1, &cluster.identity("sender")).await;
    let alice = Entity::new("counter", "alice");
    let query = async || sender.session().query(&alice, "get", "").await;
    soon("the policy", async || query().await.is_ok()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    query().await.expect("answered: the rows were read again");

    let store = cluster.nodes.remove(0);
    store.stop(GRACE).await;
    let refused = async || {
        let listed = sender.methods("counter").await;
        listed.err().map(|error| error.code().to_owned())
    };
    soon("the refusal", async || refused().await.as_deref() == Some("access-unknown")).await;
    // Why is still shown.
    assert!(sender.nodes().await.is_ok());
    sender.close().await;
    for node in cluster.nodes {
        // It cannot hand anything over.
        node.stop(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_admits_by_the_policy_in_force() {
    let mut cluster = Cluster::start().await;
    cluster.nodes.pop().expect("the second node").stop(GRACE).await;
    let grant = "[[grants]]\nprincipals = [\"token/ostraca/*\"]\nroles = [\"client\"]\n";
    let policy = cluster.policy_with_tokens(&format!("{POLICY}\n{grant}"));
    cluster.set_policy(&policy).await.expect("set");
    let file = cluster.dir.path().join("token");
    std::fs::write(&file, cluster.token("bob", "1", cluster.cluster.cluster, 60)).expect("written");
    // It remembers the policy before that one.
    let home = config(&cluster.dir.path().join("n2"));
    cluster.nodes.push(Node::launch(home).await.expect("launched"));
    let bob = cluster.connect_with_token(1, &file).await.expect("admitted at once");
    let alice = Entity::new("counter", "alice");
    bob.session().command(&alice, "add", "1").await.expect("added");
    bob.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_end_when_they_expire_or_are_revoked() {
    let cluster = Cluster::start().await;
    let own = cluster.cluster.cluster;
    let file = cluster.dir.path().join("token");
    let write = |token: &str| std::fs::write(&file, token).expect("written");
    write(&cluster.token("bob", "1", own, 60));
    // No policy names the issuer yet.
    let refused = cluster.connect_with_token(0, &file).await.err();
    assert_eq!(refused.as_deref(), Some("invalid-token"));
    let grant = "[[grants]]\nprincipals = [\"client/admin\"]\nroles = [\"operator\"]\n
[[grants]]\nprincipals = [\"token/ostraca/*\"]\nroles = [\"client\"]\n";
    cluster.set_policy(&cluster.policy_with_tokens(grant)).await.expect("set");
    for node in [0, 1] {
        soon("the issuer", async || cluster.connect_with_token(node, &file).await.is_ok()).await;
    }
    for (what, token) in [
        ("another cluster's", cluster.token("bob", "1", ClusterId(7), 60)),
        ("an expired one", cluster.token("bob", "1", own, 0)),
        ("one that lasts too long", cluster.token("bob", "1", own, 3 * 86_400)),
        ("garbage", "abc".into()),
    ] {
        write(&token);
        let refused = cluster.connect_with_token(0, &file).await.err();
        assert_eq!(refused.as_deref(), Some("invalid-token"), "{what}");
    }
    write("");
    assert_eq!(
        cluster.connect_with_token(0, &file).await.err().as_deref(),
        Some("invalid-profile")
    );

    // A connection ends with its token, and the client goes on with the next one in the file.
    let alice = Entity::new("counter", "alice");
    write(&cluster.token("bob", "1", own, 3));
    let bob = cluster.connect_with_token(1, &file).await.expect("connected");
    let session = bob.session();
    session.command(&alice, "add", "1").await.expect("added");
    let first = bob.connected_to();
    write(&cluster.token("bob", "2", own, 60));
    tokio::time::sleep(Duration::from_secs(4)).await;
    let added = session.command(&alice, "add", "1").await.expect("added");
    assert_eq!(&added.body[..], b"2");
    assert!(first.is_some() && bob.connected_to().is_some());

    let trust = Ca::load(&cluster.cluster.ca).and_then(|ca| ca.trust()).expect("trust");
    let address = cluster.nodes[1].address();
    let dialer = Dialer::new(None, &trust, address, Limits::default()).expect("dialer");
    let mut links = Vec::new();
    for (id, seconds) in [("2", 60), ("3", 60), ("4", 2)] {
        let token = cluster.token("bob", id, own, seconds);
        links.push(dialer.connect_with_token(address, &token).await.expect("connected"));
    }
    let revoke = vec!["token-id/ostraca/2".to_owned()];
    let revoke = RevocationsRequest { revoke, ..Default::default() };
    cluster.admin.revocations(revoke).await.expect("revoked");
    for (link, why) in [(&links[0], "token-id/ostraca/2 is revoked"), (&links[2], "expired")] {
        let closed = tokio::time::timeout(SPREAD, link.closed()).await.expect("closed in time");
        assert!(closed.to_string().contains(why), "{closed}");
    }
    // Another token of the same holder still counts, until the holder is revoked.
    let open = tokio::time::timeout(Duration::from_millis(100), links[1].closed()).await;
    assert!(open.is_err(), "{open:?}");
    let revoke = vec!["token/ostraca/bob".to_owned()];
    let revoke = RevocationsRequest { revoke, ..Default::default() };
    cluster.admin.revocations(revoke).await.expect("revoked");
    let closed = tokio::time::timeout(SPREAD, links[1].closed()).await.expect("closed in time");
    assert!(closed.to_string().contains("token/ostraca/bob is revoked"), "{closed}");
    let nobody = dialer.connect(address).await.expect_err("refused");
    assert_eq!(nobody.code(), "unauthenticated");
    bob.close().await;
    // A policy without the issuer ends what its tokens have opened.
    let token = cluster.token("carol", "5", own, 60);
    let link = dialer.connect_with_token(address, &token).await.expect("connected");
    cluster.set_policy(grant).await.expect("set");
    let closed = tokio::time::timeout(SPREAD, link.closed()).await.expect("closed in time");
    assert!(closed.to_string().contains("issuer"), "{closed}");
    cluster.stop().await;
}
