//! Creates the cluster's own certificate authority, and issues certificates to nodes and clients. [`tokens`] has the key
//! for its tokens.
//!
//! A separate crate, since only the `ostraca` command and the creation of a node issue certificates. An application
//! that embeds the client checks certificates with `ostraca_wire::identity` and does not build this crate.

mod rotation;
pub mod secrets;
pub mod tokens;

use std::path::Path;

use ostraca_core::ids::ClusterId;
use ostraca_wire::identity::{Identity, IdentityError, Principal, PrincipalKind, TrustRoot, files};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use time::{Duration, OffsetDateTime};

pub use rotation::Rotation;

/// How long certificates issued by [`Ca`] are valid: 10 years.
pub const VALIDITY: Duration = Duration::days(3_650);

/// The cluster's own authority, which signs the certificates of nodes and clients.
pub struct Ca {
    cluster: ClusterId,
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of this authority by the one that it replaces, in PEM; empty if it replaces none.
    cross: String,
}

impl Ca {
    /// Creates an authority for a cluster.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Make`] if the system provides no randomness.
    pub fn create(cluster: ClusterId) -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(make)?;
        // It may certify the authority that will replace it.
        let certificate = authority(cluster, 1)?.self_signed(&key).map_err(make)?;
        Self::from_pem(&certificate.pem(), &key.serialize_pem())
    }

    /// Reads an authority from its certificate and key in PEM format.
    ///
    /// # Errors
    ///
    /// [`IdentityError`] if either is unreadable or does not belong to an authority.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        let cluster = TrustRoot::from_pem(certificate)?.cluster;
        let pair = KeyPair::from_pem(key).map_err(|e| IdentityError::Key(e.to_string()))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair).map_err(make)?;
        let (certificate, key) = (certificate.into(), key.into());
        Ok(Self { cluster, certificate, key, issuer, cross: String::new() })
    }

    /// Reads `ca.pem` and `ca.key` from a directory, and what [`Rotation`] has left there.
    ///
    /// # Errors
    ///
    /// Those of [`Ca::from_pem`], and [`IdentityError::File`] if a file cannot be read.
    pub fn load(directory: &Path) -> Result<Self, IdentityError> {
        rotation::finish_renaming(directory)?;
        let certificate = files::read(&directory.join("ca.pem"))?;
        let key = files::read(&directory.join("ca.key"))?;
        Ok(Self { cross: rotation::cross(directory)?, ..Self::from_pem(&certificate, &key)? })
    }

    /// Writes `ca.pem` and `ca.key` into a directory, readable by their owner only.
    ///
    /// # Errors
    ///
    /// [`IdentityError::File`].
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        files::write(&directory.join("ca.pem"), &self.certificate)?;
        files::write(&directory.join("ca.key"), &self.key)
    }

    /// The cluster of this authority.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The certificate, which everyone who trusts the cluster needs.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    /// The trust root of this cluster.
    ///
    /// # Errors
    ///
    /// None that [`Ca::from_pem`] would not have reported.
    pub fn trust(&self) -> Result<TrustRoot, IdentityError> {
        TrustRoot::from_pem(&self.certificate)
    }

    /// Issues a node's identity. `addresses` (host names or IP addresses) are for tools that inspect
    /// certificates; Ostraca does not check them.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Name`], [`IdentityError::Make`].
    pub fn issue_node(&self, name: &str, addresses: &[String]) -> Result<Identity, IdentityError> {
        let now = OffsetDateTime::now_utc();
        self.issue(PrincipalKind::Node, name, addresses, now - Duration::hours(1), now + VALIDITY)
    }

    /// Issues a client's identity.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Name`], [`IdentityError::Make`].
    pub fn issue_client(&self, name: &str) -> Result<Identity, IdentityError> {
        let now = OffsetDateTime::now_utc();
        self.issue(PrincipalKind::Client, name, &[], now - Duration::hours(1), now + VALIDITY)
    }

    /// Issues an identity with a given validity period.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Name`], [`IdentityError::Make`].
    pub fn issue(
        &self,
        role: PrincipalKind,
        name: &str,
        addresses: &[String],
        not_before: OffsetDateTime,
        not_after: OffsetDateTime,
    ) -> Result<Identity, IdentityError> {
        let principal = Principal::new(self.cluster, role, name)?;
        let key = KeyPair::generate().map_err(make)?;
        let chain = self.certify(&principal, &key, addresses, not_before, not_after)?;
        Identity::from_pem(&chain, &key.serialize_pem())
    }

    /// Certifies a public key. Returns the certificate in PEM, and those that connect it to other authorities.
    fn certify(
        &self,
        principal: &Principal,
        key: &impl PublicKeyData,
        addresses: &[String],
        not_before: OffsetDateTime,
        not_after: OffsetDateTime,
    ) -> Result<String, IdentityError> {
        let mut params = CertificateParams::new(addresses.to_vec()).map_err(make)?;
        params.distinguished_name.push(DnType::CommonName, principal.to_string());
        params.subject_alt_names.push(uri(principal.uri())?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match principal.kind {
            // A node is a server, and a client of other nodes.
            PrincipalKind::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            PrincipalKind::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        params.not_before = not_before;
        params.not_after = not_after;
        let certificate = params.signed_by(key, &self.issuer).map_err(make)?;
        Ok(certificate.pem() + &self.cross)
    }
}

/// The certificate of an authority, which may certify `depth` further authorities below it.
fn authority(cluster: ClusterId, depth: u8) -> Result<CertificateParams, IdentityError> {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("ostraca cluster {cluster}"));
    params.subject_alt_names = vec![uri(format!("ostraca://{cluster}/ca"))?];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(depth));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = now - Duration::hours(1);
    params.not_after = now + VALIDITY + VALIDITY;
    Ok(params)
}

fn uri(text: String) -> Result<SanType, IdentityError> {
    Ia5String::try_from(text).map(SanType::URI).map_err(make)
}

fn make(error: rcgen::Error) -> IdentityError {
    IdentityError::Make(error.to_string())
}
