//! Control over the instance's lifecycle.

/// Asks the host to drop this instance after the turn. State stays, and the next message starts a new instance.
pub fn passivate() {
    crate::host::passivate();
}
