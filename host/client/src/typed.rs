//! Calls whose arguments and results the compiler checks, from the definition of the entity.
//!
//! `#[entity(type = "counter")]` of the guest SDK generates the reference `Counter::at(id)`. A program that depends on
//! the entity's crate sends what that returns: `session.invoke(&Counter::at("alice").add(5), &options)`.

use ostraca_sdk::call::TypedCall;
use ostraca_wire::proto::MessageKind;
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
    /// The method ran, but its result is not of the type that this program was built with.
    #[error("cannot decode the result of {method} (message {id}): {reason}")]
    InvalidResult {
        /// The method.
        method: &'static str,
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
            method: message.method(),
            id: reply.id,
            reason,
        })
    }
}
