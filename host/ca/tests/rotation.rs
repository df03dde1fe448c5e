//! One authority replaces another: who trusts whom at each step, and what a crash leaves.

use std::path::Path;

use ostraca_ca::{Ca, Rotation};
use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{CertificateChain, Identity, IdentityError, TrustRoot};

fn authority(directory: &Path) -> Ca {
    let ca = Ca::create(ClusterId(1)).expect("authority");
    ca.save(directory).expect("saved");
    ca
}

fn chain(pem: &str) -> CertificateChain {
    CertificateChain::from_pem(pem).expect("certificates")
}

#[test]
fn each_side_trusts_the_other_whoever_changes_first() {
    let directory = tempfile::tempdir().expect("directory");
    let former = authority(directory.path());
    let node = former.issue_node("n1", &[]).expect("identity");
    let old = former.trust().expect("trust");
    let rotation = Rotation::begin(directory.path()).expect("begun");
    let new = rotation.next.trust().expect("trust");
    let both = TrustRoot::from_pem(&rotation.both()).expect("trust");

    let presented = node.certificates().expect("certificates");
    let renewed = rotation.renew_node(&presented).expect("renewed");
    let certified = chain(&renewed);
    assert_eq!(certified.principal(), presented.principal());
    assert_eq!(certified.public_key(), presented.public_key());
    Identity::from_pem(&renewed, node.key_pem()).expect("the node's key");
    for (trust, old_accepted, new_accepted) in
        [(&old, true, true), (&both, true, true), (&new, false, true)]
    {
        assert_eq!(presented.is_trusted(trust), old_accepted);
        assert_eq!(certified.is_trusted(trust), new_accepted);
    }
    // Without the certificate between both authorities, only the new one counts.
    let alone = renewed.split_inclusive("-----END CERTIFICATE-----\n").next().expect("one");
    assert!(chain(alone).is_trusted(&new) && !chain(alone).is_trusted(&old));
}

#[test]
fn only_nodes_of_one_of_both_authorities_are_renewed() {
    let directory = tempfile::tempdir().expect("directory");
    let former = authority(directory.path());
    let rotation = Rotation::begin(directory.path()).expect("begun");
    let refused = |identity: Identity| {
        let presented = identity.certificates().expect("certificates");
        match rotation.renew_node(&presented) {
            Err(IdentityError::Certificate(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let strange = Ca::create(ClusterId(1)).expect("authority");
    let text = refused(strange.issue_node("n1", &[]).expect("identity"));
    assert!(text.contains("neither"), "{text}");
    let text = refused(former.issue_client("alice").expect("identity"));
    assert!(text.contains("not belong to a node"), "{text}");
    let again = rotation.next.issue_node("n1", &[]).expect("identity");
    rotation.renew_node(&again.certificates().expect("certificates")).expect("renewed");
}

#[test]
fn an_interrupted_rotation_goes_on_with_the_same_authority() {
    let directory = tempfile::tempdir().expect("directory");
    let path = |name: &str| directory.path().join(name);
    let former = authority(directory.path());
    assert!(Rotation::promoted(directory.path()).expect("read").is_none());
    let first = Rotation::begin(directory.path()).expect("begun");
    let (next, both) = (first.next.certificate_pem().to_owned(), first.both());
    drop(first);
    // Until the nodes have changed over, the former authority issues certificates.
    let current = Ca::load(directory.path()).expect("authority");
    assert_eq!(current.certificate_pem(), former.certificate_pem());
    assert!(Rotation::promoted(directory.path()).expect("read").is_none());
    let again = Rotation::begin(directory.path()).expect("begun");
    assert_eq!(again.next.certificate_pem(), next);

    again.promote().expect("promoted");
    drop(again);
    // As after a crash between the two renames.
    std::fs::rename(path("ca.pem"), path("next.pem")).expect("moved");
    std::fs::write(path("ca.pem"), former.certificate_pem()).expect("written");
    // Whoever loads the authority ends the renaming: key and certificate always belong together.
    let ca = Ca::load(directory.path()).expect("authority");
    assert_eq!(ca.certificate_pem(), next);
    let promoted = Rotation::promoted(directory.path()).expect("read").expect("in progress");
    assert_eq!(promoted.next.certificate_pem(), next);
    assert_eq!(promoted.both(), both);
    let ca = Ca::load(directory.path()).expect("authority");
    assert_eq!(ca.certificate_pem(), next);
    // What it issues is trusted by those that know only the former authority.
    let node = ca.issue_node("n2", &[]).expect("identity").certificates().expect("certificates");
    assert!(node.is_trusted(&former.trust().expect("trust")));

    promoted.end().expect("ended");
    drop(promoted);
    assert!(Rotation::promoted(directory.path()).expect("read").is_none());
    let names = std::fs::read_dir(directory.path()).expect("read");
    let mut names: Vec<_> =
        names.map(|it| it.expect("a file").file_name().into_string().expect("text")).collect();
    names.sort();
    assert_eq!(names, ["ca.key", "ca.pem", "lock"]);
    let ca = Ca::load(directory.path()).expect("authority");
    let node = ca.issue_node("n2", &[]).expect("identity").certificates().expect("certificates");
    assert!(node.is_trusted(&ca.trust().expect("trust")));
    assert!(!node.is_trusted(&former.trust().expect("trust")));
}

#[test]
fn a_crash_while_a_rotation_ends_leaves_an_authority() {
    for removed in 1..=3 {
        let directory = tempfile::tempdir().expect("directory");
        authority(directory.path());
        let rotation = Rotation::begin(directory.path()).expect("begun");
        rotation.promote().expect("promoted");
        for name in ["former.key", "former.pem", "cross.pem"].into_iter().take(removed) {
            std::fs::remove_file(directory.path().join(name)).expect("removed");
        }
        let next = rotation.next.certificate_pem().to_owned();
        drop(rotation);
        Ca::load(directory.path()).expect("an authority");
        if let Some(again) = Rotation::promoted(directory.path()).expect("read") {
            again.end().expect("ended");
        }
        let ca = Ca::load(directory.path()).expect("an authority");
        assert_eq!(ca.certificate_pem(), next);
        Rotation::begin(directory.path()).expect("another one can begin");
    }
}

#[test]
fn a_trust_root_has_authorities_of_one_cluster_only() {
    let pem = |cluster| {
        let ca = Ca::create(ClusterId(cluster)).expect("authority");
        ca.certificate_pem().to_owned()
    };
    let text = |pem: String| TrustRoot::from_pem(&pem).expect_err("refused").to_string();
    assert!(text(pem(1) + &pem(2)).contains("two clusters"));
    assert!(text(String::new()).contains("none found"));
    let five: String = (0..5).map(|_| pem(1)).collect();
    assert!(text(five).contains("limit is 4"));
    let four: String = (0..4).map(|_| pem(1)).collect();
    assert_eq!(TrustRoot::from_pem(&four).expect("trust").cluster, ClusterId(1));
}

#[test]
fn two_operators_cannot_rotate_at_once() {
    let directory = tempfile::tempdir().expect("directory");
    authority(directory.path());
    let rotation = Rotation::begin(directory.path()).expect("begun");
    for second in
        [Rotation::begin(directory.path()).err(), Rotation::promoted(directory.path()).err()]
    {
        let text = second.expect("refused").to_string();
        assert!(text.contains("lock") && text.contains("another process"), "{text}");
    }
    drop(rotation);
    Rotation::begin(directory.path()).expect("it continues");
}
