//! The text of a secret, which is never printed.

use std::fmt;

use zeroize::Zeroizing;

/// The text of a secret. It is overwritten when it is dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// The text itself. The caller must not log it, store it or return it to a client.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", SecretText::from("hidden".to_owned())), "SecretText(..)");
    }
}
