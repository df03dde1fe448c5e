//! Follows the changes of rows that any node makes, for the watches of this process.
//!
//! The database lists the last changes by revision, and they become visible in that order. So the follower asks for
//! those after the last one that it knows, whenever the server notifies it, this process has changed a row, or
//! `watch_interval` has passed. If the list no longer reaches back that far, all watches must list the rows again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::{RowEvent, StoreError, StoredRow};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};

use crate::connection::Connection;
use crate::error::{ColumnError, OpenError, text};
use crate::health::Health;
use crate::options::Options;
use crate::row::{column, key_text};

/// The most changes that are read at a time.
const PAGE: i64 = 1000;
/// The pause before a lost connection is opened again.
const PAUSE: Duration = Duration::from_millis(100);

const CHANGES: &str =
    "SELECT c.revision, c.key, c.value, v.last, v.forgotten FROM ostraca.revision v
    LEFT JOIN ostraca.row_changes c ON c.revision > $1 ORDER BY c.revision LIMIT $2";

/// Wakes the follower.
#[derive(Clone, Default)]
pub(crate) struct Follower(Arc<Notify>);

impl Follower {
    /// Lets the follower look for changes now.
    pub(crate) fn look(&self) {
        self.0.notify_one();
    }

    /// Follows changes from `revision` on until `open` is dropped.
    pub(crate) async fn run(
        self,
        options: Arc<Options>,
        history: ChangeHistory,
        revision: u64,
        health: Health,
        mut open: watch::Receiver<()>,
    ) {
        let mut last = revision;
        let following = async {
            loop {
                if let Err(error) = self.follow(&options, &health, &history, &mut last).await {
                    tracing::debug!(%error, "cannot follow the changes of rows");
                    if matches!(error, StoreError::Stopped(_)) {
                        health.stop(&error.to_string());
                        return;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = following => {}
            _ = open.changed() => {}
        }
        history.close();
    }

    /// Follows over one connection until it is lost.
    async fn follow(
        &self,
        options: &Options,
        health: &Health,
        history: &ChangeHistory,
        last: &mut u64,
    ) -> Result<(), StoreError> {
        let connection = Connection::open_again(options, health).await?;
        if options.listen {
            let failed = |error| StoreError::from(OpenError::statement(&error));
            connection.client.batch_execute("LISTEN ostraca_rows").await.map_err(failed)?;
        }
        loop {
            while fetch(&connection, options, history, last).await? {}
            let told = async {
                tokio::select! {
                    () = connection.notified() => {}
                    () = self.0.notified() => {}
                }
            };
            // After this time it asks anyway.
            let _ = timeout(options.watch_interval, told).await;
        }
    }
}

/// Publishes the next changes. Returns whether there may be more.
async fn fetch(
    connection: &Connection,
    options: &Options,
    history: &ChangeHistory,
    last: &mut u64,
) -> Result<bool, StoreError> {
    let after = last.cast_signed();
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&after, Type::INT8), (&PAGE, Type::INT8)];
    let reading = connection.client.query_typed(CHANGES, &parameters);
    let late = || StoreError::Unavailable(format!("no answer within {:?}", options.call_timeout));
    let rows = timeout(options.call_timeout, reading).await.map_err(|_| late())?;
    let rows = rows.map_err(|error| StoreError::Unavailable(text(&error)))?;
    let first = rows.first().ok_or_else(ColumnError::missing)?;
    let newest = column::<i64>(first, 3)?.cast_unsigned();
    let forgotten = column::<i64>(first, 4)?.cast_unsigned();
    if newest < *last {
        return Err(OpenError::RolledBack.into());
    }
    if forgotten > *last {
        history.forget(forgotten);
        *last = forgotten;
        return Ok(true);
    }
    let mut events = Vec::new();
    for row in &rows {
        let Some(revision) = column::<Option<i64>>(row, 0)?.map(i64::cast_unsigned) else { break };
        let key = key_text(column(row, 1)?)?;
        events.push(match column::<Option<Vec<u8>>>(row, 2)?.map(Bytes::from) {
            Some(value) => RowEvent::Set(StoredRow { key, revision, value }),
            None => RowEvent::Deleted { key, revision },
        });
        *last = revision;
    }
    let is_page = events.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
    history.publish(events);
    Ok(is_page)
}
