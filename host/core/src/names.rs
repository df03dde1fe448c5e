//! The names of namespaces and of types in them.
//!
//! Confusing at first: inside the cluster, a type has one name that contains its namespace, `NAMESPACE:TYPE`, or only
//! `TYPE` in the namespace `default`. Rows, routes, shards, records and statistics use this name, so that nothing
//! which looks up a type or an entity can mix up two namespaces. Neither part can contain a `:`. What people and
//! guests write is the local name; the edges of a node convert.

use std::borrow::Cow;
use std::sync::Arc;

use crate::pools;

/// The namespace that every cluster has.
pub const DEFAULT_NAMESPACE: &str = "default";
/// What separates a namespace from a type.
pub const SEPARATOR: char = ':';

/// The name of a type in a namespace. An empty namespace is `default`.
#[must_use]
pub fn qualified<'a>(namespace: &str, local: &'a str) -> Cow<'a, str> {
    match namespace {
        "" | DEFAULT_NAMESPACE => Cow::Borrowed(local),
        _ => Cow::Owned(format!("{namespace}{SEPARATOR}{local}")),
    }
}

/// The namespace and the local name of a type.
#[must_use]
pub fn split(name: &str) -> (&str, &str) {
    name.split_once(SEPARATOR).unwrap_or((DEFAULT_NAMESPACE, name))
}

/// The namespace of a type.
#[must_use]
pub fn namespace(name: &str) -> &str {
    split(name).0
}

/// The name of a type that a guest of the type `own` calls `local`: it is in the guest's namespace.
#[must_use]
pub fn beside(own: &str, local: Arc<str>) -> Arc<str> {
    match own.split_once(SEPARATOR) {
        None => local,
        Some((namespace, _)) => format!("{namespace}{SEPARATOR}{local}").into(),
    }
}

/// A type's local name, as its guests write it.
#[must_use]
pub fn local(name: Arc<str>) -> Arc<str> {
    match name.split_once(SEPARATOR) {
        None => name,
        Some((_, local)) => local.into(),
    }
}

/// Checks the name of a namespace.
///
/// # Errors
/// What a name may be.
pub fn check_namespace(name: &str) -> Result<(), String> {
    pools::check_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_types_name_says_its_namespace() {
        for (namespace, local, name) in [
            ("", "counter", "counter"),
            ("default", "counter", "counter"),
            ("acme", "counter", "acme:counter"),
        ] {
            assert_eq!(qualified(namespace, local), name);
            let of = if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace };
            assert_eq!(split(name), (of, local));
            assert_eq!(&*super::local(name.into()), local);
        }
    }

    #[test]
    fn guests_name_types_of_their_own_namespace() {
        assert_eq!(&*beside("counter", "cart".into()), "cart");
        assert_eq!(&*beside("acme:counter", "cart".into()), "acme:cart");
        // Even a name that a manifest cannot grant leads nowhere else.
        assert_eq!(split(&beside("acme:counter", "other:cart".into())).0, "acme");
    }
}
