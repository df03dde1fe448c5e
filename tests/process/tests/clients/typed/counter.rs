//! Typed calls of the entity type counter, revision 1. Written by `ostraca client`.
//!
//! Needs the crates `ostraca-client`, `serde` with its feature `derive`, and `serde_json`.

use ostraca_client::{CallOptions, Entity, InvokeError, MessageKind, Session};
use serde::Serialize;

/// An entity of the type counter.
#[derive(Clone)]
pub struct CounterEntity {
    /// The entity, for calls by name and for channels.
    pub entity: Entity,
    session: Session,
}

impl CounterEntity {
    /// The entity with this id, called in this session.
    #[must_use]
    pub fn new(session: &Session, id: &str) -> Self {
        Self { entity: Entity::new("counter", id), session: session.clone() }
    }

    /// Adds to the counter and returns the new value.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn add(&self, by: u64, options: &CallOptions) -> Result<u64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            by: u64,
        }
        let method = (MessageKind::Command, "add");
        self.session.invoke_json(&self.entity, method, &Arguments { by }, options).await
    }

    /// Returns the current value.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn get(&self, options: &CallOptions) -> Result<u64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {}
        let method = (MessageKind::Query, "get");
        self.session.invoke_json(&self.entity, method, &Arguments {}, options).await
    }

    /// Resets the counter to zero and returns the previous value.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn reset(&self, options: &CallOptions) -> Result<u64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {}
        let method = (MessageKind::Command, "reset");
        self.session.invoke_json(&self.entity, method, &Arguments {}, options).await
    }

    /// Sets the highest value that the counter may reach; `null` removes the limit.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn limit(&self, at: Option<u64>, options: &CallOptions) -> Result<(), InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            #[serde(default, skip_serializing_if = "Option::is_none")]
            at: Option<u64>,
        }
        let method = (MessageKind::Command, "limit");
        self.session.invoke_json(&self.entity, method, &Arguments { at }, options).await
    }
}
