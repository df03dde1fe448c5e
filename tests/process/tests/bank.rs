//! The bank of `examples/bank` under faults: no money is lost or made, whichever node is killed, drained or paused
//! (R19, R25).
//!
//! Clients order transfers through every gateway while one fault follows the other. Meanwhile an audit reads all
//! statements, over and over. After each fault the load pauses until nothing moves, and the sum of balances and open
//! transfers must be what was deposited. Some transfers are refused: too little money, a closed account, a deadline.
//! Some wait for their clearing time, so that money is in flight while the load pauses.
//!
//! A transfer is *in doubt* at a fault if it was ordered before the fault, no client has seen its end 150 ms after it,
//! and the faulty node takes part: it has the store, or it owns the transfer or one of its accounts, or the client that
//! ordered the transfer is connected to it.
//!
//! `SEED=n` replays the random choices, `ROUNDS=n` sets the number of faults, `TRANSFERS=n` the minimum of transfers.
#![allow(clippy::print_stdout, reason = "it prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::Client;
use ostraca_core::hash::shard_of;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::bank::{
    Audit, BankSize, Order, TransferLoad, account_id, check_no_dead_letters, deploy_bank,
    open_accounts,
};
use ostraca_process_tests::cluster::{Options, View};
use ostraca_process_tests::history::now;
use ostraca_process_tests::rounds::number;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Mutex;
use tokio::time::sleep;

const SIZE: BankSize = BankSize { accounts: 200, closed: 10, cents: 10_000, concurrent: 96 };
/// Minimum number of transfers.
const TRANSFERS: u64 = 20_000;
/// Minimum number of transfers that are in doubt at the faults, together.
const IN_DOUBT: usize = 1_000;
/// What leaves a node before a fault arrives within this time.
const ARRIVAL: Duration = Duration::from_millis(150);
/// The node with the store.
const STORE: usize = 0;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL of these nodes at the same moment; they are started again.
    Kill(&'static [usize]),
    /// A drain of a node, which is undone.
    Drain(usize),
    /// SIGSTOP of a node for longer than its lease (3 s), then SIGCONT.
    LongPause(usize),
    /// SIGSTOP of a node within its lease, then SIGCONT.
    ShortPause(usize),
}

const FAULTS: [Fault; 12] = [
    Fault::Kill(&[1]),
    Fault::LongPause(2),
    Fault::Kill(&[STORE]),
    Fault::Drain(1),
    Fault::LongPause(STORE),
    Fault::Kill(&[2]),
    Fault::Drain(STORE),
    Fault::ShortPause(1),
    Fault::Kill(&[1, 2]),
    Fault::ShortPause(STORE),
    Fault::Drain(2),
    Fault::Kill(&[STORE, 1, 2]),
];

impl Fault {
    fn nodes(&self) -> Vec<usize> {
        match self {
            Fault::Kill(nodes) => nodes.to_vec(),
            Fault::Drain(node) | Fault::LongPause(node) | Fault::ShortPause(node) => vec![*node],
        }
    }
}

struct Attack {
    cluster: Cluster,
    /// A client at each node's gateway.
    clients: Vec<Client>,
    load: TransferLoad,
    audit: Arc<Mutex<Audit>>,
    rng: StdRng,
    in_doubt: Vec<usize>,
    /// Number of transfers that were in flight while the load paused.
    in_flight: Vec<usize>,
}

impl Attack {
    async fn start() -> Result<Self> {
        let seed = number("SEED").unwrap_or_else(rand::random);
        println!("bank: SEED={seed}");
        let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
        let options = Options { proxied: false, ..Options::new("bank", &roles) };
        let mut cluster = Cluster::start(&options).await?;
        cluster.wait_settled().await?;
        let mut clients = Vec::new();
        for node in 0..cluster.len() {
            clients.push(cluster.client(node).await?);
        }
        deploy_bank(&clients[0]).await?;
        open_accounts(&clients[0], SIZE).await?;
        let load = TransferLoad::start(&clients, seed, SIZE);
        let audit = Audit::new(clients[1].session(), Arc::clone(load.transfers()));
        let (rng, audit) = (StdRng::seed_from_u64(seed), Arc::new(Mutex::new(audit)));
        Ok(Self { cluster, clients, load, audit, rng, in_doubt: vec![], in_flight: vec![] })
    }

    /// One fault under load, and the check of the sum afterwards.
    async fn round(&mut self, fault: Fault) -> Result<()> {
        let began = Instant::now();
        let names: Vec<_> = fault.nodes().iter().map(|node| self.cluster.name(*node)).collect();
        let shares = |view: &View| names.iter().all(|name| view.owned_by(name) > 3);
        let view = self.cluster.wait("the nodes own shards", shares).await?;
        self.load.resume();
        self.load.progress(SIZE.concurrent).await?;
        // Vary the moment relative to a node's intervals.
        sleep(Duration::from_millis(self.rng.random_range(0..300))).await;
        self.strike(fault, &view).await?;
        self.load.progress(SIZE.concurrent).await.context("after the fault")?;
        self.load.pause().await?;
        let still = self.audit.lock().await.wait_still().await?;
        self.in_flight.push(still.open);
        println!(
            "bank: {fault:?}: {} in doubt; then {} cents in accounts and {} in {} open transfers; {:.1?}",
            self.in_doubt.last().unwrap_or(&0),
            still.balances,
            still.in_flight,
            still.open,
            began.elapsed()
        );
        Ok(())
    }

    /// Injects the fault, and waits until the cluster has recovered.
    async fn strike(&mut self, fault: Fault, view: &View) -> Result<()> {
        let at = now();
        match fault {
            Fault::Kill(nodes) => {
                for node in nodes {
                    self.cluster.kill_9(*node)?;
                }
                self.count(at, fault, view).await;
                // Before or after others have taken over the shards.
                sleep(Duration::from_millis(self.rng.random_range(0..4_000))).await;
                for node in nodes {
                    self.cluster.start_node(*node)?;
                }
            }
            Fault::Drain(node) => {
                let name = self.cluster.name(node);
                let mut updates = self.clients[(node + 1) % 3].drain(&name, false).await?;
                self.count(at, fault, view).await;
                while updates.next().await?.is_some_and(|progress| !progress.done) {}
                self.cluster.wait("it is drained", |view| view.owned_by(&name) == 0).await?;
                let mut undone = self.clients[(node + 1) % 3].drain(&name, true).await?;
                while undone.next().await?.is_some_and(|progress| !progress.done) {}
            }
            Fault::LongPause(node) | Fault::ShortPause(node) => {
                self.cluster.pause(node)?;
                self.count(at, fault, view).await;
                let long = matches!(fault, Fault::LongPause(_));
                sleep(Duration::from_millis(if long { 4_500 } else { 1_000 })).await;
                self.cluster.resume(node)?;
                // Its earlier commits and replies are still in transit.
                sleep(Duration::from_millis(500)).await;
            }
        }
        self.cluster.wait_settled().await?;
        Ok(())
    }

    async fn count(&mut self, at: u64, fault: Fault, view: &View) {
        sleep(ARRIVAL).await;
        let nodes = fault.nodes();
        let is_on = |id: &str| {
            let owner = view.owner(shard_of(id, self.cluster.shards).0);
            owner.and_then(|owner| self.cluster.place(owner)).is_some_and(|it| nodes.contains(&it))
        };
        let takes_part = |order: &Order, client: usize| {
            nodes.contains(&STORE) && !matches!(fault, Fault::Drain(_))
                || nodes.contains(&client)
                || is_on(&order.entity().id)
                || is_on(&account_id(order.from))
                || is_on(&account_id(order.to))
        };
        self.in_doubt.push(self.load.transfers().in_doubt(at, takes_part));
    }
}

/// Reads all statements, over and over; ends only if it finds something.
async fn keep_auditing(audit: Arc<Mutex<Audit>>) -> Result<()> {
    loop {
        audit.lock().await.pass().await?;
        sleep(Duration::from_millis(500)).await;
    }
}

async fn attacked() -> Result<()> {
    let rounds = number("ROUNDS").unwrap_or(FAULTS.len() as u64);
    let transfers = number("TRANSFERS").unwrap_or(TRANSFERS);
    let began = Instant::now();
    let mut attack = Attack::start().await?;
    let mut auditor = tokio::spawn(keep_auditing(Arc::clone(&attack.audit)));
    let result = async {
        for fault in FAULTS.iter().cycle().take(usize::try_from(rounds)?) {
            attack.round(*fault).await.with_context(|| format!("{fault:?}"))?;
        }
        let ordered = attack.load.transfers().ordered();
        attack.load.resume();
        attack.load.progress(usize::try_from(transfers)?.saturating_sub(ordered)).await?;
        attack.load.pause().await
    };
    let result = tokio::select! {
        result = result => result,
        found = &mut auditor => found?.context("an audit under load"),
    };
    auditor.abort();
    if let Err(error) = result {
        // Printed separately, so that the error is the last line of the output.
        println!("{}", attack.cluster.logs());
        return Err(error);
    }
    let Attack { cluster, clients, load, audit, in_doubt, in_flight, .. } = attack;
    let ordered = load.end().await?.ordered();
    let mut audit = audit.lock().await;
    let ends = audit.finish().await?;
    check_no_dead_letters(&clients[0]).await?;
    let sum: usize = in_doubt.iter().sum();
    let figures = format!(
        "bank: {ordered} transfers, {} done, refused: {:?}, {} of them refunded; {sum} in doubt at {rounds} faults: \
         {in_doubt:?}; in flight at each check of the sum: {in_flight:?}; {} lines read in {} passes; {:.1?}",
        ends.done,
        ends.refused,
        ends.refunded,
        audit.lines(),
        audit.passes(),
        began.elapsed()
    );
    println!("{figures}");
    ensure!(sum >= IN_DOUBT, "only {sum} in doubt");
    for reason in ["insufficient-funds", "account-closed", "deadline-passed"] {
        let count = ends.refused.get(reason).copied().unwrap_or_default();
        ensure!(count >= 10, "only {count} transfers were refused with {reason}");
    }
    ensure!(in_flight.iter().any(|count| *count > 0), "no money was in flight at any check");
    for client in clients {
        client.close().await;
    }
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r19_no_fault_loses_or_makes_money() {
    attacked().await.expect("no money is lost or made");
}
