//! What the runtime, its programs and their instances share: the ticker, and the permits. The ticker thread ends with
//! the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::Error;
use crate::http_client::OutgoingHttp;
use crate::ticker::Ticker;
use crate::variables::VariablesRegistry;

/// Maximum number of components whose methods are read at the same time. Reading them runs the component's code on a
/// separate thread.
const READERS: usize = 4;

pub(crate) struct Shared {
    pub(crate) ticker: Ticker,
    /// The time between two ticks.
    pub(crate) tick: Duration,
    /// Maximum number of instances that may be live at once.
    pub(crate) max_live: u32,
    live: AtomicU32,
    pub(crate) http: Arc<OutgoingHttp>,
    /// The secrets and settings of types.
    pub(crate) variables: VariablesRegistry,
    /// Permits for reading methods.
    pub(crate) readers: Semaphore,
}

impl Shared {
    pub(crate) fn new(ticker: Ticker, tick: Duration, max_live: u32, http: OutgoingHttp) -> Shared {
        let (live, readers) = (AtomicU32::new(0), Semaphore::new(READERS));
        let variables = VariablesRegistry::default();
        Shared { ticker, tick, max_live, live, http: Arc::new(http), variables, readers }
    }

    /// How many instances are live now.
    pub(crate) fn live(&self) -> u32 {
        self.live.load(Relaxed)
    }

    /// Takes a permit for one more live instance.
    pub(crate) fn acquire_permit(self: &Arc<Self>) -> Result<InstancePermit, Error> {
        let limit = self.max_live;
        let taken =
            self.live.fetch_update(Relaxed, Relaxed, |live| (live < limit).then_some(live + 1));
        taken.map_err(|_| Error::InstanceLimit { limit })?;
        Ok(InstancePermit(self.clone()))
    }
}

/// One of the `max_live_instances` permits; returned when dropped.
pub(crate) struct InstancePermit(pub(crate) Arc<Shared>);

impl Drop for InstancePermit {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}
