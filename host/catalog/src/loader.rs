//! Loads types: fetches, compiles and publishes them as their rows change, which the control thread watches.
//!
//! Each type has one task while there is work for it, and only a type's newest row counts. Components are
//! fetched and compiled within a budget, so that a node that starts or joins does not run out of memory
//! (Golem #3643). An unusable row or component does not stop the node: it is logged and shown in the status.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostraca_config::Manifest;
use ostraca_core::pools::{Pool, Pools};
use ostraca_store::{EntityStore, StoredRow};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::Error;
use crate::pool::KnownPools;
use crate::rows::{self, TypeRow};
use crate::types::{DeployedType, EarlierPrograms, TypeRegistry};

/// Maximum number of components fetched and compiled concurrently. Memory: the component and its compiler, for each.
pub const BUDGET: usize = 2;
/// The first and the longest pause before a call to an unavailable store is retried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Maximum number of attempts to compile a component whose compiler does not exit normally. The component did
/// compile once, on the node where it was deployed.
const COMPILATIONS: u32 = 3;

/// Informs all workers about a type, in the order of the calls.
pub type NotifyWorkers = Box<dyn Fn(&Arc<DeployedType>) + Send + Sync>;

/// Whether a node hosts a pool.
pub type HostsPool = Box<dyn Fn(&Pool) -> bool + Send + Sync>;

/// Dependencies of a loader.
pub struct LoaderDeps {
    /// Where loaded types are published.
    pub types: TypeRegistry,
    /// Where components are fetched from.
    pub entity_store: Arc<dyn EntityStore>,
    /// `None` on a node that hosts no pool, which knows types but compiles none.
    pub wasm: Option<ostraca_wasm::WasmRuntime>,
    /// The cluster's pools.
    pub pools: KnownPools,
    /// Whether this node hosts a pool: it compiles no types of others.
    pub hosts_pool: HostsPool,
    /// Called with each runnable type, before messages for it are released.
    pub notify_workers: NotifyWorkers,
    /// The runtime on which the loader's tasks run.
    pub runtime: Handle,
    /// Maximum number of components loaded concurrently. Default [`BUDGET`].
    pub budget: usize,
}

/// Loads types. Clones share all state; the tasks end when the last clone is dropped.
#[derive(Clone)]
pub struct Loader {
    shared: Arc<Shared>,
    _stop: Arc<DropGuard>,
}

struct Shared {
    deps: LoaderDeps,
    budget: Semaphore,
    rows: Mutex<HashMap<Arc<str>, Seen>>,
    stop: CancellationToken,
}

/// The last observed state of a type's row.
#[derive(Default)]
struct Seen {
    /// The row's revision in the store.
    at: u64,
    /// The row, unless it was deleted or has not arrived after a deployment through this node.
    row: Option<StoredRow>,
    /// Whether it is to be loaded.
    due: bool,
    /// Whether a task is loading the type.
    working: bool,
}

/// The result of loading.
enum Loaded {
    Shown,
    /// A newer row has arrived.
    Outdated,
    /// The revision (0 if the row does not contain it) and the reason.
    Broken(u64, String),
}

impl Loader {
    /// Creates a loader, which waits for rows.
    #[must_use]
    pub fn new(parts: LoaderDeps) -> Self {
        let stop = CancellationToken::new();
        let budget = Semaphore::new(parts.budget.max(1));
        let (rows, guard) = (Mutex::default(), Arc::new(stop.clone().drop_guard()));
        Self { shared: Arc::new(Shared { deps: parts, budget, rows, stop }), _stop: guard }
    }

    /// Handles a row from a watch or a list. Rows that are neither types' nor namespaces', and rows older than the last
    /// observed one are ignored. Cheap, and does not block.
    pub fn on_row_changed(&self, row: StoredRow) {
        if self.shared.deps.types.namespaces().on_row_changed(&row) {
            return;
        }
        let Some(name) = rows::type_name(&row.key) else { return };
        let name: Arc<str> = name.into();
        let mut rows = self.shared.rows();
        let observed = rows.entry(name.clone()).or_default();
        let is_known = row.revision == observed.at && observed.row.is_none();
        if row.revision < observed.at || (row.revision == observed.at && !is_known) {
            return;
        }
        observed.at = row.revision;
        observed.row = Some(row);
        // It was deployed through this node, perhaps before its pool was copied to another one.
        if !is_known || self.shared.has_moved(&name) {
            self.load(&name, observed);
        }
    }

    /// Loads types again whose entities are in another pool now, because theirs was copied to it.
    pub fn on_pools_changed(&self) {
        for (name, observed) in self.shared.rows().iter_mut() {
            // A task may have looked at the former pools.
            if observed.row.is_some() && (observed.working || self.shared.has_moved(name)) {
                self.load(name, observed);
            }
        }
    }

    /// Lets a task load the row that was observed last.
    fn load(&self, name: &Arc<str>, observed: &mut Seen) {
        observed.due = true;
        self.shared.deps.types.loading(name);
        if !std::mem::replace(&mut observed.working, true) {
            let (shared, name) = (self.shared.clone(), name.clone());
            self.shared.deps.runtime.spawn(async move {
                let stop = shared.stop.clone();
                // Cancelling the work at any point is fine: the node is shutting down.
                let _ = stop.run_until_cancelled(shared.work(name)).await;
            });
        }
    }

    /// Handles the deletion of a row at the given store revision.
    pub fn on_row_deleted(&self, key: &str, revision: u64) {
        self.shared.deps.types.namespaces().on_row_deleted(key, revision);
        let Some(name) = rows::type_name(key) else { return };
        let mut rows = self.shared.rows();
        let observed = rows.entry((&*name).into()).or_default();
        if revision > observed.at {
            (observed.at, observed.row, observed.due) = (revision, None, false);
            self.shared.deps.types.remove(&name);
        }
    }

    /// Handles a full list of the rows of types and namespaces as of the given revision: those without a row are gone.
    pub fn on_rows_listed(&self, rows: Vec<StoredRow>, revision: u64) {
        self.shared.deps.types.namespaces().on_rows_listed(&rows, revision);
        let mut missing: Vec<Arc<str>> =
            self.shared.deps.types.snapshot().keys().cloned().collect();
        missing.extend(self.shared.rows().keys().cloned());
        missing.retain(|name| {
            !rows.iter().any(|row| rows::type_name(&row.key).as_deref() == Some(&**name))
        });
        for name in missing {
            self.on_row_deleted(&rows::type_key(&name), revision);
        }
        for row in rows {
            self.on_row_changed(row);
        }
    }

    /// Publishes types from rows of this node's previous run, for routing only. Any row of this run overrides
    /// them.
    pub fn load_cached(&self, rows: &[StoredRow]) {
        for row in rows {
            let known = rows::type_name(&row.key)
                .is_some_and(|name| self.shared.rows().contains_key(&*name));
            match parse(row) {
                Ok((deployed, manifest)) if !known => {
                    self.shared
                        .deps
                        .types
                        .put(Arc::new(to_deployed_type(&deployed, manifest, None)));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "cannot use a cached type"),
            }
        }
    }

    /// Publishes a type that was just deployed here, whose row has the store revision `at`, unless a newer row
    /// was observed.
    pub fn on_deployed(&self, at: u64, mut entry: DeployedType) {
        let pools = self.shared.deps.pools.get();
        if self.shared.runtime_for(&pools, &entry.manifest).is_none() {
            entry.program = None;
        }
        let mut rows = self.shared.rows();
        let observed = rows.entry(entry.name.clone()).or_default();
        if at >= observed.at {
            // A row that has arrived already is kept.
            if at > observed.at {
                (observed.at, observed.row) = (at, None);
            }
            observed.due = false;
            self.shared.publish(&pools, entry);
        }
    }
}

impl Shared {
    fn rows(&self) -> MutexGuard<'_, HashMap<Arc<str>, Seen>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the pool of a host's type is known: a list of rows may bring the type before the pool. Returns `false` if
    /// a newer row has arrived.
    async fn pool_is_known(&self, name: &str, at: u64, manifest: &Manifest) -> bool {
        while self.deps.wasm.is_some() && self.deps.pools.get().home(&manifest.pool).is_none() {
            if !self.is_current(name, at) {
                return false;
            }
            tokio::time::sleep(PAUSES.0).await;
        }
        true
    }

    /// Whether a published type's entities are in another pool than when it was published.
    fn has_moved(&self, name: &str) -> bool {
        let pools = self.deps.pools.get();
        self.deps.types.get(name).is_some_and(|entry| {
            pools.home(&entry.manifest.pool).is_some_and(|pool| pool.first != entry.first_shard)
        })
    }

    /// Compiles the types with such a manifest; `None` if this node does not run them.
    fn runtime_for(
        &self,
        pools: &Pools,
        manifest: &Manifest,
    ) -> Option<&ostraca_wasm::WasmRuntime> {
        let pool = pools.home(&manifest.pool)?;
        self.deps.wasm.as_ref().filter(|_| (self.deps.hosts_pool)(pool))
    }

    async fn work(&self, name: Arc<str>) {
        loop {
            let (row, at) = {
                let mut rows = self.rows();
                let Some(observed) = rows.get_mut(&name) else { return };
                let due = std::mem::take(&mut observed.due);
                let Some(row) = observed.row.clone().filter(|_| due) else {
                    observed.working = false;
                    return;
                };
                (row, observed.at)
            };
            if let Loaded::Broken(revision, why) = self.load(&name, at, &row).await
                && self.is_current(&name, at)
            {
                tracing::error!(r#type = %name, %why, "a deployed type cannot be run on this node");
                self.deps.types.fails(&name, revision, &why);
            }
        }
    }

    fn is_current(&self, name: &str, at: u64) -> bool {
        self.rows().get(name).is_some_and(|observed| observed.at == at)
    }

    async fn load(&self, name: &Arc<str>, at: u64, row: &StoredRow) -> Loaded {
        let (deployed, manifest) = match parse(row) {
            Ok(parsed) => parsed,
            Err(error) => return Loaded::Broken(0, error.to_string()),
        };
        if !self.pool_is_known(name, at, &manifest).await {
            return Loaded::Outdated;
        }
        // The same for all that follows: if they change meanwhile, the row is loaded again.
        let pools = self.deps.pools.get();
        let Some(wasm) = self.runtime_for(&pools, &manifest) else {
            let entry = to_deployed_type(&deployed, manifest, None);
            return self.publish_if_current(at, &pools, entry);
        };
        if let Some((program, earlier)) = self.compiled(&deployed, &manifest) {
            let mut entry = to_deployed_type(&deployed, manifest, Some(program));
            entry.earlier = earlier;
            return self.publish_if_current(at, &pools, entry);
        }
        let mut pause = PAUSES.0;
        let mut compilations = 0;
        loop {
            if !self.is_current(name, at) {
                return Loaded::Outdated;
            }
            let why = match self.compile(wasm, deployed.component_digest, &manifest).await {
                Ok(program) => {
                    let earlier = self.compile_earlier(wasm, &deployed, &manifest).await;
                    let mut entry = to_deployed_type(&deployed, manifest, Some(program));
                    entry.earlier = earlier;
                    return self.publish_if_current(at, &pools, entry);
                }
                Err(Failed::Permanent(why)) => return Loaded::Broken(deployed.revision, why),
                Err(Failed::CompilerExited(why)) => {
                    compilations += 1;
                    if compilations == COMPILATIONS {
                        return Loaded::Broken(deployed.revision, why);
                    }
                    why
                }
                Err(Failed::Transient(why)) => why,
            };
            tracing::warn!(r#type = %name, %why, "retrying to load a deployed type");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The programs of a row if this node runs them already: only the rollout has changed.
    fn compiled(
        &self,
        deployed: &TypeRow,
        manifest: &Manifest,
    ) -> Option<(Arc<ostraca_wasm::Program>, EarlierPrograms)> {
        let current = self.deps.types.get(&manifest.entity_type)?;
        let same = current.revision == deployed.revision
            && current.component_digest == deployed.component_digest
            && current.manifest == *manifest;
        let wanted = deployed.runnable_earlier().ok()?;
        let has = |of: u64| current.earlier.iter().find(|(revision, _)| *revision == of).cloned();
        let earlier: Option<Vec<_>> = wanted.iter().map(|entry| has(entry.revision)).collect();
        current.program.clone().filter(|_| same).zip(earlier)
    }

    /// Compiles the earlier revisions that entities may have to run. One that does not compile is left out: such an
    /// entity refuses messages, and the rest of the type runs.
    async fn compile_earlier(
        &self,
        wasm: &ostraca_wasm::WasmRuntime,
        deployed: &TypeRow,
        manifest: &Manifest,
    ) -> EarlierPrograms {
        let entries = deployed.runnable_earlier().unwrap_or_else(|error| {
            tracing::warn!(r#type = manifest.entity_type, %error, "cannot read the earlier revisions");
            Vec::new()
        });
        let mut compiled = Vec::new();
        for entry in entries {
            match self.compile(wasm, entry.component_digest, manifest).await {
                Ok(program) => compiled.push((entry.revision, program)),
                Err(
                    Failed::Transient(why) | Failed::CompilerExited(why) | Failed::Permanent(why),
                ) => {
                    let revision = entry.revision;
                    tracing::warn!(
                        r#type = manifest.entity_type,
                        revision,
                        %why,
                        "an earlier revision cannot be run on this node"
                    );
                }
            }
        }
        compiled
    }

    async fn compile(
        &self,
        wasm: &ostraca_wasm::WasmRuntime,
        component_digest: [u8; 32],
        manifest: &Manifest,
    ) -> Result<Arc<ostraca_wasm::Program>, Failed> {
        let _permit = self.budget.acquire().await.map_err(|e| Failed::Transient(e.to_string()))?;
        let component = match self.deps.entity_store.get_blob(component_digest).await {
            Ok(Some(component)) => component,
            // The component was stored before its row, so the store has lost it; it may be restored.
            Ok(None) => {
                return Err(Failed::Transient("the store does not have its component".into()));
            }
            Err(error) => return Err(Failed::Transient(error.to_string())),
        };
        let program = wasm.prepare(component.to_vec(), manifest.wasm_limits()).await;
        program.map_err(|error| {
            let why = error.to_string();
            if error.is_retryable() {
                Failed::Transient(why)
            } else if error.is_compiler_failure() {
                Failed::CompilerExited(why)
            } else {
                Failed::Permanent(why)
            }
        })
    }

    fn publish_if_current(&self, at: u64, pools: &Pools, entry: DeployedType) -> Loaded {
        let rows = self.rows();
        if rows.get(&entry.name).is_none_or(|observed| observed.at != at) {
            return Loaded::Outdated;
        }
        // Done under the lock: a deploy must not be overtaken by the revision that it replaces.
        self.publish(pools, entry);
        drop(rows);
        Loaded::Shown
    }

    /// Workers learn of a type before messages for it are released.
    fn publish(&self, pools: &Pools, mut entry: DeployedType) {
        if let Some(pool) = pools.home(&entry.manifest.pool) {
            entry.first_shard = pool.first;
        }
        let entry = Arc::new(entry);
        if entry.is_runnable() {
            (self.deps.notify_workers)(&entry);
        }
        tracing::info!(r#type = %entry.name, revision = entry.revision, "loaded a type");
        self.deps.types.put(entry);
    }
}

/// Why a type was not compiled.
enum Failed {
    Transient(String),
    /// The compiler did not end normally, perhaps because of this machine's load.
    CompilerExited(String),
    Permanent(String),
}

/// Parses a type's row and the manifest in it.
///
/// # Errors
/// [`Error::InvalidRow`] names the row.
pub fn parse(row: &StoredRow) -> Result<(TypeRow, Manifest), Error> {
    let deployed: TypeRow = rows::decode(row)?;
    let useless = |why: String| Error::InvalidRow(format!("`{}`: {why}", row.key));
    let manifest = Manifest::parse(&deployed.manifest, &row.key)
        .map_err(|error| useless(error.to_string()))?;
    if rows::type_name(&row.key).as_deref() != Some(&*manifest.entity_type) {
        return Err(useless(format!("it holds the type `{}`", manifest.entity_type)));
    }
    Ok((deployed, manifest))
}

/// Builds a type's entry from its row.
pub fn to_deployed_type(
    deployed: &TypeRow,
    manifest: Manifest,
    program: Option<Arc<ostraca_wasm::Program>>,
) -> DeployedType {
    let TypeRow { revision, component_digest: component, component_size, methods, .. } = deployed;
    let mut entry =
        DeployedType::new(*revision, manifest, methods, program, *component, *component_size);
    // Damaged fields are reported where a decision depends on them.
    entry.schema = deployed.schema().unwrap_or_default();
    entry.rollout = deployed.rollout().unwrap_or_default();
    let earlier = deployed.earlier().unwrap_or_default().into_iter().map(|it| (it, false));
    let inactive = deployed.inactive().unwrap_or_default().into_iter().map(|it| (it, true));
    entry.stored = earlier.chain(inactive).collect();
    entry.stored.sort_by_key(|(it, _)| it.revision);
    entry
}

#[cfg(test)]
mod tests;
