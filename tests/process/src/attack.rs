//! Attacks: faults under load, each one injected within its intended step.
//!
//! A round runs its own load (new sessions and entities, through every gateway), lets the attack wait for its step
//! and inject the fault there, heals everything, waits until every shard is served again, stops the load, and checks
//! it: every command has a final outcome, the oracle finds no violation in the history, and every entity holds
//! every acknowledged command. A round counts only if the fault was injected within its step while enough commands
//! were in doubt: sent before the fault, and not answered by then. A round that does not count is still checked,
//! and is repeated a limited number of times.
//!
//! `SEED=n` replays the random choices, and `ROUNDS=n` sets how many rounds must count. `SOAK=directory` accumulates
//! results over runs: the directory keeps a line for each round that counted, and a run does only the missing rounds.
#![allow(clippy::print_stdout, reason = "tests print a summary of their rounds")]

mod load;
mod soak;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_core::hash::shard_of;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use self::load::{Load, LoadSize, LoadSummary, judge};
use self::soak::Soak;
use crate::cluster::{Options, TIMEOUT, View};
use crate::history::{now, until_answered};
use crate::node_dir::deploy_example;
use crate::rounds::number;
use crate::{Cluster, artifacts};

/// Number of rounds that must count for each attack.
const ROUNDS: u64 = 1;
/// Minimum number of commands in doubt when the fault is injected.
pub const DOUBTFUL: usize = 32;
/// Replies that left a node before the fault are not in doubt; they arrive within this time.
const ARRIVAL: Duration = Duration::from_millis(150);
/// Minimum number of answered commands before a load is attacked.
const WARM: u64 = 200;

/// The longest time until a host is given shards again after attacks on its path to the store: 64 leases (R9) of 3 s,
/// plus a reserve.
pub const PROBATION: Duration = Duration::from_secs(64 * 3 + 60);

/// A second pool, smaller than the first one and on the same hosts: the accounts are in it, the counters in the first.
const SIDE_POOL: &str = "side";
const SIDE_SHARDS: u32 = 7;

/// Whether a fault was injected in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultTiming {
    /// Within its intended step.
    InStep,
    /// At another time, with the reason.
    Missed(String),
}

/// The context of an attack.
pub struct AttackRun {
    /// The cluster under attack.
    pub cluster: Cluster,
    /// A client at each node's gateway. It uses another gateway once its own is gone, until the round ends.
    pub clients: Vec<Client>,
    /// The node of each client's gateway.
    gateways: Vec<usize>,
    /// The attack's random numbers.
    pub rng: StdRng,
    /// The number of the round, including repeated ones.
    pub round: u64,
    /// How many rounds must count, if `ROUNDS` does not say.
    pub required_rounds: u64,
    /// Minimum number of commands that must be in doubt at the fault.
    pub least: usize,
    /// The load of each round.
    pub size: LoadSize,
    load: Option<Load>,
    /// Nodes whose drain was requested: the drain mark survives their restarts.
    drained: Mutex<BTreeSet<String>>,
    in_doubt: usize,
    struck: Instant,
}

/// Figures from the rounds that counted.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Commands in doubt at each fault.
    pub in_doubt: Vec<usize>,
    /// Time from each fault until every shard was served.
    pub served: Vec<Duration>,
    /// Rounds that did not count, with the reasons.
    pub repeated: Vec<String>,
    /// Total number of commands.
    pub commands: u64,
}

impl AttackRun {
    /// Starts a cluster, deploys the examples, and connects a client to each gateway.
    ///
    /// # Errors
    /// The error of the program or of a node.
    pub async fn set(options: &Options) -> Result<Self> {
        let seed = number("SEED").unwrap_or_else(rand::random);
        let roles = options.roles.iter().map(|roles| with_side_pool(roles)).collect();
        let options = Options { seed, roles, ..options.clone() };
        println!("{}: SEED={seed}", options.name);
        let mut cluster = Cluster::start(&options).await?;
        cluster.wait_settled().await?;
        let nodes = options.roles.iter().enumerate().take(options.at_once);
        let gateways = nodes.filter(|(_, roles)| roles.contains("gateway"));
        let gateways: Vec<_> = gateways.map(|(node, _)| node).collect();
        let mut clients = Vec::new();
        for node in &gateways {
            clients.push(cluster.client(*node).await?);
        }
        let first = clients.first().context("no gateway")?;
        cluster.create_pool(first, SIDE_POOL, SIDE_SHARDS).await?;
        deploy_example(first, "counter").await?;
        let manifest = format!("pool = \"{SIDE_POOL}\"\n{}", artifacts::manifest("account")?);
        first.deploy(&manifest, artifacts::component("account")?, None).await?;
        Ok(Self {
            cluster,
            clients,
            gateways,
            rng: StdRng::seed_from_u64(seed),
            round: 0,
            required_rounds: ROUNDS,
            least: DOUBTFUL,
            size: LoadSize::USUAL,
            load: None,
            drained: Mutex::default(),
            in_doubt: 0,
            struck: Instant::now(),
        })
    }

    /// Runs an attack until enough rounds count.
    ///
    /// # Errors
    /// The first violated promise, by name; or that the fault was not injected within its step.
    pub async fn rounds(
        mut self,
        name: impl AsRef<str>,
        mut attack: impl AsyncFnMut(&mut AttackRun) -> Result<FaultTiming>,
    ) -> Result<Report> {
        let name = name.as_ref();
        let rounds = number("ROUNDS").unwrap_or(self.required_rounds);
        let soak = Soak::of(name)?;
        let mut report = Report::default();
        let result = loop {
            if soak.rounds() + report.in_doubt.len() as u64 >= rounds {
                break Ok(());
            }
            if report.repeated.len() as u64 > rounds + 5 {
                break Err(anyhow::anyhow!(
                    "the fault did not fall inside its step in {} rounds: {:?}",
                    report.repeated.len(),
                    report.repeated
                ));
            }
            self.round += 1;
            let before = (report.in_doubt.len(), report.commands);
            if let Err(error) = self.one(name, &mut report, &mut attack).await {
                break Err(error.context(format!("{name}, round {}", self.round)));
            }
            if report.in_doubt.len() > before.0 {
                soak.keep(&report, report.commands - before.1)?;
            }
        };
        if let Err(error) = result {
            // Printed separately, so that the error is the last line of the output.
            println!("{}", self.cluster.logs());
            return Err(error);
        }
        println!(
            "{name}: {} rounds, {} commands, in doubt {:?}, served again after {:.1?}, {} rounds repeated",
            report.in_doubt.len(),
            report.commands,
            report.in_doubt,
            report.served,
            report.repeated.len()
        );
        if let Some(sum) = soak.sum()? {
            println!("{name}: {sum}");
        }
        for client in self.clients {
            client.close().await;
        }
        self.cluster.stop()?;
        Ok(report)
    }

    async fn one(
        &mut self,
        name: &str,
        report: &mut Report,
        attack: &mut impl AsyncFnMut(&mut AttackRun) -> Result<FaultTiming>,
    ) -> Result<()> {
        self.wait_balanced().await?;
        self.reconnect().await.context("return the clients to their gateways")?;
        let load = Load::start(&self.clients, self.rng.random(), self.round, self.size);
        self.load = Some(load);
        self.wait_progress(WARM).await?;
        // Vary the moment relative to a node's intervals.
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..300))).await;
        self.in_doubt = 0;
        let nodes: Vec<usize> =
            (0..self.cluster.len()).filter(|node| self.cluster.runs(*node)).collect();
        let fell = attack(self).await.context("inject the fault")?;
        self.cluster.heal(&nodes).context("heal")?;
        self.wait_served().await.context("wait until every shard is served again")?;
        let served = self.struck.elapsed();
        let drained = self.drained().clone();
        for node in drained {
            self.request_drain(&node, true).await.context("undo a drain")?;
        }
        self.wait_progress(WARM).await.context("after the fault")?;
        let load = self.load.take().context("no load")?;
        let recorder = load.end().await?;
        let session = self.clients[self.rng.random_range(0..self.clients.len())].session();
        let summary = judge(&recorder, &session).await?;
        report.commands += summary.results + summary.refusals;
        match fell {
            FaultTiming::InStep if self.in_doubt >= self.least => {
                println!("{name}: round {}: {} in doubt, {served:.1?}", self.round, self.in_doubt);
                report.in_doubt.push(self.in_doubt);
                report.served.push(served);
            }
            FaultTiming::InStep => report.repeated.push(format!("only {} in doubt", self.in_doubt)),
            FaultTiming::Missed(why) => report.repeated.push(why),
        }
        Ok(())
    }

    /// Connects each client to its own gateway again: after a fault, it may still use another node's.
    async fn reconnect(&mut self) -> Result<()> {
        for (client, node) in self.clients.iter_mut().zip(&self.gateways) {
            let name = self.cluster.name(*node);
            let until = Instant::now() + TIMEOUT;
            while client.connected_to().is_none_or(|(of, _)| of != name) {
                ensure!(Instant::now() < until, "no client connects to {name}");
                let again = self.cluster.client(*node).await?;
                std::mem::replace(client, again).close().await;
            }
        }
        Ok(())
    }

    /// Injects the fault: messages that were sent before it and are not answered shortly after it are in doubt.
    ///
    /// # Errors
    /// The error of the fault.
    pub async fn inject(
        &mut self,
        fault: impl FnOnce(&mut Cluster, &mut StdRng) -> Result<()>,
    ) -> Result<()> {
        self.struck = Instant::now();
        let at = now();
        fault(&mut self.cluster, &mut self.rng)?;
        tokio::time::sleep(ARRIVAL).await;
        self.in_doubt = self.load.as_ref().map_or(0, |load| load.unanswered_since(at));
        Ok(())
    }

    /// Counts the time until every shard is served from now on, rather than from the fault.
    pub fn count_from_now(&mut self) {
        self.struck = Instant::now();
    }

    /// Requests a drain, or cancels it, through the first gateway, and does not wait for it to complete.
    ///
    /// # Errors
    /// The node's error.
    pub async fn request_drain(&self, node: &str, undo: bool) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        let ask = async || {
            // The first update means that the row has been written.
            self.clients[0].drain(node, undo).await?.next().await
        };
        loop {
            match ask().await {
                // Another node has already seen that the node is live; this one will see it a moment later.
                Err(error) if error.code() == "node-not-live" && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => {
                    answer?.context("no response to a drain")?;
                    match undo {
                        true => self.drained().remove(node),
                        false => self.drained().insert(node.to_owned()),
                    };
                    return Ok(());
                }
            }
        }
    }

    fn drained(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of commands that were in doubt at the last fault.
    #[must_use]
    pub fn in_doubt(&self) -> usize {
        self.in_doubt
    }

    /// Waits until this many more commands have been answered.
    ///
    /// # Errors
    /// If they are not answered within the timeout.
    pub async fn wait_progress(&self, more: u64) -> Result<()> {
        let load = self.load.as_ref().context("no load")?;
        let (goal, until) = (load.done() + more, Instant::now() + TIMEOUT);
        while load.done() < goal {
            load.failed()?;
            if Instant::now() > until {
                bail!("{} of {more} more answers are missing", goal - load.done());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Waits until the shard counts of the hosts differ by at most one.
    ///
    /// # Errors
    /// If that does not happen within the timeout.
    pub async fn wait_balanced(&mut self) -> Result<()> {
        if !self.cluster.wait_settled().await?.balanced() {
            // If the request is refused or ends early, the manager's own balancing makes up for it.
            if let Ok(mut updates) = self.clients[0].rebalance().await {
                while updates.next().await.is_ok_and(|it| it.is_some_and(|it| !it.done)) {}
            }
        }
        let shards = self.cluster.all_shards();
        let balanced = |view: &View| view.balanced() && view.settled(shards);
        self.cluster.wait_for(PROBATION, "the shards are balanced", balanced).await?;
        Ok(())
    }

    /// Waits until an entity of every shard has answered a query, at every gateway.
    ///
    /// # Errors
    /// The first entity that does not answer.
    pub async fn wait_served(&self) -> Result<()> {
        let options =
            ostraca_client::CallOptions { timeout: TIMEOUT, ..until_answered(MessageKind::Query) };
        let mut queries = Vec::new();
        for client in &self.clients {
            let session = client.session();
            let counters = probes(self.cluster.shards).into_iter();
            let counters = counters.map(|id| (Entity::new("counter", id), "get", ""));
            let accounts = probes(SIDE_SHARDS).into_iter();
            let accounts = accounts.map(|id| (Entity::new("account", id), "balance", "{}"));
            for (entity, method, body) in counters.chain(accounts) {
                let call = session.send(&entity, method, body, &options);
                queries.push(async move { call.await.with_context(|| entity.to_string()) });
            }
        }
        let answers = queries.len();
        ensure!(try_join_all(queries).await?.len() == answers, "some entities did not answer");
        Ok(())
    }
}

/// The roles of a node that also hosts the second pool, if it hosts the first one.
fn with_side_pool(roles: &str) -> String {
    let hosts = roles.split(',').any(|role| role == "host");
    if hosts { format!("{roles},host.{SIDE_POOL}") } else { roles.into() }
}

/// One id in each shard, in the order of the shards.
#[must_use]
pub fn probes(shards: u32) -> Vec<String> {
    (1..=shards).filter_map(|shard| ids_of(shard, shards, "probe").next()).collect()
}

/// Ids that belong to a shard and start with this prefix.
pub fn ids_of(shard: u32, shards: u32, prefix: &str) -> impl Iterator<Item = String> {
    let prefix = prefix.to_owned();
    let all = (0_u64..).map(move |number| format!("{prefix}-{number}"));
    all.filter(move |id| shard_of(id, shards).0 == shard)
}
