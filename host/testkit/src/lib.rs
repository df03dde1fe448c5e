//! Tests of entities as they are deployed: the real component in the real sandbox, with the real core, in one process.
//!
//! The unit tests of the SDK (`ostraca_sdk::testing`) call the entity's Rust code directly. They are quick, and cannot
//! tell whether the manifest grants what the entity needs, whether a turn stays within its limits, or what happens when
//! a node dies between two turns. This kit can: it runs the component that `ostraca build` would build, and the test
//! plays the cluster.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use ostraca_testkit::Kit;
//! use serde_json::json;
//!
//! let mut kit = Kit::new();
//! kit.deploy(env!("CARGO_MANIFEST_DIR")).expect("a valid component");
//! assert_eq!(kit.command("counter/alice", "add", json!(2)), Ok(json!(2)));
//! kit.crash("counter/alice");                       // its node dies; another one takes over
//! assert_eq!(kit.query("counter/alice", "get", json!(null)), Ok(json!(2)));
//! kit.advance(Duration::from_secs(3_600));          // timers fire, each at its own time
//! ```
//!
//! # Time
//!
//! Time stands still until the test moves it with [`Kit::advance`]. Timers, delayed tells, pauses between attempts,
//! idle timeouts and times to live follow this clock. A call that must wait, for example for an entity that is being
//! started again after a failure, lets time pass until its reply. Only the guest's own limits (`turn-time`) are in real
//! time.
//!
//! # Other entities
//!
//! Types that are deployed in the same kit receive tells and asks, under the manifests' grants. For other types the test
//! answers ([`Kit::answer`]). HTTP calls never leave the process: the test answers them ([`Kit::answer_http`]), and
//! without an answer they fail with `connection-refused`.
//!
//! # Faults
//!
//! [`Kit::crash`], [`Kit::hand_off`], [`Kit::trap_next_turn`] and [`Kit::lose_next_commit`] are what can happen to an
//! entity at any time. None of them may be visible in its behaviour.
//!
//! A test of the same program always runs alike: there is one thread, one clock, and one source of random numbers.

mod component;
mod driver;
mod error;
mod http;
mod read;
mod sent;
mod sink;
mod store;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ostraca_catalog::DeployedType;
use ostraca_catalog::pool::path;
use ostraca_catalog::rows::MethodEntry;
use ostraca_config::Manifest;
use ostraca_core::ids::{Entity, ScopedSessionId};
use ostraca_core::message::Outcome;
use ostraca_core::pools::Pools;
use ostraca_core::records::GuestReply;
use ostraca_wasm::{
    CompilerProgram, CompilerSettings, OutgoingHttpSettings, RuntimeSettings, TypeVariables,
    WasmRuntime,
};
use ostraca_wire::proto::{Envelope, MessageKind};
use ostraca_workers::guest_types::core_kind;
use serde_json::Value;

pub use error::{CallError, DeployError};
pub use http::{HttpCall, HttpReply};
pub use read::{Stored, TimerState};
pub use sent::{Refusal, SentMessage};

use driver::Driver;
use http::Http;

/// How long a call waits for its reply, in virtual time.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of attempts of a call whose outcome is unknown, under the same id, as clients make them.
const ATTEMPTS: usize = 10;

/// Held while a sandbox starts.
static STARTING: Mutex<()> = Mutex::new(());

/// The settings of a sandbox whose HTTP calls the test answers.
fn sandbox(http: &Arc<Mutex<Http>>, cache_dir: Option<PathBuf>) -> RuntimeSettings {
    let compiler =
        CompilerSettings { program: CompilerProgram::InProcess, ..CompilerSettings::default() };
    let outgoing_http = OutgoingHttpSettings {
        answers: Some(Http::answers(http)),
        ..OutgoingHttpSettings::default()
    };
    RuntimeSettings {
        max_live_instances: Some(200),
        cache_dir,
        compiler,
        outgoing_http,
        ..RuntimeSettings::default()
    }
}

/// A cluster in one process: entities, their store, and a clock.
pub struct Kit {
    driver: Driver,
    wasm: WasmRuntime,
    http: Arc<Mutex<Http>>,
    principal: String,
    /// The number of the last message. All of them are in one session for each principal.
    sequence: u64,
}

impl Default for Kit {
    fn default() -> Self {
        Self::new()
    }
}

impl Kit {
    /// Creates an empty cluster. It takes some tens of milliseconds.
    ///
    /// # Panics
    /// If the sandbox does not start.
    #[must_use]
    pub fn new() -> Self {
        let http = Arc::<Mutex<Http>>::default();
        let wasm = {
            // The directory is created by the first of the tests that run concurrently.
            let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            let cached =
                WasmRuntime::new(&sandbox(&http, Some(component::scratch("testkit-cache"))));
            // Without a cache, components are only compiled again.
            cached.or_else(|_| WasmRuntime::new(&sandbox(&http, None)))
        };
        #[expect(clippy::expect_used, reason = "a test cannot go on without a sandbox")]
        let wasm = wasm.expect("the sandbox starts");
        let (driver, principal) = (Driver::new(), "client/test".to_owned());
        Self { driver, wasm, http, principal, sequence: 0 }
    }

    /// Builds a package as `ostraca build` does, and deploys it with the `entity.toml` next to its `Cargo.toml`.
    /// Cargo builds it in a directory of its own, which takes some seconds the first time.
    ///
    /// # Errors
    /// [`DeployError`], if there is no component or the manifest is invalid.
    pub fn deploy(&mut self, package: impl AsRef<Path>) -> Result<(), DeployError> {
        let path = package.as_ref().join("entity.toml");
        let manifest = std::fs::read_to_string(&path)
            .map_err(|source| DeployError::File { path: path.clone(), source })?;
        self.deploy_with(package, &manifest)
    }

    /// Like [`Kit::deploy`], with the text of another manifest.
    ///
    /// # Errors
    /// As [`Kit::deploy`].
    pub fn deploy_with(
        &mut self,
        package: impl AsRef<Path>,
        manifest: &str,
    ) -> Result<(), DeployError> {
        let component = component::build(package.as_ref())?;
        self.deploy_component(manifest, &component)
    }

    /// Deploys a component in any language, as a new revision if its type is deployed already.
    ///
    /// # Errors
    /// [`DeployError`], if the manifest or the component is refused.
    pub fn deploy_component(
        &mut self,
        manifest: &str,
        component: &[u8],
    ) -> Result<(), DeployError> {
        let manifest = Manifest::parse(manifest, "entity.toml")
            .map_err(|error| DeployError::Manifest(error.to_string()))?;
        let refused = |why: String| DeployError::Component(why);
        let program = self
            .wasm
            .prepare_blocking(component, manifest.wasm_limits())
            .map_err(|error| refused(error.to_string()))?;
        let methods = program.methods().iter().map(|method| {
            MethodEntry::new(&method.name, core_kind(method.kind), &method.summary)
                .map_err(|error| refused(error.to_string()))
        });
        let methods = methods.collect::<Result<Vec<_>, _>>()?;
        let before = self.driver.types.get(manifest.entity_type.as_str());
        let revision = before.map_or(1, |before| before.revision + 1);
        let (digest, size) = ([0; 32], component.len() as u64);
        let entry = DeployedType::new(revision, manifest, &methods, Some(program), digest, size);
        self.driver.deploy(entry);
        Ok(())
    }

    /// Sets who sends the messages that follow. Default: `client/test`.
    pub fn set_principal(&mut self, principal: &str) {
        self.principal = principal.to_owned();
    }

    /// Sets a secret of a type, as `ostraca secret set` does. The type's entities read it from their next turn on.
    pub fn set_secret(&mut self, entity_type: &str, name: &str, text: &str) {
        self.set_variable(entity_type, |all| {
            all.secrets.insert(name.to_owned(), Ok(text.to_owned().into()));
        });
    }

    /// Sets a setting of a type, as `ostraca setting set` does. The type's entities read it from their next turn on.
    pub fn set_setting(&mut self, entity_type: &str, name: &str, text: &str) {
        self.set_variable(entity_type, |all| {
            all.settings.insert(name.to_owned(), text.to_owned());
        });
    }

    fn set_variable(&mut self, entity_type: &str, set: impl FnOnce(&mut TypeVariables)) {
        let registry = self.wasm.variables();
        let mut variables = (*registry.of(entity_type)).clone();
        set(&mut variables);
        registry.set(entity_type, variables);
    }

    /// Sends a command to the entity `TYPE/ID`, and returns its result.
    ///
    /// # Errors
    /// [`CallError`], if there is no result.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn command(&mut self, entity: &str, method: &str, body: Value) -> Result<Value, CallError> {
        self.call(MessageKind::Command, entity, method, body)
    }

    /// Sends a query to the entity `TYPE/ID`, and returns its result.
    ///
    /// # Errors
    /// [`CallError`], if there is no result.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn query(&mut self, entity: &str, method: &str, body: Value) -> Result<Value, CallError> {
        self.call(MessageKind::Query, entity, method, body)
    }

    fn call(
        &mut self,
        kind: MessageKind,
        entity: &str,
        method: &str,
        body: Value,
    ) -> Result<Value, CallError> {
        let target = entity_of(entity);
        self.sequence += 1;
        let session = ScopedSessionId::derive(&self.principal, b"testkit");
        let now = self.driver.clock.now();
        let timeout = millis(CALL_TIMEOUT);
        let envelope = Envelope {
            kind: kind.into(),
            r#type: target.entity_type.to_string(),
            id: target.id.to_string(),
            session: Bytes::copy_from_slice(&session.0),
            sequence: self.sequence,
            settled: self.sequence,
            method: method.to_owned(),
            body: if body.is_null() { Bytes::new() } else { body.to_string().into() },
            content_type: "application/json".into(),
            principal: self.principal.clone(),
            remaining_ms: timeout,
            created_ms: now.cluster_time,
            utc_ms: now.utc,
            ..Envelope::default()
        };
        let mut message = "the outcome is unknown".to_owned();
        for _ in 0..ATTEMPTS {
            let tag = self.driver.deliver_test(&envelope, session);
            match self.driver.advance_until(timeout, |driver| driver.take_reply(tag)) {
                Some(Outcome::Final { reply, .. }) => return result(reply),
                Some(Outcome::NotRun { code, message, .. }) if !is_moving(&code) => {
                    return Err(CallError::NotRun { code: code.into_owned(), message });
                }
                Some(Outcome::NotRun { message: why, .. } | Outcome::Unknown { message: why }) => {
                    message = why;
                }
                None => message = format!("{entity} did not answer within {CALL_TIMEOUT:?}"),
            }
        }
        Err(CallError::NoReply { message })
    }

    /// The time that turns read.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        read::time(self.driver.clock.utc_ms())
    }

    /// Lets time pass. Whatever becomes due meanwhile happens at its own time, in order.
    ///
    /// # Panics
    /// If more than 100,000 things happen, since timers then set each other endlessly.
    pub fn advance(&mut self, by: Duration) {
        self.driver.advance(millis(by));
    }

    /// Answers the tells and asks to a type that is not deployed. Like an entity, the function runs once for each
    /// message; a copy gets the same answer. It returns a result, or the code and message of an application error.
    pub fn answer(
        &mut self,
        entity_type: &str,
        answer: impl FnMut(&SentMessage) -> Result<Value, Refusal> + 'static,
    ) {
        self.driver.sent.set_answer(entity_type, Box::new(answer));
    }

    /// Removes and returns the tells that entities have sent, each once, in order.
    pub fn take_tells(&mut self) -> Vec<SentMessage> {
        self.driver.sent.take_tells()
    }

    /// Removes and returns the asks that entities have sent, each once, in order.
    pub fn take_asks(&mut self) -> Vec<SentMessage> {
        self.driver.sent.take_asks()
    }

    /// Answers all HTTP calls from now on.
    pub fn answer_http(&mut self, answer: impl FnMut(&HttpCall) -> HttpReply + Send + 'static) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        http.set_answer(Box::new(answer));
    }

    /// Removes and returns the HTTP calls that entities have made, copies included, in order.
    pub fn take_http_calls(&mut self) -> Vec<HttpCall> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner).take_calls()
    }

    /// The node of the entity dies: its instance, and everything that was not committed, is lost. Another node takes
    /// over. Other entities in the same shard are affected as well.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn crash(&mut self, entity: &str) {
        self.driver.crash(&entity_of(entity));
    }

    /// The entity moves to another node: its `stop` hook runs, and its instance is dropped. Other entities in the same
    /// shard move as well.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn hand_off(&mut self, entity: &str) {
        self.driver.hand_off(&entity_of(entity));
    }

    /// The entity's next turn traps after it has run: it has no effect, and its instance is dropped.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn trap_next_turn(&mut self, entity: &str) {
        self.driver.trap_next_turn(entity_of(entity));
    }

    /// The entity's node dies after its next turn has run and before it is committed: the turn has no effect, and runs
    /// again on another node.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn lose_next_commit(&mut self, entity: &str) {
        self.lose_commit_after(entity, 0);
    }

    /// Like [`Kit::lose_next_commit`], but the entity commits this often before.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn lose_commit_after(&mut self, entity: &str, commits: u32) {
        self.driver.store.lose_commit(entity_of(entity), commits);
    }

    /// What is stored of the entity.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    #[must_use]
    pub fn stored(&self, entity: &str) -> Stored {
        let entity = entity_of(entity);
        read::read(
            &self.driver.store,
            &path(&Pools::one(driver::SHARDS), self.driver.shard(&entity)),
            &entity,
        )
    }

    /// All items that committed turns of the entity have emitted on a channel, whatever the channel keeps.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`, or an item is not JSON.
    #[must_use]
    pub fn items(&self, entity: &str, channel: &str) -> Vec<Value> {
        let items = self.driver.store.items(&entity_of(entity), channel);
        #[expect(clippy::expect_used, reason = "documented")]
        let json = |item: &Bytes| serde_json::from_slice(item).expect("the item is JSON");
        items.iter().map(json).collect()
    }

    /// Whether the entity has an instance now.
    ///
    /// # Panics
    /// If `entity` is not `TYPE/ID`.
    pub fn has_instance(&mut self, entity: &str) -> bool {
        self.driver.has_instance(&entity_of(entity))
    }
}

/// Whether the entity's shard has no owner at the moment, so that the message is sent again.
fn is_moving(code: &str) -> bool {
    code == ostraca_codes::codes::NOT_OWNER || code == ostraca_codes::codes::REBALANCING
}

fn result(reply: GuestReply) -> Result<Value, CallError> {
    match reply {
        GuestReply::Result(body) if body.is_empty() => Ok(Value::Null),
        GuestReply::Result(body) => serde_json::from_slice(&body).map_err(|error| {
            CallError::NoReply { message: format!("the reply is not JSON: {error}") }
        }),
        GuestReply::Error { code, message } => Err(CallError::Application { code, message }),
        GuestReply::Dropped => {
            Err(CallError::NoReply { message: "the reply is no longer kept".into() })
        }
    }
}

#[expect(clippy::panic, reason = "documented")]
fn entity_of(text: &str) -> Entity {
    match text.split_once('/') {
        Some((entity_type, id)) if !entity_type.is_empty() && !id.is_empty() => {
            Entity::new(entity_type, id)
        }
        _ => panic!("`{text}` is not TYPE/ID"),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
