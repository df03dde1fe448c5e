//! The entity types that this node knows now: one entry a type, replaced whole at each deploy.
//!
//! What is confusing: knowing a type is enough to send to its entities, running them takes its compiled component.
//! Nodes without the role `host` never compile; and what a node remembers from its last life ([`crate::cache`]) is not
//! compiled yet. Such entries have no program. A host shows a newer revision only when it is compiled: until then the
//! one before it stands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ostraca_core::message::MessageKind;
use ostraca_core::shard::TypeSettings;
use ostraca_wasm::Program;
use tokio::sync::watch;

use crate::manifest::Manifest;
use crate::rows::MethodEntry;

/// A type that was waited for in vain is not waited for again so soon: a mistyped name answers at once, the second time.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Names that are remembered for that. Beyond it all are forgotten.
const NAMES: usize = 1_024;

/// One deployed type.
pub(crate) struct DeployedType {
    pub(crate) name: Arc<str>,
    pub(crate) revision: u64,
    pub(crate) manifest: Manifest,
    /// None where this node cannot run it, or not yet.
    pub(crate) program: Option<Arc<Program>>,
    pub(crate) component_digest: [u8; 32],
    pub(crate) component_size: u64,
    methods: HashMap<Box<str>, (Arc<str>, MessageKind)>,
    /// The same, in the order that the component gives them.
    order: Vec<(Arc<str>, MessageKind)>,
    /// As many, in the same order.
    summaries: Vec<String>,
}

impl DeployedType {
    pub(crate) fn new(
        revision: u64,
        manifest: Manifest,
        methods: &[MethodEntry],
        program: Option<Arc<Program>>,
        component: [u8; 32],
        component_size: u64,
    ) -> Self {
        let order: Vec<(Arc<str>, MessageKind)> = methods
            .iter()
            .map(|method| {
                let kind = if method.query { MessageKind::Query } else { MessageKind::Command };
                (method.name.as_str().into(), kind)
            })
            .collect();
        let summaries = methods.iter().map(MethodEntry::summary).collect();
        let methods =
            order.iter().map(|(name, kind)| ((&**name).into(), (name.clone(), *kind))).collect();
        let name = manifest.entity_type.as_str().into();
        Self {
            name,
            revision,
            manifest,
            program,
            component_digest: component,
            component_size,
            methods,
            order,
            summaries,
        }
    }

    /// What each method says of itself, in the same order as [`Type::methods`].
    pub(crate) fn summaries(&self) -> &[String] {
        &self.summaries
    }

    /// Each method's shared name and its kind.
    pub(crate) fn methods_by_name(&self) -> &HashMap<Box<str>, (Arc<str>, MessageKind)> {
        &self.methods
    }

    /// Its methods, in the order that the component gives them.
    pub(crate) fn methods(&self) -> &[(Arc<str>, MessageKind)] {
        &self.order
    }

    /// Whether this node can run it.
    pub(crate) fn is_runnable(&self) -> bool {
        self.program.is_some()
    }

    /// What the core must know of it.
    pub(crate) fn settings(&self) -> TypeSettings {
        TypeSettings {
            revision: self.revision,
            mailbox_capacity: usize::try_from(self.manifest.limits.mailbox).unwrap_or(usize::MAX),
            idle_timeout: u64::try_from(self.manifest.lifecycle.idle_timeout.as_millis())
                .unwrap_or(u64::MAX),
            has_stop_hook: self.program.as_ref().is_some_and(|program| program.has_stop_hook()),
        }
    }
}

pub(crate) type TypeTable = HashMap<Arc<str>, Arc<DeployedType>>;

/// Why there is no type to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TypeUnavailable {
    /// Nobody has heard of it.
    #[error("no type is deployed under that name")]
    Unknown,
    /// Its row was seen; its component is not compiled yet. It may be later.
    #[error("the type is still being loaded on this node")]
    Loading,
    /// It cannot be run here until it is deployed anew.
    #[error("the type cannot be run on this node: {0}")]
    Broken(Arc<str>),
}

/// What is going on with a type beside what stands in the table.
#[derive(Clone)]
enum State {
    /// Being loaded.
    Loading,
    /// Not to be run: its revision, 0 if that is not known, and why.
    Broken(u64, Arc<str>),
}

/// The types, shared between threads: readers take the whole table at once.
#[derive(Clone, Default)]
pub(crate) struct TypeRegistry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: watch::Sender<Arc<TypeTable>>,
    states: Mutex<HashMap<Arc<str>, State>>,
    in_vain: Mutex<HashMap<Box<str>, Instant>>,
}

impl TypeRegistry {
    /// All types, as they are now.
    pub(crate) fn snapshot(&self) -> Arc<TypeTable> {
        self.0.table.borrow().clone()
    }

    /// A type that can be sent to, compiled here or not.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<DeployedType>> {
        self.0.table.borrow().get(name).cloned()
    }

    /// The same, and waits for one that is not known yet: at most `most`, and at once after it was waited for in vain.
    /// Must be called within a tokio runtime.
    pub(crate) async fn wait(&self, name: &str, most: Duration) -> Option<Arc<DeployedType>> {
        if let Some(entry) = self.get(name) {
            return Some(entry);
        }
        if lock(&self.0.in_vain).get(name).is_some_and(|last| last.elapsed() < IN_VAIN) {
            return None;
        }
        let found = self.until(most, |types| types.get(name)).await;
        if found.is_none() {
            let mut in_vain = lock(&self.0.in_vain);
            if in_vain.len() >= NAMES {
                in_vain.clear();
            }
            in_vain.insert(name.into(), Instant::now());
        }
        found
    }

    /// A type that this node can run. Whoever has a message for one that is being loaded keeps it for a while (R24): the
    /// sender's gateway holds it, as in a hand-off.
    ///
    /// # Errors
    /// [`Absent`] says what is known of it.
    pub(crate) fn get_runnable(&self, name: &str) -> Result<Arc<DeployedType>, TypeUnavailable> {
        let entry = self.get(name);
        if let Some(entry) = entry.as_ref().filter(|entry| entry.is_runnable()) {
            return Ok(entry.clone());
        }
        match lock(&self.0.states).get(name) {
            Some(State::Loading) => Err(TypeUnavailable::Loading),
            Some(State::Broken(_, why)) => Err(TypeUnavailable::Broken(why.clone())),
            // Known from the last life: its row was not seen in this one yet.
            None if entry.is_some() => Err(TypeUnavailable::Loading),
            None => Err(TypeUnavailable::Unknown),
        }
    }

    /// Waits until a type has that revision here, or a higher one.
    ///
    /// # Errors
    /// [`Absent::Broken`] as soon as it is seen that the newest revision cannot be run here; else, when the time is over,
    /// [`Absent::Loading`].
    pub(crate) async fn wait_for_revision(
        &self,
        name: &str,
        revision: u64,
        most: Duration,
    ) -> Result<(), TypeUnavailable> {
        let look = |types: &Self| {
            if types.get(name).is_some_and(|entry| entry.revision >= revision) {
                return Some(Ok(()));
            }
            match lock(&types.0.states).get(name) {
                Some(State::Broken(_, why)) => Some(Err(TypeUnavailable::Broken(why.clone()))),
                _ => None,
            }
        };
        self.until(most, look).await.unwrap_or(Err(TypeUnavailable::Loading))
    }

    /// Waits until nothing is being loaded.
    pub(crate) async fn wait_until_loaded(&self, most: Duration) -> bool {
        let settled = |types: &Self| {
            let states = lock(&types.0.states);
            (!states.values().any(|state| matches!(state, State::Loading))).then_some(())
        };
        self.until(most, settled).await.is_some()
    }

    /// Types that cannot be run here although they are deployed, and why.
    pub(crate) fn broken(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let states = lock(&self.0.states);
        let broken = states.iter().filter_map(|(name, state)| match state {
            State::Broken(_, why) => Some((name.clone(), why.clone())),
            State::Loading => None,
        });
        let mut broken: Vec<_> = broken.collect();
        broken.sort();
        broken
    }

    /// Shows a type, in the place of its revision before.
    pub(crate) fn put(&self, entry: Arc<DeployedType>) {
        lock(&self.0.states).remove(&entry.name);
        self.0.table.send_modify(|table| {
            Arc::make_mut(table).insert(entry.name.clone(), entry);
        });
    }

    /// Takes a type away.
    pub(crate) fn remove(&self, name: &str) {
        lock(&self.0.states).remove(name);
        self.0.table.send_modify(|table| {
            Arc::make_mut(table).remove(name);
        });
    }

    /// A newer revision of the type is being loaded.
    pub(crate) fn loading(&self, name: &Arc<str>) {
        self.state(name, State::Loading);
    }

    /// The newest revision of the type cannot be run here.
    pub(crate) fn fails(&self, name: &Arc<str>, revision: u64, why: &str) {
        self.state(name, State::Broken(revision, why.into()));
    }

    /// How far this node is with a type: the revision that it runs, 0 for none; and the newest one that it cannot run,
    /// with the reason.
    pub(crate) fn progress(&self, name: &str) -> (u64, Option<(u64, Arc<str>)>) {
        let runs = self.get(name).filter(|entry| entry.is_runnable());
        let broken = match lock(&self.0.states).get(name) {
            Some(State::Broken(revision, why)) => Some((*revision, why.clone())),
            _ => None,
        };
        (runs.map_or(0, |entry| entry.revision), broken)
    }

    fn state(&self, name: &Arc<str>, state: State) {
        lock(&self.0.states).insert(name.clone(), state);
        // Whoever waits looks again.
        self.0.table.send_modify(|_| ());
    }

    async fn until<T>(&self, most: Duration, look: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let mut changes = self.0.table.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = look(self) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(most, found).await.ok().flatten()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A type as a node without the role `host` knows it.
    pub(crate) fn known(name: &str, revision: u64) -> DeployedType {
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
        assert!(again.is_none(), "it answers at once");
        types.put(Arc::new(known("countr", 1)));
        assert!(types.wait("countr", Duration::ZERO).await.is_some());
    }

    #[tokio::test]
    async fn a_host_distinguishes_loading_types_from_broken_ones() {
        let types = TypeRegistry::default();
        let name: Arc<str> = "counter".into();
        types.put(Arc::new(known("counter", 1)));
        let of_last_life = types.get_runnable("counter").err();
        assert_eq!(of_last_life, Some(TypeUnavailable::Loading), "known, and not compiled");
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
        let late = types.wait_for_revision("counter", 3, Duration::from_millis(1)).await;
        assert_eq!(late, Err(TypeUnavailable::Loading));
        let waits = tokio::spawn({
            let types = types.clone();
            async move { types.wait_for_revision("counter", 3, Duration::from_secs(3_600)).await }
        });
        tokio::task::yield_now().await;
        types.fails(&"counter".into(), 3, "it traps");
        let broken = waits.await.expect("it is told at once");
        assert_eq!(broken, Err(TypeUnavailable::Broken("it traps".into())));
    }
}
