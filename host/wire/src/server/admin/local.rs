//! Requests of clients that this process speaks for.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::{AdminOutput, AdminUpdate, frames, operation, unknown_request, update};
use crate::budget::Charge;
use crate::proto::admin_response::Response;
use crate::proto::{AdminRequest, AdminResponse, Problem};
use crate::server::{ClientInfo, Server, Service};

/// The response to a request, frame by frame.
#[derive(Debug)]
pub struct LocalAnswer {
    frames: VecDeque<AdminResponse>,
    updates: Option<mpsc::Receiver<Result<AdminUpdate, Problem>>>,
    /// What the frames count for.
    _charge: Arc<Charge>,
}

impl LocalAnswer {
    /// The only frame of a response that has one; `None` for other responses.
    pub fn single(&mut self) -> Option<AdminResponse> {
        let is_single = self.updates.is_none() && self.frames.len() == 1;
        if is_single { self.frames.pop_front() } else { None }
    }

    /// The next frame; `None` after the last one.
    pub async fn next(&mut self) -> Option<AdminResponse> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        let frame = update(self.updates.as_mut()?.recv().await);
        if !frame.more {
            self.updates = None;
        }
        frame.response.is_some().then_some(frame)
    }
}

impl<S: Service> Server<S> {
    /// Handles an administrative request of such a client, other than a deployment.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub async fn ask_locally(
        &self,
        client: &Arc<ClientInfo>,
        request: AdminRequest,
    ) -> Result<LocalAnswer, Problem> {
        let request = request.request.ok_or_else(unknown_request)?;
        let answer = self.service().handle_admin(client, operation(request)?).await?;
        let charge = client.account().charge(0);
        match answer {
            AdminOutput::Updates(updates) => {
                Ok(LocalAnswer { frames: VecDeque::new(), updates: Some(updates), _charge: charge })
            }
            answer => {
                let frames = VecDeque::from(frames(Ok(answer), usize::MAX));
                let size = frames.iter().map(|frame| prost::Message::encoded_len(frame) as u64);
                if let Err(full) = charge.try_charge_reply(size.sum()) {
                    return Err(full.problem("response dropped"));
                }
                if let Some(AdminResponse { response: Some(Response::Problem(problem)), .. }) =
                    frames.front()
                {
                    return Err(problem.clone());
                }
                Ok(LocalAnswer { frames, updates: None, _charge: charge })
            }
        }
    }
}
