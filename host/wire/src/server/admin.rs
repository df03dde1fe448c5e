//! Administrative requests: one per stream.
//!
//! There are two kinds of responses. Most are complete before the first frame is sent, and are split into frames here.
//! Streamed responses ([`AdminOutput::Updates`]) are sent as they are produced, until the service drops its
//! sender, the client stops reading, or the node stops. None of these events cancels the operation.

mod local;
mod upload;

use std::sync::Arc;

use ostraca_codes::codes;
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
pub use local::LocalAnswer;
use upload::receive;
pub use upload::{Upload, UploadPermit};

/// Maximum number of deployments, shards or moves per frame.
const PAGE: usize = 256;
/// Maximum number of queued updates: a client that reads slowly delays only its own response.
const GROWING: usize = 16;
/// Default number of entities or dead letters per page.
const ENTITIES: u32 = 100;
/// Maximum number of entities or dead letters per page.
const MAX_ENTITIES: u32 = 1_000;
/// Maximum length of a type's name in bytes.
const TYPE: usize = 255;
/// Maximum length of an entity id in bytes.
const ID: usize = 512;
/// Maximum number of settings in one request.
const SETTINGS: usize = 16;
const SETTING: usize = 64;
/// Maximum length of a node's name in bytes.
const NODE: usize = 64;
/// Maximum length of the name of a secret or a setting in bytes.
const VARIABLE: usize = 64;
/// Maximum size of the text of a secret or a setting in bytes.
const VARIABLE_BYTES: usize = 64 << 10;
/// Maximum length of the name of what is revoked, and of the reason, in bytes.
const SUBJECT: usize = 512;
/// Maximum size of certificates in PEM, in bytes.
const CERTIFICATES: usize = 32 << 10;

/// An administrative request.
#[derive(Debug)]
pub enum AdminOperation {
    /// Deploy a component.
    Deploy(Upload),
    /// Activate a stored revision of a type, or change the rollout of the current one.
    Activate(proto::ActivateRequest),
    /// List the deployments, or only this type with its live entities.
    Deployments(Option<String>),
    /// List the methods of this type.
    Methods(String),
    /// Report the health of the node.
    Status,
    /// Report the identity of the node.
    Node,
    /// List the nodes with their status.
    Nodes,
    /// List the shards with their owners.
    Shards(proto::ShardsRequest),
    /// List one page of entities; `limit` is 1 to 1,000.
    Entities(proto::EntitiesRequest),
    /// Show the state of one entity.
    Inspect(proto::InspectRequest),
    /// List one page of dead letters; `limit` is 1 to 1,000.
    DeadLetters(proto::DeadLettersRequest),
    /// Drain a node, or stop draining it.
    Drain {
        /// Name of the node.
        node: String,
        /// Whether to stop draining, so that the node may own shards again.
        undo: bool,
    },
    /// Mark a permanently lost node as removed.
    Forget {
        /// Name of the node.
        node: String,
    },
    /// Export one entity.
    Export(proto::ExportRequest),
    /// Read all that the node's store holds.
    Backup,
    /// Move a range of shards to another store of the state.
    MoveShards(proto::MoveShardsRequest),
    /// Undeploy a type of which nothing is left.
    Undeploy(proto::UndeployRequest),
    /// Show or change the cluster-wide settings.
    Cluster(proto::ClusterConfigRequest),
    /// Shows where shards are wanted, after these changes.
    Placement(proto::PlacementRequest),
    /// What each shard has done.
    ShardFigures,
    /// Lists the pools, perhaps after one is created.
    Pools(proto::PoolsRequest),
    /// Copies a pool to another one.
    PoolCopy(proto::PoolCopyRequest),
    /// Lists the namespaces, perhaps after one is created.
    Namespaces(proto::NamespacesRequest),
    /// Show or replace the policy.
    Policy(proto::PolicyRequest),
    /// Show what operators have asked for.
    Audit(proto::AuditRequest),
    /// Show or change the authorities and the nodes' certificates.
    Authorities(proto::AuthoritiesRequest),
    /// Show or change what is revoked.
    Revocations(proto::RevocationsRequest),
    /// Show or change a type's secrets and settings.
    Variables(proto::VariablesRequest),
    /// Show which shards a rebalance would move.
    RebalancePlan,
    /// Ask all live nodes what they have done.
    Figures,
    /// Show what the sender may do.
    WhoAmI,
    /// List the latest pauses of shards.
    Pauses,
    /// Rebalance now.
    Rebalance,
    /// Read the node's events.
    Events(proto::EventsRequest),
}

/// The response to an [`AdminOperation`].
#[derive(Debug)]
pub enum AdminOutput {
    /// Result of a deploy.
    Deployed(proto::DeployResult),
    /// All deployments; sent in pages.
    Deployments(Vec<proto::Deployment>),
    /// What a deployment would do.
    DryRun(Box<proto::DryRunResult>),
    /// A type's methods.
    Methods(proto::Methods),
    /// The node's health.
    Status(Box<proto::Status>),
    /// The node's identity.
    Node(proto::NodeInfo),
    /// All nodes.
    Nodes(proto::Nodes),
    /// All shards; sent in pages.
    Shards(Vec<proto::ShardInfo>),
    /// One page of entities.
    Entities(proto::Entities),
    /// One entity.
    Entity(Box<proto::EntityDetail>),
    /// One page of dead letters.
    DeadLetters(proto::DeadLetters),
    /// The moves of a rebalance; sent in pages.
    RebalancePlan(proto::RebalancePlan),
    /// One entity, to be imported elsewhere.
    Export(Box<proto::EntityExport>),
    /// Result of undeploying a type.
    Undeployed(proto::UndeployResult),
    /// How far a move of shards is.
    MoveShards(proto::MoveShardsProgress),
    /// Result of forgetting a node.
    Forgotten(proto::ForgetResult),
    /// The cluster-wide settings.
    Cluster(proto::ClusterConfig),
    /// Where shards are wanted.
    Placement(proto::PlacementState),
    /// What each shard has done.
    ShardFigures(proto::ShardStatistics),
    /// The pools.
    Pools(proto::Pools),
    /// The namespaces; sent in pages.
    Namespaces(Vec<proto::NamespaceInfo>),
    /// The policy in force.
    Policy(proto::PolicyState),
    /// What operators have asked for; sent in pages.
    Audit(Vec<proto::AuditEntry>),
    /// What all nodes have done; one frame for each.
    Figures(proto::Figures),
    /// What the sender may do.
    WhoAmI(proto::WhoAmI),
    /// The latest pauses of shards.
    Pauses(proto::Pauses),
    /// The authorities, and what the nodes present.
    Authorities(proto::Authorities),
    /// All that is revoked; sent in pages.
    Revocations(Vec<proto::Revocation>),
    /// A type's secrets, without their values, and settings; sent in pages.
    Variables(proto::Variables),
    /// The updates of a drain, a rebalance, events, a backup or a copy of a pool, until the sender is dropped. See [`update_channel`].
    Updates(mpsc::Receiver<Result<AdminUpdate, Problem>>),
}

/// One update of a streamed response.
#[derive(Clone, Debug, PartialEq)]
pub enum AdminUpdate {
    /// Progress of a drain.
    Drain(proto::DrainProgress),
    /// Progress of a rebalance.
    Rebalance(proto::RebalanceProgress),
    /// A batch of events.
    Events(proto::Events),
    /// A part of a backup.
    Backup(proto::BackupPart),
    /// Progress of a copy of a pool.
    PoolCopy(proto::PoolCopyProgress),
}

/// Both ends of a streamed response: updates are sent as they come, and a problem ends the response. The sender is
/// [closed](mpsc::Sender::closed) when the response is no longer being read.
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
            if let Err(problem) = shared.service.check_upload(peer, &deploy.manifest) {
                return answer_with(shared, peer, Err(problem), reader, writer).await;
            }
            match shared.budgets.wait_for_upload_permit(&peer.account).await {
                Ok(place) => {
                    let place = UploadPermit::taken(place);
                    receive(&shared.limits, deploy, place, reader)
                        .await?
                        .map(AdminOperation::Deploy)
                }
                Err(LimitReached { setting, limit: most }) => {
                    let text = format!("limit of {most} concurrent uploads reached (`{setting}`)");
                    let mut busy = problem(codes::OVERLOADED, text);
                    busy.help = "retry when they have finished".into();
                    busy.retryable = true;
                    busy.details.insert("setting".into(), setting.into());
                    Err(busy)
                }
            }
        }
        Some(request) => operation(request),
        None => Err(unknown_request()),
    };
    let answer = match admin {
        // Stop compiling for a client that has gone; deploys are idempotent.
        Ok(admin @ AdminOperation::Deploy(_)) => tokio::select! {
            () = writer.unwanted() => return Ok(()),
            answer = shared.service.handle_admin(peer, admin) => answer,
        },
        Ok(admin) => shared.service.handle_admin(peer, admin).await,
        Err(problem) => Err(problem),
    };
    answer_with(shared, peer, answer, reader, writer).await
}

/// A request, if it is valid. A deployment's component follows its request, so it is none of these.
fn operation(request: Request) -> Result<AdminOperation, Problem> {
    match request {
        Request::Deploy(_) => Err(unknown_request()),
        Request::Deployments(request) => {
            let kind = request.r#type;
            Ok(AdminOperation::Deployments((!kind.is_empty()).then_some(kind)))
        }
        Request::Activate(request) => activate(request),
        Request::Methods(request) => methods(request),
        Request::Status(_) => Ok(AdminOperation::Status),
        Request::Node(_) => Ok(AdminOperation::Node),
        Request::Nodes(_) => Ok(AdminOperation::Nodes),
        Request::Shards(request) => Ok(AdminOperation::Shards(request)),
        Request::Entities(request) => entities(request),
        Request::Inspect(request) => inspect(request),
        Request::DeadLetters(request) => dead_letters(request),
        Request::Drain(request) => drain(request),
        Request::Forget(request) => {
            node_name(request.node).map(|node| AdminOperation::Forget { node })
        }
        Request::Undeploy(request) => undeploy(request),
        Request::Export(request) => export(request),
        Request::Backup(_) => Ok(AdminOperation::Backup),
        Request::MoveShards(request) => Ok(AdminOperation::MoveShards(request)),
        Request::Cluster(request) => cluster(request),
        Request::Placement(request) => placement(request),
        Request::ShardFigures(_) => Ok(AdminOperation::ShardFigures),
        Request::Pools(request) => pools(request),
        Request::PoolCopy(request) => pool_copy(request),
        Request::Namespaces(request) => namespaces(request),
        Request::Policy(request) => Ok(AdminOperation::Policy(request)),
        Request::Revocations(request) => revocations(request),
        Request::Variables(request) => variables(request),
        Request::Audit(request) => Ok(AdminOperation::Audit(request)),
        Request::Figures(_) => Ok(AdminOperation::Figures),
        Request::WhoAmI(_) => Ok(AdminOperation::WhoAmI),
        Request::Pauses(_) => Ok(AdminOperation::Pauses),
        Request::Authorities(request) => authorities(request),
        Request::Rebalance(request) if request.dry_run => Ok(AdminOperation::RebalancePlan),
        Request::Rebalance(_) => Ok(AdminOperation::Rebalance),
        Request::Events(request) => Ok(AdminOperation::Events(request)),
    }
}

fn unknown_request() -> Problem {
    problem(codes::UNKNOWN_REQUEST, "the node does not support this request")
}

async fn answer_with<S: Service>(
    shared: &Inner<S>,
    peer: &Arc<ClientInfo>,
    answer: Result<AdminOutput, Problem>,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), Error> {
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
    // Charged until the last frame has been handed to QUIC.
    let charge = peer.account.charge(0);
    let size = frames.iter().map(|frame| frame.encoded_len() as u64).sum();
    let frames = match charge.try_charge_reply(size) {
        Ok(()) => frames,
        Err(full) => one(Response::Problem(full.problem("response dropped"))),
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
    problem(codes::INVALID_REQUEST, text)
}

fn methods(request: proto::MethodsRequest) -> Result<AdminOperation, Problem> {
    match request.r#type.len() {
        1..=TYPE => Ok(AdminOperation::Methods(request.r#type)),
        bytes => Err(invalid_request(format!("type is {bytes} bytes, must be 1 to {TYPE}"))),
    }
}

fn activate(request: proto::ActivateRequest) -> Result<AdminOperation, Problem> {
    match request.r#type.len() {
        1..=TYPE => match &request.rollout {
            Some(rollout) if rollout.per_mille() > 1_000 => Err(invalid_request(format!(
                "rollout is to {} entities out of 1,000",
                rollout.per_mille()
            ))),
            _ => Ok(AdminOperation::Activate(request)),
        },
        bytes => Err(invalid_request(format!("type is {bytes} bytes, must be 1 to {TYPE}"))),
    }
}

fn undeploy(request: proto::UndeployRequest) -> Result<AdminOperation, Problem> {
    match request.r#type.len() {
        1..=TYPE => Ok(AdminOperation::Undeploy(request)),
        bytes => Err(invalid_request(format!("type is {bytes} bytes, must be 1 to {TYPE}"))),
    }
}

fn entities(mut request: proto::EntitiesRequest) -> Result<AdminOperation, Problem> {
    if request.r#type.len() > TYPE {
        return Err(invalid_request(format!(
            "type is {} bytes, limit is {TYPE}",
            request.r#type.len()
        )));
    }
    request.limit = page_size(request.limit);
    Ok(AdminOperation::Entities(request))
}

fn page_size(limit: u32) -> u32 {
    match limit {
        0 => ENTITIES,
        limit => limit.min(MAX_ENTITIES),
    }
}

fn dead_letters(mut request: proto::DeadLettersRequest) -> Result<AdminOperation, Problem> {
    let (kind, id) = (request.r#type.len(), request.id.len());
    if kind > TYPE || id > ID {
        let text = format!("type is {kind} bytes and id is {id} bytes, limits are {TYPE} and {ID}");
        return Err(invalid_request(text));
    }
    if kind == 0 && (id > 0 || request.values) {
        return Err(invalid_request("`id` and `values` require a type".into()));
    }
    request.limit = page_size(request.limit);
    Ok(AdminOperation::DeadLetters(request))
}

fn inspect(request: proto::InspectRequest) -> Result<AdminOperation, Problem> {
    let (kind, id) = (request.r#type.len(), request.id.len());
    if !(1..=TYPE).contains(&kind) || !(1..=ID).contains(&id) {
        let text =
            format!("type is {kind} bytes and id is {id} bytes, must be 1 to {TYPE} and 1 to {ID}");
        return Err(invalid_request(text));
    }
    Ok(AdminOperation::Inspect(request))
}

fn export(request: proto::ExportRequest) -> Result<AdminOperation, Problem> {
    let (kind, id) = (request.r#type.len(), request.id.len());
    if !(1..=TYPE).contains(&kind) || !(1..=ID).contains(&id) {
        let text =
            format!("type is {kind} bytes and id is {id} bytes, must be 1 to {TYPE} and 1 to {ID}");
        return Err(invalid_request(text));
    }
    Ok(AdminOperation::Export(request))
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

/// Maximum number of pins, and of moves, in one request.
const MAX_PLACED: usize = 4_096;

fn placement(request: proto::PlacementRequest) -> Result<AdminOperation, Problem> {
    for (what, list) in [("pins", &request.pins), ("moves", &request.moves)] {
        if list.len() > MAX_PLACED {
            let text = format!("{} {what} in one request, at most {MAX_PLACED}", list.len());
            return Err(invalid_request(text));
        }
        if list.iter().any(|it| it.shard == 0) {
            return Err(invalid_request("shards are numbered from 1".into()));
        }
    }
    if request.moves.iter().any(|it| it.node.is_empty()) {
        return Err(invalid_request("a shard moves to a node: name one".into()));
    }
    Ok(AdminOperation::Placement(request))
}

fn namespaces(request: proto::NamespacesRequest) -> Result<AdminOperation, Problem> {
    if request.create.len() > SETTING {
        return Err(invalid_request(format!("the name is longer than {SETTING} bytes")));
    }
    if request.change_quotas.as_ref().is_some_and(|it| !(1..=SETTING).contains(&it.namespace.len()))
    {
        return Err(invalid_request(format!(
            "quotas are those of a namespace: name it, with at most {SETTING} bytes"
        )));
    }
    if request.change_quotas.is_some() && !request.create.is_empty() {
        return Err(invalid_request("create the namespace first, then set its quotas".into()));
    }
    Ok(AdminOperation::Namespaces(request))
}

fn pools(request: proto::PoolsRequest) -> Result<AdminOperation, Problem> {
    if let Some(new) = &request.create {
        let longest = [&new.name, &new.hash, &new.role, &new.strategy].map(String::len);
        if longest.into_iter().any(|length| length > SETTING) {
            return Err(invalid_request(format!(
                "a text of the pool is longer than {SETTING} bytes"
            )));
        }
    }
    Ok(AdminOperation::Pools(request))
}

fn pool_copy(request: proto::PoolCopyRequest) -> Result<AdminOperation, Problem> {
    if [&request.from, &request.to].iter().any(|name| name.len() > SETTING) {
        return Err(invalid_request(format!("a pool's name is longer than {SETTING} bytes")));
    }
    Ok(AdminOperation::PoolCopy(request))
}

fn revocations(request: proto::RevocationsRequest) -> Result<AdminOperation, Problem> {
    for subject in request.revoke.iter().chain(&request.restore) {
        if !(1..=SUBJECT).contains(&subject.len()) {
            let bytes = subject.len();
            let text = format!("what to revoke is {bytes} bytes, must be 1 to {SUBJECT}");
            return Err(invalid_request(text));
        }
    }
    if request.reason.len() > SUBJECT {
        let text = format!("reason is {} bytes, limit is {SUBJECT}", request.reason.len());
        return Err(invalid_request(text));
    }
    Ok(AdminOperation::Revocations(request))
}

fn variables(request: proto::VariablesRequest) -> Result<AdminOperation, Problem> {
    let (bytes, changes) =
        (request.r#type.len(), request.set.is_some() || request.remove.is_some());
    if bytes > TYPE || (bytes == 0 && changes) {
        return Err(invalid_request(format!("type is {bytes} bytes, must be 1 to {TYPE}")));
    }
    if let Some(bytes) = request.set.as_ref().map(|set| set.value.len())
        && bytes > VARIABLE_BYTES
    {
        let text = format!("value is {bytes} bytes, limit is {VARIABLE_BYTES} for all of a type");
        return Err(problem(codes::VARIABLES_TOO_LARGE, text));
    }
    if request.set.is_some() && request.remove.is_some() {
        return Err(invalid_request("one request cannot set and remove".into()));
    }
    let set = request.set.iter().map(|set| (set.kind(), set.name.len()));
    let removed = request.remove.iter().map(|remove| (remove.kind(), remove.name.len()));
    for (kind, bytes) in set.chain(removed) {
        if kind == proto::VariableKind::Unspecified {
            return Err(invalid_request("neither a secret nor a setting".into()));
        }
        if !(1..=VARIABLE).contains(&bytes) {
            return Err(invalid_request(format!("name is {bytes} bytes, must be 1 to {VARIABLE}")));
        }
    }
    Ok(AdminOperation::Variables(request))
}

fn authorities(request: proto::AuthoritiesRequest) -> Result<AdminOperation, Problem> {
    let issued = request.issue.as_ref().map(|issue| &issue.certificate);
    for pem in request.trusted.iter().chain(issued) {
        if pem.len() > CERTIFICATES {
            let bytes = pem.len();
            let text = format!("certificates of {bytes} bytes, limit is {CERTIFICATES}");
            return Err(invalid_request(text));
        }
    }
    if let Some(issue) = &request.issue {
        node_name(issue.node.clone())?;
    }
    Ok(AdminOperation::Authorities(request))
}

fn node_name(node: String) -> Result<String, Problem> {
    match node.len() {
        1..=NODE => Ok(node),
        bytes => Err(invalid_request(format!("node name is {bytes} bytes, must be 1 to {NODE}"))),
    }
}

/// Sends a streamed response.
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
        let frame = fitting(update(part), most);
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

/// The frame of an update; the last one if there is none.
fn update(part: Option<Result<AdminUpdate, Problem>>) -> AdminResponse {
    let response = part.map(|part| match part {
        Ok(AdminUpdate::Drain(progress)) => Response::Drain(progress),
        Ok(AdminUpdate::Rebalance(progress)) => Response::Rebalance(progress),
        Ok(AdminUpdate::Events(events)) => Response::Events(events),
        Ok(AdminUpdate::Backup(part)) => Response::Backup(part),
        Ok(AdminUpdate::PoolCopy(progress)) => Response::PoolCopy(progress),
        Err(problem) => Response::Problem(problem),
    });
    let more = !matches!(response, None | Some(Response::Problem(_)));
    AdminResponse { more, response }
}

/// Returns the frame if it is within the client's limit, else a refusal that is.
fn fitting(frame: AdminResponse, most: usize) -> AdminResponse {
    let bytes = frame.encoded_len();
    if bytes <= most {
        return frame;
    }
    let problem = match frame.response {
        Some(Response::Problem(problem)) => problem,
        _ => {
            let text = format!(
                "response of {bytes} bytes exceeds the client's limit of {most} (`max_frame`)"
            );
            problem(codes::REPLY_TOO_LARGE, text)
        }
    };
    // Reserve space for the headers of response and problem.
    let problem = within(problem, most.saturating_sub(16));
    AdminResponse { more: false, response: Some(Response::Problem(problem)) }
}

/// Splits a long list into frames that are no larger than the client accepts. An empty list becomes one frame.
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

/// The frames of a response. A frame that is too large for the client is replaced by a refusal, which ends the
/// response.
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
        Ok(AdminOutput::DryRun(result)) => one(Response::DryRun(*result)),
        Ok(AdminOutput::Methods(methods)) => one(Response::Methods(methods)),
        Ok(AdminOutput::Status(status)) => one(Response::Status(*status)),
        Ok(AdminOutput::Node(node)) => one(Response::Node(node)),
        Ok(AdminOutput::Nodes(nodes)) => one(Response::Nodes(nodes)),
        Ok(AdminOutput::Entities(page)) => one(Response::Entities(page)),
        Ok(AdminOutput::Entity(entity)) => one(Response::Entity(*entity)),
        Ok(AdminOutput::DeadLetters(page)) => one(Response::DeadLetters(page)),
        Ok(AdminOutput::Export(export)) => one(Response::Export(*export)),
        Ok(AdminOutput::Undeployed(undeployed)) => one(Response::Undeployed(undeployed)),
        Ok(AdminOutput::Forgotten(forgotten)) => one(Response::Forgotten(forgotten)),
        Ok(AdminOutput::MoveShards(progress)) => one(Response::MoveShards(progress)),
        Ok(AdminOutput::Cluster(state)) => one(Response::Cluster(state)),
        Ok(AdminOutput::Placement(state)) => one(Response::Placement(state)),
        Ok(AdminOutput::Pools(pools)) => one(Response::Pools(pools)),
        Ok(AdminOutput::Namespaces(all)) => {
            pages(&all, most, |namespaces| Response::Namespaces(proto::Namespaces { namespaces }))
        }
        Ok(AdminOutput::Policy(state)) => one(Response::Policy(state)),
        Ok(AdminOutput::Audit(all)) => {
            pages(&all, most, |entries| Response::Audit(proto::AuditLog { entries }))
        }
        Ok(AdminOutput::Authorities(proto::Authorities { revision, trusted, presented })) => {
            pages(&presented, most, |presented| {
                let trusted = trusted.clone();
                Response::Authorities(proto::Authorities { revision, trusted, presented })
            })
        }
        Ok(AdminOutput::Figures(all)) => figures(all),
        Ok(AdminOutput::WhoAmI(known)) => one(Response::WhoAmI(known)),
        Ok(AdminOutput::Pauses(pauses)) => one(Response::Pauses(pauses)),
        Ok(AdminOutput::Revocations(all)) => pages(&all, most, |revocations| {
            Response::Revocations(proto::Revocations { revocations })
        }),
        Ok(AdminOutput::Variables(proto::Variables { variables, deployed })) => {
            pages(&variables, most, |variables| {
                Response::Variables(proto::Variables { variables, deployed })
            })
        }
        Ok(AdminOutput::Deployments(all)) => pages(&all, most, |deployments| {
            Response::Deployments(proto::Deployments { deployments })
        }),
        Ok(AdminOutput::ShardFigures(all)) => {
            let proto::ShardStatistics { shards, unresponsive } = all;
            let mut frames = pages(&shards, most, |shards| {
                let unresponsive = Vec::new();
                Response::ShardFigures(proto::ShardStatistics { shards, unresponsive })
            });
            if !unresponsive.is_empty() {
                let shards = Vec::new();
                let rest = proto::ShardStatistics { shards, unresponsive };
                frames.extend(one(Response::ShardFigures(rest)));
            }
            frames
        }
        Ok(AdminOutput::Shards(all)) => {
            pages(&all, most, |shards| Response::Shards(proto::Shards { shards }))
        }
        Ok(AdminOutput::RebalancePlan(proto::RebalancePlan { moves, blocked_reason: held_up })) => {
            pages(&moves, most, |moves| {
                Response::Plan(proto::RebalancePlan { moves, blocked_reason: held_up.clone() })
            })
        }
        // Sent as they are produced.
        Ok(AdminOutput::Updates(_)) => Vec::new(),
    }
}

/// One frame for each node: together they may be too large for one.
fn figures(all: proto::Figures) -> Vec<AdminResponse> {
    let proto::Figures { nodes, unresponsive } = all;
    let last = proto::Figures { nodes: Vec::new(), unresponsive };
    let of_nodes = nodes
        .into_iter()
        .map(|node| proto::Figures { nodes: vec![node], unresponsive: Vec::new() });
    let response =
        |(more, figures)| AdminResponse { more, response: Some(Response::Figures(figures)) };
    of_nodes.map(|figures| (true, figures)).chain([(false, last)]).map(response).collect()
}
