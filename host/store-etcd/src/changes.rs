//! Follows the changes of rows that any node makes, for the watches of this process.
//!
//! A watch ends with its connection, and says nothing when its member is cut off from the others. So the changes that
//! this process makes are expected in it: if one is missing for too long, another member is watched, from the last
//! revision on. If etcd has compacted that revision, all watches must list the rows again.

use std::sync::Arc;
use std::time::Duration;

use ostraca_store::change_history::ChangeHistory;
use ostraca_store::{RowEvent, StoreError};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::CallError;
use crate::health::Health;
use crate::layout::Layout;
use crate::members::Members;
use crate::options::Options;
use crate::proto::event::EventType;
use crate::proto::{RangeRequest, WatchCreateRequest, WatchResponse};

/// The pause before another member is watched.
const PAUSE: Duration = Duration::from_millis(100);

/// Changes of which more are to come.
#[derive(Default)]
struct Part {
    events: Vec<RowEvent>,
    /// The revision of the last one.
    last: u64,
}

/// Follows the changes after `last`.
pub(crate) struct Follower {
    pub(crate) options: Arc<Options>,
    pub(crate) members: Members,
    pub(crate) layout: Layout,
    pub(crate) health: Health,
    pub(crate) history: ChangeHistory,
    pub(crate) last: u64,
}

impl Follower {
    /// Follows until `open` is dropped.
    pub(crate) async fn run(mut self, mut open: watch::Receiver<()>) {
        let history = self.history.clone();
        let following = async {
            while self.health.check().is_ok() {
                match self.follow().await {
                    Ok(()) => {}
                    Err(CallError::Compacted) => self.skip().await,
                    Err(error) => {
                        let error = error.into_open_error();
                        tracing::debug!(%error, "cannot follow the changes of rows in etcd");
                    }
                }
                self.members.leave();
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = following => {}
            _ = open.changed() => {}
        }
        history.close();
    }

    /// Watches one member until it fails or falls behind.
    async fn follow(&mut self) -> Result<(), CallError> {
        let member = self.members.member().await.map_err(CallError::NotSent)?;
        let (key, range_end) = self.layout.range("");
        let start_revision = self.last.saturating_add(1).cast_signed();
        let create = WatchCreateRequest { key, range_end, start_revision, fragment: true };
        let mut watch = member.watch(create).await?;
        let (mut part, mut expected) = (Part::default(), 0);
        loop {
            match timeout(self.options.watch_timeout, watch.message()).await {
                Ok(Ok(Some(response))) => self.take(response, &mut part)?,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(status)) => {
                    return Err(CallError::from_status(&status, &self.options.prefix));
                }
                Err(_) if self.last < expected => {
                    return Err(CallError::InDoubt("the watch of this member fell behind".into()));
                }
                Err(_) => expected = self.health.changed(),
            }
        }
    }

    /// Takes the changes of a message. They are published when a revision is complete.
    fn take(&mut self, response: WatchResponse, part: &mut Part) -> Result<(), CallError> {
        if response.compact_revision > 0 {
            return Err(CallError::Compacted);
        }
        if response.canceled {
            return Err(CallError::InDoubt(format!(
                "the watch has ended: {}",
                response.cancel_reason
            )));
        }
        for event in &response.events {
            let Some(stored) = &event.kv else { continue };
            let change = match event.r#type() {
                EventType::Put => self.layout.decode(stored).map(|(row, _)| RowEvent::Set(row)),
                EventType::Delete => {
                    let revision = stored.mod_revision.cast_unsigned();
                    self.layout.key_of(&stored.key).map(|key| RowEvent::Deleted { key, revision })
                }
            };
            // Whoever watches this row then reads it, and sees the same error.
            part.events.push(change.unwrap_or_else(|error: StoreError| {
                tracing::error!(%error, "a row cannot be read");
                RowEvent::ResyncRequired
            }));
            part.last = part.last.max(stored.mod_revision.cast_unsigned());
        }
        if response.fragment {
            // If the watch ends here, all of this revision comes again.
            return Ok(());
        }
        let Part { events, last } = std::mem::take(part);
        self.last = self.last.max(last);
        match events.contains(&RowEvent::ResyncRequired) {
            true => self.history.forget(self.last),
            false => self.history.publish(events),
        }
        Ok(())
    }

    /// Goes on from etcd's newest revision, since the changes before it are gone.
    async fn skip(&mut self) {
        let Ok(member) = self.members.member().await else { return };
        let known = self.health.seen();
        let request = RangeRequest { key: self.layout.store(), ..RangeRequest::default() };
        let Ok(answer) = member.range(request).await else { return };
        if let Ok(revision) = self.health.check_header(answer.header.as_ref(), known) {
            self.last = revision;
            self.history.forget(revision);
        }
    }
}
