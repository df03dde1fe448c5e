//! A store that fails as real ones do, sans-IO. Writes are applied before they are synced, with crashes in between;
//! outcomes get lost; and a failed sync may leave clean pages that never reached the disk (R6).
//!
//! It still satisfies the contract of `EntityStore`, unless a [`StoreMutation`] violates a part of it to test the
//! oracle. The world handles arrival, delay, duplication and reordering; this file is the engine.

mod databases;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::{
    ChannelItem, Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, HeadFloor, Lane,
    LoadedEntity, OWN_TIMERS, RecordKey, Tell, Timer,
};
use ostraca_core::shard::HeadPage;

use crate::journal::JournalWrite;
use crate::remembered;
use crate::rng::Rng;
use crate::schemas::WrongSchema;
use crate::tells::OutboxChange;
use crate::timers::{DurableChange, WrongWakeUps, may_move_wake_up};
use databases::UnfencedCopy;
pub use databases::{MovedMark, Place};

/// A rule of the store that a run may disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreMutation {
    /// Commits are checked by their epoch alone: neither the exact claim nor the version counts (R1).
    EpochOnly,
    /// Claims are not checked at all (R1, R4).
    NoClaims,
    /// Reads and claims are answered from what is applied but not yet synced (R2).
    ReadUnsynced,
    /// Commits are acknowledged before the sync (R2, promise 2).
    AckUnsynced,
    /// After a failed sync, the store continues with the page cache (R6).
    TrustCache,
    /// The removal of a head does not raise the shard's floor (E17).
    ForgetFloor,
    /// A crash preserves a turn's head but loses its writes (promise 3).
    TornTurns,
    /// The store opens with an older copy of its data without reporting it (R5).
    OldCopy,
    /// A refused commit is delivered and checked a second time. By then another turn may have made the version that it
    /// builds on, so its claim and version pass the check, although `Refused` means that it will never take effect.
    RefusalsPass,
    /// The claim that moves a shard's data leaves no mark in the former database, which continues to accept the commits
    /// of its last claim (R26).
    CopyWithoutMark,
    /// A shard's data is copied as soon as the map names another database, while the owner continues to commit (R26).
    MoveOutsideHandOff,
}

/// The contents of the disk, or of the page cache.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The current claim.
    pub claim: Option<Claim>,
    /// The number of the database that the data is in.
    pub database: u64,
    /// The mark that the data is being moved to another database (R26).
    pub moved: Option<MovedMark>,
    /// The entities' heads.
    pub heads: BTreeMap<Entity, ostraca_core::records::Head>,
    /// The floor of the shard, if a head was removed.
    pub floor: Option<HeadFloor>,
    /// The turns that removed heads, for the checks.
    pub removals: u64,
    /// Entities whose versions began above zero because of the floor: the versions that no turn made, for the checks.
    pub skipped: Vec<(Entity, u64, u64)>,
    /// The records other than heads.
    pub records: BTreeMap<(Entity, RecordKey), Bytes>,
    /// Every turn that took effect, in order, for the checks and the mutations.
    pub turns: Vec<(Entity, u64, TurnId)>,
    /// Versions that were written by an older revision than the version before (R24), for the checks.
    pub older_revisions: Vec<(Entity, u64)>,
    /// Versions that a revision wrote on state of another schema (R24), for the checks.
    pub wrong_schemas: Vec<WrongSchema>,
    /// Versions after which an entity's wake-ups were not the one that it needs, for the checks.
    pub wrong_wake_ups: Vec<WrongWakeUps>,
    /// Every change to an outbox, in order, for the checks.
    pub outbox_changes: Vec<OutboxChange>,
    /// Every change to a journal, in order, for the checks.
    pub journal_writes: Vec<JournalWrite>,
    /// The turns that left their entity deleted, for the checks.
    pub deletions: BTreeSet<TurnId>,
    /// The first turn of each deletion, with the time at which the entity was to expire, for the checks.
    pub ends: Vec<(TurnId, Option<u64>)>,
    /// Every change to a timer, in order, for the checks.
    pub timer_changes: Vec<DurableChange>,
    /// The number of synced batches (R5).
    pub sequence: u64,
}

/// A request to the store.
#[derive(Clone, Debug)]
pub enum Request {
    /// Claim the shard.
    Claim(Arc<Claim>),
    /// Claim the shard in a database, to which its data is moved if it is elsewhere (R26).
    ClaimIn {
        /// The claim.
        claim: Arc<Claim>,
        /// The database that the claimant's map names.
        database: u64,
        /// How many claims fail until the data is moved, if it has to be.
        attempts: u64,
    },
    /// Commit turns.
    Commit(Vec<Commit>),
    /// Load an entity.
    Load(Entity),
    /// Read an entity's state.
    State(Entity),
    /// Read a page of wake-ups.
    Wakes {
        /// A number that is returned with the answer.
        number: u64,
        /// The wake-up at which the page starts. `None` for the first one.
        from: Option<(u64, Entity)>,
        /// Maximum number of wake-ups to return.
        max_records: usize,
    },
    /// Read the first keys of an entity's state.
    Keys {
        /// The entity.
        entity: Entity,
        /// A number that is returned with the answer.
        number: u64,
        /// Maximum number of keys to return.
        max_records: usize,
    },
    /// Read a page of remembered entities.
    Remembered {
        /// A number that is returned with the answer.
        number: u64,
        /// The entity at which the page starts. `None` for the first one.
        from: Option<Entity>,
        /// Maximum number of entities to return.
        max_records: usize,
    },
    /// Read a page of heads.
    Heads {
        /// A number that is returned with the answer.
        number: u64,
        /// Where the page starts. `None` for the first one.
        after: Option<Bytes>,
        /// Maximum number of heads to return.
        max_records: usize,
    },
    /// Read kept items of a channel.
    Channel {
        /// The entity.
        entity: Entity,
        /// The channel.
        channel: Arc<str>,
        /// The first number to read.
        from: u64,
        /// Maximum number of items to return.
        max_items: usize,
    },
}

/// A page of wake-ups, and whether more follow.
pub type WakePage = (Vec<(u64, Entity)>, bool);

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Response {
    /// The answer to a claim.
    Claim(ClaimOutcome),
    /// The answer to commits.
    Commit(Vec<(Entity, TurnId, CommitOutcome)>),
    /// The answer to a load.
    Load(Entity, Result<LoadedEntity, String>),
    /// The answer to a read of state.
    State(Entity, Result<BTreeMap<Bytes, Bytes>, String>),
    /// The answer to a read of wake-ups, with its number.
    Wakes(u64, Result<WakePage, String>),
    /// The answer to a read of keys, with its number, and whether more follow.
    Keys(Entity, u64, Result<(Vec<Bytes>, bool), String>),
    /// The answer to a read of remembered entities, with its number, and whether more follow.
    Remembered(u64, Result<(Vec<Entity>, bool), String>),
    /// The answer to a read of heads, with its number.
    Heads(u64, Result<HeadPage, String>),
    /// The answer to a read of a channel.
    Channel(Entity, Result<Vec<(u64, ChannelItem)>, String>),
}

/// The engine.
#[derive(Debug, Default)]
pub struct Store {
    disk: Image,
    cache: Image,
    /// Answers waiting for the next sync, with the tags by which the world knows their requests.
    unsynced_responses: Vec<(u64, Response)>,
    dirty: bool,
    stopped: bool,
    mutations: Vec<StoreMutation>,
    /// Whether the types whose entities it stores have schemas.
    has_schemas: bool,
    /// An old copy of the disk, for [`StoreMutation::OldCopy`].
    old: Option<Image>,
    /// What is really on disk below clean pages that were never written, for [`StoreMutation::TrustCache`].
    under: Option<Image>,
    /// The copy to which no commit is added any more, for [`StoreMutation::CopyWithoutMark`].
    copied: Option<Box<Image>>,
    /// The former database, for [`StoreMutation::CopyWithoutMark`].
    former: Option<Box<Image>>,
    /// For [`StoreMutation::MoveOutsideHandOff`].
    unfenced: Option<UnfencedCopy>,
}

impl Store {
    /// Creates an empty store.
    #[must_use]
    pub fn new(breaches: Vec<StoreMutation>) -> Self {
        Self { mutations: breaches, ..Self::default() }
    }

    /// Sets whether the types whose entities it stores have schemas, which the store then checks at each commit.
    #[must_use]
    pub fn with_schemas(self, has_schemas: bool) -> Self {
        Self { has_schemas, ..self }
    }

    fn has_mutation(&self, breach: StoreMutation) -> bool {
        self.mutations.contains(&breach)
    }

    /// The durable state.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.disk
    }

    /// Whether answers wait for a sync.
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        !self.unsynced_responses.is_empty()
    }

    /// Handles a request. The answer may come immediately or with a sync.
    pub fn request(&mut self, tag: u64, request: Request) -> Vec<(u64, Response)> {
        if self.stopped {
            return vec![(tag, refusal(&request, "the store has stopped"))];
        }
        let (answer, wrote) = match request {
            Request::Claim(claim) => (Response::Claim(self.claim(&claim)), true),
            Request::ClaimIn { claim, database, attempts } => {
                (Response::Claim(self.claim_in(&claim, database, attempts)), true)
            }
            Request::Commit(commits) => {
                let outcomes = commits
                    .into_iter()
                    .map(|commit| {
                        let (entity, turn) = (commit.entity.clone(), commit.head.turn);
                        (entity, turn, self.commit(commit))
                    })
                    .collect();
                (Response::Commit(outcomes), true)
            }
            Request::Load(entity) => {
                (Response::Load(entity.clone(), Ok(self.load(&entity))), false)
            }
            Request::State(entity) => {
                (Response::State(entity.clone(), Ok(self.state(&entity))), false)
            }
            Request::Wakes { number, from, max_records } => {
                (Response::Wakes(number, Ok(self.wakes(from.as_ref(), max_records))), false)
            }
            Request::Keys { entity, number, max_records } => {
                let keys: Vec<_> = self.state(&entity).into_keys().collect();
                let more = keys.len() > max_records;
                let page = keys.into_iter().take(max_records).collect();
                (Response::Keys(entity, number, Ok((page, more))), false)
            }
            Request::Remembered { number, from, max_records } => {
                let page = self.remembered(from.as_ref(), max_records);
                (Response::Remembered(number, Ok(page)), false)
            }
            Request::Heads { number, after, max_records } => {
                (Response::Heads(number, Ok(self.heads(after.as_deref(), max_records))), false)
            }
            Request::Channel { entity, channel, from, max_items } => {
                let items = self.channel(&entity, &channel, from, max_items);
                (Response::Channel(entity, Ok(items)), false)
            }
        };
        let is_commit = matches!(answer, Response::Commit(_));
        let at_once = if is_commit {
            self.has_mutation(StoreMutation::AckUnsynced)
        } else if wrote {
            self.has_mutation(StoreMutation::ReadUnsynced)
        } else {
            !self.dirty || self.has_mutation(StoreMutation::ReadUnsynced)
        };
        self.dirty |= wrote;
        if at_once {
            return vec![(tag, answer)];
        }
        self.unsynced_responses.push((tag, answer));
        Vec::new()
    }

    /// Makes everything applied durable, and returns the answers.
    pub fn sync(&mut self) -> Vec<(u64, Response)> {
        if self.has_mutation(StoreMutation::OldCopy)
            && self.old.is_none()
            && self.cache.turns.len() > 8
        {
            self.old = Some(self.disk.clone());
        }
        self.cache.sequence += 1;
        self.disk = self.cache.clone();
        self.dirty = false;
        std::mem::take(&mut self.unsynced_responses)
    }

    /// Fails a sync: it is unknown whether applied writes are on disk. The store stops.
    pub fn fail_sync(&mut self, rng: &mut Rng) -> Vec<(u64, Response)> {
        self.stopped = true;
        if self.has_mutation(StoreMutation::TrustCache) {
            self.under.get_or_insert_with(|| self.disk.clone());
        } else if rng.chance(50) {
            self.disk = self.cache.clone();
        }
        self.lose_waiting("the sync failed")
    }

    /// Crashes the process. If the power fails, the unsynced pages may be lost: all of them or none.
    pub fn crash(&mut self, power: bool, rng: &mut Rng) {
        self.stopped = true;
        self.unsynced_responses.clear();
        if !power || rng.chance(50) {
            self.disk = self.cache.clone();
        }
        if power && let Some(under) = self.under.take() {
            self.disk = under.clone();
            self.cache = under;
        }
    }

    /// Opens the store again.
    pub fn reopen(&mut self) {
        if self.has_mutation(StoreMutation::TornTurns)
            && self.disk.turns.len() < self.cache.turns.len()
        {
            // The heads reached the disk, but the other records did not.
            self.disk.heads = self.cache.heads.clone();
            self.disk.turns = self.cache.turns.clone();
        }
        if self.has_mutation(StoreMutation::TrustCache) {
            self.dirty = false;
        } else {
            self.cache = self.disk.clone();
            self.dirty = false;
        }
        if let Some(old) = self.old.take_if(|_| self.mutations.contains(&StoreMutation::OldCopy)) {
            self.disk = old.clone();
            self.cache = old;
        }
        self.stopped = false;
    }

    fn lose_waiting(&mut self, why: &str) -> Vec<(u64, Response)> {
        let waiting = std::mem::take(&mut self.unsynced_responses);
        waiting.into_iter().map(|(tag, answer)| (tag, unknown(answer, why))).collect()
    }

    fn claim(&mut self, claim: &Claim) -> ClaimOutcome {
        // A claimant without a map continues a move that is in progress.
        if let Some(mark) = &self.cache.moved {
            let to = mark.to();
            return self.claim_in(claim, to, 0);
        }
        match &self.cache.claim {
            Some(standing)
                if !claim.supersedes(standing) && !self.has_mutation(StoreMutation::NoClaims) =>
            {
                ClaimOutcome::Refused { current: Box::new(standing.clone()) }
            }
            _ => {
                self.cache.claim = Some(claim.clone());
                ClaimOutcome::Granted
            }
        }
    }

    fn commit(&mut self, commit: Commit) -> CommitOutcome {
        if let Some(outcome) = self.commit_in_former(&commit) {
            return outcome;
        }
        let outcome = self.commit_here(commit);
        if outcome == CommitOutcome::Committed {
            self.on_committed();
        }
        outcome
    }

    fn commit_here(&mut self, commit: Commit) -> CommitOutcome {
        let stored = self.cache.heads.get(&commit.entity);
        let revision = stored.map_or(0, |head| head.revision);
        if stored.is_some_and(|head| {
            head.turn == commit.head.turn && head.version == commit.head.version
        }) {
            return CommitOutcome::AlreadyCommitted;
        }
        if let Some(mover) = self.fenced_by_move() {
            let current = Some(Box::new(mover.clone()));
            return CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current });
        }
        let has_head = stored.is_some();
        let floor = self.cache.floor.as_ref().map_or(0, |floor| floor.version);
        let stored = stored.map_or(floor, |head| head.version);
        let standing = self.cache.claim.as_ref();
        let (claim_good, version_good) = if self.has_mutation(StoreMutation::EpochOnly) {
            (standing.is_some_and(|standing| commit.claim.epoch >= standing.epoch), true)
        } else {
            let exact =
                standing == Some(&*commit.claim) || self.has_mutation(StoreMutation::NoClaims);
            (exact, stored == commit.expected_version)
        };
        if !claim_good {
            let standing = self.cache.claim.clone().map(Box::new);
            return CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current: standing });
        }
        if !version_good {
            return CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored });
        }
        if !has_head && stored > 0 {
            let last = self.cache.turns.iter().rev().find(|(of, ..)| *of == commit.entity);
            let last = last.map_or(0, |(_, version, _)| *version);
            self.cache.skipped.push((commit.entity.clone(), last, stored));
        }
        self.cache.turns.push((commit.entity.clone(), commit.head.version, commit.head.turn));
        if commit.head.revision < revision {
            self.cache.older_revisions.push((commit.entity.clone(), commit.head.version));
        }
        if commit.head.deleted {
            self.cache.deletions.insert(commit.head.turn);
            let before = self.cache.heads.get(&commit.entity).filter(|head| !head.deleted);
            self.cache.ends.extend(before.map(|head| (commit.head.turn, head.expires_at)));
        }
        let moves_wake_up = commit.writes.iter().any(|write| may_move_wake_up(&write.key));
        for write in commit.writes {
            let key = (commit.entity.clone(), write.key);
            let before = self.cache.records.get(&key);
            let after = write.value.as_ref();
            let turn = commit.head.turn;
            let change = DurableChange::of(turn, &key.0, &key.1, before, after);
            self.cache.timer_changes.extend(change);
            let change = OutboxChange::of(&key.0, commit.head.version, &key.1, after);
            self.cache.outbox_changes.extend(change);
            let generation = commit.head.generation().unwrap_or_default();
            let event = JournalWrite::of(&key.0, &key.1, after, generation);
            self.cache.journal_writes.extend(event);
            match write.value {
                Some(value) => self.cache.records.insert(key, value),
                None => self.cache.records.remove(&key),
            };
        }
        if moves_wake_up {
            let wrong = WrongWakeUps::find(&self.cache.records, &commit.entity, &commit.head);
            self.cache.wrong_wake_ups.extend(wrong);
        }
        if self.has_schemas {
            let wrong = WrongSchema::find(&self.cache, &commit.entity, &commit.head);
            self.cache.wrong_schemas.extend(wrong);
        }
        if commit.head.is_removed() == Ok(true) {
            self.cache.removals += 1;
            self.cache.heads.remove(&commit.entity);
            if !self.has_mutation(StoreMutation::ForgetFloor) {
                let floor = self.cache.floor.get_or_insert_default();
                let raised = floor.raise(&commit.head);
                debug_assert!(raised.is_ok(), "{raised:?}");
            }
        } else {
            self.cache.heads.insert(commit.entity, commit.head);
        }
        CommitOutcome::Committed
    }

    fn load(&self, entity: &Entity) -> LoadedEntity {
        let lanes = self
            .cache
            .records
            .iter()
            .filter(|((of, key), _)| of == entity && matches!(key, RecordKey::Lane(_)))
            .filter_map(|(_, value)| ostraca_core::codec::decode::<Lane>(value).ok())
            .collect();
        let head = self.cache.heads.get(entity);
        // According to the contract, only records that the head counts are loaded.
        let has_timers = head.is_some_and(|head| head.timer_count().unwrap_or_default() > 0);
        let own = |((of, key), _): &(&(Entity, RecordKey), _)| {
            has_timers && of == entity && matches!(key, RecordKey::Timer { due: OWN_TIMERS, .. })
        };
        let timers = self.cache.records.iter().filter(own);
        let timers =
            timers.filter_map(|(_, value)| ostraca_core::codec::decode::<Timer>(value).ok());
        let (waiting, dead) = head.map_or((0, 0), |head| head.outbox_counts().unwrap_or_default());
        let (mut outbox, mut dead_letters) = (Vec::new(), Vec::new());
        for ((_, key), value) in self.cache.records.iter().filter(|((of, _), _)| of == entity) {
            let (into, number) = match key {
                RecordKey::Outbox { number, .. } if waiting > 0 => (&mut outbox, *number),
                RecordKey::DeadLetter { number } if dead > 0 => (&mut dead_letters, *number),
                _ => continue,
            };
            let tell = ostraca_core::codec::decode::<Tell>(value).ok();
            into.extend(tell.map(|tell| (number, tell)));
        }
        let timers = timers.collect();
        let floor = || self.cache.floor.as_ref().and_then(|floor| floor.head().ok());
        let head = head.cloned().or_else(floor);
        LoadedEntity { head, lanes, timers, outbox, dead_letters }
    }

    fn wakes(&self, from: Option<&(u64, Entity)>, max_records: usize) -> WakePage {
        let wake = |(entity, key): &(Entity, RecordKey)| match key {
            RecordKey::Timer { due, .. } if *due < OWN_TIMERS => Some((*due, entity.clone())),
            _ => None,
        };
        let mut wakes: Vec<_> = self.cache.records.keys().filter_map(wake).collect();
        wakes.sort();
        wakes.retain(|wake| from.is_none_or(|from| wake >= from));
        let more = wakes.len() > max_records;
        wakes.truncate(max_records);
        (wakes, more)
    }

    fn channel(
        &self,
        entity: &Entity,
        channel: &Arc<str>,
        from: u64,
        max_items: usize,
    ) -> Vec<(u64, ChannelItem)> {
        let key =
            |number| (entity.clone(), RecordKey::ChannelItem { channel: channel.clone(), number });
        let items = self.cache.records.range(key(from)..=key(u64::MAX)).take(max_items);
        let item = |((_, key), value): (&(Entity, RecordKey), &Bytes)| match key {
            RecordKey::ChannelItem { number, .. } => Some((*number, codec::decode(value).ok()?)),
            _ => None,
        };
        items.filter_map(item).collect()
    }

    fn remembered(&self, from: Option<&Entity>, max_records: usize) -> (Vec<Entity>, bool) {
        let marked = remembered::marked(&self.cache);
        let rest = marked.filter(|entity| from.is_none_or(|from| *entity >= from));
        let mut rest: Vec<_> = rest.cloned().collect();
        let more = rest.len() > max_records;
        rest.truncate(max_records);
        (rest, more)
    }

    /// The cursor is the last entity of the page before.
    fn heads(&self, after: Option<&[u8]>, max_records: usize) -> HeadPage {
        let name = |entity: &Entity| format!("{}\0{}", entity.entity_type, entity.id);
        let rest = self.cache.heads.iter();
        let mut rest =
            rest.filter(|(entity, _)| after.is_none_or(|at| name(entity).as_bytes() > at));
        let page: Vec<_> = rest
            .by_ref()
            .take(max_records)
            .map(|(entity, head)| (entity.clone(), Box::new(head.clone())))
            .collect();
        let more = rest.next().is_some();
        let next = page.last().filter(|_| more).map(|(entity, _)| name(entity).into());
        (page, next)
    }

    fn state(&self, entity: &Entity) -> BTreeMap<Bytes, Bytes> {
        let of_entity = self.cache.records.iter().filter(|((of, _), _)| of == entity);
        of_entity
            .filter_map(|((_, key), value)| match key {
                RecordKey::State(key) => Some((key.clone(), value.clone())),
                _ => None,
            })
            .collect()
    }
}

/// The answer of a store that is unreachable or has stopped: nothing was written.
#[must_use]
pub fn refusal(request: &Request, why: &str) -> Response {
    match request {
        Request::Claim(_) | Request::ClaimIn { .. } => {
            Response::Claim(ClaimOutcome::Failed(why.into()))
        }
        Request::Commit(commits) => {
            let limit = CommitOutcome::Refused(CommitRefusal::LimitReached(why.into()));
            let outcomes = commits.iter();
            Response::Commit(
                outcomes.map(|c| (c.entity.clone(), c.head.turn, limit.clone())).collect(),
            )
        }
        Request::Load(entity) => Response::Load(entity.clone(), Err(why.into())),
        Request::State(entity) => Response::State(entity.clone(), Err(why.into())),
        Request::Wakes { number, .. } => Response::Wakes(*number, Err(why.into())),
        Request::Keys { entity, number, .. } => {
            Response::Keys(entity.clone(), *number, Err(why.into()))
        }
        Request::Remembered { number, .. } => Response::Remembered(*number, Err(why.into())),
        Request::Heads { number, .. } => Response::Heads(*number, Err(why.into())),
        Request::Channel { entity, .. } => Response::Channel(entity.clone(), Err(why.into())),
    }
}

/// Replaces the outcome in an answer with an unknown one.
#[must_use]
pub fn unknown(answer: Response, why: &str) -> Response {
    match answer {
        Response::Claim(_) => Response::Claim(ClaimOutcome::Failed(why.into())),
        Response::Commit(outcomes) => Response::Commit(
            outcomes
                .into_iter()
                .map(|(entity, turn, _)| (entity, turn, CommitOutcome::Unknown(why.into())))
                .collect(),
        ),
        Response::Load(entity, _) => Response::Load(entity, Err(why.into())),
        Response::State(entity, _) => Response::State(entity, Err(why.into())),
        Response::Wakes(number, _) => Response::Wakes(number, Err(why.into())),
        Response::Keys(entity, number, _) => Response::Keys(entity, number, Err(why.into())),
        Response::Remembered(number, _) => Response::Remembered(number, Err(why.into())),
        Response::Heads(number, _) => Response::Heads(number, Err(why.into())),
        Response::Channel(entity, _) => Response::Channel(entity, Err(why.into())),
    }
}

impl Request {
    /// Renames every entity in the request.
    #[must_use]
    pub fn renamed(self, name: impl Fn(Entity) -> Entity) -> Self {
        match self {
            claim @ (Self::Claim(_) | Self::ClaimIn { .. }) => claim,
            Self::Commit(commits) => Self::Commit(
                commits
                    .into_iter()
                    .map(|commit| Commit { entity: name(commit.entity.clone()), ..commit })
                    .collect(),
            ),
            Self::Load(entity) => Self::Load(name(entity)),
            Self::State(entity) => Self::State(name(entity)),
            Self::Wakes { number, from, max_records } => {
                let from = from.map(|(due, entity)| (due, name(entity)));
                Self::Wakes { number, from, max_records }
            }
            Self::Keys { entity, number, max_records } => {
                Self::Keys { entity: name(entity), number, max_records }
            }
            Self::Remembered { number, from, max_records } => {
                Self::Remembered { number, from: from.map(name), max_records }
            }
            heads @ Self::Heads { .. } => heads,
            Self::Channel { entity, channel, from, max_items } => {
                Self::Channel { entity: name(entity), channel, from, max_items }
            }
        }
    }
}

impl Response {
    /// Renames every entity in the response.
    #[must_use]
    pub fn renamed(self, name: impl Fn(Entity) -> Entity) -> Self {
        match self {
            Self::Claim(outcome) => Self::Claim(outcome),
            Self::Commit(outcomes) => Self::Commit(
                outcomes.into_iter().map(|(entity, turn, out)| (name(entity), turn, out)).collect(),
            ),
            Self::Load(entity, loaded) => Self::Load(name(entity), loaded),
            Self::State(entity, state) => Self::State(name(entity), state),
            Self::Wakes(number, page) => Self::Wakes(
                number,
                page.map(|(wakes, more)| {
                    let wakes = wakes.into_iter().map(|(due, entity)| (due, name(entity)));
                    (wakes.collect(), more)
                }),
            ),
            Self::Keys(entity, number, page) => Self::Keys(name(entity), number, page),
            Self::Remembered(number, page) => Self::Remembered(
                number,
                page.map(|(marks, more)| (marks.into_iter().map(name).collect(), more)),
            ),
            Self::Heads(number, page) => Self::Heads(
                number,
                page.map(|(heads, next)| {
                    (heads.into_iter().map(|(entity, head)| (name(entity), head)).collect(), next)
                }),
            ),
            Self::Channel(entity, items) => Self::Channel(name(entity), items),
        }
    }
}
