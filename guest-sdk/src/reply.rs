//! Turns a method's return value into a reply.
//!
//! `Result` itself implements `Serialize`, so a trait bound alone cannot tell a `Result` from a plain value. The
//! macro emits `(&value).ostraca_kind().encode(value)`. Method lookup prefers [`ResultKind`], which needs one
//! borrow fewer, for every `Result` under any alias, and falls back to [`ValueKind`]. The bounds are on the methods of
//! the tags, so that an unmet bound is a compile error and does not select the other tag.

use serde::Serialize;

use crate::body::IntoBody;
use crate::error::ApplicationError;
use crate::raw::MessageError;

/// Selected for a plain value.
#[derive(Debug)]
pub struct ValueTag;

/// Selected for a `Result`.
#[derive(Debug)]
pub struct ResultTag;

/// Selects `ValueTag` for any value; see the module.
pub trait ValueKind {
    /// Returns the tag.
    fn ostraca_kind(&self) -> ValueTag {
        ValueTag
    }
}

impl<T> ValueKind for &T {}

/// Selects `ResultTag` for every `Result`; see the module.
pub trait ResultKind {
    /// Returns the tag.
    fn ostraca_kind(&self) -> ResultTag {
        ResultTag
    }
}

impl<T, E> ResultKind for Result<T, E> {}

impl ValueTag {
    /// Encodes the value as JSON.
    pub fn encode<T: Serialize>(self, value: T) -> Result<Vec<u8>, MessageError> {
        match serde_json::to_vec(&value) {
            Ok(body) => Ok(body),
            Err(error) => panic!("result-does-not-encode: {error}"),
        }
    }
}

impl ValueTag {
    /// Returns the value's bytes.
    pub fn encode_raw<T: IntoBody>(self, value: T) -> Result<Vec<u8>, MessageError> {
        Ok(value.into_body())
    }
}

impl ResultTag {
    /// Returns the `Ok` value's bytes, or converts the application error.
    pub fn encode_raw<T: IntoBody, E: ApplicationError>(
        self,
        value: Result<T, E>,
    ) -> Result<Vec<u8>, MessageError> {
        value.map(IntoBody::into_body).map_err(|error| refusal(&error))
    }

    /// Encodes the `Ok` value as JSON, or converts the application error.
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

/// A type that a start hook may return.
pub trait IntoStartResult {
    /// Converts it into the result of [`Handler::start`](crate::raw::Handler::start).
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
