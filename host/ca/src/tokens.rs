//! The key with which the cluster's own authority signs tokens, next to its certificate.

use std::path::Path;

use ostraca_token::SigningKey;
use ostraca_wire::identity::{IdentityError, files};
use rcgen::{KeyPair, PKCS_ED25519};

use super::make;

/// The `iss` of the authority's tokens, and its usual name in a policy.
pub const ISSUER: &str = "ostraca";

/// The file with the key, in the authority's directory.
const FILE: &str = "token.key";

/// Reads the key from the authority's directory; creates it, readable by its owner only, if there is none yet.
///
/// # Errors
///
/// [`IdentityError::File`]; [`IdentityError::Key`] if the file holds another kind of key; [`IdentityError::Make`] if the
/// system provides no randomness.
pub fn signing_key(directory: &Path) -> Result<SigningKey, IdentityError> {
    let path = directory.join(FILE);
    let pair = if path.exists() {
        let wrong =
            |error: rcgen::Error| IdentityError::Key(format!("{}: {error}", path.display()));
        KeyPair::from_pem(&files::read(&path)?).map_err(wrong)?
    } else {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(make)?;
        files::write(&path, &pair.serialize_pem())?;
        pair
    };
    SigningKey::from_pkcs8(&pair.serialize_der())
        .map_err(|error| IdentityError::Key(format!("{}: {error}", path.display())))
}
