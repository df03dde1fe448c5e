//! A compiler of C for WebAssembly, from Debian's packages.

use std::path::{Path, PathBuf};

use crate::find_or_install;
use crate::python::on_path;

/// The program `clang`, which finds its linker and wasi-libc by itself.
#[must_use]
pub fn clang() -> PathBuf {
    find_or_install("clang, lld and wasi-libc", &["clang", "lld", "wasi-libc"], || {
        let complete = on_path("wasm-ld").is_some() && Path::new("/usr/lib/wasm32-wasi").is_dir();
        on_path("clang").filter(|_| complete)
    })
}
