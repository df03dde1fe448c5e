//! What the kernel says about the process, under the names that all Prometheus clients use.

use std::fmt;

use procfs::process::Process;
use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};

use crate::page::{Page, bytes, number, seconds};

/// The figures of this process.
struct Figures {
    cpu_seconds: f64,
    start_time: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_files: u64,
    max_files: u64,
    threads: u64,
}

impl Figures {
    fn read() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = ticks_per_second() as f64;
        let open_files = process.limits()?.max_open_files.soft_limit;
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            start_time: boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
            resident_bytes: stat.rss * page_size(),
            virtual_bytes: stat.vsize,
            open_files: process.fd_count()? as u64,
            max_files: match open_files {
                procfs::process::LimitValue::Value(files) => files,
                procfs::process::LimitValue::Unlimited => u64::MAX,
            },
            threads: u64::try_from(stat.num_threads).unwrap_or_default(),
        })
    }
}

/// Writes what the kernel says about the process; nothing if it says nothing.
pub(crate) fn process(page: &mut Page<'_>) -> fmt::Result {
    let figures = match Figures::read() {
        Ok(figures) => figures,
        Err(error) => {
            tracing::debug!(%error, "the kernel does not tell about this process");
            return Ok(());
        }
    };
    page.counter(seconds("process_cpu", "Processor time of the process."), figures.cpu_seconds)?;
    page.gauge(
        seconds("process_start_time", "When the process started, in seconds since 1970."),
        figures.start_time,
    )?;
    page.gauge(
        bytes("process_resident_memory", "Memory of the process that is in RAM."),
        figures.resident_bytes,
    )?;
    page.gauge(
        bytes("process_virtual_memory", "Virtual memory of the process."),
        figures.virtual_bytes,
    )?;
    page.gauge(number("process_open_fds", "Open files and sockets."), figures.open_files)?;
    page.gauge(number("process_max_fds", "The limit of open files."), figures.max_files)?;
    page.gauge(number("process_threads", "Threads of the process."), figures.threads)
}
