//! Tests what the authority issues and what it refuses.

use std::os::unix::fs::PermissionsExt;

use base64::Engine as _;
use ostraca_ca::Ca;
use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{
    CertificateChain, Identity, IdentityError, Principal, PrincipalKind, TrustRoot,
    fingerprint_of_pem,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

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

/// The same certificate with its ECDSA signature (r, s) replaced by (r, n - s), which is valid too.
fn with_another_signature(pem: &str) -> String {
    // The order of P-256.
    let order: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc,
        0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec();
    // SEQUENCE (4 bytes of header: long form), of which the last element is BIT STRING { 0, SEQUENCE { r, s } }.
    assert_eq!(der[..2], [0x30, 0x82]);
    let at = (der.len() - 76..der.len())
        .find(|at| {
            let rest = der.len() - at;
            der[*at] == 0x03
                && usize::from(der[at + 1]) == rest - 2
                && der[at + 2..at + 4] == [0, 0x30]
        })
        .expect("the signature");
    let r = &der[at + 5..at + 7 + usize::from(der[at + 6])];
    let s = &der[at + 5 + r.len() + 2..];
    let mut padded = [0; 32];
    let digits = s.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
    padded[32 - digits.len()..].copy_from_slice(&digits);
    let (mut other, mut borrow) = ([0; 32], 0);
    for place in (0..32).rev() {
        let difference = i16::from(order[place]) - i16::from(padded[place]) - borrow;
        borrow = i16::from(difference < 0);
        other[place] = difference.rem_euclid(256) as u8;
    }
    let mut number = other.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
    if number[0] & 0x80 != 0 {
        number.insert(0, 0);
    }
    let integer = [&[0x02, number.len() as u8], &number[..]].concat();
    let signature = [r, &integer].concat();
    let sequence = [&[0x30, signature.len() as u8], &signature[..]].concat();
    let bits = [&[0x03, sequence.len() as u8 + 1, 0], &sequence[..]].concat();
    let body = [&der[4..at], &bits].concat();
    let length = (body.len() as u16).to_be_bytes();
    let der = [&[0x30, 0x82], &length[..], &body].concat();
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[test]
fn a_fingerprint_does_not_depend_on_the_signature() {
    let ca = Ca::create(ClusterId(1)).expect("authority");
    let trust = ca.trust().expect("trust");
    for _ in 0..8 {
        let bob = ca.issue_client("bob").expect("identity");
        let other = with_another_signature(bob.certificate_pem());
        assert_ne!(other, bob.certificate_pem());
        let chain = CertificateChain::from_pem(&other).expect("certificates");
        assert!(chain.is_trusted(&trust), "its holder can use it");
        let fingerprint = |pem: &str| fingerprint_of_pem(pem).expect("a fingerprint");
        assert_eq!(fingerprint(&other), fingerprint(bob.certificate_pem()));
        let second = ca.issue_client("bob").expect("identity");
        assert_ne!(fingerprint(second.certificate_pem()), fingerprint(&other));
    }
}
