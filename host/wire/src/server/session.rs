//! One session's stream.

use std::sync::Arc;

use bytes::Bytes;

use super::{Inner, Service, SessionInfo};
use crate::budget::Account;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::message_stream::{self, IncomingMessage, StreamHandler, StreamLimits};
use crate::proto::{Envelope, Reply};
use crate::validate::{self, InvalidFrame};

/// A client's messages: each frame is an envelope or a reply, and the two are correlated by sequence.
struct SessionStream<'a, S> {
    shared: &'a Inner<S>,
    info: &'a Arc<SessionInfo>,
}

impl<S: Service> StreamHandler for SessionStream<'_, S> {
    type Frame = Reply;

    fn decode(&self, frame: &Bytes) -> Result<(u64, Envelope), InvalidFrame> {
        let envelope = validate::decode_client_message(
            frame,
            &self.info.client_session_id,
            &self.shared.limits,
        )?;
        Ok((envelope.sequence, envelope))
    }

    fn encode(&self, _: u64, reply: Reply) -> Reply {
        reply
    }

    fn account(&self) -> &Arc<Account> {
        &self.info.client.account
    }

    fn account_for(&self, _: &Envelope) -> Option<Arc<Account>> {
        None
    }

    async fn deliver(&self, batch: &mut Vec<IncomingMessage>) {
        self.shared.service.handle_messages(self.info, batch).await;
    }
}

pub(super) async fn serve<S: Service>(
    shared: &Inner<S>,
    info: &Arc<SessionInfo>,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let bound = StreamLimits {
        messages: shared.limits.session_in_flight_messages,
        bytes: shared.limits.session_in_flight_bytes,
        count_replies: true,
        max_reply_bytes: match info.client.limits.max_frame {
            0 => u32::MAX,
            announced => announced,
        },
        setting: "max_frame",
        reply_timeout: shared.limits.reply_timeout,
    };
    message_stream::serve(&SessionStream { shared, info }, &bound, &shared.stopping, reader, writer)
        .await
}
