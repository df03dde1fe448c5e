//! Writes the route cache in the background, on a dedicated thread.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_catalog as catalog;
use ostraca_catalog::AccessRegistry;
use ostraca_catalog::pool::rows_of;
use ostraca_catalog::rows::{self, POOLS, TypeRow};
use ostraca_catalog::types::{DeployedType, TypeRegistry};
use ostraca_core::extensions::Extensions;
use ostraca_core::rows::{AssignmentsRow, NodeRow, Row, RowKey};

use super::database::{ACCESS_READ, Database};
use crate::view::ClusterView;

/// Minimum time between two writes.
const PAUSE: Duration = Duration::from_secs(1);

/// Handle to the writing thread.
pub(super) struct Writer {
    database: Database,
    newest: Arc<Mutex<Option<Arc<ClusterView>>>>,
    types: TypeRegistry,
    access: AccessRegistry,
    /// The stored values by key, so that unchanged rows are not written again.
    written: HashMap<String, Bytes>,
}

impl Writer {
    pub(super) fn new(
        database: Database,
        newest: Arc<Mutex<Option<Arc<ClusterView>>>>,
        types: TypeRegistry,
        access: AccessRegistry,
    ) -> Self {
        Self { database, newest, types, access, written: HashMap::new() }
    }

    pub(super) fn run(mut self, woken: &Receiver<()>) {
        let (mut more, mut ended) = (false, false);
        loop {
            if !more && !ended {
                ended = woken.recv().is_err();
            }
            let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(view) = newest
                && let Err(why) = self.write(&view)
            {
                tracing::warn!(%why, "the route cache is no longer written");
                return;
            }
            if ended {
                return;
            }
            // A stopping node does not wait for the pause.
            let until = Instant::now() + PAUSE;
            more = false;
            while !ended {
                match woken.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(()) => more = true,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => ended = true,
                }
            }
        }
    }

    pub(super) fn write(&mut self, view: &ClusterView) -> Result<(), String> {
        if view.shards.is_empty() {
            // No rows have been read yet, so the previous run's data is better.
            return Ok(());
        }
        let now = picture(view, &self.types, &self.access).map_err(|error| error.to_string())?;
        let changed = now.iter().filter(|(key, value)| self.written.get(*key) != Some(*value));
        let gone = self.database.keys()?.into_iter().filter(|key| !now.contains_key(key));
        let mut batch = sled::Batch::default();
        changed.for_each(|(key, value)| batch.insert(key.as_bytes(), value.as_ref()));
        gone.for_each(|key| batch.remove(key.as_bytes()));
        self.database.apply(batch)?;
        self.written = now;
        Ok(())
    }
}

/// The rows of a view that are kept in the cache.
pub(super) fn picture(
    view: &ClusterView,
    types: &TypeRegistry,
    access: &AccessRegistry,
) -> Result<HashMap<String, Bytes>, catalog::Error> {
    let mut rows = HashMap::new();
    if let Some(pools) = &view.pools {
        let (first, others) = rows_of(pools);
        rows.insert(rows::pool_key(), rows::encode_value(&first)?);
        rows.insert(POOLS.into(), rows::encode_value(&others)?);
    }
    for (node, row) in &view.nodes {
        // If the renewal counter were kept, every renewal would cause a write.
        let row = NodeRow { renewals: 0, store_available: true, ..row.clone() };
        let row = rows::encode_row(&Row::Node(row))?;
        rows.insert(rows::key_text(&RowKey::Node(node.clone())), row);
    }
    for (chunk, shards) in (0..).zip(view.shards.chunks()) {
        let mut shards = shards.to_vec();
        for shard in &mut shards {
            // The same applies to the leases of shards. Without the field, there is nothing to remove.
            let _ = shard.set_lease(None);
        }
        let row = Row::Assignments(AssignmentsRow {
            term: 0,
            assignments: shards,
            extensions: Extensions::default(),
        });
        rows.insert(rows::key_text(&RowKey::Assignments(chunk)), rows::encode_row(&row)?);
    }
    for entry in types.snapshot().values() {
        rows.insert(rows::type_key(&entry.name), rows::encode_value(&type_row(entry)?)?);
    }
    if let Some((read_ms, kept)) = access.to_cache() {
        rows.extend(kept.into_iter().map(|row| (row.key, row.value)));
        // To the minute: otherwise, each view would cause a write.
        let read_ms = read_ms / 60_000 * 60_000;
        rows.insert(ACCESS_READ.into(), Bytes::copy_from_slice(&read_ms.to_be_bytes()));
    }
    Ok(rows)
}

fn type_row(entry: &DeployedType) -> Result<TypeRow, catalog::Error> {
    Ok(TypeRow {
        revision: entry.revision,
        manifest: entry.manifest.effective_toml(),
        component_digest: entry.component_digest,
        component_size: entry.component_size,
        methods: entry.entries().to_vec(),
        extensions: Extensions::default(),
    })
}
