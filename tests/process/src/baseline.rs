//! The bare parts combined: a QUIC stream, the counter's sandbox, a group commit with sync, the reply.
//!
//! No other part of the platform is involved: no routing, no ownership, no duplicate detection, no limits except the
//! sandbox's, and no state that is read back. The platform's own cost is measured against this. Requests and replies
//! are as long as the echo's and begin with the number of the entity.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc as queue;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use ostraca_wasm::{
    CompilerProgram, CompilerSettings, EntityIdentity, Instance, InstanceLimits, InstanceSpec,
    MessageContext, MessageKind, NoState, Program, RuntimeSettings, StartReason, TurnRecords,
    TurnResult, TurnValues, WasmRuntime,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::echo;

/// The component's name in the directory.
pub const COMPONENT: &str = "counter.wasm";
/// Maximum number of turns per batch that is made durable.
const BATCH: usize = 1_024;

/// A request, and the channel that waits for its completion.
struct Request {
    entity: u64,
    done: oneshot::Sender<()>,
}

/// A turn to be made durable.
struct Commit {
    entity: u64,
    writes: Vec<(Bytes, Option<Bytes>)>,
    done: oneshot::Sender<()>,
}

/// Serves until the process is killed; prints `ready: … at ADDRESS` first.
///
/// # Errors
/// If it cannot listen, compile or open its store.
#[allow(clippy::print_stdout, reason = "it prints its address")]
pub async fn serve(dir: &Path, size: usize) -> Result<()> {
    let compiler =
        CompilerSettings { program: CompilerProgram::InProcess, ..CompilerSettings::default() };
    let host = WasmRuntime::new(&RuntimeSettings { compiler, ..RuntimeSettings::default() })?;
    let program =
        host.prepare(std::fs::read(dir.join(COMPONENT))?, InstanceLimits::default()).await?;
    let commits = committer(dir)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let workers: Result<Vec<_>> =
        (0..threads).map(|_| worker(program.clone(), commits.clone())).collect();
    let workers: Arc<[_]> = workers?.into();
    let endpoint = echo::listen(dir)?;
    println!("ready: joined at {}", endpoint.local_addr()?);
    let mut tasks = JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        let workers = workers.clone();
        tasks.spawn(async move {
            let Ok(connection) = incoming.await else { return };
            let mut streams = JoinSet::new();
            while let Ok((send, receive)) = connection.accept_bi().await {
                streams.spawn(stream(send, receive, workers.clone(), size));
            }
        });
    }
    Ok(())
}

async fn stream(
    mut send: quinn::SendStream,
    mut receive: quinn::RecvStream,
    workers: Arc<[mpsc::UnboundedSender<Request>]>,
    size: usize,
) {
    let mut message = vec![0; size];
    while receive.read_exact(&mut message).await.is_ok() {
        let entity = message.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        let (done, answered) = oneshot::channel();
        let worker = &workers[(entity % workers.len() as u64) as usize];
        if worker.send(Request { entity, done }).is_err() || answered.await.is_err() {
            return;
        }
        if send.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// A thread that runs the turns of its entities.
fn worker(
    program: Arc<Program>,
    commits: queue::Sender<Commit>,
) -> Result<mpsc::UnboundedSender<Request>> {
    let (sender, mut requests) = mpsc::unbounded_channel::<Request>();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let work = async move {
        let mut instances = HashMap::new();
        while let Some(Request { entity, done }) = requests.recv().await {
            let instance = match instances.remove(&entity) {
                Some(instance) => instance,
                None => start(&program, entity).await?,
            };
            let (instance, writes) = turn(instance, entity).await?;
            instances.insert(entity, instance);
            commits.send(Commit { entity, writes, done })?;
        }
        anyhow::Ok(())
    };
    std::thread::Builder::new().name("worker".into()).spawn(move || runtime.block_on(work))?;
    Ok(sender)
}

async fn start(program: &Arc<Program>, entity: u64) -> Result<Instance> {
    let identity = EntityIdentity {
        namespace: "default".into(),
        entity_type: "counter".into(),
        id: format!("joined-{entity}").as_str().into(),
        revision: 1,
    };
    let values = TurnValues::default();
    let mut instance = program
        .instantiate(InstanceSpec {
            identity,
            state: Box::new(NoState),
            values,
            records: TurnRecords::default(),
        })
        .await?;
    let started = instance.start(StartReason::FirstMessage).await;
    ensure!(matches!(started.result, TurnResult::Ok(_)), "start: {:?}", started.result);
    Ok(instance)
}

async fn turn(
    mut instance: Instance,
    entity: u64,
) -> Result<(Instance, Vec<(Bytes, Option<Bytes>)>)> {
    let context = MessageContext {
        session: entity.into(),
        sequence: 1,
        kind: MessageKind::Command,
        principal: "bench".into(),
        content_type: "application/json".into(),
        traceparent: "".into(),
        tracestate: "".into(),
        origin: "".into(),
        remaining: None,
        version: 1,
        values: TurnValues::default(),
        records: None,
    };
    let turn = instance.message(context, "add", Bytes::from_static(b"1")).await;
    ensure!(matches!(turn.result, TurnResult::Ok(_)), "add: {:?}", turn.result);
    Ok((instance, turn.writes))
}

/// A thread that makes turns durable in batches, with one sync each.
fn committer(dir: &Path) -> Result<queue::Sender<Commit>> {
    let folder = dir.join("sled");
    let db = sled::Config::new().path(&folder).flush_every_ms(None).open()?;
    let data = File::open(folder.join("db")).context("open sled's file")?;
    let (sender, commits) = queue::channel::<Commit>();
    let work = move || {
        let mut waiting = Vec::new();
        while let Ok(first) = commits.recv() {
            let mut batch = sled::Batch::default();
            for Commit { entity, writes, done } in
                std::iter::once(first).chain(commits.try_iter().take(BATCH))
            {
                for (key, value) in writes {
                    let key = [&entity.to_be_bytes()[..], &key].concat();
                    match value {
                        Some(value) => batch.insert(key, &value[..]),
                        None => batch.remove(key),
                    }
                }
                waiting.push(done);
            }
            db.apply_batch(batch)?;
            db.flush()?;
            data.sync_data()?;
            for done in waiting.drain(..) {
                // The send fails only if the request's stream has ended.
                let _ = done.send(());
            }
        }
        anyhow::Ok(())
    };
    std::thread::Builder::new().name("committer".into()).spawn(work)?;
    Ok(sender)
}
