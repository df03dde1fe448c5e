//! Shows and changes cluster-wide settings and the storage format, by compare-and-set on their rows.

use ostraca_catalog as catalog;
use ostraca_catalog::rows::{self, ClusterRow, SettingsRow};
use ostraca_codes::codes;
use ostraca_config::user_file::units::format_duration;
use ostraca_core::format;
use ostraca_core::rows::{NodeStatus, Row, RowKey};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    ClusterConfig, ClusterConfigRequest, ClusterSetting, NodeConfigStatus, Problem,
};
use ostraca_wire::server::AdminOutput;

use super::catalog_problem::to_problem;
use super::{AdminService, store_failed};

impl AdminService {
    pub(super) async fn cluster(
        &self,
        request: ClusterConfigRequest,
    ) -> Result<AdminOutput, Problem> {
        if !request.changes.is_empty() {
            self.set(&request.changes).await?;
        }
        if request.upgrade_format {
            let newest = format::newest().into();
            let store = &*self.deployer.cluster_store;
            catalog::format::raise(store, newest).await.map_err(to_problem)?;
        }
        self.cluster_state().await.map(AdminOutput::Cluster)
    }

    async fn set(&self, changes: &[ClusterSetting]) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        let (row, revision) = self.settings().await?;
        let before = row.settings();
        let mut settings = before;
        let bad = |why: String| {
            problem(codes::INVALID_CLUSTER_SETTING, why, "`ostraca cluster` shows them")
        };
        for ClusterSetting { name, value } in changes {
            settings.set(name, value).map_err(bad)?;
        }
        if settings.lane_ttl != before.lane_ttl {
            let why = "`entities.lane-ttl` cannot change after `ostraca init`";
            return Err(bad(why.into()));
        }
        if settings == before {
            return Ok(());
        }
        let row = SettingsRow::new(&settings, row.revision + 1, Some(row));
        rows::write(store, rows::SETTINGS, Some(revision), &row).await.map_err(to_problem)?;
        let shown =
            settings.named().map(|(name, value)| format!("{name} = {}", format_duration(value)));
        let settings = shown.join(", ");
        tracing::info!(revision = row.revision, settings, "the cluster's settings were changed");
        Ok(())
    }

    async fn settings(&self) -> Result<(SettingsRow, u64), Problem> {
        let row =
            rows::read(&*self.deployer.cluster_store, rows::SETTINGS).await.map_err(to_problem)?;
        row.ok_or_else(|| {
            to_problem(catalog::Error::InvalidRow("the row `settings` is missing".into()))
        })
    }

    async fn cluster_state(&self) -> Result<ClusterConfig, Problem> {
        let store = &*self.deployer.cluster_store;
        let (row, _) = self.settings().await?;
        let cluster = rows::read::<ClusterRow>(store, "cluster").await.map_err(to_problem)?;
        let (cluster, _) = cluster.ok_or_else(|| {
            to_problem(catalog::Error::InvalidRow("the row `cluster` is missing".into()))
        })?;
        let settings = row.settings().named().into_iter().map(|(name, value)| ClusterSetting {
            name: name.into(),
            value: format_duration(value),
        });
        let (all, _) = store.list("nodes/").await.map_err(|error| store_failed(&error))?;
        let nodes = all.iter().filter_map(|row| match rows::decode_row(row) {
            Ok(Some((RowKey::Node(name), Row::Node(row), _))) if row.status == NodeStatus::Live => {
                Some(NodeConfigStatus {
                    name: name.to_string(),
                    format: row.format,
                    settings_revision: row.settings_revision,
                    lease_ms: row.lease,
                })
            }
            _ => None,
        });
        Ok(ClusterConfig {
            format: cluster.format,
            target_format: cluster.target_format,
            settings_revision: row.revision,
            settings: settings.collect(),
            nodes: nodes.collect(),
        })
    }
}
