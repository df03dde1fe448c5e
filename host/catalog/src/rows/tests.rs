use ostraca_core::ids::{Epoch, Incarnation};
use ostraca_core::rows::{
    ArbiterRow, Assignment, AssignmentsRow, HandOffId, HandOffIntent, HostProcess, ManagerRow,
    Member, NodeRow, NodeStatus, PodProcess, Roles,
};

use super::*;

const INCARNATION: Incarnation = Incarnation { counter: 3, nonce: 200 };

fn stored(key: &str, value: Bytes) -> StoredRow {
    StoredRow { key: key.into(), revision: 7, value }
}

fn holds(key: &RowKey, row: &Row, golden: &[u8]) {
    let bytes = encode_row(row).expect("encodes");
    assert_eq!(bytes.as_ref(), golden);
    let found = decode_row(&stored(&key_text(key), bytes)).expect("decodes");
    assert_eq!(found, Some((key.clone(), row.clone(), 7)));
}

fn node_row() -> NodeRow {
    NodeRow {
        incarnation: INCARNATION,
        renewals: 6,
        status: NodeStatus::Left,
        draining: true,
        store_available: false,
        roles: Roles { store: false, manager: true, host: true, gateway: false },
        version: 1,
        registered_at: 300,
        addresses: vec!["a:1".into()],
        format: 3,
        lease: 300,
        settings_revision: 1,
        extensions: Default::default(),
    }
}

#[test]
fn the_cores_rows_have_golden_bytes() {
    let holder = Member { node: "n1".into(), incarnation: INCARNATION };
    let moving = HandOffIntent { id: HandOffId { term: 2, number: 9 }, target: Some("n2".into()) };
    let shards = AssignmentsRow {
        term: 2,
        assignments: vec![
            Assignment {
                epoch: Epoch(5),
                owner: Some(holder.clone()),
                hand_off: Some(moving),
                extensions: Default::default(),
            },
            Assignment::default(),
        ],
        extensions: Default::default(),
    };
    let shards_bytes =
        [3, 2, 2, 5, 1, 2, b'n', b'1', 3, 200, 1, 1, 2, 9, 1, 2, b'n', b'2', 0, 0, 0, 0, 0, 0];
    holds(&RowKey::Assignments(0), &Row::Assignments(shards), &shards_bytes);
    let arbiter = ArbiterRow {
        number: 4,
        winner: holder.clone(),
        unreachable: vec![holder.clone()],
        extensions: Default::default(),
    };
    let arbiter_bytes = [3, 4, 2, b'n', b'1', 3, 200, 1, 1, 2, b'n', b'1', 3, 200, 1, 0];
    holds(&RowKey::Arbiter, &Row::Arbiter(arbiter), &arbiter_bytes);
    let holders = vec![ostraca_core::rows::NumberHolder { number: 7, member: holder.clone() }];
    let numbers = ostraca_core::rows::NumbersRow { holders, extensions: Default::default() };
    let numbers_bytes = [3, 1, 7, 2, b'n', b'1', 3, 200, 1, 0];
    holds(&RowKey::Numbers("orders".into()), &Row::Numbers(numbers), &numbers_bytes);
    let manager = ManagerRow { term: 4, holder, extensions: Default::default() };
    holds(&RowKey::Manager, &Row::Manager(manager), &[3, 4, 2, b'n', b'1', 3, 200, 1, 0]);
    let node_bytes =
        [3, 3, 200, 1, 6, 2, 1, 0, 0, 1, 1, 0, 1, 172, 2, 1, 3, b'a', b':', b'1', 3, 172, 2, 1, 0];
    holds(&RowKey::Node("n1".into()), &Row::Node(node_row()), &node_bytes);
}

#[test]
fn the_other_rows_have_golden_bytes() {
    let bytes = encode_value(&TimeRow { cluster_time_ms: 300, extensions: Default::default() })
        .expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 172, 2, 0]);
    let mut time = TimeRow { cluster_time_ms: 300, extensions: Default::default() };
    assert_eq!(time.utc_ms().expect("decodes"), None);
    time.set_utc_ms(300).expect("encodes");
    assert_eq!(time.utc_ms().expect("decodes"), Some(300));
    assert_eq!(encode_value(&time).expect("encodes").as_ref(), [3, 172, 2, 1, 2, 2, 172, 2]);
    let secret = SecretRow { random_key: [7; 32], extensions: Default::default() };
    let bytes = encode_value(&secret).expect("encodes");
    assert_eq!(bytes.as_ref(), [&[3][..], &[7; 32], &[0]].concat());
    let settings = SettingsRow {
        revision: 1,
        lease: 300,
        lease_margin: 2,
        lane_ttl: 3,
        extensions: Extensions::default(),
    };
    let bytes = encode_value(&settings).expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 1, 172, 2, 2, 3, 0]);
    let bytes = encode_value(&ClusterRow::new(3)).expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 3, 3, 0]);
    let pool = PoolRow { hash: "h".into(), shards: 256, extensions: Default::default() };
    assert_eq!(encode_value(&pool).expect("encodes").as_ref(), [3, 1, b'h', 128, 2, 0]);
    let ranges = vec![StoreRange { first_shard: 0, store_id: 300 }];
    let stores = StoresRow { ranges, extensions: Default::default() };
    assert_eq!(encode_value(&stores).expect("encodes").as_ref(), [3, 1, 0, 172, 2, 0]);
    let mut map = stores.map().expect("decodes");
    assert_eq!((map.version, &map.ranges, map.moving), (0, &vec![(0, 300)], None));
    map.version = 2;
    map.moving = Some(ostraca_store_ranges::RangeMove { first: 5, last: 9, to: 301 });
    let moving = stores.with_map(&map).expect("encodes");
    let bytes = encode_value(&moving).expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 1, 0, 172, 2, 1, 1, 6, 2, 1, 5, 9, 173, 2]);
    assert_eq!(moving.map().expect("decodes"), map);
    let binding = BindingRow {
        pool: "p".into(),
        shard_key: ShardKeyRule::Until("/".into()),
        hash: "h".into(),
        extensions: Extensions::default(),
    };
    let bytes = encode_value(&binding).expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 1, b'p', 1, 1, b'/', 1, b'h', 0]);
    let mut undeployed = binding.clone();
    undeployed.set_last_revision(300).expect("encodes");
    let bytes = encode_value(&undeployed).expect("encodes");
    assert_eq!(bytes.as_ref(), [3, 1, b'p', 1, 1, b'/', 1, b'h', 1, 60, 2, 172, 2]);
    assert_eq!(undeployed.last_revision().expect("decodes"), 300);
    assert_eq!(binding.last_revision().expect("decodes"), 0);
    let row = TypeRow {
        revision: 4,
        manifest: "m".into(),
        component_digest: [9; 32],
        component_size: 5,
        methods: vec![MethodEntry {
            name: "get".into(),
            query: true,
            extensions: Default::default(),
        }],
        extensions: Default::default(),
    };
    let bytes = encode_value(&row).expect("encodes");
    let golden = [&[3, 4, 1, b'm'][..], &[9; 32], &[5, 1, 3, b'g', b'e', b't', 1, 0, 0]].concat();
    assert_eq!(bytes.as_ref(), golden);
    assert_eq!(decode::<TypeRow>(&stored("types/default/a", bytes)).expect("decodes"), row);
}

#[test]
fn extension_fields_have_golden_bytes() {
    let method = MethodEntry::new("get", MessageKind::Query, "sum").expect("a method");
    assert_eq!(
        codec::encode(&method).expect("encodes"),
        [3, b'g', b'e', b't', 1, 1, 4, 4, 3, b's', b'u', b'm']
    );
    assert_eq!(method.summary(), "sum");
    let schema = MethodSchema { arguments: "{}".into(), result: "true".into() };
    let described = method.with_schema(&schema).expect("a method");
    assert_eq!(
        codec::encode(&described).expect("encodes"),
        [
            &[3, b'g', b'e', b't', 1, 2, 2, 8, 2, b'{', b'}', 4, b't', b'r', b'u', b'e'][..],
            &[4, 4, 3, b's', b'u', b'm']
        ]
        .concat()
    );
    assert_eq!(described.schema(), Some(schema));
    let long = MethodEntry::new("get", MessageKind::Command, &"é".repeat(1_000)).expect("a method");
    assert_eq!(long.summary(), "é".repeat(256));
    assert_eq!(
        MethodEntry::new("get", MessageKind::Query, "").expect("a method").extensions,
        Default::default()
    );
}

#[test]
fn s7_the_process_of_a_node_has_golden_bytes() {
    let process = PodProcess { pod: "p".into(), uid: "u".into(), mark: "m".into() };
    let row = node_row().with_process(&process);
    let block = [1, 10, 6, 1, b'p', 1, b'u', 1, b'm'];
    assert!(codec::encode(&row).expect("encodes").ends_with(&block));
    assert_eq!(row.process(), Some(process.clone()));
    let dead = NodeRow { status: NodeStatus::Dead, renewals: 9, ..row };
    assert_eq!(dead.process(), Some(process));
}

#[test]
fn s7_the_host_process_of_a_node_has_golden_bytes() {
    let process = HostProcess {
        host: "h".into(),
        boot_id: "b".into(),
        pid_namespace: 9,
        pid: 300,
        start_ticks: 5,
    };
    let row = node_row().with_host_process(&process);
    let block = [1, 14, 8, 1, b'h', 1, b'b', 9, 172, 2, 5];
    assert!(codec::encode(&row).expect("encodes").ends_with(&block));
    assert_eq!((row.host_process(), row.process()), (Some(process.clone()), None));
    let dead = NodeRow { status: NodeStatus::Dead, renewals: 9, ..row };
    assert_eq!(dead.host_process(), Some(process));
}

#[test]
fn a_row_of_another_format_is_refused_by_name() {
    let row = stored("time", Bytes::from_static(&[9, 1]));
    let error = decode::<TimeRow>(&row).expect_err("a newer version").to_string();
    assert!(
        error.contains("`time` cannot be read: it has format 9") && error.contains("newer"),
        "{error}"
    );
    // Rows as unreleased programs wrote them: they are refused, not misread.
    for (key, old) in [("nodes/n1", vec![2, 3, 200, 1]), ("shards/default/00000", vec![1, 2])] {
        let error = decode_row(&stored(key, old.into())).expect_err("an old one").to_string();
        assert!(error.contains("has format") && error.contains("init"), "{error}");
    }
    assert!(decode_row(&stored("manager", Bytes::new())).is_err());
}

#[test]
fn row_keys_and_their_texts_map_one_to_one() {
    for key in [
        RowKey::Node("n-1.x".into()),
        RowKey::Manager,
        RowKey::Arbiter,
        RowKey::Assignments(0),
        RowKey::Assignments(1_023),
        RowKey::Numbers("orders".into()),
    ] {
        assert_eq!(parse_key(&key_text(&key)), Some(key));
    }
    assert_eq!(key_text(&RowKey::Assignments(3)), "shards/default/00003");
    for other in [
        "cluster",
        "time",
        "manager/",
        "arbiter/",
        "nodes/",
        "nodes/a/b",
        "shards/default/3",
        "shards/default/000003",
        "shards/other/00003",
        "types/default/counter",
    ] {
        assert_eq!(parse_key(other), None, "{other}");
        let row = stored(other, Bytes::from_static(&[1]));
        assert_eq!(decode_row(&row).expect("not ours"), None);
    }
    for (name, key) in
        [("counter", "types/default/counter"), ("acme:counter", "types/acme/counter")]
    {
        assert_eq!(type_key(name), key);
        assert_eq!(type_name(key).as_deref(), Some(name));
        assert_eq!(binding_type(&binding_key(name)).as_deref(), Some(name));
        assert_eq!(variables_type(&variables_key(name)).as_deref(), Some(name));
    }
    for other in ["types/default/", "types/Other/counter", "types/default/a:b", "types/a/b/c"] {
        assert_eq!(type_name(other), None, "{other}");
    }
}

/// A node's row as a later release may have it: with one field that may be ignored, and one that may not.
#[derive(Debug, Serialize, Deserialize)]
struct LaterNode {
    incarnation: Incarnation,
    renewals: u64,
    status: NodeStatus,
    marks: (bool, bool),
    roles: Roles,
    version: u64,
    since: u64,
    addresses: Vec<String>,
    format: u32,
    lease: u64,
    settings: u64,
    extensions: Extensions<Self>,
}

const GROUP: u32 = 2;
const WITNESS: u32 = 3;

impl Extensible for LaterNode {
    const NAME: &'static str = "NodeRow";
    const FIELDS: &'static [u32] = &[GROUP, WITNESS];
}

fn later(number: u32) -> Bytes {
    let mut row = LaterNode {
        incarnation: INCARNATION,
        renewals: 6,
        status: NodeStatus::Live,
        marks: (false, true),
        roles: Roles::ALL,
        version: 2,
        since: 300,
        addresses: Vec::new(),
        format: 4,
        lease: 3_000,
        settings: 1,
        extensions: Extensions::default(),
    };
    row.extensions.set(number, &"rack-1").expect("fits");
    codec::append_encoded(vec![format::RELEASE], &row).expect("encodes").into()
}

#[test]
fn a_row_of_a_later_release_is_kept_whole_or_refused_by_name() {
    let Some((key, Row::Node(mut row), _)) =
        decode_row(&stored("nodes/n1", later(GROUP))).expect("decodes")
    else {
        panic!("expected a node's row")
    };
    // This release marks the node dead.
    row.status = NodeStatus::Dead;
    let bytes = encode_row(&Row::Node(row)).expect("encodes");
    let back: LaterNode = codec::decode(&bytes[1..]).expect("the later release reads it");
    assert_eq!((back.status, back.renewals, back.format), (NodeStatus::Dead, 6, 4));
    assert_eq!(back.extensions.get::<String>(GROUP), Ok(Some("rack-1".into())));
    assert_eq!(key_text(&key), "nodes/n1");
    let error = decode_row(&stored("nodes/n1", later(WITNESS))).expect_err("a required field");
    let text = error.to_string();
    assert!(text.contains("`nodes/n1`") && text.contains("field 3 of NodeRow"), "{text}");
}

#[test]
fn an_unreadable_cluster_format_is_refused_with_both_numbers() {
    let (oldest, release) = (u32::from(format::OLDEST), u32::from(format::RELEASE));
    ClusterRow::new(release).readable().expect("this release's own");
    let raising = ClusterRow { target_format: release + 1, ..ClusterRow::new(release) };
    for row in [ClusterRow::new(release + 1), ClusterRow::new(oldest - 1), raising] {
        let error = row.readable().expect_err("it cannot be read").to_string();
        let theirs = if row.target_format == release { row.format } else { row.target_format };
        assert!(error.contains(&format!("format {theirs}")), "{error}");
        assert!(error.contains(&format!("{oldest} to {release}")), "{error}");
    }
}
