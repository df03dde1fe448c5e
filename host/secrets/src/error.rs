//! Why keys cannot be read, and secrets neither sealed nor opened.

/// Prefix of a line that holds a key.
pub(crate) const PREFIX: &str = "ostraca-secret-key-1:";
/// Maximum number of keys in a file.
pub(crate) const MAX_KEYS: usize = 16;

/// Why a file with keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// A line is neither a key nor a comment. The line itself may be a damaged key, so it is not shown.
    #[error(
        "line {0} is not a key: write `{PREFIX}` and 64 hexadecimal digits, or a comment that begins with `#`"
    )]
    NotAKey(usize),
    /// It has no key.
    #[error("no key in the file")]
    NoKey,
    /// It has too many keys.
    #[error("more than {MAX_KEYS} keys in the file")]
    TooManyKeys,
}

/// Why a secret cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The system provides no random numbers.
    #[error("the system provides no random numbers")]
    NoRandomness,
    /// The text is too long for the cipher.
    #[error("the text is too long")]
    TooLong,
}

/// Why a sealed secret cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It needs a key that this node does not have.
    #[error("it is sealed with key {0}, which this node does not have")]
    UnknownKey(String),
    /// It is damaged, or was sealed for another name.
    #[error("it is damaged, or belongs to another cluster, type or name")]
    Damaged,
    /// It was sealed by a later release.
    #[error("it has version {0}, which this release does not know")]
    UnknownVersion(u8),
}
