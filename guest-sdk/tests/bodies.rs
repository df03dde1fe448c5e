//! Bodies that are not JSON, and the empty object.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[cfg(feature = "protobuf")]
use ostraca_sdk::body::Protobuf;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::testing::{self, MessageError, call, call_body, call_raw};
use ostraca_sdk::{Body, Error, entity};
#[cfg(feature = "protobuf")]
use prost::Message as _;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Store {
    limit: Option<u64>,
    bytes: Vec<u8>,
}

#[entity]
impl Store {
    #[message]
    fn limit(&mut self, at: Option<u64>) -> Option<u64> {
        self.limit = at;
        self.limit
    }

    #[message]
    fn need(&self, by: u64) -> u64 {
        by
    }

    #[message(raw)]
    fn put(&mut self, body: Body) -> Result<String, Error> {
        if body.bytes.is_empty() {
            return Err(Error::new("empty", "nothing to store"));
        }
        self.bytes = body.bytes;
        Ok(body.content_type)
    }

    #[message(raw)]
    fn get(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    #[message(raw)]
    fn text(&self, text: String) -> String {
        text
    }

    #[cfg(feature = "protobuf")]
    #[message(raw)]
    fn add(&mut self, sum: Protobuf<Sum>) -> Protobuf<Sum> {
        Protobuf(Sum { a: sum.0.a + sum.0.b, b: 0 })
    }
}

#[cfg(feature = "protobuf")]
#[derive(Clone, PartialEq, prost::Message)]
struct Sum {
    #[prost(uint64, tag = "1")]
    a: u64,
    #[prost(uint64, tag = "2")]
    b: u64,
}

#[test]
fn an_empty_object_omits_an_optional_parameter() {
    assert_eq!(call::<Store>("limit", 3), Ok(json!(3)));
    assert_eq!(call::<Store>("limit", json!({})), Ok(json!(null)));
    assert_eq!(call::<Store>("limit", json!({ "at": 4 })), Ok(json!(4)));
    let refused = call::<Store>("need", json!({}));
    assert!(matches!(refused, Err(MessageError::InvalidArguments(_))), "{refused:?}");
}

#[test]
fn a_raw_method_gets_the_bytes_and_their_content_type() {
    let image = [0, 159, 146, 150];
    assert_eq!(call_body::<Store>("put", &image, "image/x").unwrap(), b"image/x");
    assert_eq!(call_raw::<Store>("get", b"ignored").unwrap(), image);
    let refused = call_raw::<Store>("put", b"").unwrap_err();
    assert!(matches!(refused, MessageError::Application { code, .. } if code == "empty"));
    assert_eq!(call_raw::<Store>("get", b"").unwrap(), image);
    assert_eq!(call_raw::<Store>("text", b"plain").unwrap(), b"plain");
    let refused = call_raw::<Store>("text", &image).unwrap_err();
    assert_eq!(refused, MessageError::InvalidArguments("text(body): the body is not UTF-8".into()));
}

#[test]
fn a_raw_method_has_no_schema() {
    let described = testing::schemas::<Store>();
    let names: Vec<_> = described.iter().map(|it| it.method.as_str()).collect();
    assert_eq!(names, ["limit", "need"]);
}

#[cfg(feature = "protobuf")]
#[test]
fn a_protobuf_message_is_decoded_and_encoded() {
    let sum = Sum { a: 2, b: 3 }.encode_to_vec();
    let reply = call_body::<Store>("add", &sum, "application/protobuf").unwrap();
    assert_eq!(Sum::decode(&*reply).unwrap(), Sum { a: 5, b: 0 });
    let refused = call_raw::<Store>("add", &[0xff]).unwrap_err();
    assert!(matches!(refused, MessageError::InvalidArguments(why) if why.contains("decode")));
}
