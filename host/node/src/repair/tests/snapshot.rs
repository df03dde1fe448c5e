//! Rows that no release knows are left alone, and those of a newer one are refused.

use super::*;

#[test]
fn k36_a_good_cluster_has_no_contradictions() {
    let findings = World::new().check();
    assert!(findings.found.is_empty() && findings.changes.is_empty(), "{findings:#?}");
    let mut new = World::new();
    new.facts.claims.clear();
    for key in [RowKey::Assignments(0), RowKey::Assignments(1), RowKey::Manager] {
        new.remove(&key);
    }
    assert_eq!(new.check().found, [], "a cluster that never ran");
}

#[test]
fn k36_an_unknown_key_is_left_alone() {
    let mut world = World::new();
    for key in ["from-a-later-release", "shards/default/7", "nodes/a/b"] {
        world.put(key, Bytes::from_static(b"any"));
    }
    let findings = world.check();
    assert_eq!(kinds(&findings), [ContradictionKind::UnknownKey]);
    assert!(findings.changes.is_empty());
    assert!(findings.found.iter().all(|it| matches!(it.remedy, Remedy::Ignore(_))));
}

#[test]
fn k36_rows_of_a_newer_release_are_refused() {
    let refused = |edit: fn(&mut World)| {
        let mut world = World::new();
        edit(&mut world);
        let stored = world.rows.into_values().collect();
        Snapshot::new(stored, world.facts).expect_err("refused").to_string()
    };
    // The required field 1001 of a manager's row.
    let required = refused(|world| {
        world.put("manager", Bytes::from_static(&[3, 4, 2, b'n', b'1', 5, 45, 1, 0xe9, 7, 0]));
    });
    assert!(required.contains("manager") && required.contains("newer release"), "{required}");
    let format = refused(|world| world.set("cluster", &ClusterRow::new(200)));
    assert!(format.contains("newer"), "{format}");
    // Without the row of the cluster, any format may be a newer one.
    let unknown = refused(|world| {
        world.rows.remove("cluster");
        world.put("manager", Bytes::from_static(&[200, 4]));
    });
    assert!(unknown.contains("newer release"), "{unknown}");
    // No node of this cluster writes it.
    repaired(&[ContradictionKind::UnreadableManager], |world| {
        world.put("manager", Bytes::from_static(&[200, 4]));
    });
}
