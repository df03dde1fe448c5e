//! The `ostraca` program and the guests: where they are and how they are built.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use wit_component::ComponentEncoder;

/// The environment variable that the Makefile sets after it has built everything.
const BUILT: &str = "OSTRACA_BUILT";
const WASM: &str = "wasm32-unknown-unknown";
/// Every guest that the tests deploy.
const GUESTS: [&str; 12] = [
    "counter",
    "account",
    "bank-account",
    "bank-transfer",
    "cart",
    "chat",
    "behaving",
    "behaving-evolved",
    "evolved",
    "evolving",
    "misbehaving",
    "rubbish",
];

/// The root directory of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/")).into()
}

/// The directory of this program's cargo profile: `target/debug`.
///
/// # Errors
/// If this program's own path is unknown.
pub fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find this program")?;
    // Tests are in `deps`, programs in the directory above it.
    let above = program.ancestors().skip(1).find(|dir| !dir.ends_with("deps"));
    Ok(above.context("find the target directory")?.into())
}

/// Creates a directory in the target directory.
///
/// # Errors
/// If it cannot be created.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let profile = profile_dir()?;
    let dir = profile.parent().unwrap_or(&profile).join("process").join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// The path of the program, which is built now unless the Makefile has already built it.
///
/// # Errors
/// The error of cargo.
pub fn ostraca() -> Result<PathBuf> {
    static DONE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build_program("ostraca", "ostraca");
    let done = DONE.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    done.clone().map_err(anyhow::Error::msg)
}

fn build_program(package: &str, name: &str) -> Result<PathBuf> {
    let dir = profile_dir()?;
    if std::env::var_os(BUILT).is_none() {
        let mut build = cargo();
        build.args(["build", "--quiet", "--package", package, "--bin", name]);
        if dir.ends_with("release") {
            build.arg("--release");
        }
        build.env("CARGO_TARGET_DIR", dir.parent().unwrap_or(&dir));
        run(build)?;
    }
    let program = dir.join(name);
    ensure!(program.is_file(), "{} does not exist: build it first", program.display());
    Ok(program)
}

/// The path of the program of a later release, built like [`ostraca`] (`bin/ostraca_next.rs`).
///
/// # Errors
/// The error of cargo.
pub fn next_release() -> Result<PathBuf> {
    static DONE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build_program("ostraca-process-tests", "ostraca-next");
    let done = DONE.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    done.clone().map_err(anyhow::Error::msg)
}

/// The path of an example of one of the crates, built with this program's profile.
///
/// # Errors
/// The error of cargo.
pub fn example(package: &str, name: &str) -> Result<PathBuf> {
    let dir = profile_dir()?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", package, "--example", name]);
    if dir.ends_with("release") {
        build.arg("--release");
    }
    build.env("CARGO_TARGET_DIR", dir.parent().unwrap_or(&dir));
    run(build)?;
    Ok(dir.join("examples").join(name))
}

/// Runs a program and returns its output.
///
/// # Errors
/// The program's standard error, if it failed.
pub fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(String::from_utf8_lossy(&run(command)?).into_owned())
}

/// A guest's component, built with the profile that `ostraca build` uses.
///
/// # Errors
/// The error of cargo, or that its output is not a component.
pub fn component(guest: &str) -> Result<Bytes> {
    let module = module(guest)?;
    let component = ComponentEncoder::default().validate(true).module(&module)?.encode()?;
    Ok(component.into())
}

/// A guest's core module, from which its component is made.
///
/// # Errors
/// The error of cargo.
pub fn module(guest: &str) -> Result<Vec<u8>> {
    static DONE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let done = DONE.get_or_init(|| build_guests().map_err(|error| format!("{error:#}")));
    let file = format!("{}.wasm", guest.replace('-', "_"));
    let file = done.clone().map_err(anyhow::Error::msg)?.join(file);
    std::fs::read(&file).with_context(|| format!("read {}", file.display()))
}

fn build_guests() -> Result<PathBuf> {
    let target = scratch("guests")?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--release", "--target", WASM]);
    for guest in GUESTS {
        build.args(["--package", guest]);
    }
    build
        .env("CARGO_TARGET_DIR", &target)
        // Build flags for this program must not apply to the guests.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    run(build)?;
    Ok(target.join(WASM).join("release"))
}

/// An example's manifest as shipped.
///
/// # Errors
/// If it cannot be read.
pub fn manifest(example: &str) -> Result<String> {
    let file = root().join("examples").join(example).join("entity.toml");
    std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}

fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.current_dir(root());
    cargo
}

fn run(mut command: Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}
