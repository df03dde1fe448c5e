//! The server's history (R5). A fail-over, or a restore to a point in time, begins a new time line, on which the last
//! commits of the one before may be missing.
//!
//! A new time line is used without asking only if commits waited for a standby before: then the standby that took over
//! has all that were acknowledged. Else an operator must accept it.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::durable::DURABLY;
use crate::error::OpenError;
use crate::health::{Health, History, ServerState};
use crate::row::column;

/// SQL for the number of the server's time line.
pub(crate) const TIMELINE: &str =
    "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint";
/// SQL for whether commits wait for a standby.
pub(crate) const REPLICATED: &str = "current_setting('synchronous_standby_names') <> ''";

/// What the store's row says.
struct Expected {
    history: History,
    /// The time line that an operator has accepted.
    accepted: Option<i64>,
    /// Whether commits waited for a standby.
    replicated: bool,
}

impl Expected {
    /// Whether the server has failed over to a standby that has all acknowledged turns. `replicated` says whether
    /// commits waited for a standby on the time line that is known.
    fn has_failed_over(
        &self,
        known: History,
        replicated: bool,
        found: History,
    ) -> Result<bool, OpenError> {
        if found.system != self.history.system {
            return Err(OpenError::OtherServer {
                expected: self.history.system.cast_unsigned(),
                found: found.system.cast_unsigned(),
            });
        }
        let (from, to) = (known.timeline, found.timeline);
        // One that was accepted long ago, and has been left since, lacks what was written on those after it.
        if to == from || to > from && self.accepted == Some(to) {
            return Ok(false);
        }
        match to > from && replicated {
            true => Ok(true),
            false => Err(OpenError::FailedOver { from, to }),
        }
    }
}

async fn expected(client: &Client) -> Result<Expected, OpenError> {
    let statement =
        "SELECT system_identifier, timeline, accepted_timeline, replicated FROM ostraca.store";
    let rows = client.query_typed(statement, &[]).await;
    let rows = rows.map_err(|error| OpenError::statement(&error))?;
    let row = rows.first().ok_or(OpenError::Missing)?;
    Ok(Expected {
        history: History { system: column(row, 0)?, timeline: column(row, 1)? },
        accepted: column(row, 2)?,
        replicated: column(row, 3)?,
    })
}

/// Checks the server at the opening of the store.
pub(crate) async fn check_opened(client: &Client, found: ServerState) -> Result<(), OpenError> {
    let row = expected(client).await?;
    check(client, &row, row.history, row.replicated, found).await?;
    note_replication(client, row.replicated, found.replicated).await
}

/// Checks the server of a further connection against what this process knows.
pub(crate) async fn check_again(
    client: &Client,
    health: &Health,
    found: ServerState,
) -> Result<(), OpenError> {
    if health.history() != found.history {
        let row = expected(client).await?;
        // If another process goes on with this time line already, the row speaks of the commits on it.
        let replicated = (row.replicated || row.history == found.history) && health.is_replicated();
        let checked = check(client, &row, health.history(), replicated, found).await;
        checked.inspect_err(|error| {
            if !error.is_retryable() {
                health.stop(&error.to_string());
            }
        })?;
        health.follow(found.history);
    }
    health.note_replication(found.replicated);
    Ok(())
}

async fn check(
    client: &Client,
    row: &Expected,
    known: History,
    replicated: bool,
    found: ServerState,
) -> Result<(), OpenError> {
    if !row.has_failed_over(known, replicated, found.history)? {
        return Ok(());
    }
    let timeline = found.history.timeline;
    tracing::warn!(from = known.timeline, to = timeline, "PostgreSQL has failed over to a standby");
    let statement = format!(
        "{DURABLY} UPDATE ostraca.store SET timeline = $1 FROM setting WHERE timeline < $1"
    );
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&timeline, Type::INT8)];
    let updating = client.query_typed(&statement, &parameters).await;
    updating.map(|_| ()).map_err(|error| OpenError::statement(&error))
}

/// Stores whether commits wait for a standby, if that has changed.
pub(crate) async fn note_replication(
    client: &Client,
    stored: bool,
    now: bool,
) -> Result<(), OpenError> {
    if stored == now {
        return Ok(());
    }
    let statement = format!("{DURABLY} UPDATE ostraca.store SET replicated = $1 FROM setting");
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&now, Type::BOOL)];
    let updating = client.query_typed(&statement, &parameters).await;
    updating.map(|_| ()).map_err(|error| OpenError::statement(&error))
}

/// Accepts the server as it is now.
pub(crate) async fn accept(client: &Client, found: ServerState) -> Result<(), OpenError> {
    let History { system, timeline } = found.history;
    let statement = format!(
        "{DURABLY} UPDATE ostraca.store SET system_identifier = $1, timeline = $2, accepted_timeline = $2, \
         replicated = $3 FROM setting"
    );
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&system, Type::INT8), (&timeline, Type::INT8), (&found.replicated, Type::BOOL)];
    let updating = client.query_typed(&statement, &parameters).await;
    updating.map(|_| ()).map_err(|error| OpenError::statement(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r5_an_accepted_time_line_is_used_only_above_the_known_one() {
        let on = |timeline| History { system: 7, timeline };
        let row = Expected { history: on(2), accepted: Some(2), replicated: true };
        for replicated in [false, true] {
            let check = |known, found| row.has_failed_over(on(known), replicated, on(found));
            assert!(matches!(check(1, 2), Ok(false)), "it was accepted");
            let back = check(3, 2);
            assert!(matches!(back, Err(OpenError::FailedOver { from: 3, to: 2 })), "{back:?}");
            assert_eq!(check(1, 3).ok(), replicated.then_some(true));
        }
    }
}
