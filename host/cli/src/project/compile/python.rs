//! Compiles a project in Python with `componentize-py`, from PyPI, in a virtual environment of the project's own.

use std::path::Path;

use ostraca_codes::codes;
use serde::Deserialize;

use super::{directory, run_tool};
use crate::failure::Failure;
use crate::project::Project;

/// The compiler's release, unless the project's environment has another one.
const COMPILER: &str = "componentize-py==0.25.1";
/// The world of the WIT package that has all interfaces.
const WORLD: &str = "entity-with-everything";
/// The module that exports them.
const APP: &str = "ostraca_app";
/// What to do if a tool is missing.
const PYTHON: &str =
    "install Python with its module venv (Debian: sudo apt-get install python3-venv)";

/// What is read of a `pyproject.toml`.
#[derive(Default, Deserialize)]
struct PyProject {
    #[serde(default)]
    tool: Tool,
}

#[derive(Default, Deserialize)]
struct Tool {
    ostraca: Option<Settings>,
}

#[derive(Deserialize)]
struct Settings {
    /// The module with the entity, such as `entity` or `shop.cart`.
    module: String,
}

/// The component of a project with a `pyproject.toml`.
pub(super) async fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let dir = directory(project)?;
    let module = module(&dir)?;
    let tool = dir.join(".venv/bin/componentize-py");
    if !tool.exists() {
        eprintln!("installing {COMPILER} in {}", dir.join(".venv").display());
        run_tool(&dir, Path::new("python3"), &["-m", "venv", ".venv"], PYTHON).await?;
        let pip = dir.join(".venv/bin/pip");
        let install = ["install", "--quiet", "--disable-pip-version-check", COMPILER];
        run_tool(&dir, &pip, &install, PYTHON).await?;
    }
    let made = dir.join("target/ostraca");
    let app = made.join("app");
    std::fs::create_dir_all(&app).map_err(|error| Failure::file("create", &app, &error))?;
    let text = format!(
        "import {module} as entity\n\nfrom ostraca_entity._component import component\n\n\
         Methods, Schemas, Handler, Stop, TimerHandler, Migration = component(entity)\n"
    );
    let file = app.join(APP).with_extension("py");
    std::fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
    let component = made.join("component.wasm");
    let shown = |path: &Path| path.display().to_string();
    let (source, out) = (shown(&app), shown(&component));
    let arguments = [
        "-d",
        "vendor/wit",
        "-w",
        WORLD,
        "componentize",
        "-p",
        &source,
        "-p",
        ".",
        "-p",
        "vendor/guest-sdk/python",
        APP,
        "-o",
        &out,
    ];
    run_tool(&dir, &tool, &arguments, PYTHON).await?;
    tokio::fs::read(&component).await.map_err(|error| Failure::file("read", &component, &error))
}

/// The module with the entity.
fn module(dir: &Path) -> Result<String, Failure> {
    let file = dir.join("pyproject.toml");
    let text =
        std::fs::read_to_string(&file).map_err(|error| Failure::file("read", &file, &error))?;
    let invalid = |text: String| {
        Failure::usage(codes::UNKNOWN_PROJECT, text)
            .help("name the module with the entity: [tool.ostraca] module = \"entity\"")
    };
    let project: PyProject = toml::from_str(&text)
        .map_err(|error| invalid(format!("{} is not valid: {error}", file.display())))?;
    let settings = project.tool.ostraca;
    let named = settings.ok_or_else(|| invalid(format!("{} names none", file.display())))?;
    let is_module = |name: &str| {
        !name.is_empty()
            && name.split('.').all(|part| {
                part.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_')
                    && part.chars().all(|it| it.is_ascii_alphanumeric() || it == '_')
            })
    };
    match is_module(&named.module) {
        true => Ok(named.module),
        false => Err(invalid(format!("{:?} is not the name of a module", named.module))),
    }
}
