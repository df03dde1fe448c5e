//! Compiles a project in JavaScript or TypeScript, with tools from npm that its `package.json` names: `tsc` checks the
//! types, `esbuild` makes one module of the project and its packages, and `componentize-qjs` a component of that.

use std::path::{Path, PathBuf};

use ostraca_codes::codes;
use serde::Deserialize;

use super::{directory, run_tool};
use crate::failure::Failure;
use crate::project::Project;

/// What is exported to the host: an entity's definition is the default export of its module.
const EXPORTS: &str = "methods, schemas, handler, stop, timerHandler, migration";
/// The world of the WIT package that has all of them.
const WORLD: &str = "entity-with-everything";
/// Where the project has the WIT package.
const WIT: &str = "vendor/wit";
/// What to do if a tool is missing.
const NODE: &str = "install Node.js with npm (Debian: sudo apt-get install nodejs npm), and run `npm install` in the project";

/// What is read of a `package.json`.
#[derive(Deserialize)]
struct Package {
    /// The module with the entity.
    main: Option<PathBuf>,
}

/// The component of a project with a `package.json`.
pub(super) async fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let dir = directory(project)?;
    let main = main(&dir)?;
    let tool = |name: &str| dir.join("node_modules/.bin").join(name);
    if ["esbuild", "componentize-qjs"].iter().any(|name| !tool(name).exists()) {
        install(&dir).await?;
    }
    if dir.join("tsconfig.json").exists() && tool("tsc").exists() {
        run(&dir, &tool("tsc"), &["--noEmit"]).await?;
    }
    let made = dir.join("target/ostraca");
    std::fs::create_dir_all(&made).map_err(|error| Failure::file("create", &made, &error))?;
    let [entry, bundle, component] =
        ["entry.js", "bundle.js", "component.wasm"].map(|name| made.join(name));
    let main = serde_json::Value::from(main.display().to_string());
    let text = format!(
        "import definition from {main};\nexport const {{ {EXPORTS} }} = definition.component();\n"
    );
    std::fs::write(&entry, text).map_err(|error| Failure::file("write", &entry, &error))?;
    let out = |path: &Path| path.display().to_string();
    let bundling = [
        "--bundle",
        "--format=esm",
        "--platform=neutral",
        "--main-fields=module,main",
        "--target=es2023",
        "--external:ostraca:*",
        "--log-level=warning",
        &format!("--outfile={}", out(&bundle)),
        &out(&entry),
    ];
    run(&dir, &tool("esbuild"), &bundling).await?;
    let (wit, bundle, made) = (out(&dir.join(WIT)), out(&bundle), out(&component));
    let arguments = ["--wit", &wit, "--world", WORLD, "--js", &bundle, "--sync", "-o", &made];
    run(&dir, &tool("componentize-qjs"), &arguments).await?;
    tokio::fs::read(&component).await.map_err(|error| Failure::file("read", &component, &error))
}

/// The module with the entity.
fn main(dir: &Path) -> Result<PathBuf, Failure> {
    let file = dir.join("package.json");
    let text =
        std::fs::read_to_string(&file).map_err(|error| Failure::file("read", &file, &error))?;
    let invalid = |text: String| {
        Failure::usage(codes::UNKNOWN_PROJECT, text)
            .help("name the module with the entity: \"main\": \"src/entity.ts\"")
    };
    let package: Package = serde_json::from_str(&text)
        .map_err(|error| invalid(format!("{} is not valid: {error}", file.display())))?;
    let main = package.main.ok_or_else(|| invalid(format!("{} has no main", file.display())))?;
    let main = dir.join(main);
    match main.is_file() {
        true => Ok(main),
        false => Err(invalid(format!("{} does not exist", main.display()))),
    }
}

async fn install(dir: &Path) -> Result<(), Failure> {
    eprintln!("installing the packages of {} with npm", dir.display());
    let npm = Path::new("npm");
    run(dir, npm, &["install", "--ignore-scripts", "--no-audit", "--no-fund"]).await
}

async fn run(dir: &Path, program: &Path, arguments: &[&str]) -> Result<(), Failure> {
    run_tool(dir, program, arguments, NODE).await
}
