//! Keeps one command in flight to each of many entities, to measure how long each of them pauses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_client::{Client, Entity, MessageKind};
use tokio::task::JoinSet;

use crate::history::until_answered;

/// Number of sessions per client: if there are more entities, they share sessions.
const SESSIONS: usize = 16;

/// When a command was sent and answered.
type Probe = (Instant, Instant);

/// The commands of many entities.
pub struct ProbeLoad {
    beats: Vec<Arc<Mutex<Vec<Probe>>>>,
    end: Arc<AtomicBool>,
    tasks: JoinSet<Result<u64>>,
}

impl ProbeLoad {
    /// Repeatedly adds one to each counter; the counters are distributed over the clients.
    #[must_use]
    pub fn start(clients: &[&Client], counters: &[String]) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let mut parts: Vec<Vec<_>> = vec![Vec::new(); clients.len() * SESSIONS];
        let places = parts.len();
        let mut beats = Vec::new();
        for (place, id) in counters.iter().enumerate() {
            let beat = Arc::new(Mutex::new(Vec::new()));
            parts[place % places].push((Entity::new("counter", id.clone()), Arc::clone(&beat)));
            beats.push(beat);
        }
        let mut tasks = JoinSet::new();
        for (place, part) in parts.into_iter().enumerate() {
            let (session, end) = (clients[place % clients.len()].session(), Arc::clone(&end));
            tasks.spawn(async move {
                let mut under_way = FuturesUnordered::new();
                let beat = async |(entity, beats): (Entity, Arc<Mutex<Vec<Probe>>>)| {
                    let sent = Instant::now();
                    let options = until_answered(MessageKind::Command);
                    let answer = session.send(&entity, "add", "1", &options).await;
                    beats
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((sent, Instant::now()));
                    answer.with_context(|| format!("{entity}")).map(|_| (entity, beats))
                };
                part.into_iter().for_each(|one| under_way.push(beat(one)));
                let mut done = 0;
                while let Some(again) = under_way.next().await {
                    done += 1;
                    let again = again?;
                    if !end.load(Ordering::SeqCst) {
                        under_way.push(beat(again));
                    }
                }
                Ok(done)
            });
        }
        Self { beats, end, tasks }
    }

    /// For each entity, the longest latency of its commands that were in flight in this period.
    #[must_use]
    pub fn longest(&self, from: Instant, to: Instant) -> Vec<Option<Duration>> {
        let within = |(sent, answered): &&Probe| *sent < to && *answered > from;
        let took = |(sent, answered): &Probe| *answered - *sent;
        self.each(|beats| beats.iter().filter(within).map(took).max())
    }

    /// The time from this moment to each entity's first reply.
    #[must_use]
    pub fn first_after(&self, moment: Instant) -> Vec<Option<Duration>> {
        self.each(|beats| {
            let after = beats.iter().filter(|(_, answered)| *answered > moment);
            after.map(|(_, answered)| *answered - moment).min()
        })
    }

    /// Number of entities that have replied since this moment.
    #[must_use]
    pub fn answered_since(&self, moment: Instant) -> usize {
        self.first_after(moment).iter().flatten().count()
    }

    fn each(&self, of: impl Fn(&[Probe]) -> Option<Duration>) -> Vec<Option<Duration>> {
        let each = |beats: &Arc<Mutex<Vec<Probe>>>| {
            of(&beats.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.beats.iter().map(each).collect()
    }

    /// Stops sending, waits for every reply, and returns the number of replies.
    ///
    /// # Errors
    /// The error of the first command without a reply.
    pub async fn end(&mut self) -> Result<u64> {
        self.end.store(true, Ordering::SeqCst);
        let mut done = 0;
        while let Some(task) = self.tasks.join_next().await {
            done += task??;
        }
        Ok(done)
    }
}

/// p50, p99 and maximum.
#[must_use]
pub fn spread(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1) as f64;
    [0.5, 0.99, 1.0]
        .map(|part| times.get((last * part).ceil() as usize).copied().unwrap_or_default())
}
