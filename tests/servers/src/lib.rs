//! Servers of other projects for tests. Each is installed from Debian's package if the tests run as root, is started on
//! a port and in a directory of its own, and ends with its value. [`kubernetes`] is written for the tests, since Debian
//! has no API server.
#![allow(clippy::missing_panics_doc, reason = "a test that lacks its server fails by panicking")]

pub mod browser;
pub mod certificates;
pub mod clang;
mod clock;
pub mod disk;
pub mod etcd;
pub mod kubernetes;
pub mod patroni;
pub mod pgbouncer;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod python;

use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports of servers.
const PORTS: Range<u16> = 10_000..30_000;

/// Waits until no other test installs anything, in this program or another one: two installations at once would refuse
/// each other. The lock ends with the file.
pub(crate) fn installing() -> File {
    let path = std::env::temp_dir().join("ostraca-tests-installing");
    let file = File::create(path).expect("a lock file");
    file.lock().expect("locked");
    file
}

/// Finds a program, or installs Debian's packages with it if this process may do so. Otherwise it fails with the line to
/// type.
pub fn find_or_install<T>(name: &str, packages: &[&str], find: impl Fn() -> Option<T>) -> T {
    let _one = installing();
    find().unwrap_or_else(|| {
        let hint = format!("tests need {name}: sudo apt-get install {}", packages.join(" "));
        assert!(nix::unistd::geteuid().is_root(), "{hint}");
        for arguments in [&["update"][..], &["install", "-y", "--no-install-recommends"]] {
            let wanted = packages.iter().take(if arguments.len() > 1 { packages.len() } else { 0 });
            let mut command = Command::new("apt-get");
            let status = command.args(arguments).args(wanted).status().expect("apt-get");
            assert!(status.success(), "{hint}");
        }
        find().expect(&hint)
    })
}

/// A port on which nothing listens, and which no connection gets by chance: it is below the range from which the system
/// takes those of connections. Each call returns another one.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Programs that run at the same time begin at different ports.
    let next = NEXT.get_or_init(|| AtomicU16::new((std::process::id() % 1_000) as u16 * 20));
    (0..PORTS.len())
        .map(|_| PORTS.start + next.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port")
}
