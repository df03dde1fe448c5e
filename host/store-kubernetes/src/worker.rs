//! Carries out the calls for rows.
//!
//! A change replaces the row's object under its uid and resource version, so it happens once at most, however often it
//! is sent. If an answer is lost, the nonce in the object shows whether the change was carried out. A creation is not
//! sent again, only looked for: the row could have been created and deleted meanwhile, and would come back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_store::{CompareAndSet, CompareAndSetError, StoreError, StoredRow};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::{Api, Listed};
use crate::attempts::{Attempts, late};
use crate::error::CallError;
use crate::health::Health;
use crate::layout::{Layout, RowObject};
use crate::options::Options;

/// Uids that are remembered at most.
const MAX_UIDS: usize = 1 << 16;
/// Tombstones whose objects wait for their deletion; further ones stay until a list meets them.
const TOMBSTONES: usize = 1024;
/// The most attempts to delete the object of a tombstone.
const REMOVALS: u32 = 3;

/// The newest known revisions of rows, and the uids of their objects. A row without an entry costs a further request.
///
/// Tombstones have none: a change of a row that is expected to have the revision of its deletion must fail.
#[derive(Clone, Default)]
pub(crate) struct Uids(Arc<Mutex<HashMap<String, (u64, String)>>>);

impl Uids {
    /// The uid of the row's object at this revision.
    fn of(&self, key: &str, revision: u64) -> Option<String> {
        let uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uids.get(key).filter(|(known, _)| *known == revision).map(|(_, uid)| uid.clone())
    }

    pub(crate) fn note(&self, object: &RowObject) {
        let RowObject { key, revision, uid, value, .. } = object;
        let mut uids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if uids.get(key).is_some_and(|(known, _)| known >= revision) {
            return;
        }
        if value.is_none() {
            uids.remove(key);
            return;
        }
        if uids.len() >= MAX_UIDS {
            uids.clear();
        }
        uids.insert(key.clone(), (*revision, uid.clone()));
    }
}

/// Carries out calls. Clones share everything.
#[derive(Clone)]
pub(crate) struct Worker {
    options: Arc<Options>,
    api: Api,
    layout: Layout,
    health: Health,
    uids: Uids,
    /// Random, for this process.
    process: u64,
    writes: Arc<AtomicU64>,
    tombstones: mpsc::Sender<RowObject>,
}

/// How a change is sent.
#[derive(Clone, PartialEq, Eq)]
enum Step {
    Create,
    Replace { uid: String, revision: u64 },
}

/// A compare-and-set that is carried out.
struct Change<'a> {
    cas: &'a CompareAndSet,
    nonce: u128,
    attempts: Attempts,
    /// The step whose answer was lost.
    in_doubt: Option<Step>,
}

impl Worker {
    /// Makes a worker, and the tombstones that [`remove_tombstones`] is to remove.
    pub(crate) fn new(
        options: Arc<Options>,
        api: Api,
        layout: Layout,
        health: Health,
        uids: Uids,
    ) -> (Self, mpsc::Receiver<RowObject>) {
        let (tombstones, waiting) = mpsc::channel(TOMBSTONES);
        let (process, writes) = (rand::random(), Arc::default());
        (Self { options, api, layout, health, uids, process, writes, tombstones }, waiting)
    }

    /// Fails if the store has stopped.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.health.check()
    }

    /// The error of a call whose time is over before it began.
    pub(crate) fn late(&self) -> StoreError {
        late("other calls came first", self.options.call_timeout)
    }

    fn attempts(&self, until: Instant) -> Attempts {
        Attempts::new(until, self.options.call_timeout)
    }

    pub(crate) async fn get(
        &self,
        key: &str,
        until: Instant,
    ) -> Result<Option<StoredRow>, StoreError> {
        let (found, _) = self.read(key, &mut self.attempts(until)).await?;
        Ok(found.and_then(|found| found.row()))
    }

    /// Lists rows, page by page at one version.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        until: Instant,
    ) -> Result<(Vec<StoredRow>, u64), StoreError> {
        let mut attempts = self.attempts(until);
        let (objects, revision) = loop {
            match self.list_once(prefix).await {
                Ok(listed) => break listed?,
                // It took so long that its version is gone: the next attempt reads a newer one.
                Err(error) => attempts.after(error).await?,
            }
        };
        let mut rows = Vec::with_capacity(objects.len());
        for object in objects.into_iter().filter(|object| object.key.starts_with(prefix)) {
            self.uids.note(&object);
            match object.row() {
                Some(row) => rows.push(row),
                None => self.remove(object),
            }
        }
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok((rows, revision))
    }

    async fn list_once(
        &self,
        prefix: &str,
    ) -> Result<Result<(Vec<RowObject>, u64), StoreError>, CallError> {
        let known = self.health.seen();
        let selector = self.layout.selector(prefix);
        let (mut objects, mut at, mut from) = (Vec::new(), None, None);
        loop {
            let page = self.api.list(&selector, self.options.page_rows.max(1), from.as_deref());
            let Listed { items, revision, next } = page.await?;
            if *at.get_or_insert(revision) != revision {
                return Err(CallError::Conflict("its pages are of different versions".into()));
            }
            if let Err(error) = self.health.check_version(revision, known) {
                return Ok(Err(error));
            }
            for object in &items {
                match self.layout.decode(object) {
                    Ok(object) => objects.push(object),
                    Err(error) => return Ok(Err(error)),
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => return Ok(Ok((objects, revision))),
            }
        }
    }

    /// Reads the object of a row, and the version at which it is read.
    async fn read(
        &self,
        key: &str,
        attempts: &mut Attempts,
    ) -> Result<(Option<RowObject>, u64), StoreError> {
        let name = self.layout.object_name(key);
        let (found, revision) = loop {
            let known = self.health.seen();
            match self.api.read(&name).await {
                Ok((found, revision)) => {
                    break (found, self.health.check_version(revision, known)?);
                }
                Err(error) => attempts.after(error).await?,
            }
        };
        let found = found.map(|object| self.layout.decode(&object)).transpose()?;
        if let Some(object) = &found {
            self.uids.note(object);
        }
        Ok((found, revision))
    }

    pub(crate) async fn compare_and_set(
        &self,
        cas: &CompareAndSet,
        until: Instant,
    ) -> Result<u64, CompareAndSetError> {
        cas.check()?;
        let nonce = u128::from(self.process) << 64
            | u128::from(self.writes.fetch_add(1, Ordering::Relaxed));
        let mut change = Change { cas, nonce, attempts: self.attempts(until), in_doubt: None };
        let mut next = match cas.expected {
            None if cas.value.is_some() => Some(Step::Create),
            None => None,
            Some(revision) => {
                let uid = self.uids.of(&cas.key, revision);
                uid.map(|uid| Step::Replace { uid, revision })
            }
        };
        let mut conflict: Option<(Step, String)> = None;
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => match self.look(&mut change).await? {
                    Ok(revision) => return Ok(revision),
                    Err(step) => step,
                },
            };
            // A conflict with what was read since then is none that another read can explain.
            if let Some((_, why)) = conflict.take().filter(|(before, _)| *before == step) {
                change.attempts.after(CallError::Conflict(why)).await?;
            }
            let known = self.health.seen();
            match self.send(&change, &step).await {
                Ok(object) => {
                    self.health.check_version(object.revision, known)?;
                    return Ok(self.changed(object));
                }
                Err(CallError::Conflict(why)) => conflict = Some((step, why)),
                Err(error) => {
                    let is_in_doubt = matches!(error, CallError::InDoubt(..));
                    if is_in_doubt {
                        change.in_doubt = Some(step.clone());
                    }
                    change.attempts.after(error).await?;
                    next = Some(step).filter(|step| !is_in_doubt || *step != Step::Create);
                }
            }
        }
    }

    async fn send(&self, change: &Change<'_>, step: &Step) -> Result<RowObject, CallError> {
        let Change { cas: CompareAndSet { key, value, .. }, nonce, .. } = change;
        let mut object = self.layout.row_object(key, *nonce, value.as_deref());
        let written = match step {
            Step::Create => self.api.create(&object).await?,
            Step::Replace { uid, revision } => {
                object.metadata.uid.clone_from(uid);
                object.metadata.resource_version = revision.to_string();
                self.api.replace(&object).await?
            }
        };
        let written = self.layout.decode(&written);
        written.map_err(|error| CallError::InDoubt(error.to_string(), None))
    }

    /// Reads the row: the change is complete, or this is how to send it.
    async fn look(&self, change: &mut Change<'_>) -> Result<Result<u64, Step>, CompareAndSetError> {
        let (found, revision) = self.read(&change.cas.key, &mut change.attempts).await?;
        let CompareAndSet { key, expected, value } = change.cas;
        if let Some(object) = found.clone().filter(|object| object.nonce == change.nonce) {
            return Ok(Ok(self.changed(object)));
        }
        let row = found.as_ref().and_then(RowObject::row);
        let replace = found.map(|RowObject { uid, revision, .. }| Step::Replace { uid, revision });
        let is_expected = row.as_ref().map(|row| row.revision) == *expected;
        match &change.in_doubt {
            // Sent again, it can still happen once only.
            Some(sent) if Some(sent) == replace.as_ref() => {}
            // It may have been carried out and overwritten, or be carried out later.
            Some(_) => {
                return Err(CompareAndSetError::Store(StoreError::Unavailable(format!(
                    "the answer of Kubernetes was lost: it is unknown whether the row {key} was written"
                ))));
            }
            None if is_expected => {}
            None => return Err(CompareAndSetError::RevisionMismatch(row)),
        }
        match (replace, value) {
            // There is nothing to delete.
            (_, None) if expected.is_none() => Ok(Ok(revision)),
            // The row, or the tombstone in its place.
            (Some(replace), _) => Ok(Err(replace)),
            (None, _) => Ok(Err(Step::Create)),
        }
    }

    /// Notes a change of this process. Returns its revision.
    fn changed(&self, object: RowObject) -> u64 {
        let revision = object.revision;
        self.health.note_change(revision);
        self.uids.note(&object);
        if object.value.is_none() {
            self.remove(object);
        }
        revision
    }

    fn remove(&self, tombstone: RowObject) {
        // If too many wait, the next list meets it again.
        drop(self.tombstones.try_send(tombstone));
    }
}

/// Deletes the objects of tombstones until the store is closed. If a row was created again meanwhile, its object has
/// another version and stays.
pub(crate) async fn remove_tombstones(
    options: Arc<Options>,
    api: Api,
    layout: Layout,
    mut waiting: mpsc::Receiver<RowObject>,
) {
    while let Some(RowObject { key, uid, revision, .. }) = waiting.recv().await {
        let name = layout.object_name(&key);
        let limit = options.call_timeout;
        let mut attempts = Attempts::new(Instant::now() + limit, limit);
        for _ in 0..REMOVALS {
            match api.delete(&name, &uid, revision).await {
                Ok(()) | Err(CallError::Conflict(_)) => break,
                Err(error) => match attempts.after(error).await {
                    Ok(()) => {}
                    Err(error) => {
                        tracing::debug!(%error, "the object of a deleted row stays for now");
                        break;
                    }
                },
            }
        }
    }
}
