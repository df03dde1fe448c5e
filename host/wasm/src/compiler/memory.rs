//! The default memory limit of a compilation. The compiler must reach its limit before the node reaches its own.

use std::fs::read_to_string;
use std::path::Path;

/// The upper bound, for machines with plenty of memory.
const MOST: u64 = 2 << 30;
/// The lower bound: what a component of 1 MiB needs.
const LEAST: u64 = 256 << 20;

/// A quarter of the `available` bytes, within the bounds; the upper bound if that is unknown.
pub(super) fn default(available: Option<u64>) -> u64 {
    available.map_or(MOST, |bytes| (bytes / 4).clamp(LEAST, MOST))
}

/// The memory in bytes of this machine or of this process's control group, whichever is less.
pub(super) fn machine() -> Option<u64> {
    let whole = read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = read_to_string("/proc/self/cgroup").ok();
    let group = groups.and_then(|text| {
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        // A group's limit also applies to the groups below it.
        let root = Path::new("/sys/fs/cgroup");
        let limits = root.join(own);
        let limits = limits.ancestors().take_while(|dir| dir.starts_with(root));
        limits
            .filter_map(|dir| read_to_string(dir.join("memory.max")).ok()?.trim().parse().ok())
            .min()
    });
    whole.into_iter().chain(group).min()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_quarter_of_the_memory_within_bounds() {
        assert_eq!(default(Some(4 << 30)), 1 << 30);
        assert_eq!(default(Some(64 << 30)), MOST);
        assert_eq!(default(Some(128 << 20)), LEAST);
        assert_eq!(default(None), MOST);
        assert_eq!(total("Foo: 1 kB\nMemTotal:       24618092 kB\n"), Some(24_618_092 << 10));
    }
}
