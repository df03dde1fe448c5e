//! Retries as a node does when links break, so that the conformance suite, which expects every call to be answered,
//! can run over such links.
//!
//! An unknown commit is resolved as the contract defines (R3): the shard is claimed again under the next number,
//! and then the head shows whether the turn took effect; if not, it never will, and may be sent again. The suite's
//! claim number `n` becomes `n * 2^20` or more over the links, which leaves space for these claims. A row that may
//! have been written is read, and recognized by a mark in its value. Reads are repeated. Only one call runs at a
//! time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::BoxFuture;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity,
};
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, Page, RowEvent, Scan, StoreError,
    StoreFuture, StoreIdentity, StoredRow, Watch,
};

const ROOM: u32 = 20;
/// Timeout for a call to be answered, however often links break.
const TIMEOUT: Duration = Duration::from_secs(30);
const MARK: &[u8] = b"\0mark";

/// How often each of the suite's claims has been repeated.
pub(crate) type Numbers = Arc<Mutex<HashMap<Claim, u64>>>;

type Job<S> = Box<dyn FnOnce(&Worker<S>) + Send>;

pub(crate) struct RetryingStore<S> {
    remote: Arc<S>,
    jobs: Option<mpsc::Sender<Job<S>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Worker<S> {
    remote: Arc<S>,
    numbers: Numbers,
    marks: Mutex<u64>,
}

impl<S: EntityStore + ClusterStore> RetryingStore<S> {
    pub(crate) fn new(remote: S) -> Self {
        Self::again(remote, Numbers::default())
    }

    /// Continues with the claim numbers of an earlier store.
    pub(crate) fn again(remote: S, numbers: Numbers) -> Self {
        let remote = Arc::new(remote);
        let (jobs, queue) = mpsc::channel::<Job<S>>();
        let worker = Worker { remote: remote.clone(), numbers, marks: Mutex::default() };
        let thread = std::thread::spawn(move || queue.into_iter().for_each(|job| job(&worker)));
        Self { remote, jobs: Some(jobs), thread: Some(thread) }
    }

    /// The wrapped store, once all calls have completed.
    pub(crate) fn into_inner(self) -> S {
        let remote = self.remote.clone();
        drop(self);
        Arc::try_unwrap(remote).unwrap_or_else(|_| panic!("the store is still in use"))
    }

    fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Worker<S>) -> T + Send + 'static,
    ) -> BoxFuture<'static, T> {
        let (to, answer) = oneshot::channel();
        let job: Job<S> = Box::new(move |worker| drop(to.send(job(worker))));
        self.jobs.as_ref().unwrap().send(job).expect("the worker is running");
        answer.map(|answer| answer.expect("the worker answers")).boxed()
    }
}

impl<S> Drop for RetryingStore<S> {
    fn drop(&mut self) {
        self.jobs = None;
        let done = self.thread.take().unwrap().join();
        assert!(done.is_ok() || std::thread::panicking(), "the worker failed");
    }
}

/// Repeats a call until it is answered.
fn again<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "no answer within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sure<T>(answer: Result<T, StoreError>) -> Option<Result<T, StoreError>> {
    (!matches!(answer, Err(StoreError::Unavailable(_)))).then_some(answer)
}

impl<S: EntityStore + ClusterStore> Worker<S> {
    /// Translates the suite's claim to the one used over the links.
    fn out(&self, claim: &Claim) -> Claim {
        let more = self.numbers.lock().unwrap().get(claim).copied().unwrap_or(0);
        Claim { number: (claim.number << ROOM) + more, ..claim.clone() }
    }

    fn back(claim: Claim) -> Claim {
        Claim { number: claim.number >> ROOM, ..claim }
    }

    fn claim(&self, claim: &Claim) -> ClaimOutcome {
        let (sent, mut attempts) = (self.out(claim), 0);
        let outcome = again(|| {
            attempts += 1;
            match block_on(self.remote.claim(vec![sent.clone()])).remove(0) {
                ClaimOutcome::Failed(_) => None,
                other => Some(other),
            }
        });
        match outcome {
            // A mark on data that has left replaces nothing, itself included (R26): the answer to the first attempt was
            // lost.
            ClaimOutcome::Refused { current } if attempts > 1 && *current == sent => {
                ClaimOutcome::Granted
            }
            ClaimOutcome::Refused { current } => {
                ClaimOutcome::Refused { current: Box::new(Self::back(*current)) }
            }
            other => other,
        }
    }

    fn current(&self, shards: Vec<ShardPath>) -> Result<Vec<Option<Claim>>, StoreError> {
        again(|| sure(block_on(self.remote.current_claims(shards.clone()))))
    }

    fn load(&self, shard: &ShardPath, entity: &Entity) -> Result<LoadedEntity, StoreError> {
        again(|| sure(block_on(self.remote.load(vec![(shard.clone(), entity.clone())])).remove(0)))
    }

    fn commit(&self, turn: Commit) -> CommitOutcome {
        let removes = turn.head.is_removed().unwrap();
        let is_there = || {
            let head = self.load(&turn.claim.shard, &turn.entity).unwrap().head;
            // A missing head differs from a head of version 0: nothing was committed.
            head.is_some_and(|head| {
                // A removed head is read from its shard's floor, which names no turn and may be higher.
                match removes {
                    true => head.is_removed().unwrap() && head.version >= turn.head.version,
                    false => head.turn == turn.head.turn && head.version == turn.head.version,
                }
            })
        };
        let before = is_there();
        again(|| {
            let claim = Arc::new(self.out(&turn.claim));
            let attempt = Commit { claim: claim.clone(), ..turn.clone() };
            match block_on(self.remote.commit(vec![attempt])).remove(0) {
                CommitOutcome::Unknown(_) => {
                    let shard = turn.claim.shard.clone();
                    let stored = self.current(vec![shard]).unwrap().remove(0);
                    *self.numbers.lock().unwrap().entry((*turn.claim).clone()).or_default() += 1;
                    if stored.as_ref() == Some(&*claim) {
                        assert_eq!(self.claim(&turn.claim), ClaimOutcome::Granted);
                    }
                    match (is_there(), before) {
                        (true, false) => Some(CommitOutcome::Committed),
                        // A repeated removal is refused: nothing shows whose it was.
                        (true, true) if removes => None,
                        (true, true) => Some(CommitOutcome::AlreadyCommitted),
                        (false, _) => None,
                    }
                }
                CommitOutcome::Refused(CommitRefusal::LimitReached(why))
                    if why.contains("store unavailable") =>
                {
                    None
                }
                CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current }) => {
                    let current = current.map(|claim| Box::new(Self::back(*claim)));
                    Some(CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current }))
                }
                other => Some(other),
            }
        })
    }

    fn cas(&self, cas: CompareAndSet) -> Result<u64, CompareAndSetError> {
        let mark = {
            let mut marks = self.marks.lock().unwrap();
            *marks += 1;
            *marks
        };
        let value =
            cas.value.map(|value| if value.len() > 100 { value } else { marked(mark, &value) });
        let cas = CompareAndSet { value, ..cas };
        // If the row was not as expected, a call in doubt has changed nothing: nothing else changes rows in the
        // meantime.
        let before = again(|| sure(block_on(self.remote.get(&cas.key))));
        let expected = before.is_ok_and(|row| row.map(|row| row.revision) == cas.expected);
        let mut in_doubt = false;
        let result = again(|| match block_on(self.remote.compare_and_set(cas.clone())) {
            Err(CompareAndSetError::Store(StoreError::Unavailable(_))) => {
                in_doubt = expected;
                None
            }
            Err(CompareAndSetError::RevisionMismatch(Some(row)))
                if in_doubt && cas.value.as_ref() == Some(&row.value) =>
            {
                Some(Ok(row.revision))
            }
            Err(CompareAndSetError::RevisionMismatch(None)) if in_doubt && cas.value.is_none() => {
                // Deleted at some revision that is not higher than the list's.
                Some(Ok(again(|| block_on(self.remote.list("")).ok()).1))
            }
            other => Some(other),
        });
        result.map_err(|conflict| match conflict {
            CompareAndSetError::RevisionMismatch(row) => {
                CompareAndSetError::RevisionMismatch(row.map(unmarked))
            }
            other => other,
        })
    }
}

fn marked(mark: u64, value: &[u8]) -> Bytes {
    [MARK, &mark.to_be_bytes(), value].concat().into()
}

fn unmarked(mut row: StoredRow) -> StoredRow {
    if row.value.starts_with(MARK) {
        row.value = row.value.slice(MARK.len() + 8..);
    }
    row
}

impl<S: EntityStore + ClusterStore> EntityStore for RetryingStore<S> {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&*self.remote)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.run(move |worker| claims.iter().map(|claim| worker.claim(claim)).collect())
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.run(move |worker| {
            let current = worker.current(shards)?;
            Ok(current.into_iter().map(|claim| claim.map(Worker::<S>::back)).collect())
        })
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.run(move |worker| turns.into_iter().map(|turn| worker.commit(turn)).collect())
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.run(move |worker| entities.iter().map(|(of, one)| worker.load(of, one)).collect())
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.run(move |worker| again(|| sure(block_on(worker.remote.scan(scan.clone())))))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.run(move |worker| again(|| sure(block_on(worker.remote.put_blob(bytes.clone())))))
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.run(move |worker| again(|| sure(block_on(worker.remote.get_blob(digest)))))
    }
}

impl<S: EntityStore + ClusterStore> ClusterStore for RetryingStore<S> {
    fn identity(&self) -> StoreIdentity {
        ClusterStore::identity(&*self.remote)
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        let key = key.to_owned();
        self.run(move |worker| {
            again(|| sure(block_on(worker.remote.get(&key)))).map(|row| row.map(unmarked))
        })
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        let prefix = prefix.to_owned();
        self.run(move |worker| {
            let listed = again(|| sure(block_on(worker.remote.list(&prefix))));
            listed.map(|(rows, at)| (rows.into_iter().map(unmarked).collect(), at))
        })
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        // The suite's limits refer to the value without the mark.
        if let Err(error) = cas.check() {
            return futures::future::ready(Err(error.into())).boxed();
        }
        self.run(move |worker| worker.cas(cas))
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        let watch = self.remote.watch(prefix, revision);
        let (remote, prefix) = (self.remote.clone(), prefix.to_owned());
        Box::new(LastingWatch { remote, watch, prefix, revision, lost: 0 })
    }
}

/// A watch that was lost with its link continues from its last revision. If the store has dropped that revision, the
/// watch is lost again immediately.
struct LastingWatch<S> {
    remote: Arc<S>,
    watch: Box<dyn Watch>,
    prefix: String,
    revision: u64,
    lost: usize,
}

impl<S: ClusterStore> Watch for LastingWatch<S> {
    fn next(&mut self) -> BoxFuture<'_, RowEvent> {
        async move {
            loop {
                match self.watch.next().await {
                    RowEvent::ResyncRequired if self.lost < 20 => {
                        self.lost += 1;
                        // Requires a link: a watch that is lost without one proves nothing.
                        let until = Instant::now() + TIMEOUT;
                        while sure(self.remote.get("any").await).is_none() {
                            assert!(Instant::now() < until, "no link within {TIMEOUT:?}");
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        self.watch = self.remote.watch(&self.prefix, self.revision);
                    }
                    event => {
                        if let Some((_, revision)) = event.key_and_revision() {
                            (self.revision, self.lost) = (revision, 0);
                        }
                        return match event {
                            RowEvent::Set(row) => RowEvent::Set(unmarked(row)),
                            other => other,
                        };
                    }
                }
            }
        }
        .boxed()
    }
}
