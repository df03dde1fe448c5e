//! A connection that writes, and its row in the database.
//!
//! The row counts the batches of this connection. Each batch names the number before it, so it takes effect once and
//! in order, or not at all. When the connection is lost, the next one ends the row: from then on, no batch of the old
//! connection can take effect, even if the server still receives it. A row that lacks batches whose outcome was known
//! shows that the database was rolled back (R5).

use ostraca_core::codec;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_store::StoreError;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::batch::Batch;
use crate::connection::Connection;
use crate::durable::DURABLY;
use crate::error::{OpenError, text};
use crate::health::Health;
use crate::options::Options;
use crate::row::{column, first};

/// How often a batch is sent that the server rolled back because of another one.
const ATTEMPTS: u32 = 5;
/// How often a claim is tried whose predecessor changed meanwhile.
const CLAIM_ATTEMPTS: u32 = 10;

/// The call of a procedure, with the parameters of this connection before its own. Whatever is set for the role, the
/// server sends its warnings until the transaction ends: one says that the wait for a standby was cancelled.
macro_rules! call {
    ($procedure:literal, $parameters:literal) => {
        concat!(
            "CALL ostraca.",
            $procedure,
            "($1, $2, CASE WHEN set_config('client_min_messages', 'warning', true) <> '' THEN $3 END, $4, ",
            $parameters,
            ")"
        )
    };
}

const COMMIT_BATCH: &str = call!(
    "commit_batch",
    "$5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, NULL, NULL, NULL, \
     NULL"
);
const CLAIM: &str = call!("claim", "$5, $6, $7, $8, $9, NULL, NULL");
const CHANGE_ROWS: &str = call!("change_rows", "$5, $6, $7, $8, $9, NULL, NULL, NULL");
const CURRENT_CLAIM: &str =
    "SELECT claim FROM ostraca.shards WHERE namespace = $1 AND pool = $2 AND number = $3";

/// A writer's row: its id, and the number of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriterRow {
    pub(crate) id: i64,
    pub(crate) batches: i64,
}

/// How a call ended.
enum Called {
    Done(Row),
    /// The server has rolled it back. The connection can be used.
    RolledBack(String),
    /// It may have taken effect. The connection is given up.
    Unknown(String),
}

pub(crate) struct Writer {
    connection: Connection,
    row: WriterRow,
    /// Set once an outcome is unknown: then another connection must end the row.
    is_lost: bool,
}

impl Writer {
    /// Connects, and replaces the row of the connection before by a row with this id. If that fails, it must be tried
    /// again with the same id: it may have taken effect.
    pub(crate) async fn open(
        options: &Options,
        health: &Health,
        opening: i64,
        id: i64,
        before: Option<WriterRow>,
    ) -> Result<Self, OpenError> {
        let connection = Connection::open_again(options, health).await?;
        let (old, least) = before.map_or((None, 0), |row| (Some(row.id), row.batches));
        let parameters: [(&(dyn ToSql + Sync), Type); 4] =
            [(&id, Type::INT8), (&opening, Type::INT8), (&old, Type::INT8), (&least, Type::INT8)];
        let statement =
            format!("{DURABLY} SELECT ostraca.replace_writer($1, $2, $3, $4) FROM setting");
        let replacing = connection.client.query_typed(&statement, &parameters);
        let late = || OpenError::Connect(format!("no answer within {:?}", options.call_timeout));
        let replaced = timeout(options.call_timeout, replacing).await.map_err(|_| late())?;
        let rows = replaced.map_err(|error| OpenError::statement(&error))?;
        if !first::<bool>(&rows)? {
            return Err(OpenError::RolledBack);
        }
        Ok(Self { connection, row: WriterRow { id, batches: 0 }, is_lost: false })
    }

    /// The row, as far as its batches' outcomes are known.
    pub(crate) fn row(&self) -> WriterRow {
        self.row
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_lost && !self.connection.client.is_closed()
    }

    /// Commits a batch.
    pub(crate) async fn commit(
        &mut self,
        options: &Options,
        health: &Health,
        batch: &Batch,
    ) -> Vec<CommitOutcome> {
        let row = match self.call(options, COMMIT_BATCH, batch.parameters()).await {
            Called::Done(row) => row,
            Called::RolledBack(why) => {
                let refusal = CommitRefusal::LimitReached(format!("PostgreSQL: {why}"));
                return vec![CommitOutcome::Refused(refusal); batch.len()];
            }
            Called::Unknown(why) => return vec![CommitOutcome::Unknown(why); batch.len()],
        };
        if let Ok(replicated) = column(&row, 3) {
            health.note_replication(replicated);
        }
        batch.outcomes(&row).unwrap_or_else(|why| {
            let why = format!("cannot read the outcomes: {why}");
            vec![CommitOutcome::Unknown(why); batch.len()]
        })
    }

    /// Changes rows; the parameters are their columns.
    pub(crate) async fn change_rows(
        &mut self,
        options: &Options,
        mut columns: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Row, StoreError> {
        let kept = i64::try_from(options.row_changes).unwrap_or(i64::MAX);
        columns.push((&kept, Type::INT8));
        columns.push((&options.listen, Type::BOOL));
        match self.call(options, CHANGE_ROWS, columns).await {
            Called::Done(row) => Ok(row),
            Called::RolledBack(why) | Called::Unknown(why) => Err(StoreError::Unavailable(why)),
        }
    }

    /// Reads after the batches before it.
    pub(crate) async fn read(
        &mut self,
        options: &Options,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, StoreError> {
        let reading = self.connection.client.query_typed(statement, parameters);
        match timeout(options.call_timeout, reading).await {
            Ok(rows) => rows.map_err(|error| StoreError::Unavailable(text(&error))),
            Err(_) => {
                // Its answer may still come: the connection cannot be used again.
                self.is_lost = true;
                Err(StoreError::Unavailable(late(options)))
            }
        }
    }

    /// Claims a shard.
    pub(crate) async fn claim(&mut self, options: &Options, claim: &Claim) -> ClaimOutcome {
        match self.try_claim(options, claim).await {
            Ok(outcome) => outcome,
            Err(why) => ClaimOutcome::Failed(why),
        }
    }

    async fn try_claim(
        &mut self,
        options: &Options,
        claim: &Claim,
    ) -> Result<ClaimOutcome, String> {
        let namespace = claim.shard.namespace.as_bytes();
        let pool = claim.shard.pool.as_bytes();
        let number = i64::from(claim.shard.shard.0);
        let wanted = codec::encode(claim).map_err(|error| error.to_string())?;
        let shard: [(&(dyn ToSql + Sync), Type); 3] =
            [(&namespace, Type::BYTEA), (&pool, Type::BYTEA), (&number, Type::INT8)];
        for _ in 0..CLAIM_ATTEMPTS {
            let rows = self.read(options, CURRENT_CLAIM, &shard).await;
            let rows = rows.map_err(|error| error.to_string())?;
            let expected = rows.first().map(|row| column::<Vec<u8>>(row, 0)).transpose();
            let expected = expected.map_err(|error| error.to_string())?;
            if let Some(bytes) = &expected {
                let current = codec::decode::<Claim>(bytes).map_err(|error| error.to_string())?;
                if !claim.supersedes(&current) {
                    return Ok(ClaimOutcome::Refused { current: Box::new(current) });
                }
            }
            let mut parameters = shard.to_vec();
            parameters.push((&expected, Type::BYTEA));
            parameters.push((&wanted, Type::BYTEA));
            match self.call(options, CLAIM, parameters).await {
                Called::Done(row) => {
                    if column(&row, 0).map_err(|error| error.to_string())? {
                        return Ok(ClaimOutcome::Granted);
                    }
                }
                Called::RolledBack(why) | Called::Unknown(why) => return Err(why),
            }
        }
        Err(format!("the claim changed {CLAIM_ATTEMPTS} times meanwhile"))
    }

    /// Calls a procedure as this writer's next batch.
    async fn call(
        &mut self,
        options: &Options,
        statement: &str,
        parameters: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Called {
        let WriterRow { id, batches } = self.row;
        let synchronous = options.durability.setting();
        let lock_wait = format!("{}ms", options.statement_timeout.as_millis().max(1));
        let mut all: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&id, Type::INT8),
            (&batches, Type::INT8),
            (&synchronous, Type::TEXT),
            (&lock_wait, Type::TEXT),
        ];
        all.extend(parameters);
        let mut attempt = 1;
        loop {
            self.connection.take_warning();
            let calling = self.connection.client.query_typed(statement, &all);
            let error = match timeout(options.call_timeout, calling).await {
                Err(_) => return self.lost(late(options)),
                Ok(Err(error)) => error,
                Ok(Ok(mut rows)) => {
                    if self.connection.take_warning() {
                        return self.lost("PostgreSQL warned during the commit".into());
                    }
                    let Some(row) = rows.pop() else {
                        return self.lost("the procedure returned nothing".into());
                    };
                    self.row.batches += 1;
                    return Called::Done(row);
                }
            };
            // After an error, only the row says whether the batch was committed before.
            let why = text(&error);
            match self.has_written(options).await {
                Ok(false) => {}
                Ok(true) => return self.lost(format!("the batch was committed, but: {why}")),
                Err(unread) => return self.lost(format!("{why}; {unread}")),
            }
            let other_was_first =
                [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
            if attempt < ATTEMPTS && error.code().is_some_and(|code| other_was_first.contains(code))
            {
                attempt += 1;
                continue;
            }
            return Called::RolledBack(why);
        }
    }

    fn lost(&mut self, why: String) -> Called {
        self.is_lost = true;
        Called::Unknown(why)
    }

    /// Whether the row counts one batch more than this process knows of.
    async fn has_written(&self, options: &Options) -> Result<bool, String> {
        let statement = "SELECT batches FROM ostraca.writers WHERE id = $1";
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&self.row.id, Type::INT8)];
        let reading = self.connection.client.query_typed(statement, &parameters);
        let rows = timeout(options.call_timeout, reading).await.map_err(|_| late(options))?;
        let rows = rows.map_err(|error| text(&error))?;
        let batches: i64 = first(&rows).map_err(|error| error.to_string())?;
        Ok(batches != self.row.batches)
    }
}

fn late(options: &Options) -> String {
    format!("no answer within {:?}", options.call_timeout)
}
