//! The name of a component: the hash of its bytes.

use std::fmt;

/// A component's content hash (BLAKE3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ComponentDigest([u8; 32]);

impl ComponentDigest {
    /// Computes the digest of a component.
    pub fn of(component: &[u8]) -> ComponentDigest {
        ComponentDigest(*blake3::hash(component).as_bytes())
    }

    /// Returns the 32 bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
