//! Ends the connections of those whose authority the cluster no longer trusts.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::close_code::CloseCode;
use crate::error::Error;
use crate::identity::TrustRoot;
use crate::{dial, tls};

/// The authorities of the cluster, and their changes.
pub(crate) type Trust = watch::Receiver<Arc<TrustRoot>>;

/// Waits until no authority of the cluster certifies this chain. Never ends for an empty chain. Checks it at once too: the
/// authorities may have changed since the handshake took its configuration.
pub(crate) async fn lost(mut trust: Trust, chain: &[CertificateDer<'_>]) {
    if chain.is_empty() {
        return std::future::pending().await;
    }
    loop {
        let now = trust.borrow_and_update().clone();
        if !tls::is_trusted(&now, chain) {
            return;
        }
        if trust.changed().await.is_err() {
            // The node is stopping.
            return std::future::pending().await;
        }
    }
}

/// Closes the connection of somebody whose authority is no longer trusted, and returns the error.
pub(crate) fn distrusted(connection: &quinn::Connection) -> Error {
    let text = "the authority of its certificate is no longer trusted (`ostraca ca rotate`)";
    dial::refuse(connection, CloseCode::Revoked, text.into())
}
