//! Control over the instance's lifecycle.

/// Asks the host to drop this instance after the turn. The state is kept, and the next message or due timer starts a
/// new instance.
pub fn passivate() {
    crate::host::passivate();
}
