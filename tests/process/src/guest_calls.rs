//! Calls to the guest `misbehaving`, and waits for what its entities do on their own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{CallOptions, Client, Entity, MessageKind};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// A generous bound on each wait.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Calls a method of an entity, in a new session.
///
/// # Errors
///
/// If the call fails, or its reply is not JSON.
pub async fn call(
    client: &Client,
    kind: MessageKind,
    id: &str,
    method: &str,
    body: Value,
) -> Result<Value> {
    let options = CallOptions { kind, timeout: LIMIT, ..Default::default() };
    let entity = Entity::new("misbehaving", id);
    let reply = client.session().send(&entity, method, body.to_string(), &options).await;
    let reply = reply.with_context(|| format!("{method} of {id}"))?;
    serde_json::from_slice(&reply.body).context("a JSON reply")
}

/// Polls ten times per second until something is found.
///
/// # Errors
///
/// If it is not found within [`LIMIT`], or polling fails.
pub async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = found().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}
