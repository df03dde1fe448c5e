//! Tests what the authority issues and what it refuses.

use std::os::unix::fs::PermissionsExt;

use ostraca_ca::Ca;
use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{Identity, IdentityError, Principal, PrincipalKind, TrustRoot};

#[test]
fn saved_identities_are_private_and_load_again() {
    let directory = tempfile::tempdir().expect("directory");
    let ca = Ca::create(ClusterId(1)).expect("authority");
    ca.save(directory.path()).expect("saved");
    let node = ca.issue_node("one", &["localhost".into()]).expect("identity");
    node.save(directory.path(), "node").expect("saved");
    for name in ["ca.pem", "ca.key", "node.pem", "node.key"] {
        let mode =
            std::fs::metadata(directory.path().join(name)).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let again = Ca::load(directory.path()).expect("read");
    assert_eq!(again.cluster(), ca.cluster());
    let alice = again.issue_client("alice").expect("identity");
    let principal =
        Principal { cluster: ca.cluster(), kind: PrincipalKind::Client, name: "alice".into() };
    assert_eq!(alice.principal(), &principal);
    let (pem, key) = (directory.path().join("node.pem"), directory.path().join("node.key"));
    assert_eq!(Identity::load(&pem, &key).expect("read").principal().to_string(), "node/one");
    assert!(!format!("{node:?}").contains("PRIVATE"));
}

#[test]
fn invalid_names_and_pem_texts_are_refused() {
    let ca = Ca::create(ClusterId(1)).expect("authority");
    for name in ["", "a/b", "-a", "ä", "a b", &"a".repeat(65)] {
        assert!(matches!(ca.issue_client(name), Err(IdentityError::Name(_))), "{name:?}");
    }
    let alice = ca.issue_client("alice").expect("identity");
    assert!(TrustRoot::from_pem(alice.certificate_pem()).is_err());
    assert!(Identity::from_pem(ca.certificate_pem(), alice.key_pem()).is_err());
    assert!(Identity::from_pem("nonsense", "nonsense").is_err());
}
