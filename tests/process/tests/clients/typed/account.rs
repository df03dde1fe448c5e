//! Typed calls of the entity type account, revision 1. Written by `ostraca client`.
//!
//! Needs the crates `ostraca-client`, `serde` with its feature `derive`, and `serde_json`.

use ostraca_client::{CallOptions, Entity, InvokeError, MessageKind, Session};
use serde::Serialize;
use serde_json::Value;

/// An entity of the type account.
#[derive(Clone)]
pub struct AccountEntity {
    /// The entity, for calls by name and for channels.
    pub entity: Entity,
    session: Session,
}

impl AccountEntity {
    /// The entity with this id, called in this session.
    #[must_use]
    pub fn new(session: &Session, id: &str) -> Self {
        Self { entity: Entity::new("account", id), session: session.clone() }
    }

    /// Deposits an amount in cents and returns the new balance.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn deposit(&self, cents: i64, options: &CallOptions) -> Result<i64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            cents: i64,
        }
        let method = (MessageKind::Command, "deposit");
        self.session.invoke_json(&self.entity, method, &Arguments { cents }, options).await
    }

    /// Withdraws an amount in cents and returns the new balance.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn withdraw(&self, cents: i64, options: &CallOptions) -> Result<i64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            cents: i64,
        }
        let method = (MessageKind::Command, "withdraw");
        self.session.invoke_json(&self.entity, method, &Arguments { cents }, options).await
    }

    /// Returns the balance in cents.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn balance(&self, options: &CallOptions) -> Result<i64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {}
        let method = (MessageKind::Query, "balance");
        self.session.invoke_json(&self.entity, method, &Arguments {}, options).await
    }

    /// Sets how many cents the balance may go below zero.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn overdraft(&self, cents: i64, options: &CallOptions) -> Result<(), InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            cents: i64,
        }
        let method = (MessageKind::Command, "overdraft");
        self.session.invoke_json(&self.entity, method, &Arguments { cents }, options).await
    }

    /// Returns the last entries, one page at a time, oldest first.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn history(&self, limit: Option<u32>, cursor: Option<String>, options: &CallOptions) -> Result<Value, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            #[serde(default, skip_serializing_if = "Option::is_none")]
            limit: Option<u32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            cursor: Option<String>,
        }
        let method = (MessageKind::Query, "history");
        self.session.invoke_json(&self.entity, method, &Arguments { limit, cursor }, options).await
    }
}
