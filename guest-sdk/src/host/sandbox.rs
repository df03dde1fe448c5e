//! Calls the host through the component's imports.

use crate::ask_error::AskError;
use crate::bindings::entity::ostraca::entity as wit;
use crate::bindings::timer::ostraca::entity::timers;
use crate::types::{
    Identity, JournalEvent, JournalExtent, JournalPage, Level, MessageContext, MessageKind, Page,
    StoredTell, StoredTimer, TimerTime,
};

pub(crate) fn get(key: &str) -> Option<Vec<u8>> {
    wit::state::get(key)
}

pub(crate) fn set(key: &str, value: &[u8]) {
    wit::state::set(key, value);
}

pub(crate) fn delete(key: &str) -> bool {
    wit::state::delete(key)
}

pub(crate) fn list(prefix: &str, limit: u32, cursor: Option<&str>) -> Page {
    let page = wit::state::list(prefix, limit, cursor);
    Page { entries: page.entries, next: page.next }
}

pub(crate) fn identity() -> Identity {
    let identity = wit::context::self_identity();
    Identity {
        namespace: identity.namespace,
        entity_type: identity.entity_type,
        id: identity.id,
        revision: identity.revision,
    }
}

pub(crate) fn message() -> Option<MessageContext> {
    wit::context::current_message().map(|message| MessageContext {
        session: message.session,
        sequence: message.sequence,
        kind: match message.kind {
            wit::types::MessageKind::Command => MessageKind::Command,
            wit::types::MessageKind::Query => MessageKind::Query,
        },
        principal: message.principal,
        content_type: message.content_type,
        traceparent: message.traceparent,
        tracestate: message.tracestate,
        remaining_ms: message.remaining_ms,
        version: message.version,
    })
}

pub(crate) fn now() -> u64 {
    wit::clock::now()
}

pub(crate) fn secret(name: &str) -> Option<String> {
    wit::secrets::get(name)
}

pub(crate) fn setting(name: &str) -> Option<String> {
    wit::settings::get(name)
}

pub(crate) fn random_u64() -> u64 {
    wit::random::get_u64()
}

/// Returns at most 65,536 bytes.
pub(crate) fn random_bytes(len: usize) -> Vec<u8> {
    // The host refuses `u32::MAX` as it would refuse any greater length.
    wit::random::get_bytes(u32::try_from(len).unwrap_or(u32::MAX))
}

pub(crate) fn set_timer(name: &str, time: TimerTime, interval: Option<u64>, payload: &[u8]) {
    let time = match time {
        TimerTime::At(at) => timers::Time::At(at),
        TimerTime::After(delay) => timers::Time::After(delay),
    };
    timers::set(name, time, interval, payload);
}

pub(crate) fn cancel_timer(name: &str) -> bool {
    timers::cancel(name)
}

pub(crate) fn list_timers() -> Vec<StoredTimer> {
    let timer = |timer: timers::Timer| StoredTimer {
        name: timer.name,
        due: timer.due,
        interval: timer.interval,
        payload: timer.payload,
        attempts: timer.attempts,
        failure: timer.failure,
        set_aside: timer.set_aside,
    };
    timers::list().into_iter().map(timer).collect()
}

pub(crate) fn tell(to: (&str, &str), method: &str, body: &[u8], content_type: &str) {
    wit::messaging::tell(&target(to), method, body, content_type);
}

pub(crate) fn subscribe(to: (&str, &str), channel: &str, method: &str) {
    wit::subscriptions::subscribe(&target(to), channel, method);
}

pub(crate) fn unsubscribe(to: (&str, &str), channel: &str) {
    wit::subscriptions::unsubscribe(&target(to), channel);
}

pub(crate) fn tell_at(
    name: &str,
    due: u64,
    to: (&str, &str),
    method: &str,
    body: &[u8],
    content_type: &str,
) {
    wit::messaging::tell_at(name, due, &target(to), method, body, content_type);
}

pub(crate) fn cancel_tell(name: &str) -> bool {
    wit::messaging::cancel_tell(name)
}

pub(crate) fn delayed_tells() -> Vec<(String, u64, StoredTell)> {
    let shown = |delayed: wit::messaging::DelayedTell| {
        let tell = StoredTell {
            entity_type: delayed.target.entity_type,
            id: delayed.target.id,
            method: delayed.method,
            body: delayed.body,
            content_type: delayed.content_type,
        };
        (delayed.name, delayed.due, tell)
    };
    wit::messaging::delayed_tells().into_iter().map(shown).collect()
}

pub(crate) fn append_event(data: &[u8]) -> u64 {
    wit::journal::append(data)
}

pub(crate) fn read_events(from: u64, limit: u32) -> JournalPage {
    let page = wit::journal::read(from, limit);
    let event =
        |event: wit::journal::Event| JournalEvent { number: event.number, data: event.data };
    JournalPage { events: page.events.into_iter().map(event).collect(), next: page.next }
}

pub(crate) fn journal_extent() -> JournalExtent {
    let extent = wit::journal::get_extent();
    let wit::journal::Extent { first, next, bytes, snapshot } = extent;
    JournalExtent { first, next, bytes, snapshot }
}

pub(crate) fn truncate_journal(before: u64) -> u64 {
    wit::journal::truncate(before)
}

pub(crate) fn save_snapshot(data: &[u8]) {
    wit::journal::save_snapshot(data);
}

pub(crate) fn load_snapshot() -> Option<(u64, Vec<u8>)> {
    wit::journal::load_snapshot().map(|snapshot| (snapshot.through, snapshot.data))
}

/// The host's handle of a started ask.
pub(crate) type AskHandle = wit::asks::PendingAsk;

pub(crate) fn start_ask(
    to: (&str, &str),
    method: &str,
    body: &[u8],
    content_type: &str,
    timeout_ms: Option<u64>,
) -> AskHandle {
    wit::asks::start_ask(&target(to), method, body, content_type, timeout_ms)
}

pub(crate) fn wait_ask(ask: &AskHandle) -> Result<Vec<u8>, AskError> {
    ask.wait().map_err(|error| match error {
        wit::asks::AskError::Application(error) => {
            AskError::Refused { code: error.code, message: error.message }
        }
        wit::asks::AskError::NotRun(error) => {
            AskError::NotRun { code: error.code, message: error.message }
        }
        wit::asks::AskError::Unknown(message) => AskError::Unknown { message },
    })
}

pub(crate) fn wait_any_ask(asks: &[&AskHandle]) -> usize {
    wit::asks::wait_any(asks) as usize
}

fn target((entity_type, id): (&str, &str)) -> wit::messaging::Entity {
    wit::messaging::Entity { entity_type: entity_type.to_owned(), id: id.to_owned() }
}

pub(crate) fn emit(channel: &str, item: &[u8]) {
    wit::channels::emit(channel, item);
}

pub(crate) fn set_remembered(remember: bool) {
    match remember {
        true => wit::remembering::remember(),
        false => wit::remembering::forget(),
    }
}

pub(crate) fn is_remembered() -> bool {
    wit::remembering::is_remembered()
}

pub(crate) fn delete_entity() {
    wit::deletion::delete();
}

pub(crate) fn set_expiry(time: Option<u64>) {
    wit::deletion::expire_at(time);
}

pub(crate) fn expires_at() -> Option<u64> {
    wit::deletion::expires_at()
}

pub(crate) fn passivate() {
    wit::lifecycle::passivate();
}

pub(crate) fn passivate_after(delay: Option<u64>) {
    wit::passivation::passivate_after(delay);
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Trace => wit::log::Level::Trace,
        Level::Debug => wit::log::Level::Debug,
        Level::Info => wit::log::Level::Info,
        Level::Warn => wit::log::Level::Warn,
        Level::Error => wit::log::Level::Error,
    };
    wit::log::log(level, message);
}
