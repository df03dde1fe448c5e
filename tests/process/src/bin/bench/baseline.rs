//! The bare parts, measured in each run: a QUIC echo, the disk's sync, and both combined with a sandbox.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_process_tests::load::LoadResult;
use ostraca_process_tests::{NodeDir, artifacts, baseline, echo, usage};

use super::{Bench, ENTITIES, IN_FLIGHT, micros};

/// Size in bytes of a counter's command on the wire, including its envelope, rounded up.
const MESSAGE: usize = 80;

/// The performance of the bare parts in the same run.
pub(super) struct Baseline {
    pub(super) round_trip: Duration,
    pub(super) sync: Duration,
    /// Durable turns per second of the combined parts: over many entities, and for one entity.
    pub(super) joined: f64,
    pub(super) joined_hot: f64,
}

/// Serves one of the parts, if this program was started for that.
pub(super) async fn served(part: &str, dir: &Path) -> Option<Result<()>> {
    match part {
        "echo" => Some(echo::serve(dir).await),
        "joined" => Some(baseline::serve(dir, MESSAGE).await),
        _ => None,
    }
}

/// A part's process, killed when it is dropped.
struct Part {
    process: Child,
    address: SocketAddr,
}

impl Drop for Part {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Part {
    fn start(name: &str, dir: &Path) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(name)
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take();
        let mut part = Self { process, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        BufReader::new(stdout.context("no standard output")?).read_line(&mut line)?;
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        part.address = address.parse().with_context(|| format!("{name} is not ready: {line:?}"))?;
        Ok(part)
    }
}

pub(super) async fn measure(bench: &mut Bench, home: &NodeDir) -> Result<Baseline> {
    let dir = tempfile::tempdir_in(artifacts::scratch("bare")?)?;
    let dir = dir.path();
    echo::prepare(dir)?;
    let time = bench.time / 2;
    let echo = Part::start("echo", dir)?;
    let many = echo::measure(dir, echo.address, IN_FLIGHT, ENTITIES, MESSAGE, time).await?;
    let settings = format!("{MESSAGE} bytes, {IN_FLIGHT} streams, 1 in flight on each");
    bench.line("bare QUIC echo rate", (many.rate(), "/s"), None, None, &settings);
    let one = echo::measure(dir, echo.address, 1, 1, MESSAGE, time).await?;
    let settings = format!("{MESSAGE} bytes, 1 stream, 1 in flight");
    let round_trip = one.percentile(50.0);
    bench.line("bare QUIC echo p50", (micros(round_trip), "us"), None, None, &settings);
    drop(echo);
    // Measured on a new thread, which has used no processor time yet: the node's committer also uses little.
    let store = home.store();
    let synced = std::thread::spawn(move || echo::measure_sync(&store, time));
    let synced = synced.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    let sync = synced.percentile(50.0);
    let settings = "100 bytes appended, in the store's directory";
    bench.line("bare fdatasync p50", (micros(sync), "us"), None, None, settings);
    bench.line("bare fdatasync p99", (micros(synced.percentile(99.0)), "us"), None, None, settings);

    std::fs::write(dir.join(baseline::COMPONENT), artifacts::component("counter")?)?;
    let part = Part::start("joined", dir)?;
    let mut rates = Vec::new();
    for (what, entities) in [("joined", ENTITIES), ("joined hot", 1)] {
        let warm = Duration::from_secs(2);
        echo::measure(dir, part.address, IN_FLIGHT, entities, MESSAGE, warm).await?;
        let before = Used::by(part.process.id())?;
        let found =
            echo::measure(dir, part.address, IN_FLIGHT, entities, MESSAGE, bench.time).await?;
        let used = Used::by(part.process.id())?;
        let settings =
            format!("QUIC, sandbox, sled, sync; entities: {entities}, {IN_FLIGHT} in flight");
        bench.line(&format!("{what} rate"), (found.rate(), "/s"), None, None, &settings);
        used.since(&before, bench, what, &found, &settings);
        rates.push(found.rate());
    }
    let [joined, joined_hot] = rates[..] else { anyhow::bail!("expected two rates") };
    Ok(Baseline { round_trip, sync, joined, joined_hot })
}

/// The resources that a process has used so far.
pub(super) struct Used {
    processor: Duration,
    sleeps: u64,
}

impl Used {
    pub(super) fn by(process: u32) -> Result<Self> {
        let (processor, sleeps) = (usage::processor_time(process)?, usage::sleeps(process)?);
        Ok(Self { processor, sleeps })
    }

    /// Prints the resources used per turn since an earlier measurement.
    pub(super) fn since(
        &self,
        before: &Self,
        bench: &mut Bench,
        id: &str,
        found: &LoadResult,
        settings: &str,
    ) {
        let turns = found.done.max(1) as f64;
        let processor = micros(self.processor.saturating_sub(before.processor)) / turns;
        bench.line(&format!("{id} CPU time per turn"), (processor, "us"), None, None, settings);
        let sleeps = self.sleeps.saturating_sub(before.sleeps) as f64 / turns;
        bench.line(&format!("{id} wake-ups per turn"), (sleeps, ""), None, None, settings);
    }
}
