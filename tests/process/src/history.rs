//! What clients observed, in the form that the oracle checks.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use ostraca_client::{CallError, CallOptions, Entity, MessageKind, Reply, Session};
use ostraca_oracle::{End, Model, Operation, Outcome, check};
use serde_json::Value;

/// Nanoseconds of `CLOCK_MONOTONIC`, which is the same for all processes of the machine, including those with the
/// preloaded recorder.
#[must_use]
pub fn now() -> u64 {
    // This clock exists on every Linux.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Records every message with its outcome.
#[derive(Debug, Default)]
pub struct HistoryRecorder {
    operations: Mutex<Vec<Operation>>,
}

impl HistoryRecorder {
    /// Creates an empty recorder.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sends a message now; the future waits for its outcome and records it.
    pub fn send(
        self: &Arc<Self>,
        session: &Session,
        entity: &Entity,
        method: &str,
        arguments: Value,
        options: &CallOptions,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<> {
        let sent = now();
        let call = session.send(entity, method, arguments.to_string(), options);
        let id = call.id();
        let mut operation = Operation {
            entity: entity.to_string(),
            session: id.session.to_string(),
            sequence: id.sequence,
            command: options.kind == MessageKind::Command,
            method: method.into(),
            arguments,
            sent,
            received: 0,
            given_up: None,
            outcome: Outcome::Unknown,
        };
        let recorder = Arc::clone(self);
        async move {
            let ended = call.await;
            operation.received = now();
            operation.outcome = outcome(&ended);
            recorder.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
            ended
        }
    }

    /// Sends a command with a long deadline: the future completes when the command is answered.
    pub fn command(
        self: &Arc<Self>,
        session: &Session,
        entity: &Entity,
        method: &str,
        arguments: Value,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<> {
        self.send(session, entity, method, arguments, &until_answered(MessageKind::Command))
    }

    /// Sends a query with a long deadline.
    pub fn query(
        self: &Arc<Self>,
        session: &Session,
        entity: &Entity,
        method: &str,
        arguments: Value,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + use<> {
        self.send(session, entity, method, arguments, &until_answered(MessageKind::Query))
    }

    /// Everything that has been recorded so far.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The violations that the oracle finds in a history of counters and accounts.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        let found = check(Example::of, &self.operations(), &End::default());
        found.iter().map(ToString::to_string).collect()
    }
}

/// Options with a deadline beyond every test's timeout: the message is resent until it gets a reply.
#[must_use]
pub fn until_answered(kind: MessageKind) -> CallOptions {
    CallOptions { kind, timeout: Duration::from_secs(120), ..CallOptions::default() }
}

/// Whether a query has no reply because the reply to an earlier copy was lost and a command of its session has run
/// since: the state that it read no longer exists.
#[must_use]
pub fn is_superseded(error: &CallError) -> bool {
    match error {
        CallError::NotRun { code, .. } => **code == *SUPERSEDED,
        CallError::Unanswered { cause: why, .. } => **why == *SUPERSEDED,
        _ => false,
    }
}

const SUPERSEDED: &str = "superseded";

fn outcome(ended: &Result<Reply, CallError>) -> Outcome {
    match ended {
        Ok(answer) => Outcome::Final {
            version: answer.version,
            value: Ok(serde_json::from_slice(&answer.body).unwrap_or(Value::Null)),
        },
        Err(CallError::Application { version, code, .. }) => {
            Outcome::Final { version: *version, value: Err(code.to_string()) }
        }
        Err(CallError::NotRun { .. }) => Outcome::NotRun,
        // With a dropped reply, the command ran and its result is unknown.
        Err(
            CallError::Unanswered { .. }
            | CallError::Unknown { .. }
            | CallError::ReplyDropped { .. },
        ) => Outcome::Unknown,
    }
}

/// A sequential model of `examples/counter`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    value: u64,
}

impl Model for Counter {
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String> {
        match method {
            "add" => {
                let by = arguments.get("by").and_then(Value::as_u64).ok_or("bad-arguments")?;
                self.value = self.value.checked_add(by).ok_or("limit-reached")?;
                Ok(self.value.into())
            }
            "reset" => Ok(std::mem::take(&mut self.value).into()),
            _ => Err("unknown-method".into()),
        }
    }

    fn query(&self, _: &str, _: &Value) -> Result<Value, String> {
        Ok(self.value.into())
    }
}

/// A sequential model of the deposits and withdrawals of `examples/account`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    cents: i64,
}

impl Model for Account {
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String> {
        let cents = arguments.get("cents").and_then(Value::as_i64).filter(|cents| *cents > 0);
        let cents = cents.ok_or("invalid-amount")?;
        self.cents = match method {
            "deposit" => self.cents.checked_add(cents).ok_or("invalid-amount")?,
            "withdraw" if cents > self.cents => return Err("insufficient-funds".into()),
            "withdraw" => self.cents - cents,
            _ => return Err("unknown-method".into()),
        };
        Ok(self.cents.into())
    }

    fn query(&self, _: &str, _: &Value) -> Result<Value, String> {
        Ok(self.cents.into())
    }
}

/// The model of an example's entity, chosen by its type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Example {
    /// An entity of `examples/counter`.
    Counter(Counter),
    /// An entity of `examples/account`.
    Account(Account),
}

impl Example {
    /// The initial model of the entity's type.
    #[must_use]
    pub fn of(entity: &str) -> Self {
        match entity.split_once('/') {
            Some(("account", _)) => Self::Account(Account::default()),
            _ => Self::Counter(Counter::default()),
        }
    }
}

impl Model for Example {
    fn command(&mut self, method: &str, arguments: &Value) -> Result<Value, String> {
        match self {
            Self::Counter(counter) => counter.command(method, arguments),
            Self::Account(account) => account.command(method, arguments),
        }
    }

    fn query(&self, method: &str, arguments: &Value) -> Result<Value, String> {
        match self {
            Self::Counter(counter) => counter.query(method, arguments),
            Self::Account(account) => account.query(method, arguments),
        }
    }
}
