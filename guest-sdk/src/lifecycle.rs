//! The instance's own life.

/// Asks for this instance to be dropped after the turn; the next message starts a new one. State stays.
pub fn passivate() {
    crate::host::passivate();
}
