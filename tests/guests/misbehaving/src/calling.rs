//! Calls to HTTP servers.

use std::cell::RefCell;

use ostraca_sdk::http::{self, HttpError, PendingResponse, Response};
use ostraca_sdk::messaging::Entity;

thread_local! {
    /// A pending response left over from an earlier turn.
    static CALLED: RefCell<Option<PendingResponse>> = const { RefCell::new(None) };
}

/// The status and body of a response, or the code of the error.
pub(crate) fn shown(result: Result<Response, HttpError>) -> String {
    match result {
        Ok(response) => format!("{} {}", response.status(), response.text()),
        Err(HttpError::NotSent { code, .. }) => format!("not sent: {code}"),
        Err(HttpError::Unknown { code, .. }) => format!("unknown: {code}"),
        Err(error) => error.to_string(),
    }
}

/// Makes concurrent calls, each with a body of this size. Returns the results.
pub(crate) fn call_all(method: &str, urls: Vec<String>, bytes: usize) -> Vec<String> {
    let start = |url: String| http::Request::new(method, url).body(vec![b'x'; bytes]).start();
    let pending: Vec<_> = urls.into_iter().map(start).collect();
    pending.into_iter().map(|call| shown(call.and_then(PendingResponse::wait))).collect()
}

/// Asks before and after a call. Returns the result of the call.
pub(crate) fn call_between_asks(id: &str, url: String) -> String {
    let before = Entity::new("misbehaving", id).start_ask("work", &());
    let result = shown(http::get(url));
    let after = Entity::new("misbehaving", id).start_ask("work", &());
    let _ = (before.wait_raw(), after.wait_raw());
    result
}

/// Starts a call and keeps it without waiting for it. Returns the result of the call that an earlier turn kept.
pub(crate) fn call_and_keep(url: String) -> Option<String> {
    let call = http::Request::get(url).start().ok();
    let old = CALLED.with(|called| std::mem::replace(&mut *called.borrow_mut(), call));
    old.map(|call| shown(call.wait()))
}
