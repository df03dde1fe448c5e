//! Embeds the sources of the SDK and of the WIT package in the binary, so that `ostraca new` can write them into
//! projects that have access to neither this repository nor a registry with the SDK.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Directories that a project needs to build, relative to the repository's root, each with its files' extension.
const PARTS: [(&str, &str); 8] = [
    ("guest-sdk/src", "rs"),
    ("guest-sdk/macros/src", "rs"),
    ("guest-sdk/javascript", "js"),
    ("guest-sdk/javascript", "ts"),
    ("guest-sdk/python", "py"),
    ("guest-sdk/c", "c"),
    ("guest-sdk/c", "h"),
    ("wit", "wit"),
];
const FILES: [&str; 3] =
    ["guest-sdk/Cargo.toml", "guest-sdk/macros/Cargo.toml", "guest-sdk/javascript/package.json"];

fn main() -> io::Result<()> {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("no manifest"))?;
    let root = Path::new(&manifest).join("../..").canonicalize()?;
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    for (folder, extension) in PARTS {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        walk(&root.join(folder), extension, &mut files)?;
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

fn walk(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, extension, files)?;
        } else if path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
    Ok(())
}
