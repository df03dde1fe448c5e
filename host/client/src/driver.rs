//! A session's task: carries out the decisions of the [`Ledger`] over the current connection.
//!
//! Each session has one task, which holds no lock while it waits. The task ends when the client closes, or when all
//! handles of the session are dropped and every call has its outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca_codes::codes;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::{self, Outcome, Problem};
use ostraca_wire::reconnect::{Backoff, BackoffPolicy};
use ostraca_wire::{Error, decode_error_message, problem};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::connection_state::ConnectionState;
use crate::gateway_switch::SharedSwitchTimer;
use crate::ledger::{Ledger, SessionLimits};
use crate::session::{Shared, Waiter};

/// Number of bytes that are encoded ahead of what QUIC has accepted.
const AHEAD: usize = 256 << 10;
/// The pauses between attempts to open the session's stream, when streams keep breaking.
const REOPEN: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(20), longest: Duration::from_secs(1) };

struct Stream {
    writer: FrameWriter,
    reader: FrameReader,
}

pub(crate) async fn drive(
    shared: Arc<Shared>,
    next: u64,
    mut links: watch::Receiver<ConnectionState>,
    switch_timer: Arc<SharedSwitchTimer>,
    cancel: CancellationToken,
) {
    let mut ledger = Ledger::new(shared.id, next, rand::random());
    let mut stream: Option<Stream> = None;
    let mut reopen = Backoff::new(REOPEN);
    let mut not_before = Instant::now();
    loop {
        let now = Instant::now();
        let closed = take_calls(&shared, &mut ledger);
        if stream.is_none() {
            ledger.set_not_connected(Some(not_connected(&links)));
        }
        ledger.tick(now);
        if let Some(stream) = &mut stream {
            while stream.writer.unwritten() < AHEAD
                && let Some(envelope) = ledger.next_to_send(now)
            {
                stream.writer.put(envelope);
            }
        }
        hand_out(&shared, &mut ledger);
        if closed && ledger.is_empty() {
            break;
        }
        let stuck = stream.as_ref().and_then(|_| ledger.stall());
        let ends = stuck.map(|stuck| switch_timer.ends(stuck, now));
        let wake = ledger.next_wake().into_iter().chain(ends).min();
        let happened = tokio::select! {
            () = cancel.cancelled() => break,
            () = shared.called.notified() => Ok(()),
            () = sleep(wake) => Ok(()),
            happened = exchange(&mut stream, &mut ledger, &shared, &switch_timer) => happened.map(|replied| {
                if replied {
                    reopen.reset();
                }
            }),
            opened = open(&shared, &mut links, not_before), if stream.is_none() => {
                opened.map(|(opened, window)| {
                    ledger.set_limits(window);
                    ledger.set_not_connected(None);
                    stream = Some(opened);
                })
            }
        };
        if let Err(error) = happened {
            info!(%error, session = %shared.id, "session stream failed");
            stream = None;
            ledger.connection_lost(Instant::now());
            not_before = Instant::now() + reopen.next_pause();
        }
    }
    shared.inbox().admission.close();
    take_calls(&shared, &mut ledger);
    ledger.complete_all(&problem(codes::CLIENT_CLOSED, "the client was closed"), Instant::now());
    hand_out(&shared, &mut ledger);
    if let Some(mut stream) = stream {
        stream.writer.finish();
    }
}

/// Submits new calls to the ledger; returns true once all session handles are dropped.
fn take_calls(shared: &Shared, ledger: &mut Ledger<Waiter>) -> bool {
    let mut inbox = shared.inbox();
    let new = std::mem::take(&mut inbox.calls);
    let closed = inbox.closed;
    inbox.admission.stamped(ledger.highest_restamp());
    drop(inbox);
    for call in new {
        ledger.push(call.sequence, call.message, call.waiter);
    }
    closed
}

/// Delivers outcomes to their callers.
fn hand_out(shared: &Shared, ledger: &mut Ledger<Waiter>) {
    let (mut messages, mut bytes) = (0, 0);
    for (waiter, outcome) in ledger.take_completed() {
        messages += 1;
        bytes += waiter.size;
        // The caller may have dropped its future.
        let _ = waiter.outcome.send(outcome);
    }
    if messages > 0 {
        shared.release(messages, bytes);
    }
}

fn not_connected(links: &watch::Receiver<ConnectionState>) -> Problem {
    let last = links.borrow().last.clone();
    let mut absent = problem(codes::NOT_CONNECTED, last.as_deref().unwrap_or("not connected"));
    absent.retryable = true;
    absent
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Writes queued frames or reads replies, whichever is possible first. Returns true if replies were read.
async fn exchange(
    stream: &mut Option<Stream>,
    ledger: &mut Ledger<Waiter>,
    shared: &Shared,
    switch_timer: &SharedSwitchTimer,
) -> Result<bool, Error> {
    let Some(Stream { writer, reader }) = stream else {
        return std::future::pending().await;
    };
    let more = tokio::select! {
        written = writer.write_some(), if !writer.is_flushed() => return written.map(|()| false),
        more = reader.fill() => more?,
    };
    if !more {
        return Err(Error::ConnectionLost("the node closed the session's stream".into()));
    }
    let now = Instant::now();
    while let Some(frame) = reader.next_buffered()? {
        let reply = proto::Reply::decode(frame).map_err(|e| {
            Error::ConnectionLost(format!(
                "invalid reply from the node: {}",
                decode_error_message(&e)
            ))
        })?;
        shared.clock.observe_reply(&reply);
        if !matches!(reply.outcome(), Outcome::Result | Outcome::ApplicationError) {
            let problem = reply.problem.as_ref();
            let (code, text) = problem.map_or(("", ""), |it| (&it.code, &it.message));
            info!(sequence = reply.sequence, outcome = ?reply.outcome(), code, "reply without a result: {text}");
        }
        ledger.on_reply(reply, now);
    }
    switch_timer.record_replies(ledger.is_progressing(), now);
    Ok(true)
}

/// Opens the session's stream on the current connection, or on the next one.
async fn open(
    shared: &Shared,
    links: &mut watch::Receiver<ConnectionState>,
    not_before: Instant,
) -> Result<(Stream, SessionLimits), Error> {
    sleep_until(not_before.into()).await;
    let link = match links.wait_for(|state| state.connection.is_some()).await {
        Ok(state) => state.connection.clone(),
        // The client is closing, and will cancel this task.
        Err(_) => None,
    };
    let Some(link) = link else { return std::future::pending().await };
    let (writer, reader) = link.session(shared.id.0).await?;
    let announced = link.node_limits();
    let default = SessionLimits::default();
    let or = |announced: u32, default: u32| if announced == 0 { default } else { announced };
    let window = SessionLimits {
        messages: or(announced.session_in_flight_messages, default.messages),
        bytes: if announced.session_in_flight_bytes == 0 {
            default.bytes
        } else {
            announced.session_in_flight_bytes
        },
        max_message: or(announced.max_message, default.max_message),
        max_frame: or(announced.max_frame, default.max_frame),
    };
    Ok((Stream { writer, reader }, window))
}
