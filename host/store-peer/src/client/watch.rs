//! A watch over a line: it asks for changes, and the store keeps the question until there are some.
//!
//! Asking bounds what a slow watcher costs: what it has not asked for waits in the store's own bounded history,
//! and when that has forgotten it the watch is lost. It is lost with its link, too: whoever watches lists anew.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_store::{RowEvent, Watch};

use super::line::Line;
use crate::error::Failed;
use crate::protocol::{Answer, Request};

pub(super) struct PeerWatch {
    line: Arc<Line>,
    number: u64,
    prefix: String,
    revision: u64,
    /// The link that knows of this watch.
    link: Option<u64>,
    /// Cancelled waits go on here.
    asked: Option<BoxFuture<'static, Result<Answer, Failed>>>,
    events: VecDeque<RowEvent>,
    lost: bool,
}

impl PeerWatch {
    pub(super) fn new(line: Arc<Line>, number: u64, prefix: &str, revision: u64) -> Self {
        let (prefix, events) = (prefix.into(), VecDeque::new());
        Self { line, number, prefix, revision, link: None, asked: None, events, lost: false }
    }

    fn ask(&mut self) {
        let options = &self.line.shared.options;
        let hold = options.watch_hold.min(options.call_timeout / 2).as_millis();
        let request = Request::Watch {
            watch: self.number,
            prefix: self.prefix.clone(),
            revision: self.revision,
            hold: u64::try_from(hold).unwrap_or(u64::MAX),
        };
        let (link, answer) = self.line.ask_on(self.link, &request);
        self.link = link;
        self.asked = Some(answer);
    }

    async fn change(&mut self) -> RowEvent {
        loop {
            if self.lost {
                return RowEvent::Lost;
            }
            if let Some(event) = self.events.pop_front() {
                self.lost = event == RowEvent::Lost;
                return event;
            }
            if self.asked.is_none() {
                self.ask();
            }
            let Some(asked) = &mut self.asked else { continue };
            let answer = asked.await;
            self.asked = None;
            match answer {
                Ok(Answer::Watch(events)) => self.events.extend(events),
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
        if self.link.is_some() {
            // Nobody waits for the answer; with its link the watch is gone anyhow.
            drop(self.line.ask_on(self.link, &Request::Unwatch(self.number)));
        }
    }
}
