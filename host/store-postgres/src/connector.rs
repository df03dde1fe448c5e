//! What keeps the connections that write, and what they know of the database together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_store::StoreError;
use tokio::time::Instant;

use crate::error::OpenError;
use crate::fail_over::{History, ServerState};
use crate::options::Options;
use crate::writer::{Writer, WriterRow};

/// What the store's connections know of the database together.
#[derive(Clone)]
pub(crate) struct Health {
    batches: Arc<AtomicU64>,
    /// The highest sequence that was read from the database.
    seen: Arc<AtomicU64>,
    /// Why the store has stopped.
    stopped: Arc<Mutex<Option<String>>>,
    history: Arc<Mutex<History>>,
    /// Whether the commits wait for a standby.
    replicated: Arc<AtomicBool>,
}

impl Health {
    pub(crate) fn new(server: ServerState) -> Self {
        Self {
            batches: Arc::default(),
            seen: Arc::default(),
            stopped: Arc::default(),
            history: Arc::new(Mutex::new(server.history)),
            replicated: Arc::new(AtomicBool::new(server.replicated)),
        }
    }

    /// The server's history, as last checked.
    pub(crate) fn history(&self) -> History {
        *self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the server after a fail-over.
    pub(crate) fn follow(&self, history: History) {
        *self.history.lock().unwrap_or_else(PoisonError::into_inner) = history;
    }

    /// Whether the last commits waited for a standby.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated.load(Ordering::SeqCst)
    }

    pub(crate) fn note_replication(&self, replicated: bool) {
        self.replicated.store(replicated, Ordering::SeqCst);
    }

    /// Number of batches of this process that are durable.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, batches: i64) {
        self.batches.fetch_add(batches.cast_unsigned(), Ordering::Relaxed);
    }

    /// The highest sequence that was read from the database.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, sequence: u64) {
        self.seen.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Fails if the store has stopped.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.clone().map_or(Ok(()), |why| Err(StoreError::Stopped(why)))
    }

    pub(crate) fn stop(&self, why: &str) {
        tracing::error!(why, "the store has stopped");
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.get_or_insert_with(|| why.to_owned());
    }
}

/// Keeps a connection that writes, and replaces it when it is lost.
pub(crate) struct Connector {
    pub(crate) options: Arc<Options>,
    opening: i64,
    writer: Option<Writer>,
    /// The row of the last connection, which the next one ends.
    before: Option<WriterRow>,
    next_id: i64,
    failed_at: Option<(Instant, String)>,
    pub(crate) health: Health,
}

impl Connector {
    pub(crate) fn new(options: Arc<Options>, opening: i64, health: Health) -> Self {
        let next_id = random_id();
        Self { options, opening, writer: None, before: None, next_id, failed_at: None, health }
    }

    /// The connection. If there is none, one attempt is made to connect.
    pub(crate) async fn writer(&mut self) -> Result<&mut Writer, StoreError> {
        self.health.check()?;
        if let Some(lost) = self.writer.take_if(|writer| !writer.is_usable()) {
            self.before = Some(lost.row());
        }
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.connect().await?,
        };
        Ok(self.writer.insert(writer))
    }

    async fn connect(&mut self) -> Result<Writer, StoreError> {
        // What has waited meanwhile is refused at once: its senders may try again elsewhere.
        let pause = self.options.connect_timeout / 50;
        if let Some((at, why)) = &self.failed_at
            && at.elapsed() < pause
        {
            return Err(StoreError::Unavailable(why.clone()));
        }
        match Writer::open(&self.options, &self.health, self.opening, self.next_id, self.before)
            .await
        {
            Ok(writer) => {
                (self.before, self.failed_at) = (None, None);
                self.next_id = random_id();
                Ok(writer)
            }
            Err(error) => {
                if matches!(error, OpenError::RolledBack) {
                    self.health.stop(&error.to_string());
                }
                self.failed_at = Some((Instant::now(), error.to_string()));
                Err(error.into())
            }
        }
    }
}

fn random_id() -> i64 {
    i64::try_from(rand::random::<u64>() >> 1).unwrap_or_default()
}
