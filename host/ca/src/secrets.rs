//! The key that seals secrets of types, next to the authority's certificate.

use std::path::Path;

use ostraca_secrets::SecretKeys;
use ostraca_wire::identity::{IdentityError, files};
use zeroize::Zeroizing;

/// The file with the key, in the authority's directory and in that of each node.
pub const SECRET_KEYS: &str = "secret.key";

/// Creates the key in the authority's directory, readable by its owner only, unless there is one already. Returns whether
/// it created one.
///
/// # Errors
///
/// [`IdentityError::File`]; [`IdentityError::Make`] if the system provides no randomness.
pub fn create_secret_key(directory: &Path) -> Result<bool, IdentityError> {
    let _lock = files::lock(directory)?;
    if directory.join(SECRET_KEYS).exists() {
        return Ok(false);
    }
    let text = SecretKeys::generate().map_err(|error| IdentityError::Make(error.to_string()))?;
    files::write(&directory.join(SECRET_KEYS), &text)?;
    Ok(true)
}

/// Copies the keys from the authority's directory to a new node's, if there are any.
///
/// # Errors
///
/// [`IdentityError::File`]; [`IdentityError::Key`] if the file holds something else.
pub fn copy_secret_keys(authority: &Path, node: &Path) -> Result<(), IdentityError> {
    let from = authority.join(SECRET_KEYS);
    if !from.exists() {
        return Ok(());
    }
    let text = Zeroizing::new(files::read(&from)?);
    SecretKeys::parse(&text)
        .map_err(|error| IdentityError::Key(format!("{}: {error}", from.display())))?;
    files::write(&node.join(SECRET_KEYS), &text)
}
