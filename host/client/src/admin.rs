//! Requests that are no messages. Each goes once, on a stream of its own; a caller may repeat it, since
//! all of them are idempotent.

use std::time::Duration;

use bytes::Bytes;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::admin_request::Request;
use ostraca_wire::proto::admin_response::Response;
use ostraca_wire::proto::{
    AdminRequest, AdminResponse, Chunk, Deploy, Deployed, Deployment, DeploymentsRequest, Methods,
    MethodsRequest, NodeInfo, NodeRequest, Problem, Status, StatusRequest,
};
use ostraca_wire::{Error, problem};
use prost::Message as _;
use tokio::time::timeout;

use crate::connect::Client;

/// Bytes of a component in one frame.
const CHUNK: usize = 256 << 10;
/// For everything but a deploy.
const PATIENCE: Duration = Duration::from_secs(10);
/// For a deploy: the upload, and the compilation on the node.
const DEPLOY_PATIENCE: Duration = Duration::from_secs(120);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The node answered with a problem.
    #[error("{}: {}", .0.code, .0.message)]
    Refused(Box<Problem>),
    /// The connection broke, or there was none in time. A deploy may have been done; deploying the
    /// same again is safe.
    #[error("{0}")]
    Connection(String),
}

impl AdminError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(problem) => &problem.code,
            Self::Connection(_) => "connection-lost",
        }
    }
}

impl From<Error> for AdminError {
    fn from(error: Error) -> Self {
        Self::Connection(error.to_string())
    }
}

impl Client {
    /// Deploys a component with its manifest. With `expected_revision`, only if that one stands (0:
    /// none yet). Idempotent by the component's digest.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deploy(
        &self,
        manifest: &str,
        component: Bytes,
        expected_revision: Option<u64>,
    ) -> Result<Deployed, AdminError> {
        let digest = blake3::hash(&component);
        let request = Request::Deploy(Deploy {
            manifest: manifest.into(),
            component_size: component.len() as u64,
            digest: Bytes::copy_from_slice(digest.as_bytes()),
            expected_revision,
        });
        match self.ask(request, component, DEPLOY_PATIENCE).await?.pop() {
            Some(Response::Deployed(deployed)) => Ok(deployed),
            other => Err(unexpected(other)),
        }
    }

    /// The deployments that stand.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deployments(&self) -> Result<Vec<Deployment>, AdminError> {
        let request = Request::Deployments(DeploymentsRequest {});
        let mut all = Vec::new();
        for page in self.ask(request, Bytes::new(), PATIENCE).await? {
            match page {
                Response::Deployments(page) => all.extend(page.deployments),
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// A type's methods.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn methods(&self, kind: &str) -> Result<Methods, AdminError> {
        let request = Request::Methods(MethodsRequest { r#type: kind.into() });
        match self.ask(request, Bytes::new(), PATIENCE).await?.pop() {
            Some(Response::Methods(methods)) => Ok(methods),
            other => Err(unexpected(other)),
        }
    }

    /// How the node does that the client is connected to.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn status(&self) -> Result<Status, AdminError> {
        let request = Request::Status(StatusRequest {});
        match self.ask(request, Bytes::new(), PATIENCE).await?.pop() {
            Some(Response::Status(status)) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// What the node is that the client is connected to.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn node(&self) -> Result<NodeInfo, AdminError> {
        match self.ask(Request::Node(NodeRequest {}), Bytes::new(), PATIENCE).await?.pop() {
            Some(Response::Node(node)) => Ok(node),
            other => Err(unexpected(other)),
        }
    }

    async fn ask(
        &self,
        request: Request,
        component: Bytes,
        patience: Duration,
    ) -> Result<Vec<Response>, AdminError> {
        match timeout(patience, self.exchange(request, component)).await {
            Ok(done) => done,
            Err(_) => {
                let last = self.links.borrow().last.clone();
                let last = last.map(|last| format!(" ({last})")).unwrap_or_default();
                Err(AdminError::Connection(format!("no answer within {patience:?}{last}")))
            }
        }
    }

    async fn exchange(
        &self,
        request: Request,
        component: Bytes,
    ) -> Result<Vec<Response>, AdminError> {
        let mut links = self.links.clone();
        let link = match links.wait_for(|state| state.link.is_some()).await {
            Ok(state) => state.link.clone(),
            Err(_) => None,
        };
        let link = link.ok_or_else(|| AdminError::Connection("the client was closed".into()))?;
        let request = AdminRequest { request: Some(request) };
        let (mut writer, mut reader) = link.admin(request).await?;
        // A node that has answered already takes no more: what it says counts, not that it stopped us.
        let sent = upload(&mut writer, component).await;
        match receive(&mut reader).await {
            Err(AdminError::Connection(lost)) => match sent {
                Err(error) => Err(error.into()),
                Ok(()) => Err(AdminError::Connection(lost)),
            },
            answered => answered,
        }
    }
}

async fn upload(writer: &mut FrameWriter, mut component: Bytes) -> Result<(), Error> {
    writer.flush().await?;
    while !component.is_empty() {
        let data = component.split_to(CHUNK.min(component.len()));
        writer.put(&Chunk { data });
        writer.flush().await?;
    }
    writer.finish();
    Ok(())
}

async fn receive(reader: &mut FrameReader) -> Result<Vec<Response>, AdminError> {
    let mut responses = Vec::new();
    while let Some(frame) = reader.next().await? {
        let frame = AdminResponse::decode(frame)
            .map_err(|e| AdminError::Connection(format!("unreadable answer: {e}")))?;
        match frame.response {
            Some(Response::Problem(problem)) => return Err(AdminError::Refused(Box::new(problem))),
            Some(response) => responses.push(response),
            // Something newer than this client.
            None => {}
        }
        if !frame.more {
            return Ok(responses);
        }
    }
    Err(AdminError::Connection("the answer ended too early".into()))
}

fn unexpected(response: Option<Response>) -> AdminError {
    let text = match response {
        Some(_) => "the node answered another question",
        None => "the node answered with something that this client does not know",
    };
    AdminError::Refused(Box::new(problem("unexpected-answer", text)))
}
