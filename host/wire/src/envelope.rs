//! What gateways and owners derive from an envelope: its deadline, whether its type accepts it, the envelope
//! that is forwarded, and the core's message. Sans-IO, so that the simulator's nodes can use it too.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, Epoch, MessageDigest, MessageId, ScopedSessionId};
use ostraca_core::message::{AskOrigin, Message, MessageKind, MessageMetadata, ReplyToken};
use ostraca_core::names;
use ostraca_core::records::Tell;
use ostraca_core::shard::{
    ASK_NOTE, Ask, AskNote, ChannelRead, EntityCopy, FIRST_TELL, MAX_DEAD_LETTERS, OperatorCommand,
    READ_CHANNEL, TopicMessage, decode_dead_letters,
};

use crate::flags::KEYED;
use crate::outcome::wire_kind;
use crate::problem;
use crate::proto::{self, Envelope, Problem};

/// The namespace that every cluster has; an empty one means the same.
pub use ostraca_core::names::DEFAULT_NAMESPACE as NAMESPACE;

/// Limits on the timeout of a message, in milliseconds, so that no message is kept forever because its sender set no
/// timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutLimits {
    /// The timeout of a message that sets none (`gateway.default-timeout`).
    pub default_ms: u64,
    /// The maximum, to which longer timeouts are cut (`gateway.max-timeout`).
    pub max_ms: u64,
}

impl TimeoutLimits {
    /// Gives the message a deadline if it has none, and cuts one that is too long.
    pub fn apply(&self, envelope: &mut Envelope) {
        envelope.remaining_ms = match envelope.remaining_ms {
            0 => self.default_ms,
            named => named.min(self.max_ms),
        };
    }
}

/// How far the time that a sender stamps on a message may be from the gateway's own, in milliseconds. Guests read it as
/// the current time, so a sender must not choose it freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcLimits {
    /// How far the time may be behind: a copy may be sent this long after the message was created.
    pub past_ms: u64,
    /// How far the time may be ahead (`entities.max-clock-skew`).
    pub future_ms: u64,
}

impl UtcLimits {
    /// Moves the message's time into the range. A message without a time gets the gateway's. While the gateway does
    /// not know the time (0), nothing changes: it has no store then, so the message can only wait.
    pub fn apply(&self, envelope: &mut Envelope, now: u64) {
        if now == 0 {
            return;
        }
        envelope.utc_ms = match envelope.utc_ms {
            0 => now,
            stamped => {
                stamped.clamp(now.saturating_sub(self.past_ms), now.saturating_add(self.future_ms))
            }
        };
    }
}

/// What a deployed type determines about messages to it.
pub trait TypeInfo {
    /// The name of the type.
    fn name(&self) -> &Arc<str>;

    /// Whether its manifest allows a principal to send to it.
    fn admits(&self, principal: &str) -> bool;

    /// A method's name, shared, and its kind. `None` if the type does not have the method.
    fn method(&self, name: &str) -> Option<&(Arc<str>, MessageKind)>;

    /// The refusal of a message whose method the type does not have.
    fn unknown_method(&self, name: &str) -> Problem;

    /// The largest body that the type accepts, in bytes.
    fn max_message(&self) -> u64;
}

/// Refuses a message whose namespace the gateway has not resolved, since the cluster does not have it, and a message of an
/// entity to another namespace. The latter learns nothing about the target, not even whether its type exists.
///
/// # Errors
///
/// The refusal.
pub fn check_namespace(envelope: &Envelope, principal: &str) -> Result<(), Problem> {
    if !matches!(envelope.namespace.as_str(), "" | NAMESPACE) {
        return Err(unknown_namespace(&envelope.namespace));
    }
    let target = &envelope.r#type;
    match sending_type(envelope) {
        Some(own) if names::namespace(own) != names::namespace(target) => {
            Err(access_denied(target, principal))
        }
        _ => Ok(()),
    }
}

/// The refusal of what names a namespace that the cluster does not have.
#[must_use]
pub fn unknown_namespace(namespace: &str) -> Problem {
    Problem {
        help: "`ostraca namespace list` lists the namespaces; without one, it is `default`".into(),
        ..problem(codes::UNKNOWN_NAMESPACE, format!("unknown namespace `{namespace}`"))
    }
}

/// The method that an envelope names, if the type has it and its sender may use it.
///
/// # Errors
///
/// The refusal.
pub fn resolve_method<T: TypeInfo>(
    entry: &T,
    principal: &str,
    envelope: &Envelope,
) -> Result<(Arc<str>, MessageKind), Problem> {
    let name = entry.name();
    if let Some(method) = nodes_method(envelope) {
        return Ok((method.into(), MessageKind::Query));
    }
    if let Some(method) = fan_out(envelope) {
        return Ok((method.into(), MessageKind::Command));
    }
    if !entry.admits(principal) {
        return Err(access_denied(name, principal));
    }
    if let Some(method) = subscription(envelope) {
        return Ok((method.into(), MessageKind::Command));
    }
    let command = OperatorCommand::of_method(&envelope.method);
    let (method, kind) = match command {
        Some(command) => {
            check_command(command, envelope)?;
            (command.method().into(), command.kind())
        }
        None if envelope.method == READ_CHANNEL => (READ_CHANNEL.into(), MessageKind::Query),
        None => match entry.method(&envelope.method) {
            Some(known) => known.clone(),
            None => return Err(entry.unknown_method(&envelope.method)),
        },
    };
    let asked =
        proto::MessageKind::try_from(envelope.kind).unwrap_or(proto::MessageKind::Unspecified);
    if asked != proto::MessageKind::Unspecified && asked != wire_kind(kind) {
        return Err(Problem {
            help: "send it as its declared kind, or omit the kind".into(),
            ..problem(codes::WRONG_KIND, format!("`{name}.{method}` is a {}", kind_name(kind)))
        });
    }
    let (limit, size) = (entry.max_message(), envelope.body.len());
    // Operators' commands have their own limit.
    if size as u64 > limit && command.is_none() {
        let text = format!("body of {size} bytes exceeds the limit of `{name}`, {limit} bytes");
        return Err(Problem {
            help: "send a smaller message, or raise `limits.message` in the type's manifest".into(),
            ..problem(codes::MESSAGE_TOO_LARGE, text)
        });
    }
    Ok((method, kind))
}

/// Refuses an operator's command whose body is not what the command expects.
fn check_command(command: OperatorCommand, envelope: &Envelope) -> Result<(), Problem> {
    let size = envelope.body.len();
    let text = match command {
        OperatorCommand::DeadLetters(_) if decode_dead_letters(&envelope.body).is_some() => {
            return Ok(());
        }
        OperatorCommand::DeadLetters(_) => format!(
            "the body is {size} bytes; it must hold 1 to {MAX_DEAD_LETTERS} dead-letter numbers of 8 bytes each"
        ),
        OperatorCommand::ImportEntity => match EntityCopy::decode(&envelope.body) {
            Ok(_) => return Ok(()),
            Err(why) => return Err(problem(codes::INVALID_IMPORT, why)),
        },
        _ if size == 0 => return Ok(()),
        OperatorCommand::ForgetEntity
        | OperatorCommand::DeleteEntity
        | OperatorCommand::RestartEntity => {
            format!("the body is {size} bytes; this command has no body")
        }
    };
    Err(problem(codes::INVALID_MESSAGE, text))
}

/// The refusal of a sender that the type's manifest does not name.
#[must_use]
pub fn access_denied(name: &str, principal: &str) -> Problem {
    Problem {
        help: "the type's manifest lists the allowed senders under `[access] send`".into(),
        ..problem(codes::ACCESS_DENIED, format!("`{principal}` may not send to `{name}`"))
    }
}

fn kind_name(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Command => "command",
        MessageKind::Query => "query",
    }
}

/// The principal of the entities of a type, which a manifest's `[access] send` may name.
#[must_use]
pub fn entity_principal(entity_type: &str) -> String {
    format!("entity/{entity_type}")
}

/// The type of the entity that sends the message. What an imported entity has in its outbox may name any target.
fn sending_type(envelope: &Envelope) -> Option<&str> {
    match (&envelope.sender, envelope.ask_chain.last()) {
        (Some(sender), _) => Some(&sender.r#type),
        (None, Some(asker)) => asker.split('/').next(),
        (None, None) => None,
    }
}

/// The method, if the envelope is a query between shards: about the first tell that a sending entity may still send
/// (R19), or about asks that may wait for each other (R20). No type declares these methods, and only nodes can send
/// them.
fn nodes_method(envelope: &Envelope) -> Option<&'static str> {
    let sent = |method: &&'static str| envelope.sender.is_some() && envelope.method == **method;
    [FIRST_TELL, ASK_NOTE].into_iter().find(sent)
}

/// The method, if an entity spreads an item to its subscribers, by a tell to itself (R27).
fn fan_out(envelope: &Envelope) -> Option<&'static str> {
    let sender = envelope.sender.as_ref()?;
    let is_own = sender.r#type == envelope.r#type && sender.id == envelope.id;
    let method = TopicMessage::FanOut.method();
    (is_own && envelope.method == method).then_some(method)
}

/// The method, if an entity subscribes to a channel or ends its subscription (R27).
fn subscription(envelope: &Envelope) -> Option<&'static str> {
    let methods = [TopicMessage::Subscribe, TopicMessage::Unsubscribe].map(TopicMessage::method);
    let is_sent = |method: &&'static str| envelope.sender.is_some() && envelope.method == **method;
    methods.into_iter().find(is_sent)
}

fn entity_of_chain(text: &str) -> Entity {
    let (entity_type, id) = text.split_once('/').unwrap_or((text, ""));
    Entity::new(entity_type, id)
}

impl Envelope {
    /// The envelope of an entity's tell. Its session is [`ScopedSessionId::of_entity`].
    #[must_use]
    pub fn of_tell(sender: &Entity, number: u64, tell: &Tell, timeout_ms: u64) -> Self {
        Self {
            kind: proto::MessageKind::Command.into(),
            method: tell.method.as_ref().into(),
            body: tell.body.clone(),
            content_type: tell.content_type.as_ref().into(),
            traceparent: tell.traceparent.as_ref().into(),
            created_ms: tell.created_ms.max(1),
            first_created_ms: tell.first_created_ms().unwrap_or(1),
            utc_ms: tell.utc_ms,
            ..Self::between(sender, &tell.target, number, timeout_ms)
        }
    }

    /// The envelope of the query for an entity's first tell to `entity`.
    #[must_use]
    pub fn of_first_tell_query(
        entity: &Entity,
        sender: &Entity,
        number: u64,
        timeout_ms: u64,
    ) -> Self {
        Self {
            kind: proto::MessageKind::Query.into(),
            method: FIRST_TELL.into(),
            created_ms: 1,
            ..Self::between(entity, sender, number, timeout_ms)
        }
    }

    /// The envelope of a read of an entity's channel on behalf of a principal. `timeout_ms` includes the time for which
    /// the read waits.
    #[must_use]
    pub fn of_channel_read(
        entity: &Entity,
        principal: &str,
        read: &ChannelRead,
        (session, sequence): ([u8; 16], u64),
        timeout_ms: u64,
    ) -> Self {
        Self {
            r#type: entity.entity_type.as_ref().into(),
            id: entity.id.as_ref().into(),
            session: Bytes::copy_from_slice(&session),
            sequence,
            settled: sequence,
            kind: proto::MessageKind::Query.into(),
            remaining_ms: timeout_ms,
            principal: principal.into(),
            created_ms: 1,
            method: READ_CHANNEL.into(),
            body: read.encode(),
            ..Self::default()
        }
    }

    /// The envelope of an entity's ask, whose turn waits for `timeout_ms`.
    #[must_use]
    pub fn of_ask(ask: &Ask, timeout_ms: u64) -> Self {
        let asker = ask.chain.last().unwrap_or(&ask.target);
        let kind = match ask.query_only {
            true => proto::MessageKind::Query,
            false => proto::MessageKind::Unspecified,
        };
        Self {
            kind: kind.into(),
            r#type: ask.target.entity_type.as_ref().into(),
            id: ask.target.id.as_ref().into(),
            session: Bytes::copy_from_slice(&ask.id.session.0),
            sequence: ask.id.sequence,
            method: ask.method.as_ref().into(),
            body: ask.body.clone(),
            content_type: ask.content_type.as_ref().into(),
            traceparent: ask.traceparent.as_ref().into(),
            remaining_ms: timeout_ms.max(1),
            principal: entity_principal(&asker.entity_type),
            created_ms: ask.created_ms.max(1),
            utc_ms: ask.utc_ms,
            ask_chain: ask.chain.iter().map(ToString::to_string).collect(),
            asked_ms: ask.started,
            created_skew_ms: ask.created_skew,
            ..Self::default()
        }
    }

    /// The envelope of a note from one waiting entity to another.
    #[must_use]
    pub fn of_ask_note(
        from: &Entity,
        to: &Entity,
        note: &AskNote,
        number: u64,
        timeout_ms: u64,
    ) -> Self {
        Self {
            kind: proto::MessageKind::Query.into(),
            method: ASK_NOTE.into(),
            body: note.encode(),
            created_ms: 1,
            ..Self::between(from, to, number, timeout_ms)
        }
    }

    /// Whether an entity sent it. If so, its time is that of the sending turn.
    #[must_use]
    pub fn is_from_entity(&self) -> bool {
        self.sender.is_some() || !self.ask_chain.is_empty()
    }

    fn asked_by(&self) -> Option<Arc<AskOrigin>> {
        if self.ask_chain.is_empty() {
            return None;
        }
        let chain = self.ask_chain.iter().map(|text| entity_of_chain(text)).collect();
        Some(Arc::new(AskOrigin {
            chain,
            started: self.asked_ms,
            created_skew: self.created_skew_ms,
        }))
    }

    fn between(from: &Entity, to: &Entity, sequence: u64, timeout_ms: u64) -> Self {
        let (r#type, id) = (from.entity_type.as_ref().into(), from.id.as_ref().into());
        Self {
            r#type: to.entity_type.as_ref().into(),
            id: to.id.as_ref().into(),
            session: Bytes::copy_from_slice(&ScopedSessionId::of_entity(from).0),
            sequence,
            settled: sequence,
            remaining_ms: timeout_ms,
            principal: entity_principal(&from.entity_type),
            sender: Some(proto::SendingEntity { r#type, id }),
            ..Self::default()
        }
    }

    /// When the sender stops waiting, on the clock of `now`, given that the node has held the message for
    /// `elapsed_ms`.
    #[must_use]
    pub fn deadline(&self, now: u64, elapsed_ms: u64) -> Option<u64> {
        let left = self.remaining_ms.saturating_sub(elapsed_ms);
        (self.remaining_ms > 0).then(|| now.saturating_add(left))
    }

    /// The envelope as it is forwarded to another node: with what this node knows, and with its remaining time
    /// reduced by the `held` milliseconds for which this node held it.
    #[must_use]
    pub fn to_forwarded(
        &self,
        session: ScopedSessionId,
        node: &str,
        epoch: Epoch,
        held: u64,
    ) -> Self {
        let mut envelope = self.clone();
        envelope.session = Bytes::copy_from_slice(&session.0);
        envelope.origin = node.to_owned();
        envelope.hops = envelope.hops.saturating_add(1);
        envelope.route_epoch = epoch.0;
        if envelope.remaining_ms > 0 {
            // Keep at least 1 ms: the owner, which knows whether a copy ran, reports an expired deadline.
            envelope.remaining_ms = envelope.remaining_ms.saturating_sub(held).max(1);
        }
        envelope
    }

    /// The core's message, received at `now` after the node had held it for `held` milliseconds.
    #[must_use]
    pub fn to_message(
        &self,
        token: ReplyToken,
        session: ScopedSessionId,
        (name, method, kind): (Arc<str>, Arc<str>, MessageKind),
        (now, held): (u64, u64),
        context: MessageMetadata,
    ) -> Message {
        let target = Entity { entity_type: name, id: self.id.as_str().into() };
        Message {
            reply_token: token,
            digest: MessageDigest::compute(&target, &method, &self.body),
            target,
            sender: self.sender.as_ref().map(|it| Entity::new(it.r#type.as_str(), it.id.as_str())),
            asked_by: self.asked_by(),
            id: MessageId { session, sequence: self.sequence },
            after: self.after,
            settled: self.settled,
            is_keyed: self.flags & KEYED != 0 && !self.is_from_entity(),
            kind,
            method,
            body: self.body.clone(),
            created_ms: self.created_ms,
            first_created_ms: match self.first_created_ms {
                0 => self.created_ms,
                first => first.min(self.created_ms),
            },
            arrived_at: now,
            deadline: self.deadline(now, held),
            context: Arc::new(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senders_time_is_moved_into_the_range() {
        let limits = UtcLimits { past_ms: 600, future_ms: 60 };
        for (stamped, bounded) in [
            (0, 10_000),
            (1, 9_400),
            (9_400, 9_400),
            (9_999, 9_999),
            (10_060, 10_060),
            (10_061, 10_060),
        ] {
            let mut envelope = Envelope { utc_ms: stamped, ..Envelope::default() };
            limits.apply(&mut envelope, 0);
            assert_eq!(envelope.utc_ms, stamped);
            limits.apply(&mut envelope, 10_000);
            assert_eq!(envelope.utc_ms, bounded, "{stamped}");
        }
    }

    #[test]
    fn every_message_has_a_deadline_within_bounds() {
        let deadlines = TimeoutLimits { default_ms: 60, max_ms: 600 };
        for (named, bounded) in [(0, 60), (1, 1), (600, 600), (601, 600), (u64::MAX, 600)] {
            let mut envelope = Envelope { remaining_ms: named, ..Envelope::default() };
            deadlines.apply(&mut envelope);
            assert_eq!(envelope.remaining_ms, bounded, "{named}");
        }
    }

    #[test]
    fn an_entity_sends_only_within_its_namespace() {
        let sent = |by: &str, to: &str| {
            let (own, other) = (Entity::new(by, "a"), Entity::new(to, "b"));
            let told = Envelope { method: "add".into(), ..Envelope::between(&own, &other, 1, 1) };
            let asked = Envelope {
                ask_chain: vec![own.to_string()],
                r#type: to.into(),
                method: "add".into(),
                ..Envelope::default()
            };
            let first = Envelope { method: FIRST_TELL.into(), ..told.clone() };
            [told, asked, first]
                .map(|it| check_namespace(&it, "entity/x").err().map(|problem| problem.code))
        };
        let denied = || Some(codes::ACCESS_DENIED.to_string());
        for (by, to) in [("cart", "counter"), ("acme:cart", "acme:counter")] {
            assert_eq!(sent(by, to), [None, None, None], "{by} to {to}");
        }
        for (by, to) in [("cart", "acme:cart"), ("acme:cart", "cart"), ("evil:cart", "acme:cart")] {
            assert_eq!(sent(by, to), [denied(), denied(), denied()], "{by} to {to}");
        }
    }
}
