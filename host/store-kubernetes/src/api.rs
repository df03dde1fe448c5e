//! The requests to the API server, and what its answers mean.
//!
//! Reads have no `resourceVersion`, so the server answers them with its most recent state, from a quorum ("Kubernetes
//! API Concepts", section "Resource versions"). An object is read as a list of one: only a list says at which version
//! it was read, which shows a server that went back (R5).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use crate::connections::{Answer, Connections, SendError, retry_after};
use crate::error::{CallError, OpenError};
use crate::layout::{Lease, LeaseList, revision};
use crate::options::Options;

const LEASES: &str = "leases";
const PODS: &str = "pods";

/// Requests for the objects of a namespace.
#[derive(Clone)]
pub(crate) struct Api {
    connections: Connections,
    options: Arc<Options>,
}

/// A request of RBAC: what it wants, for errors.
#[derive(Clone, Copy)]
struct Wanted {
    verb: &'static str,
    resource: &'static str,
}

/// The body of an answer that is not the object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    kind: String,
    retry_after_seconds: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions<'a> {
    kind: &'static str,
    api_version: &'static str,
    preconditions: Preconditions<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions<'a> {
    uid: &'a str,
    resource_version: &'a str,
}

/// A page of a list, and the version at which the list is read.
pub(crate) struct Listed {
    pub(crate) items: Vec<Lease>,
    pub(crate) revision: u64,
    /// Where the next page begins.
    pub(crate) next: Option<String>,
}

/// A pod, as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: crate::layout::Metadata,
    pub(crate) status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub(crate) container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub(crate) state: ContainerState,
    pub(crate) last_state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) finished_at: Option<String>,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
}

impl Api {
    pub(crate) fn new(options: Arc<Options>) -> Result<Self, OpenError> {
        for (name, checked) in [
            (&options.name, Options::check_name(&options.name)),
            (&options.namespace, Options::check_namespace(&options.namespace)),
        ] {
            checked.map_err(|why| OpenError::Name { name: name.clone(), why })?;
        }
        Ok(Self { connections: Connections::new(options.clone())?, options })
    }

    /// Lists a page of the leases with these labels. `next` is where it begins, if it is not the first one.
    pub(crate) async fn list(
        &self,
        selector: &str,
        limit: usize,
        next: Option<&str>,
    ) -> Result<Listed, CallError> {
        let mut query = format!("labelSelector={}&limit={limit}", escaped(selector));
        if let Some(next) = next {
            query = format!("{query}&continue={}", escaped(next));
        }
        self.listed(&query).await
    }

    /// Reads a lease, and the version at which it is read.
    pub(crate) async fn read(&self, name: &str) -> Result<(Option<Lease>, u64), CallError> {
        let selector = escaped(&format!("metadata.name={name}"));
        let listed = self.listed(&format!("fieldSelector={selector}")).await?;
        Ok((listed.items.into_iter().next(), listed.revision))
    }

    async fn listed(&self, query: &str) -> Result<Listed, CallError> {
        let wanted = Wanted { verb: "list", resource: LEASES };
        let path = format!("{}?{query}", self.leases());
        let answer = self.call(wanted, Method::GET, &path, None).await?;
        let LeaseList { metadata, items } = parse(&answer.body)?;
        let revision = version(&metadata.resource_version)?;
        let items = items.unwrap_or_default();
        Ok(Listed { items, revision, next: metadata.next.filter(|next| !next.is_empty()) })
    }

    /// Creates a lease. A conflict means that it exists.
    pub(crate) async fn create(&self, lease: &Lease) -> Result<Lease, CallError> {
        let wanted = Wanted { verb: "create", resource: LEASES };
        let answer = self.call(wanted, Method::POST, &self.leases(), Some(body(lease)?)).await?;
        self.written(&answer)
    }

    /// Lets the API server check the creation of a lease, without creating it.
    pub(crate) async fn try_create(&self, lease: &Lease) -> Result<(), CallError> {
        let wanted = Wanted { verb: "create", resource: LEASES };
        let path = format!("{}?dryRun=All", self.leases());
        self.call(wanted, Method::POST, &path, Some(body(lease)?)).await.map(drop)
    }

    /// Replaces a lease that has the uid and the resource version in its metadata. A conflict means that it has others,
    /// or does not exist: without the uid, Kubernetes would create a lease that is missing.
    pub(crate) async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        let wanted = Wanted { verb: "update", resource: LEASES };
        let path = format!("{}/{}", self.leases(), lease.metadata.name);
        let answer = self.call(wanted, Method::PUT, &path, Some(body(lease)?)).await?;
        self.written(&answer)
    }

    /// Deletes a lease if it has this uid and resource version.
    pub(crate) async fn delete(
        &self,
        name: &str,
        uid: &str,
        version: u64,
    ) -> Result<(), CallError> {
        let wanted = Wanted { verb: "delete", resource: LEASES };
        let version = version.to_string();
        let preconditions = Preconditions { uid, resource_version: &version };
        let options = DeleteOptions { kind: "DeleteOptions", api_version: "v1", preconditions };
        let path = format!("{}/{name}", self.leases());
        self.call(wanted, Method::DELETE, &path, Some(body(&options)?)).await.map(drop)
    }

    /// Watches the leases with these labels for changes after a version, with bookmarks.
    pub(crate) async fn watch(
        &self,
        selector: &str,
        after: u64,
        most: Duration,
    ) -> Result<Incoming, CallError> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&labelSelector={}&resourceVersion={after}&timeoutSeconds={}",
            self.leases(),
            escaped(selector),
            most.as_secs()
        );
        let wanted = Wanted { verb: "watch", resource: LEASES };
        let response = self.connections.stream(&path).await.map_err(unsent)?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            status => {
                let retry_after = retry_after(response.headers());
                // The reason is in the body, which is not worth waiting for.
                let answer = Answer { status, retry_after, body: Bytes::new() };
                Err(self.failed(wanted, &answer))
            }
        }
    }

    /// The namespace of the objects.
    pub(crate) fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// Reads a pod; `None` if it does not exist.
    pub(crate) async fn pod(&self, name: &str) -> Result<Option<Pod>, CallError> {
        let wanted = Wanted { verb: "get", resource: PODS };
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.options.namespace, escaped(name));
        match self.call(wanted, Method::GET, &path, None).await {
            Ok(answer) => parse(&answer.body).map(Some),
            Err(CallError::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.options.namespace)
    }

    async fn call(
        &self,
        wanted: Wanted,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Answer, CallError> {
        let answer = self.connections.call(method, path, body).await.map_err(unsent)?;
        match answer.status.is_success() {
            true => Ok(answer),
            false => Err(self.failed(wanted, &answer)),
        }
    }

    /// The object as it is after a write.
    fn written(&self, answer: &Answer) -> Result<Lease, CallError> {
        let lease: Lease = parse(&answer.body)?;
        version(&lease.metadata.resource_version)?;
        Ok(lease)
    }

    fn failed(&self, wanted: Wanted, answer: &Answer) -> CallError {
        let status: Status = serde_json::from_slice(&answer.body).unwrap_or_default();
        self.meaning(wanted, answer.status.as_u16(), status, answer.retry_after)
    }

    /// What a failure means that a watch reports within its stream.
    pub(crate) fn watch_failure(&self, status: &serde_json::value::RawValue) -> CallError {
        let status: Status = serde_json::from_str(status.get()).unwrap_or_default();
        self.meaning(Wanted { verb: "watch", resource: LEASES }, status.code, status, None)
    }

    /// What a failure means ("API conventions", section "HTTP status codes").
    fn meaning(
        &self,
        wanted: Wanted,
        code: u16,
        status: Status,
        retry_after: Option<Duration>,
    ) -> CallError {
        let Status { reason, message, details, .. } = status;
        let Wanted { verb, resource } = wanted;
        let namespace = self.options.namespace.clone();
        let why = match message.is_empty() {
            true => format!("HTTP status {code}"),
            false => message,
        };
        let in_body = Some(details.retry_after_seconds).filter(|it| *it > 0);
        let pause = retry_after.or(in_body.map(Duration::from_secs));
        match code {
            // The next attempt reads the token again.
            401 => CallError::NotSent(OpenError::Login(why), pause),
            403 => CallError::Refused(OpenError::Permission { verb, resource, namespace, why }),
            404 if details.kind == "namespaces" => {
                CallError::Refused(OpenError::Namespace { namespace })
            }
            404 if reason == "NotFound" && !details.kind.is_empty() => CallError::Conflict(why),
            409 => CallError::Conflict(why),
            410 => CallError::Expired,
            // Priority and fairness refuses a request before it is carried out.
            429 => CallError::NotSent(OpenError::Refused(why), pause),
            408 | 500.. => CallError::InDoubt(why, pause),
            _ => CallError::Refused(OpenError::Refused(why)),
        }
    }
}

fn unsent(error: SendError) -> CallError {
    match error {
        SendError::NotSent(error) if error.is_retryable() => CallError::NotSent(error, None),
        SendError::NotSent(error) => CallError::Refused(error),
        SendError::InDoubt(why) => CallError::InDoubt(why, None),
    }
}

fn body(value: &impl Serialize) -> Result<Bytes, CallError> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| CallError::Refused(OpenError::Refused(error.to_string())))?;
    Ok(text.into())
}

/// Reads an answer. One that cannot be read may still be the answer to a write that was carried out.
fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CallError> {
    serde_json::from_slice(body)
        .map_err(|error| CallError::InDoubt(format!("the answer cannot be read: {error}"), None))
}

fn version(text: &str) -> Result<u64, CallError> {
    let refused = || CallError::Refused(OpenError::Version { found: text.into() });
    revision(text).ok_or_else(refused)
}

/// The text in a query of a URL.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(byte.into());
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
