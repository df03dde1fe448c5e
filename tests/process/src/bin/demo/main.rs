//! `make demo`: three real nodes, many clients on each, a drain and two kills in between, and every message
//! accounted for; then transfers between accounts and a timer, across another kill.
//!
//! It demonstrates the README's promises under real load. Its files are in the target directory and are removed at
//! the end; `KEEP=1` leaves the nodes running for experiments.
#![allow(clippy::print_stdout, reason = "it prints its progress")]

mod bank;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::Client;
use ostraca_core::hash::shard_of;
use ostraca_oracle::{Operation, Outcome};
use ostraca_process_tests::attack::{Load, LoadSize, judge};
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::history::now;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::probe_load::spread;
use ostraca_process_tests::{Cluster, artifacts};

/// Minimum number of commands.
const COMMANDS: u64 = 36_000;
const SIZE: LoadSize =
    LoadSize { sessions: 36, in_flight: 8, counters: 2_000, accounts: 1_000, pace: Duration::ZERO };
const SHARDS: u32 = 60;
/// Minimum number of commands in doubt from the clients of the killed manager.
const DOUBTFUL: usize = 32;
/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Replies that left a node before it died arrive within this time.
const ARRIVAL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => {
            println!("demo: passed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("demo: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Demo {
    cluster: Cluster,
    clients: Vec<Client>,
    load: Load,
    began: Instant,
    /// Each shard's epoch at the start.
    epochs: BTreeMap<u32, u64>,
}

/// A node that was killed.
struct Kill {
    node: usize,
    /// When it was killed, on the history's clock.
    at: u64,
    doubtful: usize,
    /// The shards that it owned.
    shards: Vec<u32>,
}

async fn run() -> Result<()> {
    println!("demo: building the guests (half a minute the first time)");
    let began = Instant::now();
    artifacts::module("counter")?;
    println!("demo: built in {:.1} s", began.elapsed().as_secs_f64());
    // The store is on the first node; either of the others may become the manager.
    let roles = ["store,host,gateway", "manager,host,gateway", "manager,host,gateway"];
    let options = Options { shards: SHARDS, proxied: false, ..Options::new("demo", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    for (node, roles) in roles.iter().enumerate() {
        println!("demo: {} ({roles})", cluster.process(node)?.ready);
    }
    let before = cluster.wait_settled().await?;
    let mut clients = Vec::new();
    for node in 0..cluster.len() {
        clients.push(cluster.client(node).await?);
    }
    for example in ["counter", "account"] {
        let revision = deploy_example(&clients[0], example).await?;
        println!("demo: deployed {example}, revision {revision}");
    }
    println!(
        "demo: at least {COMMANDS} commands to {} counters and {} accounts, from {} sessions on {} nodes, {} in flight",
        SIZE.counters,
        SIZE.accounts,
        SIZE.sessions,
        clients.len(),
        SIZE.sessions * SIZE.in_flight
    );
    let load = Load::start(&clients, 3, 1, SIZE);
    let epochs = before.shards.iter().map(|shard| (shard.shard, shard.epoch)).collect();
    let mut demo = Demo { cluster, clients, load, began: Instant::now(), epochs };
    show(&before);

    demo.progress(COMMANDS / 5).await?;
    let drained = demo.drain().await?;
    demo.progress(2 * COMMANDS / 5).await?;
    let manager = demo.kill_the_manager().await?;
    demo.progress(3 * COMMANDS / 5).await?;
    let store = demo.kill(0).await?;
    demo.start_again(0).await?;
    demo.progress(COMMANDS).await?;
    demo.finish(drained, &[manager, store]).await
}

/// Prints one character per shard: the number of the node that owns it.
fn show(view: &View) {
    let of = |shard| view.owner(shard).map_or("-", |name| name.trim_start_matches('n'));
    let line: String = (1..=SHARDS).map(of).collect();
    let owned = view.owned();
    let each: Vec<_> = owned.iter().map(|(name, shards)| format!("{name} {shards}")).collect();
    println!(
        "demo: shards 1 to {SHARDS}, with the number of each owner: {line}   {}",
        each.join(", ")
    );
}

impl Demo {
    /// Prints the progress every second, until this many commands have been answered.
    async fn progress(&self, until: u64) -> Result<()> {
        let mut shown = Instant::now();
        while self.load.done() < until {
            self.load.failed()?;
            if shown.elapsed() >= Duration::from_secs(1) {
                shown = Instant::now();
                self.print_progress();
                ensure!(self.began.elapsed() < TIMEOUT, "the load did not end in time");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn print_progress(&self) {
        let seconds = self.began.elapsed().as_secs();
        println!("demo: {:>6} answered after {seconds} s", self.load.done());
    }

    /// Drains a node that is neither the manager nor the store's node. Returns the start and end of the drain, and the
    /// shards that moved.
    async fn drain(&mut self) -> Result<(u64, u64, Vec<u32>)> {
        let view = self.cluster.wait_settled().await?;
        let manager = view.manager().context("no manager")?.to_owned();
        let node = (1..self.cluster.len()).find(|node| self.cluster.name(*node) != manager);
        let node = node.context("no node to drain")?;
        let name = self.cluster.name(node);
        let shards = owned(&view, &name);
        println!("demo: draining {name} ({} shards; the manager is {manager})", shards.len());
        let (from, began) = (now(), Instant::now());
        let mut updates = self.clients[0].drain(&name, false).await?;
        loop {
            let progress = updates.next().await?.context("the drain did not complete")?;
            println!(
                "demo: {name} still owns {} of {} shards, {} in a hand-off",
                progress.remaining, progress.total, progress.in_flight
            );
            if progress.done {
                break;
            }
        }
        let to = now();
        println!("demo: {name} is drained after {:.2} s", began.elapsed().as_secs_f64());
        let view = self.cluster.wait_settled().await?;
        show(&view);
        let mut undone = self.clients[0].drain(&name, true).await?;
        while undone.next().await?.is_some_and(|progress| !progress.done) {}
        // Cancelling the drain may already have started balancing: follow this rebalance to its end.
        let mut balancing = self.clients[0].rebalance().await?;
        while balancing.next().await?.is_some_and(|progress| !progress.done) {}
        let drained = view;
        let view = self.cluster.wait("the shards are balanced", View::balanced).await?;
        println!("demo: {name} is a host again, {} shards moved back", view.moved_since(&drained));
        show(&view);
        Ok((from, to, shards))
    }

    async fn kill_the_manager(&mut self) -> Result<Kill> {
        let manager = self.cluster.manager().await?;
        let kill = self.kill(manager).await?;
        ensure!(
            kill.doubtful >= DOUBTFUL,
            "only {} commands of its clients were in doubt",
            kill.doubtful
        );
        if let Some((through, _)) = self.other_gateway(manager).await? {
            println!("demo: its clients continue through {through}");
        }
        self.start_again(manager).await?;
        Ok(kill)
    }

    /// Waits until the node has twice as many commands in flight as must be in doubt when it is killed.
    async fn until_busy(&self, node: usize) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if self.load.unanswered_at(node, u64::MAX) >= 2 * DOUBTFUL {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bail!("{} never had {} commands in flight", self.cluster.name(node), 2 * DOUBTFUL)
    }

    /// Waits until the clients of a dead node are connected to another one, and returns that node.
    async fn other_gateway(&self, node: usize) -> Result<Option<(String, SocketAddr)>> {
        let until = Instant::now() + Duration::from_secs(30);
        let gone = self.cluster.name(node);
        while Instant::now() < until {
            let through = self.clients[node].connected_to().filter(|(name, _)| *name != gone);
            if through.is_some() {
                return Ok(through);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the clients of {gone} did not find another node")
    }

    async fn kill(&mut self, node: usize) -> Result<Kill> {
        let (name, view) = (self.cluster.name(node), self.cluster.wait_settled().await?);
        let shards = owned(&view, &name);
        let role = match (view.manager() == Some(&*name), node) {
            (true, _) => "the manager",
            (_, 0) => "the store's node",
            _ => "a node",
        };
        self.until_busy(node).await?;
        let (at, process) = (now(), self.cluster.process(node)?.pid());
        self.cluster.kill_9(node)?;
        tokio::time::sleep(ARRIVAL).await;
        let doubtful = self.load.unanswered_at(node, at);
        println!(
            "demo: killed {name}, {role} (process {process}), with SIGKILL: {doubtful} commands of its clients in doubt, {} in total",
            self.load.unanswered_since(at)
        );
        Ok(Kill { node, at, doubtful, shards })
    }

    async fn start_again(&mut self, node: usize) -> Result<()> {
        let (name, began) = (self.cluster.name(node), Instant::now());
        self.cluster.start_node(node)?;
        println!("demo: started {name} again, ready in {:.2} s", began.elapsed().as_secs_f64());
        let view = self.cluster.wait_settled().await?;
        println!(
            "demo: every shard is served, the manager is {}, {:.1} s after {name} was started",
            view.manager().unwrap_or("unknown"),
            began.elapsed().as_secs_f64()
        );
        show(&view);
        Ok(())
    }

    async fn finish(mut self, drained: (u64, u64, Vec<u32>), kills: &[Kill]) -> Result<()> {
        let view = self.cluster.wait_settled().await?;
        let changes = |shard: &ostraca_client::ShardInfo| {
            shard.epoch.saturating_sub(self.epochs.get(&shard.shard).copied().unwrap_or(0))
        };
        let moves: u64 = view.shards.iter().map(changes).sum();
        let recorder = self.load.end().await?;
        let took = self.began.elapsed();
        let mut operations = recorder.operations();
        operations.retain(|operation| operation.command);
        let summary = judge(&recorder, &self.clients[1].session()).await?;
        let line = |what: &str, text: String| println!("  {what:<34}{text}");
        println!("demo: summary");
        let total = summary.results + summary.refusals;
        line(
            "answered",
            format!("{total} commands, {} results, {} refusals", summary.results, summary.refusals),
        );
        line("read during the load", format!("{} queries", summary.queries));
        let rate = total as f64 / took.as_secs_f64();
        line("overall rate, including kills", format!("{rate:.0} per second"));
        line("shards moved", format!("{moves} changes of owner"));
        let (from, to, shards) = drained;
        let pauses = pauses(&operations, &shards, from, to);
        line("pause of a drained shard", text(&pauses));
        for kill in kills {
            let name = self.cluster.name(kill.node);
            let (results, refusals) = ends(&operations, kill.at);
            line(
                &format!("in doubt when {name} was killed"),
                format!(
                    "{}, resent with their ids: {results} results, {refusals} refusals, 0 lost",
                    results + refusals
                ),
            );
            line(
                &format!("first reply of {name}'s entities"),
                text(&first_replies(&operations, kill)),
            );
        }
        line("hold every acknowledged command", format!("all of {} entities", summary.entities));
        ensure!(total >= COMMANDS, "not every command was answered");
        bank::transfers(&mut self.cluster, &self.clients).await?;
        for client in self.clients {
            client.close().await;
        }
        finish(self.cluster)
    }
}

fn owned(view: &View, name: &str) -> Vec<u32> {
    (1..=SHARDS).filter(|shard| view.owner(*shard) == Some(name)).collect()
}

fn text(times: &[Duration]) -> String {
    let [p50, p99, max] = spread(times.to_vec()).map(|time| time.as_secs_f64() * 1e3);
    format!("p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms ({} of them)", times.len())
}

fn shard(operation: &Operation) -> u32 {
    let id = operation.entity.split_once('/').map_or("", |(_, id)| id);
    shard_of(id, SHARDS).0
}

/// For each of the shards, the longest latency of a command while the shard was drained.
fn pauses(operations: &[Operation], shards: &[u32], from: u64, to: u64) -> Vec<Duration> {
    let mut longest: BTreeMap<u32, u64> = BTreeMap::new();
    for operation in operations.iter().filter(|it| it.received > from && it.sent < to) {
        if shards.contains(&shard(operation)) {
            let took = longest.entry(shard(operation)).or_default();
            *took = (*took).max(operation.received - operation.sent);
        }
    }
    longest.into_values().map(Duration::from_nanos).collect()
}

/// Number of results and number of refusals among the commands that were in doubt: sent before a kill and not answered
/// shortly after it.
fn ends(operations: &[Operation], kill: u64) -> (usize, usize) {
    let arrived = kill + u64::try_from(ARRIVAL.as_nanos()).unwrap_or(u64::MAX);
    let doubtful = operations.iter().filter(|it| it.sent < kill && it.received > arrived);
    let (results, refusals): (Vec<_>, Vec<_>) =
        doubtful.partition(|it| matches!(it.outcome, Outcome::Final { value: Ok(_), .. }));
    (results.len(), refusals.len())
}

/// Time from a kill to the first reply of each of the node's entities that had a command in flight at that moment.
fn first_replies(operations: &[Operation], kill: &Kill) -> Vec<Duration> {
    let arrived = kill.at + u64::try_from(ARRIVAL.as_nanos()).unwrap_or(u64::MAX);
    let mut first: BTreeMap<&str, u64> = BTreeMap::new();
    for operation in operations.iter().filter(|it| it.sent < arrived && it.received > arrived) {
        if kill.shards.contains(&shard(operation)) {
            let at = first.entry(&operation.entity).or_insert(u64::MAX);
            *at = (*at).min(operation.received - kill.at);
        }
    }
    first.into_values().map(Duration::from_nanos).collect()
}

fn finish(cluster: Cluster) -> Result<()> {
    if std::env::var_os("KEEP").is_none_or(|keep| keep.is_empty() || keep == "0") {
        return cluster.stop();
    }
    let profile = cluster.home(0).dir().join("profile.toml");
    cluster.profile(0).save(&profile)?;
    let ostraca = format!("{} --profile {}", artifacts::ostraca()?.display(), profile.display());
    println!("demo: the nodes keep running. Try:");
    for command in [
        "send counter/alice add 2",
        "send account/7 balance",
        "send bank-account/a7 statement",
        "nodes",
        "shards",
        "drain n2",
        "status",
    ] {
        println!("  {ostraca} {command}");
    }
    let (processes, dirs) = cluster.leave_running();
    let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    println!("demo: to stop them: kill {}; rm -r {}", processes.join(" "), dirs.join(" "));
    Ok(())
}
