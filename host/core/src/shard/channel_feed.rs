//! What an owner knows about an entity's channels while it has the entity in memory: which items are durable, the
//! newest of them, and the reads that wait for the next one (R3).
//!
//! Only durable items are ever returned. The newest ones stay in memory for a while after a read, so that a subscriber
//! that follows a channel gets them without a read of the store, even if the channel keeps nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::channel_reads::{ChannelPage, ChannelPosition, ChannelRead, Lost, PageItem};
use super::channel_waiting::{Reader, WaitingReads};
use super::channels::{ChannelKeep, Channels, Emit, ITEM_CHARGE, NumberedItem, emit};
use crate::extensions::Extensions;
use crate::message::ReplyToken;
use crate::records::{ChannelCursor, ChannelExtent, ChannelItem, RecordWrite};

/// How long the newest items of a channel stay in memory after its last read, in milliseconds.
const LINGER_MS: u64 = 5_000;

/// The next step for a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    /// It waits for an item.
    Wait,
    /// Read the store.
    Scan(ChannelScan),
    /// Answer the request with this token with an encoded page.
    Answer(ReplyToken, Bytes),
}

/// A read of the store for one read of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelScan {
    pub(super) channel: Arc<str>,
    /// The number of the first item.
    pub(super) from: u64,
    pub(super) max_items: usize,
    pub(super) max_bytes: usize,
}

/// The newest durable items of one channel.
#[derive(Clone, Debug, Default)]
struct Recent {
    items: VecDeque<NumberedItem>,
    bytes: u64,
    /// When the channel was last read, on the node's clock.
    read_at: u64,
}

impl Recent {
    fn push(&mut self, item: NumberedItem, most_bytes: u64) {
        if self.items.back().is_some_and(|last| last.number + 1 != item.number) {
            self.clear();
        }
        self.bytes += size(&item.item);
        self.items.push_back(item);
        while self.bytes > most_bytes && self.items.len() > 1 {
            let gone = self.items.pop_front().map_or(0, |gone| size(&gone.item));
            self.bytes = self.bytes.saturating_sub(gone);
        }
    }

    fn clear(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }
}

fn size(item: &ChannelItem) -> u64 {
    item.data.len() as u64 + ITEM_CHARGE
}

/// The items of a turn that is not durable yet.
#[derive(Clone, Debug)]
struct PendingTurn {
    version: u64,
    channels: Arc<Channels>,
    items: Vec<NumberedItem>,
}

/// The channels of an entity in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ChannelFeed {
    /// The channels after the last turn that ran.
    current: Arc<Channels>,
    /// The channels after the last durable turn.
    durable: Arc<Channels>,
    generation: u64,
    pending: VecDeque<PendingTurn>,
    recent: BTreeMap<Arc<str>, Recent>,
    waiting: WaitingReads,
}

impl ChannelFeed {
    /// The channels after the last turn that ran.
    pub(super) fn current(&self) -> &Arc<Channels> {
        &self.current
    }

    /// Adopts what was loaded. Reads keep waiting.
    pub(super) fn reload(&mut self, channels: Channels, generation: u64) {
        self.current = channels.into();
        self.durable = self.current.clone();
        self.generation = generation;
        self.pending.clear();
        // What is in memory must continue to the last durable item.
        for (channel, recent) in &mut self.recent {
            let last = self.durable.get(channel).map_or((0, 0), last_item);
            if recent.items.back().is_some_and(|it| (it.number, it.item.version) != last) {
                recent.clear();
            }
        }
        self.waiting.examine_all();
    }

    /// Emits the items of the turn that makes this version. Returns the writes.
    pub(super) fn emit(
        &mut self,
        emits: Vec<Emit>,
        keep: ChannelKeep,
        version: u64,
        utc_ms: u64,
    ) -> Vec<RecordWrite> {
        let (items, writes) = emit(Arc::make_mut(&mut self.current), emits, keep, version, utc_ms);
        let channels = self.current.clone();
        self.pending.push_back(PendingTurn { version, channels, items });
        writes
    }

    /// Publishes the items of turns up to this version: they are durable.
    pub(super) fn on_durable(&mut self, version: u64, most_bytes: u64, now: u64) {
        while self.pending.front().is_some_and(|turn| turn.version <= version)
            && let Some(turn) = self.pending.pop_front()
        {
            self.durable = turn.channels;
            for item in turn.items {
                let waits = self.waiting.examine(&item.channel);
                if let Some(recent) = self.recent.get_mut(&item.channel)
                    && (waits || recent.read_at.saturating_add(LINGER_MS) > now)
                {
                    recent.push(item, most_bytes);
                }
            }
        }
    }

    /// Adds a read, which waits until the given time on the node's clock.
    pub(super) fn add(&mut self, token: ReplyToken, read: ChannelRead, until: u64, now: u64) {
        self.recent.entry(read.channel.clone()).or_default().read_at = now;
        self.waiting.add(token, read, until);
    }

    pub(super) fn reader_count(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing of this must stay in memory.
    pub(super) fn is_unused(&self) -> bool {
        self.waiting.len() == 0 && self.recent.is_empty()
    }

    /// Forgets the items of channels that nobody reads any more.
    pub(super) fn expire(&mut self, now: u64) {
        let waiting = &self.waiting;
        self.recent.retain(|channel, recent| {
            waiting.waits_for(channel) || recent.read_at.saturating_add(LINGER_MS) > now
        });
    }

    /// When the next read must be answered in any case, on the node's clock.
    pub(super) fn answer_due(&self) -> Option<u64> {
        self.waiting.first_deadline()
    }

    /// When items can be forgotten next, on the node's clock.
    pub(super) fn expiry_due(&self) -> Option<u64> {
        let unread = self.recent.iter().filter(|(channel, _)| !self.waiting.waits_for(channel));
        unread.map(|(_, it)| it.read_at.saturating_add(LINGER_MS)).min()
    }

    /// Removes all reads, and forgets everything that was kept for them. Returns their tokens.
    pub(super) fn take_readers(&mut self) -> Vec<ReplyToken> {
        self.recent.clear();
        self.waiting.take_all()
    }

    /// Examines the reads for which something may have changed. Returns the next steps, with the reads' numbers.
    pub(super) fn steps(&mut self, version: u64, now: u64) -> Vec<(u64, ReadStep)> {
        let mut steps = Vec::new();
        // Subscribers that follow a channel stand at the same place: they get the same page.
        let mut last: Option<(ChannelRead, Lost, Bytes)> = None;
        for (number, is_over) in self.waiting.take_changed(now) {
            let Some(reader) = self.waiting.get(number) else { continue };
            let same = last.as_ref().filter(|(read, lost, _)| {
                *lost == reader.lost
                    && *read == ChannelRead { wait_ms: read.wait_ms, ..reader.read.clone() }
            });
            let step = match same {
                Some((_, _, page)) => ReadStep::Answer(reader.token, page.clone()),
                None => self.step(reader, is_over, version),
            };
            match &step {
                ReadStep::Wait => continue,
                ReadStep::Scan(scan) => self.waiting.begin_scan(number, scan.from),
                ReadStep::Answer(_, page) => {
                    if same.is_none() {
                        last = Some((reader.read.clone(), reader.lost, page.clone()));
                    }
                    self.end(number, now);
                }
            }
            steps.push((number, step));
        }
        steps
    }

    /// Removes a read that is answered.
    fn end(&mut self, number: u64, now: u64) {
        if let Some(reader) = self.waiting.remove(number)
            && let Some(recent) = self.recent.get_mut(&reader.read.channel)
        {
            recent.read_at = now;
        }
    }

    fn step(&self, reader: &Reader, is_over: bool, version: u64) -> ReadStep {
        let read = &reader.read;
        let nothing = ChannelExtent::new(read.channel.clone());
        let extent = self.durable.get(&read.channel).unwrap_or(&nothing);
        let start = self.start(extent, reader, version);
        if start.from < extent.next && start.begins_in_store {
            let before = u64::from(start.checks_previous);
            return ReadStep::Scan(ChannelScan {
                channel: read.channel.clone(),
                from: start.from - before,
                max_items: (read.max_items as usize).saturating_add(1),
                max_bytes: read.max_bytes as usize,
            });
        }
        let mut page = self.page(extent, reader.lost.and(start.lost));
        if start.from < extent.next {
            let recent = self.recent.get(&read.channel).into_iter().flat_map(|it| &it.items);
            let wanted = recent.skip_while(|it| !start.wants(it.number, &it.item));
            fill(&mut page, wanted.map(|it| (it.number, &*it.item)), read);
        }
        let has_news = !page.items.is_empty() || page.lost != Lost::Nothing;
        match has_news || read.from == ChannelPosition::Now || is_over {
            true => ReadStep::Answer(reader.token, page.encode()),
            false => ReadStep::Wait,
        }
    }

    /// Where a read begins.
    fn start(&self, extent: &ChannelExtent, reader: &Reader, version: u64) -> Start {
        let read = &reader.read;
        let recent = self.recent.get(&read.channel).and_then(|recent| recent.items.front());
        let is_kept = extent.kept() > 0;
        let first_kept = is_kept.then_some(extent.first.number);
        let available = first_kept.into_iter().chain(recent.map(|it| it.number)).min();
        let oldest = available.unwrap_or(extent.next);
        let at = |from: u64, lost| Start {
            from,
            after_version: reader.after_version,
            lost,
            begins_in_store: is_kept && recent.is_none_or(|it| from < it.number),
            checks_previous: false,
        };
        match read.from {
            ChannelPosition::Now => at(extent.next, Lost::Nothing),
            ChannelPosition::Oldest => at(oldest, Lost::Nothing),
            ChannelPosition::AfterVersion(after) if after >= extent.last_version => {
                // A version that does not exist yet belongs to a history that does not exist any more.
                at(extent.next, if after > version { Lost::Unknown } else { Lost::Nothing })
            }
            ChannelPosition::AfterVersion(after) => {
                // All items before a cut are of earlier versions.
                let cut = extent.cuts.iter().take_while(|cut| cut.version <= after + 1).last();
                let cut = cut.filter(|_| is_kept).map_or(oldest, |cut| cut.number.max(oldest));
                let first_version = match recent {
                    _ if is_kept => extent.first.version,
                    // The items before it may be of the same turn.
                    Some(recent) => recent.item.version + 1,
                    None => extent.last_version + 1,
                };
                let is_complete = oldest == 1 || after + 1 >= first_version;
                let lost = if is_complete { Lost::Nothing } else { Lost::Unknown };
                Start { after_version: after, ..at(cut, lost) }
            }
            ChannelPosition::After(cursor) => {
                let end = self.end_of(extent);
                let is_of_this_history = cursor.generation == self.generation
                    && cursor.version <= version
                    && cursor.number <= end.number
                    && (cursor.number < end.number || cursor.version == end.version);
                if !is_of_this_history {
                    return at(oldest, Lost::Unknown);
                }
                let from = cursor.number + 1;
                match oldest.checked_sub(from).filter(|lost| *lost > 0) {
                    Some(lost) => at(oldest, Lost::Items(lost)),
                    None => {
                        let checks_previous =
                            !reader.is_checked && is_kept && cursor.number >= extent.first.number;
                        Start { checks_previous, ..at(from, Lost::Nothing) }
                    }
                }
            }
        }
    }

    /// The cursor behind the last durable item of a channel.
    fn end_of(&self, extent: &ChannelExtent) -> ChannelCursor {
        let (number, version) = last_item(extent);
        ChannelCursor { generation: self.generation, version, number }
    }

    /// A page without items.
    fn page(&self, extent: &ChannelExtent, lost: Lost) -> ChannelPage {
        let (items, next) = (Vec::new(), self.end_of(extent));
        ChannelPage { lost, items, next, extensions: Extensions::default() }
    }

    /// Handles what the store returned for a read. Returns the token and the encoded page to answer with; `None` if the
    /// read must be examined again, or exists no more.
    pub(super) fn on_scanned(
        &mut self,
        number: u64,
        items: &[(u64, ChannelItem)],
        version: u64,
        now: u64,
    ) -> Option<(ReplyToken, Bytes)> {
        let scanned_from = self.waiting.end_scan(number)?;
        let reader = self.waiting.get(number)?.clone();
        let Reader { token, ref read, lost, .. } = reader;
        let nothing = ChannelExtent::new(read.channel.clone());
        let extent = self.durable.get(&read.channel).unwrap_or(&nothing);
        let start = self.start(extent, &reader, version);
        let durable = || items.iter().filter(|(number, _)| *number < extent.next);
        if let (ChannelPosition::After(cursor), Some((first, item))) = (read.from, durable().next())
            && start.checks_previous
            && *first == cursor.number
            && item.version != cursor.version
        {
            // The store was restored, and the entity has emitted other items since.
            self.waiting.go_on(number, ChannelPosition::Oldest, 0, Lost::Unknown);
            return None;
        }
        let mut wanted = durable().filter(|(number, item)| start.wants(*number, item)).peekable();
        let page = match (wanted.peek(), durable().last()) {
            (Some((first, _)), _) => {
                // Items may have been removed since the scan was requested. Who asks for the oldest one loses nothing.
                let gap = first.saturating_sub(start.from);
                let has_place = start.after_version == 0 && read.from != ChannelPosition::Oldest;
                let gap = if gap > 0 && has_place { Lost::Items(gap) } else { Lost::Nothing };
                let mut page = self.page(extent, lost.and(start.lost).and(gap));
                fill(&mut page, wanted.map(|(number, item)| (*number, item)), read);
                page
            }
            // The subscriber knows all of these: the next ones are read.
            (None, Some((last, item))) if start.from <= last + 1 => {
                let (generation, version) = (self.generation, item.version);
                let cursor = ChannelCursor { generation, version, number: *last };
                let from = ChannelPosition::After(cursor);
                self.waiting.go_on(number, from, start.after_version, start.lost);
                return None;
            }
            _ if start.from - u64::from(start.checks_previous) != scanned_from
                || start.from >= extent.next =>
            {
                self.waiting.examine(&read.channel);
                return None;
            }
            // The store does not have what the head counts.
            _ => self.page(extent, Lost::Unknown),
        };
        self.end(number, now);
        Some((token, page.encode()))
    }

    /// Ends a read whose scan failed. Returns its token.
    pub(super) fn on_scan_failed(&mut self, number: u64, now: u64) -> Option<ReplyToken> {
        let token = self.waiting.get(number)?.token;
        self.end(number, now);
        Some(token)
    }
}

/// Where a read begins, and what is lost before that.
struct Start {
    /// The number of the first item.
    from: u64,
    /// Items of versions up to this one are skipped.
    after_version: u64,
    lost: Lost,
    /// Whether the first item is in the store only.
    begins_in_store: bool,
    /// Whether the item before the first one is kept, so that its version must be the cursor's.
    checks_previous: bool,
}

impl Start {
    fn wants(&self, number: u64, item: &ChannelItem) -> bool {
        number >= self.from && item.version > self.after_version
    }
}

/// The number and the version of the last item of a channel; zeros if it has had none.
fn last_item(extent: &ChannelExtent) -> (u64, u64) {
    (extent.next.saturating_sub(1), extent.last_version)
}

/// Adds items to a page, up to the limits of the read.
fn fill<'a>(
    page: &mut ChannelPage,
    items: impl Iterator<Item = (u64, &'a ChannelItem)>,
    read: &ChannelRead,
) {
    let mut bytes = 0;
    for (number, item) in items {
        bytes += size(item);
        let is_full = page.items.len() >= read.max_items as usize || bytes > read.max_bytes.into();
        // What follows a gap is for the next page, which says how much is lost.
        let follows = page.items.last().is_none_or(|last| last.number + 1 == number);
        if !page.items.is_empty() && (is_full || !follows) {
            return;
        }
        let ChannelItem { version, utc_ms, data, .. } = item;
        page.next = ChannelCursor { version: *version, number, ..page.next };
        let (version, utc_ms, data) = (*version, *utc_ms, data.clone());
        page.items.push(PageItem { number, version, utc_ms, data });
    }
}
