//! Bodies in formats other than JSON.
//!
//! A method marked `#[message(raw)]` takes the whole body as its only parameter, and its result is the whole reply:
//!
//! ```
//! use ostraca_sdk::{Body, Error, entity};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Picture {
//!     content_type: String,
//!     bytes: Vec<u8>,
//! }
//!
//! #[entity]
//! impl Picture {
//!     /// Replaces the picture.
//!     #[message(raw)]
//!     pub fn replace(&mut self, body: Body) -> Result<(), Error> {
//!         if !body.content_type.starts_with("image/") {
//!             return Err(Error::new("not-an-image", "send an image"));
//!         }
//!         (self.content_type, self.bytes) = (body.content_type, body.bytes);
//!         Ok(())
//!     }
//!
//!     /// Returns the picture.
//!     #[message(raw)]
//!     pub fn bytes(&self) -> Vec<u8> {
//!         self.bytes.clone()
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::call_body::<Picture>("replace", b"\x89PNG", "image/png").unwrap();
//! # assert_eq!(testing::call_raw::<Picture>("bytes", b"").unwrap(), b"\x89PNG");
//! # assert!(testing::call_body::<Picture>("replace", b"x", "text/plain").is_err());
//! # }
//! ```
//!
//! With the feature `protobuf`, `Protobuf<T>` is such a parameter or result for a message type `T` of the crate `prost`.

/// The body of a message, as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The content type that the sender set.
    pub content_type: String,
}

/// A type that a method marked `#[message(raw)]` can take.
pub trait FromBody: Sized {
    /// Reads it from a body.
    ///
    /// # Errors
    /// Returns why the body does not fit. The caller gets the text with the code `invalid-arguments`.
    fn from_body(body: Body) -> Result<Self, String>;
}

/// A type that a method marked `#[message(raw)]` can return.
pub trait IntoBody {
    /// Returns the bytes of the reply.
    fn into_body(self) -> Vec<u8>;
}

impl FromBody for Body {
    fn from_body(body: Body) -> Result<Self, String> {
        Ok(body)
    }
}

impl FromBody for Vec<u8> {
    fn from_body(body: Body) -> Result<Self, String> {
        Ok(body.bytes)
    }
}

impl FromBody for String {
    fn from_body(body: Body) -> Result<Self, String> {
        String::from_utf8(body.bytes).map_err(|_| "the body is not UTF-8".to_owned())
    }
}

impl IntoBody for Vec<u8> {
    fn into_body(self) -> Vec<u8> {
        self
    }
}

impl IntoBody for String {
    fn into_body(self) -> Vec<u8> {
        self.into_bytes()
    }
}

impl IntoBody for () {
    fn into_body(self) -> Vec<u8> {
        Vec::new()
    }
}

/// A protobuf message as the body or the reply.
#[cfg(feature = "protobuf")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protobuf<T>(pub T);

#[cfg(feature = "protobuf")]
impl<T: prost::Message + Default> FromBody for Protobuf<T> {
    fn from_body(body: Body) -> Result<Self, String> {
        let decoded = T::decode(body.bytes.as_slice());
        decoded.map(Self).map_err(|error| format!("the body does not decode: {error}"))
    }
}

#[cfg(feature = "protobuf")]
impl<T: prost::Message> IntoBody for Protobuf<T> {
    fn into_body(self) -> Vec<u8> {
        self.0.encode_to_vec()
    }
}
