//! The lease: renewed on a thread of its own, so that no load can hold it up (R8).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ostraca_store_sled::SledStore;
use tokio::sync::mpsc;

use crate::clock::{Clock, boot_millis};
use crate::error::NodeError;
use crate::ownership::{self, Cluster, Registration};
use crate::stats::Stats;
use crate::worker::Input;

/// Renewals between two writes of cluster time and of the store's witness. Time that a crash takes with it only
/// makes lanes live longer.
const BETWEEN_NOTES: u64 = 8;

/// The running thread.
pub(crate) struct Lease {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What the thread needs.
pub(crate) struct Renewal {
    pub(crate) registration: Registration,
    pub(crate) cluster: Cluster,
    pub(crate) store: Arc<SledStore>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) workers: Vec<mpsc::UnboundedSender<Input>>,
    pub(crate) every: Duration,
}

impl Lease {
    /// Renews once, then starts the thread.
    pub(crate) fn start(mut renewal: Renewal) -> Result<Self, NodeError> {
        renewal.renew()?;
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("ostraca-lease".into())
            .spawn(move || {
                let mut count = 0_u64;
                while stopped.recv_timeout(renewal.every).is_err_and(|error| {
                    error == std::sync::mpsc::RecvTimeoutError::Timeout
                }) {
                    if let Err(error) = renewal.renew() {
                        tracing::warn!(%error, "the lease was not renewed");
                        continue;
                    }
                    count += 1;
                    if count.is_multiple_of(BETWEEN_NOTES) {
                        renewal.note();
                    }
                }
                renewal.note();
                let goodbye = renewal.registration.leave(&*renewal.cluster);
                if let Err(error) = futures::executor::block_on(goodbye) {
                    tracing::warn!(%error, "the node could not say goodbye; its lease lapses by itself");
                }
            })
            .map_err(|source| NodeError::Thread { name: "ostraca-lease".into(), source })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Says goodbye and ends the thread.
    pub(crate) fn stop(mut self) {
        // Either message or hang-up ends the loop.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the lease's thread had panicked");
        }
    }
}

impl Renewal {
    fn renew(&mut self) -> Result<(), NodeError> {
        // The lease counts from the sending, whenever the answer comes.
        let sent = boot_millis();
        futures::executor::block_on(self.registration.renew(&*self.cluster))?;
        self.stats.renewed.store(sent, Ordering::Relaxed);
        for worker in &self.workers {
            // A worker that has ended serves nothing.
            let _ = worker.send(Input::Renewed(sent));
        }
        Ok(())
    }

    fn note(&self) {
        let time = ownership::write_time(&*self.cluster, self.clock.now().cluster);
        if let Err(error) = futures::executor::block_on(time) {
            tracing::warn!(%error, "cluster time was not written");
        }
        if let Err(error) = futures::executor::block_on(self.store.refresh_witness()) {
            tracing::warn!(%error, "the store's witness was not refreshed");
        }
    }
}
