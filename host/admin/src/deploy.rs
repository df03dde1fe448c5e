//! Deploys components: each is checked, compiled and stored before a row makes it visible (R24).
//!
//! Any node accepts a deploy. A deploy is idempotent by digest: repeating the same manifest and component changes
//! nothing. Compare-and-set on the type's row decides between concurrent deploys. Revisions only rise; a rollback
//! is a new, higher revision with the old component. [`Deployer::deploy`] returns once this node has the type; the
//! other nodes follow the row.

mod binding;
mod undeploy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca_catalog as catalog;
use ostraca_codes::{Code, codes};
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, StoredRow};
use ostraca_wasm::{Method, Program};
use ostraca_wire::envelope::unknown_namespace;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{self, DeployResult, Problem};
use ostraca_wire::server::{Upload, UploadPermit};
use tokio::sync::Mutex;

use ostraca_catalog::loader::{self, Loader};
use ostraca_catalog::namespaces::namespace_key;
use ostraca_catalog::pool::KnownPools;
use ostraca_catalog::revisions::{self, EarlierEntry};
use ostraca_catalog::rows::{self, MethodEntry, MethodSchema, TypeRow};
use ostraca_catalog::types::{TypeRegistry, TypeUnavailable, schema_of};
use ostraca_config::manifest::{Ceilings, MAX_MANIFEST_BYTES, Manifest};
use ostraca_config::user_file::units;
use ostraca_core::codec::CodecError;
use ostraca_core::names;
use ostraca_core::pools::{DEFAULT_POOL, Pools};
use ostraca_core::shard::SchemaSupport;
use ostraca_workers::guest_types;

use super::catalog_problem::to_problem;
use super::pools::unknown_pool;
use super::wire_rollout;

/// How long a deploy that changes nothing waits for this node to load the current revision.
const LOADED_HERE_TIMEOUT: Duration = Duration::from_secs(10);

/// Deploys components. Deploys are checked and compiled concurrently, and written one at a time.
pub(crate) struct Deployer {
    pub(crate) cluster_store: Arc<dyn ClusterStore>,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    /// Checks components. A node without the role `host` also has a runtime, but without an instance pool.
    pub(crate) wasm: ostraca_wasm::WasmRuntime,
    types: TypeRegistry,
    pub(crate) pools: KnownPools,
    pub(crate) loader: Loader,
    ceilings: Ceilings,
    /// Held from the final read of the row until the row is written; never during compilation.
    write_lock: Mutex<()>,
    /// Held while a dry run has instances.
    pub(crate) dry_runs: Mutex<()>,
}

impl Deployer {
    pub(crate) fn new(
        cluster_store: Arc<dyn ClusterStore>,
        entity_store: Arc<dyn EntityStore>,
        wasm: ostraca_wasm::WasmRuntime,
        types: TypeRegistry,
        pools: KnownPools,
        loader: Loader,
        ceilings: Ceilings,
    ) -> Self {
        let (write_lock, dry_runs) = (Mutex::default(), Mutex::default());
        Self {
            cluster_store,
            entity_store,
            wasm,
            types,
            pools,
            loader,
            ceilings,
            write_lock,
            dry_runs,
        }
    }

    /// Deploys an upload.
    ///
    /// # Errors
    /// A problem with its code. If it is retryable, the same deploy may succeed later, and repeating it does no
    /// harm if it has already succeeded.
    pub(crate) async fn deploy(&self, by: &str, upload: Upload) -> Result<DeployResult, Problem> {
        self.deploy_as(by, upload, None, None).await
    }

    /// Reads a manifest and checks what does not depend on what is deployed.
    pub(crate) fn checked_manifest(&self, text: &str) -> Result<Manifest, Problem> {
        if text.len() > MAX_MANIFEST_BYTES {
            let bytes = text.len();
            let why = format!("manifest is {bytes} bytes, limit is {MAX_MANIFEST_BYTES}");
            return Err(problem(codes::DEPLOYMENT_TOO_LARGE, why, "shorten the manifest"));
        }
        let manifest = Manifest::parse(text, "entity.toml").map_err(|error| {
            problem(error.code(), error.to_string(), "`ostraca deploy` marks the line")
        })?;
        check_pool(&self.pools.get(), &manifest)?;
        self.check_ceilings(&manifest)?;
        Ok(manifest)
    }

    /// Refuses a namespace that the cluster does not have.
    pub(crate) async fn check_namespace(&self, namespace: &str) -> Result<(), Problem> {
        if self.types.namespaces().contains(namespace) {
            return Ok(());
        }
        // This node's watch may be behind.
        let key = namespace_key(namespace);
        let found = self.cluster_store.get(&key).await.map_err(|error| to_problem(error.into()))?;
        match found {
            Some(row) => {
                self.types.namespaces().on_row_changed(&row);
                Ok(())
            }
            None => Err(unknown_namespace(namespace)),
        }
    }

    /// Deploys an upload under this revision, or the next one if there is none or it is not above the current one. With
    /// a rollout, which begins at a time of the cluster's UTC, only a part of the entities runs it.
    async fn deploy_as(
        &self,
        by: &str,
        upload: Upload,
        number: Option<u64>,
        rollout: Option<(proto::Rollout, u64)>,
    ) -> Result<DeployResult, Problem> {
        let manifest = self.checked_manifest(&upload.manifest)?;
        self.check_namespace(names::namespace(&manifest.entity_type)).await?;
        let manifest_type = manifest.entity_type.clone();
        let key = rows::type_key(&manifest_type);
        // An upload that will be refused, or is already deployed, is not compiled.
        let current = self.current_deployment(&key).await?;
        if current.is_none() && upload.inactive {
            let text = format!("`{manifest_type}` has no active revision yet");
            let help = "deploy its first revision without `--inactive`";
            return Err(problem(codes::NOTHING_ACTIVE, text, help));
        }
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
        let schemas = self.wasm.schemas(&program).await.map_err(|error| refused(&error))?;
        let _one_at_a_time = self.write_lock.lock().await;
        // Another deploy may have been written while this one was compiled.
        let current = self.current_deployment(&key).await?;
        if let Some(current) = &current
            && has_deployment(&current.row, &upload.digest, &upload.manifest)
        {
            let CurrentDeployment { stored: found, row } = current;
            let kind = manifest.entity_type.clone();
            self.publish(found.clone(), row, manifest, program);
            return Ok(deployed(&kind, row.revision, row.component_digest, true));
        }
        let revision = revision_of(current.as_ref());
        expected(&upload, &manifest, revision)?;
        self.check_binding(&manifest).await?;
        let methods = method_entries(program.methods(), schemas).map_err(to_problem)?;
        let size = upload.component.len() as u64;
        let schema = schema_of(&program);
        let earlier = self.earlier(current.as_ref(), &manifest.entity_type, schema).await?;
        let stored = revisions::of_row(current.as_ref().map(|it| &it.row));
        let (highest, mut inactive) = stored.map_err(damaged)?;
        // A type that was undeployed continues its revisions.
        let highest = match &current {
            Some(_) => highest,
            None => self.last_revision(&manifest.entity_type).await?,
        };
        let row = match current.as_ref().filter(|_| upload.inactive) {
            Some(current) => {
                let manifest = Bytes::from(upload.manifest.into_bytes());
                let entry = EarlierEntry {
                    revision: highest + 1,
                    component_digest: upload.digest,
                    component_size: size,
                    manifest_digest: self.put(manifest).await?,
                    schema,
                };
                // A repeated upload finds what its first copy wrote.
                let known = inactive.iter().find(|it| it.is_same(&entry));
                if let Some(known) = known {
                    let kind = &manifest_type;
                    return Ok(deployed(kind, known.revision, upload.digest, true));
                }
                inactive.push(entry);
                let mut row = current.row.clone();
                row.set_inactive(&inactive).map_err(damaged)?;
                row
            }
            None => {
                let mut row = next_row(
                    highest,
                    current.as_ref(),
                    upload.manifest,
                    upload.digest,
                    size,
                    methods,
                );
                row.revision = number.filter(|number| *number > revision).unwrap_or(highest + 1);
                inactive.retain(|it| it.revision != row.revision);
                let set = row.set_schema(schema).and_then(|()| row.set_earlier(&earlier));
                set.and_then(|()| row.set_inactive(&inactive)).map_err(damaged)?;
                let rollout =
                    rollout.map(|(wanted, utc)| wire_rollout::from_wire(revision, &wanted, utc));
                row.set_rollout(rollout.as_ref()).map_err(damaged)?;
                row
            }
        };
        let value = rows::encode_value(&row).map_err(to_problem)?;
        if value.len() > MAX_ROW_VALUE_BYTES {
            let text = format!(
                "manifest and methods (names, summaries, schemas) take {} bytes, limit is {MAX_ROW_VALUE_BYTES}",
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
        let cas = CompareAndSet { key: key.clone(), expected, value: Some(value.clone()) };
        let at = match self.cluster_store.compare_and_set(cas).await {
            Ok(at) => at,
            Err(CompareAndSetError::RevisionMismatch(now)) if upload.inactive => {
                let parsed = now.as_ref().and_then(|row| loader::parse(row).ok());
                let found = parsed.map_or(0, |(row, _)| row.revision);
                return Err(changed(&manifest_type, found, revision));
            }
            Err(CompareAndSetError::RevisionMismatch(now)) => {
                return self.resolve_conflict(revision, now, &row, manifest, program);
            }
            Err(CompareAndSetError::Store(error)) => return Err(to_problem(error.into())),
        };
        if upload.inactive {
            let stored = highest + 1;
            tracing::info!(r#type = manifest.entity_type, revision = stored, by, "stored");
            self.loader.on_row_changed(StoredRow { key, value, revision: at });
            return Ok(deployed(&manifest_type, stored, upload.digest, false));
        }
        tracing::info!(r#type = manifest.entity_type, revision = row.revision, by, "deployed");
        let answer = deployed(&manifest.entity_type, row.revision, upload.digest, false);
        let kind = manifest.entity_type.clone();
        self.publish(StoredRow { key, value, revision: at }, &row, manifest, program);
        // Nothing is lost if it takes longer: the deploy waits for all hosts afterwards, up to its deadline.
        let _ = self.types.wait_for_revision(&kind, row.revision, LOADED_HERE_TIMEOUT).await;
        Ok(answer)
    }

    /// Makes this node run a deployment. If it has earlier revisions to run too, the loader compiles them first.
    fn publish(&self, stored: StoredRow, row: &TypeRow, manifest: Manifest, program: Arc<Program>) {
        if row.runnable_earlier().is_ok_and(|earlier| earlier.is_empty()) {
            let entry = loader::to_deployed_type(row, manifest, Some(program));
            return self.loader.on_deployed(stored.revision, entry);
        }
        self.loader.on_row_changed(stored);
    }

    /// The earlier revisions that the row of the next deployment keeps, whose component has this schema. Refuses a
    /// component on which the entities of the current revision would not run (R24).
    async fn earlier(
        &self,
        current: Option<&CurrentDeployment>,
        kind: &str,
        schema: SchemaSupport,
    ) -> Result<Vec<EarlierEntry>, Problem> {
        let Some(CurrentDeployment { row, .. }) = current else { return Ok(Vec::new()) };
        let before = row.schema().map_err(damaged)?;
        check_schema(row, before, kind, schema)?;
        let manifest = Bytes::from(row.manifest.clone().into_bytes());
        let last = EarlierEntry {
            revision: row.revision,
            component_digest: row.component_digest,
            component_size: row.component_size,
            manifest_digest: self.put(manifest).await?,
            schema: before,
        };
        let earlier = row.earlier().map_err(damaged)?;
        revisions::keep(earlier, last, schema.version).map_err(to_problem)
    }

    async fn put(&self, blob: Bytes) -> Result<[u8; 32], Problem> {
        self.entity_store.put_blob(blob).await.map_err(|error| to_problem(error.into()))
    }

    async fn get(&self, digest: [u8; 32], what: &str) -> Result<Bytes, Problem> {
        let found = self.entity_store.get_blob(digest).await;
        found.map_err(|error| to_problem(error.into()))?.ok_or_else(|| {
            let text = format!("the store does not have the {what} of that revision");
            problem(codes::STORE_FAILED, text, "deploy the component again")
        })
    }

    /// Activates a stored revision of a type, or the one before the current revision. An earlier one gets a new, higher
    /// revision (R24).
    ///
    /// # Errors
    /// A problem with its code, as for a deploy.
    pub(crate) async fn activate(
        &self,
        by: &str,
        request: proto::ActivateRequest,
        utc: u64,
    ) -> Result<DeployResult, Problem> {
        let proto::ActivateRequest { r#type: kind, revision, rollout } = request;
        let kind = kind.as_str();
        let current = self.current_deployment(&rows::type_key(kind)).await?;
        let Some(CurrentDeployment { row, .. }) = current else {
            let text = format!("no type `{kind}` is deployed");
            return Err(problem(codes::UNKNOWN_TYPE, text, "`ostraca deployments` lists types"));
        };
        if revision == Some(row.revision) {
            return self.set_rollout(kind, row.revision, rollout, utc).await;
        }
        let (earlier, inactive) =
            (row.earlier().map_err(damaged)?, row.inactive().map_err(damaged)?);
        let entry = match revision {
            None => earlier.last(),
            Some(wanted) => earlier.iter().chain(&inactive).find(|it| it.revision == wanted),
        };
        let Some(entry) = entry else {
            let of = revision.map_or_else(
                || format!("`{kind}` has no revision before {}", row.revision),
                |revision| format!("`{kind}` has no stored revision {revision}"),
            );
            let help = format!("`ostraca deployments {kind}` lists them");
            return Err(problem(codes::UNKNOWN_REVISION, of, &help));
        };
        let manifest = self.get(entry.manifest_digest, "manifest").await?;
        let upload = Upload {
            manifest: String::from_utf8_lossy(&manifest).into_owned(),
            component: self.get(entry.component_digest, "component").await?,
            digest: entry.component_digest,
            expected_revision: Some(row.revision),
            inactive: false,
            dry_run: None,
            permit: UploadPermit::unmetered(),
        };
        let rollout = rollout.map(|wanted| (wanted, utc));
        self.deploy_as(by, upload, Some(entry.revision), rollout).await
    }

    pub(crate) async fn current_deployment(
        &self,
        key: &str,
    ) -> Result<Option<CurrentDeployment>, Problem> {
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

    pub(crate) async fn compile(
        &self,
        it: &Upload,
        manifest: &Manifest,
    ) -> Result<Arc<Program>, Problem> {
        let compiled = self.wasm.prepare(it.component.to_vec(), manifest.wasm_limits()).await;
        compiled.map_err(|error| refused(&error))
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
            self.publish(found.clone(), row, manifest, program);
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
            self.publish(now, &row, manifest, program);
            return Ok(deployed(&kind, row.revision, row.component_digest, true));
        }
        self.loader.on_row_changed(now);
        Err(changed(&kind, row.revision, expected))
    }
}

/// Refuses a pool that the cluster does not have, or that is for others: a tenant's types are in the pool `default`, or
/// in the one with the name of their namespace. Tenants do not learn which pools there are beside these.
pub(super) fn check_pool(pools: &Pools, manifest: &Manifest) -> Result<(), Problem> {
    let (namespace, pool) = (names::namespace(&manifest.entity_type), manifest.pool.as_str());
    let is_tenant = namespace != names::DEFAULT_NAMESPACE;
    let may_use = !is_tenant || [DEFAULT_POOL, namespace].contains(&pool);
    match pools.get(pool) {
        Some(_) if may_use => Ok(()),
        _ if is_tenant => {
            let text = format!("the namespace `{namespace}` has no pool `{pool}`");
            let help = "leave out `pool`, or name the pool with the namespace's name if an operator has created it";
            Err(problem(codes::UNKNOWN_POOL, text, help))
        }
        _ => Err(unknown_pool(pools, pool)),
    }
}

/// Refuses a component that cannot migrate the entities of the current revision (R24).
pub(crate) fn check_schema(
    row: &TypeRow,
    before: SchemaSupport,
    kind: &str,
    schema: SchemaSupport,
) -> Result<(), Problem> {
    if before.version <= schema.newest {
        return Ok(());
    }
    let text = format!(
        "revision {} of `{kind}` has schema {}, but the component has schema {} and migrates from no schema above {}",
        row.revision, before.version, schema.version, schema.newest
    );
    let help = "deploy a component whose `newest-schema` is at least the current schema";
    Err(problem(codes::SCHEMA_GOES_BACK, text, help))
}

pub(crate) fn damaged(error: CodecError) -> Problem {
    to_problem(catalog::Error::InvalidRow(error.to_string()))
}

/// A type's current row, as stored and decoded.
pub(crate) struct CurrentDeployment {
    stored: StoredRow,
    pub(crate) row: TypeRow,
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
/// The component cannot be used, or not now.
pub(crate) fn refused(error: &ostraca_wasm::Error) -> Problem {
    let retryable = error.is_retryable();
    Problem { retryable, ..problem(error.code(), error.to_string(), help(error.code())) }
}

/// The methods as the row lists them.
fn method_entries(
    methods: &[Method],
    schemas: Vec<ostraca_wasm::MethodSchema>,
) -> Result<Vec<MethodEntry>, ostraca_catalog::Error> {
    let schemas: HashMap<_, _> = schemas
        .into_iter()
        .map(|it| (it.method, MethodSchema { arguments: it.arguments, result: it.result }))
        .collect();
    let entry = |method: &Method| {
        let kind = guest_types::core_kind(method.kind);
        let entry = MethodEntry::new(&method.name, kind, &method.summary)?;
        match schemas.get(&method.name) {
            Some(schema) => entry.with_schema(schema),
            None => Ok(entry),
        }
    };
    methods.iter().map(entry).collect()
}

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
        codes::SCHEMAS_TOO_LARGE => {
            "use simpler types, or leave the schemas out with `#[entity(schemas = false)]`; or raise `schema-bytes` in `[components]` on every node"
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

pub(crate) fn deployed(
    kind: &str,
    revision: u64,
    digest: [u8; 32],
    unchanged: bool,
) -> DeployResult {
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
