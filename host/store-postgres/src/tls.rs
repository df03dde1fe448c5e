//! The TLS settings of the connections.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::OpenError;

/// Checks servers against the certificates of a PEM file, or against those of the public authorities.
pub(crate) async fn config(ca: Option<&Path>) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let pem = tokio::fs::read(path).await;
            let pem = pem.map_err(|source| OpenError::File { path: path.into(), source })?;
            let invalid = |why: String| OpenError::Authority { path: path.into(), why };
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
                roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(invalid("it has no certificate".into()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| OpenError::Connect(error.to_string()))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
