//! A guest that does what no guest should: its methods each break one limit or rule, unless their summary says that
//! they behave. For tests of the host only.

#![allow(
    unconditional_recursion,
    clippy::empty_loop,
    reason = "endless recursion and loops are what this guest is for"
)]

mod asking;
mod attack;
mod calling;
mod texts;

use std::hint::black_box;
use std::time::Duration;

use ostraca_sdk::asks::PendingAsk;
use ostraca_sdk::messaging::Entity;
use ostraca_sdk::{
    Error, StartReason, StopReason, asks, channels, clock, context, entity, http, journal,
    lifecycle, log, messaging, random, serde_json, state, timers, variables,
};

use crate::attack::Attack;
use crate::calling::shown;
use crate::texts::CONTROL;

/// The entity.
#[derive(Debug, Default)]
pub struct Misbehaving;

#[entity(state = "keys", schemas = false)]
impl Misbehaving {
    /// Counts starts under `starts`, and keeps the last reason under `start-reason`, unless the id begins with
    /// `no-state`.
    #[start]
    fn start(&mut self, reason: StartReason) -> Result<(), Error> {
        if context::identity().id.starts_with("no-state") {
            return Ok(());
        }
        if context::identity().id.starts_with("no-start") {
            return Err(Error::new("no-start", "this id refuses to start"));
        }
        if context::identity().id.starts_with("delete-start") {
            lifecycle::delete();
        }
        if context::identity().id.starts_with("huge-start") {
            return Err(Error::new("huge-start", "ö".repeat(4 << 20)));
        }
        if context::identity().id.starts_with("long-start") {
            return Err(Error::new("long-start", "ö".repeat(1 << 20)));
        }
        if context::identity().id.starts_with("control-start") {
            return Err(Error::new("control-start", CONTROL));
        }
        if context::identity().id.starts_with("ask-start") {
            Entity::new("misbehaving", "a").start_ask("work", &());
        }
        if context::identity().id.starts_with("http-start") {
            let _ = http::get("http://127.0.0.1:1/");
        }
        if context::identity().id.starts_with("passivate-start") {
            lifecycle::passivate();
        }
        state::set("starts", &(state::get("starts").unwrap_or(0_u64) + 1));
        state::set("start-reason", &format!("{reason:?}"));
        Ok(())
    }

    /// Counts stops under `stops`, and keeps the last reason under `stop-reason`.
    #[stop]
    fn stop(&mut self, reason: StopReason) {
        if context::identity().id.starts_with("no-stop") {
            loop {}
        }
        state::set("stops", &(state::get("stops").unwrap_or(0_u64) + 1));
        state::set("stop-reason", &format!("{reason:?}"));
    }

    /// Behaves: adds to the number under `key`, and returns the sum.
    #[message]
    pub fn add(&mut self, key: String, by: u64) -> u64 {
        let sum = state::get(&key).unwrap_or(0_u64) + by;
        state::set(&key, &sum);
        sum
    }

    /// Behaves: returns the lengths of secrets, or nothing for one that is not set.
    #[message]
    pub fn secrets(&self, names: Vec<String>) -> Vec<Option<usize>> {
        names.iter().map(|name| variables::secret(name).map(|text| text.len())).collect()
    }

    /// Behaves: says whether a secret is this text, and counts the calls.
    #[message]
    pub fn is_secret(&mut self, name: String, text: String) -> bool {
        state::set("checks", &(state::get("checks").unwrap_or(0_u64) + 1));
        variables::secret(&name).is_some_and(|secret| secret == text)
    }

    /// Behaves: returns settings.
    #[message]
    pub fn settings(&self, names: Vec<String>) -> Vec<Option<String>> {
        names.iter().map(|name| variables::setting(name)).collect()
    }

    /// Behaves: returns a setting before and after an ask.
    #[message]
    pub fn setting_around_ask(&mut self, name: String, id: String) -> [Option<String>; 2] {
        let before = variables::setting(&name);
        asking::ask_all("misbehaving", &id, "work", "", 1, 5_000);
        [before, variables::setting(&name)]
    }

    /// Behaves: sets `count` keys.
    #[message]
    pub fn set_keys(&mut self, count: u64) {
        (0..count).for_each(|number| state::set(&format!("f{number}"), &number));
    }

    /// Behaves: tells entities of this type to `add` 1 to `key`, once each, in order.
    #[message]
    pub fn tell_add(&mut self, ids: Vec<String>, key: String) {
        for id in ids {
            let arguments = serde_json::json!({ "key": key, "by": 1 });
            Entity::new("misbehaving", id).tell("add", &arguments);
        }
    }

    /// Behaves: sends an entity a tell with any method and any text, `count` times.
    #[message]
    pub fn tell(&mut self, of: String, id: String, method: String, body: String, count: u64) {
        for _ in 0..count {
            Entity::new(of.clone(), id.clone()).tell_raw(&method, body.as_bytes(), "");
        }
    }

    /// Behaves: tells an entity of this type to note a text, `ms` milliseconds from now.
    #[message]
    pub fn tell_later(&mut self, name: String, id: String, text: String, ms: u64) {
        Entity::new("misbehaving", id).tell_after(&name, Duration::from_millis(ms), "note", &text);
    }

    /// Behaves: cancels a delayed tell.
    #[message]
    pub fn cancel_tell(&mut self, name: String) -> bool {
        messaging::cancel(&name)
    }

    /// Behaves: returns the names and targets of the delayed tells.
    #[message]
    pub fn delayed_tells(&self) -> Vec<(String, String)> {
        let shown = |tell: messaging::DelayedTell| (tell.name, tell.to.id().to_owned());
        messaging::delayed().into_iter().map(shown).collect()
    }

    /// Behaves: sends any number of concurrent asks, with any method and body, to an entity. Returns the outcomes.
    #[message]
    pub fn ask(
        &mut self,
        of: String,
        id: String,
        method: String,
        body: String,
        count: u64,
        ms: u64,
    ) -> Vec<String> {
        asking::ask_all(&of, &id, &method, &body, count, ms)
    }

    /// Behaves: like `ask`, but in a query.
    #[message]
    pub fn ask_in_query(
        &self,
        of: String,
        id: String,
        method: String,
        body: String,
        count: u64,
        ms: u64,
    ) -> Vec<String> {
        asking::ask_all(&of, &id, &method, &body, count, ms)
    }

    /// Behaves: adds 1 to `key`, and asks the first entity to do the same with the remaining ones. Returns the
    /// outcomes, its own first.
    #[message]
    pub fn ask_along(&mut self, ids: Vec<String>, key: String) -> Vec<String> {
        let mut outcomes = vec![Self.add(key.clone(), 1).to_string()];
        outcomes.extend(asking::ask_next(ids, key));
        outcomes
    }

    /// Behaves: adds `by` to `key`, and asks an entity to ask this one for `key`. Returns the sum, and what the other
    /// entity got.
    #[message]
    pub fn add_and_read_back(&mut self, id: String, key: String, by: u64) -> Vec<String> {
        let mut outcomes = vec![Self.add(key.clone(), by).to_string()];
        outcomes.extend(asking::ask_back(id, &key));
        outcomes
    }

    /// Behaves: asks these entities to `work`, and returns their ids in the order in which they answer.
    #[message]
    pub fn ask_any(&mut self, ids: Vec<String>) -> Vec<String> {
        asking::ask_any(ids)
    }

    /// Loops for as many million steps as its id says, and returns the id.
    #[message]
    pub fn work(&self) -> String {
        let id = context::identity().id;
        let millions: u64 = id.parse().unwrap_or_default();
        for step in 0..millions.saturating_mul(1_000_000) {
            black_box(step);
        }
        id
    }

    /// Keeps a pending ask, and waits for the one kept by an earlier turn.
    #[message]
    pub fn ask_and_keep(&mut self, id: String) {
        asking::ask_and_keep(id);
    }

    /// Behaves: makes concurrent HTTP calls, one to each URL, each with a body of `bytes` bytes. Returns the results.
    #[message]
    pub fn call(&mut self, method: String, urls: Vec<String>, bytes: usize) -> Vec<String> {
        calling::call_all(&method, urls, bytes)
    }

    /// Behaves: makes an HTTP call with a header. Returns the result.
    #[message]
    pub fn call_with_header(&mut self, url: String, name: String, value: String) -> String {
        shown(http::Request::get(url).header(name, value).send())
    }

    /// Behaves: asks this entity type, calls, and asks again. Returns the result of the call.
    #[message]
    pub fn call_between_asks(&mut self, id: String, url: String) -> String {
        calling::call_between_asks(&id, url)
    }

    /// A query that makes an HTTP call.
    #[message]
    pub fn call_in_query(&self, url: String) -> String {
        shown(http::get(url))
    }

    /// Makes an HTTP call without waiting for it, and keeps it. Returns the result of the call that an earlier turn
    /// kept.
    #[message]
    pub fn call_and_keep(&mut self, url: String) -> Option<String> {
        calling::call_and_keep(url)
    }

    /// Asks an entity, then traps.
    #[message]
    pub fn ask_and_trap(&mut self, id: String, key: String) -> u64 {
        let arguments = serde_json::json!({ "key": key, "by": 1 });
        let sum = Entity::new("misbehaving", id).ask::<u64>("add", &arguments).unwrap_or_default();
        panic!("after the ask, which returned {sum}");
    }

    /// Calls `wait_any` without any asks.
    #[message]
    pub fn wait_for_none(&mut self) {
        let none: [&PendingAsk; 0] = [];
        asks::wait_any(none);
    }

    /// Sets a timer under any name.
    #[message]
    pub fn set_odd_timer(&mut self, name: String) {
        timers::after(name, Duration::ZERO).set();
    }

    /// Tells itself to do the same again, this many times.
    #[message]
    pub fn tell_myself(&mut self, times: u64) {
        if times > 0 {
            Entity::new("misbehaving", context::identity().id).tell("tell_myself", &(times - 1));
        }
    }

    /// Behaves. Appends events, and returns their numbers.
    #[message]
    pub fn append(&mut self, texts: Vec<String>) -> Vec<u64> {
        texts.iter().map(|text| journal::append_raw(text.as_bytes())).collect()
    }

    /// Appends events of a size. Returns the number of the next event.
    #[message]
    pub fn append_sized(&mut self, bytes: usize, count: u64) -> u64 {
        let data = vec![b'x'; bytes];
        for _ in 0..count {
            journal::append_raw(&data);
        }
        journal::extent().next
    }

    /// Behaves. A page of events, and the number at which the next page begins.
    #[message]
    pub fn events(&self, from: u64, limit: u32) -> (Vec<(u64, String)>, Option<u64>) {
        let page = journal::read_raw(from, limit);
        let text = |data| String::from_utf8(data).unwrap_or_default();
        (page.events.into_iter().map(|it| (it.number, text(it.data))).collect(), page.next)
    }

    /// Behaves. Appends an event and removes those before `before`. Returns the first number that is kept, and the
    /// numbers of the events that the turn then sees.
    #[message]
    pub fn append_and_truncate(&mut self, text: String, before: u64) -> (u64, Vec<u64>) {
        journal::append_raw(text.as_bytes());
        let kept = journal::truncate(before);
        let page = journal::read_raw(0, 1_000);
        (kept, page.events.into_iter().map(|event| event.number).collect())
    }

    /// Behaves. Removes events, and returns the number of the first one that is kept.
    #[message]
    pub fn truncate(&mut self, before: u64) -> u64 {
        journal::truncate(before)
    }

    /// Behaves. First and next number, bytes, and the last event in the snapshot.
    #[message]
    pub fn extent(&self) -> (u64, u64, u64, Option<u64>) {
        let extent = journal::extent();
        (extent.first, extent.next, extent.bytes, extent.snapshot)
    }

    /// Behaves. Saves a snapshot, and returns the one that the turn then sees.
    #[message]
    pub fn save(&mut self, text: String) -> Option<(u64, String)> {
        journal::save_snapshot_raw(text.as_bytes());
        self.saved()
    }

    /// Behaves. The snapshot, and the number of the last event in it.
    #[message]
    pub fn saved(&self) -> Option<(u64, String)> {
        let (through, data) = journal::snapshot_raw()?;
        Some((through, String::from_utf8(data).unwrap_or_default()))
    }

    /// Behaves. Remembers or forgets the entity, and returns what the turn then sees.
    #[message]
    pub fn remember(&mut self, yes: bool) -> bool {
        if yes {
            lifecycle::remember()
        } else {
            lifecycle::forget()
        }
        lifecycle::is_remembered()
    }

    /// Remembers the entity, and then refuses the message.
    #[message]
    pub fn remember_and_refuse(&mut self) -> Result<(), Error> {
        lifecycle::remember();
        Err(Error::new("refused", "as asked"))
    }

    /// Behaves. Whether the entity is remembered.
    #[message]
    pub fn is_remembered(&self) -> bool {
        lifecycle::is_remembered()
    }

    /// Behaves. Notes a text, and deletes the entity.
    #[message]
    pub fn delete(&mut self, text: String) -> String {
        lifecycle::delete();
        state::set("deleted", &text);
        text
    }

    /// Behaves. Sets when the entity expires, from now on, and returns whether the turn sees it.
    #[message]
    pub fn expire_after(&mut self, ms: u64) -> bool {
        lifecycle::expire_after(Duration::from_millis(ms));
        lifecycle::expires_at().is_some()
    }

    /// Behaves. When the entity expires, in milliseconds since 1970.
    #[message]
    pub fn expires_at(&self) -> Option<u64> {
        let at = lifecycle::expires_at()?;
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }

    /// Sets when the entity expires, and then refuses the message.
    #[message]
    pub fn expire_and_refuse(&mut self) -> Result<(), Error> {
        lifecycle::expire_after(Duration::ZERO);
        Err(Error::new("refused", "as asked"))
    }

    /// Deletes the entity, and then refuses the message.
    #[message]
    pub fn delete_and_refuse(&mut self) -> Result<(), Error> {
        lifecycle::delete();
        Err(Error::new("refused", "as asked"))
    }

    /// A query that deletes its entity.
    #[message]
    pub fn query_that_ends(&self) {
        lifecycle::delete();
    }

    /// A query that remembers its entity.
    #[message]
    pub fn query_that_remembers(&self) {
        lifecycle::remember();
    }

    /// Behaves. Emits this many items of this size on a channel.
    #[message]
    pub fn emit(&mut self, channel: String, size: usize, count: usize) {
        for _ in 0..count {
            channels::emit_bytes(&channel, &vec![b'x'; size]);
        }
    }

    /// Behaves. Emits a text on each of these channels, and returns it.
    #[message]
    pub fn emit_text(&mut self, on: Vec<String>, text: String) -> String {
        on.iter().for_each(|channel| channels::emit(channel, &text));
        text
    }

    /// Behaves. Emits these texts on a channel.
    #[message]
    pub fn emit_texts(&mut self, on: String, texts: Vec<String>) {
        texts.iter().for_each(|text| channels::emit(&on, text));
    }

    /// Behaves: keeps the text, and counts the texts under `received`.
    #[message]
    pub fn receive(&mut self, text: String) {
        state::set("received", &(state::get("received").unwrap_or(0_u64) + 1));
        state::set("last", &text);
    }

    /// Emits on a channel that this entity may have subscribed to with this method: it then feeds itself.
    #[message]
    pub fn echo(&mut self, times: u64) {
        attack::echo(times);
    }

    /// Emits on two channels that this entity may have subscribed to with this method: each item becomes two.
    #[message]
    pub fn fork(&mut self, times: u64) {
        attack::fork(times);
    }

    /// Calls host functions again and again in one turn.
    #[message]
    pub fn attack(&mut self, attack: Attack) {
        attack.run();
    }

    /// Behaves: subscribes to a channel of another entity.
    #[message]
    pub fn follow(&mut self, id: String, channel: String, method: String) {
        Entity::new("misbehaving", id).subscribe(&channel, &method);
    }

    /// Behaves: ends a subscription.
    #[message]
    pub fn unfollow(&mut self, id: String, channel: String) {
        Entity::new("misbehaving", id).unsubscribe(&channel);
    }

    /// Emits an item, writes a key of this size and appends an event of this size.
    #[message]
    pub fn emit_and_write(&mut self, item: usize, key: usize, event: usize) {
        channels::emit_bytes("c", &vec![b'x'; item]);
        state::set_raw("k", &vec![b'x'; key]);
        journal::append_raw(&vec![b'x'; event]);
    }

    /// Emits an item, and then refuses the message.
    #[message]
    pub fn emit_and_refuse(&mut self) -> Result<(), Error> {
        channels::emit("c", "x");
        Err(Error::new("refused", "as asked"))
    }

    /// A query that emits an item.
    #[message]
    pub fn query_that_emits(&self) {
        channels::emit("c", "x");
    }

    /// Appends an event, and then refuses the message.
    #[message]
    pub fn append_and_refuse(&mut self, text: String) -> Result<(), Error> {
        journal::append_raw(text.as_bytes());
        Err(Error::new("refused", "as asked"))
    }

    /// A query that appends an event.
    #[message]
    pub fn query_that_appends(&self) -> u64 {
        journal::append_raw(b"sly")
    }

    /// A query that removes events.
    #[message]
    pub fn query_that_truncates(&self) -> u64 {
        journal::truncate(u64::MAX)
    }

    /// Sends a tell, and then refuses the message.
    #[message]
    pub fn tell_and_refuse(&mut self, id: String) -> Result<(), Error> {
        Entity::new("misbehaving", id).tell("note", &"never");
        Err(Error::new("refused", "as asked"))
    }

    /// A query that sends a tell.
    #[message]
    pub fn sly_tell(&self) {
        Entity::new("misbehaving", "x").tell("note", &"sly");
    }

    /// Behaves: appends a text to the list under `notes`.
    #[message]
    pub fn note(&mut self, text: String) {
        let mut notes: Vec<String> = state::get("notes").unwrap_or_default();
        notes.push(text);
        state::set("notes", &notes);
    }

    /// Behaves: lets `note_if_open` succeed from now on.
    #[message]
    pub fn open(&mut self) {
        state::set("open", &true);
    }

    /// Appends a text to the list under `notes`, but only after `open`.
    #[message]
    pub fn note_if_open(&mut self, text: String) -> Result<(), Error> {
        if !state::get("open").unwrap_or(false) {
            return Err(Error::new("closed", "call `open` first"));
        }
        self.note(text);
        Ok(())
    }

    /// Behaves: returns the list under `notes`.
    #[message]
    pub fn notes(&self) -> Vec<String> {
        state::get("notes").unwrap_or_default()
    }

    /// Behaves: returns the JSON value of a key as text.
    #[message]
    pub fn read(&self, key: String) -> Option<String> {
        state::get_raw(&key).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// Writes a key, then panics.
    #[message]
    pub fn panic(&mut self, message: String) {
        state::set("panicked", &true);
        panic!("{message}");
    }

    /// Puts control characters where `what` says (`log`, `panic`, `refuse` or `code`), otherwise into the reply.
    #[message]
    pub fn control(&mut self, what: String) -> Result<String, Error> {
        match what.as_str() {
            "log" => log::log(log::Level::Warn, CONTROL),
            "panic" => panic!("{CONTROL}"),
            "refuse" => return Err(Error::new("refused", CONTROL)),
            "code" => return Err(Error::new(CONTROL, "a code with control characters")),
            _ => {}
        }
        Ok(CONTROL.into())
    }

    /// Writes a key, then traps without a message.
    #[message]
    pub fn trap(&mut self) {
        state::set("trapped", &true);
        std::process::abort();
    }

    /// Writes a key, then refuses the message with a code.
    #[message]
    pub fn refuse(&mut self, code: String) -> Result<(), Error> {
        state::set("refused", &true);
        Err(Error::new(code, "refused, as asked"))
    }

    /// Never returns.
    #[message]
    pub fn spin_for_ever(&mut self) {
        loop {}
    }

    /// Never returns, in a query.
    #[message]
    pub fn spin_for_ever_in_a_query(&self) {
        loop {}
    }

    /// Works for a while: `millions` million steps.
    #[message]
    pub fn spin(&mut self, millions: u64) -> u64 {
        let mut sum = 0_u64;
        for step in 0..millions.saturating_mul(1_000_000) {
            sum = black_box(sum.wrapping_add(step));
        }
        sum
    }

    /// Allocates and touches memory until there is no more.
    #[message]
    pub fn allocate(&mut self) -> usize {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            all.push(black_box(vec![1; 64 * 1024]));
        }
    }

    /// Calls itself until the stack overflows.
    #[message]
    pub fn recurse(&mut self) -> u64 {
        recurse(0)
    }

    /// Logs `lines` lines of `bytes` bytes.
    #[message]
    pub fn log(&mut self, lines: u64, bytes: usize) {
        let line = "x".repeat(bytes);
        for _ in 0..lines {
            log::log(log::Level::Info, &line);
        }
    }

    /// Writes `keys` keys of `bytes` bytes each.
    #[message]
    pub fn fill(&mut self, keys: u64, bytes: usize) {
        let value = vec![b'x'; bytes];
        for key in 0..keys {
            state::set_raw(&format!("fill/{key}"), &value);
        }
    }

    /// Writes `keys` short keys without a value, from number `from` on, as fast as it can.
    #[message]
    pub fn many_keys(&mut self, from: u32, keys: u32) {
        let mut key = *b"00000000";
        for number in from..from.saturating_add(keys) {
            for (at, byte) in key.iter_mut().enumerate() {
                *byte = b'a' + (number >> (28 - 4 * at) & 15) as u8;
            }
            state::set_raw(std::str::from_utf8(&key).unwrap_or_default(), b"");
        }
    }

    /// Sets a key of `bytes` bytes; the host accepts 1 to 512.
    #[message]
    pub fn set_key_of(&mut self, bytes: usize) {
        state::set_raw(&"k".repeat(bytes), b"1");
    }

    /// Lists with a limit, which the host refuses if it is zero or above 1000.
    #[message]
    pub fn list(&self, limit: u32) -> usize {
        state::list_raw("", limit, None).entries.len()
    }

    /// Returns a string of `bytes` bytes.
    #[message]
    pub fn reply(&self, bytes: usize) -> String {
        "x".repeat(bytes)
    }

    /// A query that sets a key.
    #[message]
    pub fn query_that_sets(&self) {
        state::set("query", &true);
    }

    /// A query that deletes a key.
    #[message]
    pub fn query_that_deletes(&self) -> bool {
        state::delete("starts")
    }

    /// Sets the delay of its passivation in milliseconds, or none, and returns how often this entity was started.
    #[message]
    pub fn passivate_after(&self, delay: Option<u64>) -> u64 {
        lifecycle::passivate_after(delay.map(Duration::from_millis));
        state::get("starts").unwrap_or(0)
    }

    /// Asks for passivation, and returns how often this entity was started.
    #[message]
    pub fn passivate(&mut self) -> u64 {
        lifecycle::passivate();
        state::get("starts").unwrap_or(0)
    }

    /// Returns what the host reports about this entity and message: type, id, principal, sequence, version.
    #[message]
    pub fn who(&self) -> (String, String, String, u64, u64) {
        let identity = context::identity();
        let (principal, sequence, version) = context::current_message()
            .map(|message| (message.principal, message.sequence, message.version))
            .unwrap_or_default();
        (identity.entity_type, identity.id, principal, sequence, version)
    }

    /// Behaves: returns the turn's time and its first random number, and logs both as `stamp=TIME,NUMBER;`.
    #[message]
    pub fn stamp(&mut self) -> (u64, u64) {
        let stamp = (clock::unix_ms(), random::u64());
        log::log(log::Level::Info, &format!("stamp={},{};", stamp.0, stamp.1));
        state::set("stamp", &stamp);
        stamp
    }

    /// Behaves: returns the turn's time, the time from the standard library, and `bytes` random bytes.
    #[message]
    pub fn values(&self, bytes: usize) -> (u64, u64, Vec<u8>) {
        let mut drawn = vec![0; bytes];
        random::fill(&mut drawn);
        (clock::unix_ms(), std_unix_ms(), drawn)
    }

    /// Asks for `bytes` random bytes in one call; the host returns at most 65,536.
    #[message]
    pub fn random_bytes(&self, bytes: u32) -> usize {
        raw_random_bytes(bytes)
    }

    /// Behaves: sets `count` timers, `name` or `name/1` to `name/count`, that fire after `after_ms`, then every
    /// `every_ms` unless that is 0, each with a payload of `bytes` bytes.
    #[message]
    pub fn set_timers(
        &mut self,
        name: String,
        count: u64,
        after_ms: u64,
        every_ms: u64,
        bytes: usize,
    ) {
        for number in 1..=count {
            let name = if count == 1 { name.clone() } else { format!("{name}/{number}") };
            let mut timer = timers::after(name, Duration::from_millis(after_ms));
            if every_ms > 0 {
                timer = timer.every(Duration::from_millis(every_ms));
            }
            timer.payload(&"x".repeat(bytes)).set();
        }
    }

    /// Behaves: cancels a timer.
    #[message]
    pub fn cancel_timer(&mut self, name: String) -> bool {
        timers::cancel(&name)
    }

    /// Behaves: returns each timer's name, failed attempts, and whether it was set aside.
    #[message]
    pub fn timers(&self) -> Vec<(String, u32, bool)> {
        let all = timers::list().into_iter();
        all.map(|timer| (timer.name, timer.attempts, timer.set_aside)).collect()
    }

    /// Behaves: returns what rang: name, number of firings, lateness of the last one in milliseconds, intervals missed.
    #[message]
    pub fn rung(&self) -> Vec<(String, u64, i64, u64)> {
        let all = state::list::<(u64, i64, u64)>("rung/");
        all.map(|(name, (count, late, missed))| (name["rung/".len()..].into(), count, late, missed))
            .collect()
    }

    /// A query that sets a timer.
    #[message]
    pub fn query_that_sets_a_timer(&self) {
        timers::after("query", Duration::ZERO).set();
    }

    /// Behaves: counts the firing under `rung/NAME`.
    #[timer]
    fn ring(&mut self) {
        let Some(firing) = timers::current() else { return };
        let key = format!("rung/{}", firing.name);
        let (count, _, missed) = state::get(&key).unwrap_or((0_u64, 0_i64, 0_u64));
        let late = clock::unix_ms() as i64 - firing.due as i64;
        state::set(&key, &(count + 1, late, missed + firing.missed));
    }

    /// Writes a key, then panics.
    #[timer]
    fn alarm(&mut self) {
        state::set("alarmed", &true);
        panic!("the alarm fails");
    }

    /// Writes a key and sets a timer, then refuses.
    #[timer]
    fn stubborn(&mut self) -> Result<(), Error> {
        state::set("stubborn", &true);
        timers::after("ring", Duration::ZERO).set();
        Err(Error::new("stubborn", "not today"))
    }

    /// Returns the message's content type, traceparent and tracestate, as the host passes them.
    #[message]
    pub fn envelope(&self) -> (String, String, String) {
        context::current_message()
            .map(|message| (message.content_type, message.traceparent, message.tracestate))
            .unwrap_or_default()
    }
}

/// The standard library's clock; 0 where it has none.
fn std_unix_ms() -> u64 {
    if cfg!(not(target_os = "wasi")) {
        return 0;
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(target_family = "wasm")]
fn raw_random_bytes(bytes: u32) -> usize {
    ostraca_sdk::bindings::entity::ostraca::entity::random::get_bytes(bytes).len()
}

#[cfg(not(target_family = "wasm"))]
fn raw_random_bytes(bytes: u32) -> usize {
    bytes as usize
}

fn recurse(depth: u64) -> u64 {
    // The addition after the call keeps the compiler from turning the recursion into a loop.
    black_box(recurse(black_box(depth + 1)) + depth)
}
