//! A store that no node uses, as the source or the target of a copy.
//!
//! The database keeps the state of a copy into it in the row of the store, and nobody opens the store until that is gone.
//! A page is written in one transaction.

pub(crate) mod columns;
pub(crate) mod contents;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_core::codec;
use ostraca_store::transfer::{
    CopySource, CopyState, CopyTarget, Destination, Item, ItemPage, StoreContents,
};
use ostraca_store::{StoreError, StoreIdentity};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use crate::connection::Connection;
use crate::durable::DURABLY;
use crate::error::OpenError;
use crate::options::Options;
use crate::reads::{Parameter, corrupt, failed};
use crate::{fail_over, schema};
use columns::{Columns, execute};
use contents::{Contents, query};

/// The code of the error by which a store refuses to be marked as moved.
const USED: &str = "OS003";
const WRITE_STATE: &str = "UPDATE ostraca.store SET copy = $1";

pub(crate) fn signed(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| {
        StoreError::LimitExceeded(format!("{number} is beyond what PostgreSQL can store"))
    })
}

/// A store to copy from, which no node uses.
pub struct PostgresCopySource {
    contents: Contents,
    moved_to: Option<String>,
}

impl std::fmt::Debug for PostgresCopySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresCopySource")
            .field("identity", &self.contents.identity)
            .finish_non_exhaustive()
    }
}

impl PostgresCopySource {
    /// Opens the store in a database, also one that was marked as moved. This does not count as an opening.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let connection = Connection::open(&options).await?;
        let client = &connection.client;
        let found = schema::probe_any(client, options.cluster).await?.ok_or(OpenError::Missing)?;
        if found.copy.is_some() {
            return Err(OpenError::Unfinished);
        }
        fail_over::check_opened(client, connection.server).await?;
        let durable_sequence = schema::sequence(client).await?;
        let identity = StoreIdentity { durable_sequence, ..found.identity };
        let moved_to = found.moved_to;
        Ok(Self { contents: Contents { options, connection, identity }, moved_to })
    }

    /// Whether a node has written to the store since it was opened.
    ///
    /// # Errors
    /// [`OpenError`] says why it is unknown.
    pub async fn is_in_use(&self) -> Result<bool, OpenError> {
        let sequence = schema::sequence(&self.contents.connection.client).await?;
        Ok(sequence != self.contents.identity.durable_sequence)
    }
}

impl StoreContents for PostgresCopySource {
    fn identity(&self) -> StoreIdentity {
        self.contents.identity.clone()
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        self.contents.page(cursor).boxed()
    }
}

impl CopySource for PostgresCopySource {
    fn moved_to(&self) -> Option<String> {
        self.moved_to.clone()
    }

    fn mark_moved(&mut self, to: &Destination) -> BoxFuture<'_, Result<(), StoreError>> {
        let to = to.to_string();
        async move {
            if self.moved_to.as_ref() == Some(&to) {
                return Ok(());
            }
            let batches = signed(self.contents.identity.durable_sequence)?;
            let statement = format!("{DURABLY} SELECT ostraca.mark_moved($1, $2) FROM setting");
            let parameters: [Parameter<'_>; 2] = [(&to, Type::TEXT), (&batches, Type::INT8)];
            let marking = self.contents.client().await?.query_typed(&statement, &parameters).await;
            marking.map_err(|error| match error.code().map(|code| code.code()) {
                Some(USED) => StoreError::Stopped("a node used the source during the copy".into()),
                _ => failed(&error),
            })?;
            self.moved_to = Some(to);
            Ok(())
        }
        .boxed()
    }
}

/// A store that is copied to.
pub struct PostgresCopyTarget {
    contents: Contents,
    state: CopyState,
}

impl std::fmt::Debug for PostgresCopyTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresCopyTarget").field("state", &self.state).finish_non_exhaustive()
    }
}

impl PostgresCopyTarget {
    /// Creates a store for a copy of `source` in a database without one, or continues an unfinished copy.
    ///
    /// # Errors
    /// [`OpenError`] says why it failed, and what to do.
    pub async fn open(options: Options, source: &StoreIdentity) -> Result<Self, OpenError> {
        let connection = Connection::open(&options).await?;
        let client = &connection.client;
        let found = match schema::probe_any(client, options.cluster).await? {
            Some(found) => found,
            None => {
                let state = codec::encode(&CopyState::new(source));
                let state = state.map_err(|error| OpenError::Statement(error.to_string()))?;
                let name = &source.cluster_name;
                schema::create(client, source.cluster, name, Some(&state)).await?;
                let created = schema::probe_any(client, options.cluster).await?;
                created.ok_or(OpenError::Missing)?
            }
        };
        let exists = || {
            let (cluster, name) = (found.identity.cluster, found.identity.cluster_name.clone());
            OpenError::Exists { cluster, name }
        };
        let state = found.copy.as_ref().ok_or_else(exists)?;
        let state = codec::decode(state).map_err(|_| exists())?;
        let identity = found.identity;
        Ok(Self { contents: Contents { options, connection, identity }, state })
    }

    async fn write_items(&mut self, items: Vec<Item>, state: CopyState) -> Result<(), StoreError> {
        let limit = self.contents.options.call_timeout;
        let durability = self.contents.options.durability.setting();
        let client = self.contents.client().await?;
        let writing = async {
            let transaction = client.transaction().await.map_err(|error| failed(&error))?;
            let settings = format!("SET LOCAL synchronous_commit = {durability}");
            transaction.batch_execute(&settings).await.map_err(|error| failed(&error))?;
            Columns::of(items)?.write(&transaction).await?;
            let state = codec::encode(&state).map_err(|error| corrupt("a state", error))?;
            execute(&transaction, WRITE_STATE, &[(&state, Type::BYTEA)]).await?;
            transaction.commit().await.map_err(|error| failed(&error))
        };
        let late = |_| StoreError::Unavailable(format!("no answer within {limit:?}"));
        timeout(limit, writing).await.map_err(late)??;
        self.state = state;
        Ok(())
    }
}

impl StoreContents for PostgresCopyTarget {
    fn identity(&self) -> StoreIdentity {
        self.contents.identity.clone()
    }

    fn page(&mut self, cursor: Option<Bytes>) -> BoxFuture<'_, Result<ItemPage, StoreError>> {
        self.contents.page(cursor).boxed()
    }
}

impl CopyTarget for PostgresCopyTarget {
    fn state(&self) -> CopyState {
        self.state.clone()
    }

    fn write(
        &mut self,
        items: Vec<Item>,
        state: CopyState,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.write_items(items, state).boxed()
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let client = self.contents.client().await?;
            let statement = format!("{DURABLY} UPDATE ostraca.store SET copy = NULL FROM setting");
            query(client, &statement, &[]).await.map(drop)
        }
        .boxed()
    }

    fn place(&self) -> String {
        self.contents.options.place()
    }
}
