//! The thread's loop: turns inputs into events of the machine, and executes the actions that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_catalog::clock::wall_millis;
use ostraca_catalog::placement::{PinsRow, PlacementRow, placed_pool};
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{self, ClusterRow, POOLS, SettingsRow, TimeRow};
use ostraca_catalog::types::FailedMigration;
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::{Action, Event, Notice};
use ostraca_core::rows::Member;
use ostraca_health::CheckOutcome;
use ostraca_store::{RowEvent, StoredRow};
use ostraca_workers as worker;
use tokio::sync::mpsc;

use super::failed_checks::FailedChecks;
use super::inbox::ControlInbox;
use super::links::ControlLinks;
use super::loads::LoadMeter;
use super::{ControlDeps, Input};
use crate::Error;
use crate::view::ClusterView;

/// Minimum time between two updates of the cluster view.
const VIEW_INTERVAL: Duration = Duration::from_millis(20);

/// How a row was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// It was found when all rows were listed: nobody knows how old it is.
    List,
    /// It was written while this node watched.
    Watch,
}

pub(super) struct ControlLoop {
    pub(super) deps: ControlDeps,
    pub(super) own: mpsc::UnboundedSender<Input>,
    /// Store calls in progress.
    pub(super) tasks: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Health checks in progress, and of whom.
    pub(super) checks: FuturesUnordered<BoxFuture<'static, (Member, CheckOutcome)>>,
    pub(super) checking: BTreeSet<Member>,
    /// The nodes of which a health check has failed.
    pub(super) failed_checks: FailedChecks,
    pub(super) control_links: ControlLinks,
    /// Generation of the current watch; events of older ones are ignored.
    pub(super) watch: u64,
    pub(super) watcher: Option<tokio::task::JoinHandle<()>>,
    /// Whether the current failure to list rows has been logged.
    pub(super) unlisted: Arc<AtomicBool>,
    /// Keys of undecodable rows that have been logged.
    strange: BTreeSet<String>,
    /// Whether something changed that the cluster view shows.
    changed: bool,
    pub(super) renewals: u64,
    /// Types that this node cannot run, as last reported to the machine.
    unrunnable: Vec<String>,
    /// Shards whose state is in the wrong store, as last reported to the machine.
    misplaced: Vec<(ShardId, Epoch)>,
    /// The range of shards whose state is being moved, as last reported to the machine.
    moving_state: Option<(ShardId, ShardId)>,
    /// The loads of shards, as they are measured.
    loads: LoadMeter,
    /// The rollouts that have stopped, by type: the revision and the reason.
    stopped_rollouts: BTreeMap<Arc<str>, (u64, String)>,
}

/// Runs until all senders of its inputs have been dropped.
pub(super) async fn run(
    parts: ControlDeps,
    own: mpsc::UnboundedSender<Input>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
    mut inbox: ControlInbox,
) {
    let mut beat = tokio::time::interval(parts.renew_interval);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut picture = tokio::time::interval(VIEW_INTERVAL);
    picture.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut measure = tokio::time::interval(parts.config.load_settings().interval);
    measure.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let control_links = ControlLinks::new(parts.dialer.clone());
    let mut running = ControlLoop {
        deps: parts,
        own,
        tasks: FuturesUnordered::new(),
        checks: FuturesUnordered::new(),
        checking: BTreeSet::new(),
        failed_checks: FailedChecks::default(),
        control_links,
        watch: 0,
        watcher: None,
        unlisted: Arc::default(),
        strange: BTreeSet::new(),
        changed: true,
        renewals: 0,
        unrunnable: Vec::new(),
        misplaced: Vec::new(),
        moving_state: None,
        loads: LoadMeter::default(),
        stopped_rollouts: BTreeMap::new(),
    };
    running.execute_actions();
    loop {
        let now = running.deps.clock.now().mono;
        let wake = running.deps.machine.next_wake().map_or(1_000, |wake| wake.saturating_sub(now));
        tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => running.input(input),
                None => return,
            },
            Some((from, message)) = inbox.next() => running.handle_event(Event::Received { from, message }),
            Some(event) = running.tasks.next(), if !running.tasks.is_empty() => running.handle_event(event),
            Some((member, outcome)) = running.checks.next(), if !running.checks.is_empty() => {
                running.on_process_checked(member, outcome);
            }
            () = tokio::time::sleep(Duration::from_millis(wake.max(1))) => running.handle_event(Event::Tick),
            _ = beat.tick() => {
                running.probe_entity_store();
                running.report_unrunnable_types();
                running.report_misplaced_shards();
                running.report_stopped_rollouts();
                running.report_moving_state();
            }
            _ = picture.tick() => running.publish_view(),
            _ = measure.tick() => running.measure_loads(),
        }
    }
}

impl ControlLoop {
    fn input(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.handle_event(event),
            Input::Report(report) => self.report(report),
            Input::Watched(watch, _) if watch != self.watch => {}
            Input::Watched(_, RowEvent::ResyncRequired) => self.handle_event(Event::WatchLost),
            Input::Watched(_, RowEvent::Deleted { key, revision }) => {
                self.deps.loader.on_row_deleted(&key, revision);
                self.deps.variables.on_row_deleted(&key, revision);
            }
            Input::Listed(watch, _) if watch != self.watch => {}
            Input::Listed(_, row) => self.about_all(&row, Source::List),
            Input::Watched(_, RowEvent::Set(row)) => match rows::decode_row(&row) {
                Ok(Some((key, row, revision))) => {
                    self.handle_event(Event::RowObserved { key, value: Some((row, revision)) });
                }
                Ok(None) if rows::is_cluster_wide(&row.key) => self.about_all(&row, Source::Watch),
                Ok(None) if row.key == rows::TIME => self.advance_utc(&row),
                Ok(None) if rows::is_about_access(&row.key) => {
                    self.deps.access.on_row_changed(&row);
                }
                Ok(None) if rows::variables_type(&row.key).is_some() => {
                    self.deps.variables.on_row_changed(&row);
                }
                Ok(None) => self.deps.loader.on_row_changed(row),
                // A row written by a newer node changes with each renewal: log it once.
                Err(error) if self.strange.insert(row.key.clone()) => {
                    tracing::error!(%error, "cannot decode a row");
                }
                Err(_) => {}
            },
            Input::Measured(figures) => {
                let loads = self.loads.measure(&self.deps.config.load_settings(), figures);
                self.handle_event(Event::LoadsMeasured(loads));
            }
            Input::Plan(answer) => {
                // The requester may no longer exist.
                let _ = answer.send(self.deps.machine.preview_rebalance());
            }
        }
    }

    /// Handles the pools that operators have added.
    fn learn_pools(&mut self, row: &StoredRow) {
        let known = self.deps.gateway.pools.get();
        match rows::decode::<PoolsRow>(row).and_then(|row| row.add_to(&known)) {
            Ok(pools) => {
                self.deps.gateway.learn_pools(&pools);
                self.deps.loader.on_pools_changed();
                self.handle_event(Event::PoolsChanged(pools));
            }
            Err(error) => tracing::error!(%error, "cannot decode the cluster's pools"),
        }
    }

    /// Handles where operators and outside programs want shards.
    fn learn_placement(&mut self, row: &StoredRow, source: Source) {
        let (revision, is_listed) = (row.revision, source == Source::List);
        let event = match placed_pool(&row.key) {
            None => rows::decode::<PinsRow>(row)
                .map(|row| Some(Event::PinsChanged { revision, pins: row.nodes() })),
            Some(name) => rows::decode::<PlacementRow>(row).map(|row| {
                let pools = self.deps.gateway.pools.get();
                let (pool, shards) = (name.to_owned(), row.wishes(pools.get(name)?));
                Some(Event::PlacementChanged { pool, revision, is_listed, shards })
            }),
        };
        match event {
            Ok(event) => event.into_iter().for_each(|event| self.handle_event(event)),
            Err(error) => tracing::error!(%error, "cannot decode where shards are wanted"),
        }
    }

    /// Handles the time that the store's node has published.
    fn advance_utc(&self, row: &StoredRow) {
        match rows::decode::<TimeRow>(row).and_then(|row| row.utc_ms()) {
            Ok(utc) => self.deps.clock.advance_utc_to(utc.unwrap_or_default()),
            Err(error) => tracing::error!(%error, "cannot decode the cluster's time"),
        }
    }

    /// Handles the cluster-wide rows: the format, which this program may be unable to read, the settings and the pools.
    fn about_all(&mut self, row: &StoredRow, source: Source) {
        if row.key == POOLS {
            return self.learn_pools(row);
        }
        if row.key == rows::PINS || row.key.starts_with(rows::PLACEMENTS) {
            return self.learn_placement(row, source);
        }
        if row.key == rows::SETTINGS {
            match rows::decode::<SettingsRow>(row) {
                Ok(row) => {
                    let settings = row.settings();
                    if let Err(error) = self.deps.config.check_cluster_settings(&settings) {
                        tracing::warn!(%error, "cluster settings override this node's; it will refuse to start with this configuration");
                    }
                    let agreed = self.deps.config.lease_settings(row.revision, &settings);
                    self.handle_event(Event::LeaseSettingsChanged(agreed));
                }
                Err(error) => tracing::error!(%error, "cannot decode the cluster's settings"),
            }
            return;
        }
        if let Err(error) = rows::decode::<ClusterRow>(row).and_then(|row| row.adopt_format()) {
            // The receiver is dropped only when the node is stopping.
            let _ = self.deps.failures.send(error.into());
        }
    }

    fn report(&mut self, report: worker::WorkerReport) {
        match report {
            worker::WorkerReport::ShardServing(shard, epoch) => {
                self.handle_event(Event::ShardServing { shard, epoch })
            }
            worker::WorkerReport::ShardEscalated(shard, epoch) => {
                self.handle_event(Event::ShardEscalated { shard, epoch })
            }
            worker::WorkerReport::ShardStopped(shard, epoch) => {
                self.handle_event(Event::ShardStopped { shard, epoch })
            }
            worker::WorkerReport::ShardLost(owner, current, why) => {
                tracing::warn!(shard = %owner.shard, %why, "a shard was lost");
                let (shard, epoch) = (owner.shard.shard, owner.epoch);
                let current = current.map(|claim| claim.epoch);
                self.handle_event(Event::ShardLost { shard, epoch, current_epoch: current });
            }
            worker::WorkerReport::MigrationFailed { entity_type, revision, why } => {
                let (utc, why) = (self.deps.clock.utc_ms(), why.into());
                let failed = FailedMigration { revision, utc, why };
                self.deps.gateway.types.migration_failed(&entity_type, failed);
            }
            worker::WorkerReport::Panicked(worker) => {
                // The receiver is dropped only when the node is stopping.
                let _ = self.deps.failures.send(Error::WorkerPanicked(worker));
            }
        }
    }

    pub(super) fn handle_event(&mut self, event: Event) {
        let tick = matches!(event, Event::Tick | Event::StoreResponded { .. });
        let now = self.deps.clock.now();
        self.deps.machine.set_unix_ms(wall_millis());
        self.deps.machine.handle(now, event);
        self.changed |= !tick;
        self.execute_actions();
    }

    fn execute_actions(&mut self) {
        // A new owner's machine must exist before messages are released to it. Otherwise they would be returned and
        // wait for a retry.
        let mut routes = Vec::new();
        while let Some(action) = self.deps.machine.poll() {
            match action {
                Action::UpdateRoute { .. } | Action::BufferShard { .. } => routes.push(action),
                action => self.execute(action),
            }
        }
        for action in routes {
            self.execute(action);
        }
    }

    /// The loader finds out that a type cannot run. The machine is informed here, so that the shards move elsewhere
    /// (R24).
    fn report_unrunnable_types(&mut self) {
        let broken = self.deps.gateway.types.broken();
        let types: Vec<_> = broken.iter().map(|(name, _)| name.to_string()).collect();
        if types != self.unrunnable {
            self.unrunnable.clone_from(&types);
            self.handle_event(Event::UnrunnableTypes(types));
        }
    }

    /// The stores find out which shards are in another one than the map names. The machine is informed here, so that
    /// they are handed off (R26).
    fn report_misplaced_shards(&mut self) {
        let Some(stores) = self.deps.ranges.get() else { return };
        let found = stores.misplaced().into_iter();
        let shards: Vec<_> = found.map(|(path, epoch)| (path.shard, epoch)).collect();
        if shards != self.misplaced {
            self.misplaced.clone_from(&shards);
            self.handle_event(Event::MisplacedShards(shards));
        }
    }

    /// The map says whose state is being moved: the manager does not take those shards' owners for late (K14).
    fn report_moving_state(&mut self) {
        let Some(stores) = self.deps.ranges.get() else { return };
        let moving = stores.map().moving;
        let range = moving.map(|moving| (ShardId(moving.first), ShardId(moving.last)));
        if range != self.moving_state {
            self.moving_state = range;
            self.handle_event(Event::StateMoves(range));
        }
    }

    /// Records an event for each rollout that has stopped.
    fn report_stopped_rollouts(&mut self) {
        let types = self.deps.gateway.types.snapshot();
        let stopped = types.values().filter_map(|entry| {
            let rollout = entry.rollout.as_ref().filter(|it| !it.stopped.is_empty())?;
            Some((entry.name.clone(), (entry.revision, rollout.stopped.clone())))
        });
        let stopped: BTreeMap<_, _> = stopped.collect();
        for (entity_type, (revision, why)) in &stopped {
            if self.stopped_rollouts.get(entity_type).is_none_or(|(known, _)| known != revision) {
                let (entity_type, revision, why) = (entity_type.clone(), *revision, why.clone());
                self.record_event(Notice::RolloutStopped { entity_type, revision, why });
            }
        }
        self.stopped_rollouts = stopped;
    }

    fn publish_view(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let now = self.deps.clock.now();
        let before = self.deps.view.borrow().clone();
        let view = ClusterView::from_machine(&self.deps.machine, now, &before);
        self.deps.view.send_replace(Arc::new(view));
        if let Some(cache) = &self.deps.cache {
            cache.store(&self.deps.view.borrow());
        }
    }
}
