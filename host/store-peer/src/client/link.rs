//! One link and its pending calls.
//!
//! A call is polled only by its caller, possibly late or never. So before a call counts as unanswered, the link's
//! supervisor polls for its response and stores it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio_util::sync::CancellationToken;

use crate::channel::{Channel, ChannelError};

pub(super) type CallResult = Result<Bytes, ChannelError>;

/// A usable link.
pub(super) struct Link {
    /// The number of this link among the links of its `ReconnectingLink`.
    pub(super) number: u64,
    pub(super) channel: Box<dyn Channel>,
    /// Cancelled once the link is known to be broken.
    pub(super) dead: CancellationToken,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    last: u64,
    /// In the order in which they were made.
    calls: BTreeMap<u64, Arc<Mutex<InFlightCall>>>,
}

struct InFlightCall {
    since: Instant,
    /// `None` once the call has returned its result.
    answer: Option<BoxFuture<'static, CallResult>>,
    result: Option<CallResult>,
    waker: Option<Waker>,
}

impl Link {
    pub(super) fn new(number: u64, channel: Box<dyn Channel>) -> Self {
        let (dead, waiting) = (CancellationToken::new(), Mutex::default());
        Self { number, channel, dead, in_flight: waiting }
    }

    /// Sends a call.
    pub(super) fn call(self: &Arc<Self>, body: Bytes) -> PendingCall {
        // A message carries the lowest version whose implementations understand it.
        let (needs, speaks) = (body.first().copied().map(u32::from), self.channel.version());
        let answer = match needs {
            Some(needs) if needs > speaks => {
                let why = format!("call needs version {needs}, the store's node supports {speaks}");
                ready(Err(ChannelError::NotSent(why))).boxed()
            }
            _ => self.channel.call(body),
        };
        let (answer, since) = (Some(answer), Instant::now());
        let call = Arc::new(Mutex::new(InFlightCall { since, answer, result: None, waker: None }));
        let mut waiting = self.waiting();
        waiting.last += 1;
        let number = waiting.last;
        waiting.calls.insert(number, call.clone());
        drop(waiting);
        PendingCall { link: self.clone(), number, call }
    }

    /// Ends only the calls that have been unanswered for `limit`: the store may be slow, or just these calls. Their
    /// outcome is unknown; later calls on this link take effect after them. Returns the number of calls that it ended.
    pub(super) fn expire(&self, limit: Duration) -> usize {
        let mut expired = 0;
        loop {
            let oldest = self.waiting().calls.first_key_value().map(|(n, c)| (*n, c.clone()));
            let Some((number, call)) = oldest else { return expired };
            let mut call = lock(&call);
            if call.since.elapsed() < limit {
                return expired;
            }
            if !call.poll_result() {
                let why = format!("no response within {limit:?} (`call_timeout`)");
                call.end(Err(ChannelError::TimedOut(why)));
                expired += 1;
            }
            drop(call);
            self.waiting().calls.remove(&number);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightCall {
    /// Polls for the result, and returns whether it has arrived. The caller is still woken.
    fn poll_result(&mut self) -> bool {
        if let Some(answer) = &mut self.answer {
            let waker = self.waker.as_ref().unwrap_or(Waker::noop());
            match answer.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return false,
                Poll::Ready(result) => self.end(result),
            }
        }
        true
    }

    fn end(&mut self, result: CallResult) {
        self.result = Some(result);
        self.answer = None;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn lock(call: &Mutex<InFlightCall>) -> MutexGuard<'_, InFlightCall> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a call's result.
pub(super) struct PendingCall {
    pub(super) link: Arc<Link>,
    number: u64,
    call: Arc<Mutex<InFlightCall>>,
}

impl Future for PendingCall {
    type Output = CallResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResult> {
        let mut call = lock(&self.call);
        if let Some(result) = call.result.take() {
            return Poll::Ready(result);
        }
        let Some(answer) = &mut call.answer else {
            return Poll::Ready(Err(ChannelError::Disconnected("response already taken".into())));
        };
        match answer.as_mut().poll(context) {
            Poll::Ready(result) => {
                call.answer = None;
                Poll::Ready(result)
            }
            Poll::Pending => {
                if call.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                    call.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingCall {
    /// The call was answered, or its caller no longer waits.
    fn drop(&mut self) {
        self.link.waiting().calls.remove(&self.number);
    }
}
