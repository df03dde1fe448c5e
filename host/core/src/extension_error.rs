//! Why an extension block is refused, and how that reason bypasses postcard.
//!
//! The codec and the extension blocks both need it, and blocks decode their fields with the codec. So this module sits
//! below both.

use std::cell::Cell;

/// Maximum number of fields in one block.
pub const MAX_FIELDS: usize = 64;
/// Maximum total size of the values of one block, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;

/// Why an extension block is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// A required field is unknown here.
    #[error(
        "field {number} of {struct_name} is required, but this release does not support it: use a newer release"
    )]
    UnknownRequiredField {
        /// The struct's name.
        struct_name: &'static str,
        /// The field's number.
        number: u32,
    },
    /// A number is repeated, out of order, or 0.
    #[error("field {number} of {struct_name} is out of order, duplicated, or 0")]
    InvalidFieldOrder {
        /// The struct's name.
        struct_name: &'static str,
        /// The field's number.
        number: u32,
    },
    /// The block has more fields or bytes than allowed.
    #[error(
        "the extensions of {struct_name} have more than {MAX_FIELDS} fields or {MAX_BYTES} bytes"
    )]
    TooLarge {
        /// The struct's name.
        struct_name: &'static str,
    },
}

thread_local! {
    /// Why the current decoding was refused: postcard's errors cannot carry text.
    static LAST_ERROR: Cell<Option<ExtensionError>> = const { Cell::new(None) };
}

/// Stores why a block is refused, for [`take_last_error`], and returns the deserializer's error for it.
pub(crate) fn record_error<E: serde::de::Error>(error: ExtensionError) -> E {
    LAST_ERROR.set(Some(error));
    E::custom(error)
}

/// Takes the reason why the last decoding on this thread was refused, if an extension block caused it.
pub(crate) fn take_last_error() -> Option<ExtensionError> {
    LAST_ERROR.take()
}
