//! A reconnecting link: a series of links to the store, and how calls fail while there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, pending, ready};
use ostraca_store::{StoreError, StoreIdentity};
use ostraca_wire::reconnect::{BackoffPolicy, Reconnect, keep_up};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::link::{Link, PendingCall};
use super::verifier::StoreVerifier;
use crate::channel::{ChannelError, Connect};
use crate::error::{ConnectError, RequestError};
use crate::options::ClientOptions;
use crate::protocol::{self, Hello, Request, Response, ResponseBody};

/// The caller's end of the link. Dropping it ends its driver.
pub(super) struct ReconnectingLink {
    pub(super) shared: Arc<ClientContext>,
    _stop: DropGuard,
}

pub(super) struct ClientContext {
    state: Mutex<State>,
    /// How many attempts at another link have ended; closed with the driver.
    attempts: watch::Receiver<u64>,
    pub(super) verifier: Arc<StoreVerifier>,
    pub(super) options: ClientOptions,
}

enum State {
    Up(Arc<Link>),
    /// Broken a moment ago: no attempt at another link has ended since.
    Lost(StoreError),
    Down(StoreError),
}

/// Maintains the link. Run its future as a separate task, in the runtime of the connection that carries the links.
/// The future completes when its store is dropped. If it ends earlier, calls fail as they do without a link once the
/// current link breaks.
pub struct Driver {
    shared: Arc<ClientContext>,
    connect: Box<dyn Connect>,
    stop: CancellationToken,
    attempts: watch::Sender<u64>,
    client: u64,
    links: u64,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("links", &self.links).finish_non_exhaustive()
    }
}

/// Why there is no link, as a message: a temporary failure, or a store that must not be used.
enum ConnectFailure {
    Transient(String),
    Refused(String),
}

impl ReconnectingLink {
    /// Creates the first link.
    pub(super) async fn connect(
        connect: impl Connect,
        known: Arc<StoreVerifier>,
        options: ClientOptions,
    ) -> Result<(Self, Driver), ConnectError> {
        let none = StoreError::Unavailable("no link yet".into());
        let (attempts, seen) = watch::channel(0);
        let shared = Arc::new(ClientContext {
            state: Mutex::new(State::Down(none)),
            attempts: seen,
            verifier: known,
            options,
        });
        let stop = CancellationToken::new();
        let mut driver = Driver {
            shared: shared.clone(),
            connect: Box::new(connect),
            stop: stop.clone(),
            attempts,
            client: rand::random(),
            links: 0,
        };
        let line = Self { shared, _stop: stop.drop_guard() };
        match driver.link().await {
            Ok(link) => driver.shared.set(State::Up(link)),
            Err(ConnectFailure::Transient(why)) => return Err(ConnectError::Unreachable(why)),
            Err(ConnectFailure::Refused(why)) => return Err(ConnectError::Refused(why)),
        }
        Ok((line, driver))
    }

    /// Makes a call, which has been sent when this returns.
    pub(super) fn call(
        &self,
        request: &Request,
    ) -> BoxFuture<'static, Result<ResponseBody, RequestError>> {
        match protocol::encode(request) {
            Ok(body) => self.send(body),
            Err(error) => ready(Err(RequestError::NotExecuted(error))).boxed(),
        }
    }

    /// Makes a call over the link with this number, or over any link if `None`; returns the link's number. If another
    /// link is up, the call is not sent.
    pub(super) fn call_on(
        &self,
        link: Option<u64>,
        request: &Request,
    ) -> (Option<u64>, BoxFuture<'static, Result<ResponseBody, RequestError>>) {
        match protocol::encode(request) {
            Ok(body) => self.send_on(link, body),
            Err(error) => (link, ready(Err(RequestError::NotExecuted(error))).boxed()),
        }
    }

    /// Makes a call that changes nothing. If its link breaks, or has just broken, the call is made again on the next
    /// link, provided that the first attempt at one succeeds.
    pub(super) fn read(
        &self,
        request: &Request,
    ) -> BoxFuture<'static, Result<ResponseBody, RequestError>> {
        let body = match protocol::encode(request) {
            Ok(body) => body,
            Err(error) => return ready(Err(RequestError::NotExecuted(error))).boxed(),
        };
        let (shared, mut attempts) = (self.shared.clone(), self.shared.attempts.clone());
        attempts.mark_unchanged();
        let first = shared.send_on(None, body.clone());
        async move {
            let answer = first.1.await;
            let lost = match &answer {
                Err(RequestError::OutcomeUnknown(_)) => !shared.is_up(first.0),
                Err(RequestError::NotExecuted(_)) => shared.is_lost(),
                _ => false,
            };
            // Without a driver, there is no next link.
            if !lost || (shared.is_lost() && attempts.changed().await.is_err()) {
                return answer;
            }
            shared.send_on(None, body).1.await
        }
        .boxed()
    }

    /// Sends the bytes of a call.
    pub(super) fn send(
        &self,
        body: Bytes,
    ) -> BoxFuture<'static, Result<ResponseBody, RequestError>> {
        self.send_on(None, body).1
    }

    fn send_on(
        &self,
        only: Option<u64>,
        body: Bytes,
    ) -> (Option<u64>, BoxFuture<'static, Result<ResponseBody, RequestError>>) {
        self.shared.send_on(only, body)
    }

    /// The store's identity.
    pub(super) fn identity(&self) -> Result<StoreIdentity, ConnectError> {
        let nobody = || ConnectError::Unreachable("the store has not sent its identity".into());
        self.shared.verifier.identity().ok_or_else(nobody)
    }

    /// Maximum size of a call in bytes; `None` without a link.
    pub(super) fn max_call(&self) -> Option<usize> {
        match &*self.shared.state() {
            State::Up(link) => Some(link.channel.max_call()),
            State::Lost(_) | State::Down(_) => None,
        }
    }

    /// The error for a response that does not match its request.
    pub(super) fn unexpected_response(answer: &ResponseBody) -> String {
        format!("response does not match the request: {}", answer.subject())
    }
}

/// The error for a call that the store's node does not support.
fn unsupported(call: u32) -> String {
    format!("the store's node runs an older release without calls of kind {call}: update it first")
}

impl ClientContext {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state() = state;
    }

    fn send_on(
        self: &Arc<Self>,
        only: Option<u64>,
        body: Bytes,
    ) -> (Option<u64>, BoxFuture<'static, Result<ResponseBody, RequestError>>) {
        // Under the lock, so that calls are sent in the order in which they are made.
        let state = self.state();
        let no = match &*state {
            State::Up(link) if only.is_none_or(|only| only == link.number) => {
                let answering = link.call(body);
                drop(state);
                let number = answering.link.number;
                return (Some(number), self.await_response(answering));
            }
            State::Up(_) => StoreError::Unavailable("its link to the store was lost".into()),
            State::Lost(why) | State::Down(why) => why.clone(),
        };
        (only, ready(Err(RequestError::NotExecuted(no))).boxed())
    }

    fn await_response(
        self: &Arc<Self>,
        answering: PendingCall,
    ) -> BoxFuture<'static, Result<ResponseBody, RequestError>> {
        let shared = Arc::clone(self);
        async move {
            let link = answering.link.clone();
            match answering.await {
                Ok(bytes) => match protocol::decode::<Response>(&bytes) {
                    Ok(Response { durable_sequence: sequence, body: answer }) => {
                        shared.verifier.saw(sequence);
                        match answer {
                            ResponseBody::Refused(why) => {
                                Err(RequestError::NotExecuted(StoreError::Unavailable(why)))
                            }
                            ResponseBody::Unsupported { call } => Err(RequestError::NotExecuted(
                                StoreError::Unavailable(unsupported(call)),
                            )),
                            answer => Ok(answer),
                        }
                    }
                    Err(error) => {
                        let why = format!("cannot decode the store's response: {error}");
                        shared.lost(&link, &why);
                        Err(RequestError::OutcomeUnknown(why))
                    }
                },
                Err(ChannelError::NotSent(why)) => {
                    Err(RequestError::NotExecuted(StoreError::Unavailable(why)))
                }
                Err(ChannelError::Disconnected(why)) => {
                    shared.lost(&link, &why);
                    Err(RequestError::OutcomeUnknown(why))
                }
                Err(ChannelError::TimedOut(why)) => Err(RequestError::OutcomeUnknown(why)),
                Err(ChannelError::ResponseTooLarge(why)) => {
                    Err(RequestError::ResponseTooLarge(why))
                }
            }
        }
        .boxed()
    }

    /// Whether the link with this number is the current one.
    fn is_up(&self, number: Option<u64>) -> bool {
        matches!(&*self.state(), State::Up(up) if Some(up.number) == number)
    }

    /// Whether the link has just broken.
    fn is_lost(&self) -> bool {
        matches!(&*self.state(), State::Lost(_))
    }

    /// Marks the link as broken: nothing more is sent on it.
    fn lost(&self, link: &Link, why: &str) {
        let mut state = self.state();
        if matches!(&*state, State::Up(up) if up.number == link.number) {
            let why = format!("the link to the store was lost: {why}");
            *state = State::Lost(StoreError::Unavailable(why));
        }
        drop(state);
        link.dead.cancel();
    }
}

/// The running driver. No other driver uses its links.
struct Keeper(Driver);

impl Reconnect for Keeper {
    type Link = Arc<Link>;
    type Error = ConnectFailure;

    async fn connect(&mut self) -> Result<Arc<Link>, ConnectFailure> {
        let link = self.0.link().await?;
        tracing::info!(link = link.number, "store reachable again");
        self.0.attempted(State::Up(link.clone()));
        Ok(link)
    }

    async fn serve(&mut self, link: Arc<Link>) {
        self.0.supervise(&link).await;
    }

    fn failed(&mut self, error: ConnectFailure) {
        self.0.attempted(State::Down(match error {
            ConnectFailure::Transient(why) => {
                tracing::debug!(%why, "store unreachable");
                StoreError::Unavailable(why)
            }
            ConnectFailure::Refused(why) => {
                if self.0.shared.verifier.record_refusal(&why) {
                    tracing::error!("store refused: {why}");
                }
                StoreError::Stopped(why)
            }
        }));
    }
}

impl Driver {
    /// Runs until the store is dropped.
    pub async fn run(self) {
        let stop = self.stop.clone();
        let shared = self.shared.clone();
        let up = match &*shared.state() {
            State::Up(link) => Some(link.clone()),
            State::Lost(_) | State::Down(_) => None,
        };
        let ClientOptions { backoff, max_backoff, .. } = shared.options;
        let policy = BackoffPolicy { first: backoff, longest: max_backoff };
        // The future may be dropped at any point: it could only complete a link that nothing would use.
        stop.run_until_cancelled(keep_up(up, policy, Keeper(self))).await;
        let gone = StoreError::Unavailable("store client dropped".into());
        if let State::Up(link) = std::mem::replace(&mut *shared.state(), State::Down(gone)) {
            link.channel.close();
        }
    }

    /// Sets the outcome of an attempt at another link.
    fn attempted(&self, state: State) {
        self.shared.set(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// Returns when the link is broken or closed. A single slow call times out without ending the link. To find out
    /// whether the link itself has failed, this pings the peer, which responds without using the store.
    async fn supervise(&self, link: &Link) {
        let limit = self.shared.options.call_timeout;
        let every = (limit / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let mut closed = link.channel.closed();
        let mut ping = pending().boxed();
        let mut pinged_at = None;
        loop {
            tokio::select! {
                () = &mut closed => {
                    self.shared.lost(link, "the peer is gone");
                    break;
                }
                () = link.dead.cancelled() => break,
                answer = &mut ping => {
                    (ping, pinged_at) = (pending().boxed(), None);
                    if let Err(ChannelError::Disconnected(why)) = answer {
                        self.shared.lost(link, &why);
                        break;
                    }
                }
                () = sleep(every) => {
                    let expired = link.expire(limit);
                    if expired > 0 {
                        let link = link.number;
                        tracing::warn!(link, expired, ?limit, "store calls timed out");
                    }
                    match pinged_at {
                        None if expired > 0 => if let Ok(body) = protocol::encode(&Request::Ping) {
                            (ping, pinged_at) = (link.channel.call(body), Some(Instant::now()));
                        },
                        Some(at) if at.elapsed() >= limit => {
                            let why = format!("ping not answered within {limit:?}");
                            tracing::warn!(link = link.number, "dropping the link: {why}");
                            self.shared.lost(link, &why);
                            break;
                        }
                        _ => {}
                    }
                }
            }
        }
        drop(closed);
        link.channel.close();
    }

    /// Creates another link, including its hello.
    async fn link(&mut self) -> Result<Arc<Link>, ConnectFailure> {
        let ClientOptions { connect_timeout, call_timeout, .. } = self.shared.options;
        let channel = timeout(connect_timeout, self.connect.connect())
            .await
            .map_err(|_| {
                ConnectFailure::Transient(format!(
                    "no link within {connect_timeout:?} (`connect_timeout`)"
                ))
            })?
            .map_err(ConnectFailure::Transient)?;
        self.links += 1;
        let known = &self.shared.verifier;
        let seen = known.witness();
        let hello = Hello { cluster: known.cluster(), client: self.client, link: self.links };
        let hello = protocol::encode(&Request::Hello(hello))
            .map_err(|error| ConnectFailure::Transient(error.to_string()))?;
        let answer = timeout(call_timeout, channel.call(hello))
            .await
            .map_err(|_| {
                ConnectFailure::Transient(format!(
                    "no hello within {call_timeout:?} (`call_timeout`)"
                ))
            })?
            .map_err(|failure| ConnectFailure::Transient(failure.to_string()))?;
        let Response { body: answer, .. } = protocol::decode(&answer)
            .map_err(|error| ConnectFailure::Transient(error.to_string()))?;
        let (identity, openings) = match answer {
            ResponseBody::Hello { identity, open_nonces: openings } => (identity, openings),
            ResponseBody::Refused(why) => return Err(ConnectFailure::Transient(why)),
            other => {
                return Err(ConnectFailure::Transient(ReconnectingLink::unexpected_response(
                    &other,
                )));
            }
        };
        let news = known.verify(seen, identity, &openings).map_err(ConnectFailure::Refused)?;
        if news {
            let known = known.clone();
            let written = tokio::task::spawn_blocking(move || known.persist()).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "failed to write witness");
            }
        }
        Ok(Arc::new(Link::new(self.links, channel)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatched_response_is_described_in_plain_words() {
        let text = ReconnectingLink::unexpected_response(&ResponseBody::Get(Ok(None)));
        assert_eq!(text, "response does not match the request: get row");
    }
}
