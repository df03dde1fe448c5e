//! The encoding of every struct that is stored or sent: postcard, without trailing bytes.
//!
//! [`decode`] decodes every record, row, control message and store call: an unknown required field is refused with an
//! error that names it, and trailing bytes are an error, never ignored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::extension_error::{self, ExtensionError};

/// The format that this release writes into records and rows, and the highest that it reads. Formats 1 and 2 were
/// never released.
pub const FORMAT: u8 = 3;
/// The lowest format that this release reads.
pub const OLDEST_FORMAT: u8 = 3;

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

/// Checks that this release reads the format byte of a record or row.
///
/// # Errors
/// A message with the format, the supported formats, and what to do.
pub fn check_format(found: u8) -> Result<(), String> {
    if (OLDEST_FORMAT..=FORMAT).contains(&found) {
        return Ok(());
    }
    let help = if found > FORMAT {
        "use a newer release"
    } else {
        "an unreleased program wrote it; recreate the cluster with `ostraca init`"
    };
    Err(format!(
        "it has format {found}, but this release reads {OLDEST_FORMAT} to {FORMAT}: {help}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_format_is_refused_with_advice() {
        for known in OLDEST_FORMAT..=FORMAT {
            assert_eq!(check_format(known), Ok(()));
        }
        let newer = check_format(FORMAT + 1).expect_err("a later format");
        assert!(newer.contains("use a newer release"), "{newer}");
        let older = check_format(OLDEST_FORMAT - 1).expect_err("never released");
        assert!(older.contains("ostraca init"), "{older}");
    }
}
