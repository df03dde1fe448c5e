//! The node's workers: a thread each, and what they have in common.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;

use super::joining::Stores;
use super::parts::Basis;
use crate::config::Config;
use crate::control;
use crate::error::NodeError;
use crate::gateway::Gateway;
use crate::record::Recorder;
use crate::stats::Gauges;
use crate::worker::{self, Answered, Answers, Input, Parts, Report};

/// A worker's input, and its thread.
pub(super) type Worker = (mpsc::UnboundedSender<Input>, std::thread::JoinHandle<()>);

/// All of them.
pub(super) struct Workers {
    pub(super) threads: Vec<Worker>,
    pub(super) gauges: Vec<Arc<Gauges>>,
    pub(super) reports: mpsc::UnboundedReceiver<Report>,
    answerer: Arc<Answerer>,
}

impl Workers {
    /// Starts them: none on a node without the role `host`. They share `most` instances.
    pub(super) fn start(basis: &Basis, stores: &Stores, most: usize) -> Result<Self, NodeError> {
        let config = &basis.config;
        let count = match (config.roles().host, config.workers) {
            (false, _) => 0,
            (true, 0) => std::thread::available_parallelism().map_or(1, usize::from),
            (true, set) => set,
        };
        let answerer = Arc::new(Answerer::default());
        let (told, reports) = mpsc::unbounded_channel();
        let (mut threads, mut gauges) = (Vec::new(), Vec::new());
        for index in 0..count {
            let gauge = Arc::new(Gauges::default());
            gauges.push(gauge.clone());
            threads.push(spawn(Parts {
                index,
                settings: config.shard_settings(),
                cap: (most / count).max(1),
                clock: basis.clock.clone(),
                store: stores.entities.clone(),
                stats: basis.stats.clone(),
                gauges: gauge,
                recorder: recorder(config, index)?,
                reports: told.clone(),
                answers: answerer.clone(),
            })?);
        }
        Ok(Self { threads, gauges, reports, answerer })
    }

    /// Where each is told something.
    pub(super) fn inputs(&self) -> Vec<mpsc::UnboundedSender<Input>> {
        self.threads.iter().map(|(input, _)| input.clone()).collect()
    }

    /// Their answers go there: they were made before it.
    pub(super) fn answer_to(&self, gateway: &Arc<Gateway>) {
        // Set once, by the start.
        let _ = self.answerer.0.set(gateway.clone());
    }
}

/// What workers say goes to the control thread, until every one of them has ended.
pub(super) async fn pass_on(
    mut heard: mpsc::UnboundedReceiver<Report>,
    told: mpsc::UnboundedSender<control::Input>,
) {
    while let Some(report) = heard.recv().await {
        // Nobody to hear it: the node stops.
        let _ = told.send(control::Input::Report(report));
    }
}

/// The gateway, for workers that are made before it.
#[derive(Default)]
struct Answerer(OnceLock<Arc<Gateway>>);

impl Answers for Answerer {
    fn answered(&self, answers: &mut Vec<Answered>) {
        if let Some(gateway) = self.0.get() {
            gateway.answered(answers);
        }
    }
}

fn recorder(config: &Config, index: usize) -> Result<Option<Recorder>, NodeError> {
    config
        .record
        .as_deref()
        .map(|dir| Recorder::create(dir, index, crate::clock::boot_millis()))
        .transpose()
        .map_err(|source| NodeError::File {
            action: "create",
            path: config.record.clone().unwrap_or_default(),
            source,
        })
}

fn spawn(parts: Parts) -> Result<Worker, NodeError> {
    let (input, inputs) = mpsc::unbounded_channel();
    let name = format!("ostraca-worker-{}", parts.index);
    let failed = |source| NodeError::Thread { name: name.clone(), source };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || runtime.block_on(worker::run(parts, inputs)))
        .map_err(failed)?;
    Ok((input, thread))
}
