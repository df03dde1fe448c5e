//! Calls whose arguments and results are values of Rust.
//!
//! With the feature `sdk`, their types come from the definition of the entity: `#[entity(type = "counter")]` of the guest
//! SDK generates the reference `Counter::at(id)`, and a program that depends on the entity's crate sends what that
//! returns: `session.invoke(&Counter::at("alice").add(5), &options)`. Other programs have types that `ostraca client`
//! writes from the schemas of a deployed type; these use [`Session::invoke_json`].

#[cfg(feature = "sdk")]
use ostraca_sdk::call::TypedCall;
use ostraca_wire::proto::MessageKind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Entity;
use crate::call::{CallError, MessageId};
use crate::session::{CallOptions, Session};

/// Why a typed call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The arguments cannot be written as JSON: nothing was sent.
    #[error("cannot encode the arguments of {method}: {reason}")]
    InvalidArguments {
        /// The method.
        method: Box<str>,
        /// Why they have no JSON.
        reason: String,
    },
    /// The method ran, but its result is not of the type that this program was built with.
    #[error("cannot decode the result of {method} (message {id}): {reason}")]
    InvalidResult {
        /// The method.
        method: Box<str>,
        /// The message.
        id: MessageId,
        /// Why it does not decode.
        reason: String,
    },
}

impl Session {
    /// Sends a typed call and waits for its result. Its kind is the method's: `options.kind` is ignored.
    ///
    /// # Errors
    ///
    /// [`InvokeError`].
    #[cfg(feature = "sdk")]
    pub async fn invoke<C>(&self, call: &C, options: &CallOptions) -> Result<C::Output, InvokeError>
    where
        C: TypedCall,
        C::Output: DeserializeOwned,
    {
        let kind = if C::IS_COMMAND { MessageKind::Command } else { MessageKind::Query };
        let options = CallOptions { kind, ..options.clone() };
        let message = call.message();
        let entity = Entity::new(message.entity().entity_type(), message.entity().id());
        let reply = self.send(&entity, message.method(), message.body().to_vec(), &options).await?;
        call.decode(&reply.body).map_err(|reason| InvokeError::InvalidResult {
            method: message.method().into(),
            id: reply.id,
            reason,
        })
    }

    /// Calls a method with arguments and a result in JSON, and waits for the result. The method must be of this kind:
    /// `options.kind` is ignored. A method without a result has the result `()`.
    ///
    /// # Errors
    ///
    /// [`InvokeError`].
    pub async fn invoke_json<T: DeserializeOwned>(
        &self,
        entity: &Entity,
        (kind, method): (MessageKind, &str),
        arguments: &(impl Serialize + Sync),
        options: &CallOptions,
    ) -> Result<T, InvokeError> {
        let body = serde_json::to_vec(arguments).map_err(|error| {
            InvokeError::InvalidArguments { method: method.into(), reason: error.to_string() }
        })?;
        let options = CallOptions { kind, ..options.clone() };
        let reply = self.send(entity, method, body, &options).await?;
        let body = if reply.body.is_empty() { b"null" } else { &reply.body[..] };
        serde_json::from_slice(body).map_err(|error| InvokeError::InvalidResult {
            method: method.into(),
            id: reply.id,
            reason: error.to_string(),
        })
    }
}
