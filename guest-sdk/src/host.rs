//! The implementation behind `state`, `timers`, `messaging`, `context`, `clock`, `random`, `log` and `lifecycle`: the
//! host's imports in the sandbox, and an in-memory store in native builds.

#[cfg(not(target_family = "wasm"))]
pub(crate) mod native;
#[cfg(target_family = "wasm")]
mod sandbox;

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{
    cancel_tell, cancel_timer, delayed_tells, delete, get, identity, list, list_timers, log,
    message, now, passivate, random_bytes, random_u64, set, set_timer, tell, tell_at,
};
#[cfg(target_family = "wasm")]
pub(crate) use sandbox::{
    cancel_tell, cancel_timer, delayed_tells, delete, get, identity, list, list_timers, log,
    message, now, passivate, random_bytes, random_u64, set, set_timer, tell, tell_at,
};
