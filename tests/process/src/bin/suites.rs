//! Runs all suites of the workspace, two at a time, and then the tests in the documentation. `make test` calls it after
//! everything is built.
//!
//! Most suites wait most of the time: for leases, restarts, and syncs of the disk. A few compute all the time. So one
//! lane runs those that compute, at a lower priority, and the other one the rest; whichever is done first helps the
//! other. What a suite prints is shown when it has ended, as `cargo test` would show it.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ostraca_process_tests::artifacts;
use serde_json::Value;

/// Packages whose suites compute all the time.
const COMPUTE: [&str; 6] = [
    "ostraca-sim",
    "ostraca-model",
    "ostraca-wasm",
    "ostraca-testkit",
    "ostraca-sdk",
    "ostraca-core",
];
/// Suites that take longer than a minute, the longest first: they begin first.
const LONG: [&str; 15] = [
    "cluster_attacks",
    "cluster_mutations",
    "real_server",
    "cluster_seeds",
    "bank",
    "mutations",
    "node_process",
    "features",
    "clusters",
    "clients",
    "behaviours",
    "journey",
    "console",
    "every_state",
    "one_node",
];

/// A test program.
#[derive(Debug)]
struct Suite {
    package: String,
    /// As cargo names it: `tests/kill.rs`, or `unittests src/lib.rs`.
    source: String,
    name: String,
    program: PathBuf,
    /// Where cargo would run it.
    dir: PathBuf,
}

impl Suite {
    fn read(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let source = Path::new(target["src_path"].as_str()?).strip_prefix(&dir).ok()?.to_owned();
        let is_unit = target["kind"].as_array()?.iter().any(|kind| kind != "test");
        let package = package(message["package_id"].as_str()?).to_owned();
        Some(Self {
            package,
            source: format!("{}{}", if is_unit { "unittests " } else { "" }, source.display()),
            name: target["name"].as_str()?.to_owned(),
            program: message["executable"].as_str()?.into(),
            dir,
        })
    }

    fn computes(&self) -> bool {
        COMPUTE.contains(&&*self.package)
    }

    /// Suites with a low number begin first.
    fn place(&self) -> usize {
        LONG.iter().position(|name| *name == self.name).unwrap_or(LONG.len())
    }
}

/// The name in a package id: `path+file:///a/host/core#ostraca-core@0.1.0`, or `…/counter#0.1.0`.
fn package(id: &str) -> &str {
    let (path, rest) = id.rsplit_once('#').unwrap_or(("", id));
    match rest.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// The suites of the workspace, which cargo has built.
fn suites() -> Result<Vec<Suite>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--no-run", "--quiet"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let output = cargo.current_dir(artifacts::root()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo cannot build the tests");
    let text = String::from_utf8(output.stdout).context("read cargo's output")?;
    let mut all: Vec<_> = text.lines().filter_map(Suite::read).collect();
    all.sort_by_key(|suite| (suite.place(), suite.source.clone(), suite.package.clone()));
    Ok(all)
}

/// Where the compiler's own libraries are: the tests of a macro crate load them.
fn libraries() -> Result<OsString> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir"]).output()?;
    ensure!(output.status.success(), "rustc does not say where its libraries are");
    let own =
        PathBuf::from(String::from_utf8(output.stdout).context("read rustc's output")?.trim());
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let inherited = std::env::split_paths(&inherited).filter(|path| !path.as_os_str().is_empty());
    Ok(std::env::join_paths(std::iter::once(own).chain(inherited))?)
}

/// What is left to run.
struct Queue {
    computing: Mutex<VecDeque<Suite>>,
    waiting: Mutex<VecDeque<Suite>>,
    total: usize,
    ended: AtomicUsize,
    failed: Mutex<Vec<String>>,
    /// Where suites print to.
    folder: PathBuf,
    libraries: OsString,
    threads: usize,
}

fn first(queue: &Mutex<VecDeque<Suite>>) -> Option<Suite> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

impl Queue {
    /// Runs suites of the one kind, then of the other one.
    fn lane(&self, computes: bool) {
        let (own, other) = match computes {
            true => (&self.computing, &self.waiting),
            false => (&self.waiting, &self.computing),
        };
        while let Some(suite) = first(own).or_else(|| first(other)) {
            if let Err(error) = self.run(&suite) {
                self.fail(&suite, &format!("{error:#}"));
            }
        }
    }

    fn run(&self, suite: &Suite) -> Result<()> {
        let file = self.folder.join(suite.program.file_name().context("a name")?);
        let (out, errors) = {
            let file = File::create(&file).context("create a file")?;
            (file.try_clone()?, file)
        };
        let mut command = match suite.computes() {
            true => {
                let mut nice = Command::new("nice");
                nice.args(["-n", "5"]).arg(&suite.program);
                nice
            }
            false => Command::new(&suite.program),
        };
        let threads = if suite.computes() { self.threads } else { self.threads * 2 };
        command.env("OSTRACA_BUILT", "1");
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", threads.to_string());
        }
        let started = Instant::now();
        let status = command
            .current_dir(&suite.dir)
            .env("CARGO_MANIFEST_DIR", &suite.dir)
            .env("LD_LIBRARY_PATH", &self.libraries)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .status()
            .context("start it")?;
        let printed = String::from_utf8_lossy(&std::fs::read(&file)?).into_owned();
        let seconds = started.elapsed().as_secs();
        let number = self.ended.fetch_add(1, Ordering::SeqCst) + 1;
        let Suite { source, program, package, name, .. } = suite;
        println!(
            "     Running {source} ({})\n{printed}\nsuites: {package} {name} took {seconds} s, {number} of {} done",
            program.display(),
            self.total
        );
        if !status.success() {
            self.fail(suite, &status.to_string());
        }
        Ok(())
    }

    fn fail(&self, suite: &Suite, why: &str) {
        let text = format!("{} {}: {why}", suite.package, suite.source);
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

fn main() -> Result<ExitCode> {
    let all = suites()?;
    let (computing, waiting): (VecDeque<_>, VecDeque<_>) =
        all.into_iter().partition(Suite::computes);
    let queue = Queue {
        total: computing.len() + waiting.len(),
        computing: Mutex::new(computing),
        waiting: Mutex::new(waiting),
        ended: AtomicUsize::new(0),
        failed: Mutex::default(),
        folder: artifacts::scratch("suites")?,
        libraries: libraries()?,
        threads: std::thread::available_parallelism()?.get(),
    };
    println!("suites: {} to run, two at a time; each is shown when it has ended", queue.total);
    std::thread::scope(|scope| {
        scope.spawn(|| queue.lane(true));
        scope.spawn(|| queue.lane(false));
    });
    let mut failed = queue.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    if !cargo.current_dir(artifacts::root()).status()?.success() {
        failed.push("tests in the documentation".into());
    }
    for text in &failed {
        println!("suites: failed: {text}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
