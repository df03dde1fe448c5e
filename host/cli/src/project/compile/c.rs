//! Compiles a project in C: the WIT package in C, then clang with wasi-libc, then the encoder.

use std::ffi::OsString;
use std::io::Error;
use std::path::{Path, PathBuf};

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

use super::{build_failed, directory, refused, run_tool};
use crate::failure::Failure;
use crate::project::Project;

/// The world of the WIT package that has all interfaces. What an entity does not export, `ostraca.c` does.
const WORLD: &str = "entity-with-everything";
/// The name of the files that declare the interfaces.
const HEADER: &str = "entity";
const WIT: &str = "vendor/wit";
const SDK: &str = "vendor/guest-sdk/c";
/// `-mexec-model=reactor`: a library, without `main`. The stack comes first, so that an overflow traps instead of
/// overwriting other memory.
const FLAGS: [&str; 8] = [
    "--target=wasm32-wasi",
    "-mexec-model=reactor",
    "-O2",
    "-Wall",
    "-Wl,--strip-debug",
    "-Wl,--stack-first",
    "-Wl,-z,stack-size=262144",
    "-o",
];
/// What to do if a tool is missing.
const CLANG: &str = "install clang, lld and wasi-libc (Debian: sudo apt-get install clang lld wasi-libc libclang-rt-dev-wasm32), or name the clang of a wasi-sdk in the variable CLANG";

/// The component of a project with a `src/entity.c`.
pub(super) async fn component(project: &Project) -> Result<Vec<u8>, Failure> {
    let dir = directory(project)?;
    let made = dir.join("target/ostraca/c");
    let mut inputs = declare(&dir.join(WIT), &made)?;
    inputs.extend(files(&dir.join(SDK), "c")?);
    inputs.extend(files(&dir.join("src"), "c")?);
    let module = dir.join("target/ostraca/module.wasm");
    let clang = std::env::var_os("CLANG").filter(|it| !it.is_empty());
    let clang = PathBuf::from(clang.unwrap_or_else(|| OsString::from("clang")));
    let shown = |path: &Path| path.display().to_string();
    let include = |path: &Path| format!("-I{}", path.display());
    let mut arguments: Vec<String> = inputs.iter().map(|path| shown(path)).collect();
    arguments.extend([&made, &dir.join(SDK), &dir.join("src")].map(|path| include(path)));
    arguments.extend(FLAGS.map(str::to_owned));
    arguments.push(shown(&module));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    run_tool(&dir, &clang, &arguments, CLANG).await?;
    let module =
        tokio::fs::read(&module).await.map_err(|error| Failure::file("read", &module, &error))?;
    ostraca_wasm::encode(&module).map_err(refused)
}

/// Writes the WIT package in C, and returns what is compiled of it.
fn declare(wit: &Path, made: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unusable = |error: String| build_failed(&format!("cannot use {}: {error}", wit.display()));
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit).map_err(|error| unusable(format!("{error:#}")))?;
    let world = resolve.select_world(&[package], Some(WORLD));
    let world = world.map_err(|error| unusable(format!("{error:#}")))?;
    let options =
        wit_bindgen_c::Opts { rename_world: Some(HEADER.into()), ..wit_bindgen_c::Opts::default() };
    let mut files = Files::default();
    let generated = options.build().generate(&mut resolve, world, &mut files);
    generated.map_err(|error| unusable(format!("{error:#}")))?;
    std::fs::create_dir_all(made).map_err(|error| Failure::file("create", made, &error))?;
    let mut inputs = Vec::new();
    for (name, bytes) in files.iter() {
        let path = made.join(name);
        std::fs::write(&path, bytes).map_err(|error| Failure::file("write", &path, &error))?;
        if !name.ends_with(".h") {
            inputs.push(path);
        }
    }
    Ok(inputs)
}

/// The files with this extension in a folder and those within it, in a fixed order.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: Error| Failure::file("read", folder, &error);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            all.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|it| it == extension) {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}
