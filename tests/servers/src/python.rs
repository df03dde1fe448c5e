//! Programs from PyPI.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{find_or_install, installing};

/// Finds a program on the path.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// The program of this name that `release`, such as `schemathesis==4.32.5`, installs from PyPI: once, in a virtual
/// environment in `dir`. A program on the path is used instead.
#[must_use]
pub fn from_pypi(program: &str, release: &str, dir: &Path) -> PathBuf {
    on_path(program).unwrap_or_else(|| environment(&[release], dir).join("bin").join(program))
}

/// A virtual environment in `dir` with these releases from PyPI, which are installed once.
#[must_use]
pub fn environment(releases: &[&str], dir: &Path) -> PathBuf {
    let environment = dir.join(releases.join("+"));
    // The last file that the installation writes.
    let complete = environment.join("complete");
    let python = find_or_install("python3 with venv", &["python3-venv"], || {
        let python = on_path("python3")?;
        let has_venv =
            Command::new(&python).args(["-c", "import ensurepip, venv"]).output().ok()?;
        has_venv.status.success().then_some(python)
    });
    let _one = installing();
    if complete.is_file() {
        return environment;
    }
    let all = releases.join(" ");
    let hint = format!(
        "tests need {all} from PyPI: python3 -m venv {0} && {0}/bin/pip install {all} && touch {0}/complete",
        environment.display()
    );
    let pip = environment.join("bin/pip");
    for step in [
        Command::new(python).args(["-m", "venv"]).arg(&environment),
        Command::new(pip)
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(releases),
    ] {
        let output = step.output().unwrap_or_else(|error| panic!("{hint}\n{step:?}: {error}"));
        assert!(output.status.success(), "{hint}\n{}", said(&output));
    }
    std::fs::write(&complete, "").expect("written");
    environment
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
