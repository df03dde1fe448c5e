//! One session's stream.

use std::sync::Arc;

use bytes::Bytes;

use super::{Service, SessionInfo, Shared};
use crate::budget::Account;
use crate::check::{self, Refused};
use crate::error::Error;
use crate::flow::{self, Bound, Request, Traffic};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::{Envelope, Reply};

/// A client's messages: each frame is an envelope or a reply, told apart by its sequence.
struct Session<'a, S> {
    shared: &'a Shared<S>,
    info: &'a Arc<SessionInfo>,
}

impl<S: Service> Traffic for Session<'_, S> {
    type Frame = Reply;

    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), Refused> {
        let envelope = check::sent(frame, &self.info.id, &self.shared.limits)?;
        Ok((envelope.sequence, envelope))
    }

    fn encode(&self, _: u64, reply: Reply) -> Reply {
        reply
    }

    fn account(&self) -> &Arc<Account> {
        &self.info.peer.account
    }

    fn payer(&self, _: &Envelope) -> Option<Arc<Account>> {
        None
    }

    async fn deliver(&self, batch: &mut Vec<Request>) {
        self.shared.service.messages(self.info, batch).await;
    }
}

pub(super) async fn serve<S: Service>(
    shared: &Shared<S>,
    info: &Arc<SessionInfo>,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let bound = Bound {
        messages: shared.limits.session_messages,
        bytes: shared.limits.session_bytes,
        replies: true,
        reply: match info.peer.limits.max_frame {
            0 => u32::MAX,
            announced => announced,
        },
        setting: "max_frame",
        reply_deadline: shared.limits.reply_deadline,
    };
    flow::serve(&Session { shared, info }, &bound, &shared.stopping, reader, writer).await
}
