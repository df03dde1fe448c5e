//! Requests that are no messages: one a stream.
//!
//! Two kinds of answer are easy to confuse. Most are whole when they begin, and are cut into frames
//! here. Those that grow ([`AdminAnswer::Growing`]) are sent as they come, until the service drops its
//! end, the client wants no more, or the node stops: none of that ends what was asked for, only its telling.

mod upload;

use std::sync::Arc;

use prost::Message;
use tokio::sync::mpsc;

use super::{ClientInfo, Inner, Service, stopping};
use crate::budget::LimitReached;
use crate::close_code::CloseCode;
use crate::error::{Error, problem, within};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::admin_request::Request;
use crate::proto::admin_response::Response;
use crate::proto::{self, AdminRequest, AdminResponse, Problem};
use upload::receive;
pub use upload::{Upload, UploadPermit};

/// Deployments, shards or moves a frame.
const PAGE: usize = 256;
/// Parts of a growing answer that wait to be sent: a client that reads slowly slows its own answer.
const GROWING: usize = 16;
/// Entities a page unless told.
const ENTITIES: u32 = 100;
/// Entities a page at most.
const MAX_ENTITIES: u32 = 1_000;
/// Bytes of a type's name.
const TYPE: usize = 255;
/// Bytes of an entity id.
const ID: usize = 512;
/// Settings of one request, and bytes of a name or value.
const SETTINGS: usize = 16;
const SETTING: usize = 64;
/// Bytes of a node's name.
const NODE: usize = 64;

/// What is asked.
#[derive(Debug)]
pub enum AdminOperation {
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
    /// Which nodes are there, and how do they stand?
    Nodes,
    /// Who owns which shard?
    Shards,
    /// One page of entities; `limit` is 1 to 1,000.
    Entities(proto::EntitiesRequest),
    /// How does this entity do?
    Inspect(proto::InspectRequest),
    /// Hand over a node's shards, or let it have some again.
    Drain {
        /// Which.
        node: String,
        /// No longer.
        undo: bool,
    },
    /// This node is gone for good.
    Forget {
        /// Which.
        node: String,
    },
    /// What holds for all nodes, changed or only shown?
    Cluster(proto::ClusterConfigRequest),
    /// Which shards would a rebalance move?
    RebalancePlan,
    /// Rebalance now.
    Rebalance,
    /// What happened?
    Events(proto::EventsRequest),
}

/// What is answered.
#[derive(Debug)]
pub enum AdminOutput {
    /// To a deploy.
    Deployed(proto::DeployResult),
    /// All of them; they are sent in pages.
    Deployments(Vec<proto::Deployment>),
    /// A type's methods.
    Methods(proto::Methods),
    /// How the node does.
    Status(Box<proto::Status>),
    /// What it is.
    Node(proto::NodeInfo),
    /// All nodes.
    Nodes(proto::Nodes),
    /// All shards; they are sent in pages.
    Shards(Vec<proto::ShardInfo>),
    /// One page.
    Entities(proto::Entities),
    /// One entity.
    Entity(Box<proto::EntityDetail>),
    /// What would be moved; sent in pages.
    RebalancePlan(proto::RebalancePlan),
    /// A node that was gone.
    Forgotten(proto::ForgetResult),
    /// What holds for all nodes.
    Cluster(proto::ClusterConfig),
    /// To a drain, a rebalance and events: what comes until the sender is dropped. See [`growing`].
    Updates(mpsc::Receiver<Result<AdminUpdate, Problem>>),
}

/// A part of an answer that grows.
#[derive(Clone, Debug, PartialEq)]
pub enum AdminUpdate {
    /// Of a drain.
    Drain(proto::DrainProgress),
    /// Of a rebalance.
    Rebalance(proto::RebalanceProgress),
    /// Of events.
    Events(proto::Events),
}

/// Both ends of an answer that grows: parts are sent as they come, a problem ends it. The sender finds
/// itself [closed](mpsc::Sender::closed) when nobody listens any more.
#[must_use]
pub fn update_channel() -> (mpsc::Sender<Result<AdminUpdate, Problem>>, AdminOutput) {
    let (sender, receiver) = mpsc::channel(GROWING);
    (sender, AdminOutput::Updates(receiver))
}

pub(super) async fn serve<S: Service>(
    shared: &Inner<S>,
    peer: &Arc<ClientInfo>,
    request: AdminRequest,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    let admin = match request.request {
        Some(Request::Deploy(deploy)) => {
            match shared.budgets.wait_for_upload_permit(&peer.account).await {
                Ok(place) => {
                    let place = UploadPermit::taken(place);
                    receive(&shared.limits, deploy, place, reader)
                        .await?
                        .map(AdminOperation::Deploy)
                }
                Err(LimitReached { setting, limit: most }) => {
                    let text = format!("{most} other deploys are being received (`{setting}`)");
                    let mut busy = problem("overloaded", text);
                    busy.help = "send it again when they are done".into();
                    busy.retryable = true;
                    busy.details.insert("setting".into(), setting.into());
                    Err(busy)
                }
            }
        }
        Some(Request::Deployments(_)) => Ok(AdminOperation::Deployments),
        Some(Request::Methods(request)) => methods(request),
        Some(Request::Status(_)) => Ok(AdminOperation::Status),
        Some(Request::Node(_)) => Ok(AdminOperation::Node),
        Some(Request::Nodes(_)) => Ok(AdminOperation::Nodes),
        Some(Request::Shards(_)) => Ok(AdminOperation::Shards),
        Some(Request::Entities(request)) => entities(request),
        Some(Request::Inspect(request)) => inspect(request),
        Some(Request::Drain(request)) => drain(request),
        Some(Request::Forget(request)) => {
            node_name(request.node).map(|node| AdminOperation::Forget { node })
        }
        Some(Request::Cluster(request)) => cluster(request),
        Some(Request::Rebalance(request)) if request.dry_run => Ok(AdminOperation::RebalancePlan),
        Some(Request::Rebalance(_)) => Ok(AdminOperation::Rebalance),
        Some(Request::Events(request)) => Ok(AdminOperation::Events(request)),
        None => Err(problem("unknown-request", "the node does not know this request")),
    };
    let answer = match admin {
        // Nobody compiles for a client that has gone; deploys are idempotent.
        Ok(admin @ AdminOperation::Deploy(_)) => tokio::select! {
            () = writer.unwanted() => return Ok(()),
            answer = shared.service.handle_admin(peer, admin) => answer,
        },
        Ok(admin) => shared.service.handle_admin(peer, admin).await,
        Err(problem) => Err(problem),
    };
    let most = match peer.limits.max_frame {
        0 => usize::MAX,
        announced => announced as usize,
    };
    let frames = match answer {
        Ok(AdminOutput::Updates(parts)) => {
            grow(shared, parts, most, reader, writer).await?;
            return Ok(());
        }
        answer => frames(answer, most),
    };
    // Charged until the last of it was handed to QUIC.
    let charge = peer.account.charge(0);
    let size = frames.iter().map(|frame| frame.encoded_len() as u64).sum();
    let frames = match charge.try_charge_reply(size) {
        Ok(()) => frames,
        Err(full) => one(Response::Problem(full.problem("the answer was given up"))),
    };
    for frame in frames {
        writer.put(&frame);
        writer.flush_within(shared.limits.reply_timeout).await?;
    }
    writer.finish();
    reader.stop(CloseCode::Done);
    Ok(())
}

fn one(response: Response) -> Vec<AdminResponse> {
    vec![AdminResponse { more: false, response: Some(response) }]
}

fn invalid_request(text: String) -> Problem {
    problem("invalid-request", text)
}

fn methods(request: proto::MethodsRequest) -> Result<AdminOperation, Problem> {
    match request.r#type.len() {
        1..=TYPE => Ok(AdminOperation::Methods(request.r#type)),
        bytes => Err(invalid_request(format!("a type of {bytes} bytes: 1 to {TYPE}"))),
    }
}

fn entities(mut request: proto::EntitiesRequest) -> Result<AdminOperation, Problem> {
    if request.r#type.len() > TYPE {
        return Err(invalid_request(format!(
            "a type of {} bytes: {TYPE} at most",
            request.r#type.len()
        )));
    }
    request.limit = match request.limit {
        0 => ENTITIES,
        limit => limit.min(MAX_ENTITIES),
    };
    Ok(AdminOperation::Entities(request))
}

fn inspect(request: proto::InspectRequest) -> Result<AdminOperation, Problem> {
    let (kind, id) = (request.r#type.len(), request.id.len());
    if !(1..=TYPE).contains(&kind) || !(1..=ID).contains(&id) {
        let text = format!("a type of {kind} bytes and an id of {id}: 1 to {TYPE}, and 1 to {ID}");
        return Err(invalid_request(text));
    }
    Ok(AdminOperation::Inspect(request))
}

fn drain(request: proto::DrainRequest) -> Result<AdminOperation, Problem> {
    let proto::DrainRequest { node, undo } = request;
    Ok(AdminOperation::Drain { node: node_name(node)?, undo })
}

fn cluster(request: proto::ClusterConfigRequest) -> Result<AdminOperation, Problem> {
    let long = |it: &proto::ClusterSetting| it.name.len() > SETTING || it.value.len() > SETTING;
    if request.changes.len() > SETTINGS || request.changes.iter().any(long) {
        let text = format!("more than {SETTINGS} settings, or one of more than {SETTING} bytes");
        return Err(invalid_request(text));
    }
    Ok(AdminOperation::Cluster(request))
}

fn node_name(node: String) -> Result<String, Problem> {
    match node.len() {
        1..=NODE => Ok(node),
        bytes => Err(invalid_request(format!("a node's name of {bytes} bytes: 1 to {NODE}"))),
    }
}

/// Sends an answer that grows.
async fn grow<S>(
    shared: &Inner<S>,
    mut parts: mpsc::Receiver<Result<AdminUpdate, Problem>>,
    most: usize,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
    loop {
        let part = tokio::select! {
            () = shared.stopping.cancelled() => return Err(stopping()),
            () = writer.taken() => return Ok(()),
            part = parts.recv() => part,
        };
        let response = part.map(|part| match part {
            Ok(AdminUpdate::Drain(progress)) => Response::Drain(progress),
            Ok(AdminUpdate::Rebalance(progress)) => Response::Rebalance(progress),
            Ok(AdminUpdate::Events(events)) => Response::Events(events),
            Err(problem) => Response::Problem(problem),
        });
        let more = !matches!(response, None | Some(Response::Problem(_)));
        let frame = fitting(AdminResponse { more, response }, most);
        let last = !frame.more;
        writer.put(&frame);
        // A client that does not read must not keep the node from stopping.
        tokio::select! {
            () = shared.stopping.cancelled() => return Err(stopping()),
            flushed = writer.flush_within(shared.limits.reply_timeout) => flushed?,
        }
        if last {
            writer.finish();
            reader.stop(CloseCode::Done);
            return Ok(());
        }
    }
}

/// The frame, if the client takes one of its size; else a refusal that it takes.
fn fitting(frame: AdminResponse, most: usize) -> AdminResponse {
    let bytes = frame.encoded_len();
    if bytes <= most {
        return frame;
    }
    let told = match frame.response {
        Some(Response::Problem(told)) => told,
        _ => {
            let text = format!("an answer of {bytes} bytes: the client takes {most} (`max_frame`)");
            problem("reply-too-large", text)
        }
    };
    // The heads of response and problem.
    let told = within(told, most.saturating_sub(16));
    AdminResponse { more: false, response: Some(Response::Problem(told)) }
}

/// Parts of a long list, a frame each; an empty one has one, too. They are as small as the client wants them.
fn pages<T: Clone>(
    all: &[T],
    most: usize,
    page: impl Fn(Vec<T>) -> Response,
) -> Vec<AdminResponse> {
    let mut of = PAGE;
    loop {
        let count = all.len().div_ceil(of).max(1);
        let frames: Vec<_> = (0..count)
            .map(|at| {
                let part = all.iter().skip(at * of).take(of).cloned().collect();
                AdminResponse { more: at + 1 < count, response: Some(page(part)) }
            })
            .collect();
        if of == 1 || frames.iter().all(|frame| frame.encoded_len() <= most) {
            return frames;
        }
        of /= 2;
    }
}

/// The answer's frames. One that is too large for the client ends them with a refusal.
fn frames(answer: Result<AdminOutput, Problem>, most: usize) -> Vec<AdminResponse> {
    let mut frames: Vec<_> =
        to_frames(answer, most).into_iter().map(|frame| fitting(frame, most)).collect();
    let end = frames.iter().position(|frame| !frame.more).map_or(frames.len(), |at| at + 1);
    frames.truncate(end);
    frames
}

fn to_frames(answer: Result<AdminOutput, Problem>, most: usize) -> Vec<AdminResponse> {
    match answer {
        Err(problem) => one(Response::Problem(problem)),
        Ok(AdminOutput::Deployed(deployed)) => one(Response::Deployed(deployed)),
        Ok(AdminOutput::Methods(methods)) => one(Response::Methods(methods)),
        Ok(AdminOutput::Status(status)) => one(Response::Status(*status)),
        Ok(AdminOutput::Node(node)) => one(Response::Node(node)),
        Ok(AdminOutput::Nodes(nodes)) => one(Response::Nodes(nodes)),
        Ok(AdminOutput::Entities(page)) => one(Response::Entities(page)),
        Ok(AdminOutput::Entity(entity)) => one(Response::Entity(*entity)),
        Ok(AdminOutput::Forgotten(forgotten)) => one(Response::Forgotten(forgotten)),
        Ok(AdminOutput::Cluster(state)) => one(Response::Cluster(state)),
        Ok(AdminOutput::Deployments(all)) => pages(&all, most, |deployments| {
            Response::Deployments(proto::Deployments { deployments })
        }),
        Ok(AdminOutput::Shards(all)) => {
            pages(&all, most, |shards| Response::Shards(proto::Shards { shards }))
        }
        Ok(AdminOutput::RebalancePlan(proto::RebalancePlan { moves, blocked_reason: held_up })) => {
            pages(&moves, most, |moves| {
                Response::Plan(proto::RebalancePlan { moves, blocked_reason: held_up.clone() })
            })
        }
        // Sent as it grows.
        Ok(AdminOutput::Updates(_)) => Vec::new(),
    }
}
