//! The watches of a link. Changes remain in the store's own history until their watch is polled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_store::{ClusterStore, RowEvent, Watch};
use tokio::time::timeout;

use crate::options::ServerOptions;
use crate::protocol::ResponseBody;

pub(super) struct Watches {
    /// `None` while a poll of the watch is being answered.
    watches: Mutex<HashMap<u64, Option<Box<dyn Watch>>>>,
    max_watches: usize,
    max_events: usize,
    max_poll_timeout: Duration,
}

impl Watches {
    pub(super) fn new(options: &ServerOptions) -> Self {
        let ServerOptions {
            max_watches: watches,
            max_watch_events: watch_events,
            max_watch_poll_timeout: max_watch_hold,
            ..
        } = *options;
        Self {
            watches: Mutex::default(),
            max_watches: watches,
            max_events: watch_events.max(1),
            max_poll_timeout: max_watch_hold,
        }
    }

    /// Waits for the next changes of a watch.
    pub(super) fn next(
        self: Arc<Self>,
        store: &dyn ClusterStore,
        number: u64,
        prefix: &str,
        revision: u64,
        hold: u64,
    ) -> BoxFuture<'static, ResponseBody> {
        let taken = {
            let mut watches = self.lock();
            let room = watches.len() < self.max_watches;
            match watches.get_mut(&number) {
                Some(watch) => watch.take().ok_or("this watch already has a pending poll"),
                None if room => {
                    watches.insert(number, None);
                    Ok(store.watch(prefix, revision))
                }
                None => Err("limit on watches per link reached"),
            }
        };
        let mut watch = match taken {
            Ok(watch) => watch,
            Err(why) => return ready(ResponseBody::Refused(why.into())).boxed(),
        };
        let hold = Duration::from_millis(hold).min(self.max_poll_timeout);
        let next = async move {
            let mut events = Vec::new();
            let mut event = timeout(hold, watch.next()).await.ok();
            while let Some(one) = event.take() {
                let last = one == RowEvent::ResyncRequired || events.len() + 1 >= self.max_events;
                events.push(one);
                if !last {
                    event = watch.next().now_or_never();
                }
            }
            if events.last() == Some(&RowEvent::ResyncRequired) {
                self.end(number);
            } else if let Some(place) = self.lock().get_mut(&number) {
                *place = Some(watch);
            }
            ResponseBody::Watch(events)
        };
        next.boxed()
    }

    /// Ends a watch.
    pub(super) fn end(&self, number: u64) {
        self.lock().remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Option<Box<dyn Watch>>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
