//! The copy of an entity that a dry run works on: what the store has, with what a migration has changed.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_core::codec;
use ostraca_core::records::{JournalEvent, JournalExtent, JournalSnapshot, RecordKey};
use ostraca_wasm::{GuestTurnOutput, StateError, StateSource, StoredEvent, StoredSnapshot};
use ostraca_workers::{StoredState, guest_types};

/// A copy of an entity's state and journal.
#[derive(Clone)]
pub(super) struct Copy {
    stored: StoredState,
    /// The state after the migration.
    state: Option<BTreeMap<Bytes, Bytes>>,
    /// The events that the migration has appended.
    appended: BTreeMap<u64, JournalEvent>,
    /// The snapshot that the migration has saved.
    snapshot: Option<JournalSnapshot>,
}

impl Copy {
    pub(super) fn new(stored: StoredState) -> Self {
        Self { stored, state: None, appended: BTreeMap::new(), snapshot: None }
    }

    /// Applies what a migration has made of this state and journal. The migration makes the entity's next `version`.
    pub(super) fn migrate(
        &mut self,
        before: &BTreeMap<Bytes, Bytes>,
        output: &GuestTurnOutput,
        journal: &mut JournalExtent,
        version: u64,
    ) {
        let mut state = before.clone();
        for (key, value) in &output.writes {
            match value {
                Some(value) => state.insert(key.clone(), value.clone()),
                None => state.remove(key),
            };
        }
        self.state = Some(state);
        let change = guest_types::journal_change(output.journal.clone());
        for write in change.apply(journal, version) {
            match (write.key, write.value) {
                (RecordKey::Journal { number: RecordKey::SNAPSHOT }, Some(value)) => {
                    self.snapshot = codec::decode(&value).ok()
                }
                (RecordKey::Journal { number }, Some(value)) => {
                    self.appended.extend(codec::decode(&value).map(|event| (number, event)));
                }
                // An event that is removed lies outside of the journal's extent.
                _ => {}
            }
        }
    }
}

impl StateSource for Copy {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        match self.state.clone() {
            Some(state) => async { Ok(state.into_iter().collect()) }.boxed(),
            None => self.stored.load(),
        }
    }

    fn events(
        &mut self,
        from: u64,
        count: usize,
    ) -> BoxFuture<'static, Result<Vec<StoredEvent>, StateError>> {
        let Some(&first_appended) = self.appended.keys().next() else {
            return self.stored.events(from, count);
        };
        if from >= first_appended {
            let own = self.appended.range(from..).take(count);
            let own = own.map(|(&number, JournalEvent { start, data, .. })| StoredEvent {
                number,
                start: *start,
                data: data.clone(),
            });
            let own: Vec<_> = own.collect();
            return async { Ok(own) }.boxed();
        }
        // The rest is on the next page.
        let in_store = usize::try_from(first_appended - from).unwrap_or(usize::MAX);
        self.stored.events(from, count.min(in_store))
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Option<StoredSnapshot>, StateError>> {
        let Some(JournalSnapshot { through, version, data, .. }) = self.snapshot.clone() else {
            return self.stored.snapshot();
        };
        async move { Ok(Some(StoredSnapshot { through, version, data })) }.boxed()
    }
}
