use bytes::Bytes;
use ostraca_config::policy::Permission;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::ClusterId;
use ostraca_store::MemoryStore;

use super::*;
use crate::rows::Revocation;

fn stored(key: &str, revision: u64, value: Bytes) -> StoredRow {
    StoredRow { key: key.into(), revision, value }
}

fn policy(revision: u64, text: &str) -> StoredRow {
    let row = PolicyRow { revision: 1, text: text.into(), extensions: Extensions::default() };
    stored(rows::POLICY, revision, rows::encode_value(&row).expect("encodes"))
}

fn revocations(revision: u64, subjects: &[&str]) -> StoredRow {
    let entry = |subject: &&str| Revocation {
        subject: (*subject).into(),
        at_ms: 1,
        by: "client/admin".into(),
        reason: String::new(),
        extensions: Extensions::default(),
    };
    let entries = subjects.iter().map(entry).collect();
    let row = RevocationsRow { revision: 1, entries, extensions: Extensions::default() };
    stored(rows::REVOCATIONS, revision, rows::encode_value(&row).expect("encodes"))
}

fn may(access: &AccessRegistry, permission: Permission) -> bool {
    let subjects = ["client/bob".to_owned(), "certificate/ab".to_owned()];
    let permissions = access.permissions("client/bob", &subjects);
    permissions.is_ok_and(|it| it.allow(permission, "default", "cart"))
}

fn read(rows: &[StoredRow]) -> AccessRegistry {
    let access = AccessRegistry::default();
    access.on_rows_read(rows, BootInstant::now());
    access
}

const DEPLOYER: &str = "[[grants]]\nprincipals = [\"client/bob\"]\nroles = [\"deployer\"]\n";

#[test]
fn nobody_is_let_in_before_the_rows_were_read() {
    let access = AccessRegistry::default();
    let refused = access.permissions("client/admin", &[]);
    assert!(matches!(refused, Err(AccessRefused::Unknown(_))), "{refused:?}");
    // A watched row alone says nothing about the other one.
    access.on_row_changed(&policy(5, DEPLOYER));
    let refused = access.permissions("client/bob", &[]);
    assert!(matches!(refused, Err(AccessRefused::Unknown(_))), "{refused:?}");
    access.on_rows_read(&[policy(5, DEPLOYER)], BootInstant::now());
    assert!(may(&access, Permission::Deploy));
}

#[test]
fn without_a_row_the_default_policy_applies() {
    let access = read(&[]);
    assert!(may(&access, Permission::Command) && !may(&access, Permission::Deploy));
    access.on_row_changed(&policy(5, DEPLOYER));
    assert!(!may(&access, Permission::Command) && may(&access, Permission::Deploy));
    // A read that began before the row was written returned no row.
    access.on_rows_read(&[], BootInstant::now());
    assert!(may(&access, Permission::Deploy));
}

#[test]
fn only_newer_rows_take_effect_and_are_announced() {
    let access = read(&[policy(5, DEPLOYER)]);
    let mut changes = access.changes();
    changes.mark_unchanged();
    access.on_row_changed(&policy(4, ""));
    access.on_row_changed(&policy(5, ""));
    access.on_row_changed(&stored("other", 9, Bytes::new()));
    assert!(may(&access, Permission::Deploy) && !changes.has_changed().expect("open"));
    access.on_row_changed(&policy(6, ""));
    assert!(!may(&access, Permission::Deploy) && changes.has_changed().expect("open"));
}

#[test]
fn a_revoked_principal_or_certificate_may_do_nothing() {
    for (subject, revoked) in [
        ("client/bob", true),
        ("certificate/ab", true),
        ("client/bo", false),
        ("certificate/a", false),
    ] {
        let access = read(&[policy(5, DEPLOYER)]);
        access.on_row_changed(&revocations(6, &[subject]));
        assert_eq!(may(&access, Permission::View), !revoked, "{subject}");
        access.on_row_changed(&revocations(7, &[]));
        assert!(may(&access, Permission::View));
    }
}

#[test]
fn rows_that_cannot_be_understood_let_nobody_in() {
    for bad in [policy(6, "[[grant]]"), stored(rows::POLICY, 6, Bytes::from_static(&[250]))] {
        let access = read(&[policy(5, DEPLOYER)]);
        access.on_row_changed(&bad);
        let refused = access.permissions("client/bob", &[]);
        assert!(matches!(refused, Err(AccessRefused::Unknown(_))), "{refused:?}");
        // It stays so until a policy that can be understood replaces it.
        access.on_rows_read(&[bad], BootInstant::now());
        assert!(!may(&access, Permission::View));
        access.on_row_changed(&policy(7, DEPLOYER));
        assert!(may(&access, Permission::View));
    }
    let access = read(&[policy(5, DEPLOYER)]);
    access.on_row_changed(&stored(rows::REVOCATIONS, 6, Bytes::from_static(&[250])));
    assert!(!may(&access, Permission::View));
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_that_read_nothing_for_long_lets_nobody_in() {
    let brief = format!("revocation-staleness = \"1 s\"\n{DEPLOYER}");
    let access = read(&[policy(5, &brief)]);
    assert!(may(&access, Permission::View));
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // What a watch delivers does not show that nothing is missing.
    access.on_row_changed(&revocations(6, &[]));
    let refused = access.permissions("client/bob", &[]);
    assert!(matches!(refused, Err(AccessRefused::Stale { .. })), "{refused:?}");
    let store = MemoryStore::new(9, ClusterId(1), "test");
    access.read(&store).await.expect("read");
    assert!(may(&access, Permission::View));
}

#[test]
fn the_cache_of_permissions_is_bounded_and_correct() {
    let access =
        read(&[policy(5, "[[grants]]\nprincipals = [\"client/7*\"]\nroles = [\"viewer\"]\n")]);
    for round in 0..2 {
        for client in 0..PRINCIPALS + 10 {
            let name = format!("client/{client}");
            let permissions = access.permissions(&name, &[]).expect("known");
            let seven = client.to_string().starts_with('7');
            assert_eq!(permissions.allow_everywhere(Permission::View), seven, "{round} {name}");
        }
        assert!(lock(&access.current().permissions).len() <= PRINCIPALS);
    }
}

#[test]
fn a_restarted_node_lets_clients_in_as_long_as_before() {
    let minute = 60_000;
    for (ago, known) in [(0, true), (4 * minute, true), (6 * minute, false)] {
        let before = read(&[policy(5, DEPLOYER), revocations(6, &["client/eve"])]);
        let (_, rows) = before.to_cache().expect("known");
        let cached: Vec<_> = rows.into_iter().map(|row| StoredRow { revision: 0, ..row }).collect();
        let access = AccessRegistry::default();
        access.load_cached(&cached, wall_millis() - ago);
        assert_eq!(may(&access, Permission::Deploy), known, "{ago}");
        let eve = access.permissions("client/eve", &["client/eve".into()]);
        assert_eq!(eve, Err(AccessRefused::Revoked("client/eve".into())));
        // The first row from the store replaces what was remembered.
        access.on_rows_read(&[policy(1, "")], BootInstant::now());
        assert!(!may(&access, Permission::Deploy));
    }
    let access = AccessRegistry::default();
    access.load_cached(&[policy(0, DEPLOYER)], wall_millis() + minute);
    assert!(!may(&access, Permission::Deploy), "the clock was set back");
    assert!(AccessRegistry::default().to_cache().is_none());
}

#[test]
fn why_a_node_knows_nothing_can_always_be_seen() {
    let may_deploy = |access: &AccessRegistry, name: &str| {
        let permissions = access.last_known_permissions(name, &[name.into()]);
        permissions.map(|it| it.allow_everywhere(Permission::Deploy))
    };
    let access = AccessRegistry::default();
    assert_eq!(
        (may_deploy(&access, "client/admin"), may_deploy(&access, "client/bob")),
        (Ok(true), Ok(false))
    );
    access.load_cached(&[policy(0, DEPLOYER), revocations(0, &["client/eve"])], 0);
    assert!(matches!(access.permissions("client/bob", &[]), Err(AccessRefused::Stale { .. })));
    assert_eq!(
        (may_deploy(&access, "client/admin"), may_deploy(&access, "client/bob")),
        (Ok(false), Ok(true))
    );
    assert!(may_deploy(&access, "client/eve").is_err());
    // Nobody knows what a policy of a later release permits.
    access.on_row_changed(&policy(9, "[[grant]]"));
    assert!(matches!(may_deploy(&access, "client/admin"), Err(AccessRefused::Unknown(_))));
}

#[test]
fn a_token_is_not_invalid_only_because_the_policy_is_unknown() {
    let check = |access: &AccessRegistry| access.check_token("x", ClusterId(1), 1);
    assert!(matches!(check(&AccessRegistry::default()), Err(TokenRefused::NotReady(_))));
    let access = read(&[policy(5, DEPLOYER)]);
    assert!(matches!(check(&access), Err(TokenRefused::Invalid(_))));
    access.on_row_changed(&policy(6, "[[grant]]"));
    assert!(matches!(check(&access), Err(TokenRefused::NotReady(_))));
}

#[test]
fn a_token_is_not_invalid_only_by_the_policy_of_the_last_run() {
    let access = AccessRegistry::default();
    access.load_cached(&[policy(0, DEPLOYER)], wall_millis());
    let check = || access.check_token("x", ClusterId(1), 1);
    assert!(matches!(check(), Err(TokenRefused::NotReady(why)) if why.contains("previous run")));
    access.on_rows_read(&[policy(5, DEPLOYER)], BootInstant::now());
    assert!(matches!(check(), Err(TokenRefused::Invalid(_))));
}
