//! An entity project: a directory with a manifest, and files of its language.

use std::path::{Path, PathBuf};

use ostraca_codes::codes;
use ostraca_node::Manifest;
use ostraca_node::manifest::MAX_MANIFEST_BYTES;

use crate::failure::Failure;

pub(crate) mod compile;
pub(crate) mod template;
pub(crate) mod watch;

/// A manifest and where it was read from.
pub(crate) struct Project {
    /// The manifest's directory.
    pub(crate) dir: PathBuf,
    /// The manifest itself.
    pub(crate) file: PathBuf,
    /// Its text, as it is deployed.
    pub(crate) text: String,
    pub(crate) manifest: Manifest,
}

impl Project {
    /// Reads the manifest: a file, or the `entity.toml` of a directory.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let file = if path.is_dir() { path.join("entity.toml") } else { path.to_owned() };
        let size = match std::fs::metadata(&file) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let text = format!("no manifest at {}", file.display());
                let help = "name a directory with an entity.toml; `ostraca new NAME` creates one";
                return Err(Failure::usage(codes::NO_MANIFEST, text).help(help));
            }
            Err(error) => return Err(Failure::file("read", &file, &error)),
        };
        if size > MAX_MANIFEST_BYTES as u64 {
            let text = format!("{} is {size} bytes, limit is {MAX_MANIFEST_BYTES}", file.display());
            return Err(Failure::usage(codes::INVALID_MANIFEST, text));
        }
        let text =
            std::fs::read_to_string(&file).map_err(|error| Failure::file("read", &file, &error))?;
        let manifest = Manifest::parse(&text, &file.display().to_string())?;
        let dir = file.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { dir, file, text, manifest })
    }

    /// Path of the component.
    pub(crate) fn component(&self) -> PathBuf {
        self.dir.join(&self.manifest.component)
    }
}
