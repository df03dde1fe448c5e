//! The thread's loop: what it is told becomes an event of the machine, and what the machine says is done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_core::node::{Action, Event};
use ostraca_store::{RowEvent, StoredRow};
use tokio::sync::mpsc;

use super::talkers::Talkers;
use super::words::Heard;
use super::{Input, Parts};
use crate::clock::wall_millis;
use crate::config::ClusterSettings;
use crate::error::NodeError;
use crate::rows::{self, ClusterRow, SettingsRow};
use crate::view::View;
use crate::worker;

/// How often the picture of the cluster is renewed at most.
const PICTURE: Duration = Duration::from_millis(20);

/// The thread's state.
pub(super) struct Running {
    pub(super) parts: Parts,
    pub(super) own: mpsc::UnboundedSender<Input>,
    /// Calls of the stores that are under way.
    pub(super) tasks: FuturesUnordered<BoxFuture<'static, Event>>,
    pub(super) talkers: Talkers,
    /// The watch that counts; what others still tell is old.
    pub(super) watch: u64,
    pub(super) watcher: Option<tokio::task::JoinHandle<()>>,
    /// The last list failed, and that was said.
    pub(super) unlisted: Arc<AtomicBool>,
    /// Keys of rows that were not understood, and that was said.
    strange: BTreeSet<String>,
    /// Something changed that the picture shows.
    changed: bool,
    pub(super) renewals: u64,
    /// Types that this node cannot run, as the machine was last told.
    unrunnable: Vec<String>,
}

/// Runs until nobody can tell it anything any more.
pub(super) async fn run(
    parts: Parts,
    own: mpsc::UnboundedSender<Input>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
    mut heard: Heard,
) {
    let mut beat = tokio::time::interval(parts.every);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut picture = tokio::time::interval(PICTURE);
    picture.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let talkers = Talkers::new(parts.dialer.clone());
    let mut running = Running {
        parts,
        own,
        tasks: FuturesUnordered::new(),
        talkers,
        watch: 0,
        watcher: None,
        unlisted: Arc::default(),
        strange: BTreeSet::new(),
        changed: true,
        renewals: 0,
        unrunnable: Vec::new(),
    };
    running.carry_out();
    loop {
        let now = running.parts.clock.now().mono;
        let wake = running.parts.machine.next_wake().map_or(1_000, |wake| wake.saturating_sub(now));
        tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => running.input(input),
                None => return,
            },
            Some((from, message)) = heard.next() => running.tell(Event::Received { from, message }),
            Some(event) = running.tasks.next(), if !running.tasks.is_empty() => running.tell(event),
            () = tokio::time::sleep(Duration::from_millis(wake.max(1))) => running.tell(Event::Tick),
            _ = beat.tick() => {
                running.ask_store();
                running.tell_unrunnable();
            }
            _ = picture.tick() => running.picture(),
        }
    }
}

impl Running {
    fn input(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.tell(event),
            Input::Report(report) => self.report(report),
            Input::Watched(watch, _) if watch != self.watch => {}
            Input::Watched(_, RowEvent::ResyncRequired) => self.tell(Event::WatchLost),
            Input::Watched(_, RowEvent::Deleted { key, revision }) => {
                self.parts.loader.gone(&key, revision);
            }
            Input::Watched(_, RowEvent::Set(row)) => match rows::decode_core(&row) {
                Ok(Some((key, row, revision))) => {
                    self.tell(Event::RowObserved { key, value: Some((row, revision)) });
                }
                Ok(None) if rows::is_about_all(&row.key) => self.about_all(&row),
                Ok(None) => self.parts.loader.row(row),
                // One of a newer node changes with each renewal: said once.
                Err(error) if self.strange.insert(row.key.clone()) => {
                    tracing::error!(%error, "a row was not understood");
                }
                Err(_) => {}
            },
            Input::Plan(answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(self.parts.machine.preview_rebalance());
            }
        }
    }

    /// The cluster's format, which this program may not read, or its settings.
    fn about_all(&mut self, row: &StoredRow) {
        if row.key == rows::SETTINGS {
            match rows::decode::<SettingsRow>(row) {
                Ok(row) => {
                    if let Err(error) = self.parts.config.agrees(&ClusterSettings::of(&row)) {
                        tracing::warn!(%error, "the cluster's settings count; this node will not start again like this");
                    }
                    let agreed = self.parts.config.agreed(&row);
                    self.tell(Event::LeaseSettingsChanged(agreed));
                }
                Err(error) => tracing::error!(%error, "the cluster's settings were not understood"),
            }
            return;
        }
        if let Err(error) = rows::decode::<ClusterRow>(row).and_then(|row| row.readable()) {
            // Nobody to hear it: the node is stopping.
            let _ = self.parts.failures.send(error);
        }
    }

    fn report(&mut self, report: worker::Report) {
        match report {
            worker::Report::Serving(shard, epoch) => {
                self.tell(Event::ShardServing { shard, epoch })
            }
            worker::Report::Stopped(shard, epoch) => {
                self.tell(Event::ShardStopped { shard, epoch })
            }
            worker::Report::Lost(owner, standing, why) => {
                tracing::warn!(shard = %owner.shard, %why, "a shard was lost");
                let (shard, epoch) = (owner.shard.shard, owner.epoch);
                let standing = standing.map(|claim| claim.epoch);
                self.tell(Event::ShardLost { shard, epoch, current_epoch: standing });
            }
            worker::Report::Panicked(worker) => {
                let error = NodeError::Ended(format!("worker {worker} panicked"));
                // Nobody to hear it: the node is stopping.
                let _ = self.parts.failures.send(error);
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let tick = matches!(event, Event::Tick | Event::StoreResponded { .. });
        let now = self.parts.clock.now();
        self.parts.machine.set_unix_ms(wall_millis());
        self.parts.machine.handle(now, event);
        self.changed |= !tick;
        self.carry_out();
    }

    fn carry_out(&mut self) {
        // A new owner's machine is made before any message is let go to it: it would be bounced, and wait for a retry.
        let mut routes = Vec::new();
        while let Some(action) = self.parts.machine.poll() {
            match action {
                Action::UpdateRoute { .. } | Action::BufferShard { .. } => routes.push(action),
                action => self.act(action),
            }
        }
        for action in routes {
            self.act(action);
        }
    }

    /// Types become unrunnable where they are loaded; the machine is told here, so that shards go elsewhere (R24).
    fn tell_unrunnable(&mut self) {
        let broken = self.parts.gateway.types.broken();
        let types: Vec<_> = broken.iter().map(|(name, _)| name.to_string()).collect();
        if types != self.unrunnable {
            self.unrunnable.clone_from(&types);
            self.tell(Event::UnrunnableTypes(types));
        }
    }

    fn picture(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let now = self.parts.clock.now();
        let before = self.parts.view.borrow().clone();
        let view = View::of(&self.parts.machine, now, &before);
        self.parts.view.send_replace(Arc::new(view));
        if let Some(cache) = &self.parts.cache {
            cache.store(&self.parts.view.borrow());
        }
    }
}
