//! How what a method returns becomes a reply.
//!
//! `Result` is itself `Serialize`, so a bound alone cannot tell a `Result` from a plain value. The macro writes
//! `(&value).ostraca_kind().encode(value)`: method lookup prefers [`ResultKind`], which needs one borrow less, for every
//! `Result` under whatever alias, and falls back to [`ValueKind`]. The tags' methods carry the bounds, so that a missing
//! one is a compile error and not another choice.

use serde::Serialize;

use crate::error::ApplicationError;
use crate::raw::MessageError;

/// Chosen for a plain value.
#[derive(Debug)]
pub struct ValueTag;

/// Chosen for a `Result`.
#[derive(Debug)]
pub struct ResultTag;

/// See the module.
pub trait ValueKind {
    /// The tag.
    fn ostraca_kind(&self) -> ValueTag {
        ValueTag
    }
}

impl<T> ValueKind for &T {}

/// See the module.
pub trait ResultKind {
    /// The tag.
    fn ostraca_kind(&self) -> ResultTag {
        ResultTag
    }
}

impl<T, E> ResultKind for Result<T, E> {}

impl ValueTag {
    /// The value as JSON.
    pub fn encode<T: Serialize>(self, value: T) -> Result<Vec<u8>, MessageError> {
        match serde_json::to_vec(&value) {
            Ok(body) => Ok(body),
            Err(error) => panic!("result-does-not-encode: {error}"),
        }
    }
}

impl ResultTag {
    /// The `Ok` as JSON, or the application error.
    pub fn encode<T: Serialize, E: ApplicationError>(
        self,
        value: Result<T, E>,
    ) -> Result<Vec<u8>, MessageError> {
        match value {
            Ok(value) => ValueTag.encode(value),
            Err(error) => Err(refusal(&error)),
        }
    }
}

/// What a start hook may return.
pub trait IntoStartResult {
    /// The sentence for people, if the start failed.
    fn into_start_result(self) -> Result<(), String>;
}

impl IntoStartResult for () {
    fn into_start_result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: ApplicationError> IntoStartResult for Result<(), E> {
    fn into_start_result(self) -> Result<(), String> {
        self.map_err(|error| format!("{}: {}", error.code(), error.message()))
    }
}

fn refusal(error: &impl ApplicationError) -> MessageError {
    let code = error.code().into_owned();
    if code.is_empty() || code.len() > 128 {
        panic!("invalid-error-code: the code of an application error must be 1 to 128 bytes");
    }
    MessageError::Application { code, message: error.message() }
}
