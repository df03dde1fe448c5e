//! How structs are encoded wherever they are stored or sent: postcard, complete, with no trailing bytes.
//!
//! Every record, row, control message and store call goes through [`decode`]: what a release does not understand is
//! refused by name, and bytes behind the end are an error, never ignored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::extension_error::{self, ExtensionError};

/// The format that this release writes into records and rows, and the highest that it reads. 1 and 2 were never
/// released.
pub const FORMAT: u8 = 3;
/// The lowest format that this release reads.
pub const OLDEST_FORMAT: u8 = 3;

/// Why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// An extension block is refused.
    #[error(transparent)]
    Extension(#[from] ExtensionError),
    /// More bytes follow.
    #[error("{0} trailing bytes")]
    Trailing(usize),
    /// They are truncated or otherwise malformed.
    #[error("{0}")]
    Malformed(String),
}

/// The bytes of a value.
///
/// # Errors
/// [`CodecError::Malformed`] for a value that postcard cannot encode; the formats have none.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    append_encoded(Vec::new(), value)
}

/// The same, appended to existing bytes.
///
/// # Errors
/// As [`encode`].
pub fn append_encoded<T: Serialize + ?Sized>(
    before: Vec<u8>,
    value: &T,
) -> Result<Vec<u8>, CodecError> {
    postcard::to_extend(value, before).map_err(|error| CodecError::Malformed(error.to_string()))
}

/// A value from all of its bytes.
///
/// # Errors
/// [`CodecError`] says why they are none.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match decode_prefix(bytes)? {
        (value, []) => Ok(value),
        (_, rest) => Err(CodecError::Trailing(rest.len())),
    }
}

/// A value from the first bytes; also returns the rest.
///
/// # Errors
/// [`CodecError`] says why they are none.
pub fn decode_prefix<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), CodecError> {
    // May be left over from a decoding elsewhere.
    extension_error::take_last_error();
    postcard::take_from_bytes(bytes).map_err(|error| match extension_error::take_last_error() {
        Some(refused) => refused.into(),
        None => CodecError::Malformed(error.to_string()),
    })
}

/// The format byte of a record or row, if this release reads it.
///
/// # Errors
/// Both numbers, and what to do.
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
        let newer = check_format(FORMAT + 1).expect_err("a later release's");
        assert!(newer.contains("use a newer release"), "{newer}");
        let older = check_format(OLDEST_FORMAT - 1).expect_err("never released");
        assert!(older.contains("ostraca init"), "{older}");
    }
}
