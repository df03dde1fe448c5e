//! `make demo`: a real node, many clients, a kill -9 in the middle, and everything accounted for.
//!
//! It shows on real input what the README promises. What it writes lies in the target directory, and
//! is removed at the end; `KEEP=1` leaves the node running, to play with.
#![allow(clippy::print_stdout, reason = "it shows what it does")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use ostraca_client::{CallError, Client, Entity, Session};
use ostraca_process_tests::history::until_answered;
use ostraca_process_tests::home::deploy_example;
use ostraca_process_tests::load::{UnderWay, histogram};
use ostraca_process_tests::{Home, Node, parts};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

const COMMANDS: u64 = 24_000;
const COUNTERS: u64 = 2_000;
const ACCOUNTS: u64 = 1_000;
const SESSIONS: u64 = 32;
/// Of each session. All of them together are what the kill finds under way.
const IN_FLIGHT: usize = 4;

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

/// What the acknowledged commands should have left, and how commands ended.
#[derive(Default)]
struct Books {
    expected: BTreeMap<String, i64>,
    results: u64,
    refusals: u64,
    doubtful_results: u64,
    doubtful_refusals: u64,
}

struct Demo {
    books: Mutex<Books>,
    under_way: UnderWay,
    /// When the node was killed: what was sent before and answered after was in doubt.
    killed: Mutex<Option<Instant>>,
}

impl Demo {
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn killed_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run() -> Result<()> {
    println!("demo: building the guests (half a minute the first time)");
    let began = Instant::now();
    parts::module("counter")?;
    println!("demo: built in {:.1} s", began.elapsed().as_secs_f64());
    let home = Home::init("demo")?;
    let node = Node::start(&home)?;
    println!("demo: {}", node.ready);
    let client = Client::connect(home.profile(node.address)?).await?;
    for example in ["counter", "account"] {
        let revision = deploy_example(&client, example).await?;
        println!("demo: deployed {example}, revision {revision}");
    }
    println!(
        "demo: {COMMANDS} commands to {COUNTERS} counters and {ACCOUNTS} accounts, from {SESSIONS} sessions"
    );
    let demo = Arc::new(Demo {
        books: Mutex::default(),
        under_way: UnderWay::default(),
        killed: Mutex::default(),
    });
    let began = Instant::now();
    let mut senders = JoinSet::new();
    for number in 0..SESSIONS {
        let (session, demo) = (client.session(), Arc::clone(&demo));
        senders.spawn(sender(demo, session, number));
    }

    progress(&demo, COMMANDS / 2, began, &mut senders).await?;
    let before = (demo.under_way.done(), began.elapsed());
    *demo.killed_at() = Some(Instant::now());
    let kill = node.pid();
    node.kill_9()?;
    // Replies that had left the node before it died are no longer under way.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let doubtful = demo.under_way.now();
    println!("demo: killed process {kill} with SIGKILL, {doubtful} commands under way");
    ensure!(doubtful >= 64, "only {doubtful} commands were under way at the kill");
    let restarted = Instant::now();
    let node = Node::start(&home)?;
    println!("demo: started again in {:.2} s: {}", restarted.elapsed().as_secs_f64(), node.ready);
    progress(&demo, COMMANDS, began, &mut senders).await?;

    let mut waits = histogram()?;
    while let Some(sender) = senders.join_next().await {
        waits.add(sender??)?;
    }
    let took = began.elapsed();
    let wrong = audit(&client, &demo).await?;
    let books = std::mem::take(&mut *demo.books());
    println!("demo: summary");
    println!(
        "  {:<34}{} commands, {} results and {} refusals",
        "answered",
        books.results + books.refusals,
        books.results,
        books.refusals
    );
    println!(
        "  {:<34}{:.0} a second before the kill, {:.0} over all",
        "rate",
        before.0 as f64 / before.1.as_secs_f64(),
        COMMANDS as f64 / took.as_secs_f64()
    );
    let at = |quantile| waits.value_at_quantile(quantile) as f64 / 1_000.0;
    println!("  {:<34}p50 {:.1} ms, p99 {:.1} ms", "from sending to answer", at(0.5), at(0.99));
    println!(
        "  {:<34}{doubtful}, sent again under their ids: {} results, {} refusals, 0 lost",
        "in doubt at the kill", books.doubtful_results, books.doubtful_refusals
    );
    println!(
        "  {:<34}{} of {} entities",
        "hold what was acknowledged",
        books.expected.len() - wrong,
        books.expected.len()
    );
    ensure!(wrong == 0, "{wrong} entities hold something else than was acknowledged");
    ensure!(books.results + books.refusals == COMMANDS, "not every command was answered");
    client.close().await;
    finish(home, node)
}

/// Shows how far the commands are, each second, until so many have ended.
async fn progress(
    demo: &Demo,
    until: u64,
    began: Instant,
    senders: &mut JoinSet<Result<Histogram<u64>>>,
) -> Result<()> {
    let mut shown = Instant::now();
    while demo.under_way.done() < until {
        if let Some(ended) = senders.try_join_next() {
            // One that ends before the others have sent all has failed, or is done early.
            let waits = ended??;
            senders.spawn(async move { Ok(waits) });
        }
        if shown.elapsed() >= Duration::from_secs(1) {
            shown = Instant::now();
            let seconds = began.elapsed().as_secs();
            println!("demo: {:>6} of {COMMANDS} answered after {seconds} s", demo.under_way.done());
            ensure!(seconds < 600, "no end in sight");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn sender(demo: Arc<Demo>, session: Session, number: u64) -> Result<Histogram<u64>> {
    let mut rng = StdRng::seed_from_u64(number);
    let mut waits = histogram()?;
    let mut under_way = JoinSet::new();
    for _ in 0..COMMANDS / SESSIONS {
        while under_way.len() >= IN_FLIGHT {
            waits.saturating_record(ended(&mut under_way).await?);
        }
        let (entity, method, amount) = match rng.random_range(0..4) {
            0 | 1 => ("counter", "add", rng.random_range(1..10)),
            2 => ("account", "deposit", rng.random_range(1..100)),
            _ => ("account", "withdraw", rng.random_range(1..100)),
        };
        let among = if entity == "counter" { COUNTERS } else { ACCOUNTS };
        let entity = Entity::new(entity, format!("{}", rng.random_range(0..among)));
        under_way.spawn(command(Arc::clone(&demo), session.clone(), entity, method, amount));
        // Calls go out in the order in which they are made.
        tokio::task::yield_now().await;
    }
    while !under_way.is_empty() {
        waits.saturating_record(ended(&mut under_way).await?);
    }
    Ok(waits)
}

async fn ended(under_way: &mut JoinSet<Result<u64>>) -> Result<u64> {
    under_way.join_next().await.context("nothing under way")??
}

async fn command(
    demo: Arc<Demo>,
    session: Session,
    entity: Entity,
    method: &'static str,
    amount: i64,
) -> Result<u64> {
    let options = until_answered(ostraca_client::Kind::Command);
    let sent = Instant::now();
    demo.under_way.sent();
    let outcome = session.send(&entity, method, amount.to_string(), &options).await;
    let killed = *demo.killed_at();
    let doubtful = killed.is_some_and(|killed| sent < killed);
    let mut books = demo.books();
    let gained = match outcome {
        Ok(_) => {
            books.results += 1;
            books.doubtful_results += u64::from(doubtful);
            if method == "withdraw" { -amount } else { amount }
        }
        Err(CallError::Application { code, .. }) if &*code == "insufficient-funds" => {
            books.refusals += 1;
            books.doubtful_refusals += u64::from(doubtful);
            0
        }
        Err(error) => return Err(anyhow!("{method} of {entity} has no final outcome: {error}")),
    };
    *books.expected.entry(entity.to_string()).or_default() += gained;
    drop(books);
    demo.under_way.ended();
    Ok(u64::try_from(sent.elapsed().as_micros())?)
}

/// Asks every entity what it holds; how many hold something else than was acknowledged.
async fn audit(client: &Client, demo: &Demo) -> Result<usize> {
    let expected = demo.books().expected.clone();
    let session = client.session();
    let mut wrong = 0;
    let entities: Vec<_> = expected.into_iter().collect();
    for part in entities.chunks(200) {
        let asked: Vec<_> = part
            .iter()
            .map(|(name, expected)| {
                let (kind, id) = name.split_once('/').unwrap_or((name, ""));
                let method = if kind == "counter" { "get" } else { "balance" };
                (name, expected, session.query(&Entity::new(kind, id), method, ""))
            })
            .collect();
        for (name, expected, answer) in asked {
            let answer = answer.await.with_context(|| format!("ask {name}"))?;
            let holds: i64 = serde_json::from_slice(&answer.body)?;
            if holds != *expected {
                println!("demo: {name} holds {holds}, acknowledged were {expected}");
                wrong += 1;
            }
        }
    }
    Ok(wrong)
}

fn finish(home: Home, node: Node) -> Result<()> {
    if std::env::var_os("KEEP").is_none_or(|keep| keep.is_empty() || keep == "0") {
        let status = node.stop()?;
        ensure!(status.success(), "the node ended with {status}");
        return Ok(());
    }
    let profile = home.dir().join("profile.toml");
    home.profile(node.address)?.save(&profile)?;
    let (program, profile) = (parts::ostraca()?, profile.display().to_string());
    let ostraca = format!("{} --profile {profile}", program.display());
    println!("demo: the node runs on. To play with it:");
    println!("  {ostraca} send counter/alice add 2");
    println!("  {ostraca} send account/7 balance");
    println!("  {ostraca} methods counter");
    println!("  {ostraca} status");
    let dir = home.keep();
    println!("demo: to end it: kill {}; rm -r {}", node.leave_running(), dir.display());
    Ok(())
}
