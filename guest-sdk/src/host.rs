//! The implementation behind `state`, `journal`, `timers`, `messaging`, `asks`, `http`, `context`, `clock`, `random`,
//! `variables`, `log` and `lifecycle`: the host's imports in the sandbox, and an in-memory store in native builds.

#[cfg(not(target_family = "wasm"))]
pub(crate) mod native;
#[cfg(target_family = "wasm")]
mod sandbox;
#[cfg(target_family = "wasm")]
mod wasi_http;

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{
    AskHandle, CallHandle, append_event, cancel_tell, cancel_timer, delayed_tells, delete,
    delete_entity, emit, expires_at, get, identity, is_remembered, journal_extent, list,
    list_timers, load_snapshot, log, message, now, passivate, passivate_after, random_bytes,
    random_u64, read_events, save_snapshot, secret, set, set_expiry, set_remembered, set_timer,
    setting, start_ask, start_call, subscribe, tell, tell_at, truncate_journal, unsubscribe,
    wait_any_ask, wait_ask, wait_call,
};
#[cfg(target_family = "wasm")]
pub(crate) use sandbox::{
    AskHandle, append_event, cancel_tell, cancel_timer, delayed_tells, delete, delete_entity, emit,
    expires_at, get, identity, is_remembered, journal_extent, list, list_timers, load_snapshot,
    log, message, now, passivate, passivate_after, random_bytes, random_u64, read_events,
    save_snapshot, secret, set, set_expiry, set_remembered, set_timer, setting, start_ask,
    subscribe, tell, tell_at, truncate_journal, unsubscribe, wait_any_ask, wait_ask,
};
#[cfg(target_family = "wasm")]
pub(crate) use wasi_http::{CallHandle, start_call, wait_call};
