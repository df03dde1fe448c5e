//! The entity types that this node runs now: one entry a type, replaced whole at each deploy.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_sharding::message::Kind;
use ostraca_sharding::shard::TypeSettings;
use ostraca_wasm::Program;

use crate::manifest::Manifest;

/// One deployed type.
pub(crate) struct Type {
    pub(crate) name: Arc<str>,
    pub(crate) revision: u64,
    pub(crate) manifest: Manifest,
    pub(crate) program: Arc<Program>,
    pub(crate) component: [u8; 32],
    pub(crate) component_size: u64,
    methods: HashMap<Box<str>, (Arc<str>, Kind)>,
}

impl Type {
    pub(crate) fn new(
        revision: u64,
        manifest: Manifest,
        program: Arc<Program>,
        component: [u8; 32],
        component_size: u64,
    ) -> Self {
        let methods = program
            .methods()
            .iter()
            .map(|method| {
                let kind = match method.kind {
                    ostraca_wasm::Kind::Command => Kind::Command,
                    ostraca_wasm::Kind::Query => Kind::Query,
                };
                (method.name.as_str().into(), (method.name.as_str().into(), kind))
            })
            .collect();
        let name = manifest.kind.as_str().into();
        Self { name, revision, manifest, program, component, component_size, methods }
    }

    /// A method's shared name and its kind.
    pub(crate) fn method(&self, name: &str) -> Option<&(Arc<str>, Kind)> {
        self.methods.get(name)
    }

    /// Whether the manifest lets `principal` send to this type.
    pub(crate) fn admits(&self, principal: &str) -> bool {
        self.manifest.access.allows(principal)
    }

    /// What the core must know of it.
    pub(crate) fn settings(&self) -> TypeSettings {
        TypeSettings {
            revision: self.revision,
            mailbox: usize::try_from(self.manifest.limits.mailbox).unwrap_or(usize::MAX),
            idle: u64::try_from(self.manifest.life.idle.as_millis()).unwrap_or(u64::MAX),
            has_stop: self.program.has_stop(),
        }
    }
}

pub(crate) type Table = HashMap<Arc<str>, Arc<Type>>;

/// The types, shared between threads: readers take the whole table at once.
#[derive(Clone, Default)]
pub(crate) struct Types(Arc<RwLock<Arc<Table>>>);

impl Types {
    pub(crate) fn now(&self) -> Arc<Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn put(&self, entry: Arc<Type>) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut table).insert(entry.name.clone(), entry);
    }
}
