//! What is wrong with a message before any entity is asked.

use bytes::Bytes;
use ostraca_sharding::ids::Entity;
use prost::Message;

use crate::error::problem;
use crate::limits::Limits;
use crate::proto::{Envelope, Kind, Problem};

/// Bytes of a type, a method and a namespace.
const NAME: usize = 255;
/// Bytes of an entity id.
const ID: usize = 512;

/// What can still be read of an envelope that as a whole cannot: whom to answer.
#[derive(Clone, PartialEq, Message)]
struct Salvage {
    #[prost(uint64, tag = "5")]
    sequence: u64,
}

/// The envelope of a frame; else, if it can be told which message it was, why it is refused.
pub(super) fn decode(
    frame: &Bytes,
    session: &[u8; 16],
    limits: &Limits,
) -> Result<Envelope, Option<(u64, Problem)>> {
    let mut envelope = match Envelope::decode(frame.clone()) {
        Ok(envelope) => envelope,
        Err(error) => {
            let sequence = Salvage::decode(frame.clone()).map(|s| s.sequence).unwrap_or_default();
            if sequence == 0 {
                return Err(None);
            }
            return Err(Some((sequence, problem("bad-message", error.to_string()))));
        }
    };
    if envelope.sequence == 0 {
        return Err(None);
    }
    if let Some(problem) = refusal(&envelope, session, limits) {
        return Err(Some((envelope.sequence, problem)));
    }
    // The certificate says who it is.
    envelope.principal.clear();
    Ok(envelope)
}

fn refusal(envelope: &Envelope, session: &[u8; 16], limits: &Limits) -> Option<Problem> {
    let bad = |text: String| Some(problem("bad-message", text));
    if !envelope.session.is_empty() && envelope.session[..] != session[..] {
        return bad("the message names another session than its stream".into());
    }
    if envelope.after >= envelope.sequence || envelope.settled > envelope.sequence {
        return bad(format!(
            "after {} and settled {} do not fit sequence {}",
            envelope.after, envelope.settled, envelope.sequence
        ));
    }
    if Kind::try_from(envelope.kind).is_err() {
        return bad(format!("kind {} is not known", envelope.kind));
    }
    for (what, name) in [("type", &envelope.r#type), ("method", &envelope.method)] {
        if name.is_empty() || name.len() > NAME {
            return bad(format!("a {what} of {} bytes: 1 to {NAME} are allowed", name.len()));
        }
    }
    if envelope.namespace.len() > NAME {
        return bad(format!(
            "a namespace of {} bytes: {NAME} are allowed",
            envelope.namespace.len()
        ));
    }
    if envelope.id.is_empty() || envelope.id.len() > ID {
        let text = format!("an entity id of {} bytes: 1 to {ID} are allowed", envelope.id.len());
        return Some(problem("bad-entity-id", text));
    }
    let (size, limit) = (envelope.body.len(), limits.max_message);
    if size > limit as usize {
        let text = format!("a body of {size} bytes: {limit} are allowed (`max_message`)");
        let mut problem = problem("message-too-large", text);
        problem.details.insert("setting".into(), "max_message".into());
        problem.details.insert("limit".into(), limit.to_string());
        return Some(problem);
    }
    None
}

impl Envelope {
    /// Whom it is for.
    #[must_use]
    pub fn entity(&self) -> Entity {
        Entity::new(self.r#type.as_str(), self.id.as_str())
    }
}
