//! Reads the files of `deploy/` for the tests of this crate, and finds the programs that check them.
//!
//! The configurations in `deploy/` are checked by the program `ostraca` itself: a dependency on `ostraca-config` would
//! build wasmtime.
#![allow(
    clippy::missing_panics_doc,
    reason = "a test that lacks a file or a program fails by panicking"
)]

pub mod tools;
pub mod yaml;

use std::path::{Path, PathBuf};

/// The version of this release, which all files name.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The root directory of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root").into()
}

/// The text of a file of the repository.
#[must_use]
pub fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A constant in seconds of a source file, such as `const GRACE: Duration = Duration::from_secs(20);`.
#[must_use]
pub fn seconds(path: &str, constant: &str) -> u64 {
    let text = text(path);
    let start = format!("const {constant}: Duration = Duration::from_secs(");
    let value = text.split_once(&start).and_then(|(_, rest)| rest.split(')').next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {constant} in {path}"))
}

/// How long a graceful stop of a node takes at most, in seconds: twice the grace period that `ostraca run` gives it.
#[must_use]
pub fn longest_stop() -> u64 {
    2 * seconds("host/cli/src/commands/run.rs", "GRACE")
}
