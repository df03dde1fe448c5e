//! Typed calls of the entity type cart, revision 1. Written by `ostraca client`.
//!
//! Needs the crates `ostraca-client`, `serde` with its feature `derive`, and `serde_json`.

use std::collections::BTreeMap;

use ostraca_client::{CallOptions, Entity, InvokeError, MessageKind, Session};
use serde::{Deserialize, Serialize};

/// The state of one cart, built from its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cart {
    /// What is in the cart, by item.
    pub lines: BTreeMap<String, Line>,
    /// The URL of the shop.
    pub shop: Option<String>,
    /// `status`.
    pub status: Status,
}

/// One kind of item in the cart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The price of one when it was added last.
    pub cents: u64,
    /// How many.
    pub quantity: u32,
}

/// How far the cart is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Status {
    /// `open`.
    #[serde(rename = "open")]
    Open,
    /// `ordering`.
    #[serde(rename = "ordering")]
    Ordering,
    /// `ordered`.
    #[serde(rename = "ordered")]
    Ordered(StatusOrderedOrdered),
}

/// `StatusOrderedOrdered`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusOrderedOrdered {
    /// The shop's number of the order.
    pub order: String,
}

/// The shop has confirmed the order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusOrdered {
    /// `ordered`.
    pub ordered: StatusOrderedOrdered,
}

/// An entity of the type cart.
#[derive(Clone)]
pub struct CartEntity {
    /// The entity, for calls by name and for channels.
    pub entity: Entity,
    session: Session,
}

impl CartEntity {
    /// The entity with this id, called in this session.
    #[must_use]
    pub fn new(session: &Session, id: &str) -> Self {
        Self { entity: Entity::new("cart", id), session: session.clone() }
    }

    /// Opens the cart for a shop, whose URL the manifest must grant.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn open(&self, shop: String, options: &CallOptions) -> Result<(), InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            shop: String,
        }
        let method = (MessageKind::Command, "open");
        self.session.invoke_json(&self.entity, method, &Arguments { shop }, options).await
    }

    /// Adds items at the shop's current price. Returns the total in cents.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn add(&self, item: String, quantity: u32, options: &CallOptions) -> Result<u64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            item: String,
            quantity: u32,
        }
        let method = (MessageKind::Command, "add");
        self.session.invoke_json(&self.entity, method, &Arguments { item, quantity }, options).await
    }

    /// Removes all items of a kind. Returns the total in cents.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn remove(&self, item: String, options: &CallOptions) -> Result<u64, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {
            item: String,
        }
        let method = (MessageKind::Command, "remove");
        self.session.invoke_json(&self.entity, method, &Arguments { item }, options).await
    }

    /// Orders what is in the cart. The order is sent right after this turn.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn checkout(&self, options: &CallOptions) -> Result<(), InvokeError> {
        #[derive(Serialize)]
        struct Arguments {}
        let method = (MessageKind::Command, "checkout");
        self.session.invoke_json(&self.entity, method, &Arguments {}, options).await
    }

    /// Returns what is in the cart, and how far it is.
    ///
    /// # Errors
    /// [`InvokeError`].
    pub async fn contents(&self, options: &CallOptions) -> Result<Cart, InvokeError> {
        #[derive(Serialize)]
        struct Arguments {}
        let method = (MessageKind::Query, "contents");
        self.session.invoke_json(&self.entity, method, &Arguments {}, options).await
    }
}
