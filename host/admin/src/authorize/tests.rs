use bytes::Bytes;
use ostraca_config::Policy;
use ostraca_wire::proto::{
    ActivateRequest, AuditRequest, ClusterConfigRequest, ClusterSetting, DeadLettersRequest,
    EntitiesRequest, EventsRequest, ExportRequest, InspectRequest, MoveShardsRequest,
    NamespacesRequest, NewPool, PlacementRequest, PolicyRequest, PoolCopyRequest, PoolsRequest,
    QuotaChanges, RevocationsRequest, ShardAtNode, ShardsRequest, UndeployRequest, Variable,
    VariablesRequest,
};
use ostraca_wire::server::{Upload, UploadPermit};

use super::*;

/// A role of its own, the four built-in ones, and the same restricted to the type `cart`.
const POLICY: &str = r#"
    [roles.support]
    permissions = ["view", "read-state"]
    types = ["cart"]

    [[grants]]
    principals = ["client/operator"]
    roles = ["operator"]

    [[grants]]
    principals = ["client/deployer"]
    roles = ["deployer"]

    [[grants]]
    principals = ["client/client"]
    roles = ["client"]

    [[grants]]
    principals = ["client/viewer"]
    roles = ["viewer"]

    [[grants]]
    principals = ["client/cart-operator"]
    roles = ["operator"]
    types = ["cart"]

    [[grants]]
    principals = ["client/support"]
    roles = ["support"]
"#;

/// In the order of the letters in the table below.
const PRINCIPALS: [(char, &str); 8] = [
    ('o', "client/operator"),
    ('d', "client/deployer"),
    ('c', "client/client"),
    ('v', "client/viewer"),
    ('O', "client/cart-operator"),
    ('s', "client/support"),
    ('-', "client/nobody"),
    ('n', "node/n1"),
];

fn upload(manifest: &str) -> AdminOperation {
    AdminOperation::Deploy(Upload {
        manifest: manifest.into(),
        component: Bytes::new(),
        digest: [0; 32],
        expected_revision: None,
        inactive: false,
        dry_run: None,
        permit: UploadPermit::unmetered(),
    })
}

fn deploy(entity_type: &str) -> AdminOperation {
    upload(&format!("type = \"{entity_type}\"\ncomponent = \"a.wasm\"\n"))
}

fn entities(name: &str) -> AdminOperation {
    AdminOperation::Entities(EntitiesRequest { r#type: name.into(), ..Default::default() })
}

fn inspect(name: &str, values: bool) -> AdminOperation {
    let request = InspectRequest { r#type: name.into(), values, ..Default::default() };
    AdminOperation::Inspect(request)
}

fn dead_letters(name: &str, values: bool) -> AdminOperation {
    let request = DeadLettersRequest { r#type: name.into(), values, ..Default::default() };
    AdminOperation::DeadLetters(request)
}

fn activate(name: &str) -> AdminOperation {
    AdminOperation::Activate(ActivateRequest { r#type: name.into(), ..Default::default() })
}

fn undeploy(name: &str) -> AdminOperation {
    AdminOperation::Undeploy(UndeployRequest { r#type: name.into() })
}

fn export(name: &str) -> AdminOperation {
    AdminOperation::Export(ExportRequest { r#type: name.into(), ..Default::default() })
}

fn cluster(change: bool, upgrade_format: bool) -> AdminOperation {
    let changes = if change { vec![ClusterSetting::default()] } else { Vec::new() };
    AdminOperation::Cluster(ClusterConfigRequest { changes, upgrade_format })
}

fn policy(text: Option<&str>) -> AdminOperation {
    let text = text.map(str::to_owned);
    AdminOperation::Policy(PolicyRequest { text, ..Default::default() })
}

fn variables(entity_type: &str, set: bool) -> AdminOperation {
    let set = set.then(Variable::default);
    AdminOperation::Variables(VariablesRequest {
        r#type: entity_type.into(),
        set,
        ..Default::default()
    })
}

fn revocations(revoke: &[&str], restore: &[&str]) -> AdminOperation {
    let owned = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
    let (revoke, restore) = (owned(revoke), owned(restore));
    AdminOperation::Revocations(RevocationsRequest { revoke, restore, reason: String::new() })
}

#[test]
fn each_request_is_for_exactly_these_roles() {
    let drain = |undo| AdminOperation::Drain { node: "n1".into(), undo };
    let named = |name: &str| Some(name.to_owned());
    let table = [
        ("deploy cart", deploy("cart"), "odOn"),
        ("deploy order", deploy("order"), "odn"),
        ("deploy something unreadable", upload("type = "), "odOn"),
        ("activate cart", activate("cart"), "odOn"),
        ("activate order", activate("order"), "odn"),
        ("undeploy cart", undeploy("cart"), "odOn"),
        ("undeploy order", undeploy("order"), "odn"),
        ("secrets of cart", variables("cart", false), "odOn"),
        ("set a secret of cart", variables("cart", true), "odOn"),
        ("set a secret of order", variables("order", true), "odn"),
        ("deployments", AdminOperation::Deployments(None), "odvOsn"),
        ("deployments of cart", AdminOperation::Deployments(named("cart")), "odvOsn"),
        ("deployments of order", AdminOperation::Deployments(named("order")), "odvn"),
        ("methods of cart", AdminOperation::Methods("cart".into()), "odcvOsn"),
        ("methods of order", AdminOperation::Methods("order".into()), "odcvn"),
        ("node", AdminOperation::Node, "odcvOsn"),
        ("nodes", AdminOperation::Nodes, "odcvOsn"),
        ("status", AdminOperation::Status, "odvn"),
        ("shards", AdminOperation::Shards(ShardsRequest::default()), "odvn"),
        ("pauses", AdminOperation::Pauses, "odvn"),
        ("who am I", AdminOperation::WhoAmI, "odcvOs-n"),
        ("figures", AdminOperation::Figures, "odvn"),
        ("shard figures", AdminOperation::ShardFigures, "odvn"),
        ("events", AdminOperation::Events(EventsRequest::default()), "odvn"),
        ("plan of a rebalance", AdminOperation::RebalancePlan, "odvn"),
        ("pools", AdminOperation::Pools(PoolsRequest::default()), "odvn"),
        (
            "a new pool",
            AdminOperation::Pools(PoolsRequest { create: Some(NewPool::default()) }),
            "on",
        ),
        ("a copy of a pool", AdminOperation::PoolCopy(PoolCopyRequest::default()), "on"),
        ("namespaces", AdminOperation::Namespaces(NamespacesRequest::default()), "odvn"),
        (
            "a new namespace",
            AdminOperation::Namespaces(NamespacesRequest {
                create: "acme".into(),
                change_quotas: None,
            }),
            "on",
        ),
        (
            "quotas of a namespace",
            AdminOperation::Namespaces(NamespacesRequest {
                create: String::new(),
                change_quotas: Some(QuotaChanges::default()),
            }),
            "on",
        ),
        ("placement", AdminOperation::Placement(PlacementRequest::default()), "odvn"),
        (
            "a pin",
            AdminOperation::Placement(PlacementRequest {
                pins: vec![ShardAtNode::default()],
                ..PlacementRequest::default()
            }),
            "on",
        ),
        ("entities", entities(""), "odvn"),
        ("entities of cart", entities("cart"), "odvOsn"),
        ("entities of order", entities("order"), "odvn"),
        ("inspect cart", inspect("cart", false), "odvOsn"),
        ("inspect cart with values", inspect("cart", true), "oOsn"),
        ("inspect order with values", inspect("order", true), "on"),
        ("dead letters", dead_letters("", false), "odvn"),
        ("dead letters of cart", dead_letters("cart", false), "odvOsn"),
        ("dead letters of cart with values", dead_letters("cart", true), "oOsn"),
        ("export cart", export("cart"), "oOsn"),
        ("export order", export("order"), "on"),
        ("back up", AdminOperation::Backup, "on"),
        ("drain", drain(false), "on"),
        ("stop draining", drain(true), "on"),
        ("forget", AdminOperation::Forget { node: "n1".into() }, "on"),
        ("move shards", AdminOperation::MoveShards(MoveShardsRequest::default()), "on"),
        ("rebalance", AdminOperation::Rebalance, "on"),
        ("cluster", cluster(false, false), "odvn"),
        ("change a setting", cluster(true, false), "on"),
        ("raise the format", cluster(false, true), "on"),
        ("policy", policy(None), "odvn"),
        ("set the policy", policy(Some("")), "on"),
        ("revocations", revocations(&[], &[]), "on"),
        ("audit log", AdminOperation::Audit(AuditRequest::default()), "on"),
        ("revoke", revocations(&["client/a"], &[]), "on"),
        ("restore", revocations(&[], &["client/a"]), "on"),
    ];
    let policy = Policy::parse(POLICY, "policy").expect("a policy");
    for (what, request, allowed) in &table {
        let may = |(letter, principal): &(char, &str)| {
            let permissions = policy.permissions(principal);
            authorize(principal, &permissions, request).is_ok().then_some(*letter)
        };
        let found: String = PRINCIPALS.iter().filter_map(may).collect();
        assert_eq!(found, *allowed, "{what}");
    }
}

#[test]
fn a_refusal_names_what_is_missing_and_the_roles() {
    let policy = Policy::parse(POLICY, "policy").expect("a policy");
    let refusal = |principal: &str, request| {
        let refused = authorize(principal, &policy.permissions(principal), &request);
        let problem = refused.expect_err("refused");
        assert_eq!((&*problem.code, problem.retryable), ("access-denied", false));
        format!("{}; {}", problem.message, problem.help)
    };
    let text = refusal("client/support", deploy("cart"));
    assert!(
        text.contains("`client/support` may not do this: it needs `deploy` on `cart`"),
        "{text}"
    );
    assert!(text.contains("its roles are: support"), "{text}");
    let text = refusal("client/nobody", AdminOperation::Nodes);
    assert!(text.contains("may not use this cluster") && text.contains("it has no role"), "{text}");
    let text = refusal("client/viewer", AdminOperation::Backup);
    assert!(text.contains("`operate` on all types"), "{text}");
}

#[test]
fn only_requests_without_data_are_judged_by_old_rows() {
    assert!(is_diagnostic(&AdminOperation::Status) && is_diagnostic(&AdminOperation::Node));
    for other in [
        deploy("cart"),
        policy(None),
        entities(""),
        AdminOperation::Shards(ShardsRequest::default()),
    ] {
        assert!(!is_diagnostic(&other), "{other:?}");
    }
}
