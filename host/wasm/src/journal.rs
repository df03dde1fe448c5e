//! The journal during a turn: the events before it, and what the turn appends and removes (E18).
//!
//! Events are never held for longer than a turn: a turn that only appends reads nothing (E16), and a turn that reads
//! gets them page by page from the store.

use bytes::Bytes;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// Bytes charged for each event and for the snapshot in addition to its data.
pub const EVENT_CHARGE: u64 = 100;

/// Number of reads from the store in one turn whose time is not charged to the guest.
const FREE_READS: u64 = 1_000;

/// Which events an entity's journal holds before a turn, and how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalUse {
    /// The number of the first event that is kept; `next` if none is.
    pub first: u64,
    /// The number of the next event; 1 if there was none yet.
    pub next: u64,
    /// Bytes of all events before `first`, each with [`EVENT_CHARGE`].
    pub start: u64,
    /// Bytes of all events before `next`.
    pub end: u64,
    /// The number of the last event that the snapshot includes.
    pub snapshot: u64,
    /// Bytes of the snapshot; 0 if there is none.
    pub snapshot_bytes: u64,
    /// Identifies the snapshot.
    pub snapshot_version: u64,
}

impl Default for JournalUse {
    fn default() -> Self {
        JournalUse {
            first: 1,
            next: 1,
            start: 0,
            end: 0,
            snapshot: 0,
            snapshot_bytes: 0,
            snapshot_version: 0,
        }
    }
}

/// An event in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number.
    pub number: u64,
    /// Bytes of all events before it, each with [`EVENT_CHARGE`].
    pub start: u64,
    /// The guest's own bytes.
    pub data: Bytes,
}

/// The changes that a turn makes to the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalChange {
    /// The events that it appends, in order.
    pub events: Vec<Bytes>,
    /// The first event that it keeps, if it removes events: its number, and the bytes of all events before it.
    pub keep_from: Option<(u64, u64)>,
    /// The new snapshot: the number of the last event that it includes, and its data.
    pub snapshot: Option<(u64, Bytes)>,
}

/// The journal during a turn.
#[derive(Default)]
pub(crate) struct TurnJournal {
    before: JournalUse,
    change: JournalChange,
    /// Bytes of the appended events.
    appended: u64,
    /// How often the turn has read from the store.
    reads: u64,
}

impl TurnJournal {
    pub(crate) fn begin(before: JournalUse) -> TurnJournal {
        TurnJournal { before, ..TurnJournal::default() }
    }

    /// The number of the first event that is kept.
    pub(crate) fn first(&self) -> u64 {
        self.change.keep_from.map_or(self.before.first, |(first, _)| first)
    }

    /// The number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.before.next + self.change.events.len() as u64
    }

    /// Size of the kept events and of the snapshot.
    pub(crate) fn bytes(&self) -> u64 {
        let start = self.change.keep_from.map_or(self.before.start, |(_, start)| start);
        let snapshot = self.change.snapshot.as_ref();
        let snapshot =
            snapshot.map_or(self.before.snapshot_bytes, |(_, data)| charged(data.len() as u64));
        (self.before.end + self.appended).saturating_sub(start) + snapshot
    }

    /// The number of records that the turn writes and deletes.
    fn records(&self) -> u64 {
        let removed = self.first() - self.before.first;
        self.change.events.len() as u64 + removed + u64::from(self.change.snapshot.is_some())
    }

    /// Bytes that the turn writes: each event and snapshot, and a charge for each event that it removes.
    pub(crate) fn written(&self) -> u64 {
        let snapshot = self.change.snapshot.as_ref();
        let removed = (self.first() - self.before.first) * EVENT_CHARGE;
        self.appended + removed + snapshot.map_or(0, |(_, data)| charged(data.len() as u64))
    }

    /// Fails if an event or a snapshot of this size would exceed a limit. `replaced` is the size of the snapshot that
    /// this one replaces; `own_records` and `own_bytes` are what the turn itself has written of that; `beside` is the
    /// number of bytes that the turn has written to the state. Checked before the data is copied out of the guest.
    fn check(
        &self,
        bytes: u64,
        replaced: u64,
        (own_records, own_bytes): (u64, u64),
        beside: u64,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        if self.records() - own_records >= limits.turn_keys {
            let (what, setting, limit) = ("records of the journal", "turn-keys", limits.turn_keys);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        if beside + self.written() - own_bytes + charged(bytes) > limits.turn_bytes {
            let (what, setting, limit) = ("bytes", "turn-bytes", limits.turn_bytes);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        let would = self.bytes() - replaced + charged(bytes);
        // A journal that already exceeds its limit may still get a smaller snapshot.
        if would > limits.journal && charged(bytes) > replaced {
            return Err(HostTrap::JournalTooLarge { would, limit: limits.journal });
        }
        Ok(())
    }

    /// Fails if an event of this size would exceed a limit.
    pub(crate) fn may_append(
        &self,
        bytes: u64,
        beside: u64,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        self.check(bytes, 0, (0, 0), beside, limits)
    }

    /// Appends an event, and returns its number.
    pub(crate) fn append(&mut self, data: Bytes) -> u64 {
        let number = self.next();
        self.appended += charged(data.len() as u64);
        self.change.events.push(data);
        number
    }

    /// Fails if a snapshot of this size would exceed a limit.
    pub(crate) fn may_save(
        &self,
        bytes: u64,
        beside: u64,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let (replaced, own) = match &self.change.snapshot {
            Some((_, data)) => {
                let bytes = charged(data.len() as u64);
                (bytes, (1, bytes))
            }
            None => (self.before.snapshot_bytes, (0, 0)),
        };
        self.check(bytes, replaced, own, beside, limits)
    }

    /// Replaces the snapshot by one that includes all events so far.
    pub(crate) fn save(&mut self, data: Bytes) {
        self.change.snapshot = Some((self.next() - 1, data));
    }

    /// The snapshot's last event; `None` if there is no snapshot. The data, too, if this turn has saved it.
    pub(crate) fn snapshot(&self) -> Option<(u64, Option<Bytes>)> {
        match &self.change.snapshot {
            Some((through, data)) => Some((*through, Some(data.clone()))),
            None => (self.before.snapshot_bytes > 0).then_some((self.before.snapshot, None)),
        }
    }

    /// The version by which the stored snapshot is known.
    pub(crate) fn snapshot_version(&self) -> u64 {
        self.before.snapshot_version
    }

    /// Counts a read from the store. Returns whether its time is charged to the guest, as that of all but the first
    /// ones: otherwise one turn could keep the store busy for as long as it likes.
    pub(crate) fn charges_read(&mut self) -> bool {
        self.reads += 1;
        self.reads > FREE_READS
    }

    /// Whether a stored event may start there, as far as this turn knows.
    pub(crate) fn may_start_at(&self, start: u64) -> bool {
        (self.before.start..=self.before.end).contains(&start)
    }

    /// The first event that a truncation would keep: at most `before`, and as many as the turn may remove.
    pub(crate) fn may_keep_from(&self, before: u64, beside: u64, limits: &InstanceLimits) -> u64 {
        let bytes = limits.turn_bytes.saturating_sub(beside + self.written()) / EVENT_CHARGE;
        // One record is left for a snapshot.
        let room = limits.turn_keys.saturating_sub(self.records() + 1).min(bytes);
        before.clamp(self.first(), self.next()).min(self.first() + room)
    }

    /// Bytes of all events before the one with this number; `None` if the store must be read for it.
    pub(crate) fn start_of(&self, number: u64) -> Option<u64> {
        let own = number.checked_sub(self.before.next)?;
        let own = self.change.events.iter().take(usize::try_from(own).unwrap_or(usize::MAX));
        let own = own.map(|data| charged(data.len() as u64)).sum::<u64>();
        Some(self.before.end + own)
    }

    /// Removes the events before `first`, which start at `start`.
    pub(crate) fn keep_from(&mut self, first: u64, start: u64) {
        if first > self.first() {
            self.change.keep_from = Some((first, start));
        }
    }

    /// The numbers of the events to read: those in the store, and those of this turn. Starts with the first one that is
    /// kept from `from` on.
    pub(crate) fn range(&self, from: u64) -> (u64, u64) {
        let from = from.max(self.first());
        (from, self.before.next.saturating_sub(from))
    }

    /// The events of this turn from a number on, with their numbers.
    pub(crate) fn own(&self, from: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let numbered = (self.before.next..).zip(&self.change.events);
        numbered.skip_while(move |(number, _)| *number < from)
    }

    /// Returns the changes of the turn, which ends.
    pub(crate) fn take_change(&mut self) -> JournalChange {
        self.appended = 0;
        std::mem::take(&mut self.change)
    }
}

fn charged(bytes: u64) -> u64 {
    bytes + EVENT_CHARGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> InstanceLimits {
        InstanceLimits { journal: 1_000, turn_keys: 4, turn_bytes: 800, ..Default::default() }
    }

    fn before() -> JournalUse {
        JournalUse {
            first: 3,
            next: 5,
            start: 50,
            end: 350,
            snapshot: 2,
            snapshot_bytes: 200,
            snapshot_version: 9,
        }
    }

    fn append(turn: &mut TurnJournal, bytes: usize) -> Result<u64, String> {
        turn.may_append(bytes as u64, 0, &limits()).map_err(|trap| trap.to_string())?;
        Ok(turn.append(vec![0; bytes].into()))
    }

    fn save(turn: &mut TurnJournal, bytes: usize) -> Result<(), String> {
        turn.may_save(bytes as u64, 0, &limits()).map_err(|trap| trap.to_string())?;
        turn.save(vec![0; bytes].into());
        Ok(())
    }

    #[test]
    fn limits_on_the_journal_are_exact_and_named() {
        let mut turn = TurnJournal::begin(before());
        assert_eq!(turn.bytes(), 500);
        assert!(append(&mut turn, 401).unwrap_err().contains("limits.journal is 1000"));
        assert_eq!(append(&mut turn, 400), Ok(5));
        assert!(append(&mut turn, 0).unwrap_err().contains("1100"));
        assert!(save(&mut turn, 101).unwrap_err().contains("limits.journal"), "one byte more");
        assert_eq!(save(&mut turn, 0), Ok(()), "a smaller snapshot makes room");
        assert_eq!((turn.bytes(), turn.snapshot()), (900, Some((5, Some(Bytes::new())))));
        assert_eq!(save(&mut turn, 100), Ok(()), "what it replaces does not count");
        assert_eq!((save(&mut turn, 0), turn.written()), (Ok(()), 600));
        turn.keep_from(4, 150);
        assert_eq!((turn.written(), turn.bytes()), (700, 800));
        assert!(append(&mut turn, 1).unwrap_err().contains("`turn-bytes` (800)"));
        assert!(turn.may_append(0, 1, &limits()).is_err(), "the state counts too");
        assert_eq!(append(&mut turn, 0), Ok(6));
        assert!(append(&mut turn, 0).unwrap_err().contains("`turn-keys` (4)"));
        let change = turn.take_change();
        assert_eq!((change.events.len(), change.keep_from), (2, Some((4, 150))));
    }

    #[test]
    fn a_turn_removes_as_many_events_as_it_may_write() {
        let many = JournalUse { next: 100, end: 97 * 110 + 50, ..before() };
        let mut turn = TurnJournal::begin(many);
        assert_eq!(turn.may_keep_from(2, 0, &limits()), 3, "they are gone already");
        assert_eq!(turn.may_keep_from(5, 0, &limits()), 5);
        assert_eq!(turn.may_keep_from(99, 0, &limits()), 6, "one record is left for a snapshot");
        assert_eq!(turn.may_keep_from(99, 601, &limits()), 4, "each counts 100 bytes");
        turn.keep_from(5, 270);
        assert_eq!(turn.may_keep_from(99, 0, &limits()), 6, "one more");
        turn.keep_from(6, 380);
        assert_eq!(turn.may_keep_from(99, 0, &limits()), 6);
        assert_eq!((turn.first(), turn.range(0)), (6, (6, 94)));
    }

    #[test]
    fn a_turn_reads_its_own_events_after_those_before_it() {
        let mut turn = TurnJournal::begin(before());
        turn.append(Bytes::from_static(b"a"));
        turn.append(Bytes::from_static(b"bb"));
        assert_eq!((turn.range(0), turn.range(4), turn.range(6)), ((3, 2), (4, 1), (6, 0)));
        let own = |from| turn.own(from).map(|(number, data)| (number, data.len())).collect();
        let numbers: Vec<(u64, usize)> = own(0);
        assert_eq!(numbers, [(5, 1), (6, 2)]);
        let numbers: Vec<(u64, usize)> = own(6);
        assert_eq!(numbers, [(6, 2)]);
        assert_eq!((turn.start_of(4), turn.start_of(5)), (None, Some(350)));
        assert_eq!((turn.start_of(6), turn.start_of(7)), (Some(451), Some(553)));
        assert_eq!(turn.may_keep_from(99, 0, &limits()), 4, "two of four records are appended");
    }
}
