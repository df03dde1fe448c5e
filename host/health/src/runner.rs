//! Bounds health checks, whatever they do.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::check::{CheckOutcome, HealthCheck};
use crate::suspect::Suspect;

/// How much longer than its time-out a check may take before it is dropped: a check that keeps its time-out says more
/// about what went wrong.
const GRACE: Duration = Duration::from_millis(500);

/// Runs health checks on a runtime other than the one of the leases (R8). A check that hangs or panics knows nothing.
#[derive(Clone)]
pub struct CheckRunner {
    check: Arc<dyn HealthCheck>,
    timeout: Duration,
    runtime: Handle,
}

impl CheckRunner {
    /// Runs this check on a runtime. One that has not ended a little after `timeout` is dropped.
    #[must_use]
    pub fn new(check: Arc<dyn HealthCheck>, timeout: Duration, runtime: Handle) -> Self {
        Self { check, timeout, runtime }
    }

    /// Starts a check. It ends within the time-out, and is dropped with the returned future.
    pub fn run(&self, suspect: Suspect) -> BoxFuture<'static, CheckOutcome> {
        let (check, limit) = (self.check.clone(), self.timeout + GRACE);
        let checking = async move { timeout(limit, check.check(&suspect)).await };
        let task = AbortOnDropHandle::new(self.runtime.spawn(checking));
        let ending = async move {
            match task.await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => CheckOutcome::failed(format!("it did not end within {limit:?}")),
                Err(error) => CheckOutcome::failed(format!("the check ended early: {error}")),
            }
        };
        ending.boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::suspect::tests::suspect;

    struct Scripted(fn() -> BoxFuture<'static, CheckOutcome>);

    impl HealthCheck for Scripted {
        fn check<'a>(&'a self, _: &'a Suspect) -> BoxFuture<'a, CheckOutcome> {
            (self.0)()
        }
    }

    async fn run(check: fn() -> BoxFuture<'static, CheckOutcome>) -> CheckOutcome {
        let limit = Duration::from_millis(100);
        CheckRunner::new(Arc::new(Scripted(check)), limit, Handle::current()).run(suspect()).await
    }

    fn ended() -> CheckOutcome {
        CheckOutcome::Ended { how: "it said so".into() }
    }

    #[tokio::test]
    async fn s7_a_check_that_hangs_is_not_knowledge() {
        let start = Instant::now();
        let found = run(|| std::future::pending().boxed()).await;
        let CheckOutcome::Failed { why } = &found else { panic!("{found:?}") };
        assert!(why.contains("did not end within 600ms"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(20));
        let late = || tokio::time::sleep(Duration::from_secs(60)).map(|()| ended()).boxed();
        let found = run(late).await;
        assert!(matches!(found, CheckOutcome::Failed { .. }), "{found:?}");
    }

    #[tokio::test]
    async fn s7_a_check_that_panics_is_not_knowledge() {
        let found = run(|| async { panic!("in a check") }.boxed()).await;
        assert!(matches!(found, CheckOutcome::Failed { .. }), "{found:?}");
    }

    #[tokio::test]
    async fn a_check_in_time_is_passed_on() {
        assert_eq!(run(|| async { ended() }.boxed()).await, ended());
    }
}
