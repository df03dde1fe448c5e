//! Lists the cluster's namespaces, creates more of them, and sets their quotas, by compare-and-set on their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_catalog::namespaces::{
    MAX_NAMESPACES, NAMESPACES, NamespaceRow, namespace_key, namespace_name,
};
use ostraca_catalog::rows;
use ostraca_codes::codes;
use ostraca_core::names::{self, DEFAULT_NAMESPACE};
use ostraca_core::quota::Quotas;
use ostraca_store::StoredRow;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    NamespaceInfo, NamespaceQuotas, NamespacesRequest, NewLimit, Problem, QuotaChanges,
};
use ostraca_wire::server::AdminOutput;

use super::catalog_problem::to_problem;
use super::{AdminService, store_failed};

/// Maximum attempts when the row changes concurrently.
const ATTEMPTS: usize = 8;

fn quotas_to_wire(namespace: &str, quotas: Quotas) -> NamespaceQuotas {
    let Quotas { entities, state_bytes, turns_per_second } = quotas;
    NamespaceQuotas { namespace: namespace.into(), entities, state_bytes, turns_per_second }
}

/// The quotas after some of them were changed.
fn changed(quotas: Quotas, changes: &QuotaChanges) -> Quotas {
    let limit = |new: &Option<NewLimit>, old: Option<u64>| match new {
        Some(new) => new.limit,
        None => old,
    };
    Quotas {
        entities: limit(&changes.entities, quotas.entities),
        state_bytes: limit(&changes.state_bytes, quotas.state_bytes),
        turns_per_second: limit(&changes.turns_per_second, quotas.turns_per_second),
    }
}

impl AdminService {
    pub(super) async fn namespaces(
        &self,
        principal: &str,
        request: NamespacesRequest,
    ) -> Result<AdminOutput, Problem> {
        if !request.create.is_empty() {
            self.create_namespace(principal, &request.create).await?;
        }
        if let Some(changes) = &request.change_quotas {
            self.change_quotas(principal, changes).await?;
        }
        let mut all = self.read_namespaces().await?;
        // It exists, whether it has a row or not.
        all.entry(DEFAULT_NAMESPACE.into()).or_default();
        let types = self.gateway.types.snapshot();
        let info = |(name, row): (String, NamespaceRow)| {
            let count = types.keys().filter(|it| names::namespace(it) == name).count();
            let quotas = row.quotas();
            let limited = !quotas.is_unlimited();
            NamespaceInfo {
                quotas: limited.then(|| quotas_to_wire(&name, quotas)),
                usage: self.gateway.usage.total(&name).filter(|_| limited),
                created_unix_ms: row.at_ms,
                created_by: row.by,
                types: u32::try_from(count).unwrap_or(u32::MAX),
                name,
            }
        };
        Ok(AdminOutput::Namespaces(all.into_iter().map(info).collect()))
    }

    /// The namespaces that have quotas, as this node knows them, without who created them.
    #[must_use]
    pub fn limited_namespaces(&self) -> Vec<NamespaceInfo> {
        let limited = self.gateway.types.namespaces().quotas();
        let info = |(name, quotas): (Arc<str>, Quotas)| NamespaceInfo {
            quotas: Some(quotas_to_wire(&name, quotas)),
            usage: self.gateway.usage.total(&name),
            name: name.to_string(),
            ..NamespaceInfo::default()
        };
        limited.into_iter().map(info).collect()
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

    async fn change_quotas(&self, by: &str, changes: &QuotaChanges) -> Result<(), Problem> {
        let name = changes.namespace.as_str();
        let store = &*self.deployer.cluster_store;
        let key = namespace_key(name);
        for _ in 0..ATTEMPTS {
            let found = store.get(&key).await.map_err(|error| store_failed(&error))?;
            let known = found.as_ref().filter(|row| namespace_name(&row.key).is_some());
            if known.is_none() && name != DEFAULT_NAMESPACE {
                let help = "`ostraca namespace list` shows the namespaces, and `create` adds one";
                let text = format!("there is no namespace `{name}`");
                return Err(problem(codes::UNKNOWN_NAMESPACE, text, help));
            }
            let before = known.map(rows::decode::<NamespaceRow>).transpose().map_err(to_problem)?;
            let mut row = before.unwrap_or_default();
            let quotas = changed(row.quotas(), changes);
            row.set_quotas(quotas).map_err(|error| {
                let text = format!("the row of the namespace has no room for quotas: {error}");
                problem(codes::FORMAT_NOT_SUPPORTED, text, "use a node of the newest release")
            })?;
            let value = rows::encode_value(&row).map_err(to_problem)?;
            let expected = known.map(|row| row.revision);
            match rows::write(store, &key, expected, &row).await {
                Ok(revision) => {
                    tracing::info!(namespace = name, by, ?quotas, "a namespace's quotas are set");
                    let row = StoredRow { key, revision, value };
                    self.gateway.types.namespaces().on_row_changed(&row);
                    return Ok(());
                }
                Err(ostraca_catalog::Error::RowConflict(_)) => {}
                Err(error) => return Err(to_problem(error)),
            }
        }
        Err(to_problem(ostraca_catalog::Error::RowConflict(key)))
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
