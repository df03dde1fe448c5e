//! What keeps the connections that write.

use std::sync::Arc;

use ostraca_store::StoreError;
use tokio::time::Instant;

use crate::error::OpenError;
use crate::health::Health;
use crate::options::Options;
use crate::writer::{Writer, WriterRow};

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
                if matches!(error, OpenError::RolledBack | OpenError::Moved { .. }) {
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
