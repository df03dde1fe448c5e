//! The programs that check the files: `ostraca` itself, kubectl, kubernetes-validate and buildah.
//!
//! None is skipped. What is missing is installed as root; otherwise the test fails with the line to type.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use ostraca_test_servers::find_or_install;
use ostraca_test_servers::python::{from_pypi, on_path};

use crate::root;

/// The environment variable that the Makefile sets after it has built everything.
const BUILT: &str = "OSTRACA_BUILT";
/// The release of kubernetes-validate on PyPI, which contains the schemas of Kubernetes.
const VALIDATE: &str = "kubernetes-validate==1.37.0";

/// The directory of this program's cargo profile, such as `target/debug`.
fn profile_dir() -> PathBuf {
    let program = std::env::current_exe().expect("this program's path");
    // Tests are in `deps`.
    let above = program.ancestors().skip(1).find(|dir| !dir.ends_with("deps"));
    above.expect("the target directory").into()
}

/// A directory of this crate in the target directory.
#[must_use]
pub fn scratch() -> PathBuf {
    let dir = profile_dir().parent().expect("the target directory").join("deploy");
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

/// The program `ostraca`, which is built now unless the Makefile has built it.
#[must_use]
pub fn ostraca() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let dir = profile_dir();
        if std::env::var_os(BUILT).is_none() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut build = Command::new(cargo);
            build.current_dir(root()).args([
                "build",
                "--quiet",
                "--package",
                "ostraca",
                "--bin",
                "ostraca",
            ]);
            if dir.ends_with("release") {
                build.arg("--release");
            }
            build.env("CARGO_TARGET_DIR", dir.parent().expect("the target directory"));
            succeed(&mut build);
        }
        let program = dir.join("ostraca");
        assert!(program.is_file(), "{} does not exist: build it first", program.display());
        program
    })
}

/// Runs a program and returns its standard output; fails with what it said if it fails.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All that a program has printed.
#[must_use]
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// kubectl, of any version.
#[must_use]
pub fn kubectl() -> PathBuf {
    find_or_install("kubectl", &["kubernetes-client"], || on_path("kubectl"))
}

/// buildah.
#[must_use]
pub fn buildah() -> PathBuf {
    find_or_install("buildah", &["buildah"], || on_path("buildah"))
}

/// kubernetes-validate: the one on the path, or else one in a virtual environment in the target directory, which is
/// installed from PyPI once.
#[must_use]
pub fn kubernetes_validate() -> PathBuf {
    from_pypi("kubernetes-validate", VALIDATE, &scratch())
}
