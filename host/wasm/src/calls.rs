//! The outgoing HTTP calls of a turn (R20). A call runs beside the turn and ends with it: its connection and its
//! response are then dropped, even if the guest keeps the handles.
//!
//! A response is received as a whole before the guest sees its head, so a guest that waits for a call waits only for
//! the call's own handle. That time is not charged to the guest.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http::{HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use wasmtime_wasi::runtime::AbortOnDropJoinHandle;
use wasmtime_wasi_http::p2::body::{HyperIncomingBody, HyperOutgoingBody};
use wasmtime_wasi_http::{Error as CallError, RequestOptions};

use crate::InstanceLimits;
use crate::call_sink::{CallRelease, CallSink, GuestCall};
use crate::http_client::{CallDeadlines, CallRequest, HttpClient, OutgoingHttp};
use crate::http_hooks::IDEMPOTENCY_KEY;
use crate::meter::{Meter, WaitGuard};
use crate::trap::HostTrap;

/// Maximum size in bytes of one frame of a response's body, as the guest receives it.
const FRAME_BYTES: usize = 16 << 10;

/// A call that was checked and is to be started.
pub(crate) struct NewCall {
    /// Complete except for the key and the body.
    pub(crate) request: CallRequest,
    pub(crate) body: Option<HyperOutgoingBody>,
    pub(crate) options: RequestOptions,
    /// What the key depends on.
    pub(crate) call: GuestCall,
    /// Size in bytes of the request's head.
    pub(crate) head_bytes: u64,
}

pub(crate) type CallResult =
    Result<(Response<HyperIncomingBody>, AbortOnDropJoinHandle<()>), CallError>;

/// What the calls of a turn hold.
#[derive(Debug, Default)]
struct Held {
    /// Bytes of all requests and responses.
    bytes: AtomicU64,
    /// Whether a request would have exceeded the limit.
    exceeded: AtomicBool,
    /// The bodies of the responses, for as long as the turn runs.
    bodies: Mutex<Vec<Arc<Bytes>>>,
}

impl Held {
    fn add(&self, bytes: u64, limit: u64) -> bool {
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// The calls of the current turn.
pub(crate) struct TurnCalls {
    http: Arc<OutgoingHttp>,
    meter: Arc<Meter>,
    sink: Option<Arc<dyn CallSink>>,
    started: u64,
    held: Arc<Held>,
    /// Dropped with the turn, which ends its calls.
    turn: watch::Sender<()>,
}

impl TurnCalls {
    pub(crate) fn new(http: Arc<OutgoingHttp>, meter: Arc<Meter>) -> TurnCalls {
        let turn = watch::Sender::new(());
        TurnCalls { http, meter, sink: None, started: 0, held: Arc::default(), turn }
    }

    /// Begins a turn. Without a sink, the turn cannot make calls.
    pub(crate) fn begin(&mut self, sink: Option<Arc<dyn CallSink>>) {
        self.end();
        self.sink = sink;
    }

    /// Ends the turn, and with it all its calls.
    pub(crate) fn end(&mut self) {
        if self.sink.is_some() {
            *self = TurnCalls::new(self.http.clone(), self.meter.clone());
        }
    }

    pub(crate) fn check_allowed(&self) -> Result<(), HostTrap> {
        if self.sink.is_none() { Err(HostTrap::HttpOutsideTurn) } else { Ok(()) }
    }

    /// Fails if a request has exceeded the turn's limit.
    pub(crate) fn check_size(&self, limits: &InstanceLimits) -> Result<(), HostTrap> {
        match self.held.exceeded.load(Ordering::Relaxed) {
            true => Err(HostTrap::CallsTooLarge { limit: limits.http_bytes }),
            false => Ok(()),
        }
    }

    /// Starts a call at this place of the turn. Fails if it exceeds a limit.
    pub(crate) fn start(
        &mut self,
        place: u32,
        new: NewCall,
        limits: &InstanceLimits,
    ) -> Result<AbortOnDropJoinHandle<CallResult>, HostTrap> {
        let Some(sink) = &self.sink else { return Err(HostTrap::HttpOutsideTurn) };
        if self.started >= limits.http_calls {
            return Err(HostTrap::TooManyCalls { limit: limits.http_calls });
        }
        if !self.held.add(new.head_bytes, limits.http_bytes) {
            return Err(HostTrap::CallsTooLarge { limit: limits.http_bytes });
        }
        let NewCall { request, body, options, call, .. } = new;
        let (release, released) = oneshot::channel();
        let running = RunningCall {
            client: self.http.client.clone(),
            held: self.held.clone(),
            limit: limits.http_bytes,
            deadlines: deadlines(limits.http_timeout, options),
        };
        let ended = Ended { sink: sink.clone(), place, _wait: self.meter.wait() };
        let mut turn = self.turn.subscribe();
        let task = async move {
            let _ended = ended;
            let call = AssertUnwindSafe(running.run(request, body, released)).catch_unwind();
            let result = tokio::select! {
                biased;
                // Fails once the sender has been dropped.
                _ = turn.changed() => Err(CallError::ConnectionTerminated),
                called = call => called.unwrap_or_else(|_| {
                    tracing::error!("an outgoing call panicked");
                    Err(CallError::InternalError(Some("the call panicked".into())))
                }),
            };
            // wasmtime also expects a task that drives the connection; this one does nothing.
            result.map(|response| (response, AbortOnDropJoinHandle::from(tokio::spawn(async {}))))
        };
        let task = self.http.spawn(task).map_err(|error| {
            tracing::error!(%error, "cannot start the threads of outgoing calls");
            HostTrap::Interrupted
        })?;
        self.started += 1;
        sink.start(place, call, CallRelease(release));
        Ok(AbortOnDropJoinHandle::from(task))
    }
}

/// Reports the end of a call when it is dropped.
struct Ended {
    sink: Arc<dyn CallSink>,
    place: u32,
    _wait: WaitGuard,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.sink.end(self.place);
    }
}

/// Converts the guest's timeouts, which the type's limit bounds.
fn deadlines(limit: Duration, options: RequestOptions) -> CallDeadlines {
    let now = Instant::now();
    let until = |timeout: Option<Duration>| now + timeout.unwrap_or(limit).min(limit);
    CallDeadlines {
        connected: until(options.connect_timeout),
        head: until(options.first_byte_timeout),
        whole: now + limit,
        pause: options.between_bytes_timeout.unwrap_or(limit).min(limit),
    }
}

struct RunningCall {
    client: Arc<HttpClient>,
    held: Arc<Held>,
    limit: u64,
    deadlines: CallDeadlines,
}

impl RunningCall {
    async fn run(
        self,
        mut request: CallRequest,
        body: Option<HyperOutgoingBody>,
        released: oneshot::Receiver<String>,
    ) -> Result<Response<HyperIncomingBody>, CallError> {
        let key = timeout_at(self.deadlines.whole, released).await;
        let key = key.map_err(|_| CallError::ConnectionTimeout)?;
        let key = key.map_err(|_| CallError::ConnectionTerminated)?;
        let key = HeaderValue::try_from(key).map_err(|_| CallError::ConfigurationError)?;
        request.headers.insert(IDEMPOTENCY_KEY, key);
        if let Some(body) = body {
            let received = timeout_at(self.deadlines.whole, self.receive_body(body)).await;
            request.body = received.map_err(|_| CallError::ConnectionWriteTimeout)??;
        }
        let fits = |bytes: usize| match self.held.add(bytes as u64, self.limit) {
            true => Ok(()),
            false => Err(CallError::HttpResponseBodySize(Some(self.limit))),
        };
        let response = self.client.call(request, self.deadlines, &fits).await?;
        Ok(response.map(|body| self.hold(body)))
    }

    /// Receives the request's body from the guest.
    async fn receive_body(&self, mut body: HyperOutgoingBody) -> Result<Bytes, CallError> {
        let mut received = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                return Err(CallError::HttpRequestTrailerSectionSize(Some(0)));
            };
            if !self.held.add(data.len() as u64, self.limit) {
                self.held.exceeded.store(true, Ordering::Relaxed);
                return Err(CallError::HttpRequestBodySize(Some(self.limit)));
            }
            received.extend_from_slice(&data);
        }
        Ok(received.freeze())
    }

    fn hold(&self, body: Bytes) -> HyperIncomingBody {
        let body = Arc::new(body);
        let held = HeldBody { all: Arc::downgrade(&body), sent: 0, length: body.len() };
        self.held.bodies.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        held.boxed_unsync()
    }
}

/// A response's body, which exists only as long as its turn.
struct HeldBody {
    all: Weak<Bytes>,
    sent: usize,
    length: usize,
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = CallError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallError>>> {
        if self.sent == self.length {
            return Poll::Ready(None);
        }
        let Some(all) = self.all.upgrade() else {
            self.sent = self.length;
            return Poll::Ready(Some(Err(CallError::ConnectionTerminated)));
        };
        let end = self.length.min(self.sent + FRAME_BYTES);
        // Copied, so that a frame does not keep the whole body in memory.
        let frame = all.get(self.sent..end).map(Bytes::copy_from_slice).unwrap_or_default();
        self.sent = end;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.length
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.length - self.sent) as u64)
    }
}
