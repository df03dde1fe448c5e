//! The rows of assignments: sealed with the manager's term, then changed by one compare-and-set at a time.

use super::*;

/// One row of assignments, as the manager has it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Chunk {
    /// As it was last written or found.
    pub(super) base: Option<(ShardsRow, u64)>,
    /// It bears this manager's term (R10).
    pub(super) sealed: bool,
    /// What is to be changed in it.
    pub(super) want: BTreeMap<usize, ShardRow>,
    /// What is being written.
    writing: Option<ShardsRow>,
    /// The answer to a write was lost: when to read the row again.
    pub(super) read_at: Option<u64>,
}

impl Chunk {
    /// Each shard's row, with its place: as it is wanted, else as it is being written, else as it was last found.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &ShardRow)> {
        let row = self.writing.as_ref().or(self.base.as_ref().map(|(base, _)| base));
        let shards = row.into_iter().flat_map(|row| row.shards.iter().enumerate());
        shards.map(|(place, shard)| (place, self.want.get(&place).unwrap_or(shard)))
    }

    /// Whether a write, or a read after a lost one, is under way.
    pub(super) fn busy(&self) -> bool {
        self.writing.is_some() || self.read_at.is_some()
    }

    /// Whether a shard's row of this kind is being written.
    pub(super) fn writes(&self, kind: impl Fn(&ShardRow) -> bool) -> bool {
        self.writing.as_ref().is_some_and(|row| row.shards.iter().any(kind))
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
        let shards = self.identity.shards;
        let no_seal = self.off(Mutation::NoSeal);
        let Some(manager) = &mut self.manager else { return };
        let chunk = &mut manager.chunks[number];
        let key = number as u32;
        if let Some(at) = chunk.read_at {
            if now.mono >= at {
                chunk.read_at = Some(now.mono + self.settings.retry);
                self.actions.push_back(Action::Read(Key::Shards(key)));
            }
            return;
        }
        if chunk.writing.is_some() || (chunk.sealed && chunk.want.is_empty()) {
            return;
        }
        if chunk.base.is_none()
            && let Some((row, revision)) = self.view.chunks.get(&key)
        {
            if row.term > manager.term {
                // Who was told late that it leads: another does by now, and its row says so (R10).
                chunk.read_at = Some(now.mono + self.settings.retry);
                self.actions.push_back(Action::Read(Key::Manager));
                return;
            }
            chunk.base = Some((row.clone(), *revision));
            manager.undecided.add(key);
        }
        if no_seal && chunk.base.is_some() && chunk.want.is_empty() {
            return;
        }
        let mut row = chunk.base.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
        row.term = manager.term;
        row.shards.resize(
            (shards - key * crate::rows::CHUNK).min(crate::rows::CHUNK) as usize,
            ShardRow::default(),
        );
        for (place, shard) in std::mem::take(&mut chunk.want) {
            row.shards[place] = shard;
        }
        chunk.writing = Some(row.clone());
        let expected = chunk.base.as_ref().map(|(_, revision)| *revision);
        self.write(Purpose::Chunk(key), Key::Shards(key), expected, Row::Shards(row));
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
        self.news = true;
        manager.undecided.add(number);
        match result {
            Ok(revision) => {
                chunk.sealed = true;
                chunk.base = Some((row.clone(), revision));
                let key = Key::Shards(number);
                self.learn(now, key.clone(), Row::Shards(row.clone()), revision);
                self.tell_all(key, &Row::Shards(row), revision);
            }
            Err(WriteError::Conflict(value)) => self.chunk_found(now, number, value),
            Err(WriteError::Unknown) => {
                chunk.read_at = Some(now.mono);
                manager.owners.chunk_changed(number);
            }
        }
    }

    /// A row as it was found after a conflict or a lost answer.
    pub(super) fn chunk_found(&mut self, now: Now, number: u32, value: Option<(Row, u64)>) {
        let Some(manager) = &mut self.manager else { return };
        let term = manager.term;
        let Some(chunk) = manager.chunks.get_mut(number as usize) else { return };
        chunk.read_at = None;
        self.news = true;
        manager.undecided.add(number);
        manager.owners.chunk_changed(number);
        // What was wanted was decided from another row.
        chunk.want.clear();
        match value {
            Some((Row::Shards(row), revision)) => {
                if row.term > term {
                    // Another manages: its row says so.
                    self.actions.push_back(Action::Read(Key::Manager));
                    chunk.sealed = false;
                    chunk.read_at = Some(now.mono + self.settings.retry);
                } else if chunk.base.as_ref().is_none_or(|(_, at)| revision >= *at) {
                    chunk.sealed = row.term == term;
                    chunk.base = Some((row.clone(), revision));
                }
                self.learn(now, Key::Shards(number), Row::Shards(row), revision);
            }
            _ => {
                chunk.sealed = false;
                chunk.base = None;
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
