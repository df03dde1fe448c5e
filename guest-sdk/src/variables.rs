//! Secrets and settings that operators set for the entity's type, while its entities run.
//!
//! The manifest names those that the type may read:
//!
//! ```toml
//! [grants]
//! secrets = ["api-key"]
//! settings = ["greeting"]
//! ```
//!
//! `ostraca secret set TYPE api-key < FILE` and `ostraca setting set TYPE greeting TEXT` set them. A turn sees
//! all values as of its first read, so a new value takes effect with a later turn. A read of a name that the manifest
//! does not grant traps (`secret-not-granted`, `setting-not-granted`), and so does one of a secret that the node cannot
//! open (`variable-unavailable`).
//!
//! The host stores secrets only sealed, and never logs or returns them. The entity should not put them in its state,
//! replies, log lines or errors either.

/// Returns a secret; `None` if it is not set.
#[must_use]
pub fn secret(name: &str) -> Option<String> {
    crate::host::secret(name)
}

/// Returns a setting; `None` if it is not set.
#[must_use]
pub fn setting(name: &str) -> Option<String> {
    crate::host::setting(name)
}
