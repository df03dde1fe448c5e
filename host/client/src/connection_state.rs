//! What the connection task publishes to the sessions' tasks.

use std::sync::Arc;

use ostraca_wire::dial::ClientConnection;

/// The current connection, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionState {
    pub(crate) connection: Option<ClientConnection>,
    /// Why there is no connection.
    pub(crate) last: Option<Arc<str>>,
}
