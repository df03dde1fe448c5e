//! Puts the sources of the SDK and of the WIT package into the binary: `ostraca new` writes them into projects
//! that have neither this repository nor a registry that knows the SDK.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What a project needs to build, from the repository's root: folders with the names' ending.
const PARTS: [(&str, &str); 3] =
    [("guest-sdk/src", "rs"), ("guest-sdk/macros/src", "rs"), ("wit", "wit")];
const FILES: [&str; 2] = ["guest-sdk/Cargo.toml", "guest-sdk/macros/Cargo.toml"];

fn main() -> io::Result<()> {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("no manifest"))?;
    let root = Path::new(&manifest).join("../..").canonicalize()?;
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    for (folder, ending) in PARTS {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        walk(&root.join(folder), ending, &mut files)?;
    }
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        // Writing to a string cannot fail.
        let _ = writeln!(table, "({name:?}, include_str!({file:?})),");
    }
    table.push(']');
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("no OUT_DIR"))?;
    fs::write(Path::new(&out).join("vendored.rs"), table)
}

fn walk(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, ending, files)?;
        } else if path.extension().is_some_and(|it| it == ending) {
            files.push(path);
        }
    }
    Ok(())
}
