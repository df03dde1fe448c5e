//! Namespaces: tenants with the same type and the same ids, on a cluster of two nodes, and one that tries to reach another.

mod common;

use std::time::{Duration, Instant};

use common::{COUNTER, client, counter, guest, joined, make, start};
use ostraca_ca::Ca;
use ostraca_client::{
    AdminError, CallError, CallOptions, ChannelEvent, Client, Entity, NewLimit, NewPool, Profile,
    QuotaChanges, SubscribeFrom,
};
use ostraca_node::{InitializedCluster, Node};
use ostraca_wire::proto::{
    DeadLettersRequest, EntitiesRequest, PolicyRequest, Variable, VariableKind, VariablesRequest,
};

const GRACE: Duration = Duration::from_secs(20);
/// Within this time, a change has reached every node.
const SPREAD: Duration = Duration::from_secs(5);
const SENDING: &str = "type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[grants]\ntell = [\"misbehaving\"]\nask = [\"misbehaving\"]\n[access]\nsend = [\"client/*\", \"entity/misbehaving\"]\n[channels]\nkeep-items = 10\n";
const EMITTED: &str = r#"{"channel": "news", "size": 10, "count": 1}"#;

const POLICY: &str = r#"
    [roles.tenant]
    permissions = ["command", "query", "manage", "view", "read-state", "deploy"]

    [[grants]]
    principals = ["client/admin"]
    roles = ["operator"]

    [[grants]]
    principals = ["client/acme"]
    roles = ["tenant"]
    namespaces = ["acme"]

    [[grants]]
    principals = ["client/evil"]
    roles = ["tenant"]
    namespaces = ["evil"]
"#;

struct Cluster {
    _dir: tempfile::TempDir,
    cluster: InitializedCluster,
    nodes: Vec<Node>,
    admin: Client,
}

impl Cluster {
    /// Two nodes with the namespaces `acme` and `evil`, each for a client of that name.
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let cluster = make(&dir.path().join("n1"));
        let first = start(&dir.path().join("n1")).await;
        let second = start(&joined(dir.path(), &first, &cluster)).await;
        let admin = client(&first, &cluster).await;
        for name in ["acme", "evil"] {
            let all = admin.namespaces(Some(name)).await.expect("created");
            assert!(all.iter().any(|it| it.name == name && it.created_by == "client/admin"));
        }
        let policy = PolicyRequest { text: Some(POLICY.into()), ..PolicyRequest::default() };
        admin.policy(policy).await.expect("set");
        Self { _dir: dir, cluster, nodes: vec![first, second], admin }
    }

    /// A client with this name, in a namespace.
    async fn tenant(&self, node: usize, name: &str, namespace: &str) -> Client {
        let identity = Ca::load(&self.cluster.ca).and_then(|ca| ca.issue_client(name));
        let address = self.nodes[node].address().to_string();
        let identity = identity.expect("an identity");
        let mut profile = Profile::new(vec![address], &self.cluster.ca_pem, &identity);
        profile.namespace = namespace.into();
        let client = Client::connect(profile).await.expect("a connection");
        // The policy must have reached this node.
        let since = Instant::now();
        while client.deployments().await.is_err() {
            assert!(since.elapsed() < SPREAD, "the policy took longer than {SPREAD:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        client
    }

    async fn stop(self) {
        self.admin.close().await;
        for node in self.nodes.into_iter().rev() {
            node.stop(GRACE).await;
        }
    }
}

/// What a refusal says, without the name that was asked for.
fn refusal<T>(result: Result<T, AdminError>, name: &str) -> String {
    match result {
        Ok(_) => "not refused".into(),
        Err(error) => format!("{error}").replace(name, "NAME"),
    }
}

fn call_refusal<T>(result: Result<T, CallError>, name: &str) -> String {
    match result {
        Ok(_) => "not refused".into(),
        Err(error) => format!("{}: {error}", error.code()).replace(name, "NAME"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_with_equal_names_share_nothing() {
    let cluster = Cluster::start().await;
    let acme = cluster.tenant(0, "acme", "acme").await;
    let evil = cluster.tenant(1, "evil", "evil").await;
    for tenant in [&acme, &evil] {
        tenant.deploy(COUNTER, counter(), None).await.expect("deployed");
    }
    for id in 0..20 {
        let entity = Entity::new("counter", format!("e{id}"));
        acme.session().command(&entity, "add", "5").await.expect("added");
        let read = evil.session().query(&entity, "get", "").await.expect("read");
        assert_eq!(read.body, "0", "{entity}");
        evil.session().command(&entity, "add", "2").await.expect("added");
        let read = acme.session().query(&entity, "get", "").await.expect("read");
        assert_eq!(read.body, "5", "{entity}");
    }
    // Neither sees the other's type or entities, and the namespace `default` has neither.
    for (tenant, name) in [(&acme, "acme:counter"), (&evil, "evil:counter")] {
        let listed = tenant.deployments().await.expect("listed");
        let listed: Vec<_> = listed.into_iter().map(|it| (it.namespace, it.r#type)).collect();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].1, name);
        assert_eq!(format!("{}:counter", listed[0].0), name);
        let page = EntitiesRequest { r#type: "counter".into(), limit: 100, ..Default::default() };
        let page = tenant.entities(page).await.expect("listed");
        assert_eq!(page.entities.len(), 20);
        assert!(page.entities.iter().all(|it| it.r#type == name), "{page:?}");
    }
    let nowhere = cluster.admin.session().query(&Entity::new("counter", "e0"), "get", "").await;
    assert_eq!(nowhere.err().map(|it| it.code().to_owned()).as_deref(), Some("unknown-type"));
    acme.close().await;
    evil.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entities_send_within_their_namespace() {
    let cluster = Cluster::start().await;
    let acme = cluster.tenant(0, "acme", "acme").await;
    let evil = cluster.tenant(1, "evil", "evil").await;
    let component = guest("misbehaving");
    for tenant in [&acme, &evil] {
        tenant.deploy(SENDING, component.clone(), None).await.expect("deployed");
    }
    cluster.admin.deploy(SENDING, component, None).await.expect("deployed");
    let sender = Entity::new("misbehaving", "sender");
    let ids: Vec<_> = (0..10).map(|id| format!("t{id}")).collect();
    let told = serde_json::json!({ "ids": ids, "key": "told" }).to_string();
    acme.session().command(&sender, "tell_add", told).await.expect("told");
    for id in &ids {
        let target = Entity::new("misbehaving", id.as_str());
        let since = Instant::now();
        let read = |client: &Client| {
            let session = client.session();
            let target = target.clone();
            async move { session.query(&target, "read", "\"told\"").await.expect("read").body }
        };
        while read(&acme).await != "\"1\"" {
            assert!(since.elapsed() < SPREAD, "the tell to {id} took longer than {SPREAD:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for other in [&evil, &cluster.admin] {
            assert_ne!(read(other).await, "\"1\"", "{id}");
        }
    }
    // An ask reaches the namesake in its own namespace, and no name leads elsewhere.
    let ask = |of: &str| {
        serde_json::json!({
            "of": of, "id": "t0", "method": "read", "body": "\"told\"", "count": 1, "ms": 5_000
        })
        .to_string()
    };
    let asked = acme.session().command(&sender, "ask", ask("misbehaving")).await.expect("asked");
    assert!(String::from_utf8_lossy(&asked.body).contains('1'), "{asked:?}");
    for elsewhere in ["acme:misbehaving", "evil:misbehaving"] {
        for client in [&acme, &evil, &cluster.admin] {
            let refused = client.session().command(&sender, "ask", ask(elsewhere)).await;
            let code = refused.err().map(|error| error.code().to_owned());
            assert_eq!(code.as_deref(), Some("ask-not-granted"), "{elsewhere}");
        }
    }
    // Items of its entities reach a tenant, also under the name that the type has in the cluster.
    let mut items = acme.subscribe(&sender, "news", SubscribeFrom::Now);
    let mut others = evil.subscribe(&sender, "news", SubscribeFrom::Now);
    for items in [&mut items, &mut others] {
        items.established().await.expect("established");
    }
    let in_cluster = Entity::new("acme:misbehaving", "sender");
    acme.session().command(&in_cluster, "emit", EMITTED).await.expect("emitted");
    let item = tokio::time::timeout(SPREAD, items.next()).await.expect("in time").expect("an item");
    assert!(matches!(item, ChannelEvent::Item(_)), "{item:?}");
    let none = tokio::time::timeout(Duration::from_millis(500), others.next()).await;
    assert!(none.is_err(), "{none:?}");
    acme.close().await;
    evil.close().await;
    cluster.stop().await;
}

/// What everything that a client can ask about a type says, without the type's name.
async fn refusals(client: &Client, name: &str) -> Vec<String> {
    let entity = Entity::new(name, "alice");
    let session = client.session();
    let options = CallOptions::default();
    let manifest = match name.split_once(':') {
        Some((namespace, local)) => {
            format!("namespace = \"{namespace}\"\ntype = \"{local}\"\ncomponent = \"c.wasm\"\n")
        }
        None => format!("namespace = \"default\"\ntype = \"{name}\"\ncomponent = \"c.wasm\"\n"),
    };
    let secret = Variable {
        kind: VariableKind::Secret.into(),
        name: "key".into(),
        value: "x".into(),
        ..Variable::default()
    };
    let (r#type, limit) = (name.to_owned(), 10);
    let entities = EntitiesRequest { r#type: r#type.clone(), limit, ..Default::default() };
    let letters = DeadLettersRequest { r#type: r#type.clone(), limit, ..Default::default() };
    let variables = VariablesRequest { r#type: r#type.clone(), ..Default::default() };
    let set = VariablesRequest { r#type, set: Some(secret), ..Default::default() };
    let mut items = client.subscribe(&entity, "news", SubscribeFrom::Oldest);
    let followed = items.established().await.err().map(|error| error.to_string());
    vec![
        call_refusal(session.command(&entity, "add", "1").await, name),
        call_refusal(session.query(&entity, "get", "").await, name),
        call_refusal(session.forget_entity(&entity, &options).await, name),
        call_refusal(session.restart_entity(&entity, &options).await, name),
        followed.unwrap_or_else(|| "not refused".into()).replace(name, "NAME"),
        refusal(client.deployment(name).await, name),
        refusal(client.methods(name).await, name),
        refusal(client.entities(entities).await, name),
        refusal(client.inspect(&entity, false).await, name),
        refusal(client.inspect(&entity, true).await, name),
        refusal(client.dead_letters(letters).await, name),
        refusal(client.export(&entity).await, name),
        refusal(client.activate(name, None).await, name),
        refusal(client.undeploy(name).await, name),
        refusal(client.variables(variables).await, name),
        refusal(client.variables(set).await, name),
        refusal(client.deploy(&manifest, counter(), None).await, name),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_cannot_tell_what_another_has() {
    let cluster = Cluster::start().await;
    let acme = cluster.tenant(0, "acme", "acme").await;
    acme.deploy(COUNTER, counter(), None).await.expect("deployed");
    cluster.admin.deploy(COUNTER, counter(), None).await.expect("deployed");
    let alice = Entity::new("counter", "alice");
    acme.session().command(&alice, "add", "5").await.expect("added");
    for node in [0, 1] {
        let evil = cluster.tenant(node, "evil", "evil").await;
        let exists = refusals(&evil, "acme:counter").await;
        for (at, text) in exists.iter().enumerate() {
            assert!(text.contains("access-denied") || text.contains("may not"), "{at}: {text}");
        }
        // A type that is not deployed, in a namespace that exists and in one that does not.
        for missing in ["acme:nothing", "nowhere:counter"] {
            let namespace = missing.split(':').next().expect("a namespace");
            let same = |text: &String| text.replace("`acme`", "NS");
            let expected: Vec<_> = exists.iter().map(same).collect();
            let found = refusals(&evil, missing).await;
            let found: Vec<_> =
                found.iter().map(|text| text.replace(&format!("`{namespace}`"), "NS")).collect();
            assert_eq!(found, expected, "{missing} at node {node}");
        }
        // The namespace of those who have none.
        let exists = refusals(&cluster.tenant(node, "evil", "default").await, "counter").await;
        assert!(!exists.iter().any(|text| text == "not refused"), "{exists:?}");
        let missing = refusals(&cluster.tenant(node, "evil", "default").await, "nothing").await;
        assert_eq!(exists, missing);
        // Nothing about the cluster as a whole, of which other tenants are a part.
        for refused in [
            evil.status().await.err(),
            evil.figures().await.err(),
            evil.shard_figures().await.err(),
            evil.shards().await.err(),
            evil.pools(None).await.err(),
            evil.namespaces(None).await.err(),
            evil.namespaces(Some("more")).await.err(),
            evil.audit(Default::default()).await.err(),
            evil.entities(EntitiesRequest { limit: 10, ..Default::default() }).await.err(),
        ] {
            let refused = refused.expect("refused");
            assert_eq!(refused.code(), "access-denied", "{refused}");
        }
        assert!(evil.deployments().await.expect("listed").is_empty());
        assert!(evil.who_am_i().await.expect("shown").types.is_empty());
        evil.close().await;
    }
    let read = acme.session().query(&alice, "get", "").await.expect("read");
    assert_eq!(read.body, "5");
    acme.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_created_before_it_is_used() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let manifest = format!("namespace = \"later\"\n{COUNTER}");
    let refused = admin.deploy(&manifest, counter(), None).await.expect_err("refused");
    assert_eq!(refused.code(), "unknown-namespace");
    let entity = Entity::new("later:counter", "alice");
    let refused = admin.session().query(&entity, "get", "").await.expect_err("refused");
    assert_eq!(refused.code(), "unknown-namespace");
    for bad in ["Later", "a:b", "a/b", "9"] {
        let refused = admin.namespaces(Some(bad)).await.expect_err("refused");
        assert_eq!(refused.code(), "invalid-namespace", "{bad:?}");
    }
    admin.namespaces(Some("later")).await.expect("created");
    admin.namespaces(Some("later")).await.expect("created again, which changes nothing");
    admin.deploy(&manifest, counter(), None).await.expect("deployed");
    admin.session().command(&entity, "add", "3").await.expect("added");
    let read = admin.session().query(&entity, "get", "").await.expect("read");
    assert_eq!(read.body, "3");
    cluster.stop().await;
}

/// Sends the same commands through both nodes until one of them is refused by this code.
async fn until_refused(tenant: &Client, ids: &str, code: &str) -> u64 {
    let once = CallOptions { retry: false, ..CallOptions::default() };
    let since = Instant::now();
    for made in 0.. {
        assert!(since.elapsed() < GRACE, "nothing is refused by {code}");
        let entity = Entity::new("counter", format!("{ids}{made}"));
        match tenant.session().send(&entity, "add", "1", &once).await {
            Ok(_) => {}
            Err(error) if error.code() == code => return made,
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_at_every_node_and_for_one_namespace() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let acme = cluster.tenant(0, "acme", "acme").await;
    let evil = cluster.tenant(1, "evil", "evil").await;
    for owner in [&acme, &evil] {
        owner.deploy(COUNTER, counter(), None).await.expect("deployed");
    }
    let limit = |limit| Some(NewLimit { limit });
    let changes = || QuotaChanges { namespace: "acme".into(), ..QuotaChanges::default() };
    let entities = |entities| QuotaChanges { entities: limit(entities), ..changes() };
    let turns = |turns| QuotaChanges { turns_per_second: limit(turns), ..changes() };
    let unknown = QuotaChanges { namespace: "nowhere".into(), ..entities(Some(1)) };
    let refused = admin.change_quotas(unknown).await.expect_err("refused");
    assert_eq!(refused.code(), "unknown-namespace");
    let refused = acme.change_quotas(entities(None)).await.expect_err("refused");
    assert_eq!(refused.code(), "access-denied", "a tenant does not set its own");

    admin.change_quotas(entities(Some(5))).await.expect("set");
    let made = until_refused(&acme, "a", "quota-entities").await;
    assert!(made >= 5, "{made}");
    let other_node = cluster.tenant(1, "acme", "acme").await;
    until_refused(&other_node, "b", "quota-entities").await;
    let first = Entity::new("counter", "a0");
    acme.session().command(&first, "add", "1").await.expect("it exists");
    let free = evil.session().command(&Entity::new("counter", "e"), "add", "1").await;
    free.expect("another namespace");
    let all = admin.namespaces(None).await.expect("listed");
    let acme_row = all.iter().find(|it| it.name == "acme").expect("acme");
    let (quotas, usage) = (acme_row.quotas.as_ref().expect("quotas"), acme_row.usage.as_ref());
    assert_eq!((quotas.entities, quotas.turns_per_second), (Some(5), None));
    assert!(usage.expect("measured").entities >= 5, "{usage:?}");
    assert_eq!(acme_row.created_by, "client/admin", "quotas change nothing else of the row");
    let evil_row = all.iter().find(|it| it.name == "evil").expect("evil");
    assert_eq!((&evil_row.quotas, &evil_row.usage), (&None, &None));

    // 0 lets nothing through but what the budget holds at first.
    admin.change_quotas(turns(Some(0))).await.expect("set");
    for tenant in [&acme, &other_node] {
        until_refused(tenant, "a", "quota-turns").await;
    }
    // Operators who change different quotas at the same time do not undo each other's.
    let (one, other) = (entities(Some(1_000)), turns(Some(1_000)));
    let both = tokio::join!(admin.change_quotas(one), admin.change_quotas(other));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    let all = admin.namespaces(None).await.expect("listed");
    let quotas = all.iter().find(|it| it.name == "acme").and_then(|it| it.quotas.as_ref());
    let quotas = quotas.expect("quotas");
    assert_eq!((quotas.entities, quotas.turns_per_second), (Some(1_000), Some(1_000)));
    for none in [entities(None), turns(None)] {
        admin.change_quotas(none).await.expect("set");
    }
    let patient = CallOptions { timeout: GRACE, ..CallOptions::default() };
    acme.session().send(&first, "add", "1", &patient).await.expect("no quotas");
    let all = admin.namespaces(None).await.expect("listed");
    let acme_row = all.iter().find(|it| it.name == "acme").expect("acme");
    assert_eq!((&acme_row.quotas, &acme_row.usage), (&None, &None));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tell_to_another_namespace_is_not_imported() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let acme = cluster.tenant(1, "acme", "acme").await;
    let component = guest("misbehaving");
    for owner in [admin, &acme] {
        owner.deploy(SENDING, component.clone(), None).await.expect("deployed");
    }
    let [sender, target] = ["sender", "target"].map(|id| Entity::new("misbehaving", id));
    let later = r#"{"name":"t","id":"target","text":"forged","ms":3000}"#;
    admin.session().command(&sender, "tell_later", later).await.expect("set");
    let copy = admin.export(&sender).await.expect("exported");
    admin.session().command(&sender, "cancel_tell", "\"t\"").await.expect("cancelled");
    // The copy names its target as the cluster does: an entity of the namespace `default`.
    let imported = acme.session().import_entity(&sender, copy, &CallOptions::default()).await;
    let refused = imported.expect_err("refused").to_string();
    assert!(
        refused.contains("`misbehaving`, to which `acme:misbehaving` may not send"),
        "{refused}"
    );
    let page = EntitiesRequest { r#type: "misbehaving".into(), limit: 10, ..Default::default() };
    assert_eq!(acme.entities(page).await.expect("listed").entities.len(), 0);
    for owner in [admin, &acme] {
        let notes = owner.session().query(&target, "notes", "").await.expect("read").body;
        assert_eq!(notes, "[]");
    }
    acme.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_no_pool_but_its_own() {
    let cluster = Cluster::start().await;
    let acme = cluster.tenant(0, "acme", "acme").await;
    let evil = cluster.tenant(0, "evil", "evil").await;
    let pool = NewPool { name: "acme".into(), shards: 8, ..NewPool::default() };
    cluster.admin.pools(Some(pool)).await.expect("created");
    let manifest = |pool: &str| format!("{COUNTER}pool = \"{pool}\"\n");
    let mut refused = Vec::new();
    for pool in ["acme", "none"] {
        let result = evil.deploy(&manifest(pool), counter(), None).await;
        refused.push(refusal(result, pool));
    }
    assert!(refused[0].contains("unknown-pool"), "{refused:?}");
    assert_eq!(refused[0], refused[1], "whether the pool exists or not");
    acme.deploy(&manifest("acme"), counter(), None).await.expect("deployed");
    let alice = Entity::new("counter", "alice");
    acme.session().command(&alice, "add", "1").await.expect("added");
    let shard = acme.inspect(&alice, false).await.expect("shown").shard;
    assert!((65..=72).contains(&shard), "{shard}");
    acme.close().await;
    evil.close().await;
    cluster.stop().await;
}
