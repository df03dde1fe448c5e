//! Builds the component of a package, as `ostraca build` does.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ostraca_wasm::{GUEST_PROFILE, GUEST_TARGET};
use serde::Deserialize;

use crate::DeployError;

/// One line of cargo's JSON report.
#[derive(Deserialize)]
struct Report {
    reason: String,
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Where this program keeps what it builds and compiles: in its own target directory.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    // Tests are in `target/debug/deps`.
    let target = program.ancestors().nth(3).map_or_else(env::temp_dir, Path::to_path_buf);
    target.join("ostraca").join(name)
}

/// Builds a package and returns its component.
pub(crate) fn build(package: &Path) -> Result<Vec<u8>, DeployError> {
    let failed = |why: String| DeployError::Build(why);
    let manifest = package.join("Cargo.toml");
    let manifest = manifest
        .canonicalize()
        .map_err(|source| DeployError::File { path: manifest.clone(), source })?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(cargo);
    cargo
        .args(["build", "--quiet", "--lib", "--release", "--target", GUEST_TARGET])
        .args(["--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(scratch("guests"))
        .arg("--manifest-path")
        .arg(&manifest)
        .envs(GUEST_PROFILE)
        // These flags are for this machine's programs.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| failed(format!("cannot run cargo: {error}")))?;
    if !output.status.success() {
        return Err(failed("cargo reported errors".into()));
    }
    let module = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Report>(line).ok())
        .filter(|it| {
            it.reason == "compiler-artifact" && it.manifest_path.as_ref() == Some(&manifest)
        })
        .flat_map(|report| report.filenames)
        .find(|file| file.extension().is_some_and(|it| it == "wasm"));
    let module = module.ok_or_else(|| {
        failed("the package has no module: add [lib] crate-type = [\"cdylib\", \"rlib\"]".into())
    })?;
    let bytes =
        std::fs::read(&module).map_err(|source| DeployError::File { path: module, source })?;
    ostraca_wasm::encode(&bytes).map_err(|error| DeployError::Component(error.to_string()))
}
