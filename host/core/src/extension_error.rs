//! Why an extension block is refused, and how that reason gets past postcard.
//!
//! The codec and the extension blocks both need it, and blocks decode their fields with the codec. So it lies below
//! both of them.

use std::cell::Cell;

/// Fields of one block, at most.
pub const MAX_FIELDS: usize = 64;
/// Bytes of the values of one block, at most.
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
    /// There are more fields or bytes than one block may have.
    #[error(
        "the extensions of {struct_name} have more than {MAX_FIELDS} fields or {MAX_BYTES} bytes"
    )]
    TooLarge {
        /// The struct's name.
        struct_name: &'static str,
    },
}

thread_local! {
    /// Why the current decoding was refused: postcard's errors carry no text.
    static LAST_ERROR: Cell<Option<ExtensionError>> = const { Cell::new(None) };
}

/// Remembers why a block is refused, for [`take_last_error`], and makes the deserializer's error of it.
pub(crate) fn record_error<E: serde::de::Error>(error: ExtensionError) -> E {
    LAST_ERROR.set(Some(error));
    E::custom(error)
}

/// Takes why the last decoding on this thread was refused, if a block was the reason.
pub(crate) fn take_last_error() -> Option<ExtensionError> {
    LAST_ERROR.take()
}
