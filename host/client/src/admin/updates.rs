//! Streamed responses.

use std::marker::PhantomData;

use ostraca_wire::framed::FrameReader;
use ostraca_wire::proto::admin_response::Response;
use ostraca_wire::proto::{BackupPart, DrainProgress, Events, PoolCopyProgress, RebalanceProgress};

use super::AdminError;
use super::exchange::{decode, other_question, too_early};

/// The kinds of updates that [`Updates`] can carry.
pub trait Update: Sized {
    #[doc(hidden)]
    fn of(response: Response) -> Option<Self>;
}

impl Update for DrainProgress {
    fn of(response: Response) -> Option<Self> {
        match response {
            Response::Drain(progress) => Some(progress),
            _ => None,
        }
    }
}

impl Update for RebalanceProgress {
    fn of(response: Response) -> Option<Self> {
        match response {
            Response::Rebalance(progress) => Some(progress),
            _ => None,
        }
    }
}

impl Update for Events {
    fn of(response: Response) -> Option<Self> {
        match response {
            Response::Events(events) => Some(events),
            _ => None,
        }
    }
}

impl Update for BackupPart {
    fn of(response: Response) -> Option<Self> {
        match response {
            Response::Backup(part) => Some(part),
            _ => None,
        }
    }
}

impl Update for PoolCopyProgress {
    fn of(response: Response) -> Option<Self> {
        match response {
            Response::PoolCopy(progress) => Some(progress),
            _ => None,
        }
    }
}

/// A streamed response. Dropping it does not cancel the operation.
pub struct Updates<T> {
    reader: FrameReader,
    ended: bool,
    what: PhantomData<fn() -> T>,
}

impl<T> Updates<T> {
    pub(super) fn new(reader: FrameReader) -> Self {
        Self { reader, ended: false, what: PhantomData }
    }
}

impl<T: Update> Updates<T> {
    /// Waits for the next update, without a timeout; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`AdminError`], after which nothing follows.
    pub async fn next(&mut self) -> Result<Option<T>, AdminError> {
        while !self.ended {
            let frame = self.reader.next().await.inspect_err(|_| self.ended = true)?;
            let Some(frame) = frame else {
                self.ended = true;
                return Err(too_early());
            };
            let frame = decode(frame).inspect_err(|_| self.ended = true)?;
            self.ended = !frame.more;
            match frame.response {
                Some(Response::Problem(problem)) => {
                    self.ended = true;
                    return Err(AdminError::Refused(Box::new(problem)));
                }
                Some(response) => {
                    let part = T::of(response);
                    self.ended |= part.is_none();
                    return part.map(Some).ok_or_else(other_question);
                }
                // The end, or an unknown response from a newer node.
                None => {}
            }
        }
        Ok(None)
    }
}
