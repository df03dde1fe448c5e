//! The encoding of every struct that is stored or sent: postcard, without trailing bytes.
//!
//! [`decode`] decodes every record, row, control message and store call: an unknown required field is refused with an
//! error that names it, and trailing bytes are an error, never ignored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::extension_error::{self, ExtensionError};

/// Why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// An extension block was refused.
    #[error(transparent)]
    Extension(#[from] ExtensionError),
    /// Bytes are left over after the value.
    #[error("{0} trailing bytes")]
    Trailing(usize),
    /// The bytes are truncated or otherwise malformed.
    #[error("{0}")]
    Malformed(String),
}

/// Encodes a value.
///
/// # Errors
/// [`CodecError::Malformed`] for a value that postcard cannot encode; the project's formats contain none.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    append_encoded(Vec::new(), value)
}

/// Encodes a value and appends it to existing bytes.
///
/// # Errors
/// As [`encode`].
pub fn append_encoded<T: Serialize + ?Sized>(
    before: Vec<u8>,
    value: &T,
) -> Result<Vec<u8>, CodecError> {
    postcard::to_extend(value, before).map_err(|error| CodecError::Malformed(error.to_string()))
}

/// Decodes a value from all of the bytes.
///
/// # Errors
/// [`CodecError`] if the bytes are not a value of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match decode_prefix(bytes)? {
        (value, []) => Ok(value),
        (_, rest) => Err(CodecError::Trailing(rest.len())),
    }
}

/// Decodes a value from the first bytes, and also returns the rest.
///
/// # Errors
/// [`CodecError`] if the bytes do not start with a value of this type.
pub fn decode_prefix<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), CodecError> {
    // An error may be left over from another decoding.
    extension_error::take_last_error();
    postcard::take_from_bytes(bytes).map_err(|error| match extension_error::take_last_error() {
        Some(refused) => refused.into(),
        None => CodecError::Malformed(error.to_string()),
    })
}
