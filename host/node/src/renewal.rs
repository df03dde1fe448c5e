//! Keeps the node's certificate, and the authorities that it trusts, as the rows of the cluster say.
//!
//! `ostraca ca rotate` writes the rows; this task reads them now and then, and says in its own row what the node
//! presents. The node keeps its key: a certificate for another one is ignored.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::rows::{self, AuthoritiesRow, CertificateRow};
use ostraca_config::Config;
use ostraca_store::ClusterStore;
use ostraca_wire::identity::{CertificateChain, Identity, IdentityError, TrustRoot};
use ostraca_wire::peer::PeerDialer;
use ostraca_wire::server::Server;

use crate::error::NodeError;
use crate::service::ClientService;

/// How often the rows are read. A change of authorities waits until every node has read them.
const INTERVAL: Duration = Duration::from_secs(5);

/// What the node presents and trusts, and where it is used.
pub(crate) struct Renewal {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn ClusterStore>,
    pub(crate) server: Arc<Server<ClientService>>,
    pub(crate) dialer: PeerDialer,
    pub(crate) identity: Identity,
    pub(crate) trust: TrustRoot,
}

impl Renewal {
    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut failing = false;
        loop {
            match self.refresh().await {
                Ok(()) => failing = false,
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "cannot follow changes of authorities and certificates; retrying");
                }
                Err(_) => {}
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn refresh(&mut self) -> Result<(), NodeError> {
        let (store, key) = (self.store.clone(), rows::certificate_key(&self.config.node));
        let (authorities, stored) =
            tokio::try_join!(rows::read::<AuthoritiesRow>(&*store, rows::AUTHORITIES), async {
                Ok(store.get(&key).await?)
            },)?;
        let revision = stored.as_ref().map(|row| row.revision);
        // One that cannot be read is written anew.
        let mut own: CertificateRow =
            stored.and_then(|row| rows::decode(&row).ok()).unwrap_or_default();
        if let Some((authorities, _)) = authorities.filter(|(row, _)| !row.trusted.is_empty()) {
            self.adopt(&authorities.trusted, &own.issued)?;
        }
        if own.presented != self.identity.certificate_pem() {
            own.presented = self.identity.certificate_pem().into();
            // If an operator has changed the row in between, the next round writes it.
            match rows::write(&*store, &key, revision, &own).await {
                Ok(_) | Err(ostraca_catalog::Error::RowConflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Trusts these authorities from now on, and presents the issued certificate if they trust it.
    fn adopt(&mut self, authorities: &str, issued: &str) -> Result<(), NodeError> {
        let trust = TrustRoot::from_pem(authorities)?;
        if trust.cluster != self.trust.cluster {
            let text = format!("the cluster's row names authorities of cluster {}", trust.cluster);
            return Err(IdentityError::Certificate(text).into());
        }
        // A certificate that cannot be used must not keep the node with the former authorities.
        let identity = self.with_certificate(issued, &trust).unwrap_or_else(|error| {
            tracing::warn!(%error, "the certificate that was issued to this node cannot be used");
            None
        });
        if trust == self.trust && identity.is_none() {
            return Ok(());
        }
        let identity = identity.unwrap_or_else(|| self.identity.clone());
        // First, since the node may not be able to come back with what it had before.
        self.config.save_identity(authorities, identity.certificate_pem())?;
        // The dialer first: the server ends what is no longer trusted, and that is dialled anew.
        self.dialer.replace_identity(&identity, &trust)?;
        self.server.replace_identity(&identity, &trust)?;
        (self.identity, self.trust) = (identity, trust);
        tracing::info!("the authorities of the cluster or the node's certificate were changed");
        Ok(())
    }

    /// The identity with another certificate; `None` if there is no newer one.
    fn with_certificate(
        &self,
        issued: &str,
        trust: &TrustRoot,
    ) -> Result<Option<Identity>, NodeError> {
        if issued.is_empty() || issued == self.identity.certificate_pem() {
            return Ok(None);
        }
        let (own, newer) = (self.identity.certificates()?, CertificateChain::from_pem(issued)?);
        let replaces = own.principal() == newer.principal()
            && own.public_key() == newer.public_key()
            && newer.not_before() >= own.not_before()
            && newer.is_trusted(trust);
        Ok(if replaces { Some(Identity::from_pem(issued, self.identity.key_pem())?) } else { None })
    }
}
