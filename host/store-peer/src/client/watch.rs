//! A watch over a reconnecting link: it polls for changes, and the store holds each poll until there are some.
//!
//! Polling bounds the cost of a slow watcher: changes that it has not fetched remain in the store's own bounded
//! history, and the watch is lost once the history has dropped them. The watch is also lost with its link. The
//! watcher must then list the rows again.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_store::{RowEvent, Watch};

use super::reconnecting_link::ReconnectingLink;
use crate::error::RequestError;
use crate::protocol::{Request, ResponseBody};

pub(super) struct PeerWatch {
    link: Arc<ReconnectingLink>,
    watch_id: u64,
    prefix: String,
    revision: u64,
    /// The link on which the watch exists.
    link_number: Option<u64>,
    /// The pending poll, kept here so that it survives when the future that waits for it is dropped.
    asked: Option<BoxFuture<'static, Result<ResponseBody, RequestError>>>,
    events: VecDeque<RowEvent>,
    lost: bool,
}

impl PeerWatch {
    pub(super) fn new(
        line: Arc<ReconnectingLink>,
        number: u64,
        prefix: &str,
        revision: u64,
    ) -> Self {
        let (prefix, events) = (prefix.into(), VecDeque::new());
        Self {
            link: line,
            watch_id: number,
            prefix,
            revision,
            link_number: None,
            asked: None,
            events,
            lost: false,
        }
    }

    fn ask(&mut self) {
        let options = &self.link.shared.options;
        let hold = options.watch_poll_timeout.min(options.call_timeout / 2).as_millis();
        let request = Request::Watch {
            watch: self.watch_id,
            prefix: self.prefix.clone(),
            revision: self.revision,
            poll_timeout_ms: u64::try_from(hold).unwrap_or(u64::MAX),
        };
        let (link, answer) = self.link.call_on(self.link_number, &request);
        self.link_number = link;
        self.asked = Some(answer);
    }

    async fn change(&mut self) -> RowEvent {
        loop {
            if self.lost {
                return RowEvent::ResyncRequired;
            }
            if let Some(event) = self.events.pop_front() {
                self.lost = event == RowEvent::ResyncRequired;
                return event;
            }
            if self.asked.is_none() {
                self.ask();
            }
            let Some(asked) = &mut self.asked else { continue };
            let answer = asked.await;
            self.asked = None;
            match answer {
                Ok(ResponseBody::Watch(events)) => self.events.extend(events),
                _ => self.lost = true,
            }
        }
    }
}

impl Watch for PeerWatch {
    fn next(&mut self) -> BoxFuture<'_, RowEvent> {
        self.change().boxed()
    }
}

impl Drop for PeerWatch {
    fn drop(&mut self) {
        if self.link_number.is_some() {
            // Do not wait for the response; the watch ends with its link anyway.
            drop(self.link.call_on(self.link_number, &Request::CancelWatch(self.watch_id)));
        }
    }
}
