//! The types that the host's functions use. They are public in the modules with those functions.

/// Whether a message may change state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// May change state. Runs once, and its outcome is recorded.
    Command,
    /// Must not change state, and records nothing. A write to [`state`](crate::state) traps.
    Query,
}

/// The identity of the entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The namespace.
    pub namespace: String,
    /// The entity type.
    pub entity_type: String,
    /// The entity id.
    pub id: String,
    /// The revision of the deployment that this instance runs.
    pub revision: u64,
}

/// The message that a turn handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageContext {
    /// The sender's session, as 32 hexadecimal digits.
    pub session: String,
    /// The message's number in its session, from 1.
    pub sequence: u64,
    /// Whether the message is a command or a query.
    pub kind: MessageKind,
    /// The sender's principal: `client/alice` as its certificate names it, or `entity/account` for a tell from an
    /// entity of that type.
    pub principal: String,
    /// The content type of the body, as the sender set it.
    pub content_type: String,
    /// W3C trace context (`traceparent`); empty if there is none.
    pub traceparent: String,
    /// W3C trace context (`tracestate`); empty if there is none.
    pub tracestate: String,
    /// Milliseconds from the start of the turn to the sender's deadline; `None` without a deadline.
    pub remaining_ms: Option<u64>,
    /// The entity's version before this turn.
    pub version: u64,
}

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Single steps, for tracking down a bug.
    Trace,
    /// Details.
    Debug,
    /// What an operator may want to know.
    Info,
    /// Something that an operator should look at.
    Warn,
    /// Something went wrong.
    Error,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Keys and values, in bytewise order of the keys.
    pub entries: Vec<(String, Vec<u8>)>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// When a timer first fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerTime {
    /// Milliseconds since 1970-01-01 00:00 UTC.
    At(u64),
    /// Milliseconds after the time of the turn.
    After(u64),
}

/// A timer as the host lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTimer {
    pub(crate) name: String,
    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub(crate) due: u64,
    /// Milliseconds.
    pub(crate) interval: Option<u64>,
    pub(crate) payload: Vec<u8>,
    pub(crate) attempts: u32,
    pub(crate) failure: Option<String>,
    pub(crate) set_aside: bool,
}

/// A message to another entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTell {
    pub(crate) entity_type: String,
    pub(crate) id: String,
    pub(crate) method: String,
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: String,
}

/// An event of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEvent {
    /// Its number.
    pub number: u64,
    /// The bytes that were appended.
    pub data: Vec<u8>,
}

/// One page of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalPage {
    /// The events, in order.
    pub events: Vec<JournalEvent>,
    /// The number at which the next page begins; `None` on the last page.
    pub next: Option<u64>,
}

/// Which events a journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalExtent {
    /// The number of the first event that is kept; `next` if none is.
    pub first: u64,
    /// The number of the next event: 1 if there was none yet.
    pub next: u64,
    /// Size of the kept events and of the snapshot in bytes, including 100 bytes for each.
    pub bytes: u64,
    /// The number of the last event that the snapshot includes; `None` if there is no snapshot.
    pub snapshot: Option<u64>,
}

/// A request to an HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) timeout: Option<std::time::Duration>,
}

/// The response to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// Converts to whole milliseconds, saturating at the maximum.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One firing of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// The timer's name.
    pub name: String,
    /// The bytes that were passed when the timer was set.
    pub payload: Vec<u8>,
    /// When it was due, in milliseconds since 1970-01-01 00:00 UTC. [`clock::now`](crate::clock::now) is the time at
    /// which the firing runs.
    pub due: u64,
    /// How many more firings of a repeating timer have come due in the meantime. They are skipped.
    pub missed: u64,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}
