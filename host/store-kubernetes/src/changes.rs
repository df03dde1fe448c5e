//! Follows the changes of rows that any node makes, for the watches of this process.
//!
//! A watch ends with its connection or at the server's time limit, and goes on from the last version that it showed.
//! It says nothing when its server is cut off from the others. So the changes that this process makes are expected in
//! it: if one is missing for too long, the watch is opened again. If the server no longer has the version, all watches
//! must list the rows again.
//!
//! Confusing at first: a row is deleted when its tombstone is written. The later deletion of the tombstone's object is
//! no change of the row.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use ostraca_store::RowEvent;
use ostraca_store::change_history::ChangeHistory;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::api::Api;
use crate::error::CallError;
use crate::health::Health;
use crate::layout::{Layout, Lease, revision};
use crate::options::Options;
use crate::worker::Uids;

/// The pause before the watch is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, unless the server asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a watch lasts. The server may end it earlier.
const WATCH: Duration = Duration::from_secs(300);
/// The largest event that is read.
const MAX_EVENT: usize = 1 << 20;

/// An event of a watch.
#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Follows the changes after `last`.
pub(crate) struct Follower {
    pub(crate) options: Arc<Options>,
    pub(crate) api: Api,
    pub(crate) layout: Layout,
    pub(crate) health: Health,
    pub(crate) uids: Uids,
    pub(crate) history: ChangeHistory,
    pub(crate) last: u64,
}

impl Follower {
    /// Follows until `open` is dropped.
    pub(crate) async fn run(mut self, mut open: watch::Receiver<()>) {
        let history = self.history.clone();
        let following = async {
            let mut pause = PAUSE;
            while self.health.check().is_ok() {
                let before = self.last;
                let asked = match self.follow().await {
                    Ok(()) => None,
                    Err(CallError::Expired) => {
                        self.skip().await;
                        None
                    }
                    Err(error) => {
                        let asked = match &error {
                            CallError::NotSent(_, asked) | CallError::InDoubt(_, asked) => *asked,
                            _ => None,
                        };
                        let error = error.into_open_error();
                        tracing::debug!(%error, "cannot follow the changes of rows in Kubernetes");
                        asked
                    }
                };
                pause = if self.last > before { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                sleep(pause.max(asked.unwrap_or_default())).await;
            }
        };
        tokio::select! {
            () = following => {}
            _ = open.changed() => {}
        }
        history.close();
    }

    /// Watches until the connection ends or falls behind.
    async fn follow(&mut self) -> Result<(), CallError> {
        let mut body = self.api.watch(&self.layout.selector(""), self.last, WATCH).await?;
        let (mut bytes, mut expected) = (BytesMut::new(), 0);
        loop {
            match timeout(self.options.watch_timeout, next(&mut body, &mut bytes)).await {
                Ok(Ok(true)) => self.take_all(&mut bytes)?,
                Ok(Ok(false)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) if self.last < expected => {
                    return Err(CallError::InDoubt("the watch fell behind".into(), None));
                }
                Err(_) => expected = self.health.changed(),
            }
        }
    }

    /// Takes the events that have arrived whole.
    fn take_all(&mut self, bytes: &mut BytesMut) -> Result<(), CallError> {
        let mut events = serde_json::Deserializer::from_slice(bytes).into_iter::<Event<'_>>();
        let mut changes = Vec::new();
        let mut taken = 0;
        let mut failed = None;
        while let Some(event) = events.next() {
            match event.map(|event| self.take(&event)) {
                Ok(Ok(change)) => changes.extend(change),
                Ok(Err(error)) => failed = Some(error),
                Err(error) if error.is_eof() => break,
                Err(error) => {
                    failed = Some(CallError::InDoubt(
                        format!("the watch cannot be read: {error}"),
                        None,
                    ));
                }
            }
            if failed.is_some() {
                break;
            }
            taken = events.byte_offset();
        }
        drop(bytes.split_to(taken));
        match changes.contains(&RowEvent::ResyncRequired) {
            true => self.history.forget(self.last),
            false => self.history.publish(changes),
        }
        match failed {
            Some(error) => Err(error),
            None if bytes.len() > MAX_EVENT => {
                Err(CallError::InDoubt(format!("an event has more than {MAX_EVENT} bytes"), None))
            }
            None => Ok(()),
        }
    }

    /// The change of a row in an event, if there is one.
    fn take(&mut self, event: &Event<'_>) -> Result<Option<RowEvent>, CallError> {
        if event.r#type == "ERROR" {
            return Err(self.api.watch_failure(event.object));
        }
        let unreadable =
            |why: String| CallError::InDoubt(format!("the watch cannot be read: {why}"), None);
        let object: Lease = serde_json::from_str(event.object.get())
            .map_err(|error| unreadable(error.to_string()))?;
        let at = revision(&object.metadata.resource_version)
            .ok_or_else(|| unreadable("an object has no version".into()))?;
        // An event that was shown already, or a bookmark of an old version, shows nothing new.
        if at <= self.last {
            return Ok(None);
        }
        self.last = at;
        let decoded = match event.r#type {
            "ADDED" | "MODIFIED" | "DELETED" => self.layout.decode(&object),
            // All changes up to the version of a bookmark have been shown.
            _ => return Ok(None),
        };
        // Whoever watches this row then reads it, and sees the same error.
        let Ok(object) =
            decoded.inspect_err(|error| tracing::error!(%error, "a row cannot be read"))
        else {
            return Ok(Some(RowEvent::ResyncRequired));
        };
        let deleted = event.r#type == "DELETED";
        if !deleted {
            self.uids.note(&object);
        }
        Ok(match (object.row(), deleted) {
            (Some(row), false) => Some(RowEvent::Set(row)),
            (None, true) => None,
            // Somebody else deleted the object of a row, or its tombstone was written.
            (Some(_), true) | (None, false) => {
                Some(RowEvent::Deleted { key: object.key, revision: at })
            }
        })
    }

    /// Goes on from the newest version, since the changes before it are gone.
    async fn skip(&mut self) {
        let known = self.health.seen();
        let Ok((_, revision)) = self.api.read(&self.layout.store()).await else { return };
        if let Ok(revision) = self.health.check_version(revision, known) {
            self.last = revision;
            self.history.forget(revision);
        }
    }
}

/// Reads more of the stream. `false`: it has ended.
async fn next(body: &mut Incoming, bytes: &mut BytesMut) -> Result<bool, CallError> {
    match body.frame().await {
        None => Ok(false),
        Some(Err(error)) => Err(CallError::InDoubt(crate::error::chain(&error), None)),
        Some(Ok(frame)) => {
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            Ok(true)
        }
    }
}
