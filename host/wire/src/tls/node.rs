//! A node's side of TLS: its configuration, and what it learns about the peer.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

use super::{named, provider, roots};
use crate::identity::{CertificateChain, Identity, IdentityError, Principal, TrustRoot};

/// A node's TLS configuration: presents `identity`, offers the application protocols `alpns`, and accepts every peer
/// that the trusted authority has certified, and peers without a certificate. The latter must be refused after the
/// handshake, unless they prove who they are in another way.
///
/// # Errors
///
/// [`IdentityError`] if the key and the certificate do not match.
pub fn server(
    identity: &Identity,
    trust: &TrustRoot,
    alpns: &[&[u8]],
) -> Result<rustls::ServerConfig, IdentityError> {
    let verifier = Arc::new(ClientVerifier::new(trust)?);
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| IdentityError::Certificate(e.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key_der.clone_key())
        .map_err(|e| IdentityError::Key(e.to_string()))?;
    config.alpn_protocols = alpns.iter().map(|alpn| alpn.to_vec()).collect();
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Whether an authority of the cluster has certified this now: a certificate of a node or client, followed by those that
/// connect it to the authority, as its holder presents them.
#[must_use]
pub(crate) fn is_trusted(trust: &TrustRoot, chain: &[CertificateDer<'_>]) -> bool {
    let Some((certificate, intermediates)) = chain.split_first() else { return false };
    let Ok(verifier) = ClientVerifier::new(trust) else { return false };
    verifier.verify_client_cert(certificate, intermediates, UnixTime::now()).is_ok()
}

impl CertificateChain {
    /// Whether an authority of the cluster has certified this, and it is valid now.
    #[must_use]
    pub fn is_trusted(&self, trust: &TrustRoot) -> bool {
        is_trusted(trust, &self.all)
    }
}

/// The certificates of the other end of an established connection: its own one first. Empty if it has shown none.
pub(crate) fn peer_certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity();
    let chain = shown.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

/// The principal at the other end of an established connection.
pub(crate) fn peer(connection: &quinn::Connection) -> Result<Principal, IdentityError> {
    let sent_none = || IdentityError::Certificate("the peer sent none".into());
    Principal::of(peer_certificates(connection).first().ok_or_else(sent_none)?)
}

/// The application protocol of an established connection.
pub(crate) fn alpn(connection: &quinn::Connection) -> Vec<u8> {
    connection
        .handshake_data()
        .and_then(|any| any.downcast::<quinn::crypto::rustls::HandshakeData>().ok())
        .and_then(|data| data.protocol)
        .unwrap_or_default()
}

#[derive(Debug)]
struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    trust: TrustRoot,
}

impl ClientVerifier {
    fn new(trust: &TrustRoot) -> Result<Self, IdentityError> {
        let inner =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots(trust)?), provider())
                // A client may show a token instead, in its hello.
                .allow_unauthenticated()
                .build()
                .map_err(|e| IdentityError::Certificate(e.to_string()))?;
        Ok(Self { inner, trust: trust.clone() })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        named(end_entity, &self.trust)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
