//! Replaces the authority by another one, in its directory.
//!
//! The new authority has two certificates: its own, and one of the authority that it replaces (`cross.pem`). Whoever
//! presents the second one too is trusted by those that know only the former authority. So nodes and clients can change
//! over one by one, in any order.

use std::fs::File;
use std::path::{Path, PathBuf};

use ostraca_wire::identity::{CertificateChain, IdentityError, PrincipalKind, TrustRoot, files};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SignatureAlgorithm};
use time::{Duration, OffsetDateTime};

use super::{Ca, VALIDITY, authority, make};

/// The certificate of the authority by the former one.
const CROSS: &str = "cross.pem";
/// The next authority, until it replaces the current one.
const NEXT: (&str, &str) = ("next.pem", "next.key");
/// The former authority.
const FORMER: (&str, &str) = ("former.pem", "former.key");

/// A directory in which one authority replaces another: first both are trusted, then only the new one.
pub struct Rotation {
    directory: PathBuf,
    former_pem: String,
    /// The one that replaces it.
    pub next: Ca,
    /// Two operators who rotate at once would create two authorities.
    _lock: File,
}

impl Rotation {
    /// The rotation in which the authority of this directory has replaced another one, which is still trusted; `None` if
    /// there is none.
    ///
    /// # Errors
    ///
    /// Those of [`Ca::load`]; [`IdentityError::File`] if another process rotates in this directory.
    pub fn promoted(directory: &Path) -> Result<Option<Self>, IdentityError> {
        let lock = files::lock(directory)?;
        Ok(Self::promoted_under(directory, lock)?.ok())
    }

    /// The same under a lock, which is returned if there is none.
    fn promoted_under(directory: &Path, lock: File) -> Result<Result<Self, File>, IdentityError> {
        let former = directory.join(FORMER.0);
        if !former.exists() {
            return Ok(Err(lock));
        }
        let (former_pem, next) = (files::read(&former)?, Ca::load(directory)?);
        Ok(Ok(Self { directory: directory.into(), former_pem, next, _lock: lock }))
    }

    /// Creates the next authority, or goes on with the one that an earlier call has created.
    ///
    /// # Errors
    ///
    /// Those of [`Rotation::promoted`] and [`Ca::save`].
    pub fn begin(directory: &Path) -> Result<Self, IdentityError> {
        let lock = match Self::promoted_under(directory, files::lock(directory)?)? {
            Ok(promoted) => return Ok(promoted),
            Err(lock) => lock,
        };
        let (next_pem, next_key) = (directory.join(NEXT.0), directory.join(NEXT.1));
        let current = Ca::load(directory)?;
        if !next_key.exists() {
            let key = KeyPair::generate().map_err(make)?;
            let own = authority(current.cluster, 1)?.self_signed(&key).map_err(make)?;
            let cross =
                authority(current.cluster, 0)?.signed_by(&key, &current.issuer).map_err(make)?;
            files::write(&directory.join(CROSS), &cross.pem())?;
            files::write(&next_pem, &own.pem())?;
            // Last, since it says that the others are complete.
            files::write(&next_key, &key.serialize_pem())?;
        }
        let next = Ca::from_pem(&files::read(&next_pem)?, &files::read(&next_key)?)?;
        let next = Ca { cross: files::read(&directory.join(CROSS))?, ..next };
        let former_pem = current.certificate.clone();
        Ok(Self { directory: directory.into(), former_pem, next, _lock: lock })
    }

    /// The certificates of both authorities, in PEM.
    #[must_use]
    pub fn both(&self) -> String {
        format!("{}{}", self.former_pem, self.next.certificate)
    }

    /// Certifies the key of a node that has a certificate of one of both authorities. Returns PEM.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Certificate`] if it has none, or if the key is of an unknown kind.
    pub fn renew_node(&self, presented: &CertificateChain) -> Result<String, IdentityError> {
        let bad = |text: &str| Err(IdentityError::Certificate(text.into()));
        let trusted = TrustRoot::from_pem(&self.both())?;
        if !presented.is_trusted(&trusted) {
            return bad("neither the former nor the next authority has issued it");
        }
        if presented.principal().kind != PrincipalKind::Node {
            return bad("it does not belong to a node");
        }
        let key = PublicKey::of(presented)?;
        let now = OffsetDateTime::now_utc();
        let (from, until) = (now - Duration::hours(1), now + VALIDITY);
        self.next.certify(presented.principal(), &key, &["localhost".into()], from, until)
    }

    /// Replaces the authority by the next one. The former one stays in the directory, in files of another name.
    ///
    /// # Errors
    ///
    /// [`IdentityError::File`]; then the next [`Rotation::begin`] goes on.
    pub fn promote(&self) -> Result<(), IdentityError> {
        let path = |name: &str| self.directory.join(name);
        if path(FORMER.0).exists() {
            return Ok(());
        }
        files::write(&path(FORMER.1), &files::read(&path("ca.key"))?)?;
        files::write(&path(FORMER.0), &self.former_pem)?;
        finish_renaming(&self.directory)
    }

    /// Removes what is left of the former authority.
    ///
    /// # Errors
    ///
    /// [`IdentityError::File`].
    pub fn end(&self) -> Result<(), IdentityError> {
        // The key first. What is left of the others after a crash does no harm.
        for name in [FORMER.1, FORMER.0, CROSS] {
            files::remove(&self.directory.join(name))?;
        }
        Ok(())
    }
}

/// Replaces the authority's files by those of the next one, once the former ones are saved.
pub(crate) fn finish_renaming(directory: &Path) -> Result<(), IdentityError> {
    if directory.join(FORMER.0).exists() {
        for (from, to) in [(NEXT.1, "ca.key"), (NEXT.0, "ca.pem")] {
            let from = directory.join(from);
            if from.exists() {
                files::rename(&from, &directory.join(to))?;
            }
        }
    }
    Ok(())
}

/// What connects the authority's certificates to the former authority; empty if it has replaced none.
pub(crate) fn cross(directory: &Path) -> Result<String, IdentityError> {
    match directory.join(FORMER.0).exists() {
        true => files::read(&directory.join(CROSS)),
        false => Ok(String::new()),
    }
}

/// A public key of which only the certificate is known.
struct PublicKey {
    bits: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl PublicKey {
    fn of(chain: &CertificateChain) -> Result<Self, IdentityError> {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
            let bits = chain.public_key_bits().to_vec();
            let key = Self { bits, algorithm };
            if key.subject_public_key_info() == chain.public_key() {
                return Ok(key);
            }
        }
        Err(IdentityError::Certificate("its key is neither of P-256 nor of Ed25519".into()))
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bits
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}
