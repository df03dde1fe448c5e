//! Asks to other entities.

use std::cell::RefCell;
use std::time::Duration;

use ostraca_sdk::asks::{self, AskError, PendingAsk};
use ostraca_sdk::messaging::Entity;
use ostraca_sdk::{context, serde_json};

thread_local! {
    /// A pending ask left over from an earlier turn.
    static KEPT: RefCell<Option<PendingAsk>> = const { RefCell::new(None) };
}

/// Sends concurrent asks, and returns their outcomes.
pub(crate) fn ask_all(
    of: &str,
    id: &str,
    method: &str,
    body: &str,
    count: u64,
    ms: u64,
) -> Vec<String> {
    let start = |_| {
        let timeout = (ms > 0).then(|| Duration::from_millis(ms));
        Entity::new(of, id).start_ask_raw(method, body.as_bytes(), "", timeout)
    };
    let pending: Vec<_> = (0..count).map(start).collect();
    let outcome = |ask: &PendingAsk| match ask.wait_raw() {
        Ok(body) => format!("ok {}", String::from_utf8_lossy(&body)),
        Err(AskError::Refused { code, message }) => format!("refused {code}: {message}"),
        Err(AskError::NotRun { code, message }) => format!("not-run {code}: {message}"),
        Err(error) => format!("unknown: {error}"),
    };
    pending.iter().map(outcome).collect()
}

/// Asks the first entity to `ask_along` with the others. Returns the outcomes.
pub(crate) fn ask_next(mut ids: Vec<String>, key: String) -> Vec<String> {
    if ids.is_empty() {
        return Vec::new();
    }
    let first = Entity::new("misbehaving", ids.remove(0));
    let arguments = serde_json::json!({ "ids": ids, "key": key });
    first.ask("ask_along", &arguments).unwrap_or_else(|error| vec![error.to_string()])
}

/// Asks an entity to ask this one for a key. Returns the outcomes.
pub(crate) fn ask_back(id: String, key: &str) -> Vec<String> {
    let arguments = serde_json::json!({
        "of": "misbehaving", "id": context::identity().id, "method": "read",
        "body": serde_json::json!(key).to_string(), "count": 1, "ms": 0,
    });
    let asked = Entity::new("misbehaving", id).ask("ask", &arguments);
    asked.unwrap_or_else(|error| vec![error.to_string()])
}

/// Asks these entities to `work`, and returns their ids in the order in which they answer.
pub(crate) fn ask_any(ids: Vec<String>) -> Vec<String> {
    let start = |id: String| {
        let pending = Entity::new("misbehaving", id.clone()).start_ask("work", &());
        (id, pending)
    };
    let mut pending: Vec<_> = ids.into_iter().map(start).collect();
    let mut answered = Vec::new();
    while !pending.is_empty() {
        let at = asks::wait_any(pending.iter().map(|(_, ask)| ask));
        let (id, ask) = pending.remove(at);
        answered.push(match ask.wait::<String>() {
            Ok(text) => text,
            Err(error) => format!("{id}: {error}"),
        });
    }
    answered
}

/// Keeps a pending ask, and waits for the one kept by an earlier turn.
pub(crate) fn ask_and_keep(id: String) {
    let ask = Entity::new("misbehaving", id).start_ask("work", &());
    KEPT.with(|kept| {
        if let Some(old) = kept.borrow_mut().replace(ask) {
            let _ = old.wait_raw();
        }
    });
}
