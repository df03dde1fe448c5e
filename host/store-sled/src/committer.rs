//! The one thread that writes: judges a batch of calls, applies it, syncs once, answers them all.
//!
//! While it syncs, calls queue: the running sync is the window in which the next batch gathers. An error of
//! applying, flushing or syncing leaves the batch unknown and stops the store for ever (R3): what sled
//! shows from then on may not be on the disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::oneshot::Sender;
use ostraca_sharding::records::{Claim, ClaimOutcome, Commit, CommitOutcome, Refusal};
use ostraca_store::changes::Changes;
use ostraca_store::{Conflict, StoreError};

use crate::disk::Disk;
use crate::judge::{Judge, Judged};
use crate::progress::Progress;
use crate::queue::{Queue, Work};

pub(crate) struct Committer {
    pub(crate) queue: Arc<Queue>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) changes: Changes,
    pub(crate) judge: Judge,
    pub(crate) db: sled::Db,
    pub(crate) data: File,
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) space: Space,
}

/// The watch on free disk.
pub(crate) struct Space {
    pub(crate) dir: PathBuf,
    pub(crate) low_water_bytes: u64,
    pub(crate) every: Duration,
    pub(crate) looked: Option<Instant>,
}

/// A judged call, and whom to tell.
enum Answer {
    Commit(Vec<CommitOutcome>, Sender<Vec<CommitOutcome>>),
    Claim(Vec<ClaimOutcome>, Sender<Vec<ClaimOutcome>>),
    Cas(Result<u64, Conflict>, Sender<Result<u64, Conflict>>),
}

impl Committer {
    /// Works until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let _end = End {
            queue: self.queue.clone(),
            progress: self.progress.clone(),
            changes: self.changes.clone(),
        };
        let mut works = Vec::new();
        let mut ticket = 0;
        while self.queue.take(&mut works) {
            ticket += works.len() as u64;
            if let Some(why) = self.progress.stopped() {
                let error = StoreError::Stopped(why.into());
                works.drain(..).for_each(|work| refuse(work, &error));
                continue;
            }
            self.space.look(&*self.disk, &self.progress);
            let answers: Vec<_> = works.drain(..).map(|work| self.judge(work)).collect();
            match self.write(ticket) {
                Ok(()) => answers.into_iter().for_each(Answer::give),
                Err(why) => {
                    self.progress.stop(&why);
                    self.changes.close();
                    answers.into_iter().for_each(|answer| answer.fail(&why));
                }
            }
        }
    }

    fn judge(&mut self, work: Work) -> Answer {
        match work {
            Work::Commit(turns, to) => Answer::Commit(self.commits(turns), to),
            Work::Claim(claims, to) => Answer::Claim(self.claims(claims), to),
            Work::Cas(cas, to) => Answer::Cas(self.judge.compare_and_set(cas), to),
        }
    }

    fn commits(&mut self, turns: Vec<Commit>) -> Vec<CommitOutcome> {
        let judge = &mut self.judge;
        match self.progress.low() {
            Some(why) => turns.iter().map(|_| refusal(&why)).collect(),
            None => turns.into_iter().map(|commit| judge.commit(commit)).collect(),
        }
    }

    fn claims(&mut self, claims: Vec<Claim>) -> Vec<ClaimOutcome> {
        claims.into_iter().map(|claim| self.judge.claim(claim)).collect()
    }

    fn write(&mut self, ticket: u64) -> Result<(), String> {
        let judged = self.judge.finish().map_err(|error| error.to_string())?;
        let Some(Judged { batch, events, sequence }) = judged else {
            self.progress.set_applied(ticket);
            self.progress.set_durable(ticket, self.progress.sequence());
            return Ok(());
        };
        let applying = self.progress.applying();
        let applied = self.db.apply_batch(batch);
        self.progress.set_applied(ticket);
        drop(applying);
        applied.map_err(|error| format!("writing failed: {error}"))?;
        self.db.flush().map_err(|error| format!("flushing failed: {error}"))?;
        self.disk.sync(&self.data).map_err(|error| format!("syncing failed: {error}"))?;
        self.progress.set_durable(ticket, sequence);
        if !events.is_empty() {
            self.changes.publish(events);
        }
        Ok(())
    }
}

impl Space {
    /// Looks at the free disk, if it is time to.
    fn look(&mut self, disk: &dyn Disk, progress: &Progress) {
        if self.looked.is_some_and(|looked| looked.elapsed() < self.every) {
            return;
        }
        self.looked = Some(Instant::now());
        let was_low = progress.low().is_some();
        let low = match disk.free(&self.dir) {
            Ok(free) if free >= self.low_water_bytes => None,
            Ok(free) => Some(format!(
                "{free} bytes of disk are free, fewer than low_water_bytes ({})",
                self.low_water_bytes
            )),
            Err(error) => Some(format!("the free disk cannot be told: {error}")),
        };
        match &low {
            Some(why) if !was_low => tracing::warn!(%why, "commits are refused"),
            None if was_low => tracing::info!("commits are taken again: there is disk space"),
            _ => {}
        }
        progress.set_low(low);
    }
}

impl Answer {
    /// Tells the caller; one who is gone is no error.
    fn give(self) {
        match self {
            Self::Commit(outcomes, to) => drop(to.send(outcomes)),
            Self::Claim(outcomes, to) => drop(to.send(outcomes)),
            Self::Cas(outcome, to) => drop(to.send(outcome)),
        }
    }

    /// Tells the caller that nobody knows.
    fn fail(self, why: &str) {
        match self {
            Self::Commit(outcomes, to) => {
                drop(to.send(vec![CommitOutcome::Unknown(why.into()); outcomes.len()]));
            }
            Self::Claim(outcomes, to) => {
                drop(to.send(vec![ClaimOutcome::Failed(why.into()); outcomes.len()]));
            }
            Self::Cas(_, to) => {
                drop(to.send(Err(Conflict::Store(StoreError::Stopped(why.into())))));
            }
        }
    }
}

/// Tells the caller that nothing of the call was written, nor will be.
pub(crate) fn refuse(work: Work, error: &StoreError) {
    match work {
        Work::Commit(turns, to) => {
            drop(to.send(vec![refusal(&error.to_string()); turns.len()]));
        }
        Work::Claim(claims, to) => {
            drop(to.send(vec![ClaimOutcome::Failed(error.to_string()); claims.len()]));
        }
        Work::Cas(_, to) => drop(to.send(Err(Conflict::Store(error.clone())))),
    }
}

fn refusal(why: &str) -> CommitOutcome {
    CommitOutcome::Refused(Refusal::Limit(why.into()))
}

/// However the committer ends, nobody waits for it for ever.
struct End {
    queue: Arc<Queue>,
    progress: Arc<Progress>,
    changes: Changes,
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.progress.stop("the committer failed");
        }
        self.queue.abandon();
        self.changes.close();
    }
}
