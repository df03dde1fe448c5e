//! The thread that advances the engines' epochs, and wakes guests that sleep beyond their limit.
//!
//! It is a separate OS thread, since looping guests may occupy every worker of an async runtime at once.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wasmtime::Engine;

use crate::Error;
use crate::meter::Sleepers;

/// The running thread, which ends when this is dropped.
pub(crate) struct Ticker {
    pub(crate) sleepers: Sleepers,
    engines: Arc<Mutex<Vec<Engine>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(tick: Duration) -> Result<Ticker, Error> {
        let sleepers = Sleepers::default();
        let engines = Arc::new(Mutex::new(Vec::<Engine>::new()));
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("ostraca-epoch".into())
            .spawn({
                let (sleepers, engines) = (sleepers.clone(), engines.clone());
                move || {
                    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(tick) {
                        for engine in engines.lock().unwrap_or_else(PoisonError::into_inner).iter()
                        {
                            engine.increment_epoch();
                        }
                        sleepers.wake_due(Instant::now());
                    }
                }
            })
            .map_err(|error| Error::ThreadFailed(error.to_string()))?;
        Ok(Ticker { sleepers, engines, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn add(&self, engine: &Engine) {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner).push(engine.clone());
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread holds no lock while it waits, and cannot panic. There would be nobody to report an error to.
            let _ = thread.join();
        }
    }
}
