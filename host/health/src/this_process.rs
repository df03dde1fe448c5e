//! Describes this process, so that health checks of other nodes can find it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use ostraca_core::rows::HostProcess;

/// Describes this process, for the row of its node.
///
/// # Errors
/// If `/proc` cannot be read, or is that of another process id namespace, where this process has another id.
pub fn describe_this_process() -> io::Result<HostProcess> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    let pid = std::process::id();
    let start_ticks = own_start(&read("/proc/self/stat")?, pid)?;
    Ok(HostProcess {
        host: read("/proc/sys/kernel/hostname")?,
        boot_id: read("/proc/sys/kernel/random/boot_id")?,
        pid_namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
        pid,
        start_ticks,
    })
}

/// The start of this process, if the `stat` file is that of a process with its id.
fn own_start(stat: &str, pid: u32) -> io::Result<u64> {
    let found = stat.split_once(' ').and_then(|(id, _)| id.parse::<u32>().ok());
    if found != Some(pid) {
        let why = format!("/proc is not that of this process {pid}: {stat:?}");
        return Err(io::Error::other(why));
    }
    start_ticks(stat)
        .ok_or_else(|| io::Error::other(format!("/proc/self/stat has no start: {stat:?}")))
}

/// Field 22 of a `stat` file. Field 2 is the program's name in parentheses, which may contain anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, from_third) = stat.rsplit_once(')')?;
    from_third.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s7_a_process_is_described_by_boot_pid_and_start() {
        let found = describe_this_process().expect("a description");
        assert_eq!(found.pid, std::process::id());
        let namespace = fs::read_link("/proc/self/ns/pid").expect("a namespace");
        assert_eq!(namespace.display().to_string(), format!("pid:[{}]", found.pid_namespace));
        assert!(!found.host.is_empty() && found.boot_id.len() == 36, "{found:?}");
        assert_eq!(describe_this_process().expect("a description"), found, "it does not change");
    }

    #[test]
    fn a_programs_name_cannot_hide_its_start() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) S) {}", fields.join(" "));
        assert_eq!(start_ticks(&stat), Some(22));
        assert_eq!(start_ticks("1 (a) 3 4"), None);
    }

    #[test]
    fn s7_the_proc_of_another_namespace_describes_nothing() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("71 (ostraca) {}", fields.join(" "));
        assert_eq!(own_start(&stat, 71).expect("its start"), 22);
        for (stat, pid) in [(stat.as_str(), 1), (stat.as_str(), 7), ("", 1), ("x (a) S", 1)] {
            let error = own_start(stat, pid).expect_err("another process");
            assert!(error.to_string().contains("not that of this process"), "{error}");
        }
    }
}
