use bytes::Bytes;
use ostraca_wire::proto::{
    ActivateRequest, ClusterConfigRequest, ClusterSetting, MoveShardsRequest, NamespacesRequest,
    NewPool, PlacementRequest, PolicyRequest, PoolCopyRequest, PoolsRequest, RevocationsRequest,
    Rollout, ShardAtNode, ShardRange, UndeployRequest, Variable, VariableKind, VariableName,
    VariablesRequest,
};
use ostraca_wire::server::{Upload, UploadPermit};

use super::*;

fn text(request: &AdminOperation) -> String {
    let line = |it: Change| format!("{}|{}|{}", it.action, it.target, it.details);
    let lines: Vec<_> = changes(request).into_iter().map(line).collect();
    if lines.is_empty() { "nothing".into() } else { lines.join("; ") }
}

fn upload(inactive: bool, dry_run: bool) -> AdminOperation {
    AdminOperation::Deploy(Upload {
        manifest: "type = \"cart\"\ncomponent = \"a.wasm\"\n".into(),
        component: Bytes::new(),
        digest: [0xab; 32],
        expected_revision: None,
        inactive,
        dry_run: dry_run.then(Default::default),
        permit: UploadPermit::unmetered(),
    })
}

fn quotas(entities: Option<NewLimit>, turns_per_second: Option<NewLimit>) -> AdminOperation {
    let namespace = "acme".into();
    let changes = QuotaChanges { namespace, entities, state_bytes: None, turns_per_second };
    let (create, change_quotas) = (String::new(), Some(changes));
    AdminOperation::Namespaces(NamespacesRequest { create, change_quotas })
}

#[test]
fn each_change_says_what_it_concerns_and_how() {
    use AdminOperation as Op;
    let limit = |limit| Some(NewLimit { limit });
    let cart = || "cart".to_owned();
    let rollout = Some(Rollout { per_mille: Some(50), ..Default::default() });
    let settings = vec![ClusterSetting { name: "lease".into(), value: "5 s".into() }];
    let revoke = RevocationsRequest {
        revoke: vec!["client/a".into(), "client/b".into()],
        restore: vec!["client/c".into()],
        reason: "left".into(),
    };
    let restore = RevocationsRequest { restore: vec!["client/a".into()], ..Default::default() };
    let set = PolicyRequest { text: Some("x".into()), force: true, ..Default::default() };
    let at = |shard, node: &str| ShardAtNode { shard, node: node.into() };
    let pins = vec![at(3, "n1"), at(4, "")];
    let range = Some(ShardRange { first: 1, last: 9, ..Default::default() });
    let secret = Variable {
        kind: VariableKind::Secret.into(),
        name: "api-key".into(),
        value: "hidden".into(),
        ..Default::default()
    };
    let set_secret = VariablesRequest { r#type: cart(), set: Some(secret), ..Default::default() };
    let removed = VariableName { kind: VariableKind::Setting.into(), name: "greeting".into() };
    let remove_setting =
        VariablesRequest { r#type: cart(), remove: Some(removed), ..Default::default() };
    let copy = PoolCopyRequest { from: "a".into(), to: "b".into(), release_timeout_ms: 1 };
    let new_pool = Some(NewPool { name: "orders".into(), shards: 8, ..Default::default() });
    for (request, expected) in [
        (upload(false, false), "deploy|cart|component abababababababab"),
        (upload(true, false), "deploy|cart|component abababababababab, inactive"),
        (upload(false, true), "deploy --dry-run|cart|"),
        (
            Op::Activate(ActivateRequest { r#type: cart(), revision: Some(3), rollout }),
            "activate|cart|revision 3, to 50 of 1,000 entities and 0 shards",
        ),
        (
            Op::Activate(ActivateRequest { r#type: cart(), ..Default::default() }),
            "activate|cart|the revision before",
        ),
        (Op::Undeploy(UndeployRequest { r#type: cart() }), "undeploy|cart|"),
        (Op::Drain { node: "n1".into(), undo: false }, "drain|n1|"),
        (Op::Drain { node: "n1".into(), undo: true }, "drain|n1|undone"),
        (Op::Forget { node: "n1".into() }, "forget|n1|"),
        (Op::Rebalance, "rebalance||"),
        (Op::RebalancePlan, "nothing"),
        (Op::Pools(PoolsRequest::default()), "nothing"),
        (Op::Pools(PoolsRequest { create: new_pool }), "pool create|orders|8 shards"),
        (Op::PoolCopy(copy), "pool copy|a|to b"),
        (Op::Namespaces(NamespacesRequest::default()), "nothing"),
        (
            Op::Namespaces(NamespacesRequest { create: "acme".into(), change_quotas: None }),
            "namespace create|acme|",
        ),
        (quotas(limit(Some(10)), limit(Some(5))), "namespace quota|acme|entities 10, turns 5"),
        (quotas(limit(None), None), "namespace quota|acme|entities none"),
        (Op::Placement(PlacementRequest::default()), "nothing"),
        (
            Op::Placement(PlacementRequest { pins: pins.clone(), ..Default::default() }),
            "shards pin||3 to n1, 4 unpinned",
        ),
        (
            Op::Placement(PlacementRequest { moves: vec![pins[0].clone()], ..Default::default() }),
            "shards move||3 to n1",
        ),
        (Op::MoveShards(MoveShardsRequest { wanted: range }), "store move||shards 1 to 9"),
        (Op::MoveShards(MoveShardsRequest::default()), "nothing"),
        (
            Op::Cluster(ClusterConfigRequest { changes: settings, upgrade_format: true }),
            "cluster||lease = 5 s, format raised",
        ),
        (Op::Cluster(ClusterConfigRequest::default()), "nothing"),
        (Op::Policy(set), "policy set||1 bytes, 3ae7d805f6789a64, forced"),
        (Op::Policy(PolicyRequest::default()), "nothing"),
        (
            Op::Revocations(revoke),
            "revoke|client/a|left; revoke|client/b|left; revoke --undo|client/c|left",
        ),
        (Op::Revocations(restore), "revoke --undo|client/a|"),
        (Op::Revocations(RevocationsRequest::default()), "nothing"),
        (Op::Variables(set_secret), "secret set|cart|api-key"),
        (Op::Variables(remove_setting), "setting remove|cart|greeting"),
        (Op::Variables(VariablesRequest::default()), "nothing"),
        (Op::Backup, "backup||"),
        (Op::Status, "nothing"),
        (Op::Figures, "nothing"),
        (Op::WhoAmI, "nothing"),
        (Op::Pauses, "nothing"),
    ] {
        assert_eq!(text(&request), expected, "{request:?}");
    }
}
