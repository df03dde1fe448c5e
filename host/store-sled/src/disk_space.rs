//! Monitors free disk space.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::progress::Progress;

pub(crate) struct DiskSpaceMonitor {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) dir: PathBuf,
    pub(crate) low_water_bytes: u64,
    pub(crate) every: Duration,
    pub(crate) last_check: Mutex<Option<Instant>>,
}

impl DiskSpaceMonitor {
    /// The bytes that are free now.
    pub(crate) fn free(&self) -> std::io::Result<u64> {
        self.disk.free(&self.dir)
    }

    /// Checks the free disk space, if the interval has passed, and records the result in `progress`.
    pub(crate) fn check(&self) {
        let mut checked = self.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.is_some_and(|checked| checked.elapsed() < self.every) {
            return;
        }
        *checked = Some(Instant::now());
        let was_low = self.progress.low_disk_reason().is_some();
        let low = match self.disk.free(&self.dir) {
            Ok(free) if free >= self.low_water_bytes => None,
            Ok(free) => Some(format!(
                "{free} bytes of disk are free, fewer than `store.low-water-bytes` ({})",
                self.low_water_bytes
            )),
            Err(error) => Some(format!("cannot determine free disk space: {error}")),
        };
        match &low {
            Some(why) if !was_low => {
                tracing::warn!(%why, "low disk space: refusing commits and components")
            }
            None if was_low => {
                tracing::info!("enough disk space again: accepting commits and components")
            }
            _ => {}
        }
        self.progress.set_low_disk_reason(low);
    }
}
