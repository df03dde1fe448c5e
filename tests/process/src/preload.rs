//! C libraries that are preloaded into a node's process (`preload/`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Compiles one of the libraries into a directory.
///
/// # Errors
/// The compiler's error.
pub(crate) fn compile(name: &str, to: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("preload").join(format!("{name}.c"));
    let library = to.join(format!("{name}.so"));
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&library, &source])
        .output()
        .context("run cc")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(library)
}

/// Counts a process's allocations.
#[derive(Debug)]
pub struct Allocations {
    library: PathBuf,
    count: PathBuf,
}

impl Allocations {
    /// Compiles the counter into a directory, where it also stores its count.
    ///
    /// # Errors
    /// The compiler's error, or the I/O error.
    pub fn new(to: &Path) -> Result<Self> {
        let (library, count) = (compile("allocations", to)?, to.join("allocations"));
        std::fs::write(&count, [0; 8])?;
        Ok(Self { library, count })
    }

    /// Preloads the counter into a command's process.
    pub fn on(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("OSTRACA_ALLOCATIONS", &self.count);
    }

    /// The number of allocations so far.
    ///
    /// # Errors
    /// If the count cannot be read.
    pub fn count(&self) -> Result<u64> {
        let bytes = std::fs::read(&self.count)?;
        Ok(u64::from_ne_bytes(*bytes.first_chunk().context("expected eight bytes")?))
    }
}
