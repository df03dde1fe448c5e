//! Links within one process. They break at random points, chosen by a seed, or when a test requests it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_store_peer::{Channel, ChannelError, Connect};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The serving end of a link.
pub(crate) type Serve = Box<dyn FnMut(&[u8]) -> BoxFuture<'static, Bytes> + Send>;

/// Which faults the links have, and how often.
#[derive(Default)]
pub(crate) struct LinkFaults {
    /// One in this many calls breaks its link; 0 means none.
    pub(crate) breaks: AtomicU64,
    random: AtomicU64,
    /// Number of links created so far.
    pub(crate) links: AtomicUsize,
    pub(crate) broken: AtomicUsize,
    /// Whether the store is unreachable.
    pub(crate) cut: AtomicBool,
    /// Whether calls are held in transit.
    pub(crate) held: AtomicBool,
    /// The requests in transit, each with its link.
    wire: Mutex<Vec<(Arc<Mutex<Serve>>, Bytes)>>,
    /// One token per link, which breaks the link when it is cancelled.
    ends: Mutex<Vec<CancellationToken>>,
    /// Maximum size of a call in bytes.
    pub(crate) max_call: AtomicUsize,
    /// Maximum size of an answer in bytes.
    pub(crate) max_answer: AtomicUsize,
}

impl LinkFaults {
    pub(crate) fn new(breaks: u64, seed: u64) -> Arc<Self> {
        let weather = Self { random: seed.into(), ..Self::default() };
        weather.breaks.store(breaks, Ordering::Relaxed);
        weather.max_call.store(20 << 20, Ordering::Relaxed);
        weather.max_answer.store(20 << 20, Ordering::Relaxed);
        Arc::new(weather)
    }

    fn below(&self, bound: u64) -> u64 {
        let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mut z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Breaks all links.
    pub(crate) fn break_links(&self) {
        for broken in self.ends.lock().unwrap().drain(..) {
            broken.cancel();
        }
    }

    /// Delivers the requests in transit, even those of old links, and returns their number.
    pub(crate) fn deliver_late(&self) -> usize {
        let late = std::mem::take(&mut *self.wire.lock().unwrap());
        for (serve, body) in &late {
            drop((serve.lock().unwrap())(body));
        }
        late.len()
    }
}

/// Creates links to the servers that `serve` creates.
pub(crate) struct Net<F> {
    pub(crate) serve: F,
    pub(crate) weather: Arc<LinkFaults>,
    pub(crate) runtime: Handle,
}

impl<F: Fn() -> Serve + Send + Sync + 'static> Connect for Net<F> {
    fn connect(&self) -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
        if self.weather.cut.load(Ordering::Relaxed) {
            return ready(Err("the store is unreachable".into())).boxed();
        }
        self.weather.links.fetch_add(1, Ordering::Relaxed);
        let broken = CancellationToken::new();
        self.weather.ends.lock().unwrap().push(broken.clone());
        let channel = InProcess {
            serve: Arc::new(Mutex::new((self.serve)())),
            broken,
            weather: self.weather.clone(),
            runtime: self.runtime.clone(),
        };
        ready(Ok(Box::new(channel) as Box<dyn Channel>)).boxed()
    }
}

struct InProcess {
    serve: Arc<Mutex<Serve>>,
    broken: CancellationToken,
    weather: Arc<LinkFaults>,
    runtime: Handle,
}

impl InProcess {
    fn lost(&self) -> BoxFuture<'static, Result<Bytes, ChannelError>> {
        self.weather.broken.fetch_add(1, Ordering::Relaxed);
        self.broken.cancel();
        ready(Err(ChannelError::Disconnected("the link broke".into()))).boxed()
    }
}

impl Channel for InProcess {
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>> {
        if self.broken.is_cancelled() {
            return ready(Err(ChannelError::NotSent("the link is broken".into()))).boxed();
        }
        let weather = &self.weather;
        let breaks = weather.breaks.load(Ordering::Relaxed);
        // A link must be established before it can break.
        let hello = body.get(1) == Some(&0);
        if breaks > 0 && !hello && weather.below(breaks) == 0 {
            match weather.below(3) {
                0 => return self.lost(),
                1 => {
                    // The call arrives later, from an abandoned link.
                    let (serve, late) = (self.serve.clone(), weather.below(20));
                    self.runtime.spawn(async move {
                        tokio::time::sleep(std::time::Duration::from_millis(late)).await;
                        drop((serve.lock().unwrap())(&body));
                    });
                    return self.lost();
                }
                _ => {
                    drop((self.serve.lock().unwrap())(&body));
                    return self.lost();
                }
            }
        }
        let (to, answered) = oneshot::channel();
        if weather.held.load(Ordering::Relaxed) && !hello {
            weather.wire.lock().unwrap().push((self.serve.clone(), body));
            std::mem::forget(to);
        } else {
            let answer = (self.serve.lock().unwrap())(&body);
            self.runtime.spawn(async move { to.send(answer.await) });
        }
        let (broken, most) = (self.broken.clone(), weather.max_answer.load(Ordering::Relaxed));
        let lost = ChannelError::Disconnected("the link broke".into());
        async move {
            match broken.run_until_cancelled(answered).await {
                Some(Ok(answer)) if answer.len() > most => {
                    Err(ChannelError::ResponseTooLarge(format!("{} bytes", answer.len())))
                }
                Some(Ok(answer)) => Ok(answer),
                _ => Err(lost),
            }
        }
        .boxed()
    }

    fn max_call(&self) -> usize {
        self.weather.max_call.load(Ordering::Relaxed)
    }

    fn closed(&self) -> BoxFuture<'static, ()> {
        self.broken.clone().cancelled_owned().boxed()
    }

    fn close(&self) {
        self.broken.cancel();
    }
}
