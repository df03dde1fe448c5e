//! Many concurrent clients: their rate, and the messages in flight at a given moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use ostraca_client::{Call, Entity, Session};
use tokio::task::JoinSet;

/// The result of a load.
#[derive(Debug)]
pub struct LoadResult {
    /// Number of answered commands.
    pub done: u64,
    /// Time from the first command to the last reply.
    pub took: Duration,
    /// Time from a command (or the moment at which it was due) to its reply, in microseconds.
    pub waits: Histogram<u64>,
}

impl LoadResult {
    /// Answered commands per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The latency at this percentile.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_micros(self.waits.value_at_quantile(percent / 100.0))
    }
}

/// Creates an empty histogram of microseconds, up to ten minutes.
///
/// # Errors
/// Never, for these constants.
pub fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000, 3)?)
}

/// Produces the next message from the session's index and the message's number: an entity and a body for the
/// method.
pub type Next = dyn Fn(usize, u64) -> (Entity, String) + Send + Sync;

/// Each session keeps `in_flight` commands in flight until `total` have been sent or `until` is reached.
///
/// # Errors
/// The error of the first command without an answer.
pub async fn closed_loop(
    sessions: &[Session],
    in_flight: usize,
    method: &'static str,
    total: u64,
    until: Instant,
    next: Arc<Next>,
) -> Result<LoadResult> {
    let began = Instant::now();
    let number = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for (place, session) in sessions.iter().enumerate() {
        let (session, number, next) = (session.clone(), Arc::clone(&number), Arc::clone(&next));
        senders.spawn(async move {
            let mut waits = histogram()?;
            let mut under_way = FuturesUnordered::new();
            loop {
                while under_way.len() < in_flight && Instant::now() < until {
                    let n = number.fetch_add(1, Ordering::Relaxed);
                    if n >= total {
                        break;
                    }
                    let (entity, body) = next(place, n);
                    under_way.push(timed(Instant::now(), session.command(&entity, method, body)));
                }
                match under_way.next().await {
                    Some(wait) => waits.saturating_record(wait?),
                    None => return Ok::<_, anyhow::Error>(waits),
                }
            }
        });
    }
    gather(senders, began).await
}

/// Sends `total` commands at a constant `rate` per second, regardless of the replies; latency is measured from the
/// moment at which a command was due.
///
/// # Errors
/// The error of the first command without an answer.
pub async fn open_loop(
    sessions: &[Session],
    rate: u32,
    method: &'static str,
    total: u64,
    next: Arc<Next>,
) -> Result<LoadResult> {
    let began = Instant::now();
    let step = Duration::from_secs(1) / rate;
    let mut senders = JoinSet::new();
    let count = sessions.len();
    for (place, session) in sessions.iter().enumerate() {
        let (session, next) = (session.clone(), Arc::clone(&next));
        senders.spawn(async move {
            let mut waits = histogram()?;
            let mut under_way = FuturesUnordered::new();
            for n in (place as u64..total).step_by(count) {
                let due = began + step * u32::try_from(n)?;
                let pause = tokio::time::sleep_until(due.into());
                tokio::pin!(pause);
                loop {
                    tokio::select! {
                        biased;
                        () = &mut pause => break,
                        Some(wait) = under_way.next() => waits.saturating_record(wait?),
                    }
                }
                let (entity, body) = next(place, n);
                under_way.push(timed(due, session.command(&entity, method, body)));
            }
            while let Some(wait) = under_way.next().await {
                waits.saturating_record(wait?);
            }
            Ok::<_, anyhow::Error>(waits)
        });
    }
    gather(senders, began).await
}

async fn timed(due: Instant, call: Call) -> Result<u64> {
    call.await.map_err(|error| anyhow!("a command was not answered: {error}"))?;
    Ok(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX))
}

async fn gather(
    mut senders: JoinSet<Result<Histogram<u64>>>,
    began: Instant,
) -> Result<LoadResult> {
    let mut waits = histogram()?;
    while let Some(sender) = senders.join_next().await {
        waits.add(sender??)?;
    }
    Ok(LoadResult { done: waits.len(), took: began.elapsed(), waits })
}

/// Counts of messages sent and messages with an outcome, shared with the test.
#[derive(Debug, Default)]
pub struct InFlightCounter {
    sent: AtomicU64,
    ended: AtomicU64,
}

impl InFlightCounter {
    /// Counts a sent message.
    pub fn sent(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a message with an outcome.
    pub fn ended(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of messages with an outcome.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Number of messages without an outcome.
    #[must_use]
    pub fn now(&self) -> u64 {
        let ended = self.done();
        self.sent.load(Ordering::SeqCst).saturating_sub(ended)
    }
}
