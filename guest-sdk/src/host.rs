//! The implementation behind `state`, `context`, `clock`, `random`, `log` and `lifecycle`: the host's imports in the
//! sandbox, and an in-memory store in native builds.

#[cfg(not(target_family = "wasm"))]
pub(crate) mod native;
#[cfg(target_family = "wasm")]
mod sandbox;

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{
    delete, get, identity, list, log, message, now, passivate, random_bytes, random_u64, set,
};
#[cfg(target_family = "wasm")]
pub(crate) use sandbox::{
    delete, get, identity, list, log, message, now, passivate, random_bytes, random_u64, set,
};
