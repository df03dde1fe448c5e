//! Removes a type's row. The binding's row remains, and keeps the last revision: heads of deleted entities name the
//! revision that wrote them, and an older one may not write them again (R24). Numbers of revisions that were stored and
//! never active are not used again either: a number names one component for good.

use ostraca_catalog as catalog;
use ostraca_catalog::rows::{self, BindingRow};
use ostraca_store::{CompareAndSet, CompareAndSetError};
use ostraca_wire::proto::Problem;

use super::super::catalog_problem::to_problem;
use super::{Deployer, changed, damaged, revision_of};

impl Deployer {
    /// Whether the type's row exists in the store, whatever this node has seen of it.
    pub(crate) async fn is_deployed(&self, name: &str) -> Result<bool, Problem> {
        let found = self.cluster_store.get(&rows::type_key(name)).await;
        Ok(found.map_err(|error| to_problem(error.into()))?.is_some())
    }

    /// Removes the type's row. Returns its last revision.
    pub(crate) async fn undeploy(&self, by: &str, name: &str) -> Result<u64, Problem> {
        let key = rows::type_key(name);
        let _one_at_a_time = self.write_lock.lock().await;
        let current = self.current_deployment(&key).await?;
        let revision = revision_of(current.as_ref());
        let Some(current) = current else { return Ok(revision) };
        // Revisions that were stored and never active end with the row, but their numbers are taken.
        let highest = current.row.highest_revision().map_err(damaged)?;
        self.keep_last_revision(name, highest).await?;
        let expected = Some(current.stored.revision);
        let cas = CompareAndSet { key: key.clone(), expected, value: None };
        match self.cluster_store.compare_and_set(cas).await {
            Ok(at) => {
                tracing::info!(r#type = name, revision, by, "undeployed");
                self.loader.on_row_deleted(&key, at);
                Ok(revision)
            }
            // Another node has undeployed it in the meantime.
            Err(CompareAndSetError::RevisionMismatch(None)) => Ok(revision),
            Err(CompareAndSetError::RevisionMismatch(Some(now))) => {
                self.loader.on_row_changed(now);
                Err(changed(name, revision + 1, revision))
            }
            Err(CompareAndSetError::Store(error)) => Err(to_problem(error.into())),
        }
    }

    /// The highest revision of a type that was undeployed; 0 if there was none.
    pub(super) async fn last_revision(&self, name: &str) -> Result<u64, Problem> {
        let key = rows::binding_key(name);
        let found =
            rows::read::<BindingRow>(&*self.cluster_store, &key).await.map_err(to_problem)?;
        match found {
            Some((row, _)) => row.last_revision().map_err(to_problem),
            None => Ok(0),
        }
    }

    async fn keep_last_revision(&self, name: &str, revision: u64) -> Result<(), Problem> {
        let key = rows::binding_key(name);
        let found =
            rows::read::<BindingRow>(&*self.cluster_store, &key).await.map_err(to_problem)?;
        // A type is bound before it is deployed.
        let Some((mut row, at)) = found else {
            return Err(to_problem(catalog::Error::RowConflict(key)));
        };
        if row.last_revision().map_err(to_problem)? >= revision {
            return Ok(());
        }
        row.set_last_revision(revision).map_err(to_problem)?;
        let value = Some(rows::encode_value(&row).map_err(to_problem)?);
        let cas = CompareAndSet { key: key.clone(), expected: Some(at), value };
        match self.cluster_store.compare_and_set(cas).await {
            Ok(_) => Ok(()),
            Err(CompareAndSetError::RevisionMismatch(_)) => {
                Err(to_problem(catalog::Error::RowConflict(key)))
            }
            Err(CompareAndSetError::Store(error)) => Err(to_problem(error.into())),
        }
    }
}
