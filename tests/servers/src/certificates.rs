//! Certificates for servers that tests reach over TLS.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority, and a certificate for a host with its key, in PEM form.
#[must_use]
pub fn certificates(host: &str) -> (String, String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(authority, key);
    let own = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec![host.into()]).expect("parameters");
    let leaf = leaf.signed_by(&own, &issuer).expect("a certificate");
    (ca.pem(), leaf.pem(), own.serialize_pem())
}
