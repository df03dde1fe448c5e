//! The guest `behaving`, which has each feature once, in Rust, TypeScript and Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use bytes::Bytes;
use ostraca_test_servers::browser::node_and_npm;
use ostraca_test_servers::clang::clang;
use ostraca_test_servers::python::environment;

use crate::artifacts;

/// The compiler of Python, as in `ostraca build`.
const COMPILER: &str = "componentize-py==0.25.1";

/// The guest in one language, and its later version.
#[derive(Clone, Debug)]
pub struct Guest {
    /// `rust`, `typescript` or `python`.
    pub language: &'static str,
    /// Its component.
    pub first: Bytes,
    /// The component of its later version, with another layout of the state.
    pub evolved: Bytes,
}

impl Guest {
    /// What the manifest of a type with this guest says, without channels and grants.
    #[must_use]
    pub fn manifest(&self) -> String {
        let name = format!("behaving-{}", self.language);
        format!(
            "type = {name:?}\ncomponent = \"x.wasm\"\n[limits]\nmemory = \"64 MiB\"\n\
             activation-time = \"20 s\"\nturn-time = \"5 s\"\n"
        )
    }
}

/// Builds a project that `ostraca new` makes in the folder `scratch`, with another entity in it. What an earlier build
/// installed there is used again.
///
/// # Errors
/// If it cannot be built.
pub fn built(scratch: &Path, language: &str, source: &str, entity: &Path) -> Result<Bytes> {
    let project = scratch.join("behaving");
    let run = |dir: &Path, arguments: &[&str]| {
        let mut ostraca = Command::new(artifacts::ostraca()?);
        ostraca.current_dir(dir).args(arguments);
        if language == "c" {
            ostraca.env("CLANG", clang());
        }
        let output = ostraca.output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {printed}\n{errors}");
        Ok(())
    };
    if language == "python" {
        let environment = environment(&[COMPILER], &artifacts::scratch("pypi")?);
        let venv = scratch.join(".venv");
        if !venv.exists() && !project.join(".venv").exists() {
            std::os::unix::fs::symlink(environment, venv)?;
        }
    }
    // The SDK and the tools may be those of an earlier run.
    let tools = ["node_modules", ".venv"].map(|name| (project.join(name), scratch.join(name)));
    for (here, aside) in &tools {
        if here.exists() {
            std::fs::rename(here, aside)?;
        }
    }
    if project.exists() {
        std::fs::remove_dir_all(&project)?;
    }
    run(scratch, &["new", "behaving", "--lang", language])?;
    for (here, aside) in &tools {
        if aside.exists() {
            std::fs::rename(aside, here)?;
        }
    }
    std::fs::copy(entity, project.join(source))?;
    run(&project, &["build"])?;
    Ok(std::fs::read(project.join("target/ostraca/behaving.wasm"))?.into())
}

/// Installs Node.js and npm, or prints the line to type.
pub fn node_tools() {
    let _: (PathBuf, PathBuf) = node_and_npm();
}

/// The guest in each language.
///
/// # Errors
/// If one cannot be built.
pub fn guests() -> Result<Vec<Guest>> {
    node_tools();
    let built = |language: &str, source: &str, entity: &str| {
        let scratch = artifacts::scratch(&format!("behaving/{language}"))?;
        let entities = artifacts::root().join("tests/guests/behaving-scripts");
        built(&scratch, language, source, &entities.join(entity))
    };
    Ok(vec![
        Guest {
            language: "rust",
            first: artifacts::component("behaving")?,
            evolved: artifacts::component("behaving-evolved")?,
        },
        Guest {
            language: "typescript",
            first: built("ts", "src/entity.ts", "entity.ts")?,
            evolved: built("ts", "src/entity.ts", "evolved.ts")?,
        },
        Guest {
            language: "python",
            first: built("python", "entity.py", "entity.py")?,
            evolved: built("python", "entity.py", "evolved.py")?,
        },
    ])
}
