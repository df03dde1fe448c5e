//! The bytes of every message, including unused fields: a change here is a change to the protocol.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use ostraca_wire::frame::put_frame;
use ostraca_wire::proto::*;
use prost::Message;

fn same<M: Message + Default + PartialEq + Debug>(message: &M, golden: &str) {
    let bytes = message.encode_to_vec();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!(&M::decode(&bytes[..]).expect("reads back"), message);
}

fn some_problem() -> Problem {
    Problem {
        code: "c".into(),
        message: "m".into(),
        help: "h".into(),
        details: [("k".to_owned(), "v".to_owned())].into(),
        retryable: true,
        retry_after_ms: 7,
        hint: Some(problem::Hint::CreatedMs(8)),
    }
}

const PROBLEM: &str = "0a01631201 6d1a0168220 60a016b120176 280130074008";

#[test]
fn owner_hint() {
    let owner =
        Member { node: "n".into(), incarnation: Some(Incarnation { counter: 3, nonce: 4 }) };
    let hint = OwnerHint { epoch: 5, owner: Some(owner) };
    let message =
        Problem { hint: Some(problem::Hint::Owner(Box::new(hint))), ..Problem::default() };
    same(&message, "3a14080512100a016e120b0803110400000000000000");
}

#[test]
fn envelope() {
    let message = Envelope {
        namespace: "n".into(),
        r#type: "t".into(),
        id: "i".into(),
        session: Bytes::from_static(&[0xaa; 16]),
        sequence: 5,
        after: 4,
        settled: 3,
        kind: MessageKind::Query.into(),
        remaining_ms: 10,
        hops: 11,
        principal: "p".into(),
        origin: "o".into(),
        ask_chain: vec!["a".into(), "b".into()],
        traceparent: "x".into(),
        tracestate: "y".into(),
        content_type: "z".into(),
        route_epoch: 18,
        flags: 19,
        method: "m".into(),
        created_ms: 21,
        utc_ms: 22,
        sender: Some(SendingEntity { r#type: "t".into(), id: "i".into() }),
        asked_ms: 24,
        first_created_ms: 25,
        created_skew_ms: 26,
        body: Bytes::from_static(b"!"),
    };
    let session = "aa".repeat(16);
    let golden = format!(
        "0a016e1201741a01692210{session}2805300438034002500a580b6201706a016f\
         72016172016 27a0178820101798a01017a900112980113a201016da80115b00116\
         ba01060a0174120169c00118c80119d0011afa010121"
    );
    same(&message, &golden.replace(' ', ""));
}

#[test]
fn reply() {
    let message = Reply {
        sequence: 5,
        outcome: Outcome::NotRun.into(),
        problem: Some(some_problem()),
        epoch: 4,
        entity_version: 6,
        kind: MessageKind::Command.into(),
        content_type: "z".into(),
        flags: 8,
        body: Bytes::from_static(b"!"),
    };
    let problem = PROBLEM.replace(' ', "");
    let length = problem.len() / 2;
    same(
        &message,
        &format!("080510031a{length:02x}{problem}200428063001 3a017a4008fa010121").replace(' ', ""),
    );
}

#[test]
fn hello() {
    let message = Hello {
        cluster_id: Bytes::from_static(&[1; 16]),
        store_id: Bytes::from_static(&[2; 16]),
        node: "n".into(),
        incarnation: Some(Incarnation { counter: 3, nonce: 4 }),
        protocol_min: 1,
        protocol_max: 2,
        features: vec!["f".into()],
        required_features: vec!["r".into()],
        limits: Some(Limits {
            max_frame: 1,
            max_message: 2,
            session_in_flight_messages: 3,
            session_in_flight_bytes: 4,
            max_streams: 5,
            max_component: 6,
            peer_in_flight_requests: 7,
            peer_in_flight_request_bytes: 8,
            peer_in_flight_messages: 9,
            peer_in_flight_message_bytes: 10,
        }),
        software: "s".into(),
        roles: vec!["store".into()],
        shards: 12,
        hash: "h".into(),
        addresses: vec!["a".into()],
        format: 15,
        cluster_time_ms: 16,
        utc_ms: 17,
        token: "t".into(),
    };
    let golden = format!(
        "0a10{}1210{}1a016e220b080311040000000000000028013002\
         3a01664201724a14080110021803200428053006380740084809500a520173\
         5a0573746f7265600c6a0168720161780f80011088011192010174",
        "01".repeat(16),
        "02".repeat(16)
    );
    same(&message, &golden);
}

#[test]
fn streams_and_admin_requests() {
    let session = SessionOpen { session: Bytes::from_static(&[9; 16]) };
    let open = Open { stream: Some(open::Stream::Session(session)) };
    same(&open, &format!("12120a10{}", "09".repeat(16)));
    let deploy = DeployRequest {
        manifest: "m".into(),
        component_size: 3,
        digest: Bytes::from_static(&[8; 32]),
        expected_revision: Some(0),
        inactive: false,
        dry_run: Some(DryRun { ids: vec!["i".into()], sample: 2, query: "q".into() }),
    };
    let request = AdminRequest { request: Some(admin_request::Request::Deploy(deploy)) };
    same(&request, &format!("0a330a016d10031a20{}20005a080a016910021a0171", "08".repeat(32)));
    same(&ComponentFragment { data: Bytes::from_static(b"abc") }, "0a03616263");
    for (request, golden) in [
        (
            admin_request::Request::Deployments(DeploymentsRequest { r#type: "t".into() }),
            "12030a0174",
        ),
        (admin_request::Request::Methods(MethodsRequest { r#type: "t".into() }), "1a030a0174"),
        (admin_request::Request::Status(StatusRequest {}), "2200"),
        (admin_request::Request::Node(NodeRequest {}), "2a00"),
        (
            admin_request::Request::Activate(ActivateRequest {
                r#type: "t".into(),
                revision: Some(2),
                rollout: Some(Rollout {
                    per_mille: Some(3),
                    shards: Some(4),
                    rate: 5,
                    from: 6,
                    stopped: "w".into(),
                }),
            }),
            "c202120a017410021a0b08031004180520062a0177",
        ),
    ] {
        same(&AdminRequest { request: Some(request) }, golden);
    }
}

#[test]
fn deploy_without_activation_and_stored_revisions() {
    let deploy = DeployRequest { inactive: true, ..DeployRequest::default() };
    same(&deploy, "5001");
    let stored = StoredRevision {
        revision: 4,
        digest: Bytes::from_static(b"d"),
        component_size: 6,
        schema: 2,
        inactive: true,
    };
    same(&stored, "080412016418062002 2801".replace(' ', "").as_str());
    let deployment = Deployment { schema: 2, revisions: vec![stored], ..Deployment::default() };
    same(&deployment, "a00102aa010b08041201641806 20022801".replace(' ', "").as_str());
}

#[test]
fn admin_responses() {
    use admin_response::Response;
    let wrap = |response| AdminResponse { more: true, response: Some(response) };
    let problem = PROBLEM.replace(' ', "");
    same(
        &wrap(Response::Problem(some_problem())),
        &format!("080112{:02x}{problem}", problem.len() / 2),
    );
    let deployed = DeployResult {
        r#type: "t".into(),
        revision: 2,
        digest: Bytes::from_static(b"d"),
        unchanged: true,
        failed_hosts: vec![NodeIssue { node: "n".into(), reason: "w".into() }],
        pending_hosts: vec![NodeIssue { node: "m".into(), reason: "l".into() }],
    };
    same(
        &wrap(Response::Deployed(deployed)),
        "08011a1a0a017410021a016420012a060a016e12017732060a016d12016c",
    );
    let deployment = Deployment {
        namespace: "n".into(),
        r#type: "t".into(),
        revision: 3,
        digest: Bytes::from_static(b"d"),
        pool: "p".into(),
        component_size: 6,
        schema: 0,
        revisions: Vec::new(),
        rollout: None,
        live: vec![LiveEntities { revision: 3, count: 4 }],
        unreachable: Vec::new(),
    };
    let page = Deployments { deployments: vec![deployment] };
    same(
        &wrap(Response::Deployments(page)),
        "080122190a170a016e12017418032201642a01703006ba010408031004",
    );
    let methods = Methods {
        r#type: "t".into(),
        revision: 1,
        methods: vec![Method {
            name: "m".into(),
            kind: MessageKind::Command.into(),
            summary: "s".into(),
            schema: Some(MethodSchema { arguments: "a".into(), result: "r".into() }),
        }],
    };
    same(
        &wrap(Response::Methods(methods)),
        "08012a170a017410011a100a016d10011a0173 22060a0161120172".replace(' ', "").as_str(),
    );
    let status = Status {
        cluster_id: "c".into(),
        node: "n".into(),
        incarnation: "i".into(),
        uptime_ms: 4,
        store: "s".into(),
        metrics: [("a".to_owned(), 1)].into(),
        info: [("b".to_owned(), "t".to_owned())].into(),
        problems: vec![StatusProblem { code: "x".into(), message: "y".into(), help: "z".into() }],
        cluster_status: None,
    };
    same(
        &wrap(Response::Status(status)),
        "080132280a016312016e1a016920042a017332050a016110013a060a01621201744209\
         0a01781201791a017a",
    );
    let node = NodeInfo {
        cluster_id: "c".into(),
        node: "n".into(),
        version: "v".into(),
        addresses: vec!["a".into()],
    };
    same(&wrap(Response::Node(node)), "08013a0c0a016312016e1a0176220161");
}

#[test]
fn streams_between_nodes_and_what_goes_over_them() {
    use peer_open::Stream;
    let open = |stream| PeerOpen { stream: Some(stream) };
    same(&open(Stream::Hello(Hello { shards: 1, ..Hello::default() })), "0a026001");
    same(
        &open(Stream::Forwarding(ForwardingOpen {
            max_in_flight_messages: 1,
            max_in_flight_bytes: 2,
        })),
        "120408011002",
    );
    same(&open(Stream::EntityStore(EntityStoreOpen {})), "1a00");
    same(&open(Stream::ClusterStore(ClusterStoreOpen {})), "2200");
    same(&open(Stream::Control(ControlOpen {})), "2a00");
    same(&open(Stream::Inspect(InspectOpen {})), "3200");
    let envelope = Envelope { sequence: 5, ..Envelope::default() };
    same(&ForwardedMessage { tag: 1, envelope: Some(envelope) }, "080112022805");
    let reply = Reply { sequence: 5, ..Reply::default() };
    same(&ForwardedReply { tag: 1, reply: Some(reply) }, "080112020805");
    same(&RpcRequest { tag: 1, body: Bytes::from_static(b"abc") }, "08011203616263");
    let answer = RpcResponse { tag: 1, body: Bytes::from_static(b"abc"), omitted_size: 3 };
    same(&answer, "080112036162631803");
    let entity = InspectEntity { r#type: "t".into(), id: "i".into() };
    let shards = vec![InspectShard { shard: 1, entities: vec![entity] }];
    let request = PeerInspectRequest {
        shards,
        types: vec!["t".into()],
        count_live: true,
        figures: true,
        shard_figures: true,
        rebalance_plan: true,
        namespace_usage: true,
    };
    same(&request, "0a0a080112060a017412016912017418012001280130013801");
    let (code, message) = ("c".into(), "m".into());
    let failure = Some(LastFailure { code, message, unix_ms: 3, consecutive_failures: 4 });
    let activity = Some(EntityActivity { failed_starts: 6, ..EntityActivity::default() });
    let entity = InspectedEntity {
        active: true,
        mailbox_length: 2,
        last_failure: failure,
        running_revision: 5,
        activity,
        failed_migration: Some(FailedMigration { revision: 6, reason: "r".into() }),
    };
    let shards = vec![InspectedShard { held: true, entities: vec![entity] }];
    let live = vec![LiveEntities { revision: 3, count: 4 }];
    let failure_reason = "w".into();
    let types = vec![InspectedType { revision: 1, failed_revision: 2, failure_reason, live }];
    let figures = Some(NodeFigures { node: "n".into(), ..NodeFigures::default() });
    let shard_figures = vec![ShardFigures { shard: 3, ..ShardFigures::default() }];
    let moves = vec![ShardMove { shard: 3, from: "a".into(), to: "b".into() }];
    let rebalance_plan = Some(RebalancePlan { moves, blocked_reason: String::new() });
    let usage = NamespaceUsage {
        namespace: "n".into(),
        entities: 1,
        state_bytes: 2,
        turns_per_second: 3,
        is_complete: false,
    };
    let response = PeerInspectResponse {
        shards,
        types,
        figures,
        shard_figures,
        rebalance_plan,
        namespace_usage: vec![usage],
        counted_shards: 4,
    };
    let hex = concat!(
        "0a220801121e080110021a0a0a016312016d1803200450055a050806120172e203022806",
        "120d080110021a0177220408031004",
        "1a030a016e",
        "22020803",
        "2a0a0a080803120161",
        "1a0162",
        "32090a016e100118022003",
        "3804",
    );
    same(&response, hex);
}

/// The worked example in `docs/protocol.md`.
#[test]
fn the_example_of_the_documentation() {
    let envelope = Envelope {
        r#type: "counter".into(),
        id: "alice".into(),
        sequence: 1,
        settled: 1,
        kind: MessageKind::Command.into(),
        remaining_ms: 10_000,
        content_type: "application/json".into(),
        method: "add".into(),
        created_ms: 5_000,
        body: Bytes::from_static(b"1"),
        ..Envelope::default()
    };
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, &envelope);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = include_str!("../../../docs/protocol.md").replace([' ', '\n'], "");
    assert!(text.contains(&hex), "{hex}");
    bytes.clear();
    let reply = Reply {
        sequence: 1,
        outcome: Outcome::Result.into(),
        epoch: 1,
        entity_version: 1,
        kind: MessageKind::Command.into(),
        body: Bytes::from_static(b"1"),
        ..Reply::default()
    };
    put_frame(&mut bytes, &reply);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(text.contains(&hex), "{hex}");
}
