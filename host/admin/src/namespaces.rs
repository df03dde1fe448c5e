//! Lists the cluster's namespaces, and creates more of them, by compare-and-set on their rows.

use std::collections::BTreeMap;

use ostraca_catalog::namespaces::{
    MAX_NAMESPACES, NAMESPACES, NamespaceRow, namespace_key, namespace_name,
};
use ostraca_catalog::rows;
use ostraca_codes::codes;
use ostraca_core::names::{self, DEFAULT_NAMESPACE};
use ostraca_store::StoredRow;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{NamespaceInfo, NamespacesRequest, Problem};
use ostraca_wire::server::AdminOutput;

use super::catalog_problem::to_problem;
use super::{AdminService, store_failed};

impl AdminService {
    pub(super) async fn namespaces(
        &self,
        principal: &str,
        request: NamespacesRequest,
    ) -> Result<AdminOutput, Problem> {
        if !request.create.is_empty() {
            self.create_namespace(principal, &request.create).await?;
        }
        let mut all = self.read_namespaces().await?;
        // It exists, whether it has a row or not.
        all.entry(DEFAULT_NAMESPACE.into()).or_default();
        let types = self.gateway.types.snapshot();
        let info = |(name, row): (String, NamespaceRow)| {
            let count = types.keys().filter(|it| names::namespace(it) == name).count();
            NamespaceInfo {
                created_unix_ms: row.at_ms,
                created_by: row.by,
                types: u32::try_from(count).unwrap_or(u32::MAX),
                name,
            }
        };
        Ok(AdminOutput::Namespaces(all.into_iter().map(info).collect()))
    }

    /// Refuses a namespace that the cluster does not have.
    pub(super) async fn check_namespace(&self, namespace: &str) -> Result<(), Problem> {
        self.deployer.check_namespace(namespace).await
    }

    async fn read_namespaces(&self) -> Result<BTreeMap<String, NamespaceRow>, Problem> {
        let store = &*self.deployer.cluster_store;
        let (listed, _) = store.list(NAMESPACES).await.map_err(|error| store_failed(&error))?;
        let named = |row: &StoredRow| {
            let name = namespace_name(&row.key)?.to_owned();
            Some(rows::decode::<NamespaceRow>(row).map(|row| (name, row)))
        };
        let all: Result<_, _> = listed.iter().filter_map(named).collect();
        all.map_err(to_problem)
    }

    async fn create_namespace(&self, by: &str, name: &str) -> Result<(), Problem> {
        names::check_namespace(name).map_err(|why| {
            let help = "`ostraca namespace list` shows the namespaces";
            problem(codes::INVALID_NAMESPACE, format!("the namespace {why}"), help)
        })?;
        let all = self.read_namespaces().await?;
        if name == DEFAULT_NAMESPACE || all.contains_key(name) {
            return Ok(());
        }
        // Two at the same time may exceed the limit by one, which harms nothing.
        if all.len() >= MAX_NAMESPACES {
            let text =
                format!("a cluster has at most {MAX_NAMESPACES} namespaces beside `default`");
            let help = "use another cluster for further tenants";
            return Err(problem(codes::TOO_MANY_NAMESPACES, text, help));
        }
        let at_ms = self.gateway.clock.now().utc;
        let row = NamespaceRow { at_ms, by: by.into(), ..NamespaceRow::default() };
        let value = rows::encode_value(&row).map_err(to_problem)?;
        let (store, key) = (&*self.deployer.cluster_store, namespace_key(name));
        let revision = rows::write(store, &key, None, &row).await.map_err(to_problem)?;
        tracing::info!(namespace = name, by, "a namespace is created");
        // Deployments through this node find it at once.
        self.gateway.types.namespaces().on_row_changed(&StoredRow { key, revision, value });
        Ok(())
    }
}
