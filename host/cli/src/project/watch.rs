//! Detects saved source files by polling: so few files do not need the operating system's file notifications.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Maximum number of files that are polled: a wrong directory must not keep the disk busy.
const MAX_FILES: usize = 10_000;

/// A hash of the names, sizes and times of a project's files. Never stored: it only detects changes.
pub(crate) fn fingerprint(dir: &Path) -> u64 {
    let mut all = Vec::new();
    walk(dir, &mut all);
    all.sort();
    let mut hasher = DefaultHasher::new();
    all.hash(&mut hasher);
    hasher.finish()
}

fn walk(dir: &Path, all: &mut Vec<(std::path::PathBuf, u64, Option<std::time::SystemTime>)>) {
    // A directory that has disappeared in the meantime is a change like any other.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_made = ["target", "node_modules", "__pycache__", "Cargo.lock", "package-lock.json"];
        if is_made.iter().any(|made| name == *made) || name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let (path, Ok(found)) = (entry.path(), entry.metadata()) else { continue };
        if found.is_dir() {
            walk(&path, all);
        } else if all.len() < MAX_FILES {
            all.push((path, found.len(), found.modified().ok()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_change_the_fingerprint_and_build_output_does_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("src")).expect("made");
        fs::write(path("src/lib.rs"), "1").expect("written");
        let before = fingerprint(dir.path());
        fs::create_dir_all(path("target")).expect("made");
        fs::write(path("target/out.wasm"), "x").expect("written");
        fs::write(path("Cargo.lock"), "x").expect("written");
        assert_eq!(fingerprint(dir.path()), before);
        fs::write(path("src/lib.rs"), "12").expect("written");
        assert_ne!(fingerprint(dir.path()), before);
    }
}
