//! What the operating system reports about a process.

use std::time::Duration;

use anyhow::{Context, Result};

/// Resident memory in KiB.
///
/// # Errors
/// If the system does not report it.
pub fn resident_kib(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    field(&status, "VmRSS:").context("no VmRSS")
}

/// Processor time, user and system.
///
/// # Errors
/// If the system does not report it.
pub fn processor_time(process: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The process name, in parentheses, may contain anything.
    let after = stat.rsplit_once(") ").context("no name in stat")?.1;
    let ticks: u64 = after.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    // USER_HZ, which is 100 on every Linux that the tests run on.
    Ok(Duration::from_millis(ticks * 10))
}

/// How many times the process's threads went to sleep; each sleep causes a wake-up later.
///
/// # Errors
/// If the system does not report it.
pub fn sleeps(process: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end in the meantime.
        let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) else { continue };
        sum += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sum)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
