//! The core's cost per message and per event, without a node: `ONLY=CORE`.
//!
//! The crates' own examples do the measuring. Times vary with the machine's other load; the instructions that
//! valgrind counts hardly vary, so they show a change of a few percent. Without valgrind, only times are printed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ostraca_process_tests::artifacts;
use serde::Deserialize;

use crate::Bench;

/// One line that a `hot_paths` example prints.
#[derive(Deserialize)]
struct HotPath {
    path: String,
    ns: f64,
    rounds: u64,
    what: String,
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let counts = Command::new("valgrind").arg("--version").output().is_ok();
    if !counts {
        println!("bench: instructions are not counted, for want of valgrind");
    }
    for package in ["ostraca-core", "ostraca-wire"] {
        let program = artifacts::example(package, "hot_paths")?;
        for line in artifacts::output(&program, &[])?.lines() {
            let found: HotPath = serde_json::from_str(line)?;
            let id = format!("CORE {}", found.path);
            bench.line(&id, (found.ns, "ns"), None, None, &found.what);
            if counts {
                let each = instructions(&program, &found.path, (found.rounds / 1_000).max(10))?;
                bench.line(&id, (each, "instr."), None, None, &found.what);
            }
        }
    }
    for name in ["routing", "deciding"] {
        let program = artifacts::example("ostraca-core", name)?;
        for line in artifacts::output(&program, &[])?.lines() {
            let (value, unit, what) = measured(line).with_context(|| line.to_owned())?;
            bench.line(&format!("CORE {name}"), (value, unit), None, None, &what);
        }
    }
    Ok(())
}

/// Instructions per round: the difference between two runs, so that neither start nor end counts.
fn instructions(program: &Path, path: &str, rounds: u64) -> Result<f64> {
    let short = count(program, path, rounds)?;
    let long = count(program, path, 2 * rounds)?;
    Ok(long.saturating_sub(short) as f64 / rounds as f64)
}

fn count(program: &Path, path: &str, rounds: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg(path)
        .arg(rounds.to_string())
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{report}");
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    let (_, collected) = collected.with_context(|| format!("no count: {report}"))?;
    Ok(collected.trim().parse()?)
}

/// Parses a line such as `a renewal: 12.3 µs an event`.
fn measured(line: &str) -> Option<(f64, &'static str, String)> {
    let (what, values) = line.split_once(": ")?;
    let words: Vec<_> = values.split(' ').collect();
    let (at, unit) = words.iter().enumerate().find_map(|(at, word)| match *word {
        "µs" => Some((at, "us")),
        "ns" => Some((at, "ns")),
        _ => None,
    })?;
    let before = at.checked_sub(1)?;
    let rest = [&words[..before], &words[at + 1..]].concat().join(" ");
    Some((words[before].parse().ok()?, unit, format!("{what}: {rest}")))
}
