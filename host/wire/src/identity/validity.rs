//! Checks whether certificates are valid at a given time. TLS checks the certificates of peers; only the node itself
//! checks its own, before it starts.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

use super::{Identity, IdentityError, TrustRoot};

impl Identity {
    /// Refuses a certificate that every peer would refuse at the given time.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Expired`].
    pub fn check_time(&self, now: SystemTime) -> Result<(), IdentityError> {
        let own = self.principal().to_string();
        self.chain.iter().try_for_each(|certificate| check(certificate, &own, now))
    }
}

impl TrustRoot {
    /// Refuses authority certificates of which none is valid at the given time.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Expired`].
    pub fn check_time(&self, now: SystemTime) -> Result<(), IdentityError> {
        let mut checked =
            self.authorities.iter().map(|it| check(it, "the cluster's authority", now));
        let first = checked.next().unwrap_or(Ok(()));
        first.or_else(|error| checked.find(Result::is_ok).unwrap_or(Err(error)))
    }
}

fn check(der: &CertificateDer<'_>, whose: &str, now: SystemTime) -> Result<(), IdentityError> {
    let (_, parsed) = X509Certificate::from_der(der)
        .map_err(|error| IdentityError::Certificate(error.to_string()))?;
    let validity = parsed.validity();
    let at = ASN1Time::from(OffsetDateTime::from(now));
    if validity.is_valid_at(at) {
        return Ok(());
    }
    Err(IdentityError::Expired {
        subject: whose.into(),
        from: validity.not_before.to_string(),
        until: validity.not_after.to_string(),
        now: at.to_string(),
    })
}
