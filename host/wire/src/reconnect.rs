//! Keeps a link up: reconnects whenever it breaks, with pauses that grow while attempts fail.
//!
//! For clients, links between nodes, and store clients, a link is something different, and so is what happens while it
//! is up. This module decides for all of them how often to try, and when the pauses start over.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Error;

/// Timeout of one attempt at one address.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The pauses between attempts: each is twice as long as the one before, up to a limit. Each is randomised between half
/// of its length and all of it, so that peers that lost the same node do not all reconnect at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl BackoffPolicy {
    /// For links between nodes, which are needed as soon as the other node is back: 20 to 500 ms.
    pub const PEERS: Self =
        Self { first: Duration::from_millis(20), longest: Duration::from_millis(500) };

    /// The pause after a failed attempt that `failed` other failures preceded. `noise` is from 0 to 1.
    #[must_use]
    pub fn pause(&self, failed: u32, noise: f64) -> Duration {
        let full = self.first.saturating_mul(1 << failed.min(20)).min(self.longest);
        full.mul_f64(0.5 + noise / 2.0)
    }
}

/// Counts the failed attempts of one link, and chooses its next pause.
#[derive(Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    failed: u32,
}

impl Backoff {
    /// Begins with the first pause.
    #[must_use]
    pub fn new(policy: BackoffPolicy) -> Self {
        Self { policy, failed: 0 }
    }

    /// Starts over with the first pause. Call it after an attempt has succeeded.
    pub fn reset(&mut self) {
        self.failed = 0;
    }

    /// The time to wait before the next attempt.
    #[must_use]
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.policy.pause(self.failed, rand::random());
        self.failed = self.failed.saturating_add(1);
        pause
    }
}

/// How [`keep_up`] establishes and uses a link.
pub trait Reconnect: Send {
    /// An established link.
    type Link: Send;
    /// Why an attempt failed.
    type Error: Send;

    /// Makes one attempt.
    fn connect(&mut self) -> impl Future<Output = Result<Self::Link, Self::Error>> + Send;
    /// Uses a link. Returns when it is broken.
    fn serve(&mut self, link: Self::Link) -> impl Future<Output = ()> + Send;
    /// Called after a failed attempt.
    fn failed(&mut self, error: Self::Error);
}

/// Keeps a link up, beginning with `link` if there is one. Never returns; may be dropped at any time.
///
/// It also pauses after a link breaks, so as not to flood a peer that accepts links and drops them immediately.
pub async fn keep_up<R: Reconnect>(
    link: Option<R::Link>,
    policy: BackoffPolicy,
    mut keeper: R,
) -> Infallible {
    let mut backoff = Backoff::new(policy);
    if let Some(link) = link {
        keeper.serve(link).await;
        tokio::time::sleep(backoff.next_pause()).await;
    }
    loop {
        match keeper.connect().await {
            Ok(link) => {
                backoff.reset();
                keeper.serve(link).await;
            }
            Err(error) => keeper.failed(error),
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// Tries the addresses in order, and returns the result of the first successful attempt.
///
/// # Errors
/// The last address, and what went wrong there.
pub async fn connect_first<T, F>(
    addresses: &[String],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, String>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut last = "the node advertises no address".to_owned();
    for address in addresses {
        let made = async {
            let found = resolve(address).await?;
            attempt(found).await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(ATTEMPT, made).await {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: no response within {ATTEMPT:?}"),
        }
    }
    Err(last)
}

/// Resolves a host name or IP address with a port, and returns the first result.
async fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the name does not resolve to an address".into())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn policy(first: u64, longest: u64) -> BackoffPolicy {
        let millis = Duration::from_millis;
        BackoffPolicy { first: millis(first), longest: millis(longest) }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let policy = policy(100, 500);
        let full = |failed| policy.pause(failed, 1.0).as_millis();
        assert_eq!([0, 1, 2, 3, 30, u32::MAX].map(full), [100, 200, 400, 500, 500, 500]);
        assert_eq!(policy.pause(1, 0.0).as_millis(), 100, "at least half of it");
        let mut backoff = Backoff::new(policy);
        for full in [100, 200, 400, 500, 500] {
            let pause = backoff.next_pause().as_millis();
            assert!((full / 2..=full).contains(&pause), "{pause} of {full}");
        }
        backoff.reset();
        assert!(backoff.next_pause().as_millis() <= 100);
    }

    /// Attempts succeed or fail as planned; a link breaks immediately.
    struct Planned {
        plan: Vec<bool>,
        seen: Arc<Mutex<Vec<bool>>>,
        done: Arc<tokio::sync::Notify>,
    }

    impl Planned {
        fn see(&self, served: bool) {
            self.seen.lock().unwrap().push(served);
        }
    }

    impl Reconnect for Planned {
        type Link = ();
        type Error = ();

        async fn connect(&mut self) -> Result<(), ()> {
            if self.plan.is_empty() {
                self.done.notify_one();
                return std::future::pending().await;
            }
            if self.plan.remove(0) { Ok(()) } else { Err(()) }
        }

        async fn serve(&mut self, (): ()) {
            self.see(true);
        }

        fn failed(&mut self, (): ()) {
            self.see(false);
        }
    }

    #[tokio::test]
    async fn pauses_start_over_once_a_link_is_up() {
        // Nine failures in a row take half a second. Eighteen would take minutes.
        let nine = [false; 9];
        let plan = [&nine[..], &[true], &nine[..], &[true]].concat();
        let (seen, done) = (Arc::default(), Arc::<tokio::sync::Notify>::default());
        let keeper =
            Planned { plan: plan.clone(), seen: Arc::clone(&seen), done: Arc::clone(&done) };
        let kept = keep_up(Some(()), policy(1, 3_600_000), keeper);
        tokio::select! {
            never = kept => match never {},
            () = done.notified() => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("{:?}", seen.lock()),
        }
        // The link that was up at first is served like any other.
        assert_eq!(*seen.lock().unwrap(), [&[true], &plan[..]].concat());
    }
}
