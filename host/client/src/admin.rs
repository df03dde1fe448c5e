//! Administrative requests. Each is sent once, on its own stream. All are idempotent, so a caller may repeat them.
//! Streamed responses come as [`Updates`]; dropping those does not cancel the operation.

mod exchange;
mod namespace;
mod updates;

use std::time::Duration;

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_wire::Error;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::proto::admin_request::Request;
use ostraca_wire::proto::admin_response::Response;
use ostraca_wire::proto::{
    ActivateRequest, AdminRequest, AuditEntry, AuditRequest, Authorities, AuthoritiesRequest,
    BackupPart, BackupRequest, ClusterConfig, ClusterConfigRequest, DeadLetters,
    DeadLettersRequest, DeployRequest, DeployResult, Deployment, DeploymentsRequest, DrainProgress,
    DrainRequest, DryRun, DryRunResult, Entities, EntitiesRequest, EntityDetail, EntityExport,
    Events, EventsRequest, ExportRequest, Figures, FiguresRequest, ForgetRequest, ForgetResult,
    InspectRequest, Methods, MethodsRequest, MoveShardsProgress, MoveShardsRequest, NamespaceInfo,
    NamespacesRequest, NewPool, NodeInfo, NodeRequest, Nodes, NodesRequest, PausesRequest,
    PlacementRequest, PlacementState, PolicyRequest, PolicyState, PoolCopyProgress,
    PoolCopyRequest, PoolInfo, PoolsRequest, Problem, QuotaChanges, RebalancePlan,
    RebalanceProgress, RebalanceRequest, Revocation, RevocationsRequest, Rollout,
    ShardFiguresRequest, ShardInfo, ShardPause, ShardRange, ShardStatistics, ShardsRequest, Status,
    StatusRequest, UndeployRequest, UndeployResult, Variables, VariablesRequest, WhoAmI,
    WhoAmIRequest,
};
use tokio::time::timeout;

use crate::connect::Client;
use exchange::{receive, unexpected, upload};
use namespace::{name_in, qualify};
pub use updates::{Update, Updates};

/// The timeout of every request except a deploy.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a deploy: the upload, and the compilation on the node.
const DEPLOY_TIMEOUT: Duration = Duration::from_secs(180);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The node refused the request.
    #[error("{}: {}", .0.code, .0.message)]
    Refused(Box<Problem>),
    /// The connection broke, or there was none in time. A deploy may have taken effect; repeating it is safe.
    #[error("{0}")]
    Connection(String),
}

impl AdminError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(problem) => &problem.code,
            Self::Connection(_) => codes::CONNECTION_LOST.as_str(),
        }
    }
}

impl From<Error> for AdminError {
    fn from(error: Error) -> Self {
        Self::Connection(error.to_string())
    }
}

/// The request that announces an upload.
fn upload_of(manifest: &str, component: &Bytes) -> DeployRequest {
    DeployRequest {
        manifest: manifest.into(),
        component_size: component.len() as u64,
        digest: Bytes::copy_from_slice(blake3::hash(component).as_bytes()),
        ..DeployRequest::default()
    }
}

impl Client {
    /// Deploys a component with its manifest. With `expected_revision`, deploys only if that is the current revision
    /// (0: none yet). Idempotent by the component's digest.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deploy(
        &self,
        manifest: &str,
        component: Bytes,
        expected_revision: Option<u64>,
    ) -> Result<DeployResult, AdminError> {
        let request = DeployRequest { expected_revision, ..upload_of(manifest, &component) };
        let request = Request::Deploy(request);
        match self.request(request, component, DEPLOY_TIMEOUT).await?.pop() {
            Some(Response::Deployed(deployed)) => Ok(deployed),
            other => Err(unexpected(other)),
        }
    }

    /// Stores a component with its manifest as the next revision of its type, without activating it.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deploy_inactive(
        &self,
        manifest: &str,
        component: Bytes,
    ) -> Result<DeployResult, AdminError> {
        let request = DeployRequest { inactive: true, ..upload_of(manifest, &component) };
        let request = Request::Deploy(request);
        match self.request(request, component, DEPLOY_TIMEOUT).await?.pop() {
            Some(Response::Deployed(deployed)) => Ok(deployed),
            other => Err(unexpected(other)),
        }
    }

    /// Tries a deployment on copies of entities, without deploying it.
    ///
    /// # Errors
    ///
    /// [`AdminError`], in particular if the deployment would be refused.
    pub async fn dry_run(
        &self,
        manifest: &str,
        component: Bytes,
        entities: DryRun,
    ) -> Result<DryRunResult, AdminError> {
        let request = DeployRequest { dry_run: Some(entities), ..upload_of(manifest, &component) };
        let request = Request::Deploy(request);
        match self.request(request, component, DEPLOY_TIMEOUT).await?.pop() {
            Some(Response::DryRun(result)) => Ok(result),
            other => Err(unexpected(other)),
        }
    }

    /// Activates a stored revision of a type; `None` for the one before the current revision. An earlier revision gets
    /// a new, higher number.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn activate(
        &self,
        entity_type: &str,
        revision: Option<u64>,
    ) -> Result<DeployResult, AdminError> {
        self.roll_out(entity_type, revision, None).await
    }

    /// Like [`Client::activate`], for a part of the type's entities: the others run the revision before it. With the
    /// current revision, changes its rollout; `None` completes it.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn roll_out(
        &self,
        entity_type: &str,
        revision: Option<u64>,
        rollout: Option<Rollout>,
    ) -> Result<DeployResult, AdminError> {
        let request = ActivateRequest { r#type: entity_type.into(), revision, rollout };
        let request = Request::Activate(request);
        match self.request(request, Bytes::new(), DEPLOY_TIMEOUT).await?.pop() {
            Some(Response::Deployed(deployed)) => Ok(deployed),
            other => Err(unexpected(other)),
        }
    }

    /// The current deployments.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deployments(&self) -> Result<Vec<Deployment>, AdminError> {
        self.deployments_of(String::new()).await
    }

    /// The current deployment of one type, with the number of its live entities for each revision; `None` if the type is
    /// not deployed.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn deployment(&self, entity_type: &str) -> Result<Option<Deployment>, AdminError> {
        let all = self.deployments_of(entity_type.to_owned()).await?;
        let name = name_in(&self.namespace(), entity_type);
        Ok(all.into_iter().find(|it| it.r#type == name))
    }

    async fn deployments_of(&self, entity_type: String) -> Result<Vec<Deployment>, AdminError> {
        let request = Request::Deployments(DeploymentsRequest { r#type: entity_type });
        let mut all = Vec::new();
        for page in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
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
    pub async fn methods(&self, entity_type: &str) -> Result<Methods, AdminError> {
        let request = Request::Methods(MethodsRequest { r#type: entity_type.into() });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Methods(methods)) => Ok(methods),
            other => Err(unexpected(other)),
        }
    }

    /// The health of the connected node.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn status(&self) -> Result<Status, AdminError> {
        let request = Request::Status(StatusRequest {});
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Status(status)) => Ok(status),
            other => Err(unexpected(other)),
        }
    }

    /// What each live node has done since it started.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn figures(&self) -> Result<Figures, AdminError> {
        let request = Request::Figures(FiguresRequest {});
        let mut all = Figures::default();
        for page in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match page {
                Response::Figures(page) => {
                    all.nodes.extend(page.nodes);
                    all.unresponsive.extend(page.unresponsive);
                }
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// What this client may do.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn who_am_i(&self) -> Result<WhoAmI, AdminError> {
        let request = Request::WhoAmI(WhoAmIRequest {});
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::WhoAmI(known)) => Ok(known),
            other => Err(unexpected(other)),
        }
    }

    /// The latest pauses of shards that the connected node has seen.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn pauses(&self) -> Result<Vec<ShardPause>, AdminError> {
        let request = Request::Pauses(PausesRequest {});
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Pauses(pauses)) => Ok(pauses.pauses),
            other => Err(unexpected(other)),
        }
    }

    /// What each shard has done and holds, from the shards' owners (K37, K38).
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn shard_figures(&self) -> Result<ShardStatistics, AdminError> {
        let request = Request::ShardFigures(ShardFiguresRequest {});
        let mut all = ShardStatistics::default();
        for page in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match page {
                Response::ShardFigures(page) => {
                    all.shards.extend(page.shards);
                    all.unresponsive.extend(page.unresponsive);
                }
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// The identity of the connected node.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn node(&self) -> Result<NodeInfo, AdminError> {
        match self
            .request(Request::Node(NodeRequest {}), Bytes::new(), REQUEST_TIMEOUT)
            .await?
            .pop()
        {
            Some(Response::Node(node)) => Ok(node),
            other => Err(unexpected(other)),
        }
    }

    /// All nodes in the cluster's rows.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn nodes(&self) -> Result<Nodes, AdminError> {
        match self
            .request(Request::Nodes(NodesRequest {}), Bytes::new(), REQUEST_TIMEOUT)
            .await?
            .pop()
        {
            Some(Response::Nodes(nodes)) => Ok(nodes),
            other => Err(unexpected(other)),
        }
    }

    /// All shards, in order.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn shards(&self) -> Result<Vec<ShardInfo>, AdminError> {
        let mut all = Vec::new();
        for page in self
            .request(Request::Shards(ShardsRequest::default()), Bytes::new(), REQUEST_TIMEOUT)
            .await?
        {
            match page {
                Response::Shards(page) => all.extend(page.shards),
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// One page of entities; its `next_cursor` is the `cursor` of the request for the next page.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn entities(&self, request: EntitiesRequest) -> Result<Entities, AdminError> {
        match self.request(Request::Entities(request), Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Entities(page)) => Ok(page),
            other => Err(unexpected(other)),
        }
    }

    /// The state of one entity. An entity that was never written is reported as not existing. `values` also returns the
    /// values of its keys, cut to 4 KiB each; this is refused (`access-denied`) if the client may not send to the type.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn inspect(&self, entity: &Entity, values: bool) -> Result<EntityDetail, AdminError> {
        let (r#type, id) = (entity.entity_type.to_string(), entity.id.to_string());
        let request = Request::Inspect(InspectRequest { r#type, id, values });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Entity(entity)) => Ok(entity),
            other => Err(unexpected(other)),
        }
    }

    /// One page of dead letters: tells that their target refused or kept failing. To resend or drop them, call
    /// [`Session::handle_dead_letters`](crate::Session::handle_dead_letters).
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn dead_letters(
        &self,
        request: DeadLettersRequest,
    ) -> Result<DeadLetters, AdminError> {
        let request = Request::DeadLetters(request);
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::DeadLetters(page)) => Ok(page),
            other => Err(unexpected(other)),
        }
    }

    /// Moves all shards off a node (R12), or with `undo` lets it own shards again. The last update has `done` set; a
    /// drain that cannot finish ends with an error. The drain continues after the updates are dropped.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn drain(
        &self,
        node: &str,
        undo: bool,
    ) -> Result<Updates<DrainProgress>, AdminError> {
        self.follow(Request::Drain(DrainRequest { node: node.into(), undo })).await
    }

    /// Marks a permanently lost node as removed: its last incarnation counts as having left. Refused
    /// (`node-live`) while the node is live. A node that starts again registers a new incarnation as usual.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn forget(&self, node: &str) -> Result<ForgetResult, AdminError> {
        let request = Request::Forget(ForgetRequest { node: node.into() });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Forgotten(forgotten)) => Ok(forgotten),
            other => Err(unexpected(other)),
        }
    }

    /// Moves a range of shards to another store of the state, or says how far the move in progress is. Call it again until
    /// no move is running; the cluster goes on with a move in the meantime.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn move_shards(
        &self,
        wanted: Option<ShardRange>,
    ) -> Result<MoveShardsProgress, AdminError> {
        let request = Request::MoveShards(MoveShardsRequest { wanted });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::MoveShards(progress)) => Ok(progress),
            other => Err(unexpected(other)),
        }
    }

    /// All of one entity, to be imported with [`Session::import_entity`](crate::Session::import_entity).
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn export(&self, entity: &Entity) -> Result<EntityExport, AdminError> {
        let (r#type, id) = (entity.entity_type.to_string(), entity.id.to_string());
        let request = Request::Export(ExportRequest { r#type, id });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Export(export)) => Ok(export),
            other => Err(unexpected(other)),
        }
    }

    /// Undeploys a type of which nothing is left; otherwise this is refused (`type-in-use`). Its binding remains.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn undeploy(&self, name: &str) -> Result<UndeployResult, AdminError> {
        let request = Request::Undeploy(UndeployRequest { r#type: name.into() });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Undeployed(undeployed)) => Ok(undeployed),
            other => Err(unexpected(other)),
        }
    }

    /// The cluster's policy, after the requested change.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn policy(&self, request: PolicyRequest) -> Result<PolicyState, AdminError> {
        let request = Request::Policy(request);
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Policy(state)) => Ok(state),
            other => Err(unexpected(other)),
        }
    }

    /// The changes that operators have asked for, of all nodes, ordered by time.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn audit(&self, request: AuditRequest) -> Result<Vec<AuditEntry>, AdminError> {
        let mut all = Vec::new();
        for part in self.request(Request::Audit(request), Bytes::new(), REQUEST_TIMEOUT).await? {
            match part {
                Response::Audit(page) => all.extend(page.entries),
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// The authorities that the cluster trusts and the certificates that its nodes present, after the requested changes.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn authorities(
        &self,
        request: AuthoritiesRequest,
    ) -> Result<Authorities, AdminError> {
        let request = Request::Authorities(request);
        let mut all = Authorities::default();
        for part in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match part {
                Response::Authorities(Authorities { revision, trusted, presented }) => {
                    (all.revision, all.trusted) = (revision, trusted);
                    all.presented.extend(presented);
                }
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// All revoked credentials, after the requested changes.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn revocations(
        &self,
        request: RevocationsRequest,
    ) -> Result<Vec<Revocation>, AdminError> {
        let request = Request::Revocations(request);
        let mut all = Vec::new();
        for part in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match part {
                Response::Revocations(page) => all.extend(page.revocations),
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// A type's secrets, without their values, and settings, after the requested change.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn variables(&self, request: VariablesRequest) -> Result<Variables, AdminError> {
        let request = Request::Variables(request);
        let mut all = Variables::default();
        for part in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match part {
                Response::Variables(page) => {
                    all.deployed = page.deployed;
                    all.variables.extend(page.variables);
                }
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// The cluster-wide settings, after the requested changes.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn cluster(
        &self,
        request: ClusterConfigRequest,
    ) -> Result<ClusterConfig, AdminError> {
        match self.request(Request::Cluster(request), Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Cluster(state)) => Ok(state),
            other => Err(unexpected(other)),
        }
    }

    /// Where operators and outside programs want shards, after these changes (E9).
    ///
    /// # Errors
    /// [`AdminError::Refused`] if a shard, node or pool is not what it must be: then nothing was changed.
    pub async fn placement(&self, request: PlacementRequest) -> Result<PlacementState, AdminError> {
        let request = Request::Placement(request);
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Placement(state)) => Ok(state),
            other => Err(unexpected(other)),
        }
    }

    /// The pools, after one of them is created if that is requested.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn pools(&self, create: Option<NewPool>) -> Result<Vec<PoolInfo>, AdminError> {
        let request = Request::Pools(PoolsRequest { create });
        match self.request(request, Bytes::new(), REQUEST_TIMEOUT).await?.pop() {
            Some(Response::Pools(all)) => Ok(all.pools),
            other => Err(unexpected(other)),
        }
    }

    /// Copies the state of a pool to another one, and switches its types to that; or continues a copy that was
    /// interrupted. The owners of the pools' shards give them up first, for which it waits at most this long. The last
    /// progress has `end` set. Dropping the progress does not end the copy. Refused (`no-store`) by a node that does not
    /// have the state.
    ///
    /// # Errors
    ///
    /// [`AdminError`]. Unless the copy was given up before it began, nobody uses an entity of either pool until it is
    /// continued.
    pub async fn copy_pool(
        &self,
        from: &str,
        to: &str,
        release_timeout: Duration,
    ) -> Result<Updates<PoolCopyProgress>, AdminError> {
        let millis = u64::try_from(release_timeout.as_millis()).unwrap_or(u64::MAX);
        self.follow(Request::PoolCopy(PoolCopyRequest {
            from: from.into(),
            to: to.into(),
            release_timeout_ms: millis.max(1),
        }))
        .await
    }

    /// The namespaces, after one of them is created if that is requested.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn namespaces(&self, create: Option<&str>) -> Result<Vec<NamespaceInfo>, AdminError> {
        let create = create.unwrap_or_default().to_owned();
        self.ask_about_namespaces(NamespacesRequest { create, change_quotas: None }).await
    }

    /// Changes quotas of a namespace; those that are not named stay as they are, whoever else changes them at the same
    /// time. Returns all namespaces.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn change_quotas(
        &self,
        changes: QuotaChanges,
    ) -> Result<Vec<NamespaceInfo>, AdminError> {
        let (create, change_quotas) = (String::new(), Some(changes));
        self.ask_about_namespaces(NamespacesRequest { create, change_quotas }).await
    }

    async fn ask_about_namespaces(
        &self,
        request: NamespacesRequest,
    ) -> Result<Vec<NamespaceInfo>, AdminError> {
        let request = Request::Namespaces(request);
        let mut all = Vec::new();
        for page in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match page {
                Response::Namespaces(page) => all.extend(page.namespaces),
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(all)
    }

    /// The moves that a rebalance would make now.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn rebalance_plan(&self) -> Result<RebalancePlan, AdminError> {
        let request = Request::Rebalance(RebalanceRequest { dry_run: true });
        let mut plan = RebalancePlan::default();
        for page in self.request(request, Bytes::new(), REQUEST_TIMEOUT).await? {
            match page {
                Response::Plan(page) => {
                    plan.moves.extend(page.moves);
                    plan.blocked_reason = page.blocked_reason;
                }
                other => return Err(unexpected(Some(other))),
            }
        }
        Ok(plan)
    }

    /// Moves shards until the shard counts of any two nodes differ by at most one. The last update has `done` set.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn rebalance(&self) -> Result<Updates<RebalanceProgress>, AdminError> {
        self.follow(Request::Rebalance(RebalanceRequest { dry_run: false })).await
    }

    /// Events that the connected node saw, beginning with `from_sequence` (0: all that it keeps). With `follow`, later
    /// events follow, until the updates are dropped or the connection breaks.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn events(
        &self,
        follow: bool,
        from_sequence: u64,
    ) -> Result<Updates<Events>, AdminError> {
        self.follow(Request::Events(EventsRequest { follow, from_sequence })).await
    }

    /// Reads all that the store of the connected node holds, as of one moment. The last part has `end` set. Dropping the
    /// parts ends the backup. Refused (`no-store`) by a node that does not have the store.
    ///
    /// # Errors
    ///
    /// [`AdminError`].
    pub async fn backup(&self) -> Result<Updates<BackupPart>, AdminError> {
        self.follow(Request::Backup(BackupRequest {})).await
    }

    async fn follow<T: Update>(&self, request: Request) -> Result<Updates<T>, AdminError> {
        let opening = async {
            let (mut writer, reader) = self.open(request).await?;
            writer.flush().await?;
            writer.finish();
            Ok(reader)
        };
        let reader = self.with_timeout(REQUEST_TIMEOUT, opening).await?;
        Ok(Updates::new(reader))
    }

    async fn request(
        &self,
        request: Request,
        component: Bytes,
        limit: Duration,
    ) -> Result<Vec<Response>, AdminError> {
        self.with_timeout(limit, self.exchange(request, component)).await
    }

    async fn with_timeout<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, AdminError>>,
    ) -> Result<T, AdminError> {
        match timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => {
                let last = self.connection.borrow().last.clone();
                let last = last.map(|last| format!(" ({last})")).unwrap_or_default();
                Err(AdminError::Connection(format!("no response within {limit:?}{last}")))
            }
        }
    }

    async fn open(&self, mut request: Request) -> Result<(FrameWriter, FrameReader), AdminError> {
        qualify(&mut request, &self.namespace());
        let mut links = self.connection.clone();
        let link = match links.wait_for(|state| state.connection.is_some()).await {
            Ok(state) => state.connection.clone(),
            Err(_) => None,
        };
        let link = link.ok_or_else(|| AdminError::Connection("the client was closed".into()))?;
        Ok(link.admin(AdminRequest { request: Some(request) }).await?)
    }

    async fn exchange(
        &self,
        request: Request,
        component: Bytes,
    ) -> Result<Vec<Response>, AdminError> {
        let (mut writer, mut reader) = self.open(request).await?;
        // A node that has already responded stops the upload: its response counts, not the failed write.
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
