//! Ends the connections of those whose authority the cluster no longer trusts.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::close_code::CloseCode;
use crate::error::Error;
use crate::identity::TrustRoot;
use crate::{dial, tls};

/// The authorities under which a connection was accepted, and their changes.
#[derive(Clone, Debug)]
pub(crate) struct Trusted {
    accepted: Arc<TrustRoot>,
    changes: watch::Receiver<Arc<TrustRoot>>,
}

impl Trusted {
    /// To be called before a handshake begins: what changes during it is noticed then.
    pub(crate) fn of(trust: &watch::Receiver<Arc<TrustRoot>>) -> Self {
        let mut changes = trust.clone();
        let accepted = changes.borrow_and_update().clone();
        Self { accepted, changes }
    }

    /// Waits until none of the cluster's authorities has certified this any more. Never ends for an empty chain.
    pub(crate) async fn lost(mut self, chain: &[CertificateDer<'_>]) {
        loop {
            let now = self.changes.borrow_and_update().clone();
            let same = Arc::ptr_eq(&now, &self.accepted);
            if !same && !chain.is_empty() && !tls::is_trusted(&now, chain) {
                return;
            }
            self.accepted = now;
            if self.changes.changed().await.is_err() {
                // The node is stopping.
                return std::future::pending().await;
            }
        }
    }
}

/// Closes the connection of somebody whose authority is no longer trusted, and returns the error.
pub(crate) fn distrusted(connection: &quinn::Connection) -> Error {
    let text = "the authority of its certificate is no longer trusted (`ostraca ca rotate`)";
    dial::refuse(connection, CloseCode::Revoked, text.into())
}
