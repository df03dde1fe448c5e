//! Validates a message before it reaches an entity.

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use prost::Message;

use crate::error::{decode_error_message, problem};
use crate::flags::KEYED;
use crate::limits::Limits;
use crate::proto::{Envelope, ForwardedMessage, MessageKind, Problem, SendingEntity};

/// Maximum length in bytes of a type, a method or a namespace.
const NAME: usize = 255;
/// Maximum length of an entity id in bytes.
const ID: usize = 512;

/// Maximum length in bytes of a principal: a kind and a name.
const PRINCIPAL: usize = 512;
/// Length in bytes of a session id as entities know it.
const SESSION: usize = 16;
/// Maximum number of entities that wait for one ask, and thus the maximum of `entities.max-ask-depth`.
const MAX_ASK_DEPTH: usize = 64;
/// Maximum number of times that nodes may forward a message.
const HOPS: u32 = 1;

/// Why a frame is not a valid message.
#[derive(Clone, Debug)]
pub enum InvalidFrame {
    /// The message can be identified, so only this message is refused.
    Message {
        /// The tag of its reply: its sequence, or a node's tag.
        tag: u64,
        /// Its sequence in its session.
        sequence: u64,
        /// Why it is refused.
        problem: Box<Problem>,
    },
    /// The message cannot be identified: the stream is reset.
    Stream,
}

/// The part of an undecodable envelope that is needed to send a refusal. Decoding stops at whatever fails even here,
/// such as an unknown field that is nested too deeply.
#[derive(Clone, PartialEq, Message)]
struct PartialEnvelope {
    #[prost(uint64, tag = "5")]
    sequence: u64,
}

/// The part of an undecodable forwarded message that is needed to send a refusal.
#[derive(Clone, PartialEq, Message)]
struct PartialForwardedMessage {
    #[prost(uint64, tag = "1")]
    tag: u64,
    #[prost(message, optional, tag = "2")]
    envelope: Option<PartialEnvelope>,
}

/// Decodes the envelope in a client's frame, and clears the fields that nodes fill in: the principal, which comes from
/// the certificate, the origin and the sending entity.
///
/// # Errors
///
/// Why it is invalid.
pub fn decode_client_message(
    frame: &Bytes,
    session: &[u8; SESSION],
    limits: &Limits,
) -> Result<Envelope, InvalidFrame> {
    let alone = |sequence, problem| Err(refused(sequence, sequence, problem));
    let mut envelope = match Envelope::decode(frame.clone()) {
        Ok(envelope) => envelope,
        Err(error) => {
            let sequence = decode_partial::<PartialEnvelope>(frame).sequence;
            if sequence == 0 {
                return Err(InvalidFrame::Stream);
            }
            return alone(sequence, problem(codes::INVALID_MESSAGE, decode_error_message(&error)));
        }
    };
    if envelope.sequence == 0 {
        return Err(InvalidFrame::Stream);
    }
    if !envelope.session.is_empty() && envelope.session[..] != session[..] {
        let text = "message session differs from the stream's";
        return alone(envelope.sequence, problem(codes::INVALID_MESSAGE, text));
    }
    if let Some(problem) = validate_envelope(&envelope, limits.max_message) {
        return alone(envelope.sequence, problem);
    }
    envelope.principal.clear();
    envelope.origin.clear();
    envelope.sender = None;
    envelope.ask_chain.clear();
    envelope.asked_ms = 0;
    envelope.created_skew_ms = 0;
    Ok(envelope)
}

/// Why a message that this process has made for a client is invalid; `None` if it is valid.
#[must_use]
pub fn check_client_message(envelope: &Envelope, limits: &Limits) -> Option<Problem> {
    if envelope.sequence == 0 {
        return Some(problem(codes::INVALID_MESSAGE, "the sequence is missing"));
    }
    validate_envelope(envelope, limits.max_message)
}

/// Decodes a forwarded message to its tag and its envelope.
///
/// # Errors
///
/// Why it is invalid.
pub fn decode_forwarded_message(
    frame: &Bytes,
    max_message: u32,
) -> Result<(u64, Envelope), InvalidFrame> {
    let alone = |tag, sequence, problem| Err(refused(tag, sequence, problem));
    let bad = |text: String| problem(codes::INVALID_MESSAGE, text);
    let forward = match ForwardedMessage::decode(frame.clone()) {
        Ok(forward) => forward,
        Err(error) => {
            let found = decode_partial::<PartialForwardedMessage>(frame);
            if found.tag == 0 {
                return Err(InvalidFrame::Stream);
            }
            let sequence = found.envelope.unwrap_or_default().sequence;
            return alone(found.tag, sequence, bad(decode_error_message(&error)));
        }
    };
    let (tag, Some(envelope)) = (forward.tag, forward.envelope) else {
        return Err(InvalidFrame::Stream);
    };
    if tag == 0 || envelope.sequence == 0 {
        return Err(InvalidFrame::Stream);
    }
    let wrong = if envelope.session.len() != SESSION {
        Some(bad(format!("session is {} bytes, expected {SESSION}", envelope.session.len())))
    } else if envelope.principal.is_empty() || envelope.principal.len() > PRINCIPAL {
        let size = envelope.principal.len();
        Some(bad(format!("principal is {size} bytes, must be 1 to {PRINCIPAL}")))
    } else if let Some(text) = envelope.sender.as_ref().and_then(invalid_sender) {
        Some(bad(text))
    } else if let Some(text) = invalid_chain(&envelope.ask_chain) {
        Some(bad(text))
    } else if envelope.hops > HOPS {
        Some(bad(format!("forwarded {} times, limit is {HOPS}", envelope.hops)))
    } else {
        validate_envelope(&envelope, max_message)
    };
    match wrong {
        Some(problem) => alone(tag, envelope.sequence, problem),
        None => Ok((tag, envelope)),
    }
}

fn invalid_sender(sender: &SendingEntity) -> Option<String> {
    let (of_type, of_id) = (sender.r#type.len(), sender.id.len());
    let fits = (1..=NAME).contains(&of_type) && (1..=ID).contains(&of_id);
    (!fits).then(|| {
        format!("sender has a type of {of_type} bytes and an id of {of_id}, must be 1 to {NAME} and 1 to {ID}")
    })
}

fn invalid_chain(chain: &[String]) -> Option<String> {
    if chain.len() > MAX_ASK_DEPTH {
        return Some(format!(
            "{} entities wait for the ask, limit is {MAX_ASK_DEPTH}",
            chain.len()
        ));
    }
    let is_entity = |text: &&String| {
        text.split_once('/').is_some_and(|(of_type, id)| {
            (1..=NAME).contains(&of_type.len()) && (1..=ID).contains(&id.len())
        })
    };
    let wrong = chain.iter().find(|text| !is_entity(text))?;
    Some(format!("ask_chain has {:?}, must be TYPE/ID", &wrong[..wrong.floor_char_boundary(100)]))
}

fn decode_partial<M: Message + Default>(frame: &Bytes) -> M {
    let mut found = M::default();
    // Keep what was decoded before the error.
    let _ = found.merge(frame.clone());
    found
}

fn refused(tag: u64, sequence: u64, problem: Problem) -> InvalidFrame {
    InvalidFrame::Message { tag, sequence, problem: Box::new(problem) }
}

fn validate_envelope(envelope: &Envelope, limit: u32) -> Option<Problem> {
    let bad = |text: String| Some(problem(codes::INVALID_MESSAGE, text));
    if envelope.after >= envelope.sequence || envelope.settled > envelope.sequence {
        return bad(format!(
            "after {} and settled {} are inconsistent with sequence {}",
            envelope.after, envelope.settled, envelope.sequence
        ));
    }
    if envelope.flags & KEYED != 0 && envelope.sequence != 1 {
        return bad("the message has an idempotency key (flag 1), so its sequence must be 1".into());
    }
    if envelope.created_ms == 0 {
        return bad(
            "created_ms is missing: stamp the message with the cluster time from the hello".into(),
        );
    }
    if MessageKind::try_from(envelope.kind).is_err() {
        return bad(format!("unknown kind {}", envelope.kind));
    }
    for (what, name) in [("type", &envelope.r#type), ("method", &envelope.method)] {
        if name.is_empty() || name.len() > NAME {
            return bad(format!("{what} is {} bytes, must be 1 to {NAME}", name.len()));
        }
    }
    if envelope.namespace.len() > NAME {
        return bad(format!("namespace is {} bytes, limit is {NAME}", envelope.namespace.len()));
    }
    if envelope.id.is_empty() || envelope.id.len() > ID {
        let text = format!("entity id is {} bytes, must be 1 to {ID}", envelope.id.len());
        return Some(problem(codes::INVALID_ENTITY_ID, text));
    }
    let size = envelope.body.len();
    if size > limit as usize {
        let text =
            format!("body of {size} bytes exceeds the limit of {limit} (`network.max-message`)");
        let mut problem = problem(codes::MESSAGE_TOO_LARGE, text);
        problem.details.insert("setting".into(), "network.max-message".into());
        problem.details.insert("limit".into(), limit.to_string());
        return Some(problem);
    }
    None
}

impl Envelope {
    /// The entity that the message is for.
    #[must_use]
    pub fn entity(&self) -> Entity {
        Entity::new(self.r#type.as_str(), self.id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_an_entity(id: &str) -> Envelope {
        Envelope {
            r#type: "counter".into(),
            id: "alice".into(),
            session: Bytes::from_static(&[7; SESSION]),
            sequence: 1,
            kind: MessageKind::Command.into(),
            method: "add".into(),
            created_ms: 1,
            principal: "entity/cart".into(),
            sender: Some(SendingEntity { r#type: "cart".into(), id: id.into() }),
            ..Envelope::default()
        }
    }

    #[test]
    fn r19_a_client_cannot_name_a_sending_entity() {
        let frame = from_an_entity("7").encode_to_vec().into();
        let read = decode_client_message(&frame, &[7; SESSION], &Limits::default()).unwrap();
        assert_eq!((read.sender, read.principal.as_str()), (None, ""));
    }

    #[test]
    fn a_nodes_sending_entity_is_within_its_limits() {
        let read = |id: &str| {
            let envelope = Some(from_an_entity(id));
            let frame = ForwardedMessage { tag: 1, envelope };
            decode_forwarded_message(&frame.encode_to_vec().into(), 1_000)
        };
        assert_eq!(read("7").unwrap().1, from_an_entity("7"));
        for id in ["", &"x".repeat(ID + 1)] {
            let Err(InvalidFrame::Message { problem, .. }) = read(id) else { panic!("{id}") };
            assert_eq!(problem.code, codes::INVALID_MESSAGE);
        }
    }

    #[test]
    fn r20_a_client_cannot_say_who_waits() {
        let asked = Envelope {
            ask_chain: vec!["cart/7".into()],
            asked_ms: 5,
            created_skew_ms: 9,
            sender: None,
            session: Bytes::from_static(&[7; SESSION]),
            ..from_an_entity("7")
        };
        let frame = Bytes::from(asked.encode_to_vec());
        let read = decode_client_message(&frame, &[7; SESSION], &Limits::default()).unwrap();
        assert_eq!((read.ask_chain.len(), read.asked_ms, read.created_skew_ms), (0, 0, 0));
        let from_node = |chain: Vec<String>| {
            let principal = "entity/cart".into();
            let envelope = Envelope { ask_chain: chain, principal, ..asked.clone() };
            let frame = ForwardedMessage { tag: 1, envelope: Some(envelope) }.encode_to_vec();
            decode_forwarded_message(&Bytes::from(frame), 1_000)
        };
        let (_, kept) = from_node(vec!["cart/7".into(), "a/b/c".into()]).unwrap();
        assert_eq!(kept.ask_chain, ["cart/7", "a/b/c"]);
        for chain in [
            vec!["cart".into()],
            vec!["/7".into()],
            vec!["cart/".into()],
            vec![format!("cart/{}", "i".repeat(ID + 1))],
            vec!["cart/7".into(); MAX_ASK_DEPTH + 1],
        ] {
            let Err(InvalidFrame::Message { problem, .. }) = from_node(chain.clone()) else {
                panic!("{chain:?}")
            };
            assert_eq!(problem.code, *codes::INVALID_MESSAGE);
        }
    }
}
