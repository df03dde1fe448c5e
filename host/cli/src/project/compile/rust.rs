//! Compiles a Rust project: cargo, then the encoder.
//!
//! Environment variables set the release profile, so that projects need not repeat it. They would invalidate
//! everything that cargo has built, hence a separate target directory within the project's.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Output;

use ostraca_codes::codes;
use ostraca_wasm::{GUEST_PROFILE, GUEST_TARGET};
use serde::Deserialize;
use tokio::process::Command;

use super::{build_failed, refused};
use crate::failure::Failure;
use crate::project::Project;

/// The component of a project with a `Cargo.toml`.
pub(super) async fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let cargo_toml = project.dir.join("Cargo.toml");
    let cargo_toml =
        cargo_toml.canonicalize().map_err(|error| Failure::file("read", &cargo_toml, &error))?;
    ensure_target_installed().await?;
    let metadata = metadata(&cargo_toml).await?;
    let module = compile(&cargo_toml, &metadata).await?;
    let module =
        tokio::fs::read(&module).await.map_err(|error| Failure::file("read", &module, &error))?;
    ostraca_wasm::encode(&module).map_err(refused)
}

fn program(variable: &str, name: &str) -> OsString {
    std::env::var_os(variable).filter(|it| !it.is_empty()).unwrap_or_else(|| name.into())
}

async fn output_of(name: &str, command: &mut Command) -> Result<Output, Failure> {
    super::output_of(command, |error| not_started(name, error)).await
}

fn not_started(name: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::unexpected(codes::NO_CARGO, format!("cannot run {name}: {error}"));
    match error.kind() {
        ErrorKind::NotFound => failure
            .help("install Rust: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"),
        _ => failure,
    }
}

/// Suggests the missing target before cargo prints a page of errors. A build of the standard library from
/// source does not need it.
async fn ensure_target_installed() -> Result<(), Failure> {
    if std::env::var_os("CARGO_UNSTABLE_BUILD_STD").is_some() {
        return Ok(());
    }
    let mut rustc = Command::new(program("RUSTC", "rustc"));
    rustc.args(["--print", "target-libdir", "--target", GUEST_TARGET]);
    let output = output_of("rustc", &mut rustc).await?;
    let libraries = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !Path::new(&libraries).is_dir() {
        let text = format!("the Rust target {GUEST_TARGET} is not installed");
        return Err(Failure::unexpected(codes::NO_WASM_TARGET, text)
            .help(format!("run: rustup target add {GUEST_TARGET}")));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    manifest_path: PathBuf,
}

async fn metadata(cargo_toml: &Path) -> Result<Metadata, Failure> {
    let mut cargo = Command::new(program("CARGO", "cargo"));
    cargo
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(cargo_toml);
    let output = output_of("cargo", &mut cargo).await?;
    if !output.status.success() {
        return Err(build_failed("cargo cannot read the project"));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::unexpected(codes::BUILD_FAILED, format!("cannot read cargo's output: {error}"))
    })
}

/// One line of cargo's JSON report.
#[derive(Deserialize)]
struct Report {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    crate_types: Vec<String>,
}

/// Runs cargo, and returns the path of the core module.
async fn compile(cargo_toml: &Path, metadata: &Metadata) -> Result<PathBuf, Failure> {
    let package = metadata.packages.iter().find(|package| package.manifest_path == cargo_toml);
    let mut cargo = Command::new(program("CARGO", "cargo"));
    cargo
        .args(["build", "--lib", "--release", "--target", GUEST_TARGET])
        .args(["--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(metadata.target_directory.join("ostraca/guests"))
        .arg("--manifest-path")
        .arg(cargo_toml)
        .envs(GUEST_PROFILE)
        // These flags are for this machine's programs; a guest's own are in its .cargo/config.toml.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = output_of("cargo", &mut cargo).await?;
    if !output.status.success() {
        return Err(build_failed("the project does not build"));
    }
    let ours = |report: &Report| {
        report.reason == "compiler-artifact"
            && package.is_some_and(|package| Some(&package.id) == report.package_id.as_ref())
            && report.target.as_ref().is_some_and(|it| it.crate_types.iter().any(|t| t == "cdylib"))
    };
    let module = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Report>(line).ok())
        .filter(ours)
        .flat_map(|report| report.filenames)
        .find(|file| file.extension().is_some_and(|it| it == "wasm"));
    module.ok_or_else(|| {
        let text = format!("{} does not produce a WebAssembly module", cargo_toml.display());
        let help = "add [lib] crate-type = [\"cdylib\", \"rlib\"]";
        Failure::usage(codes::NO_CDYLIB, text).help(help)
    })
}
