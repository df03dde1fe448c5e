//! The bytes of admin requests, including unused fields: a change here is a change to the protocol.

use std::fmt::Debug;

use bytes::Bytes;
use ostraca_wire::proto::*;
use prost::Message;

fn same<M: Message + Default + PartialEq + Debug>(message: &M, golden: &str) {
    let bytes = message.encode_to_vec();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden, "{message:?}");
    assert_eq!(&M::decode(&bytes[..]).expect("reads back"), message);
}

fn node_certificate() -> NodeCertificate {
    NodeCertificate { node: "n".into(), certificate: "c".into() }
}

/// One limit is absent, and one is 0.
fn quotas() -> NamespaceQuotas {
    let (namespace, entities, turns_per_second) = ("n".into(), Some(1), Some(0));
    NamespaceQuotas { namespace, entities, state_bytes: None, turns_per_second }
}

#[test]
fn a_namespace_has_quotas_and_their_use() {
    let usage = NamespaceUsage {
        namespace: "n".into(),
        entities: 1,
        state_bytes: 2,
        turns_per_second: 3,
        is_complete: true,
    };
    let info = NamespaceInfo {
        name: "n".into(),
        created_unix_ms: 1,
        created_by: "b".into(),
        types: 2,
        quotas: Some(quotas()),
        usage: Some(usage),
    };
    let hex = "0a016e10011a016220022a070a016e10012000320b0a016e1001180220032801";
    same(&info, hex);
}

#[test]
fn requests_about_the_cluster() {
    use admin_request::Request;
    let entities = EntitiesRequest {
        r#type: "t".into(),
        shard: 2,
        limit: 3,
        cursor: Bytes::from_static(b"a"),
    };
    let inspect = InspectRequest { r#type: "t".into(), id: "i".into(), values: true };
    let dead_letters = DeadLettersRequest {
        r#type: "t".into(),
        id: "i".into(),
        limit: 3,
        cursor: Bytes::from_static(b"a"),
        values: true,
    };
    let set = vec![ClusterSetting { name: "n".into(), value: "v".into() }];
    let cluster = ClusterConfigRequest { changes: set, upgrade_format: true };
    let create = Some(NewPool {
        name: "n".into(),
        shards: 2,
        hash: "h".into(),
        role: "r".into(),
        strategy: "s".into(),
        min_hosts: 6,
    });
    let at = |shard, node: &str| ShardAtNode { shard, node: node.into() };
    let placement = PlacementRequest {
        pins: vec![at(3, "a")],
        placement: Some(PoolPlacement {
            pool: "p".into(),
            nodes: vec!["a".into()],
            shards: vec![1, 0],
        }),
        moves: vec![at(4, "b")],
    };
    let policy = PolicyRequest { text: Some("t".into()), expected_revision: Some(2), force: true };
    let authorities = AuthoritiesRequest {
        trusted: Some("t".into()),
        issue: Some(node_certificate()),
        force: true,
    };
    let revocations = RevocationsRequest {
        revoke: vec!["a".into()],
        restore: vec!["b".into()],
        reason: "c".into(),
    };
    let set_variable =
        VariablesRequest { r#type: "t".into(), set: Some(variable()), ..Default::default() };
    let removed = VariableName { kind: VariableKind::Setting.into(), name: "n".into() };
    let remove_variable =
        VariablesRequest { r#type: "t".into(), remove: Some(removed), ..Default::default() };
    for (request, golden) in [
        (Request::Nodes(NodesRequest {}), "3200"),
        (Request::Shards(ShardsRequest { first: 1, limit: 2 }), "3a0408011002"),
        (Request::WhoAmI(WhoAmIRequest {}), "e20400"),
        (Request::Pauses(PausesRequest {}), "ea0400"),
        (Request::Entities(entities), "420a0a017410021803220161"),
        (Request::Inspect(inspect), "4a080a01741201691801"),
        (Request::Drain(DrainRequest { node: "n".into(), undo: true }), "52050a016e1001"),
        (Request::Rebalance(RebalanceRequest { dry_run: true }), "5a020801"),
        (Request::Events(EventsRequest { follow: true, from_sequence: 2 }), "620408011002"),
        (Request::Forget(ForgetRequest { node: "n".into() }), "6a030a016e"),
        (
            Request::Export(ExportRequest { r#type: "t".into(), id: "i".into() }),
            "ea03060a0174120169",
        ),
        (Request::Undeploy(UndeployRequest { r#type: "t".into() }), "e203030a0174"),
        (Request::DeadLetters(dead_letters), "720d0a017412016918032201612801"),
        (Request::Cluster(cluster), "a2010a0a060a016e1201761001"),
        (Request::Pools(PoolsRequest { create }), "b201120a100a016e10021a01682201722a01733006"),
        (
            Request::PoolCopy(PoolCopyRequest {
                from: "a".into(),
                to: "b".into(),
                release_timeout_ms: 7,
            }),
            "c201080a01611201621807",
        ),
        (
            Request::Placement(placement),
            "ba011a0a050803120161120a0a01701201611a0201001a050804120162",
        ),
        (Request::ShardFigures(ShardFiguresRequest {}), "f20400"),
        (
            Request::Namespaces(NamespacesRequest {
                create: "n".into(),
                change_quotas: Some(QuotaChanges {
                    namespace: "n".into(),
                    entities: Some(NewLimit { limit: Some(1) }),
                    state_bytes: None,
                    turns_per_second: Some(NewLimit { limit: None }),
                }),
            }),
            "d2050e0a016e12090a016e120208012200",
        ),
        (Request::Policy(policy), "b204070a017410021801"),
        (Request::Revocations(revocations), "ba04090a01611201621a0163"),
        (
            Request::Audit(AuditRequest { since_unix_ms: 1, principal: "a".into() }),
            "c204050801120161",
        ),
        (Request::Authorities(authorities), "ca040d0a017412060a016e1201631801"),
        (Request::Figures(FiguresRequest {}), "da0400"),
        (
            Request::Variables(set_variable),
            "d2041a0a01741215080112016e1a017620012a016230013a017442016b",
        ),
        (Request::Variables(remove_variable), "d2040a0a01741a05080212016e"),
    ] {
        same(&AdminRequest { request: Some(request) }, golden);
    }
}

fn figures() -> Figures {
    let work = WorkFigures {
        r#type: "t".into(),
        work: "w".into(),
        method: "m".into(),
        ok: 1,
        error: 2,
        not_run: 3,
        unknown: 4,
        buckets: vec![5, 6],
        total_us: 7,
    };
    let hot = HotEntity { r#type: "t".into(), id: "i".into(), turns_per_second: 1 };
    let node = NodeFigures {
        node: "n".into(),
        uptime_ms: 1,
        metrics: [("a".into(), 2)].into(),
        work: vec![work],
        bounds: vec![0.5],
        hottest: vec![hot],
        stores: vec![Bytes::from_static(b"s")],
    };
    let issue = NodeIssue { node: "o".into(), reason: "r".into() };
    Figures { nodes: vec![node], unresponsive: vec![issue] }
}

fn variable() -> Variable {
    Variable {
        kind: VariableKind::Secret.into(),
        name: "n".into(),
        value: "v".into(),
        unix_ms: 1,
        by: "b".into(),
        granted: true,
        r#type: "t".into(),
        key: "k".into(),
    }
}

fn tell(number: u64) -> TellDetail {
    TellDetail {
        number,
        r#type: "t".into(),
        id: "i".into(),
        method: "m".into(),
        body_size: 2,
        attempts: 3,
        failure: "f".into(),
    }
}

#[test]
fn the_result_of_a_dry_run() {
    let change = StateChange {
        key: Bytes::from_static(b"k"),
        before: None,
        after: Some(Bytes::from_static(b"v")),
        before_size: None,
        after_size: Some(1),
    };
    let entity = DryRunEntity {
        id: "i".into(),
        version: 2,
        schema: 3,
        failed_in: "start".into(),
        failure: "w".into(),
        changes: vec![change],
        change_count: 4,
        result: Bytes::from_static(b"r"),
    };
    let result = DryRunResult {
        r#type: "t".into(),
        current_revision: 5,
        current_schema: 6,
        schema: 7,
        added_methods: vec!["a".into()],
        removed_methods: vec!["b".into()],
        query: "q".into(),
        entities: vec![entity],
        not_tried: 8,
    };
    let response =
        AdminResponse { more: false, response: Some(admin_response::Response::DryRun(result)) };
    let golden = concat!(
        "9203360a01741005180620072a01613201623a017142200a016910021803220573746172742a0177",
        "32080a016b1a0176280138044201724808",
    );
    same(&response, golden);
}

#[test]
fn responses_about_the_cluster() {
    use admin_response::Response;
    let node = NodeState {
        name: "n".into(),
        incarnation: "i".into(),
        roles: vec!["r".into()],
        addresses: vec!["a".into()],
        status: NodeStatus::Left.into(),
        version: "v".into(),
        registered_for_ms: 7,
        renewals: 8,
        store_available: true,
        shards: 10,
        is_self: true,
        reachable: Some(false),
        registered_at_unix_ms: 13,
        unanswered_keep_alives: 14,
        unreachable: true,
    };
    let shard = ShardInfo {
        shard: 1,
        epoch: 2,
        owner: "o".into(),
        state: ShardState::Moving.into(),
        target_node: "t".into(),
        pool: "p".into(),
    };
    let copied = CopiedType { r#type: "t".into(), entities: 1, records: 2, bytes: 3 };
    let pool = PoolInfo {
        name: "n".into(),
        first_shard: 2,
        shards: 3,
        hash: "h".into(),
        role: "r".into(),
        strategy: "s".into(),
        min_hosts: 7,
        hosts: 8,
        shards_owned: 9,
        created_unix_ms: 10,
        created_by: "b".into(),
        copied_to: "t".into(),
        copied: true,
        filled_from: "f".into(),
        numbers: vec![NumberedHost { node: "n".into(), number: 16 }],
    };
    let entity = EntityInfo {
        r#type: "t".into(),
        id: "i".into(),
        shard: 3,
        version: 4,
        revision: 5,
        state_bytes: 6,
        active: Some(false),
        owner: "o".into(),
    };
    let entry = AuditEntry {
        unix_ms: 1,
        node: "a".into(),
        principal: "b".into(),
        action: "c".into(),
        target: "d".into(),
        details: "e".into(),
    };
    let revocation =
        Revocation { subject: "a".into(), unix_ms: 2, by: "b".into(), reason: "c".into() };
    let silent = NodeIssue { node: "n".into(), reason: "w".into() };
    let detail = EntityDetail {
        r#type: "t".into(),
        id: "i".into(),
        shard: 3,
        epoch: 4,
        owner: "o".into(),
        exists: true,
        version: 7,
        revision: 8,
        last_commit_sequence: 9,
        lane_count: 10,
        unsettled_replies: 11,
        state_bytes: 12,
        key_count: 13,
        keys: vec![StateKey { key: "k".into(), size: 2, value: Bytes::from_static(b"v") }],
        active: Some(false),
        mailbox_length: Some(0),
        unresponsive_owner: Some(silent.clone()),
        last_failure: Some(LastFailure {
            code: "c".into(),
            message: "m".into(),
            unix_ms: 3,
            consecutive_failures: 4,
        }),
        timer_count: 5,
        timers: vec![TimerDetail {
            name: "t".into(),
            due_unix_ms: 6,
            interval_ms: 7,
            payload_size: 8,
            attempts: 9,
            failure: "f".into(),
            set_aside: true,
        }],
        outbox_count: 6,
        outbox: vec![tell(1)],
        dead_letter_count: 7,
        dead_letters: vec![tell(300)],
        delayed_tell_count: 8,
        delayed_tells: vec![DelayedTellDetail {
            name: "n".into(),
            due_unix_ms: 9,
            tell: Some(tell(0)),
            set_aside: true,
        }],
        journal: Some(JournalDetail {
            first_number: 2,
            next_number: 300,
            bytes: 4,
            snapshot_through: Some(0),
        }),
        remembered: true,
        deleted: true,
        generation: 2,
        expires_unix_ms: Some(5),
        channels: vec![ChannelDetail {
            name: "n".into(),
            next_number: 300,
            first_number: 2,
            bytes: 3,
            last_version: 4,
        }],
        schema: 0,
        running_revision: 0,
        failed_migration: None,
        activity: Some(EntityActivity {
            awake: vec![AwakeReason { reason: "r".into(), count: Some(2), ends_in_ms: Some(0) }],
            on_failure: "f".into(),
            stopped_by: "w".into(),
            start_pause_ms: Some(300),
            failed_starts: 4,
        }),
        subscription_count: 3,
        subscriptions: vec![SubscriptionDetail {
            channel: "c".into(),
            r#type: "t".into(),
            id: "i".into(),
            method: "m".into(),
        }],
        channel_subscriptions: vec![ChannelSubscriptions { channel: "c".into(), count: 3 }],
    };
    let page = Entities {
        entities: vec![entity],
        next_cursor: Bytes::from_static(b"c"),
        unresponsive_owners: vec![silent],
    };
    let letter = DeadLetter {
        r#type: "t".into(),
        id: "i".into(),
        tell: Some(tell(1)),
        unix_ms: 2,
        body: Bytes::from_static(b"b"),
        content_type: "c".into(),
    };
    let dead_letters =
        DeadLetters { dead_letters: vec![letter], next_cursor: Bytes::from_static(b"c") };
    let drain =
        DrainProgress { node: "n".into(), total: 2, remaining: 3, in_flight: 4, done: true };
    let plan = RebalancePlan {
        moves: vec![ShardMove { shard: 1, from: "f".into(), to: "t".into() }],
        blocked_reason: "h".into(),
    };
    let progress = RebalanceProgress { planned: 1, moved: 2, in_flight: 3, failed: 4, done: true };
    let event = Event {
        sequence: 1,
        cluster_time_ms: 2,
        kind: "k".into(),
        message: "t".into(),
        node: "n".into(),
        shard: 6,
        epoch: 7,
        unix_ms: 8,
        age_ms: 9,
    };
    let b = |text: &'static str| Bytes::from_static(text.as_bytes());
    let export = EntityExport {
        format: 1,
        r#type: "t".into(),
        id: "i".into(),
        version: 2,
        revision: 3,
        state: vec![ExportedKey { key: b("k"), value: b("v") }],
        timers: vec![ExportedTimer {
            name: "n".into(),
            due_unix_ms: 300,
            interval_ms: 4,
            payload: b("p"),
        }],
        journal: Some(ExportedJournal {
            first_number: 5,
            start: 6,
            events: vec![b("e")],
            snapshot: Some(ExportedSnapshot { through: 7, data: b("s") }),
        }),
        channels: vec![ExportedChannel {
            name: "c".into(),
            first_number: 8,
            start: 9,
            items: vec![ExportedItem { unix_ms: 10, data: b("i") }],
        }],
        remembered: true,
        expires_unix_ms: Some(0),
        outbox_count: 11,
        schema: 12,
        subscriptions: vec![SubscriptionDetail {
            channel: "c".into(),
            r#type: "t".into(),
            id: "i".into(),
            method: "m".into(),
        }],
    };
    for (response, golden) in [
        (
            Response::Nodes(Nodes { nodes: vec![node], manager: "m".into(), term: 3 }),
            "0801422a0a230a016e1201691a01722201612805320176380740084801500a58016000680d700e780112016d1803",
        ),
        (
            Response::Pools(Pools { pools: vec![pool] }),
            "0801b2012c0a2a0a016e100218032201682a017232017338074008480950\
             0a5a016262017468017201667a050a016e1010",
        ),
        (
            Response::PoolCopy(PoolCopyProgress {
                step: PoolCopyStep::Copying.into(),
                shards: 1,
                all_shards: 2,
                items: 3,
                bytes: 4,
                end: Some(PoolCopyEnd { types: vec![copied], role: "r".into(), was_done: true }),
            }),
            "0801c2011c0804100118022003280432100a090a01741001180220031201721801",
        ),
        (
            Response::Placement(PlacementState {
                pins: vec![PinInfo {
                    shard: 3,
                    node: "a".into(),
                    created_unix_ms: 5,
                    created_by: "b".into(),
                }],
                placements: vec![PlacementInfo {
                    pool: "p".into(),
                    wanted: 2,
                    in_place: 1,
                    said_unix_ms: 5,
                    said_by: "b".into(),
                    has_effect: true,
                }],
            }),
            "0801ba011c0a0a0803120161180522\
             0162120e0a01701002180120052a01623001",
        ),
        (
            Response::ShardFigures(ShardStatistics {
                shards: vec![ShardFigures {
                    shard: 1,
                    epoch: 2,
                    owner: "o".into(),
                    serving: true,
                    turns: 5,
                    committed_bytes: 6,
                    memory_bytes: 7,
                    queued: 8,
                    live: [("t".to_owned(), 9)].into(),
                    stored_is_counted: true,
                    stored: [("t".to_owned(), StoredEntities { entities: 10, state_bytes: 11 })]
                        .into(),
                }],
                unresponsive: vec![NodeIssue { node: "n".into(), reason: "r".into() }],
            }),
            "0801f2042f0a25080110021a016f20012805300638074008\
             4a050a0174100950015a090a01741204080a100b\
             12060a016e120172",
        ),
        (
            Response::Shards(Shards { shards: vec![shard] }),
            "08014a110a0f080110021a016f20052a0174320170",
        ),
        (
            Response::Entities(page),
            "080152200a130a01741201691803200428053006380042016f1201631a060a016e120177",
        ),
        (
            Response::Entity(detail),
            "08015a80020a0174120169180320042a016f3001380740084809500a580b600c680d72080a016b10021a017678008001008a01060a016e12017792010a0a016312016d18032004980105a201100a017410061807200828093201663801a80106b2011208011201741a016922016d280230033a0166b80107c2011308ac021201741a016922016d280230033a0166c80108d201190a016e10091a101201741a016922016d280230033a01662001da0109080210ac0218042000e00101e80101f00102f8010582020c0a016e10ac02180220032804e203140a070a0172100218001201661a017720ac022804d00503da050c0a01631201741a016922016de205050a01631003",
        ),
        (
            Response::DeadLetters(dead_letters),
            "08018a01270a220a01741201691a1208011201741a016922016d280230033a016620022a0162320163120163",
        ),
        (Response::Drain(drain), "0801620b0a016e1002180320042801"),
        (Response::Plan(plan), "08016a0d0a0808011201661a0174120168"),
        (
            Response::Export(export),
            "0801ea035808011201741a01692002280332060a016b1201763a0b0a016e10ac021804220170420e080510061a0165220508071201734a0e0a0163100818092205080a12016950015800600b680cd2050c0a01631201741a016922016d",
        ),
        (
            Response::Undeployed(UndeployResult { r#type: "t".into(), revision: 2, left: 300 }),
            "0801e203080a0174100218ac02",
        ),
        (
            Response::Forgotten(ForgetResult { node: "n".into(), unchanged: true }),
            "08018201050a016e1001",
        ),
        (Response::Rebalance(progress), "0801720a08011002180320042801"),
        (Response::Policy(PolicyState { revision: 1, text: "t".into() }), "0801b204050801120174"),
        (
            Response::Audit(AuditLog { entries: vec![entry] }),
            "0801c204130a1108011201611a01622201632a0164320165",
        ),
        (
            Response::Authorities(Authorities {
                revision: 1,
                trusted: "t".into(),
                presented: vec![node_certificate()],
            }),
            "0801ca040d08011201741a060a016e120163",
        ),
        (
            Response::Figures(figures()),
            concat!(
                "0801da04460a3c0a016e10011a050a0161100222170a01741201771a016d20012802300338044202",
                "050648072a08000000000000e03f32080a017412016918013a017312060a016f120172",
            ),
        ),
        (
            Response::WhoAmI(WhoAmI {
                principal: "a".into(),
                roles: vec!["b".into()],
                everywhere: vec!["c".into()],
                types: vec![TypePermissions { r#type: "t".into(), permissions: vec!["d".into()] }],
            }),
            "0801e204110a01611201621a016322060a0174120164",
        ),
        (
            Response::Pauses(Pauses {
                pauses: vec![ShardPause { shard: 1, unix_ms: 2, duration_us: 3, fail_over: true }],
            }),
            "0801ea040a0a080801100218032001",
        ),
        (
            Response::Variables(Variables { variables: vec![variable()], deployed: true }),
            "0801d204190a15080112016e1a017620012a016230013a017442016b1001",
        ),
        (
            Response::Revocations(Revocations { revocations: vec![revocation] }),
            "0801ba040d0a0b0a016110021a0162220163",
        ),
        (
            Response::Events(Events { events: vec![event], missed: 2, cluster_time_ms: 3 }),
            "08017a1b0a15080110021a016b2201742a016e300638074008480910021803",
        ),
    ] {
        same(&AdminResponse { more: true, response: Some(response) }, golden);
    }
    // The end of a streamed response.
    same(&AdminResponse { more: false, response: None }, "");
}

#[test]
fn the_status_of_a_cluster() {
    let overview = ClusterStatus {
        manager: "m".into(),
        term: 2,
        term_age_ms: 3,
        nodes_live: 4,
        nodes_draining: 5,
        nodes_dead: 6,
        shards: 7,
        shards_assigned: 8,
        shards_unassigned: 9,
        shards_moving: 10,
        store_node: "s".into(),
        store_available: true,
        since_renewal_ms: 13,
        lease_duration_ms: 14,
    };
    same(
        &Status { cluster_status: Some(overview), ..Status::default() },
        "4a1e0a016d10021803200428053006380740084809500a5a01736001680d700e",
    );
}
