//! The clients of all languages behind one interface: the Rust client over QUIC in this process, and the others over
//! HTTP, each in a process of its own that carries out one request a line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{
    CallError, CallOptions, ChannelEvent, Client, Entity, MessageKind, Profile, Session,
    SubscribeFrom,
};
use ostraca_process_tests::artifacts;
use ostraca_test_servers::browser::{chromium, install_from_npm, node_and_npm};
use ostraca_test_servers::free_port;
use ostraca_test_servers::python::environment;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// What the Python client needs, and what checks its types.
const PYTHON: [&str; 2] = ["httpx==0.28.1", "mypy==2.4.1"];
/// How long any request may take.
const LONGEST: Duration = Duration::from_secs(120);

/// A call of an entity's method.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kind: MessageKind,
    pub(crate) entity: (String, String),
    pub(crate) method: String,
    pub(crate) arguments: Value,
    /// Whether clients over HTTP send a key of their own.
    pub(crate) keyed: bool,
    pub(crate) timeout: Duration,
}

impl Call {
    fn new(kind: MessageKind, (entity_type, id): (&str, &str), method: &str) -> Self {
        let entity = (entity_type.to_owned(), id.to_owned());
        let (method, arguments) = (method.to_owned(), Value::Null);
        Self { kind, entity, method, arguments, keyed: false, timeout: Duration::from_secs(30) }
    }

    pub(crate) fn command(entity: (&str, &str), method: &str, arguments: Value) -> Self {
        Self { arguments, ..Self::new(MessageKind::Command, entity, method) }
    }

    pub(crate) fn query(entity: (&str, &str), method: &str, arguments: Value) -> Self {
        Self { arguments, ..Self::new(MessageKind::Query, entity, method) }
    }

    /// The same, so that it can be sent again.
    pub(crate) fn keyed(self) -> Self {
        Self { keyed: true, ..self }
    }

    pub(crate) fn within(self, milliseconds: u64) -> Self {
        Self { timeout: Duration::from_millis(milliseconds), ..self }
    }
}

/// A call's result: its value, and the entity's version; or its outcome, and the code of its error.
pub(crate) type Answer = Result<(Value, u64), (String, String)>;

/// An item of a channel, with its version and its cursor.
pub(crate) type Item = (Value, u64, String);

/// Where a client finds its nodes: over QUIC and over HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Gateways {
    pub(crate) profile: Profile,
    pub(crate) http: Vec<String>,
    /// Used one after the other; the Rust client has a certificate.
    pub(crate) tokens: Vec<String>,
    /// SHA-256 of the gateways' certificate, or empty if they have one that authorities have signed: pages then use
    /// WebTransport.
    pub(crate) certificate: Option<String>,
}

/// Clients of the Rust library, by the names that conversations give them.
type RustClients = BTreeMap<String, (Arc<Client>, Session)>;

/// A client of some language.
#[derive(Clone)]
pub(crate) enum Caller {
    Rust(Arc<Mutex<RustClients>>),
    Other(Arc<Driver>),
}

impl Caller {
    /// One caller of each language, and their names.
    pub(crate) fn all() -> Result<Vec<(&'static str, Self)>> {
        let [client, _] = typescript()?;
        let (node, _) = node_and_npm();
        let mut python = Command::new(python()?);
        python
            .arg(script("python.py"))
            .env("PYTHONPATH", artifacts::root().join("host/client/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Ok(vec![
            ("Rust", Self::Rust(Arc::default())),
            (
                "TypeScript in Node.js",
                Self::Other(Driver::start(scripted("node.mjs", &node, &client))?),
            ),
            ("TypeScript in Chromium", Self::page()?),
            ("Python", Self::Other(Driver::start(python)?)),
        ])
    }

    /// The TypeScript client on a page in a browser.
    pub(crate) fn page() -> Result<Self> {
        Self::page_with(&[])
    }

    /// The same, with these variables for its script.
    pub(crate) fn page_with(variables: &[(&str, String)]) -> Result<Self> {
        let [client, _] = typescript()?;
        let (node, _) = node_and_npm();
        let playwright = artifacts::scratch("browser")?;
        install_from_npm(&artifacts::root().join("tests/process/browser"), &playwright);
        let mut browser = scripted("browser.mjs", &node, &client);
        browser
            .env("PLAYWRIGHT", playwright.join("node_modules/playwright-core"))
            .env("CHROMIUM", chromium())
            .env("PORT", free_port().to_string())
            .envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(Self::Other(Driver::start(browser)?))
    }

    /// The protocols of the responses that a page has received over TLS.
    pub(crate) async fn protocols(&self) -> Result<Value> {
        let Self::Other(driver) = self else { bail!("not a page") };
        driver.ask(json!({"op": "protocols"})).await
    }

    /// Makes a client with this name.
    pub(crate) async fn connect(&self, name: &str, gateways: &Gateways) -> Result<()> {
        match self {
            Self::Rust(clients) => {
                let client = Client::connect(gateways.profile.clone()).await?;
                let session = client.session();
                let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.insert(name.to_owned(), (Arc::new(client), session));
                Ok(())
            }
            Self::Other(driver) => {
                let Gateways { http, tokens, certificate, .. } = gateways;
                let request = json!({
                    "op": "connect", "client": name, "addresses": http, "tokens": tokens,
                    "certificate": certificate,
                });
                let answer = driver.ask(request).await?;
                ensure!(answer == json!({}), "cannot connect: {answer}");
                Ok(())
            }
        }
    }

    pub(crate) async fn call(&self, client: &str, call: Call) -> Result<Answer> {
        match self {
            Self::Rust(_) => {
                let session = self.client(client)?.1;
                let entity = Entity::new(call.entity.0.as_str(), call.entity.1.as_str());
                let options = CallOptions {
                    kind: call.kind,
                    timeout: call.timeout,
                    ..CallOptions::default()
                };
                let body = match call.arguments {
                    Value::Null => Vec::new(),
                    value => serde_json::to_vec(&value)?,
                };
                let reply = session.send(&entity, &call.method, body, &options).await;
                Ok(match reply {
                    Ok(reply) if reply.body.is_empty() => Ok((Value::Null, reply.version)),
                    Ok(reply) => Ok((serde_json::from_slice(&reply.body)?, reply.version)),
                    Err(error) => Err((outcome(&error).to_owned(), error.code().to_owned())),
                })
            }
            Self::Other(driver) => {
                let op = if call.kind == MessageKind::Query { "query" } else { "command" };
                let millis = u64::try_from(call.timeout.as_millis())?;
                let mut options = json!({"timeout": millis});
                if call.keyed {
                    options["key"] = true.into();
                }
                let (entity_type, id) = call.entity;
                let request = json!({
                    "op": op, "client": client, "type": entity_type, "id": id,
                    "method": call.method, "args": call.arguments, "options": options,
                });
                let answer = driver.ask(request).await?;
                Ok(match answer.get("error") {
                    Some(error) => Err((text(error, "outcome")?, text(error, "code")?)),
                    None => {
                        let version = answer["version"].as_u64().context("no version")?;
                        Ok((answer["value"].clone(), version))
                    }
                })
            }
        }
    }

    /// Follows a channel for some items; the code of an error.
    pub(crate) async fn follow(
        &self,
        client: &str,
        (entity_type, id): (&str, &str),
        (channel, from): (&str, Value),
        count: usize,
    ) -> Result<Result<Vec<Item>, String>> {
        match self {
            Self::Rust(_) => {
                let entity = Entity::new(entity_type, id);
                let from = match (&from["after"], &from["from"]) {
                    (Value::String(cursor), _) => SubscribeFrom::After(cursor.clone()),
                    (_, Value::String(text)) if text == "oldest" => SubscribeFrom::Oldest,
                    (_, Value::Object(it)) => SubscribeFrom::AfterVersion(
                        it.get("version").and_then(Value::as_u64).context("a version")?,
                    ),
                    _ => SubscribeFrom::Now,
                };
                let mut following = self.client(client)?.0.subscribe(&entity, channel, from);
                let mut items = Vec::new();
                while items.len() < count {
                    match timeout(LONGEST, following.next()).await? {
                        Ok(ChannelEvent::Item(item)) => {
                            let data = serde_json::from_slice(&item.data)?;
                            items.push((data, item.version, item.cursor));
                        }
                        Ok(ChannelEvent::Lost(count)) => bail!("{count:?} items are lost"),
                        Err(error) => return Ok(Err(error.0.code.clone())),
                    }
                }
                Ok(Ok(items))
            }
            Self::Other(driver) => {
                let request = json!({
                    "op": "follow", "client": client, "type": entity_type, "id": id,
                    "name": channel, "options": from, "count": count,
                });
                let answer = driver.ask(request).await?;
                if let Some(error) = answer.get("error") {
                    return Ok(Err(text(error, "code")?));
                }
                let events = answer["events"].as_array().context("no events")?;
                let item = |event: &Value| {
                    ensure!(event["type"] == "item", "{event}");
                    let version = event["version"].as_u64().context("no version")?;
                    Ok((event["item"].clone(), version, text(event, "cursor")?))
                };
                Ok(Ok(events.iter().map(item).collect::<Result<_>>()?))
            }
        }
    }

    fn client(&self, name: &str) -> Result<(Arc<Client>, Session)> {
        let Self::Rust(clients) = self else { bail!("not the Rust client") };
        let clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.get(name).cloned().with_context(|| format!("no client {name}"))
    }
}

fn outcome(error: &CallError) -> &'static str {
    match error {
        CallError::Application { .. } => "application-error",
        CallError::ReplyDropped { .. } => "reply-dropped",
        CallError::NotRun { .. } => "not-run",
        CallError::Unanswered { .. } => "unanswered",
        CallError::Unknown { .. } => "unknown",
    }
}

fn text(value: &Value, member: &str) -> Result<String> {
    let text = value[member].as_str().with_context(|| format!("no {member}: {value}"))?;
    Ok(text.to_owned())
}

/// The path of a script.
fn script(name: &str) -> PathBuf {
    artifacts::root().join("tests/process/clients").join(name)
}

/// Runs a script with the compiled TypeScript client.
fn scripted(name: &str, node: &Path, client: &Path) -> Command {
    let module = format!("file://{}", client.join("dist/index.js").display());
    let mut command = Command::new(node);
    command.arg(script(name)).env("CLIENT", module);
    command
}

/// The TypeScript client, compiled, and the program that compiles.
pub(crate) fn typescript() -> Result<[PathBuf; 2]> {
    let client = artifacts::scratch("typescript")?;
    install_from_npm(&artifacts::root().join("host/client/typescript"), &client);
    let compiler = client.join("node_modules/.bin/tsc");
    let output = std::process::Command::new(&compiler).current_dir(&client).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "the TypeScript client does not compile:\n{said}");
    Ok([client, compiler])
}

/// Python with what its client needs.
pub(crate) fn python() -> Result<PathBuf> {
    Ok(environment(&PYTHON, &artifacts::scratch("pypi")?).join("bin/python"))
}

/// A process that carries out requests, and is killed with the value.
pub(crate) struct Driver {
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>,
    next: AtomicU64,
    _process: Child,
}

impl Driver {
    fn start(mut command: Command) -> Result<Arc<Self>> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().with_context(|| format!("start {command:?}"))?;
        let input = process.stdin.take().context("a pipe")?;
        let mut lines = BufReader::new(process.stdout.take().context("a pipe")?).lines();
        let waiting: Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>> = Arc::default();
        let answered = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(mut answer) = serde_json::from_str::<Value>(&line) else {
                    eprintln!("  {line}");
                    continue;
                };
                let number = answer["number"].as_u64().unwrap_or_default();
                let sender =
                    answered.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                if let Some(sender) = sender {
                    // The conversation may have given up.
                    let _ = sender.send(answer["answer"].take());
                }
            }
            // Whoever waits learns that there is no answer.
            answered.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        let input = tokio::sync::Mutex::new(input);
        Ok(Arc::new(Self { input, waiting, next: AtomicU64::new(1), _process: process }))
    }

    async fn ask(&self, request: Value) -> Result<Value> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        let line = json!({"number": number, "request": request}).to_string() + "\n";
        self.input.lock().await.write_all(line.as_bytes()).await?;
        let answer = timeout(LONGEST, answer).await.with_context(|| format!("{request}"))?;
        answer.with_context(|| format!("the client's process has ended: {request}"))
    }
}
