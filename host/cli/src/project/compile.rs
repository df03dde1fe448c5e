//! Compiles a Rust project to a component: cargo, then the encoder, then the same check that a node performs.
//!
//! Environment variables set the release profile, so that projects need not repeat it. They would invalidate
//! everything that cargo has built, hence a separate target directory within the project's.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use ostraca_codes::codes;
use ostraca_wasm::{
    Allocator, GUEST_PROFILE, GUEST_TARGET, MessageKind, RuntimeSettings, WasmRuntime,
};
use serde::Deserialize;
use tokio::process::Command;

use super::Project;
use crate::failure::{Exit, Failure};
use crate::output;

/// The result of a build.
pub(crate) struct Built {
    pub(crate) size: u64,
    pub(crate) methods: Vec<(String, &'static str)>,
}

impl Built {
    pub(crate) fn summary(&self, project: &Project) -> String {
        let methods: Vec<_> =
            self.methods.iter().map(|(name, kind)| format!("{name} ({kind})")).collect();
        format!(
            "{}: built {} ({})\n  methods: {}",
            project.manifest.entity_type,
            project.component().display(),
            output::size(self.size),
            methods.join(", ")
        )
    }
}

/// Builds a project and writes its component where the manifest says.
pub(crate) async fn build(project: &Project) -> Result<Built, Failure> {
    let cargo_toml = project.dir.join("Cargo.toml");
    if !cargo_toml.exists() {
        let text = format!("{} does not exist: `ostraca build` is for Rust", cargo_toml.display());
        let help = "build the component with its language's own tools, and deploy its manifest";
        return Err(Failure::usage(codes::NOT_A_RUST_PROJECT, text).help(help));
    }
    let cargo_toml =
        cargo_toml.canonicalize().map_err(|error| Failure::file("read", &cargo_toml, &error))?;
    ensure_target_installed().await?;
    let metadata = metadata(&cargo_toml).await?;
    let module = compile(&cargo_toml, &metadata).await?;
    let module =
        tokio::fs::read(&module).await.map_err(|error| Failure::file("read", &module, &error))?;
    let component = ostraca_wasm::encode(&module).map_err(refused)?;
    let built = check(project, &component).await?;
    write(&project.component(), &component)?;
    Ok(built)
}

fn program(variable: &str, name: &str) -> OsString {
    std::env::var_os(variable).filter(|it| !it.is_empty()).unwrap_or_else(|| name.into())
}

/// Runs a command to completion. Its standard error passes through; its standard output is returned.
async fn output_of(name: &str, command: &mut Command) -> Result<Output, Failure> {
    // Not `output()`, which would capture standard error too.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let child = child.map_err(|error| not_started(name, &error))?;
    child.wait_with_output().await.map_err(|error| not_started(name, &error))
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

fn build_failed(text: &str) -> Failure {
    Failure::new(Exit::Usage, codes::BUILD_FAILED, text)
        .help("fix the errors above, and build again")
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

/// Validates the component as a node would, before it is sent to one.
async fn check(project: &Project, component: &[u8]) -> Result<Built, Failure> {
    let settings = RuntimeSettings {
        allocator: Allocator::OnDemand,
        max_live_instances: Some(1),
        pooled_instance_memory: project
            .manifest
            .limits
            .memory
            .max(RuntimeSettings::default().pooled_instance_memory),
        ..RuntimeSettings::default()
    };
    let limits = project.manifest.wasm_limits();
    let host = WasmRuntime::new(&settings).map_err(refused)?;
    let program = host.prepare(component.to_vec(), limits).await.map_err(refused)?;
    let methods = program.methods().iter().map(|method| {
        let kind = match method.kind {
            MessageKind::Command => "command",
            MessageKind::Query => "query",
        };
        (method.name.clone(), kind)
    });
    Ok(Built { size: component.len() as u64, methods: methods.collect() })
}

fn refused(error: ostraca_wasm::Error) -> Failure {
    Failure::usage(error.code(), error.to_string())
}

/// Writes a temporary file and renames it, so that a concurrent deploy never reads an incomplete component.
fn write(path: &Path, component: &[u8]) -> Result<(), Failure> {
    let failed = |error| Failure::file("write", path, &error);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let beside = path.with_added_extension("new");
    std::fs::write(&beside, component).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}
