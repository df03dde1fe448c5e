//! Types come and go with their rows, which the control thread watches: here they are fetched, compiled and shown.
//!
//! Each type has one task while there is something to do for it, and only the newest row of a type counts. Components
//! are fetched and compiled within a budget, so that a node that starts, or joins, does not run out of memory over all of
//! them at once (Golem #3643). A row or component that is of no use ends nothing: it is logged, and the status shows it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostraca_store::{EntityStore, StoredRow};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::NodeError;
use crate::manifest::Manifest;
use crate::rows::{self, TypeRow};
use crate::types::{DeployedType, TypeRegistry};

/// Components that are fetched and compiled at the same time. Memory: each takes its own size, and the compiler's.
pub(crate) const BUDGET: usize = 2;
/// The first and the longest pause before a store that does not answer is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a component is compiled whose compiler does not end well. It was compiled once, where it was deployed.
const COMPILATIONS: u32 = 3;

/// Tells all workers of a type, in the order of calls.
pub(crate) type NotifyWorkers = Box<dyn Fn(&Arc<DeployedType>) + Send + Sync>;

/// What a loader is made of.
pub(crate) struct LoaderDeps {
    pub(crate) types: TypeRegistry,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    /// None on a node without the role `host`: it knows types and compiles none.
    pub(crate) wasm: Option<ostraca_wasm::WasmRuntime>,
    pub(crate) notify_workers: NotifyWorkers,
    /// Where its tasks run.
    pub(crate) runtime: Handle,
    /// Components at a time; [`BUDGET`] unless said.
    pub(crate) budget: usize,
}

/// Loads types. Clones share everything; with the last one its tasks end.
#[derive(Clone)]
pub(crate) struct Loader {
    shared: Arc<Shared>,
    _stop: Arc<DropGuard>,
}

struct Shared {
    deps: LoaderDeps,
    budget: Semaphore,
    rows: Mutex<HashMap<Arc<str>, Seen>>,
    stop: CancellationToken,
}

/// What was last seen of a type's row.
#[derive(Default)]
struct Seen {
    /// The row's revision in the store.
    at: u64,
    /// To be loaded.
    row: Option<StoredRow>,
    /// A task is at work.
    working: bool,
}

/// How loading ended.
enum Loaded {
    Shown,
    /// There is a newer row.
    Outdated,
    /// The revision, 0 if the row does not tell it, and why.
    Broken(u64, String),
}

impl Loader {
    pub(crate) fn new(parts: LoaderDeps) -> Self {
        let stop = CancellationToken::new();
        let budget = Semaphore::new(parts.budget.max(1));
        let (rows, guard) = (Mutex::default(), Arc::new(stop.clone().drop_guard()));
        Self { shared: Arc::new(Shared { deps: parts, budget, rows, stop }), _stop: guard }
    }

    /// A row was set, as a watch or a list says. Rows that are no types' are passed over, and so is what is older than
    /// what was seen. Cheap, and never waits.
    pub(crate) fn on_row_changed(&self, row: StoredRow) {
        let Some(name) = rows::type_name(&row.key) else { return };
        let name: Arc<str> = name.into();
        let mut rows = self.shared.rows();
        let seen = rows.entry(name.clone()).or_default();
        if row.revision <= seen.at {
            return;
        }
        seen.at = row.revision;
        seen.row = Some(row);
        self.shared.deps.types.loading(&name);
        if !std::mem::replace(&mut seen.working, true) {
            let shared = self.shared.clone();
            self.shared.deps.runtime.spawn(async move {
                let stop = shared.stop.clone();
                // Whatever it was at, the node goes down.
                let _ = stop.run_until_cancelled(shared.work(name)).await;
            });
        }
    }

    /// A row was deleted at that revision of the store.
    pub(crate) fn on_row_deleted(&self, key: &str, revision: u64) {
        let Some(name) = rows::type_name(key) else { return };
        let mut rows = self.shared.rows();
        let seen = rows.entry(name.into()).or_default();
        if revision > seen.at {
            (seen.at, seen.row) = (revision, None);
            self.shared.deps.types.remove(name);
        }
    }

    /// All rows of types, as of that revision: types without one are gone.
    pub(crate) fn on_rows_listed(&self, rows: Vec<StoredRow>, revision: u64) {
        let mut missing: Vec<Arc<str>> =
            self.shared.deps.types.snapshot().keys().cloned().collect();
        missing.extend(self.shared.rows().keys().cloned());
        missing.retain(|name| !rows.iter().any(|row| rows::type_name(&row.key) == Some(&**name)));
        for name in missing {
            self.on_row_deleted(&rows::type_key(&name), revision);
        }
        for row in rows {
            self.on_row_changed(row);
        }
    }

    /// Shows types as rows from this node's last life say them, to send to. They are overruled by any row of this life.
    pub(crate) fn load_cached(&self, rows: &[StoredRow]) {
        for row in rows {
            let known =
                rows::type_name(&row.key).is_some_and(|name| self.shared.rows().contains_key(name));
            match parse(row) {
                Ok((standing, manifest)) if !known => {
                    self.shared
                        .deps
                        .types
                        .put(Arc::new(to_deployed_type(&standing, manifest, None)));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a remembered type is of no use"),
            }
        }
    }

    /// Shows a type that was just deployed here, whose row has that revision in the store, unless there is a newer one.
    pub(crate) fn on_deployed(&self, at: u64, mut entry: DeployedType) {
        if self.shared.deps.wasm.is_none() {
            entry.program = None;
        }
        let mut rows = self.shared.rows();
        let seen = rows.entry(entry.name.clone()).or_default();
        if at >= seen.at {
            (seen.at, seen.row) = (at, None);
            self.shared.publish(entry);
        }
    }
}

impl Shared {
    fn rows(&self) -> MutexGuard<'_, HashMap<Arc<str>, Seen>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self, name: Arc<str>) {
        loop {
            let (row, at) = {
                let mut rows = self.rows();
                let Some(seen) = rows.get_mut(&name) else { return };
                let Some(row) = seen.row.take() else {
                    seen.working = false;
                    return;
                };
                (row, seen.at)
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
        self.rows().get(name).is_some_and(|seen| seen.at == at)
    }

    async fn load(&self, name: &Arc<str>, at: u64, row: &StoredRow) -> Loaded {
        let (standing, manifest) = match parse(row) {
            Ok(parsed) => parsed,
            Err(error) => return Loaded::Broken(0, error.to_string()),
        };
        let Some(wasm) = &self.deps.wasm else {
            return self.publish_if_current(at, to_deployed_type(&standing, manifest, None));
        };
        let mut pause = PAUSES.0;
        let mut compilations = 0;
        loop {
            if !self.is_current(name, at) {
                return Loaded::Outdated;
            }
            let why = match self.compile(wasm, &standing, &manifest).await {
                Ok(program) => {
                    return self.publish_if_current(
                        at,
                        to_deployed_type(&standing, manifest, Some(program)),
                    );
                }
                Err(Failed::Permanent(why)) => return Loaded::Broken(standing.revision, why),
                Err(Failed::CompilerExited(why)) => {
                    compilations += 1;
                    if compilations == COMPILATIONS {
                        return Loaded::Broken(standing.revision, why);
                    }
                    why
                }
                Err(Failed::Transient(why)) => why,
            };
            tracing::warn!(r#type = %name, %why, "a deployed type is tried again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn compile(
        &self,
        wasm: &ostraca_wasm::WasmRuntime,
        standing: &TypeRow,
        manifest: &Manifest,
    ) -> Result<Arc<ostraca_wasm::Program>, Failed> {
        let _permit = self.budget.acquire().await.map_err(|e| Failed::Transient(e.to_string()))?;
        let component = match self.deps.entity_store.get_blob(standing.component_digest).await {
            Ok(Some(component)) => component,
            // It was stored before its row was: a store that has lost it may be restored.
            Ok(None) => return Err(Failed::Transient("its component is not in the store".into())),
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

    fn publish_if_current(&self, at: u64, entry: DeployedType) -> Loaded {
        let rows = self.rows();
        if rows.get(&entry.name).is_none_or(|seen| seen.at != at) {
            return Loaded::Outdated;
        }
        // Under the lock: a deploy must not be overtaken by what it replaces.
        self.publish(entry);
        drop(rows);
        Loaded::Shown
    }

    /// Workers hear of a type before messages for it are let through.
    fn publish(&self, entry: DeployedType) {
        let entry = Arc::new(entry);
        if entry.is_runnable() {
            (self.deps.notify_workers)(&entry);
        }
        tracing::info!(r#type = %entry.name, revision = entry.revision, "a type is known");
        self.deps.types.put(entry);
    }
}

/// Why a type was not compiled.
enum Failed {
    Transient(String),
    /// The compiler did not end well: it may have been this machine's load.
    CompilerExited(String),
    Permanent(String),
}

/// A type's row, and the manifest in it.
pub(crate) fn parse(row: &StoredRow) -> Result<(TypeRow, Manifest), NodeError> {
    let standing: TypeRow = rows::decode(row)?;
    let useless = |why: String| NodeError::InvalidRow(format!("`{}`: {why}", row.key));
    let manifest = Manifest::parse(&standing.manifest, &row.key)
        .map_err(|error| useless(error.to_string()))?;
    if rows::type_name(&row.key) != Some(&*manifest.entity_type) {
        return Err(useless(format!("it holds the type `{}`", manifest.entity_type)));
    }
    Ok((standing, manifest))
}

/// The entry that a row makes.
pub(crate) fn to_deployed_type(
    standing: &TypeRow,
    manifest: Manifest,
    program: Option<Arc<ostraca_wasm::Program>>,
) -> DeployedType {
    let TypeRow { revision, component_digest: component, component_size, methods, .. } = standing;
    DeployedType::new(*revision, manifest, methods, program, *component, *component_size)
}

#[cfg(test)]
mod tests;
