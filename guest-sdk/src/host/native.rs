//! The host in native builds: one entity per thread, with an in-memory store.
//!
//! It follows the host's rules as far as a unit test can observe them: a turn's writes are kept or discarded as a
//! whole, a query that writes panics, and a key is 1 to 512 bytes long. Outside of a turn (in a test that calls methods
//! directly) every write is kept.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::rc::Rc;

use crate::ask_error::AskError;
use crate::http_error::HttpError;
use crate::types::{
    HttpRequest, HttpResponse, Identity, JournalEvent, JournalExtent, JournalPage, Level,
    MessageContext, MessageKind, Page, StoredTell, StoredTimer, TimerTime,
};

/// The time at the beginning of a test: 2001-09-09 01:46:40 UTC.
const START: u64 = 1_000_000_000_000;

/// Answers an ask.
pub(crate) type AskHandler = Rc<dyn Fn(&StoredTell) -> Result<Vec<u8>, AskError>>;

/// Answers an HTTP call.
pub(crate) type CallHandler = Rc<dyn Fn(&HttpRequest) -> Result<HttpResponse, HttpError>>;

pub(crate) struct TestHost {
    pub(crate) store: BTreeMap<String, Vec<u8>>,
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) timers: BTreeMap<String, StoredTimer>,
    pub(crate) journal: Journal,
    pub(crate) tells: Vec<StoredTell>,
    /// By name, with the time at which they leave.
    pub(crate) delayed: BTreeMap<String, (u64, StoredTell)>,
    pub(crate) identity: Identity,
    /// The sender of the messages that follow.
    pub(crate) principal: String,
    /// Number of commands answered and firings handled.
    pub(crate) version: u64,
    pub(crate) sequence: u64,
    pub(crate) message: Option<MessageContext>,
    /// Milliseconds since 1970.
    pub(crate) now: u64,
    /// The state of the random number generator.
    pub(crate) random: u64,
    pub(crate) logs: Vec<(Level, String)>,
    pub(crate) remembered: bool,
    /// The items that were emitted, with their channels, in order.
    pub(crate) emitted: Vec<(String, Vec<u8>)>,
    pub(crate) passivate: bool,
    /// How long the instance is kept without a message, in milliseconds, if it has set that.
    pub(crate) passivate_after: Option<u64>,
    /// When the last turn ended.
    pub(crate) last_used: u64,
    /// When the entity expires, if it has set a time.
    pub(crate) expires_at: Option<u64>,
    /// Whether the turn may delete its entity, and whether it does.
    pub(crate) may_delete: bool,
    pub(crate) delete: bool,
    /// Whether the entity was deleted, and no turn was committed since.
    pub(crate) deleted: bool,
    /// The asks that the test's entity has sent, and the handler that answers them.
    pub(crate) asks: Vec<StoredTell>,
    pub(crate) answers: Option<AskHandler>,
    /// The HTTP calls that the test's entity has made, and the handler that answers them.
    pub(crate) calls: Vec<HttpRequest>,
    pub(crate) responses: Option<CallHandler>,
    /// The live instances, by entity struct.
    pub(crate) instances: HashMap<TypeId, Box<dyn Any>>,
}

impl TestHost {
    fn new() -> Self {
        Self {
            store: BTreeMap::new(),
            secrets: BTreeMap::new(),
            settings: BTreeMap::new(),
            timers: BTreeMap::new(),
            journal: Journal::default(),
            tells: Vec::new(),
            asks: Vec::new(),
            answers: None,
            calls: Vec::new(),
            responses: None,
            delayed: BTreeMap::new(),
            identity: Identity {
                namespace: "default".to_owned(),
                entity_type: "test".to_owned(),
                id: "test".to_owned(),
                revision: 1,
            },
            principal: "test".to_owned(),
            version: 0,
            sequence: 0,
            message: None,
            now: START,
            random: 0,
            logs: Vec::new(),
            remembered: false,
            emitted: Vec::new(),
            passivate: false,
            passivate_after: None,
            last_used: START,
            expires_at: None,
            may_delete: false,
            delete: false,
            deleted: false,
            instances: HashMap::new(),
        }
    }
}

impl TestHost {
    /// Deletes the entity if the turn asked for that. Tells that were sent remain. Returns whether it did.
    pub(crate) fn delete_if_asked(&mut self) -> bool {
        if !std::mem::take(&mut self.delete) {
            return false;
        }
        self.expires_at = None;
        (self.store, self.timers) = Default::default();
        (self.journal, self.delayed) = Default::default();
        (self.remembered, self.passivate, self.deleted) = (false, false, true);
        true
    }
}

thread_local! {
    static WORLD: RefCell<TestHost> = RefCell::new(TestHost::new());
}

pub(crate) fn with<R>(f: impl FnOnce(&mut TestHost) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

pub(crate) fn reset() {
    // Drop the instances outside of the borrow, because their `Drop` may log.
    let old = with(|world| std::mem::replace(world, TestHost::new()));
    drop(old);
}

pub(crate) fn get(key: &str) -> Option<Vec<u8>> {
    check_key(key);
    with(|world| world.store.get(key).cloned())
}

pub(crate) fn set(key: &str, value: &[u8]) {
    check_write("set", key);
    with(|world| world.store.insert(key.to_owned(), value.to_vec()));
}

pub(crate) fn delete(key: &str) -> bool {
    check_write("delete", key);
    with(|world| world.store.remove(key)).is_some()
}

pub(crate) fn list(prefix: &str, limit: u32, cursor: Option<&str>) -> Page {
    if !(1..=1000).contains(&limit) {
        panic!("invalid-limit: the limit must be 1 to 1000, not {limit}");
    }
    let limit = limit as usize;
    with(|world| {
        let from = match cursor {
            Some(cursor) if cursor >= prefix => Bound::Excluded(cursor),
            _ => Bound::Included(prefix),
        };
        let mut entries: Vec<_> = world
            .store
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit + 1)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|(key, _)| key.clone());
        Page { entries, next }
    })
}

pub(crate) fn identity() -> Identity {
    with(|world| world.identity.clone())
}

pub(crate) fn message() -> Option<MessageContext> {
    with(|world| world.message.clone())
}

pub(crate) fn now() -> u64 {
    with(|world| world.now)
}

pub(crate) fn secret(name: &str) -> Option<String> {
    with(|world| world.secrets.get(name).cloned())
}

pub(crate) fn setting(name: &str) -> Option<String> {
    with(|world| world.settings.get(name).cloned())
}

/// SplitMix64: statistically good, and reproducible.
pub(crate) fn random_u64() -> u64 {
    with(|world| {
        world.random = world.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = world.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

pub(crate) fn random_bytes(len: usize) -> Vec<u8> {
    let words = std::iter::repeat_with(random_u64).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

pub(crate) fn set_timer(name: &str, time: TimerTime, interval: Option<u64>, payload: &[u8]) {
    check_timer("set", name);
    if interval == Some(0) {
        panic!("invalid-interval: leave the interval out for a timer that fires once");
    }
    with(|world| {
        let due = match time {
            TimerTime::At(at) => at,
            TimerTime::After(delay) => world.now.saturating_add(delay),
        };
        let timer = StoredTimer {
            name: name.to_owned(),
            due,
            interval,
            payload: payload.to_vec(),
            attempts: 0,
            failure: None,
            set_aside: false,
        };
        world.timers.insert(name.to_owned(), timer);
    });
}

pub(crate) fn cancel_timer(name: &str) -> bool {
    check_timer("cancel", name);
    with(|world| world.timers.remove(name)).is_some()
}

pub(crate) fn list_timers() -> Vec<StoredTimer> {
    with(|world| world.timers.values().cloned().collect())
}

pub(crate) fn tell(to: (&str, &str), method: &str, body: &[u8], content_type: &str) {
    let tell = checked(to, method, body, content_type);
    with(|world| world.tells.push(tell));
}

pub(crate) fn subscribe(to: (&str, &str), channel: &str, method: &str) {
    subscription(to, channel, method, "\u{1}subscribe");
}

pub(crate) fn unsubscribe(to: (&str, &str), channel: &str) {
    subscription(to, channel, "unsubscribe", "\u{1}unsubscribe");
}

/// Sends the tell that makes or ends a subscription.
fn subscription(to: (&str, &str), channel: &str, method: &str, topic: &str) {
    if !(1..=128).contains(&channel.len()) || channel.chars().any(char::is_control) {
        panic!("invalid-host-call: {channel:?} is not the name of a channel");
    }
    let mut tell = checked(to, method, &[], "");
    let method = if topic == "\u{1}subscribe" { method } else { "" };
    tell.body = format!("{channel}\n{method}").into_bytes();
    topic.clone_into(&mut tell.method);
    with(|world| world.tells.push(tell));
}

pub(crate) fn tell_at(
    name: &str,
    due: u64,
    to: (&str, &str),
    method: &str,
    body: &[u8],
    content_type: &str,
) {
    check_name("tell", name);
    let tell = checked(to, method, body, content_type);
    with(|world| world.delayed.insert(name.to_owned(), (due, tell)));
}

pub(crate) fn cancel_tell(name: &str) -> bool {
    check_name("tell", name);
    if in_query() {
        panic!("write-in-query: a query must not change state, but cancelled the tell `{name}`");
    }
    with(|world| world.delayed.remove(name)).is_some()
}

pub(crate) fn delayed_tells() -> Vec<(String, u64, StoredTell)> {
    let shown =
        |(name, (due, tell)): (&String, &(u64, StoredTell))| (name.clone(), *due, tell.clone());
    with(|world| world.delayed.iter().map(shown).collect())
}

/// The journal of the test's entity.
#[derive(Clone, Default)]
pub(crate) struct Journal {
    events: BTreeMap<u64, Vec<u8>>,
    /// The number of the last event that was ever appended.
    last: u64,
    snapshot: Option<(u64, Vec<u8>)>,
}

pub(crate) fn append_event(data: &[u8]) -> u64 {
    check_journal("append");
    with(|world| {
        let journal = &mut world.journal;
        journal.last += 1;
        journal.events.insert(journal.last, data.to_vec());
        journal.last
    })
}

pub(crate) fn read_events(from: u64, limit: u32) -> JournalPage {
    if !(1..=1000).contains(&limit) {
        panic!("invalid-limit: the limit must be 1 to 1000, not {limit}");
    }
    with(|world| {
        let mut rest = world.journal.events.range(from..);
        let events: Vec<_> = rest
            .by_ref()
            .take(limit as usize)
            .map(|(number, data)| JournalEvent { number: *number, data: data.clone() })
            .collect();
        JournalPage { events, next: rest.next().map(|(number, _)| *number) }
    })
}

pub(crate) fn journal_extent() -> JournalExtent {
    with(|world| {
        let journal = &world.journal;
        let next = journal.last + 1;
        let first = journal.events.keys().next().copied().unwrap_or(next);
        let kept = journal.events.values().chain(journal.snapshot.as_ref().map(|(_, data)| data));
        let bytes = kept.map(|data| data.len() as u64 + 100).sum();
        let snapshot = journal.snapshot.as_ref().map(|(through, _)| *through);
        JournalExtent { first, next, bytes, snapshot }
    })
}

pub(crate) fn truncate_journal(before: u64) -> u64 {
    check_journal("truncate");
    with(|world| world.journal.events.retain(|number, _| *number >= before));
    journal_extent().first
}

pub(crate) fn save_snapshot(data: &[u8]) {
    check_journal("save_snapshot");
    with(|world| world.journal.snapshot = Some((world.journal.last, data.to_vec())));
}

pub(crate) fn load_snapshot() -> Option<(u64, Vec<u8>)> {
    with(|world| world.journal.snapshot.clone())
}

fn check_journal(what: &str) {
    if in_query() {
        panic!("write-in-query: a query must not change state, but called journal::{what}");
    }
}

/// An ask and its answer, which is known immediately.
#[derive(Debug)]
pub(crate) struct AskHandle(Result<Vec<u8>, AskError>);

pub(crate) fn start_ask(
    to: (&str, &str),
    method: &str,
    body: &[u8],
    content_type: &str,
    _timeout_ms: Option<u64>,
) -> AskHandle {
    check_names("ask", to.1, method);
    let ask = stored(to, method, body, content_type);
    let answers = with(|world| {
        world.asks.push(ask.clone());
        world.answers.clone()
    });
    let Some(answers) = answers else {
        panic!(
            "no-answer: nothing answers `{method}` of `{}/{}`; see testing::answer_asks",
            to.0, to.1
        )
    };
    AskHandle(answers(&ask))
}

pub(crate) fn wait_ask(ask: &AskHandle) -> Result<Vec<u8>, AskError> {
    ask.0.clone()
}

pub(crate) fn wait_any_ask(asks: &[&AskHandle]) -> usize {
    assert!(!asks.is_empty(), "invalid-ask: wait_any was called without a pending ask");
    0
}

/// A call and its response, which is known immediately.
#[derive(Debug)]
pub(crate) struct CallHandle(Result<HttpResponse, HttpError>);

pub(crate) fn start_call(request: &HttpRequest) -> Result<CallHandle, HttpError> {
    if in_query() {
        panic!("http-in-query: a query must not make HTTP calls, but called `{}`", request.url);
    }
    let reserved = |name: &str| {
        ["host", "idempotency-key"].iter().any(|other| name.eq_ignore_ascii_case(other))
    };
    if let Some((name, _)) = request.headers.iter().find(|(name, _)| reserved(name)) {
        let message = format!("the request cannot have the header `{name}`: the host sets it");
        return Err(HttpError::NotSent { code: "invalid-request".to_owned(), message });
    }
    let responses = with(|world| {
        world.calls.push(request.clone());
        world.responses.clone()
    });
    let Some(responses) = responses else {
        panic!("no-answer: nothing answers `{}`; see testing::answer_http", request.url)
    };
    Ok(CallHandle(responses(request)))
}

pub(crate) fn wait_call(call: CallHandle) -> Result<HttpResponse, HttpError> {
    call.0
}

fn check_names(of: &str, id: &str, method: &str) {
    for (what, name, most) in [("id", id, 512), ("method", method, 128)] {
        if name.is_empty() || name.len() > most {
            let size = name.len();
            let article = if of == "ask" { "an" } else { "a" };
            panic!(
                "invalid-{of}: {article} {of}'s {what} must be 1 to {most} bytes long, not {size}"
            );
        }
    }
}

fn stored(
    (entity_type, id): (&str, &str),
    method: &str,
    body: &[u8],
    content_type: &str,
) -> StoredTell {
    StoredTell {
        entity_type: entity_type.to_owned(),
        id: id.to_owned(),
        method: method.to_owned(),
        body: body.to_vec(),
        content_type: content_type.to_owned(),
    }
}

fn checked(to: (&str, &str), method: &str, body: &[u8], content_type: &str) -> StoredTell {
    check_names("tell", to.1, method);
    if in_query() {
        panic!("write-in-query: a query must not change state, but sent a tell to `{}`", to.1);
    }
    stored(to, method, body, content_type)
}

fn check_name(of: &str, name: &str) {
    if name.is_empty() || name.len() > 128 {
        panic!("invalid-{of}: a {of}'s name must be 1 to 128 bytes long, not {}", name.len());
    }
}

pub(crate) fn emit(channel: &str, item: &[u8]) {
    if in_query() {
        panic!("write-in-query: a query must not change state, but emitted on `{channel}`");
    }
    if !(1..=128).contains(&channel.len()) || channel.chars().any(char::is_control) {
        panic!("invalid-host-call: {channel:?} is not the name of a channel");
    }
    with(|world| world.emitted.push((channel.to_owned(), item.to_vec())));
}

pub(crate) fn set_remembered(remember: bool) {
    if in_query() {
        let what = if remember { "remember" } else { "forget" };
        panic!("write-in-query: a query must not change state, but called lifecycle::{what}");
    }
    with(|world| world.remembered = remember);
}

pub(crate) fn is_remembered() -> bool {
    with(|world| world.remembered)
}

pub(crate) fn delete_entity() {
    if in_query() {
        panic!("write-in-query: a query must not change state, but called lifecycle::delete");
    }
    if !with(|world| world.may_delete) {
        panic!("invalid-host-call: lifecycle::delete was called in `start` or `stop`");
    }
    with(|world| world.delete = true);
}

pub(crate) fn set_expiry(time: Option<u64>) {
    if in_query() {
        panic!("write-in-query: a query must not change state, but called lifecycle::expire_at");
    }
    with(|world| world.expires_at = time);
}

pub(crate) fn expires_at() -> Option<u64> {
    with(|world| world.expires_at)
}

pub(crate) fn passivate() {
    with(|world| world.passivate = true);
}

pub(crate) fn passivate_after(delay: Option<u64>) {
    with(|world| world.passivate_after = delay);
}

pub(crate) fn log(level: Level, message: &str) {
    with(|world| world.logs.push((level, message.to_owned())));
}

fn check_key(key: &str) {
    if key.is_empty() || key.len() > 512 {
        panic!("invalid-key: a key must be 1 to 512 bytes long, not {}", key.len());
    }
}

fn check_timer(what: &str, name: &str) {
    check_name("timer", name);
    if in_query() {
        panic!(
            "write-in-query: a query must not change state, but called timers::{what} for `{name}`"
        );
    }
}

fn in_query() -> bool {
    with(|world| world.message.as_ref().is_some_and(|message| message.kind == MessageKind::Query))
}

fn check_write(what: &str, key: &str) {
    check_key(key);
    if in_query() {
        panic!(
            "write-in-query: a query must not change state, but called state::{what} on key `{key}`"
        );
    }
}
