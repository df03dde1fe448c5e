//! Rollouts of revisions: how a command changes one, and how it advances and stops by itself (R24).
//!
//! Every node looks at the types once a second. The manager's node advances the rollouts that have a rate. A node on
//! which an entity could not be migrated stops the rollout. All of them change the type's row by compare-and-set.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog as catalog;
use ostraca_catalog::loader;
use ostraca_catalog::rollout::{Progress, StoredRollout};
use ostraca_catalog::rows::{self, TypeRow};
use ostraca_catalog::types::DeployedType;
use ostraca_codes::codes;
use ostraca_store::{CompareAndSet, CompareAndSetError, StoredRow};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{self, DeployResult, Problem};
use tokio::time::{MissedTickBehavior, interval};

use super::AdminService;
use super::catalog_problem::to_problem;
use super::deploy::{Deployer, damaged, deployed};
use super::wire_rollout::changed;

/// How often the rollouts are advanced.
const STEP: Duration = Duration::from_secs(1);
/// How often a change is tried again after another one came first.
const ATTEMPTS: usize = 5;

/// What a change makes of a rollout.
enum Change {
    Keep,
    Set(StoredRollout),
    Complete,
}

impl Deployer {
    /// Changes the rollout of the current revision as a command asks; `None` completes it.
    pub(crate) async fn set_rollout(
        &self,
        kind: &str,
        revision: u64,
        wanted: Option<proto::Rollout>,
        utc: u64,
    ) -> Result<DeployResult, Problem> {
        let change = |current: &StoredRollout| match &wanted {
            Some(wanted) => Change::Set(changed(current, wanted, utc)),
            None => Change::Complete,
        };
        let (row, changed) = self.change_rollout(kind, revision, change).await?;
        if !changed && wanted.is_some() {
            let text = format!("all entities of `{kind}` may run revision {revision} already");
            let help = "roll back, or begin a rollout when you activate another revision";
            return Err(problem(codes::ROLLOUT_COMPLETE, text, help));
        }
        Ok(deployed(kind, row.revision, row.component_digest, !changed))
    }

    /// Changes the rollout of a revision if it is still the current one. Returns the row, and whether it was changed.
    async fn change_rollout(
        &self,
        kind: &str,
        revision: u64,
        change: impl Fn(&StoredRollout) -> Change,
    ) -> Result<(TypeRow, bool), Problem> {
        let key = rows::type_key(kind);
        for _ in 0..ATTEMPTS {
            let found = self.cluster_store.get(&key).await.map_err(|e| to_problem(e.into()))?;
            let Some(stored) = found else { break };
            let (mut row, _) = loader::parse(&stored).map_err(to_problem)?;
            if row.revision != revision {
                break;
            }
            let Some(current) = row.rollout().map_err(damaged)? else { return Ok((row, false)) };
            let next = match change(&current) {
                Change::Keep => return Ok((row, false)),
                Change::Set(next) => Some(next),
                Change::Complete => None,
            };
            row.set_rollout(next.as_ref()).map_err(damaged)?;
            let value = rows::encode_value(&row).map_err(to_problem)?;
            let expected = Some(stored.revision);
            let cas = CompareAndSet { key: key.clone(), expected, value: Some(value.clone()) };
            match self.cluster_store.compare_and_set(cas).await {
                Ok(at) => {
                    self.loader.on_row_changed(StoredRow { key, value, revision: at });
                    return Ok((row, true));
                }
                Err(CompareAndSetError::RevisionMismatch(_)) => {}
                Err(CompareAndSetError::Store(error)) => return Err(to_problem(error.into())),
            }
        }
        Err(to_problem(catalog::Error::RowConflict(key)))
    }
}

impl AdminService {
    /// Advances and stops rollouts until the future is dropped.
    pub async fn run_rollouts(self: Arc<Self>) {
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            steps.tick().await;
            let types = self.gateway.types.snapshot();
            for entry in types.values().filter(|entry| entry.is_rolling_out()) {
                if let Err(problem) = self.step(entry).await {
                    let (code, message) = (&problem.code, &problem.message);
                    tracing::warn!(r#type = %entry.name, %code, %message, "cannot change a rollout");
                }
            }
        }
    }

    async fn step(&self, entry: &DeployedType) -> Result<(), Problem> {
        let utc = self.gateway.clock.now().utc;
        let since = entry.rollout.as_ref().map_or(0, |rollout| rollout.since);
        let failed = self.gateway.types.failed_migration(&entry.name, entry.revision, since);
        if failed.is_none() && !self.is_manager() {
            return Ok(());
        }
        let shards = self.home(&entry.manifest.pool)?.shards;
        let change = |current: &StoredRollout| {
            let mut next = current.clone();
            if let Some(why) = &failed {
                next.stop(why);
                return if next == *current { Change::Keep } else { Change::Set(next) };
            }
            match next.advance(utc, shards) {
                Progress::Unchanged => Change::Keep,
                Progress::Advanced => Change::Set(next),
                Progress::Complete => Change::Complete,
            }
        };
        let changed = self.deployer.change_rollout(&entry.name, entry.revision, change).await?.1;
        if let (true, Some(why)) = (changed, failed) {
            tracing::warn!(r#type = %entry.name, revision = entry.revision, %why, "stopped a rollout");
        }
        Ok(())
    }
}
