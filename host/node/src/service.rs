//! What comes from clients: checked against the deployed types, given its shard, and handed to its worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostraca_sharding::hash::shard_of;
use ostraca_sharding::ids::{Digest, Entity, Epoch, MessageId, ShardId};
use ostraca_sharding::message::{Context, Hint, Kind, Message, Outcome, Token, codes};
use ostraca_sharding::records::Answer;
use ostraca_wire::proto::{self, Envelope, Problem, Reply};
use ostraca_wire::server::{Admin, AdminAnswer, Peer, Request, Service, SessionInfo, Ticket};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::deploy::Deployer;
use crate::input::nearest;
use crate::status::Status;
use crate::types::{Table, Type, Types};
use crate::worker::Input;

/// The node, as its network side sees it.
pub(crate) struct Door {
    pub(crate) types: Types,
    pub(crate) shards: u32,
    pub(crate) clock: Arc<Clock>,
    pub(crate) workers: Vec<mpsc::UnboundedSender<Input>>,
    pub(crate) deployer: Deployer,
    pub(crate) status: Status,
    /// The next token: all the node's requests have tokens of their own, so that they may change workers.
    pub(crate) tokens: AtomicU64,
    /// Content types in use, shared: there are few, and each message would else carry a copy.
    pub(crate) content_types: Mutex<HashMap<String, Arc<str>>>,
}

/// Content types that are kept shared, and the longest of them in bytes; beyond it each message has its own.
const CONTENT_TYPES: (usize, usize) = (64, 128);

impl Door {
    /// The worker that a shard is pinned to.
    pub(crate) fn worker_of(shard: ShardId, workers: usize) -> usize {
        shard.0 as usize % workers.max(1)
    }

    fn content_type(&self, text: &str) -> Arc<str> {
        if text.len() > CONTENT_TYPES.1 {
            return text.into();
        }
        let mut shared = self.content_types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shared.get(text) {
            return known.clone();
        }
        let fresh: Arc<str> = text.into();
        if shared.len() < CONTENT_TYPES.0 {
            shared.insert(text.to_owned(), fresh.clone());
        }
        fresh
    }

    fn accept(
        &self,
        types: &Table,
        session: &SessionInfo,
        envelope: Envelope,
        held: Duration,
    ) -> Result<(ShardId, Arc<Message>), Problem> {
        let (entry, method, kind) = resolve(types, &session.peer.principal, &envelope)?;
        let now = self.clock.now().mono;
        let target = Entity { kind: entry.name.clone(), id: envelope.id.as_str().into() };
        let shard = shard_of(entry.manifest.shard_key.part(&envelope.id), self.shards);
        let held = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
        let deadline = (envelope.remaining_ms > 0)
            .then(|| now.saturating_add(envelope.remaining_ms.saturating_sub(held)));
        let message = Message {
            token: Token(self.tokens.fetch_add(1, Ordering::Relaxed)),
            digest: Digest::of(&target, &method, &envelope.body),
            target,
            id: MessageId { session: session.session, sequence: envelope.sequence },
            after: envelope.after,
            settled: envelope.settled,
            kind,
            method,
            body: envelope.body,
            age: envelope.age_ms.saturating_add(held),
            arrived: now,
            deadline,
            context: Arc::new(Context {
                principal: session.peer.principal.clone(),
                content_type: self.content_type(&envelope.content_type),
                traceparent: envelope.traceparent.into(),
            }),
        };
        Ok((shard, Arc::new(message)))
    }
}

impl Service for Door {
    async fn messages(&self, session: &Arc<SessionInfo>, batch: &mut Vec<Request>) {
        let types = self.types.now();
        let mut of_worker: Vec<Vec<(ShardId, Arc<Message>, Ticket)>> = Vec::new();
        of_worker.resize_with(self.workers.len(), Vec::new);
        for request in batch.drain(..) {
            let held = request.received.elapsed();
            match self.accept(&types, session, request.envelope, held) {
                Ok((shard, message)) => {
                    let worker = Self::worker_of(shard, self.workers.len());
                    of_worker[worker].push((shard, message, request.ticket));
                }
                Err(problem) => request.ticket.not_run(problem),
            }
        }
        for (worker, messages) in of_worker.into_iter().enumerate() {
            // A worker that has ended takes its tickets with it: they say `unknown`.
            if !messages.is_empty() {
                let _ = self.workers[worker].send(Input::Messages(messages));
            }
        }
    }

    async fn admin(&self, peer: &Arc<Peer>, request: Admin) -> Result<AdminAnswer, Problem> {
        match request {
            Admin::Deploy(upload) => {
                self.deployer.deploy(&peer.principal, upload).await.map(AdminAnswer::Deployed)
            }
            Admin::Deployments => {
                let types = self.types.now();
                let mut list: Vec<_> = types.values().map(|entry| deployment(entry)).collect();
                list.sort_by(|a, b| a.r#type.cmp(&b.r#type));
                Ok(AdminAnswer::Deployments(list))
            }
            Admin::Methods(name) => {
                let types = self.types.now();
                let entry = types.get(name.as_str()).ok_or_else(|| unknown_type(&types, &name))?;
                Ok(AdminAnswer::Methods(methods(entry)))
            }
            Admin::Status => Ok(AdminAnswer::Status(Box::new(self.status.now(&self.types)))),
            Admin::Node => Ok(AdminAnswer::Node(self.status.node())),
            Admin::Nodes
            | Admin::Shards
            | Admin::Entities(_)
            | Admin::Inspect(_)
            | Admin::Drain { .. }
            | Admin::Plan
            | Admin::Rebalance
            | Admin::Events(_) => {
                Err(problem("not-supported-yet", "this node cannot tell that yet", ""))
            }
        }
    }
}

/// The type and method that an envelope names, if its sender may use them so.
fn resolve<'a>(
    types: &'a Table,
    principal: &str,
    envelope: &Envelope,
) -> Result<(&'a Arc<Type>, Arc<str>, Kind), Problem> {
    if !matches!(envelope.namespace.as_str(), "" | crate::ownership::NAMESPACE) {
        return Err(problem(
            "unknown-namespace",
            format!("there is no namespace `{}`; this cluster has `default`", envelope.namespace),
            "leave the namespace empty",
        ));
    }
    let entry =
        types.get(envelope.r#type.as_str()).ok_or_else(|| unknown_type(types, &envelope.r#type))?;
    if !entry.admits(principal) {
        return Err(problem(
            "access-denied",
            format!("`{principal}` may not send to `{}`", entry.name),
            "the type's manifest says who may, under `[access] send`",
        ));
    }
    let Some((method, kind)) = entry.method(&envelope.method) else {
        let known: Vec<_> = entry.program.methods().iter().map(|m| m.name.as_str()).collect();
        let mut problem = problem(
            "unknown-method",
            format!("`{}` has no method `{}`", entry.name, envelope.method),
            "",
        );
        problem.help = match nearest(&envelope.method, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? it has: {}", known.join(", ")),
            None => format!("it has: {}", known.join(", ")),
        };
        problem.details.insert("methods".into(), known.join(","));
        return Err(problem);
    };
    let asked = proto::Kind::try_from(envelope.kind).unwrap_or(proto::Kind::Unspecified);
    if asked != proto::Kind::Unspecified && asked != wire_kind(*kind) {
        return Err(problem(
            "wrong-kind",
            format!("`{}.{method}` is a {}", entry.name, word(*kind)),
            "send it as what it is, or leave the kind open",
        ));
    }
    let limit = entry.manifest.limits.message;
    if envelope.body.len() as u64 > limit {
        let text =
            format!("a body of {} bytes; `{}` takes {limit}", envelope.body.len(), entry.name);
        return Err(problem(
            "message-too-large",
            text,
            "send less, or raise `limits.message` in the type's manifest",
        ));
    }
    Ok((entry, method.clone(), *kind))
}

fn unknown_type(types: &Table, name: &str) -> Problem {
    let near = nearest(name, types.keys().map(|known| &**known));
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`ostraca deployments` lists what is deployed".into(),
    };
    let mut problem = problem(codes::UNKNOWN_TYPE, format!("no type `{name}` is deployed"), &help);
    if let Some(near) = near {
        problem.details.insert("nearest".into(), near.into());
    }
    problem
}

fn deployment(entry: &Type) -> proto::Deployment {
    proto::Deployment {
        namespace: crate::ownership::NAMESPACE.into(),
        r#type: entry.name.to_string(),
        revision: entry.revision,
        digest: entry.component.to_vec().into(),
        pool: entry.manifest.pool.clone(),
        component_size: entry.component_size,
    }
}

fn methods(entry: &Type) -> proto::Methods {
    let methods = entry.program.methods().iter().map(|method| proto::Method {
        name: method.name.clone(),
        kind: match method.kind {
            ostraca_wasm::Kind::Command => proto::Kind::Command,
            ostraca_wasm::Kind::Query => proto::Kind::Query,
        }
        .into(),
    });
    proto::Methods {
        r#type: entry.name.to_string(),
        revision: entry.revision,
        methods: methods.collect(),
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Command => "command",
        Kind::Query => "query",
    }
}

fn wire_kind(kind: Kind) -> proto::Kind {
    match kind {
        Kind::Command => proto::Kind::Command,
        Kind::Query => proto::Kind::Query,
    }
}

/// A problem that will not pass by itself.
pub(crate) fn problem(code: &str, message: impl Into<String>, help: &str) -> Problem {
    Problem { code: code.into(), message: message.into(), help: help.into(), ..Problem::default() }
}

/// The answer for a shard that no machine of this node has.
pub(crate) fn not_owner(shard: ShardId) -> Problem {
    Problem {
        retryable: true,
        retry_after_ms: 100,
        ..problem(codes::NOT_OWNER, format!("shard {shard} is not on this node"), "")
    }
}

/// What a refusal tells the sender's gateway: `epoch`, and where the owner is known `owner`, `incarnation`, `nonce`.
fn hint_details(hint: &Hint) -> BTreeMap<String, String> {
    let mut details = BTreeMap::from([("epoch".into(), hint.epoch.0.to_string())]);
    if let Some(owner) = &hint.owner {
        details.insert("owner".into(), owner.node.to_string());
        details.insert("incarnation".into(), owner.incarnation.counter.to_string());
        details.insert("nonce".into(), owner.incarnation.nonce.to_string());
    }
    details
}

/// A message's end, as it goes over the wire.
pub(crate) fn reply(outcome: Outcome, kind: Kind, epoch: Epoch) -> Reply {
    let kind = wire_kind(kind).into();
    let base = Reply { epoch: epoch.0, kind, ..Reply::default() };
    match outcome {
        Outcome::Final { answer: Answer::Result(body), version } => {
            Reply { outcome: proto::Outcome::Result.into(), entity_version: version, body, ..base }
        }
        Outcome::Final { answer: Answer::Error { code, message }, version } => Reply {
            outcome: proto::Outcome::Error.into(),
            entity_version: version,
            problem: Some(Problem { code, message, ..Problem::default() }),
            ..base
        },
        Outcome::NotRun { code, message, retry_after, hint } => Reply {
            outcome: proto::Outcome::NotRun.into(),
            problem: Some(Problem {
                code: code.into_owned(),
                message,
                retryable: retry_after.is_some(),
                retry_after_ms: retry_after.unwrap_or(0).into(),
                details: hint.map(|hint| hint_details(&hint)).unwrap_or_default(),
                ..Problem::default()
            }),
            ..base
        },
        Outcome::Unknown { message } => Reply {
            outcome: proto::Outcome::Unknown.into(),
            problem: Some(Problem {
                help: "send it again under the same id".into(),
                retryable: true,
                ..problem("unknown", message, "")
            }),
            ..base
        },
    }
}
