//! The entity types that this node currently knows: one entry per type, replaced as a whole by each deploy.
//!
//! Confusing at first: knowing a type is enough to route messages to its entities, but running them takes its
//! compiled component. Nodes without the role `host` never compile, and what a node remembers from its previous
//! run (its route cache) is not compiled yet. Such entries have no program. A host publishes a newer revision
//! only once it is compiled; until then the previous revision remains in use.

mod addressing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ostraca_config::Manifest;
use ostraca_core::ids::ShardId;
use ostraca_core::message::MessageKind;
use ostraca_core::names;
use ostraca_core::shard::{ChannelKeep, EarlierRevision, SchemaSupport, TypeSettings};
use ostraca_wasm::Program;
use tokio::sync::watch;

use crate::namespaces::KnownNamespaces;
use crate::revisions::EarlierEntry;
use crate::rollout::StoredRollout;
use crate::rows::MethodEntry;
pub use addressing::{resolve_method, unknown_type};

/// After a wait for an unknown type has timed out, further messages for it do not wait for this long. So with a
/// mistyped name, the second message is answered immediately.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Maximum number of such names that are remembered; beyond it, all are forgotten.
const NAMES: usize = 1_024;

/// The programs of earlier revisions.
pub type EarlierPrograms = Vec<(u64, Arc<Program>)>;

/// A deployed type.
pub struct DeployedType {
    /// Its name in the cluster, which contains its namespace ([`names`]).
    pub name: Arc<str>,
    /// The revision of the deployment.
    pub revision: u64,
    /// The manifest of that revision.
    pub manifest: Manifest,
    /// `None` if this node cannot run the type, or not yet.
    pub program: Option<Arc<Program>>,
    /// The earlier revisions that this node can run, in ascending order, with what their components say about their
    /// state.
    pub earlier: EarlierPrograms,
    /// What the component says about the schema of its state, according to the type's row.
    pub schema: SchemaSupport,
    /// The first shard of the type's pool.
    pub first_shard: ShardId,
    /// The rollout of the revision, if it has not reached all entities.
    pub rollout: Option<StoredRollout>,
    /// The other stored revisions, and whether each was never active; in ascending order.
    pub stored: Vec<(EarlierEntry, bool)>,
    /// BLAKE3 of the component.
    pub component_digest: [u8; 32],
    /// In bytes.
    pub component_size: u64,
    methods: HashMap<Box<str>, (Arc<str>, MessageKind)>,
    /// The same methods, in the component's order.
    order: Vec<(Arc<str>, MessageKind)>,
    /// The methods as the row lists them, in the same order.
    entries: Vec<MethodEntry>,
}

impl DeployedType {
    /// Creates a type's entry from its row and, on a host, its compiled component.
    pub fn new(
        revision: u64,
        manifest: Manifest,
        methods: &[MethodEntry],
        program: Option<Arc<Program>>,
        component: [u8; 32],
        component_size: u64,
    ) -> Self {
        let order: Vec<(Arc<str>, MessageKind)> =
            methods.iter().map(|method| (method.name.as_str().into(), method.kind())).collect();
        let entries = methods.to_vec();
        let methods =
            order.iter().map(|(name, kind)| ((&**name).into(), (name.clone(), *kind))).collect();
        let name = manifest.entity_type.as_str().into();
        Self {
            name,
            revision,
            manifest,
            program,
            earlier: Vec::new(),
            schema: SchemaSupport::default(),
            first_shard: ShardId(1),
            rollout: None,
            stored: Vec::new(),
            component_digest: component,
            component_size,
            methods,
            order,
            entries,
        }
    }

    /// Whether its revision reaches more and more entities by itself.
    pub fn is_rolling_out(&self) -> bool {
        self.rollout.as_ref().is_some_and(StoredRollout::is_moving)
    }

    /// Whether its entities may ask other entities.
    pub fn may_ask(&self) -> bool {
        !self.manifest.grants.ask.is_empty()
    }

    /// Whether its entities may make HTTP calls.
    pub fn may_call(&self) -> bool {
        !self.manifest.grants.http.is_empty()
    }

    /// The methods as the row lists them, in the order of [`DeployedType::methods`].
    pub fn entries(&self) -> &[MethodEntry] {
        &self.entries
    }

    /// Each method's shared name and its kind.
    pub fn methods_by_name(&self) -> &HashMap<Box<str>, (Arc<str>, MessageKind)> {
        &self.methods
    }

    /// The methods, in the component's order.
    pub fn methods(&self) -> &[(Arc<str>, MessageKind)] {
        &self.order
    }

    /// The program of a revision, if this node can run it.
    pub fn program_of(&self, revision: u64) -> Option<&Arc<Program>> {
        if revision == self.revision {
            return self.program.as_ref();
        }
        self.earlier.iter().find(|(of, _)| *of == revision).map(|(_, program)| program)
    }

    /// Whether this node can run the type.
    pub fn is_runnable(&self) -> bool {
        self.program.is_some()
    }

    /// What the core needs to know about the type.
    pub fn settings(&self) -> TypeSettings {
        TypeSettings {
            revision: self.revision,
            mailbox_capacity: usize::try_from(self.manifest.limits.mailbox).unwrap_or(usize::MAX),
            idle_timeout: u64::try_from(self.manifest.lifecycle.idle_timeout.as_millis())
                .unwrap_or(u64::MAX),
            has_stop_hook: self.program.as_ref().is_some_and(|program| program.has_stop_hook()),
            remembers: self.manifest.lifecycle.remember_entities,
            keep: ChannelKeep {
                items: self.manifest.channels.keep_items.into(),
                bytes: self.manifest.channels.keep_bytes,
            },
            time_to_live: u64::try_from(self.manifest.lifecycle.time_to_live.as_millis())
                .unwrap_or(u64::MAX),
            on_failure: self.manifest.lifecycle.on_failure,
            schema: self.program.as_ref().map_or_else(SchemaSupport::default, |it| schema_of(it)),
            earlier: self
                .earlier
                .iter()
                .map(|(revision, program)| earlier(*revision, program))
                .collect(),
            rollout: self.rollout.as_ref().map(|it| it.reach(self.first_shard)),
            reentrant_queries: self.manifest.reentrant_queries,
            tells: self
                .manifest
                .grants
                .tell
                .iter()
                .map(|granted| names::beside(&self.name, granted.as_str().into()))
                .collect(),
            subscriptions: self.manifest.limits.subscriptions.into(),
        }
    }
}

/// What a component says about the schema of its state, for the core.
pub fn schema_of(program: &Program) -> SchemaSupport {
    let ostraca_wasm::SchemaSupport { version, newest } = program.schema();
    SchemaSupport { version, newest }
}

fn earlier(revision: u64, program: &Program) -> EarlierRevision {
    let has_stop_hook = program.has_stop_hook();
    EarlierRevision { revision, schema: schema_of(program), has_stop_hook }
}

/// All types by name.
pub type TypeTable = HashMap<Arc<str>, Arc<DeployedType>>;

/// Why a type is not runnable here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeUnavailable {
    /// No row of the type is known.
    #[error("no type is deployed under that name")]
    Unknown,
    /// Its row was read, but its component is not compiled yet.
    #[error("the type is still being loaded on this node")]
    Loading,
    /// It cannot run here until it is deployed again, for this reason.
    #[error("the type cannot be run on this node: {0}")]
    Broken(Arc<str>),
}

/// The state of a type's newest revision, apart from its entry in the table.
#[derive(Clone)]
enum State {
    /// It is being loaded.
    Loading,
    /// It cannot run: its revision (0 if unknown) and the reason.
    Broken(u64, Arc<str>),
}

/// A migration that failed.
#[derive(Clone, Debug)]
pub struct FailedMigration {
    /// The revision to which the entity was to be migrated.
    pub revision: u64,
    /// When it failed, in milliseconds since 1970 by the cluster's UTC.
    pub utc: u64,
    /// The entity and the reason.
    pub why: Arc<str>,
}

/// The types, shared between threads: readers take a snapshot of the whole table.
#[derive(Clone, Default)]
pub struct TypeRegistry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: watch::Sender<Arc<TypeTable>>,
    states: Mutex<HashMap<Arc<str>, State>>,
    in_vain: Mutex<HashMap<Box<str>, Instant>>,
    /// The last migration of each type's entities that failed here.
    failed_migrations: Mutex<HashMap<Arc<str>, FailedMigration>>,
    namespaces: KnownNamespaces,
}

impl TypeRegistry {
    /// A snapshot of all types.
    pub fn snapshot(&self) -> Arc<TypeTable> {
        self.0.table.borrow().clone()
    }

    /// The namespaces of the types.
    pub fn namespaces(&self) -> &KnownNamespaces {
        &self.0.namespaces
    }

    /// Whether the cluster has a namespace, or a type in it: a node that starts without its store knows only types.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        let in_namespace = |name: &Arc<str>| names::namespace(name) == namespace;
        self.namespaces().contains(namespace) || self.0.table.borrow().keys().any(in_namespace)
    }

    /// A type that messages can be routed to, compiled here or not.
    pub fn get(&self, name: &str) -> Option<Arc<DeployedType>> {
        self.0.table.borrow().get(name).cloned()
    }

    /// Like `get`, but waits up to `timeout` for a type that is not known yet. Does not wait if a recent wait for it
    /// timed out. Must be called within a tokio runtime.
    pub async fn wait(&self, name: &str, timeout: Duration) -> Option<Arc<DeployedType>> {
        if let Some(entry) = self.get(name) {
            return Some(entry);
        }
        if lock(&self.0.in_vain).get(name).is_some_and(|last| last.elapsed() < IN_VAIN) {
            return None;
        }
        let found = self.until(timeout, |types| types.get(name)).await;
        if found.is_none() {
            let mut in_vain = lock(&self.0.in_vain);
            if in_vain.len() >= NAMES {
                in_vain.clear();
            }
            in_vain.insert(name.into(), Instant::now());
        }
        found
    }

    /// A type that this node can run. A message for a type that is still being loaded is not refused at once
    /// (R24): the sender's gateway buffers it, as in a hand-off.
    ///
    /// # Errors
    /// [`TypeUnavailable`] says why it cannot run.
    pub fn get_runnable(&self, name: &str) -> Result<Arc<DeployedType>, TypeUnavailable> {
        let entry = self.get(name);
        if let Some(entry) = entry.as_ref().filter(|entry| entry.is_runnable()) {
            return Ok(entry.clone());
        }
        match lock(&self.0.states).get(name) {
            Some(State::Loading) => Err(TypeUnavailable::Loading),
            Some(State::Broken(_, why)) => Err(TypeUnavailable::Broken(why.clone())),
            // Known from the previous run; this run has not read its row yet.
            None if entry.is_some() => Err(TypeUnavailable::Loading),
            None => Err(TypeUnavailable::Unknown),
        }
    }

    /// Waits until this node has the given revision of a type, or a higher one.
    ///
    /// # Errors
    /// [`TypeUnavailable::Broken`] as soon as the newest revision turns out not to run here;
    /// [`TypeUnavailable::Loading`] at the timeout.
    pub async fn wait_for_revision(
        &self,
        name: &str,
        revision: u64,
        timeout: Duration,
    ) -> Result<(), TypeUnavailable> {
        let find = |types: &Self| {
            if types.get(name).is_some_and(|entry| entry.revision >= revision) {
                return Some(Ok(()));
            }
            match lock(&types.0.states).get(name) {
                Some(State::Broken(_, why)) => Some(Err(TypeUnavailable::Broken(why.clone()))),
                _ => None,
            }
        };
        self.until(timeout, find).await.unwrap_or(Err(TypeUnavailable::Loading))
    }

    /// Waits until nothing is being loaded. Returns whether that happened within `timeout`.
    pub async fn wait_until_loaded(&self, timeout: Duration) -> bool {
        let settled = |types: &Self| {
            let states = lock(&types.0.states);
            (!states.values().any(|state| matches!(state, State::Loading))).then_some(())
        };
        self.until(timeout, settled).await.is_some()
    }

    /// Deployed types that cannot run here, with the reasons.
    pub fn broken(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let states = lock(&self.0.states);
        let broken = states.iter().filter_map(|(name, state)| match state {
            State::Broken(_, why) => Some((name.clone(), why.clone())),
            State::Loading => None,
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort();
        broken
    }

    /// Publishes a type, in place of its previous revision.
    pub fn put(&self, entry: Arc<DeployedType>) {
        lock(&self.0.states).remove(&entry.name);
        self.0.table.send_modify(|table| {
            Arc::make_mut(table).insert(entry.name.clone(), entry);
        });
    }

    /// Removes a type.
    pub fn remove(&self, name: &str) {
        lock(&self.0.states).remove(name);
        self.0.table.send_modify(|table| {
            Arc::make_mut(table).remove(name);
        });
    }

    /// Notes that a newer revision of the type is being loaded.
    pub fn loading(&self, name: &Arc<str>) {
        self.state(name, State::Loading);
    }

    /// Notes that the newest revision of the type cannot run here.
    pub fn fails(&self, name: &Arc<str>, revision: u64, why: &str) {
        self.state(name, State::Broken(revision, why.into()));
    }

    /// This node's progress with a type: the revision that it runs, 0 if none; and the newest revision that it
    /// cannot run, with the reason.
    pub fn progress(&self, name: &str) -> (u64, Option<(u64, Arc<str>)>) {
        let runs = self.get(name).filter(|entry| entry.is_runnable());
        let broken = match lock(&self.0.states).get(name) {
            Some(State::Broken(revision, why)) => Some((*revision, why.clone())),
            _ => None,
        };
        (runs.map_or(0, |entry| entry.revision), broken)
    }

    /// Notes that an entity of the type could not be migrated.
    pub fn migration_failed(&self, name: &Arc<str>, failed: FailedMigration) {
        lock(&self.0.failed_migrations).insert(name.clone(), failed);
    }

    /// Why an entity of the type could not be migrated to this revision, if that has happened since a time of the
    /// cluster's UTC.
    pub fn failed_migration(&self, name: &str, revision: u64, since: u64) -> Option<Arc<str>> {
        let failed = lock(&self.0.failed_migrations);
        let fits = |it: &&FailedMigration| it.revision == revision && it.utc >= since;
        failed.get(name).filter(fits).map(|it| it.why.clone())
    }

    fn state(&self, name: &Arc<str>, state: State) {
        lock(&self.0.states).insert(name.clone(), state);
        // Wakes the waiters, which check again.
        self.0.table.send_modify(|_| ());
    }

    async fn until<T>(&self, timeout: Duration, find: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let mut changes = self.0.table.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = find(self) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(timeout, found).await.ok().flatten()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type as a node without the role `host` knows it.
    pub(super) fn known(name: &str, revision: u64) -> DeployedType {
        let text = format!("type = \"{name}\"\ncomponent = \"a.wasm\"\n");
        let manifest = Manifest::parse(&text, "entity.toml").expect("a manifest");
        let methods =
            [MethodEntry { name: "get".into(), query: true, extensions: Default::default() }];
        DeployedType::new(revision, manifest, &methods, None, [0; 32], 1)
    }

    #[tokio::test]
    async fn an_unknown_type_is_waited_for_only_once() {
        let types = TypeRegistry::default();
        let waits = tokio::spawn({
            let types = types.clone();
            async move { types.wait("counter", Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        types.put(Arc::new(known("counter", 1)));
        let found = waits.await.expect("waited").expect("found");
        assert_eq!(
            found.methods_by_name().get("get").map(|(_, kind)| *kind),
            Some(MessageKind::Query)
        );

        assert!(types.wait("countr", Duration::from_millis(1)).await.is_none());
        let again = types.wait("countr", Duration::from_secs(3_600)).await;
        assert!(again.is_none(), "the second call does not wait");
        types.put(Arc::new(known("countr", 1)));
        assert!(types.wait("countr", Duration::ZERO).await.is_some());
    }

    #[tokio::test]
    async fn a_host_distinguishes_loading_types_from_broken_ones() {
        let types = TypeRegistry::default();
        let name: Arc<str> = "counter".into();
        types.put(Arc::new(known("counter", 1)));
        let before_restart = types.get_runnable("counter").err();
        assert_eq!(before_restart, Some(TypeUnavailable::Loading), "known, but not compiled");
        types.loading(&name);
        assert!(!types.wait_until_loaded(Duration::ZERO).await);
        let waits = tokio::spawn({
            let types = types.clone();
            async move { types.wait_until_loaded(Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        types.fails(&name, 1, "it traps");
        assert!(waits.await.expect("waited"));
        assert_eq!(
            types.get_runnable("counter").err(),
            Some(TypeUnavailable::Broken("it traps".into()))
        );
        assert_eq!(types.broken(), [(name, "it traps".into())]);
        types.remove("counter");
        assert_eq!(types.get_runnable("counter").err(), Some(TypeUnavailable::Unknown));
        assert!(types.broken().is_empty());
    }

    #[tokio::test]
    async fn a_revision_is_waited_for() {
        let types = TypeRegistry::default();
        types.put(Arc::new(known("counter", 2)));
        assert_eq!(types.wait_for_revision("counter", 2, Duration::ZERO).await, Ok(()));
        let outcome = types.wait_for_revision("counter", 3, Duration::from_millis(1)).await;
        assert_eq!(outcome, Err(TypeUnavailable::Loading));
        let waits = tokio::spawn({
            let types = types.clone();
            async move { types.wait_for_revision("counter", 3, Duration::from_secs(3_600)).await }
        });
        tokio::task::yield_now().await;
        types.fails(&"counter".into(), 3, "it traps");
        let broken = waits.await.expect("it is notified");
        assert_eq!(broken, Err(TypeUnavailable::Broken("it traps".into())));
    }
}
