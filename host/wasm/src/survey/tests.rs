use super::*;

fn counts(text: &str) -> Result<Counts, Error> {
    let component = wat::parse_str(text).unwrap();
    survey(&component, 1_000).map(|survey| survey.counts)
}

/// A component that instantiates the one nested in it twice, `levels` levels deep.
fn doubling(levels: u32) -> String {
    let innermost =
        "(component $c0 (core module $m (memory 1)) (core instance (instantiate $m)))".to_owned();
    (1..=levels).fold(innermost, |inner, level| {
        let below = level - 1;
        format!("(component $c{level} {inner} (instance (instantiate $c{below})) (instance (instantiate $c{below})))")
    })
}

#[test]
fn nested_instances_are_counted_each_time() {
    let found = counts(&doubling(3)).unwrap();
    assert_eq!((found.core_instances, found.memories, found.memory), (8, 8, 8 << 16));
    assert_eq!(found.component_instances, 2 + 4 + 8);
    let found = counts(&doubling(26)).unwrap();
    assert_eq!(found.core_instances, 1 << 26);
    let found = counts(&doubling(90)).unwrap();
    assert_eq!((found.core_instances, found.component_instances), (u64::MAX, u64::MAX));
    let refused = found.check(&ComponentLimits::default(), &InstanceLimits::default()).unwrap_err();
    assert_eq!(refused.code(), "too-many-core-instances");
    assert!(refused.to_string().contains("core-instances in [components] allows 64"), "{refused}");
}

#[test]
fn counts_saturate_instead_of_overflowing() {
    // The counts saturate in the inner levels, and the outer levels still add to each of them.
    let inner = "(core module $m (type (func)) (table 1 funcref) (memory 1) (func))
        (type (func)) (core func $f (canon resource.drop $r))
        (core instance (instantiate $m))";
    let resource = "(type $r (resource (rep i32)))";
    let mut text = format!("(component $c0 {resource} {inner})");
    for level in 1..=70 {
        let twice = format!("(instance (instantiate $c{}))", level - 1).repeat(2);
        text = format!("(component $c{level} {text} {twice} {resource} {inner})");
    }
    let full = u64::MAX;
    let found = counts(&text).unwrap();
    let all = [
        found.core_instances,
        found.component_instances,
        found.memories,
        found.tables,
        found.functions,
        found.types,
        found.definitions,
        found.memory,
        found.table_elements,
    ];
    assert_eq!(all, [full; 9]);
}

#[test]
fn aliases_and_exports_count_as_what_they_name() {
    let found = counts(
        "(component
            (core module $m (table 5 funcref) (func) (func))
            (component $a
                (core module $n (memory 2))
                (alias outer 1 $m (core module $outer))
                (core instance (instantiate $n)) (core instance (instantiate $outer)))
            (export $b \"b\" (component $a))
            (export $k \"k\" (core module $m))
            (component $c (alias outer 1 $b (component $outer)) (instance (instantiate $outer)))
            (instance (instantiate $b)) (instance (instantiate $c)) (core instance (instantiate $k)))",
    )
    .unwrap();
    assert_eq!((found.core_instances, found.component_instances), (5, 3));
    assert_eq!((found.tables, found.table_elements, found.functions), (3, 15, 6));
    assert_eq!((found.memories, found.memory), (2, 4 << 16));
}

#[test]
fn code_of_unknown_size_cannot_be_instantiated() {
    for text in [
        "(component (import \"m\" (core module $m)) (core instance (instantiate $m)))",
        "(component (import \"c\" (component $c)) (instance (instantiate $c)))",
        "(component
            (component $a (component $b) (export \"b\" (component $b)))
            (instance $i (instantiate $a)) (alias export $i \"b\" (component $b)) (instance (instantiate $b)))",
        "(component
            (component $a (core module $m) (export \"m\" (core module $m)))
            (instance $i (instantiate $a)) (alias export $i \"m\" (core module $m)) (core instance (instantiate $m)))",
    ] {
        assert_eq!(counts(text).unwrap_err().code(), "unsized-instantiation", "{text}");
    }
    counts("(component (import \"m\" (core module $m)))").unwrap();
}

#[test]
fn the_survey_itself_is_bounded() {
    let many = format!("(component {})", "(component)".repeat(1_001));
    assert_eq!(counts(&many).unwrap_err().code(), "too-many-definitions");
    // Nested more deeply than the text format allows.
    let mut deep = b"\0asm\x0d\0\x01\0".to_vec();
    for _ in 0..1_001 {
        let mut around = b"\0asm\x0d\0\x01\0\x04".to_vec();
        let mut length = deep.len();
        while length >= 0x80 {
            around.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        around.push(length as u8);
        around.extend(deep);
        deep = around;
    }
    assert_eq!(survey(&deep, 1_000).unwrap_err().code(), "too-many-definitions");
    survey(&deep, 1_002).unwrap();
}

#[test]
fn each_count_has_its_own_limit() {
    let most = ComponentLimits {
        core_instances: 1,
        component_instances: 1,
        memories: 1,
        tables: 1,
        functions: 1,
        types: 1,
        definitions: 1,
        schema_bytes: 0,
    };
    let limits = InstanceLimits { memory: 1, table_elements: 1, ..InstanceLimits::default() };
    type More = fn(&mut Counts);
    let cases: [(More, &str); 9] = [
        (|it| it.core_instances = 2, "too-many-core-instances"),
        (|it| it.component_instances = 2, "too-many-component-instances"),
        (|it| it.memories = 2, "too-many-memories"),
        (|it| it.tables = 2, "too-many-tables"),
        (|it| it.functions = 2, "too-many-functions"),
        (|it| it.types = 2, "too-many-types"),
        (|it| it.definitions = 2, "too-many-definitions"),
        (|it| it.memory = 2, "memory-limit"),
        (|it| it.table_elements = 2, "table-limit"),
    ];
    for (more, code) in cases {
        let mut counts = Counts::default();
        counts.check(&most, &limits).unwrap();
        more(&mut counts);
        assert_eq!(counts.check(&most, &limits).unwrap_err().code(), code);
    }
}

#[test]
fn a_truncated_or_dangling_component_is_invalid() {
    let whole = wat::parse_str(doubling(3)).unwrap();
    for end in 8..whole.len() {
        let _ = survey(&whole[..end], 1_000);
    }
    assert_eq!(survey(&whole[..whole.len() / 2], 1_000).unwrap_err().code(), "invalid-component");
    // An instance of component 9, which does not exist.
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    bytes.extend([5, 4, 1, 0, 9, 0]);
    assert_eq!(survey(&bytes, 1_000).unwrap_err().code(), "invalid-component");
}
