//! The type of the export `message`.

use wasmtime::component::{ComponentType, Lift, TypedFunc};

/// Why a guest's `message` refuses a message: the WIT's `message-error`.
#[derive(ComponentType, Lift)]
#[component(variant)]
pub(crate) enum GuestError {
    #[component(name = "application")]
    Application(ApplicationError),
    #[component(name = "invalid-arguments")]
    InvalidArguments(String),
    #[component(name = "unknown-method")]
    UnknownMethod,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct ApplicationError {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The result of the export `message`.
pub(crate) type MessageResult = Result<Vec<u8>, GuestError>;
/// The type of the export `message`.
pub(crate) type MessageFunc<'a> = TypedFunc<(&'a str, &'a [u8]), (MessageResult,)>;
