//! The requests to a test API server, and its answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedSender};
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::faults::Fault;
use super::objects::{Change, Failure, Id, expired, group, kind};
use super::{Server, State};

/// "API conventions": requests are limited to 3 MiB.
const MAX_BODY: usize = 3 << 20;
/// How long a watch lasts if its request does not say so: servers choose 30 to 60 minutes.
const WATCH_SECONDS: u64 = 1800;

pub(super) type Body = BoxBody<Bytes, Cut>;

/// The connection closes here.
#[derive(Debug)]
pub(super) struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is cut")
    }
}

impl std::error::Error for Cut {}

/// Where a request goes.
struct Target {
    resource: &'static str,
    namespace: String,
    name: Option<String>,
    query: HashMap<String, String>,
}

impl Target {
    /// The paths of "Kubernetes API Concepts", section "Resource URIs".
    fn parse(path: &str, query: &str) -> Option<Self> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (resource, rest) = match &parts[..] {
            ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", rest @ ..] => {
                (("leases", namespace), rest)
            }
            ["api", "v1", "namespaces", namespace, "pods", rest @ ..] => {
                (("pods", namespace), rest)
            }
            _ => return None,
        };
        let name = match rest {
            [] => None,
            [name] => Some(unescaped(name)),
            _ => return None,
        };
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(key, value)| (unescaped(key), unescaped(value))).collect();
        Some(Self { resource: resource.0, namespace: unescaped(resource.1), name, query })
    }

    fn get(&self, key: &str) -> &str {
        self.query.get(key).map(String::as_str).unwrap_or_default()
    }

    fn is_watch(&self) -> bool {
        matches!(self.get("watch"), "1" | "true")
    }

    /// The verbs of "Authorization Overview", section "Determine the Request Verb".
    fn verb(&self, method: &Method) -> &'static str {
        match (method.as_str(), &self.name) {
            ("GET", Some(_)) => "get",
            ("GET", None) if self.is_watch() => "watch",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            _ => "delete",
        }
    }

    fn id(&self, name: &str) -> Id {
        Id { resource: self.resource, namespace: self.namespace.clone(), name: name.into() }
    }
}

fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, more)) = rest.split_first() {
        let hex = |at: usize| more.get(at).and_then(|it| char::from(*it).to_digit(16));
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &more[2..];
            }
            _ => {
                bytes.push(byte);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Selectors of "Labels and Selectors" and "Field Selectors", as far as clients use them here.
#[derive(Clone)]
struct Selector {
    /// Labels with their values; `None`: any value.
    labels: Vec<(String, Option<String>)>,
    name: Option<String>,
}

impl Selector {
    fn new(target: &Target) -> Result<Self, Failure> {
        let bad = |text: &str| {
            Failure::new(400, "BadRequest", format!("unable to parse requirement: {text}"))
        };
        let mut labels = Vec::new();
        for one in target.get("labelSelector").split(',').filter(|it| !it.is_empty()) {
            let (key, value) = match one.split_once('=') {
                Some((key, value)) => (key, Some(value.trim_start_matches('=').to_owned())),
                None => (one, None),
            };
            if key.contains(['!', '(', ' ']) || value.as_ref().is_some_and(|it| it.contains('=')) {
                return Err(bad(one));
            }
            labels.push((key.into(), value));
        }
        let name = match target.get("fieldSelector") {
            "" => None,
            field => match field.split_once('=') {
                Some(("metadata.name", name)) => Some(name.into()),
                _ => return Err(bad(field)),
            },
        };
        Ok(Self { labels, name })
    }

    fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let named = self.name.as_ref().is_none_or(|name| metadata["name"] == name.as_str());
        named
            && self.labels.iter().all(|(key, wanted)| {
                let has = metadata["labels"][key].as_str();
                has.is_some_and(|has| wanted.as_ref().is_none_or(|wanted| wanted == has))
            })
    }
}

/// Answers a request. An error closes the connection.
pub(super) async fn answer(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let target = Target::parse(&path, head.uri.query().unwrap_or_default());
    let is_creation = head.method == Method::POST;
    let is_watch = target.as_ref().is_some_and(Target::is_watch);
    let (fault, delay) = {
        let mut state = server.lock();
        if let Some(target) = &target {
            let verb = format!("{} {}", target.verb(&head.method), target.resource);
            *state.requests.entry(verb).or_default() += 1;
        }
        match &mut state.faults {
            Some(faults) => {
                let conflicts = head.method == Method::PUT && faults.conflicts();
                let fault =
                    if conflicts { Some(Fault::Conflict) } else { faults.of_request(is_creation) };
                (fault, faults.delay())
            }
            None => (None, Duration::ZERO),
        }
    };
    let body = Limited::new(body, MAX_BODY).collect().await.map(|it| it.to_bytes());
    sleep(delay).await;
    match fault {
        Some(Fault::CutBefore) => return Err(Cut),
        Some(Fault::Throttled) => {
            // "API Priority and Fairness": requests are rejected with 429.
            let message = "Too many requests, please try again later.";
            return Ok(failure(&Failure::new(429, "TooManyRequests", message), Some(1)));
        }
        Some(Fault::Unavailable) => {
            let message = "apiserver is shutting down";
            return Ok(failure(&Failure::new(503, "ServiceUnavailable", message), None));
        }
        Some(Fault::Conflict) => {
            let message = "Operation cannot be fulfilled: the object has been modified";
            return Ok(failure(&Failure::new(409, "Conflict", message), None));
        }
        Some(Fault::TimedOut(false)) => return Ok(timed_out()),
        Some(Fault::TimedOut(true) | Fault::CutAfter) | None => {}
    }
    let answered = match (body, target) {
        (Err(_), _) => Err(Failure::new(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        )),
        (Ok(_), None) if path == "/version" => {
            Ok(json(200, &json!({ "major": "1", "minor": "20", "gitVersion": "v1.20.2" })))
        }
        (Ok(_), None) => {
            Err(Failure::new(404, "NotFound", "the server could not find the requested resource"))
        }
        (Ok(body), Some(target)) => {
            let token = head.headers.get(AUTHORIZATION).map(|it| it.as_bytes().to_vec());
            let allowed = server.lock().allow(token, target.verb(&head.method), &target);
            match allowed {
                Err(failure) => Err(failure),
                Ok(()) if is_watch => watch(&server, &target),
                Ok(()) => carry_out(&mut server.lock(), &head.method, &target, &body),
            }
        }
    };
    server.changed.send_modify(|_| {});
    match fault {
        Some(Fault::CutAfter) => Err(Cut),
        Some(Fault::TimedOut(_)) => Ok(timed_out()),
        _ => Ok(answered.unwrap_or_else(|refused| failure(&refused, None))),
    }
}

fn timed_out() -> Response<Body> {
    failure(&Failure::new(500, "InternalError", "etcdserver: request timed out"), None)
}

fn json(code: u16, value: &Value) -> Response<Body> {
    let body =
        Full::new(Bytes::from(value.to_string())).map_err(|never: Infallible| match never {});
    let response = Response::builder().status(code).header(CONTENT_TYPE, "application/json");
    response.body(body.boxed()).expect("a response")
}

fn failure(failure: &Failure, retry_after: Option<u64>) -> Response<Body> {
    let mut response = json(failure.code, &failure.status());
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

impl State {
    /// "Authenticating" and "Authorization Overview": an unknown token is refused with 401, a request without one is
    /// of the user `system:anonymous`, and what no rule allows is refused with 403.
    fn allow(
        &self,
        token: Option<Vec<u8>>,
        verb: &'static str,
        target: &Target,
    ) -> Result<(), Failure> {
        let Some(users) = &self.users else { return Ok(()) };
        let token = token.map(|it| String::from_utf8_lossy(&it).into_owned());
        let token = token.as_deref().and_then(|it| it.strip_prefix("Bearer "));
        let verbs = match token {
            None => None,
            Some(token) => match users.get(token) {
                Some(verbs) => Some(verbs),
                None => return Err(Failure::new(401, "Unauthorized", "Unauthorized")),
            },
        };
        let wanted = format!("{verb} {}", target.resource);
        if verbs.is_some_and(|verbs| verbs.contains(&wanted)) {
            return Ok(());
        }
        let user =
            if token.is_some() { "system:serviceaccount:default:node" } else { "system:anonymous" };
        let (resource, namespace) = (target.resource, &target.namespace);
        let message = format!(
            "{resource}.{} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {:?} in the \
             namespace {namespace:?}",
            group(resource),
            group(resource)
        );
        Err(Failure::new(403, "Forbidden", message))
    }
}

/// Carries out a request that is not a watch.
fn carry_out(
    state: &mut MutexGuard<'_, State>,
    method: &Method,
    target: &Target,
    body: &[u8],
) -> Result<Response<Body>, Failure> {
    let object = || {
        serde_json::from_slice::<Value>(body)
            .map_err(|error| Failure::new(400, "BadRequest", error.to_string()))
    };
    match (method.as_str(), &target.name) {
        ("GET", None) => list(state, target),
        ("GET", Some(name)) => state.objects.read(&target.id(name)).map(|it| json(200, &it)),
        ("POST", None) => {
            let object = object()?;
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            // "Dry-run": everything is checked, and nothing is stored.
            let created = match target.get("dryRun") {
                "All" => state.objects.clone().create(target.id(&name), object),
                _ => state.objects.create(target.id(&name), object),
            };
            created.map(|it| json(201, &it))
        }
        ("PUT", Some(name)) => {
            state.objects.replace(target.id(name), object()?).map(|(code, it)| json(code, &it))
        }
        ("DELETE", Some(name)) => {
            let options = if body.is_empty() { json!({}) } else { object()? };
            state.objects.delete(target.id(name), &options).map(|it| json(200, &it))
        }
        _ => Err(Failure::new(405, "MethodNotAllowed", "the server does not allow this method")),
    }
}

/// A page of a list: "Kubernetes API Concepts", section "Retrieving large results sets in chunks". Without a resource
/// version, it is the most recent one ("Semantics for get and list"); the following pages are of the same version.
fn list(state: &mut MutexGuard<'_, State>, target: &Target) -> Result<Response<Body>, Failure> {
    let selector = Selector::new(target)?;
    let asked = target.get("resourceVersion");
    if asked.parse::<u64>().is_ok_and(|asked| asked > state.objects.version()) {
        // "Unavailable resource versions".
        let message =
            format!("Too large resource version: {asked}, current: {}", state.objects.version());
        return Err(Failure::new(504, "Timeout", message));
    }
    let (mut version, mut from) = (state.objects.version(), String::new());
    if !target.get("continue").is_empty() {
        let invalid = || Failure::new(400, "BadRequest", "continue key is not valid");
        let token = URL_SAFE_NO_PAD.decode(target.get("continue")).map_err(|_| invalid())?;
        let token: Value = serde_json::from_slice(&token).map_err(|_| invalid())?;
        version = token["rv"].as_u64().ok_or_else(invalid)?;
        from = token["start"].as_str().ok_or_else(invalid)?.into();
        if state.faults.as_mut().is_some_and(|faults| faults.page_expires()) {
            return Err(expired());
        }
    }
    let objects = state.objects.at(target.resource, &target.namespace, version)?;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut found: Vec<_> =
        objects.iter().filter(|it| name(it) >= from && selector.matches(it)).collect();
    let limit = target.get("limit").parse::<usize>().ok().filter(|limit| *limit > 0);
    let rest = limit.filter(|limit| found.len() > *limit).map(|limit| found.split_off(limit));
    let shown = if state.versions_are_opaque { format!("v{version}") } else { version.to_string() };
    let mut metadata = json!({ "resourceVersion": shown });
    if let Some(rest) = rest {
        let token = json!({ "rv": version, "start": name(rest[0]) }).to_string();
        metadata["continue"] = URL_SAFE_NO_PAD.encode(token).into();
        if selector.labels.is_empty() {
            metadata["remainingItemCount"] = rest.len().into();
        }
    }
    let (kind, api_version) = kind(target.resource);
    let items: Vec<&Value> = found.into_iter().map(|it| &**it).collect();
    Ok(json(
        200,
        &json!({
            "kind": format!("{kind}List"), "apiVersion": api_version, "metadata": metadata, "items": items,
        }),
    ))
}

/// A watch: "Kubernetes API Concepts", sections "Efficient detection of changes" and "Watch bookmarks".
fn watch(server: &Arc<Server>, target: &Target) -> Result<Response<Body>, Failure> {
    let selector = Selector::new(target)?;
    let invalid = || Failure::new(400, "BadRequest", "invalid resourceVersion");
    let after = target.get("resourceVersion").parse().map_err(|_| invalid())?;
    // A version that is too old is reported within the stream, as kube-apiserver does it with its watch cache.
    let seconds = target.get("timeoutSeconds").parse().unwrap_or(WATCH_SECONDS);
    let (lines, sent) = mpsc::unbounded();
    let watching = Watching {
        server: server.clone(),
        resource: target.resource,
        namespace: target.namespace.clone(),
        selector,
        after,
        bookmarks: target.get("allowWatchBookmarks") == "true",
        until: Instant::now() + Duration::from_secs(seconds),
        lines,
    };
    tokio::spawn(watching.run());
    let frames = sent.map(|line: Result<Value, Cut>| {
        line.map(|line| Frame::data(Bytes::from(format!("{line}\n"))))
    });
    let body = BodyExt::boxed(StreamBody::new(frames));
    let response = Response::builder().status(200).header(CONTENT_TYPE, "application/json");
    Ok(response.body(body).expect("a response"))
}

struct Watching {
    server: Arc<Server>,
    resource: &'static str,
    namespace: String,
    selector: Selector,
    after: u64,
    bookmarks: bool,
    until: Instant,
    lines: UnboundedSender<Result<Value, Cut>>,
}

impl Watching {
    async fn run(mut self) {
        let mut changed = self.server.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Err(end) = self.send_changes(false) {
                return self.end(end).await;
            }
            let bookmark = Instant::now() + self.server.bookmark_interval;
            match timeout_at(bookmark.min(self.until), changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    if let Err(end) = self.send_changes(true) {
                        return self.end(end).await;
                    }
                    if Instant::now() >= self.until {
                        return;
                    }
                }
            }
        }
    }

    /// Ends the watch. The events before the end have left.
    async fn end(self, end: Option<Result<Value, Cut>>) {
        sleep(Duration::from_millis(2)).await;
        drop(end.map(|end| self.lines.unbounded_send(end)));
    }

    fn send(&self, event: Value) -> Result<(), Option<Result<Value, Cut>>> {
        self.lines.unbounded_send(Ok(event)).map_err(|_| None)
    }

    /// Sends the changes since the last ones, and a bookmark.
    ///
    /// # Errors
    /// What ends the watch; `None` if the client has left.
    fn send_changes(&mut self, bookmark: bool) -> Result<(), Option<Result<Value, Cut>>> {
        let server = self.server.clone();
        let mut state = server.lock();
        if state.watches_are_silent {
            return Ok(());
        }
        let changes = state.objects.after(self.after);
        let changes = changes.map_err(|expired| Some(Ok(error_event(&expired))))?;
        for change in changes {
            self.after = change.version;
            let Some(event) = self.event(&change) else { continue };
            self.send(event)?;
            let Some(faults) = &mut state.faults else { continue };
            if faults.watch_ends() {
                return Err(Some(match faults.watch_expires() {
                    // Servers report an expired watch within the stream.
                    true => {
                        Ok(error_event(&Failure::new(410, "Expired", "too old resource version")))
                    }
                    false => Err(Cut),
                }));
            }
        }
        self.after = self.after.max(state.objects.version());
        if bookmark && self.bookmarks {
            let (kind, api_version) = kind(self.resource);
            let metadata = json!({ "resourceVersion": self.after.to_string() });
            let object = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
            let event = json!({ "type": "BOOKMARK", "object": object });
            self.send(event)?;
            state.bookmarks += 1;
        }
        Ok(())
    }

    /// The change as this watch sees it: an object that begins to match was added, one that no longer does was deleted.
    fn event(&self, change: &Change) -> Option<Value> {
        if change.id.resource != self.resource || change.id.namespace != self.namespace {
            return None;
        }
        let matching = |object: &Option<Arc<Value>>| {
            object.clone().filter(|object| self.selector.matches(object))
        };
        let (kind, object) = match (matching(&change.before), matching(&change.after)) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", Value::clone(&after)),
            (Some(_), Some(after)) => ("MODIFIED", Value::clone(&after)),
            (Some(before), None) => {
                // API reference of `WatchEvent`: the state before the deletion. Its version is that of the deletion.
                let mut object = Value::clone(&before);
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                ("DELETED", object)
            }
        };
        Some(json!({ "type": kind, "object": object }))
    }
}

fn error_event(failure: &Failure) -> Value {
    json!({ "type": "ERROR", "object": failure.status() })
}
