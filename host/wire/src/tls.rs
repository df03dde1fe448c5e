//! TLS 1.3 with ring; both sides present certificates from the cluster's own authority.
//!
//! Resumption is off, so each connection verifies certificates again, and an expired certificate is useless once
//! its connections end. This module does not read or set rustls' process-wide default provider.

use std::fmt;
use std::sync::Arc;

use ostraca_codes::{Code, codes};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};

use crate::identity::{Identity, IdentityError, Principal, PrincipalKind, TrustRoot};

#[cfg(feature = "server")]
mod node;

#[cfg(feature = "server")]
pub use node::server;
#[cfg(feature = "server")]
pub(crate) use node::{alpn, is_trusted, peer, peer_certificates};

/// The server name in TLS handshakes. Certificates carry no host names, so it is the same everywhere.
pub const SERVER_NAME: &str = "ostraca";

/// A client's TLS configuration: presents `identity`, if any, and accepts only nodes of the trusted cluster.
///
/// # Errors
///
/// [`IdentityError`] if the key and the certificate do not match.
pub fn client(
    identity: Option<&Identity>,
    trust: &TrustRoot,
    alpn: &[u8],
) -> Result<rustls::ClientConfig, IdentityError> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let verifier =
        Arc::new(NodeVerifier { roots: roots(trust)?, trust: trust.clone(), algorithms });
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| IdentityError::Certificate(e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder
            .with_client_auth_cert(identity.chain.clone(), identity.key_der.clone_key())
            .map_err(|e| IdentityError::Key(e.to_string()))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(trust: &TrustRoot) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for authority in &trust.authorities {
        roots.add(authority.clone()).map_err(|e| IdentityError::Certificate(e.to_string()))?;
    }
    Ok(roots)
}

/// Checks what the chain does not prove: that the holder belongs to the trusted cluster. Returns the holder.
fn named(certificate: &CertificateDer<'_>, trust: &TrustRoot) -> Result<Principal, rustls::Error> {
    let principal = Principal::of(certificate).map_err(other)?;
    if principal.cluster != trust.cluster {
        let cluster = principal.cluster;
        return Err(other(IdentityError::Certificate(format!("it names cluster {cluster}"))));
    }
    Ok(principal)
}

fn other(error: IdentityError) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
        DisplayAsDebug(error),
    ))))
}

/// Wraps our error for rustls, which prints it with `Debug`. So its `Debug` prints the `Display` text.
struct DisplayAsDebug(IdentityError);

impl fmt::Debug for DisplayAsDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for DisplayAsDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for DisplayAsDebug {}

/// Returns rustls' reason for rejecting a certificate, without the text that rustls puts around ours.
fn plain(reason: &str) -> &str {
    let reason = reason.strip_prefix("invalid peer certificate: ").unwrap_or(reason);
    let ours = reason.strip_prefix("Other(OtherError(").and_then(|rest| rest.strip_suffix("))"));
    ours.unwrap_or(reason)
}

#[derive(Debug)]
struct NodeVerifier {
    roots: RootCertStore,
    trust: TrustRoot,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = rustls::server::ParsedCertificate::try_from(end_entity)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        match named(end_entity, &self.trust)?.kind {
            PrincipalKind::Node => Ok(ServerCertVerified::assertion()),
            PrincipalKind::Client => {
                Err(other(IdentityError::Certificate("it belongs to a client, not a node".into())))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// QUIC's error code for a TLS alert.
const fn alert(number: u64) -> u64 {
    0x100 + number
}

/// Why one side rejected the other because of its certificate.
pub(crate) struct Rejection {
    /// Stable code.
    pub(crate) code: Code,
    /// What happened.
    pub(crate) message: String,
    /// How to fix it.
    pub(crate) help: &'static str,
}

/// The reason if the peer ended the handshake with a TLS alert.
pub(crate) fn refused_by_peer(number: u64) -> Option<Rejection> {
    const ISSUE: &str = "get a certificate for this cluster with `ostraca ca issue`";
    let (code, text, help) = match number {
        n if n == alert(116) => (codes::NO_CERTIFICATE, "the node requires a certificate", ISSUE),
        n if n == alert(48) || n == alert(51) => {
            (codes::UNKNOWN_CA, "certificate signed by an unknown CA", ISSUE)
        }
        n if n == alert(45) => {
            (codes::CERTIFICATE_EXPIRED, "certificate has expired or is not yet valid", ISSUE)
        }
        n if (alert(42)..=alert(49)).contains(&n) => {
            (codes::CERTIFICATE_REFUSED, "certificate rejected by the node", ISSUE)
        }
        n if n == alert(120) => (
            codes::UNKNOWN_PROTOCOL,
            "the node does not support this protocol",
            "check that the address accepts clients, and that both sides have compatible versions",
        ),
        _ => return None,
    };
    Some(Rejection { code, message: text.into(), help })
}

/// The reason if this side ended the handshake because of the peer's certificate.
pub(crate) fn refused_by_us(number: u64, reason: &str) -> Option<Rejection> {
    let (code, help) = match number {
        n if n == alert(48) || n == alert(51) => (
            codes::UNKNOWN_CA,
            "the address belongs to a different cluster than the profile, or the profile is outdated: get a new profile from this cluster",
        ),
        n if n == alert(45) => (
            codes::CERTIFICATE_EXPIRED,
            "check this machine's clock, or issue the node a new certificate with `ostraca ca issue`",
        ),
        n if (alert(42)..=alert(49)).contains(&n) => {
            (codes::NOT_A_NODE, "check the address: the server there is not a node of this cluster")
        }
        _ => return None,
    };
    let text = format!("the node's certificate was rejected ({})", plain(reason));
    Some(Rejection { code, message: text, help })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_errors_are_shown_without_tls_jargon() {
        let error = other(IdentityError::Certificate("it names cluster 7".into())).to_string();
        let ours = IdentityError::Certificate("it names cluster 7".into()).to_string();
        assert_eq!(plain(&error), ours);
        assert_eq!(plain("invalid peer certificate: Expired"), "Expired");
    }
}
