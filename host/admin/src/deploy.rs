//! Deploys components: each is checked, compiled and stored before a row makes it visible (R24).
//!
//! Any node accepts a deploy. A deploy is idempotent by digest: repeating the same manifest and component changes
//! nothing. Compare-and-set on the type's row decides between concurrent deploys. Revisions only rise; a rollback
//! is a new, higher revision with the old component. [`Deployer::deploy`] returns once this node has the type; the
//! other nodes follow the row.

mod binding;
mod undeploy;

use std::sync::Arc;
use std::time::Duration;

use ostraca_codes::{Code, codes};
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, StoredRow};
use ostraca_wasm::Program;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{DeployResult, Problem};
use ostraca_wire::server::Upload;
use tokio::sync::Mutex;

use ostraca_catalog::loader::{self, Loader};
use ostraca_catalog::pool::POOL;
use ostraca_catalog::rows::{self, MethodEntry, TypeRow};
use ostraca_catalog::types::{TypeRegistry, TypeUnavailable};
use ostraca_config::manifest::{Ceilings, MAX_MANIFEST_BYTES, Manifest};
use ostraca_config::user_file::units;
use ostraca_workers::guest_types;

use super::catalog_problem::to_problem;

/// How long a deploy that changes nothing waits for this node to load the current revision.
const LOADED_HERE_TIMEOUT: Duration = Duration::from_secs(10);

/// Deploys components. Deploys are checked and compiled concurrently, and written one at a time.
pub(crate) struct Deployer {
    pub(crate) cluster_store: Arc<dyn ClusterStore>,
    entity_store: Arc<dyn EntityStore>,
    /// Checks components. A node without the role `host` also has a runtime, but without an instance pool.
    wasm: ostraca_wasm::WasmRuntime,
    types: TypeRegistry,
    loader: Loader,
    ceilings: Ceilings,
    /// Held from the final read of the row until the row is written; never during compilation.
    write_lock: Mutex<()>,
}

impl Deployer {
    pub(crate) fn new(
        cluster_store: Arc<dyn ClusterStore>,
        entity_store: Arc<dyn EntityStore>,
        wasm: ostraca_wasm::WasmRuntime,
        types: TypeRegistry,
        loader: Loader,
        ceilings: Ceilings,
    ) -> Self {
        let write_lock = Mutex::new(());
        Self { cluster_store, entity_store, wasm, types, loader, ceilings, write_lock }
    }

    /// Deploys an upload.
    ///
    /// # Errors
    /// A problem with its code. If it is retryable, the same deploy may succeed later, and repeating it does no
    /// harm if it has already succeeded.
    pub(crate) async fn deploy(&self, by: &str, upload: Upload) -> Result<DeployResult, Problem> {
        if upload.manifest.len() > MAX_MANIFEST_BYTES {
            let bytes = upload.manifest.len();
            let text = format!("manifest is {bytes} bytes, limit is {MAX_MANIFEST_BYTES}");
            return Err(problem(codes::DEPLOYMENT_TOO_LARGE, text, "shorten the manifest"));
        }
        let manifest = Manifest::parse(&upload.manifest, "entity.toml").map_err(|error| {
            problem(error.code(), error.to_string(), "`ostraca deploy` marks the line")
        })?;
        if manifest.pool != POOL {
            return Err(problem(
                codes::UNKNOWN_POOL,
                format!("unknown pool `{}`; this cluster has `{POOL}`", manifest.pool),
                "leave `pool` out of the manifest",
            ));
        }
        self.check_ceilings(&manifest)?;
        let key = rows::type_key(&manifest.entity_type);
        // An upload that will be refused, or is already deployed, is not compiled.
        let current = self.current_deployment(&key).await?;
        if let Some(current) = &current
            && has_deployment(&current.row, &upload.digest, &upload.manifest)
        {
            // A repeated deploy finds what its first copy wrote, one revision above what it expected.
            let revision = current.row.revision;
            if let Some(expected) = upload.expected_revision
                && ![expected, expected.saturating_add(1)].contains(&revision)
            {
                return Err(changed(&manifest.entity_type, revision, expected));
            }
            return self.ensure_loaded(current, manifest, &upload).await;
        }
        expected(&upload, &manifest, revision_of(current.as_ref()))?;
        self.check_binding(&manifest).await?;
        let program = self.compile(&upload, &manifest).await?;
        let _one_at_a_time = self.write_lock.lock().await;
        // Another deploy may have been written while this one was compiled.
        let current = self.current_deployment(&key).await?;
        if let Some(current) = &current
            && has_deployment(&current.row, &upload.digest, &upload.manifest)
        {
            let CurrentDeployment { stored: found, row } = current;
            let kind = manifest.entity_type.clone();
            self.loader.on_deployed(
                found.revision,
                loader::to_deployed_type(row, manifest, Some(program)),
            );
            return Ok(deployed(&kind, row.revision, row.component_digest, true));
        }
        let revision = revision_of(current.as_ref());
        expected(&upload, &manifest, revision)?;
        self.check_binding(&manifest).await?;
        let methods = program.methods().iter().map(|method| {
            MethodEntry::new(&method.name, guest_types::core_kind(method.kind), &method.summary)
        });
        let methods = methods.collect::<Result<_, _>>().map_err(to_problem)?;
        let size = upload.component.len() as u64;
        // A type that was undeployed continues its revisions.
        let last = match &current {
            Some(current) => current.row.revision,
            None => self.last_revision(&manifest.entity_type).await?,
        };
        let row = next_row(last, current.as_ref(), upload.manifest, upload.digest, size, methods);
        let value = rows::encode_value(&row).map_err(to_problem)?;
        if value.len() > MAX_ROW_VALUE_BYTES {
            let text = format!(
                "manifest, names and summaries of methods take {} bytes, limit is {MAX_ROW_VALUE_BYTES}",
                value.len()
            );
            return Err(problem(codes::DEPLOYMENT_TOO_LARGE, text, "shorten the manifest"));
        }
        // Stored before the row is written: every reader of the row must find the component.
        let digest =
            self.entity_store.put_blob(upload.component).await.map_err(|e| to_problem(e.into()))?;
        // The upload is no longer needed: free its slot for its sender's next deploy.
        drop(upload.permit);
        if digest != upload.digest {
            let text = "the store stored the component under another digest";
            return Err(problem(codes::STORE_FAILED, text, "report this as a bug"));
        }
        // Also written before the row: entities may be activated as soon as the row exists.
        self.bind(&manifest).await?;
        let expected = current.as_ref().map(|it| it.stored.revision);
        let cas = CompareAndSet { key, expected, value: Some(value) };
        let at = match self.cluster_store.compare_and_set(cas).await {
            Ok(at) => at,
            Err(CompareAndSetError::RevisionMismatch(now)) => {
                return self.resolve_conflict(revision, now, &row, manifest, program);
            }
            Err(CompareAndSetError::Store(error)) => return Err(to_problem(error.into())),
        };
        tracing::info!(r#type = manifest.entity_type, revision = row.revision, by, "deployed");
        let answer = deployed(&manifest.entity_type, row.revision, upload.digest, false);
        self.loader.on_deployed(at, loader::to_deployed_type(&row, manifest, Some(program)));
        Ok(answer)
    }

    async fn current_deployment(&self, key: &str) -> Result<Option<CurrentDeployment>, Problem> {
        let found = self.cluster_store.get(key).await.map_err(|error| to_problem(error.into()))?;
        let Some(found) = found else { return Ok(None) };
        let (row, _) = loader::parse(&found).map_err(to_problem)?;
        Ok(Some(CurrentDeployment { stored: found, row }))
    }

    /// Refuses limits that would occupy a worker's thread, or the node's memory, beyond what this node allows.
    fn check_ceilings(&self, manifest: &Manifest) -> Result<(), Problem> {
        let (limits, ceilings) = (&manifest.limits, &self.ceilings);
        if limits.memory > ceilings.memory {
            let text = format!(
                "`limits.memory` is {}, but this node's `memory-ceiling` in `[guests]` is {}",
                units::format_size(limits.memory),
                units::format_size(ceilings.memory)
            );
            let help = "lower it in the manifest, or raise the ceiling on every node";
            return Err(problem(codes::MEMORY_CEILING, text, help));
        }
        if limits.turn_time > ceilings.turn_time {
            let text = format!(
                "`limits.turn-time` is {}, but this node's `turn-time-ceiling` in `[guests]` is {}",
                units::format_duration(limits.turn_time),
                units::format_duration(ceilings.turn_time)
            );
            let help = "lower it in the manifest, or raise the ceiling on every node";
            return Err(problem(codes::TURN_TIME_CEILING, text, help));
        }
        Ok(())
    }

    async fn compile(&self, it: &Upload, manifest: &Manifest) -> Result<Arc<Program>, Problem> {
        let compiled = self.wasm.prepare(it.component.to_vec(), manifest.wasm_limits()).await;
        compiled.map_err(|error| {
            let retryable = error.is_retryable();
            Problem { retryable, ..problem(error.code(), error.to_string(), help(error.code())) }
        })
    }

    /// Makes sure that this node has loaded an upload that is already deployed.
    async fn ensure_loaded(
        &self,
        current: &CurrentDeployment,
        manifest: Manifest,
        upload: &Upload,
    ) -> Result<DeployResult, Problem> {
        let CurrentDeployment { stored: found, row } = current;
        // This node's watch may be behind.
        self.loader.on_row_changed(found.clone());
        let reached = self
            .types
            .wait_for_revision(&manifest.entity_type, row.revision, LOADED_HERE_TIMEOUT)
            .await;
        let answer = deployed(&manifest.entity_type, row.revision, row.component_digest, true);
        if matches!(reached, Err(TypeUnavailable::Broken(_))) {
            // The component may compile here now; if it does not, the caller gets the reason.
            let program = self.compile(upload, &manifest).await?;
            self.loader.on_deployed(
                found.revision,
                loader::to_deployed_type(row, manifest, Some(program)),
            );
        }
        Ok(answer)
    }

    /// Handles a write conflict: another deploy wrote the type's row first, with the same deployment or another one.
    fn resolve_conflict(
        &self,
        expected: u64,
        now: Option<StoredRow>,
        wanted: &TypeRow,
        manifest: Manifest,
        program: Arc<Program>,
    ) -> Result<DeployResult, Problem> {
        let kind = manifest.entity_type.clone();
        let parsed = now.as_ref().and_then(|row| loader::parse(row).ok());
        let (Some(now), Some((row, _))) = (now, parsed) else {
            return Err(changed(&kind, 0, expected));
        };
        if has_deployment(&row, &wanted.component_digest, &wanted.manifest) {
            let entry = loader::to_deployed_type(&row, manifest, Some(program));
            self.loader.on_deployed(now.revision, entry);
            return Ok(deployed(&kind, row.revision, row.component_digest, true));
        }
        self.loader.on_row_changed(now);
        Err(changed(&kind, row.revision, expected))
    }
}

/// A type's current row, as stored and decoded.
struct CurrentDeployment {
    stored: StoredRow,
    row: TypeRow,
}

fn revision_of(current: Option<&CurrentDeployment>) -> u64 {
    current.map_or(0, |it| it.row.revision)
}

/// The row of a new deployment that follows the current one, if there is one, and the revision `last`.
fn next_row(
    last: u64,
    current: Option<&CurrentDeployment>,
    manifest: String,
    component: [u8; 32],
    component_size: u64,
    methods: Vec<MethodEntry>,
) -> TypeRow {
    let revision = last + 1;
    // Keeps what another release has stored in the type's extension block.
    let extensions = current.map(|it| it.row.extensions.clone()).unwrap_or_default();
    TypeRow { revision, manifest, component_digest: component, component_size, methods, extensions }
}

/// Refuses an upload that expects a revision other than the current one.
fn expected(upload: &Upload, manifest: &Manifest, revision: u64) -> Result<(), Problem> {
    match upload.expected_revision {
        Some(expected) if expected != revision => {
            Err(changed(&manifest.entity_type, revision, expected))
        }
        _ => Ok(()),
    }
}

/// Help text for a refused component; empty if the error message already says what to do.
fn help(code: Code) -> &'static str {
    match code {
        codes::NOT_WASM => "deploy the component that `ostraca build` produces",
        codes::MISSING_EXPORT | codes::WRONG_SIGNATURE => {
            "build it with the SDK of this release, or implement the world in `wit/`"
        }
        codes::IMPORT_NOT_GRANTED => {
            "remove the import: entities have no files, sockets or environment"
        }
        codes::TOO_MANY_CORE_INSTANCES => {
            "link its modules into fewer ones, or compose fewer components; or raise `core-instances` in `[components]` on every node: instances beyond 64 run outside the pool"
        }
        codes::TOO_MANY_COMPONENT_INSTANCES
        | codes::TOO_MANY_MEMORIES
        | codes::TOO_MANY_TABLES
        | codes::TOO_MANY_FUNCTIONS
        | codes::TOO_MANY_TYPES
        | codes::TOO_MANY_DEFINITIONS => {
            "compose fewer or smaller components, or raise the setting on every node"
        }
        codes::MEMORY_LIMIT | codes::TABLE_LIMIT => "raise the limit in the manifest",
        codes::UNSIZED_INSTANTIATION => {
            "compose it so that each part is nested where it is instantiated"
        }
        codes::COMPILE_TIME_LIMIT | codes::COMPILE_MEMORY_LIMIT => {
            "split its largest functions or leave out what it does not need; or raise the setting on every node"
        }
        codes::COMPILER_CRASHED => {
            "the node is unaffected; if other components compile, report this as a bug, with the component"
        }
        codes::COMPILER_UNAVAILABLE => "check the node's log and `[compiler]` in its configuration",
        _ => "",
    }
}

/// Whether a row holds exactly this component and manifest.
fn has_deployment(row: &TypeRow, component: &[u8; 32], manifest: &str) -> bool {
    row.component_digest == *component && row.manifest == manifest
}

fn deployed(kind: &str, revision: u64, digest: [u8; 32], unchanged: bool) -> DeployResult {
    let digest = digest.to_vec().into();
    DeployResult { r#type: kind.into(), revision, digest, unchanged, ..DeployResult::default() }
}

fn changed(kind: &str, revision: u64, expected: u64) -> Problem {
    problem(
        codes::REVISION_MISMATCH,
        format!("the current revision of `{kind}` is {revision}, expected {expected}"),
        "check `ostraca deployments`, then deploy again",
    )
}

#[cfg(test)]
mod tests;
