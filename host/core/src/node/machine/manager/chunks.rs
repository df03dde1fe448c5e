//! The rows of assignments: sealed with the manager's term, then changed by one compare-and-set at a time.

use super::*;

/// One row of assignments, as the manager has it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ManagedChunk {
    /// As it was last written or found.
    pub(super) stored: Option<(AssignmentsRow, u64)>,
    /// It bears this manager's term (R10).
    pub(super) sealed: bool,
    /// What is to be changed in it.
    pub(super) pending: BTreeMap<usize, Assignment>,
    /// What is being written.
    writing: Option<AssignmentsRow>,
    /// The answer to a write was lost: when to read the row again.
    pub(super) read_at: Option<u64>,
}

impl ManagedChunk {
    /// Each shard's row, with its place: as it is wanted, else as it is being written, else as it was last found.
    pub(super) fn desired_assignments(&self) -> impl Iterator<Item = (usize, &Assignment)> {
        let row = self.writing.as_ref().or(self.stored.as_ref().map(|(base, _)| base));
        let shards = row.into_iter().flat_map(|row| row.assignments.iter().enumerate());
        shards.map(|(place, shard)| (place, self.pending.get(&place).unwrap_or(shard)))
    }

    /// Whether a write, or a read after a lost one, is under way.
    pub(super) fn busy(&self) -> bool {
        self.writing.is_some() || self.read_at.is_some()
    }

    /// Whether a shard's row of this kind is being written.
    pub(super) fn writes(&self, kind: impl Fn(&Assignment) -> bool) -> bool {
        self.writing.as_ref().is_some_and(|row| row.assignments.iter().any(kind))
    }
}

impl Machine {
    /// Begins the writes that are wanted and not under way.
    pub(super) fn pump_chunks(&mut self, now: Now) {
        let count = self.manager.as_ref().map_or(0, |manager| manager.chunks.len());
        for number in 0..count {
            self.pump_chunk(now, number);
        }
    }

    fn pump_chunk(&mut self, now: Now, number: usize) {
        let shards = self.identity.shard_count;
        let no_seal = self.has_mutation(Mutation::SkipSeal);
        let Some(manager) = &mut self.manager else { return };
        let chunk = &mut manager.chunks[number];
        let key = number as u32;
        if let Some(at) = chunk.read_at {
            if now.mono >= at {
                chunk.read_at = Some(now.mono + self.settings.store_retry_interval);
                self.actions.push_back(Action::ReadRow(RowKey::Assignments(key)));
            }
            return;
        }
        if chunk.writing.is_some() || (chunk.sealed && chunk.pending.is_empty()) {
            return;
        }
        if chunk.stored.is_none()
            && let Some((row, revision)) = self.view.chunks.get(&key)
        {
            if row.term > manager.term {
                // Who was told late that it leads: another does by now, and its row says so (R10).
                chunk.read_at = Some(now.mono + self.settings.store_retry_interval);
                self.actions.push_back(Action::ReadRow(RowKey::Manager));
                return;
            }
            chunk.stored = Some((row.clone(), *revision));
            manager.dirty_chunks.add(key);
        }
        if no_seal && chunk.stored.is_some() && chunk.pending.is_empty() {
            return;
        }
        let mut row = chunk.stored.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
        row.term = manager.term;
        row.assignments.resize(
            (shards - key * crate::rows::SHARDS_PER_CHUNK).min(crate::rows::SHARDS_PER_CHUNK)
                as usize,
            Assignment::default(),
        );
        for (place, shard) in std::mem::take(&mut chunk.pending) {
            row.assignments[place] = shard;
        }
        chunk.writing = Some(row.clone());
        let expected = chunk.stored.as_ref().map(|(_, revision)| *revision);
        self.write(
            WritePurpose::Assignments(key),
            RowKey::Assignments(key),
            expected,
            Row::Assignments(row),
        );
    }

    pub(in super::super) fn chunk_written(
        &mut self,
        now: Now,
        number: u32,
        result: Result<u64, WriteError>,
    ) {
        let Some(manager) = &mut self.manager else { return };
        let Some(chunk) = manager.chunks.get_mut(number as usize) else { return };
        let Some(row) = chunk.writing.take() else { return };
        self.decision_needed = true;
        manager.dirty_chunks.add(number);
        match result {
            Ok(revision) => {
                chunk.sealed = true;
                chunk.stored = Some((row.clone(), revision));
                let key = RowKey::Assignments(number);
                self.learn(now, key.clone(), Row::Assignments(row.clone()), revision);
                self.broadcast_row(key, &Row::Assignments(row), revision);
            }
            Err(WriteError::Conflict(value)) => self.chunk_found(now, number, value),
            Err(WriteError::Unknown) => {
                chunk.read_at = Some(now.mono);
                manager.owner_index.chunk_changed(number);
            }
        }
    }

    /// A row as it was found after a conflict or a lost answer.
    pub(super) fn chunk_found(&mut self, now: Now, number: u32, value: Option<(Row, u64)>) {
        let Some(manager) = &mut self.manager else { return };
        let term = manager.term;
        let Some(chunk) = manager.chunks.get_mut(number as usize) else { return };
        chunk.read_at = None;
        self.decision_needed = true;
        manager.dirty_chunks.add(number);
        manager.owner_index.chunk_changed(number);
        // What was wanted was decided from another row.
        chunk.pending.clear();
        match value {
            Some((Row::Assignments(row), revision)) => {
                if row.term > term {
                    // Another manages: its row says so.
                    self.actions.push_back(Action::ReadRow(RowKey::Manager));
                    chunk.sealed = false;
                    chunk.read_at = Some(now.mono + self.settings.store_retry_interval);
                } else if chunk.stored.as_ref().is_none_or(|(_, at)| revision >= *at) {
                    chunk.sealed = row.term == term;
                    chunk.stored = Some((row.clone(), revision));
                }
                self.learn(now, RowKey::Assignments(number), Row::Assignments(row), revision);
            }
            _ => {
                chunk.sealed = false;
                chunk.stored = None;
            }
        }
    }

    /// The answer to a read of a row whose write's answer was lost.
    pub(in super::super) fn chunk_read(
        &mut self,
        now: Now,
        number: u32,
        value: Option<(Row, u64)>,
    ) {
        let waits = self.manager.as_ref().and_then(|manager| manager.chunks.get(number as usize));
        if waits.is_some_and(|chunk| chunk.read_at.is_some()) {
            self.chunk_found(now, number, value);
        }
    }
}
