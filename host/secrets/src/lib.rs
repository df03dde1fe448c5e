//! Seals the secrets of types, so that whoever reads the cluster's rows or a backup of them cannot read the secrets.
//!
//! Every node has the same keys, in a file. A sealed secret says which key it needs, and can be opened only as the
//! secret of the cluster, the type and the name for which it was sealed: it cannot be substituted for another secret.

mod error;
mod key;
mod sealed;
mod text;

pub use error::{KeyFileError, OpenError, SealError};
pub use key::SecretKeys;
pub use sealed::{SecretName, key_of};
pub use text::SecretText;
