//! Requests that are no messages: one a stream.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::{Peer, Service, Shared};
use crate::code::Code;
use crate::error::{Error, problem};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::admin_request::Request;
use crate::proto::admin_response::Response;
use crate::proto::{self, AdminRequest, AdminResponse, Chunk, Problem};

/// Deployments a frame.
const PAGE: usize = 256;

/// What is asked.
#[derive(Debug)]
pub enum Admin {
    /// Deploy this.
    Deploy(Upload),
    /// Which deployments stand?
    Deployments,
    /// Which methods has this type?
    Methods(String),
    /// How does the node do?
    Status,
    /// What is it?
    Node,
}

/// A deployment that has come whole; the component's digest has been checked.
#[derive(Debug)]
pub struct Upload {
    /// The manifest's text.
    pub manifest: String,
    /// The component.
    pub component: Bytes,
    /// Its BLAKE3.
    pub digest: [u8; 32],
    /// The revision that must stand; 0 for none yet, `None` for whichever.
    pub expected_revision: Option<u64>,
}

/// What is answered.
#[derive(Debug)]
pub enum AdminAnswer {
    /// To a deploy.
    Deployed(proto::Deployed),
    /// All of them; they are sent in pages.
    Deployments(Vec<proto::Deployment>),
    /// A type's methods.
    Methods(proto::Methods),
    /// How the node does.
    Status(Box<proto::Status>),
    /// What it is.
    Node(proto::NodeInfo),
}

pub(super) async fn serve<S: Service>(
    shared: &Shared<S>,
    peer: &Arc<Peer>,
    request: AdminRequest,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let answer = match request.request {
        Some(Request::Deploy(deploy)) => match shared.uploads.try_acquire() {
            Ok(_permit) => match receive(shared.limits.max_component, deploy, reader).await? {
                Ok(upload) => shared.service.admin(peer, Admin::Deploy(upload)).await,
                Err(problem) => Err(problem),
            },
            Err(_) => {
                let mut busy = problem("overloaded", "other deploys are being received");
                busy.retryable = true;
                busy.details.insert("setting".into(), "max_uploads".into());
                Err(busy)
            }
        },
        Some(Request::Deployments(_)) => shared.service.admin(peer, Admin::Deployments).await,
        Some(Request::Methods(request)) => {
            shared.service.admin(peer, Admin::Methods(request.r#type)).await
        }
        Some(Request::Status(_)) => shared.service.admin(peer, Admin::Status).await,
        Some(Request::Node(_)) => shared.service.admin(peer, Admin::Node).await,
        None => Err(problem("unknown-request", "the node does not know this request")),
    };
    for frame in frames(answer) {
        writer.put(&frame);
        writer.flush().await?;
    }
    writer.finish();
    reader.stop(Code::Done);
    Ok(())
}

fn frames(answer: Result<AdminAnswer, Problem>) -> Vec<AdminResponse> {
    let one = |response| vec![AdminResponse { more: false, response: Some(response) }];
    match answer {
        Err(problem) => one(Response::Problem(problem)),
        Ok(AdminAnswer::Deployed(deployed)) => one(Response::Deployed(deployed)),
        Ok(AdminAnswer::Methods(methods)) => one(Response::Methods(methods)),
        Ok(AdminAnswer::Status(status)) => one(Response::Status(*status)),
        Ok(AdminAnswer::Node(node)) => one(Response::Node(node)),
        Ok(AdminAnswer::Deployments(all)) => {
            let mut pages: Vec<AdminResponse> = all
                .chunks(PAGE)
                .map(|page| proto::Deployments { deployments: page.to_vec() })
                .map(|page| AdminResponse { more: true, response: Some(page.into()) })
                .collect();
            match pages.last_mut() {
                Some(last) => last.more = false,
                None => pages.extend(one(proto::Deployments::default().into())),
            }
            pages
        }
    }
}

impl From<proto::Deployments> for Response {
    fn from(page: proto::Deployments) -> Self {
        Self::Deployments(page)
    }
}

/// Receives the component. What is announced is checked, what has come is kept: no more.
async fn receive(
    most: u64,
    deploy: proto::Deploy,
    reader: &mut FrameReader,
) -> Result<Result<Upload, Problem>, Error> {
    let size = deploy.component_size;
    if size > most {
        let text = format!("a component of {size} bytes: {most} are allowed (`max_component`)");
        let mut large = problem("component-too-large", text);
        large.details.insert("setting".into(), "max_component".into());
        large.details.insert("limit".into(), most.to_string());
        return Ok(Err(large));
    }
    let Ok(digest) = <[u8; 32]>::try_from(&deploy.digest[..]) else {
        let text = format!("a digest of {} bytes: BLAKE3 has 32", deploy.digest.len());
        return Ok(Err(problem("bad-digest", text)));
    };
    let mut component = BytesMut::new();
    while (component.len() as u64) < size {
        let Some(frame) = reader.next().await? else {
            return Err(Error::violation(Code::HalfFrame, "the stream ended within a component"));
        };
        let chunk = Chunk::decode(frame)
            .map_err(|e| Error::violation(Code::BadFrame, format!("unreadable chunk: {e}")))?;
        if chunk.data.is_empty() || (component.len() + chunk.data.len()) as u64 > size {
            return Err(Error::violation(
                Code::UnexpectedFrame,
                "an empty chunk, or one beyond the announced size",
            ));
        }
        component.extend_from_slice(&chunk.data);
    }
    let component = component.freeze();
    if blake3::hash(&component) != blake3::Hash::from_bytes(digest) {
        return Ok(Err(problem("bad-digest", "the component has another digest than announced")));
    }
    let (manifest, expected_revision) = (deploy.manifest, deploy.expected_revision);
    Ok(Ok(Upload { manifest, component, digest, expected_revision }))
}
