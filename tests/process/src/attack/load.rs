//! The load of one round, and the check of its history.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_client::{Client, Entity, MessageKind, Session};
use ostraca_oracle::Outcome;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::HistoryRecorder;
use crate::history::{is_superseded, now, until_answered};

/// Percentage of queries among the messages that a session sends.
const QUERIES: u32 = 30;

/// The size of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadSize {
    /// Number of sessions over all gateways. They send commands and queries; half as many further sessions send only
    /// queries.
    pub sessions: usize,
    /// Number of messages in flight in each session.
    pub in_flight: usize,
    /// Number of counters.
    pub counters: u64,
    /// Number of accounts.
    pub accounts: u64,
    /// How long a session waits after each reply. Long loads set it, since their histories are long.
    pub pace: Duration,
}

impl LoadSize {
    /// The size that most rounds use.
    pub const USUAL: Self =
        Self { sessions: 12, in_flight: 16, counters: 48, accounts: 24, pace: Duration::ZERO };
}

/// Sessions that keep messages in flight until they are stopped.
pub struct Load {
    recorder: Arc<HistoryRecorder>,
    counters: Arc<LoadCounters>,
    senders: JoinSet<()>,
}

/// Counts of the messages in flight, shared with the test.
#[derive(Default)]
struct LoadCounters {
    done: AtomicU64,
    end: AtomicBool,
    number: AtomicU64,
    /// Each command without an outcome, by its number: when it was sent, and through which client.
    waiting: Mutex<HashMap<u64, (u64, usize)>>,
    /// Commands that completed without a final outcome.
    failed: Mutex<Vec<String>>,
}

impl LoadCounters {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, (u64, usize)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Vec<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// Starts the load, with entities of this round only; the sessions are distributed over the clients.
    #[must_use]
    pub fn start(clients: &[Client], seed: u64, round: u64, size: LoadSize) -> Self {
        let (recorder, counters) = (HistoryRecorder::new(), Arc::new(LoadCounters::default()));
        let mut senders = JoinSet::new();
        for place in 0..size.sessions + size.sessions.div_ceil(2) {
            let session = clients[place % clients.len()].session();
            let sender = Sender {
                session,
                reads_only: place >= size.sessions,
                client: place % clients.len(),
                recorder: Arc::clone(&recorder),
                counters: Arc::clone(&counters),
                rng: StdRng::seed_from_u64(seed.wrapping_add(place as u64)),
                round,
                size,
            };
            senders.spawn(sender.run());
        }
        Self { recorder, counters, senders }
    }

    /// Number of commands with an outcome.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.counters.done.load(Ordering::SeqCst)
    }

    /// Number of commands that were sent before a moment ([`now`]) and have no outcome yet.
    #[must_use]
    pub fn unanswered_since(&self, moment: u64) -> usize {
        self.counters.waiting().values().filter(|(sent, _)| *sent < moment).count()
    }

    /// Number of commands that one client sent before a moment and that have no outcome yet.
    #[must_use]
    pub fn unanswered_at(&self, client: usize, moment: u64) -> usize {
        let waiting = self.counters.waiting();
        waiting.values().filter(|(sent, at)| *sent < moment && *at == client).count()
    }

    /// Fails if a command has already completed without a final outcome.
    ///
    /// # Errors
    /// The first such command.
    pub fn failed(&self) -> Result<()> {
        match self.counters.failed().first() {
            Some(first) => bail!("a command has no final outcome: {first}"),
            None => Ok(()),
        }
    }

    /// Stops sending, and waits until every message is answered.
    ///
    /// # Errors
    /// If a command completed without a final outcome.
    pub async fn end(mut self) -> Result<Arc<HistoryRecorder>> {
        self.counters.end.store(true, Ordering::SeqCst);
        while let Some(sender) = self.senders.join_next().await {
            sender.context("a sender")?;
        }
        self.failed()?;
        ensure!(self.counters.waiting().is_empty(), "some messages were not answered");
        Ok(Arc::clone(&self.recorder))
    }
}

struct Sender {
    session: Session,
    client: usize,
    reads_only: bool,
    recorder: Arc<HistoryRecorder>,
    counters: Arc<LoadCounters>,
    rng: StdRng,
    round: u64,
    size: LoadSize,
}

impl Sender {
    async fn run(mut self) {
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < self.size.in_flight && !self.counters.end.load(Ordering::SeqCst) {
                let (kind, entity, method, arguments) = self.next();
                let number = (kind == MessageKind::Command).then(|| {
                    let number = self.counters.number.fetch_add(1, Ordering::SeqCst);
                    self.counters.waiting().insert(number, (now(), self.client));
                    number
                });
                let options = until_answered(kind);
                let call = self.recorder.send(&self.session, &entity, method, arguments, &options);
                calls.push(async move { (number, call.await) });
            }
            let Some((number, ended)) = calls.next().await else { return };
            use ostraca_client::CallError::{NotRun, Unanswered, Unknown};
            match ended {
                Err(error) if number.is_none() && is_superseded(&error) => {}
                Err(error @ (NotRun { .. } | Unknown { .. } | Unanswered { .. })) => {
                    self.counters.failed().push(error.to_string());
                }
                _ => {}
            }
            if let Some(number) = number {
                self.counters.waiting().remove(&number);
                self.counters.done.fetch_add(1, Ordering::SeqCst);
            }
            if !self.size.pace.is_zero() {
                tokio::time::sleep(self.size.pace).await;
            }
        }
    }

    fn next(&mut self) -> (MessageKind, Entity, &'static str, Value) {
        let (round, size) = (self.round, self.size);
        let mut among = |count| format!("r{round}-{}", self.rng.random_range(0..count));
        let counter = Entity::new("counter", among(size.counters));
        let account = Entity::new("account", among(size.accounts));
        let amount = self.rng.random_range(1..100);
        let query = self.reads_only || self.rng.random_ratio(QUERIES, 100);
        match self.rng.random_range(0..4) {
            0 | 1 if query => (MessageKind::Query, counter, "get", json!({})),
            _ if query => (MessageKind::Query, account, "balance", json!({})),
            0 | 1 => (MessageKind::Command, counter, "add", json!({ "by": amount })),
            2 => (MessageKind::Command, account, "deposit", json!({ "cents": amount })),
            _ => (MessageKind::Command, account, "withdraw", json!({ "cents": amount })),
        }
    }
}

/// The result of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadSummary {
    /// Number of commands with a result.
    pub results: u64,
    /// Number of commands that the entity refused.
    pub refusals: u64,
    /// Number of queries that were answered during the load.
    pub queries: u64,
    /// Number of entities that hold every acknowledged command, which must be all of them.
    pub entities: usize,
}

/// Checks a load's history against the current state of its entities.
///
/// # Errors
/// Every violation.
pub async fn judge(recorder: &Arc<HistoryRecorder>, asker: &Session) -> Result<LoadSummary> {
    let operations = recorder.operations();
    let queries = operations.iter().filter(|operation| !operation.command);
    let answered = queries.filter(|query| matches!(query.outcome, Outcome::Final { .. }));
    let mut summary = LoadSummary { queries: answered.count() as u64, ..LoadSummary::default() };
    let few = summary.queries * 10 < operations.len() as u64 * 3;
    ensure!(!few, "only {} of {} messages are queries", summary.queries, operations.len());
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.command) {
        let Outcome::Final { value, .. } = &operation.outcome else {
            bail!("no final outcome: {operation:?}")
        };
        let amount = |name: &str| operation.arguments.get(name).and_then(Value::as_i64);
        let amount = amount("by").or_else(|| amount("cents")).context("no amount")?;
        let gained = match (&*operation.method, value) {
            (_, Err(_)) => 0,
            ("withdraw", _) => -amount,
            _ => amount,
        };
        summary.refusals += u64::from(value.is_err());
        summary.results += u64::from(value.is_ok());
        *expected.entry(operation.entity.clone()).or_default() += gained;
    }
    summary.entities = expected.len();
    let checks = expected.into_iter().map(|(name, expected)| {
        let (kind, id) = name.split_once('/').unwrap_or((&name, ""));
        let method = if kind == "counter" { "get" } else { "balance" };
        let call = recorder.query(asker, &Entity::new(kind, id), method, json!({}));
        async move {
            let answer = call.await.with_context(|| format!("ask {name}"))?;
            let holds: i64 = serde_json::from_slice(&answer.body)?;
            ensure!(holds == expected, "{name} holds {holds}, expected {expected}");
            Ok(())
        }
    });
    futures::future::try_join_all(checks).await?;
    let breaches = recorder.breaches();
    ensure!(breaches.is_empty(), "the oracle found: {breaches:#?}");
    Ok(summary)
}
