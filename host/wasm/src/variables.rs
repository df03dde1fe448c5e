//! The secrets and settings of types, which operators set while entities run.
//!
//! A turn that reads one keeps all values of its type as they are at that moment until it ends, so that it never sees
//! two of different times.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use ostraca_secrets::SecretText;

/// The values of one type.
#[derive(Clone, Debug, Default)]
pub struct TypeVariables {
    /// The secrets by name; an error says why this node cannot read one.
    pub secrets: BTreeMap<String, Result<SecretText, String>>,
    /// The settings by name.
    pub settings: BTreeMap<String, String>,
    /// Why this node can read none of them, if it cannot.
    pub unreadable: Option<String>,
}

/// The values of all types. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct VariablesRegistry(Arc<RwLock<HashMap<String, Arc<TypeVariables>>>>);

impl VariablesRegistry {
    /// Replaces the values of a type. Turns that have read one keep the former ones.
    pub fn set(&self, entity_type: &str, variables: TypeVariables) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let TypeVariables { secrets, settings, unreadable } = &variables;
        match secrets.is_empty() && settings.is_empty() && unreadable.is_none() {
            true => all.remove(entity_type),
            false => all.insert(entity_type.to_owned(), Arc::new(variables)),
        };
    }

    /// The values of a type.
    #[must_use]
    pub fn of(&self, entity_type: &str) -> Arc<TypeVariables> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(entity_type).cloned().unwrap_or_default()
    }
}

/// The values as one instance's turns see them.
pub(crate) struct TurnVariables {
    all: VariablesRegistry,
    /// Those that the current turn reads; `None` until it reads one.
    seen: Option<Arc<TypeVariables>>,
}

impl TurnVariables {
    pub(crate) fn new(all: VariablesRegistry) -> Self {
        Self { all, seen: None }
    }

    /// Begins or ends a turn: former secrets do not stay with an idle instance.
    pub(crate) fn clear(&mut self) {
        self.seen = None;
    }

    pub(crate) fn of(&mut self, entity_type: &str) -> &TypeVariables {
        self.seen.get_or_insert_with(|| self.all.of(entity_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(text: &str) -> TypeVariables {
        let settings = [("greeting".to_owned(), text.to_owned())].into();
        TypeVariables { settings, ..TypeVariables::default() }
    }

    #[test]
    fn a_turn_keeps_the_values_that_it_has_read() {
        let all = VariablesRegistry::default();
        let mut turn = TurnVariables::new(all.clone());
        let mut read = |begin: bool| {
            if begin {
                turn.clear();
            }
            turn.of("shop").settings.get("greeting").cloned()
        };
        assert_eq!(read(true), None);
        all.set("shop", greeting("hello"));
        assert_eq!((read(false), read(true)), (None, Some("hello".into())));
        all.set("shop", greeting("good day"));
        all.set("cart", greeting("another type's"));
        assert_eq!((read(false), read(true)), (Some("hello".into()), Some("good day".into())));
    }
}
