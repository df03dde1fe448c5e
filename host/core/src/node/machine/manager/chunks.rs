//! Assignment rows: sealed with the manager's term, then changed by one compare-and-set at a time.

use super::{
    Assignment, AssignmentsRow, BTreeMap, Context, Manager, Mutation, ObservedCluster, Row, RowKey,
    WriteError, WritePurpose,
};
use crate::rows::{SHARDS_PER_CHUNK, is_stateless_chunk};

/// An assignment row from the manager's point of view.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct ManagedChunk {
    /// The row as last written or read.
    pub(super) stored: Option<(AssignmentsRow, u64)>,
    /// Whether it bears this manager's term (R10).
    pub(super) sealed: bool,
    /// Pending changes.
    pub(super) pending: BTreeMap<usize, Assignment>,
    /// The write in progress.
    writing: Option<AssignmentsRow>,
    /// When to read the row again, after the answer to a write was lost.
    pub(super) read_at: Option<u64>,
}

impl ManagedChunk {
    /// Each shard's row, with its index: the desired one, else the one being written, else the one last read.
    pub(super) fn desired_assignments(&self) -> impl Iterator<Item = (usize, &Assignment)> {
        let row = self.writing.as_ref().or(self.stored.as_ref().map(|(base, _)| base));
        let shards = row.into_iter().flat_map(|row| row.assignments.iter().enumerate());
        shards.map(|(place, shard)| (place, self.pending.get(&place).unwrap_or(shard)))
    }

    /// Whether a write, or a read after a write whose answer was lost, is pending.
    pub(super) fn busy(&self) -> bool {
        self.writing.is_some() || self.read_at.is_some()
    }

    /// Whether a shard's row of this kind is being written.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn writes(&self, kind: impl Fn(&Assignment) -> bool) -> bool {
        self.writing.as_ref().is_some_and(|row| row.assignments.iter().any(kind))
    }
}

impl Manager {
    /// Starts the writes that chunks need, except where one is pending.
    pub(in super::super) fn pump_chunks(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        let count = self.term.as_ref().map_or(0, |term| term.chunks.len());
        for number in 0..count {
            self.pump_chunk(context, observed, number as u32);
        }
    }

    fn pump_chunk(&mut self, context: &mut Context, observed: &ObservedCluster, number: u32) {
        let retry_at = context.mono() + context.settings.store_retry_interval;
        let Some(term) = &mut self.term else { return };
        let Some(chunk) = term.chunks.get_mut(number as usize) else { return };
        if is_stateless_chunk(&context.identity.pools, number) {
            // The owners of its shards write it.
            chunk.sealed = true;
            return;
        }
        if let Some(at) = chunk.read_at {
            if context.mono() >= at {
                chunk.read_at = Some(retry_at);
                context.read(RowKey::Assignments(number));
            }
            return;
        }
        let first = number * SHARDS_PER_CHUNK;
        let shards = context.identity.pools.shard_count().saturating_sub(first);
        let shards = shards.min(SHARDS_PER_CHUNK) as usize;
        // A new pool may begin within the last row.
        let is_short = |(row, _): &(AssignmentsRow, u64)| row.assignments.len() < shards;
        let grows = chunk.stored.as_ref().is_some_and(is_short);
        if chunk.writing.is_some() || (chunk.sealed && chunk.pending.is_empty() && !grows) {
            return;
        }
        if chunk.stored.is_none()
            && let Some((row, revision)) = observed.chunk(number)
        {
            if row.term > term.number {
                // This node learned late that it held the leadership: another node holds it by now, as its row
                // shows (R10).
                chunk.read_at = Some(retry_at);
                context.read(RowKey::Manager);
                return;
            }
            chunk.stored = Some((row.clone(), *revision));
            term.dirty_chunks.add(number);
        }
        if context.has_mutation(Mutation::SkipSeal)
            && chunk.stored.is_some()
            && chunk.pending.is_empty()
        {
            return;
        }
        let mut row = chunk.stored.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
        row.term = term.number;
        // A row that is longer contains shards of a pool that this node does not know yet.
        row.assignments.resize(shards.max(row.assignments.len()), Assignment::default());
        for (place, shard) in std::mem::take(&mut chunk.pending) {
            row.assignments[place] = shard;
        }
        chunk.writing = Some(row.clone());
        let expected = chunk.stored.as_ref().map(|(_, revision)| *revision);
        let purpose = WritePurpose::Assignments(number);
        context.write(purpose, RowKey::Assignments(number), expected, Row::Assignments(row));
    }

    /// Handles the answer to a chunk's write, and returns the row that was written; `None` if that write is
    /// obsolete.
    pub(in super::super) fn on_chunk_written(
        &mut self,
        context: &mut Context,
        number: u32,
        result: &Result<u64, WriteError>,
    ) -> Option<AssignmentsRow> {
        let term = self.term.as_mut()?;
        let chunk = term.chunks.get_mut(number as usize)?;
        let row = chunk.writing.take()?;
        self.decision_needed = true;
        term.dirty_chunks.add(number);
        match result {
            Ok(revision) => {
                chunk.sealed = true;
                chunk.stored = Some((row.clone(), *revision));
            }
            Err(WriteError::Conflict(value)) => {
                self.on_chunk_found(context, number, value.as_ref())
            }
            Err(WriteError::Unknown) => {
                chunk.read_at = Some(context.mono());
                term.owner_index.chunk_changed(number);
            }
        }
        Some(row)
    }

    /// Handles a row that was read after a conflict or a lost answer.
    fn on_chunk_found(&mut self, context: &mut Context, number: u32, value: Option<&(Row, u64)>) {
        let Some(term) = &mut self.term else { return };
        let Some(chunk) = term.chunks.get_mut(number as usize) else { return };
        chunk.read_at = None;
        self.decision_needed = true;
        term.dirty_chunks.add(number);
        term.owner_index.chunk_changed(number);
        // The desired changes were based on another version of the row.
        chunk.pending.clear();
        match value {
            Some((Row::Assignments(row), _)) if row.term > term.number => {
                // Another node is the manager, as the row shows.
                context.read(RowKey::Manager);
                chunk.sealed = false;
                chunk.read_at = Some(context.mono() + context.settings.store_retry_interval);
            }
            Some((Row::Assignments(row), revision)) => {
                if chunk.stored.as_ref().is_none_or(|(_, at)| revision >= at) {
                    chunk.sealed = row.term == term.number;
                    chunk.stored = Some((row.clone(), *revision));
                }
            }
            _ => {
                chunk.sealed = false;
                chunk.stored = None;
            }
        }
    }

    /// Handles a newer version of a row that also has shards of a pool without a manager: their owners renew their
    /// leases in it. Otherwise every write of this manager would conflict with the last renewal.
    pub(in super::super) fn on_shared_chunk_learned(
        &mut self,
        number: u32,
        row: &AssignmentsRow,
        revision: u64,
    ) {
        let Some(term) = &mut self.term else { return };
        let Some(chunk) = term.chunks.get_mut(number as usize) else { return };
        let is_newer = chunk.stored.as_ref().is_some_and(|(_, known)| *known < revision);
        if is_newer && row.term == term.number && !chunk.busy() && chunk.pending.is_empty() {
            chunk.stored = Some((row.clone(), revision));
            term.dirty_chunks.add(number);
            term.owner_index.chunk_changed(number);
        }
    }

    /// Handles a row that was read, perhaps because the answer to its write was lost.
    pub(in super::super) fn on_chunk_read(
        &mut self,
        context: &mut Context,
        number: u32,
        value: Option<&(Row, u64)>,
    ) {
        let chunk = self.term.as_ref().and_then(|term| term.chunks.get(number as usize));
        if chunk.is_some_and(|chunk| chunk.read_at.is_some()) {
            self.on_chunk_found(context, number, value);
        }
    }
}
