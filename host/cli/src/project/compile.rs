//! Compiles a project to a component, and checks it as a node does.

mod c;
mod javascript;
mod python;
mod rust;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use ostraca_codes::codes;
use ostraca_wasm::{Allocator, MessageKind, RuntimeSettings, WasmRuntime};
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

/// The files that show a project's language: Rust, JavaScript or TypeScript, Python, C.
const MARKS: [&str; 4] = ["Cargo.toml", "package.json", "pyproject.toml", "src/entity.c"];

/// Whether a project is in a language that [`build`] knows.
pub(crate) fn can_build(project: &Project) -> bool {
    MARKS.iter().any(|name| project.dir.join(name).exists())
}

/// Builds a project and writes its component where the manifest says. What is in its directory shows its language.
pub(crate) async fn build(project: &Project) -> Result<Built, Failure> {
    let component = match MARKS.map(|name| project.dir.join(name).exists()) {
        [true, ..] => rust::component(project).await?,
        [_, true, ..] => javascript::component(project).await?,
        [_, _, true, _] => python::component(project).await?,
        [.., true] => c::component(project).await?,
        _ => {
            let text = format!("{} has no {}", directory(project)?.display(), MARKS.join(" or "));
            let help = "build the component with its language's own tools, and deploy its manifest";
            return Err(Failure::usage(codes::UNKNOWN_PROJECT, text).help(help));
        }
    };
    let built = check(project, &component).await?;
    write(&project.component(), &component)?;
    Ok(built)
}

/// Runs a command to completion. Its standard error passes through; its standard output is returned.
async fn output_of(
    command: &mut Command,
    not_started: impl Fn(&std::io::Error) -> Failure,
) -> Result<Output, Failure> {
    // Not `output()`, which would capture standard error too.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let child = child.map_err(|error| not_started(&error))?;
    child.wait_with_output().await.map_err(|error| not_started(&error))
}

/// The project's directory, as an absolute path.
fn directory(project: &Project) -> Result<PathBuf, Failure> {
    let dir = match project.dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => &project.dir,
    };
    dir.canonicalize().map_err(|error| Failure::file("read", dir, &error))
}

/// Runs a tool in the project. What it prints is shown if it fails; `help` says what to do if there is no such tool.
async fn run_tool(
    dir: &Path,
    program: &Path,
    arguments: &[&str],
    help: &str,
) -> Result<(), Failure> {
    let name = program.file_name().unwrap_or(program.as_os_str()).display().to_string();
    let mut command = Command::new(program);
    command.current_dir(dir).args(arguments);
    let not_started = |error: &std::io::Error| {
        let text = format!("cannot run {name}: {error}");
        let failure = Failure::unexpected(codes::NO_BUILD_TOOL, text);
        if error.kind() == ErrorKind::NotFound { failure.help(help) } else { failure }
    };
    let ended = output_of(&mut command, not_started).await?;
    if !ended.status.success() {
        eprint!("{}", String::from_utf8_lossy(&ended.stdout));
        return Err(build_failed(&format!("{name} failed")));
    }
    Ok(())
}

fn build_failed(text: &str) -> Failure {
    Failure::new(Exit::Usage, codes::BUILD_FAILED, text)
        .help("fix the errors above, and build again")
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
