//! Administrative requests and responses as JSON, as protobuf maps its messages to it (ProtoJSON).

use std::sync::LazyLock;

use ostraca_codes::codes;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, SerializeOptions,
    Value,
};

use crate::error::problem;
use crate::proto::{AdminRequest, AdminResponse, Problem};

struct Descriptors {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

/// `None` never happens: the descriptors are those of the compiled protocol.
static DESCRIPTORS: LazyLock<Option<Descriptors>> = LazyLock::new(|| {
    let bytes: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    let pool = DescriptorPool::decode(bytes).ok()?;
    let named = |name: &str| pool.get_message_by_name(&format!("ostraca.v1.{name}"));
    Some(Descriptors { request: named("AdminRequest")?, response: named("AdminResponse")? })
});

/// A request: its name as in the protocol, but with dashes, and its message in JSON.
///
/// # Errors
///
/// `unknown-request` or `invalid-request`.
pub fn admin_request(name: &str, json: &[u8]) -> Result<AdminRequest, Problem> {
    let unknown = || {
        let text = format!("there is no request `{name}`");
        problem(codes::UNKNOWN_REQUEST, text)
    };
    let invalid = |why: String| {
        let mut invalid = problem(codes::INVALID_REQUEST, format!("the request is invalid: {why}"));
        invalid.help =
            "send the message of the request in JSON, or `{}`; `docs/protocol.md` names its fields"
                .into();
        invalid
    };
    let descriptor = &DESCRIPTORS.as_ref().ok_or_else(unknown)?.request;
    let field = descriptor.get_field_by_name(&name.replace('-', "_")).ok_or_else(unknown)?;
    let Kind::Message(kind) = field.kind() else { return Err(unknown()) };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new();
    let message = DynamicMessage::deserialize_with_options(kind, &mut reader, &options)
        .and_then(|message| reader.end().map(|()| message))
        .map_err(|error| invalid(error.to_string()))?;
    let mut request = DynamicMessage::new(descriptor.clone());
    request.set_field(&field, Value::Message(message));
    request.transcode_to().map_err(|error| invalid(error.to_string()))
}

/// A frame of a response, in one line.
#[must_use]
pub fn admin_response(frame: &AdminResponse) -> String {
    let Some(descriptors) = &*DESCRIPTORS else { return String::new() };
    let descriptor = descriptors.response.clone();
    // A message of this type can always be read as one, and written.
    let Ok(dynamic) = DynamicMessage::decode(descriptor, frame.encode_to_vec().as_slice()) else {
        return String::new();
    };
    let mut text = Vec::new();
    let mut writer = serde_json::Serializer::new(&mut text);
    match dynamic.serialize_with_options(&mut writer, &SerializeOptions::new()) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::admin_request::Request;
    use crate::proto::admin_response::Response;
    use crate::proto::{DrainRequest, Event, Events, ShardInfo, ShardState, Shards};

    #[test]
    fn a_request_in_json_is_the_one_of_the_protocol() {
        let request =
            admin_request("drain", br#"{"node": "n1", "undo": true}"#).expect("a request");
        let drain = DrainRequest { node: "n1".into(), undo: true };
        assert_eq!(request.request, Some(Request::Drain(drain)));
        let request = admin_request("dead-letters", br#"{"limit": 7}"#).expect("a request");
        assert!(matches!(request.request, Some(Request::DeadLetters(it)) if it.limit == 7));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (name, json, code) in [
            ("reboot", "{}", codes::UNKNOWN_REQUEST),
            ("", "{}", codes::UNKNOWN_REQUEST),
            ("drain", "", codes::INVALID_REQUEST),
            ("drain", "[]", codes::INVALID_REQUEST),
            ("drain", "{\"node\": 1}", codes::INVALID_REQUEST),
            ("drain", "{\"nodes\": \"n1\"}", codes::INVALID_REQUEST),
            ("drain", "{} {}", codes::INVALID_REQUEST),
            ("shards", "{\"limit\": -1}", codes::INVALID_REQUEST),
            ("shards", "{\"limit\": 1e99}", codes::INVALID_REQUEST),
        ] {
            let refused = admin_request(name, json.as_bytes()).expect_err(name);
            assert_eq!(refused.code, code.as_str(), "{name} {json}");
        }
        let deep = format!("{{\"node\": {}", "[".repeat(100_000));
        assert!(admin_request("drain", deep.as_bytes()).is_err());
    }

    #[test]
    fn a_response_is_one_line_of_json() {
        let shard =
            ShardInfo { shard: 1, state: ShardState::Moving.into(), ..ShardInfo::default() };
        let response = Some(Response::Shards(Shards { shards: vec![shard] }));
        let text = admin_response(&AdminResponse { more: true, response });
        let wanted =
            r#"{"more":true,"shards":{"shards":[{"shard":1,"state":"SHARD_STATE_MOVING"}]}}"#;
        assert_eq!(text, wanted);
        let event = Event { message: "a\nb\u{2028}".into(), unix_ms: 5, ..Event::default() };
        let events = Events { events: vec![event], ..Events::default() };
        let response = Some(Response::Events(events));
        let text = admin_response(&AdminResponse { more: false, response });
        assert!(text.lines().count() == 1 && text.contains(r#""unixMs":"5""#), "{text}");
    }
}
