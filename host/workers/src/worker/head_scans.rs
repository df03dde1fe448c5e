//! Reads of heads, to count what shards store (K38). A worker reads one page at a time: counting must not compete with
//! messages for the store.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::FutureExt;
use ostraca_core::shard::{Event, HeadPage};
use ostraca_store::{Page, Scan, ScanKind, ScannedRecord, StoreError};

use super::Worker;
use super::completions::Completion;
use super::machines::MachineId;
use super::panics::{Panicked, contained};
use super::stored_state::STATE_PAGE;
use super::tasks::TaskGroupKey;

/// A page of a shard's heads that a machine has asked for.
pub(super) struct HeadScan {
    pub(super) machine: MachineId,
    /// The number of the machine's action.
    pub(super) number: u64,
    pub(super) after: Option<Bytes>,
    pub(super) max_records: usize,
}

/// The pages that were asked for.
#[derive(Default)]
pub(super) struct HeadScans {
    waiting: VecDeque<HeadScan>,
    is_reading: bool,
}

impl Worker {
    pub(super) fn scan_heads(&mut self, scan: HeadScan) {
        self.head_scans.waiting.push_back(scan);
        self.read_heads();
    }

    fn read_heads(&mut self) {
        while !self.head_scans.is_reading {
            let Some(next) = self.head_scans.waiting.pop_front() else { return };
            let id = next.machine;
            let Some(slot) = self.machines.get_mut(id).filter(|slot| !slot.has_ended()) else {
                continue;
            };
            self.head_scans.is_reading = true;
            slot.pending_store_calls += 1;
            let scan = Scan {
                shard: slot.machine.ownership().shard.clone(),
                kind: ScanKind::Heads,
                after: next.after,
                max_records: next.max_records,
                max_bytes: STATE_PAGE.1,
            };
            let answer = contained(&self.deps.stats, self.deps.entity_store.scan(scan));
            self.tasks.push(
                TaskGroupKey::StoreCalls,
                async move {
                    let failed = |why: Panicked| Err(StoreError::Unavailable(why.to_string()));
                    let page = answer.await.unwrap_or_else(failed);
                    let page = page.map(heads).map_err(|error| error.to_string());
                    let event = Event::HeadsScanned { number: next.number, page };
                    Completion::Heads(id, Box::new(event))
                }
                .boxed_local(),
            );
        }
    }

    pub(super) fn heads_read(&mut self, id: MachineId, event: Event) {
        self.head_scans.is_reading = false;
        if let Some(slot) = self.machines.get_mut(id) {
            slot.pending_store_calls = slot.pending_store_calls.saturating_sub(1);
            self.handle_event(id, event);
            self.remove_if_finished(id);
        }
        self.read_heads();
    }
}

fn heads(page: Page) -> HeadPage {
    let heads = page.records.into_iter().filter_map(|record| match record {
        ScannedRecord::Head(entity, head) => Some((entity, head)),
        _ => None,
    });
    (heads.collect(), page.next_cursor)
}
