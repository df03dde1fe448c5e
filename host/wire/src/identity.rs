//! Identities: the certificates that the cluster's own authority issues, and what they name.
//!
//! A certificate names its holder with one URI: `ostraca://<cluster>/node/<name>` or
//! `ostraca://<cluster>/client/<name>`. Host names are never checked: a node belongs to its cluster at any address. The
//! *authority* (CA), which is in the crate `ostraca-ca`, signs certificates. An [`Identity`] is a certificate with its
//! key. A [`Principal`] is what a certificate names.

use std::fmt;
use std::path::Path;

use ostraca_core::ids::ClusterId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

mod chain;
pub mod files;
mod validity;

pub use chain::CertificateChain;

/// Why an identity cannot be created, read or used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read`, `write`, `rename` or `remove`.
        action: &'static str,
        /// Path of the file.
        path: String,
        /// The underlying I/O error.
        source: std::io::Error,
    },
    /// The certificate is unreadable, or was not issued by Ostraca.
    #[error("invalid certificate: {0}")]
    Certificate(String),
    /// The key is unreadable, or does not match the certificate.
    #[error("invalid key: {0}")]
    Key(String),
    /// The certificate has expired, or is not valid yet.
    #[error("certificate of {subject} is valid from {from} to {until}; current time is {now}")]
    Expired {
        /// Whose certificate it is.
        subject: String,
        /// Start of its validity.
        from: String,
        /// End of its validity.
        until: String,
        /// The current time according to this machine.
        now: String,
    },
    /// A name that is not allowed in a certificate.
    #[error(
        "name {0:?} is not allowed: 1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"
    )]
    Name(String),
    /// The certificate could not be created.
    #[error("cannot create certificate: {0}")]
    Make(String),
}

/// The kinds of certificate holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrincipalKind {
    /// A node of the cluster.
    Node,
    /// A client; never accepted as a node.
    Client,
}

impl PrincipalKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Client => "client",
        }
    }
}

/// The identity in a certificate. Displayed as `client/alice`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The principal's cluster.
    pub cluster: ClusterId,
    /// Node or client.
    pub kind: PrincipalKind,
    /// The name within the cluster.
    pub name: String,
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.name)
    }
}

impl Principal {
    /// A principal with a name that is allowed in a certificate.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Name`].
    pub fn new(cluster: ClusterId, kind: PrincipalKind, name: &str) -> Result<Self, IdentityError> {
        check_name(name)?;
        Ok(Self { cluster, kind, name: name.into() })
    }

    /// Reads the principal from a certificate, without checking the certificate's signature.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Certificate`] if the certificate names no principal, or more than one.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let uri = ostraca_uri(certificate)?;
        Self::parse(&uri).ok_or_else(|| {
            IdentityError::Certificate(format!(
                "its name {uri:?} does not identify a node or client"
            ))
        })
    }

    fn parse(uri: &str) -> Option<Self> {
        let (cluster, rest) = split_cluster(uri)?;
        let (role, name) = rest.split_once('/')?;
        let role = match role {
            "node" => PrincipalKind::Node,
            "client" => PrincipalKind::Client,
            _ => return None,
        };
        Self::new(cluster, role, name).ok()
    }

    /// The URI with which a certificate names this principal.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("ostraca://{}/{self}", self.cluster)
    }
}

/// The SHA-256 of what the authority has signed of a certificate (its TBSCertificate in DER), in lower-case hexadecimal.
/// Without the signature, which the holder can replace by another valid one.
///
/// # Errors
///
/// [`IdentityError::Certificate`] if it cannot be read.
#[cfg(feature = "server")]
pub fn fingerprint(certificate: &CertificateDer<'_>) -> Result<String, IdentityError> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|e| IdentityError::Certificate(e.to_string()))?;
    Ok(sha256(parsed.tbs_certificate.as_ref()))
}

/// A digest in lower-case hexadecimal.
#[cfg(feature = "server")]
fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fingerprint of the first certificate in a PEM text.
///
/// # Errors
///
/// [`IdentityError::Certificate`] if there is none.
#[cfg(feature = "server")]
pub fn fingerprint_of_pem(pem: &str) -> Result<String, IdentityError> {
    let all = certificates(pem)?;
    let first = all.first().ok_or_else(|| IdentityError::Certificate("none found".into()))?;
    fingerprint(first)
}

/// A certificate with its key, as a node or client presents it.
pub struct Identity {
    principal: Principal,
    certificate: String,
    key: String,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key_der: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the key.
        f.debug_tuple("Identity").field(&self.principal.uri()).finish()
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self {
            principal: self.principal.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            chain: self.chain.clone(),
            key_der: self.key_der.clone_key(),
        }
    }
}

impl Identity {
    /// Reads an identity from a certificate and a key in PEM.
    ///
    /// # Errors
    ///
    /// [`IdentityError`] if either is unreadable or the certificate names no principal.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        let chain = certificates(certificate)?;
        let first = chain.first().ok_or_else(|| IdentityError::Certificate("none found".into()))?;
        let principal = Principal::of(first)?;
        let key_der = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|e| IdentityError::Key(e.to_string()))?;
        Ok(Self { principal, certificate: certificate.into(), key: key.into(), chain, key_der })
    }

    /// Reads an identity from a certificate file and a key file.
    ///
    /// # Errors
    ///
    /// As [`Identity::from_pem`], and if a file cannot be read.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(&files::read(certificate)?, &files::read(key)?)
    }

    /// Writes `<stem>.pem` and `<stem>.key` into a directory, readable by their owner only.
    ///
    /// # Errors
    ///
    /// [`IdentityError::File`].
    pub fn save(&self, directory: &Path, stem: &str) -> Result<(), IdentityError> {
        files::write(&directory.join(format!("{stem}.pem")), &self.certificate)?;
        files::write(&directory.join(format!("{stem}.key")), &self.key)
    }

    /// The principal that the certificate names.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The certificate in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    /// The key in PEM: a secret.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key
    }
}

/// Maximum number of authorities that a cluster has at the same time.
pub const MAX_AUTHORITIES: usize = 4;

/// The trusted cluster, with the certificates of its authorities: one, or several while one replaces another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRoot {
    /// The cluster's id.
    pub cluster: ClusterId,
    pub(crate) authorities: Vec<CertificateDer<'static>>,
}

impl TrustRoot {
    /// Reads the trust root from the certificates of a cluster's authorities in PEM, at most [`MAX_AUTHORITIES`].
    ///
    /// # Errors
    ///
    /// [`IdentityError::Certificate`] if one of them is not the certificate of an authority of the same cluster.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let authorities = certificates(pem)?;
        let bad = |text: String| Err(IdentityError::Certificate(text));
        if authorities.len() > MAX_AUTHORITIES {
            let count = authorities.len();
            return bad(format!("{count} authorities, limit is {MAX_AUTHORITIES}"));
        }
        // What cannot be trusted must be noticed here, and not once a node has kept it.
        for authority in &authorities {
            rustls::RootCertStore::empty()
                .add(authority.clone())
                .map_err(|e| IdentityError::Certificate(e.to_string()))?;
        }
        let mut clusters = authorities.iter().map(cluster_of_authority);
        let Some(cluster) = clusters.next().transpose()? else { return bad("none found".into()) };
        for other in clusters {
            let other = other?;
            if other != cluster {
                return bad(format!("authorities of two clusters, {cluster} and {other}"));
            }
        }
        Ok(Self { cluster, authorities })
    }
}

fn cluster_of_authority(certificate: &CertificateDer<'_>) -> Result<ClusterId, IdentityError> {
    let uri = ostraca_uri(certificate)?;
    match split_cluster(&uri) {
        Some((cluster, "ca")) => Ok(cluster),
        _ => Err(IdentityError::Certificate(format!(
            "its name {uri:?} does not identify a cluster's authority"
        ))),
    }
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| IdentityError::Certificate(e.to_string()))
}

/// The only `ostraca://` name of a certificate. Two names would let a holder choose its identity.
fn ostraca_uri(certificate: &CertificateDer<'_>) -> Result<String, IdentityError> {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|e| IdentityError::Certificate(e.to_string()))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|e| IdentityError::Certificate(e.to_string()))?
        .map(|extension| &extension.value.general_names);
    let mut uris = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with("ostraca://") => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => Ok(uri.into()),
        (None, _) => Err(IdentityError::Certificate("it has no ostraca:// name".into())),
        (Some(_), Some(_)) => {
            Err(IdentityError::Certificate("it has more than one ostraca:// name".into()))
        }
    }
}

fn split_cluster(uri: &str) -> Option<(ClusterId, &str)> {
    let (cluster, rest) = uri.strip_prefix("ostraca://")?.split_once('/')?;
    let digits = cluster.len() == 32 && cluster.bytes().all(|b| b.is_ascii_hexdigit());
    if !digits {
        return None;
    }
    Some((ClusterId(u128::from_str_radix(cluster, 16).ok()?), rest))
}

/// Checks a name that is to be in a certificate: that of a node or of a client.
///
/// # Errors
///
/// [`IdentityError::Name`].
pub fn check_name(name: &str) -> Result<(), IdentityError> {
    let good = (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if good { Ok(()) } else { Err(IdentityError::Name(name.into())) }
}
