//! Certificates without a key.

use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Identity, IdentityError, Principal, TrustRoot, certificates};

/// A certificate of a node or a client, and those that connect it to an authority, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateChain {
    principal: Principal,
    public_key: Vec<u8>,
    public_key_bits: Vec<u8>,
    not_before: OffsetDateTime,
    pub(crate) all: Vec<CertificateDer<'static>>,
}

impl CertificateChain {
    /// Reads certificates in PEM, the holder's own one first.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Certificate`] if there is none, or if the first one names no principal.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let all = certificates(pem)?;
        let first = all.first().ok_or_else(|| IdentityError::Certificate("none found".into()))?;
        let principal = Principal::of(first)?;
        let parsed = parse(first)?;
        let public_key = parsed.public_key().raw.to_vec();
        let public_key_bits = parsed.public_key().subject_public_key.data.to_vec();
        let not_before = parsed.validity().not_before.to_datetime();
        Ok(Self { principal, public_key, public_key_bits, not_before, all })
    }

    /// Whom the certificate names.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The holder's public key: a SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The bits of the key within that structure.
    #[must_use]
    pub fn public_key_bits(&self) -> &[u8] {
        &self.public_key_bits
    }

    /// The SHA-256 of the holder's public key, in hexadecimal: of the SubjectPublicKeyInfo in DER.
    #[cfg(feature = "server")]
    #[must_use]
    pub fn key_fingerprint(&self) -> String {
        super::sha256(&self.public_key)
    }

    /// The beginning of the certificate's validity.
    #[must_use]
    pub fn not_before(&self) -> OffsetDateTime {
        self.not_before
    }
}

impl Identity {
    /// The certificates without the key.
    ///
    /// # Errors
    ///
    /// None that [`Identity::from_pem`] would not have reported.
    pub fn certificates(&self) -> Result<CertificateChain, IdentityError> {
        CertificateChain::from_pem(self.certificate_pem())
    }
}

impl TrustRoot {
    /// The beginning of the validity of the newest authority.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Certificate`] if a certificate cannot be read.
    pub fn newest(&self) -> Result<OffsetDateTime, IdentityError> {
        let mut newest = OffsetDateTime::UNIX_EPOCH;
        for authority in &self.authorities {
            newest = newest.max(parse(authority)?.validity().not_before.to_datetime());
        }
        Ok(newest)
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|e| IdentityError::Certificate(e.to_string()))
}
