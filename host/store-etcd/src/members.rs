//! Connections to etcd's members: one at a time, and the next one when it fails.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tokio::time::timeout;
use tonic::metadata::{AsciiMetadataValue, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status, Streaming};

use crate::error::{CallError, OpenError, chain};
use crate::options::{Options, Tls};
use crate::proto::auth_client::AuthClient;
use crate::proto::kv_client::KvClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::watch_client::WatchClient;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{
    AuthenticateRequest, RangeRequest, RangeResponse, StatusRequest, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

/// The largest answer that is read: etcd collects changes for a watch that was away.
const MAX_ANSWER: usize = 256 << 20;
/// etcd refuses clients that ask more often than every 5 s whether a connection still works.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The members, and a connection to one of them.
pub(crate) struct Members {
    options: Arc<Options>,
    at: usize,
    member: Option<Member>,
}

/// A connection to a member.
#[derive(Clone)]
pub(crate) struct Member {
    channel: Channel,
    token: Option<AsciiMetadataValue>,
    prefix: String,
    attempt: Duration,
}

impl Members {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self { options, at: 0, member: None }
    }

    /// The connection. If there is none, each member is tried once.
    pub(crate) async fn member(&mut self) -> Result<Member, OpenError> {
        if let Some(member) = &self.member {
            return Ok(member.clone());
        }
        let count = self.options.endpoints.len();
        let mut failures = Vec::new();
        for _ in 0..count {
            let endpoint = &self.options.endpoints[self.at % count];
            match Member::connect(&self.options, endpoint).await {
                Ok(member) => return Ok(self.member.insert(member).clone()),
                Err(OpenError::Unreachable(why)) => failures.push(format!("{endpoint}: {why}")),
                Err(error) => return Err(error),
            }
            self.at = (self.at + 1) % count;
        }
        match failures.is_empty() {
            true => Err(OpenError::Unreachable("no member is configured".into())),
            false => Err(OpenError::Unreachable(failures.join("; "))),
        }
    }

    /// Gives the connection up. The next one is to the next member.
    pub(crate) fn leave(&mut self) {
        self.member = None;
        self.at = (self.at + 1) % self.options.endpoints.len().max(1);
    }
}

impl Member {
    async fn connect(options: &Options, endpoint: &str) -> Result<Self, OpenError> {
        let invalid = |why| OpenError::Endpoint { endpoint: endpoint.into(), why };
        Options::check_endpoint(endpoint).map_err(invalid)?;
        let scheme = if options.tls == Tls::Off { "http" } else { "https" };
        let transport = Endpoint::from_shared(format!("{scheme}://{endpoint}"));
        let mut transport = transport
            .map_err(|error| invalid(chain(&error)))?
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(options.attempt_timeout);
        if let Some(tls) = tls(&options.tls).await? {
            transport = transport.tls_config(tls).map_err(|error| invalid(chain(&error)))?;
        }
        // The handshakes have no timeout of their own.
        let connecting = timeout(options.connect_timeout * 2, transport.connect()).await;
        let late =
            || OpenError::Unreachable(format!("no answer within {:?}", options.connect_timeout));
        let channel = connecting.map_err(|_| late())?;
        let channel = channel.map_err(|error| OpenError::Unreachable(chain(&error)))?;
        let mut member = Self {
            channel,
            token: None,
            prefix: options.prefix.clone(),
            attempt: options.attempt_timeout,
        };
        if let Some(user) = &options.user {
            member.token = Some(member.log_in(user, options.password_file.as_deref()).await?);
        }
        Ok(member)
    }

    async fn log_in(
        &self,
        user: &str,
        password: Option<&Path>,
    ) -> Result<AsciiMetadataValue, OpenError> {
        let refused = |why| OpenError::Login { user: user.into(), why };
        let password = match password {
            None => String::new(),
            Some(path) => read(path).await?.trim_end_matches(['\r', '\n']).to_owned(),
        };
        let request = AuthenticateRequest { name: user.into(), password };
        let mut client = AuthClient::new(self.channel.clone());
        let answer = self.within(client.authenticate(self.request(request))).await;
        let token = match answer {
            Ok(answer) => answer.token,
            Err(CallError::Refused(error)) => return Err(refused(error.to_string())),
            Err(error) => return Err(error.into_open_error()),
        };
        MetadataValue::try_from(token).map_err(|_| refused("it sent an invalid token".into()))
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, CallError> {
        let mut client = KvClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        self.within(client.range(self.request(request))).await
    }

    pub(crate) async fn transact(&self, request: TxnRequest) -> Result<TxnResponse, CallError> {
        let mut client = KvClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        self.within(client.txn(self.request(request))).await
    }

    /// The version of the member's program.
    pub(crate) async fn version(&self) -> Result<String, CallError> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        Ok(self.within(client.status(self.request(StatusRequest {}))).await?.version)
    }

    /// Watches keys. The member ends the watch when it loses its leader.
    pub(crate) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, CallError> {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = stream::once(std::future::ready(request)).chain(stream::pending());
        let mut request = self.request(requests);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client =
            WatchClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        self.within(client.watch(request)).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn within<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        match timeout(self.attempt, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(CallError::from_status(&status, &self.prefix)),
            Err(_) => Err(CallError::InDoubt(format!("no answer within {:?}", self.attempt))),
        }
    }
}

async fn tls(tls: &Tls) -> Result<Option<ClientTlsConfig>, OpenError> {
    let Tls::Verify { ca, identity } = tls else { return Ok(None) };
    let mut config = ClientTlsConfig::new();
    config = match ca {
        Some(path) => {
            let pem = read(path).await?;
            // Without this line, the transport would trust nobody, and say so only of each server.
            if !pem.contains("-----BEGIN CERTIFICATE-----") {
                return Err(OpenError::Authority { path: path.into() });
            }
            config.ca_certificate(Certificate::from_pem(pem))
        }
        None => config.with_webpki_roots(),
    };
    if let Some((certificate, key)) = identity {
        config = config.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
    }
    Ok(Some(config))
}

async fn read(path: &Path) -> Result<String, OpenError> {
    let text = tokio::fs::read_to_string(path).await;
    text.map_err(|source| OpenError::File { path: path.into(), source })
}
