//! The control thread's store calls; each result comes back as an event of the machine.

use std::future::ready;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use ostraca_catalog::bootstrap;
use ostraca_catalog::clock::wall_millis;
use ostraca_catalog::namespaces::namespace_name;
use ostraca_catalog::pool::path;
use ostraca_catalog::rows::{self, ClusterRow};
use ostraca_core::ids::ShardId;
use ostraca_core::node::{Event, WriteError};
use ostraca_core::rows::{Row, RowKey};
use ostraca_store::{CompareAndSet, CompareAndSetError, RowEvent};
use ostraca_wire::clock::BootInstant;

use super::Input;
use super::event_loop::ControlLoop;

impl ControlLoop {
    /// Lists all rows, and watches from the revision of that list.
    pub(super) fn list(&mut self) {
        self.watch += 1;
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        let (watch, own, store) = (self.watch, self.own.clone(), self.deps.cluster_store.clone());
        let (loader, access) = (self.deps.loader.clone(), self.deps.access.clone());
        let variables = self.deps.variables.clone();
        let logged = self.unlisted.clone();
        let outside = self.deps.local_store.is_none() || self.deps.config.has_rows_outside();
        let stats = outside.then(|| self.deps.stats.clone());
        self.watcher = Some(tokio::spawn(async move {
            let read_at = BootInstant::now();
            let listed = store.list("").await;
            if let Some(stats) = stats {
                stats.record_store_result(&listed);
            }
            let (all, revision) = match listed {
                Ok(listed) => {
                    logged.store(false, Ordering::Relaxed);
                    listed
                }
                Err(error) => {
                    // Listing is retried several times a second: log a failure once.
                    if !logged.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "cannot list the cluster's rows; retrying until the store responds");
                    }
                    // The receiver is dropped only when the node is stopping.
                    let _ = own.send(Input::Event(Event::RowsListed(None)));
                    return;
                }
            };
            let (mut core, mut types) = (Vec::new(), Vec::new());
            for row in all {
                match rows::decode_row(&row) {
                    Ok(Some(row)) => core.push(row),
                    Ok(None) => types.push(row),
                    Err(error) => tracing::error!(%error, "cannot decode a row"),
                }
            }
            // These rows must take effect before the machine registers on the basis of the list.
            // Where shards are wanted depends on the pools, so the row of the pools comes first.
            let mut cluster_wide: Vec<_> =
                types.iter().filter(|row| rows::is_cluster_wide(&row.key)).collect();
            cluster_wide.sort_by_key(|row| row.key != rows::POOLS);
            for row in cluster_wide {
                let _ = own.send(Input::Listed(watch, row.clone()));
            }
            access.on_rows_read(&types, read_at);
            variables.on_rows_listed(&types, revision);
            types.retain(|row| {
                rows::type_name(&row.key).is_some() || namespace_name(&row.key).is_some()
            });
            loader.on_rows_listed(types, revision);
            // The receiver is dropped only when the node is stopping.
            let _ = own.send(Input::Event(Event::RowsListed(Some(core))));
            let mut changes = store.watch("", revision);
            loop {
                let event = changes.next().await;
                let lost = event == RowEvent::ResyncRequired;
                if own.send(Input::Watched(watch, event)).is_err() || lost {
                    return;
                }
            }
        }));
    }

    /// Reads the cluster's format again after this node's own row has been written. An upgrade first writes the
    /// target format and then reads the nodes' rows, so either the upgrade sees the node or the node sees the upgrade.
    pub(super) fn read_format(&mut self) {
        let (request, failures) =
            (self.deps.cluster_store.get("cluster"), self.deps.failures.clone());
        self.tasks.push(
            async move {
                if let Ok(Some(row)) = request.await
                    && let Err(error) =
                        rows::decode::<ClusterRow>(&row).and_then(|row| row.readable())
                {
                    // The receiver is dropped only when the node is stopping.
                    let _ = failures.send(error.into());
                }
                Event::Tick
            }
            .boxed(),
        );
    }

    pub(super) fn read(&mut self, key: RowKey) {
        let request = self.deps.cluster_store.get(&rows::key_text(&key));
        self.tasks.push(
            async move {
                match request.await {
                    Ok(Some(row)) => match rows::decode_row(&row) {
                        Ok(Some((key, row, revision))) => {
                            Event::RowObserved { key, value: Some((row, revision)) }
                        }
                        _ => Event::Tick,
                    },
                    Ok(None) => Event::RowObserved { key, value: None },
                    // The machine requests the row again.
                    Err(_) => Event::Tick,
                }
            }
            .boxed(),
        );
    }

    pub(super) fn write(&mut self, number: u64, key: &RowKey, expected: Option<u64>, row: &Row) {
        let value = match rows::encode_row(row) {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!(%error, "failed to write a row");
                let result = Err(WriteError::Unknown);
                let event = ready(Event::RowWritten { request_id: number, result });
                return self.tasks.push(event.boxed());
            }
        };
        let cas = CompareAndSet { key: rows::key_text(key), expected, value };
        let request = self.deps.cluster_store.compare_and_set(cas);
        self.tasks.push(
            async move {
                let result = request.await.map_err(|conflict| match conflict {
                    CompareAndSetError::RevisionMismatch(None) => WriteError::Conflict(None),
                    CompareAndSetError::RevisionMismatch(Some(row)) => {
                        match rows::decode_row(&row) {
                            Ok(Some((_, row, revision))) => {
                                WriteError::Conflict(Some((row, revision)))
                            }
                            _ => WriteError::Unknown,
                        }
                    }
                    CompareAndSetError::Store(error) => {
                        tracing::debug!(%error, "the outcome of a row's write is unknown");
                        WriteError::Unknown
                    }
                });
                Event::RowWritten { request_id: number, result }
            }
            .boxed(),
        );
    }

    pub(super) fn read_claims(&mut self, number: u64, shards: Vec<ShardId>) {
        let pools = self.deps.gateway.pools.get();
        let shards = shards.into_iter().map(|shard| path(&pools, shard)).collect();
        let request = self.deps.entity_store.current_claims(shards);
        self.tasks.push(
            async move { Event::ClaimsRead { request_id: number, claims: request.await.ok() } }
                .boxed(),
        );
    }

    /// Makes a small call to the entity store, to learn whether it responds (R9). Of several stores, one is enough: the
    /// shards in the others are not given up because of one.
    pub(super) fn probe_entity_store(&mut self) {
        let sent = self.deps.clock.now().mono;
        let shard = vec![self.deps.gateway.pools.path(ShardId(1))];
        let request = match self.deps.ranges.get() {
            Some(stores) => stores.probe(shard),
            None => self.deps.entity_store.current_claims(shard),
        };
        self.tasks.push(
            async move {
                match request.await {
                    Ok(_) => Event::StoreResponded { sent_at: sent },
                    Err(_) => Event::Tick,
                }
            }
            .boxed(),
        );
    }

    /// Writes cluster time and the store's witness.
    pub(super) fn persist_time_and_witness(&mut self) {
        let (store, clock) = (self.deps.cluster_store.clone(), self.deps.clock.clone());
        let local = self.deps.local_store.clone();
        // Without a node that has the rows, the manager's wall clock counts.
        let counts = match self.deps.config.has_rows_outside() {
            true => self.deps.machine.managing_term().is_some(),
            false => local.is_some(),
        };
        let wall = counts.then(wall_millis);
        self.tasks.push(
            async move {
                if let Err(error) = bootstrap::advance_cluster_time(&*store, &clock, wall).await {
                    tracing::debug!(%error, "failed to write the cluster time");
                }
                if let Some(local) = local
                    && let Err(error) = local.refresh_witness().await
                {
                    tracing::warn!(%error, "failed to refresh the store's witness");
                }
                Event::Tick
            }
            .boxed(),
        );
    }
}
