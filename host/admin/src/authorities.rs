//! Shows and changes whose certificates the cluster trusts, and which ones its nodes present.

use std::collections::BTreeSet;

use ostraca_catalog as catalog;
use ostraca_catalog::rows::{self, AuthoritiesRow, CertificateRow};
use ostraca_codes::codes;
use ostraca_core::ids::ClusterId;
use ostraca_store::ClusterStore;
use ostraca_wire::identity::{CertificateChain, IdentityError, TrustRoot};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{Authorities, AuthoritiesRequest, NodeCertificate, Problem};
use ostraca_wire::server::AdminOutput;

use super::AdminService;
use super::catalog_problem::to_problem;
use super::standing::Caller;

/// How often a change is tried again if somebody else changes the row at the same time.
const ATTEMPTS: u32 = 10;

impl AdminService {
    pub(super) async fn authorities(
        &self,
        caller: Caller<'_>,
        request: AuthoritiesRequest,
    ) -> Result<AdminOutput, Problem> {
        let principal = caller.principal;
        let store = &*self.deployer.cluster_store;
        if let Some(issue) = &request.issue {
            self.issue(caller, store, issue).await?;
            tracing::info!(principal, node = issue.node, "a certificate was issued");
        }
        if let Some(trusted) = &request.trusted {
            self.trust(caller, store, trusted, request.force).await?;
            tracing::info!(principal, "the trusted authorities were changed");
        }
        let row = rows::read::<AuthoritiesRow>(store, rows::AUTHORITIES).await;
        let row = row.map_err(to_problem)?.map(|(row, _)| row).unwrap_or_default();
        let presented = presented(store).await?;
        let (revision, trusted) = (row.revision, row.trusted);
        Ok(AdminOutput::Authorities(Authorities { revision, trusted, presented }))
    }

    /// Replaces the trusted authorities.
    async fn trust(
        &self,
        caller: Caller<'_>,
        store: &dyn ClusterStore,
        pem: &str,
        force: bool,
    ) -> Result<(), Problem> {
        let trusted = TrustRoot::from_pem(pem).map_err(invalid)?;
        self.check_cluster(trusted.cluster)?;
        if !force {
            let presented = presented(store).await?;
            let trusts = |it: &NodeCertificate| {
                CertificateChain::from_pem(&it.certificate)
                    .is_ok_and(|chain| chain.is_trusted(&trusted))
            };
            // Also those that have not reported what they present.
            let mut all: BTreeSet<String> = presented.iter().map(|it| it.node.clone()).collect();
            all.extend(self.current_view().nodes.keys().map(ToString::to_string));
            let is_other =
                |node: &&String| !presented.iter().any(|it| it.node == **node && trusts(it));
            let others: Vec<&str> = all.iter().filter(is_other).map(String::as_str).collect();
            if !others.is_empty() {
                let text = format!(
                    "these nodes do not present a certificate of the new authority: {}",
                    others.join(", ")
                );
                let help = "run `ostraca ca rotate` again while they run, `ostraca forget` nodes that are gone, or add `--force`";
                return Err(problem(codes::AUTHORITY_IN_USE, text, help));
            }
        }
        let change = |row: &mut AuthoritiesRow| {
            row.revision += 1;
            row.trusted = pem.into();
        };
        self.update(caller, store, rows::AUTHORITIES, change).await
    }

    /// Records a certificate that a node shall present.
    async fn issue(
        &self,
        caller: Caller<'_>,
        store: &dyn ClusterStore,
        issue: &NodeCertificate,
    ) -> Result<(), Problem> {
        let chain = CertificateChain::from_pem(&issue.certificate).map_err(invalid)?;
        let named = chain.principal();
        self.check_cluster(named.cluster)?;
        if named.to_string() != format!("node/{}", issue.node) {
            let text = format!("the certificate is for {named}, not for node/{}", issue.node);
            return Err(problem(codes::INVALID_IDENTITY, text, ""));
        }
        let change = |row: &mut CertificateRow| row.issued.clone_from(&issue.certificate);
        self.update(caller, store, &rows::certificate_key(&issue.node), change).await
    }

    /// Removes what is known of the certificate of a node that is gone.
    pub(super) async fn forget_certificate(&self, node: &str) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        rows::remove(store, &rows::certificate_key(node)).await.map_err(to_problem)
    }

    /// Changes a row by compare-and-set; creates it if it does not exist.
    async fn update<T: rows::RowValue + Default>(
        &self,
        caller: Caller<'_>,
        store: &dyn ClusterStore,
        key: &str,
        change: impl Fn(&mut T),
    ) -> Result<(), Problem> {
        let mut attempt = 1;
        loop {
            let before = rows::read::<T>(store, key).await.map_err(to_problem)?;
            let (mut row, at) = match before {
                Some((row, at)) => (row, Some(at)),
                None => (T::default(), None),
            };
            change(&mut row);
            self.check_administrator(caller).await?;
            match rows::write(store, key, at, &row).await {
                Ok(_) => return Ok(()),
                Err(catalog::Error::RowConflict(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(to_problem(error)),
            }
        }
    }

    fn check_cluster(&self, cluster: ClusterId) -> Result<(), Problem> {
        let own = self.deployer.cluster_store.identity().cluster;
        if cluster == own {
            return Ok(());
        }
        let text = format!("the certificate is of cluster {cluster}, this one is {own}");
        Err(problem(codes::INVALID_IDENTITY, text, "use the authority of this cluster"))
    }
}

/// What each node presents.
async fn presented(store: &dyn ClusterStore) -> Result<Vec<NodeCertificate>, Problem> {
    let listed = store.list(rows::CERTIFICATES).await;
    let (all, _) = listed.map_err(|error| to_problem(catalog::Error::Store(error)))?;
    let mut presented = Vec::with_capacity(all.len());
    for row in &all {
        let node = row.key[rows::CERTIFICATES.len()..].to_owned();
        match rows::decode::<CertificateRow>(row) {
            Ok(row) if row.presented.is_empty() => {}
            Ok(row) => presented.push(NodeCertificate { node, certificate: row.presented }),
            // Its node writes it anew.
            Err(error) => tracing::warn!(%error, "a certificate of a node is ignored"),
        }
    }
    Ok(presented)
}

fn invalid(error: IdentityError) -> Problem {
    problem(codes::INVALID_IDENTITY, error.to_string(), "give certificates in PEM")
}
