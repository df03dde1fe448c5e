//! The import `ostraca:entity/journal`.

use std::sync::Arc;

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Linker, Lower, WasmList};

use crate::StoredEvent;
use crate::instance_data::InstanceData;
use crate::trap::HostTrap;

type Cx<'a> = StoreContextMut<'a, InstanceData>;
/// Bytes that are lowered into the guest's memory.
type Data = Arc<[u8]>;

/// Maximum number of events in one page.
const PAGE_LIMIT: u32 = 1_000;
/// Maximum size in bytes of a page with more than one event.
const PAGE_BYTES: u64 = 1 << 20;

/// The WIT's `event`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitEvent {
    number: u64,
    data: Data,
}

/// The WIT's `page`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitPage {
    events: Vec<WitEvent>,
    next: Option<u64>,
}

/// The WIT's `extent`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitExtent {
    first: u64,
    next: u64,
    bytes: u64,
    snapshot: Option<u64>,
}

/// The WIT's `snapshot`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitSnapshot {
    through: u64,
    data: Data,
}

pub(crate) fn link(linker: &mut Linker<InstanceData>) -> wasmtime::Result<()> {
    let mut journal = linker.instance("ostraca:entity/journal@0.1.0")?;
    journal.func_wrap("append", |mut cx: Cx<'_>, (data,): (WasmList<u8>,)| {
        cx.data().may_write("an event was appended")?;
        let limits = cx.data().limits.clone();
        let beside = cx.data().written_beside_journal();
        cx.data().journal.may_append(data.len() as u64, beside, &limits)?;
        let data = Bytes::copy_from_slice(data.as_le_slice(&cx));
        Ok((cx.data_mut().journal.append(data),))
    })?;
    journal.func_wrap_async("read", |mut cx: Cx<'_>, (from, limit): (u64, u32)| {
        Box::new(async move {
            if !(1..=PAGE_LIMIT).contains(&limit) {
                return Err(HostTrap::InvalidHostCall(format!(
                    "journal.read was called with limit {limit}, must be 1 to {PAGE_LIMIT}"
                ))
                .into());
            }
            Ok((read(&mut cx, from, limit).await?,))
        })
    })?;
    journal.func_wrap("get-extent", |cx: Cx<'_>, (): ()| {
        let journal = &cx.data().journal;
        let (first, next, bytes) = (journal.first(), journal.next(), journal.bytes());
        let snapshot = journal.snapshot().map(|(through, _)| through);
        Ok((WitExtent { first, next, bytes, snapshot },))
    })?;
    journal.func_wrap_async("truncate", |mut cx: Cx<'_>, (before,): (u64,)| {
        Box::new(async move {
            cx.data().may_write("events were removed")?;
            let entity = cx.data();
            let beside = entity.state_bytes_written();
            let first = entity.journal.may_keep_from(before, beside, &entity.limits);
            if first > entity.journal.first() {
                let start = match entity.journal.start_of(first) {
                    Some(start) => start,
                    None => stored(&mut cx, first, 1).await?.first().map_or(0, |it| it.start),
                };
                if !cx.data().journal.may_start_at(start) && first < cx.data().journal.next() {
                    return Err(changed(first));
                }
                cx.data_mut().journal.keep_from(first, start);
            }
            Ok((cx.data().journal.first(),))
        })
    })?;
    journal.func_wrap("save-snapshot", |mut cx: Cx<'_>, (data,): (WasmList<u8>,)| {
        cx.data().may_write("a snapshot was saved")?;
        let limits = cx.data().limits.clone();
        let beside = cx.data().written_beside_journal();
        cx.data().journal.may_save(data.len() as u64, beside, &limits)?;
        let data = Bytes::copy_from_slice(data.as_le_slice(&cx));
        cx.data_mut().journal.save(data);
        Ok(())
    })?;
    journal.func_wrap_async("load-snapshot", |mut cx: Cx<'_>, (): ()| {
        Box::new(async move {
            let snapshot = match cx.data().journal.snapshot() {
                None => None,
                Some((through, Some(data))) => Some((through, data)),
                Some((through, None)) => Some((through, stored_snapshot(&mut cx, through).await?)),
            };
            let lowered = |(through, data): (u64, Bytes)| WitSnapshot {
                through,
                data: Data::from(&data[..]),
            };
            Ok((snapshot.map(lowered),))
        })
    })?;
    Ok(())
}

/// Reads a page: events from the store, then those of this turn.
async fn read(cx: &mut Cx<'_>, from: u64, limit: u32) -> wasmtime::Result<WitPage> {
    let (from, in_store) = cx.data().journal.range(from);
    let count = in_store.min(limit.into());
    let mut events = Vec::new();
    let mut bytes = 0;
    if count > 0 {
        for StoredEvent { number, data, .. } in stored(cx, from, count).await? {
            bytes += data.len() as u64;
            events.push(WitEvent { number, data: Data::from(&data[..]) });
        }
    }
    let journal = &cx.data().journal;
    if events.len() as u64 == in_store {
        for (number, data) in journal.own(from) {
            bytes += data.len() as u64;
            if events.len() >= limit as usize || (bytes > PAGE_BYTES && !events.is_empty()) {
                break;
            }
            events.push(WitEvent { number, data: Data::from(&data[..]) });
        }
    }
    let next = events.last().map_or(from, |event| event.number + 1);
    Ok(WitPage { events, next: (next < journal.next()).then_some(next) })
}

/// Reads events from the store: at least one, and at most `count`. Fails if an event is missing: then the journal has
/// changed since the turn began, and the turn would not be committed.
async fn stored(cx: &mut Cx<'_>, from: u64, count: u64) -> wasmtime::Result<Vec<StoredEvent>> {
    let entity = cx.data_mut();
    let reading = entity.source.events(from, usize::try_from(count).unwrap_or(usize::MAX));
    let events = uncharged(entity, reading).await;
    let events = events.map_err(|error| HostTrap::StateUnavailable(error.to_string()))?;
    let numbers = events.iter().map(|event| event.number);
    if events.is_empty() || !numbers.eq(from..from + events.len() as u64) {
        return Err(changed(from));
    }
    Ok(events)
}

fn changed(from: u64) -> wasmtime::Error {
    let text = format!("cannot read the journal: it no longer holds the events from {from} on");
    HostTrap::StateUnavailable(text).into()
}

/// Awaits a read. Its time is not charged to the guest, except after many reads in one turn.
async fn uncharged<T>(entity: &mut InstanceData, reading: impl Future<Output = T>) -> T {
    if entity.journal.charges_read() {
        return reading.await;
    }
    entity.meter.enter_host();
    let read = reading.await;
    entity.meter.leave_host();
    read
}

async fn stored_snapshot(cx: &mut Cx<'_>, through: u64) -> wasmtime::Result<Bytes> {
    let entity = cx.data_mut();
    let version = entity.journal.snapshot_version();
    let reading = entity.source.snapshot();
    let snapshot = uncharged(entity, reading).await;
    match snapshot.map_err(|error| HostTrap::StateUnavailable(error.to_string()))? {
        Some(stored) if (stored.through, stored.version) == (through, version) => Ok(stored.data),
        _ => {
            let text = "cannot read the journal's snapshot: it has been replaced";
            Err(HostTrap::StateUnavailable(text.into()).into())
        }
    }
}
