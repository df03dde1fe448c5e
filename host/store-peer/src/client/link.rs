//! One link and the calls that wait on it.
//!
//! What is confusing: nobody but its caller polls a call, and a caller may come late, or never. So before a call
//! counts as unanswered, whoever watches over the link looks whether its answer has come, and keeps it.

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

use crate::channel::{Channel, Failure};

pub(super) type Answered = Result<Bytes, Failure>;

/// A link that can be used.
pub(super) struct Link {
    /// Counts the links of a line.
    pub(super) number: u64,
    pub(super) channel: Box<dyn Channel>,
    /// Somebody saw that it is broken.
    pub(super) dead: CancellationToken,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// In the order in which they were made.
    calls: BTreeMap<u64, Arc<Mutex<Call>>>,
}

struct Call {
    since: Instant,
    /// Until it has given its result.
    answer: Option<BoxFuture<'static, Answered>>,
    result: Option<Answered>,
    waker: Option<Waker>,
}

impl Link {
    pub(super) fn new(number: u64, channel: Box<dyn Channel>) -> Self {
        let (dead, waiting) = (CancellationToken::new(), Mutex::default());
        Self { number, channel, dead, waiting }
    }

    /// Sends a call.
    pub(super) fn call(self: &Arc<Self>, body: Bytes) -> Answering {
        // A message bears the lowest version whose speakers understand it.
        let (needs, speaks) = (body.first().copied().map(u32::from), self.channel.version());
        let answer = match needs {
            Some(needs) if needs > speaks => {
                let why = format!("a call of version {needs}; the store's node speaks {speaks}");
                ready(Err(Failure::NotSent(why))).boxed()
            }
            _ => self.channel.call(body),
        };
        let (answer, since) = (Some(answer), Instant::now());
        let call = Arc::new(Mutex::new(Call { since, answer, result: None, waker: None }));
        let mut waiting = self.waiting();
        waiting.last += 1;
        let number = waiting.last;
        waiting.calls.insert(number, call.clone());
        drop(waiting);
        Answering { link: self.clone(), number, call }
    }

    /// Ends each call that is without an answer for so long, by itself: the store may be slow, or the call. What
    /// became of it is not known; later calls on this link come after it. Gives how many there were.
    pub(super) fn expire(&self, limit: Duration) -> usize {
        let mut expired = 0;
        loop {
            let oldest = self.waiting().calls.first_key_value().map(|(n, c)| (*n, c.clone()));
            let Some((number, call)) = oldest else { return expired };
            let mut call = lock(&call);
            if call.since.elapsed() < limit {
                return expired;
            }
            if !call.look() {
                let why = format!("no answer within {limit:?} (`call_timeout`)");
                call.end(Err(Failure::TimedOut(why)));
                expired += 1;
            }
            drop(call);
            self.waiting().calls.remove(&number);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    /// Whether the result is there; the caller is woken as before.
    fn look(&mut self) -> bool {
        if let Some(answer) = &mut self.answer {
            let waker = self.waker.as_ref().unwrap_or(Waker::noop());
            match answer.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return false,
                Poll::Ready(result) => self.end(result),
            }
        }
        true
    }

    fn end(&mut self, result: Answered) {
        self.result = Some(result);
        self.answer = None;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn lock(call: &Mutex<Call>) -> MutexGuard<'_, Call> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a call's result.
pub(super) struct Answering {
    pub(super) link: Arc<Link>,
    number: u64,
    call: Arc<Mutex<Call>>,
}

impl Future for Answering {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let mut call = lock(&self.call);
        if let Some(result) = call.result.take() {
            return Poll::Ready(result);
        }
        let Some(answer) = &mut call.answer else {
            return Poll::Ready(Err(Failure::Lost("it was answered before".into())));
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

impl Drop for Answering {
    /// Answered, or nobody wants to know.
    fn drop(&mut self) {
        self.link.waiting().calls.remove(&self.number);
    }
}
