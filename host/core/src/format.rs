//! The formats of records and rows: which ones this program reads, and which one it writes (`docs/formats.md`).
//!
//! A node writes its cluster's format, not the newest that it knows: until an operator raises the format, an older
//! release can read everything. A process serves one cluster, so the format is kept once for the process; before the
//! cluster's row is read, it is the oldest.

use std::sync::atomic::{AtomicU8, Ordering};

/// The newest format that this release reads and can write. Formats 1 and 2 were never released.
pub const RELEASE: u8 = 3;
/// The oldest format that this release reads.
pub const OLDEST: u8 = 3;

static NEWEST: AtomicU8 = AtomicU8::new(RELEASE);
static WRITTEN: AtomicU8 = AtomicU8::new(OLDEST);

/// The newest format that this program reads and can write.
#[must_use]
pub fn newest() -> u8 {
    NEWEST.load(Ordering::Relaxed)
}

/// The format that the process writes into records and rows.
#[must_use]
pub fn written() -> u8 {
    WRITTEN.load(Ordering::Relaxed)
}

/// Lets the process write the format of its cluster from now on. It never goes back, and is never higher than
/// [`newest`].
pub fn raise_written(cluster: u32) {
    let newest = newest();
    let format = u8::try_from(cluster).map_or(newest, |format| format.min(newest));
    WRITTEN.fetch_max(format, Ordering::Relaxed);
}

/// Makes this program a later release whose newest format is this one. For tests of upgrades, at the start of a
/// program.
pub fn know(newest: u8) {
    NEWEST.fetch_max(newest, Ordering::Relaxed);
}

/// Checks that this program reads the format byte of a record or row.
///
/// # Errors
/// A message with the format, the supported formats, and what to do.
pub fn check(found: u8) -> Result<(), String> {
    let newest = newest();
    if (OLDEST..=newest).contains(&found) {
        return Ok(());
    }
    let help = if found > newest {
        "use a newer release"
    } else {
        "an unreleased program wrote it; recreate the cluster with `ostraca init`"
    };
    Err(format!("it has format {found}, but this release reads {OLDEST} to {newest}: {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_is_not_read_is_refused_by_name() {
        for known in OLDEST..=RELEASE {
            assert_eq!(check(known), Ok(()));
        }
        let newer = check(RELEASE + 1).expect_err("a later format");
        assert!(newer.contains("use a newer release"), "{newer}");
        let older = check(OLDEST - 1).expect_err("never released");
        assert!(older.contains("ostraca init"), "{older}");
    }
}
