//! The namespace that a message names.

use ostraca_core::ids::Entity;
use ostraca_core::names;

/// The namespace of a message to an entity: none if the name of its type contains it.
pub(crate) fn namespace_of(own: &str, entity: &Entity) -> String {
    if entity.entity_type.contains(names::SEPARATOR) { String::new() } else { own.to_owned() }
}
