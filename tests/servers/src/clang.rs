//! A compiler of C for WebAssembly, from Debian's packages.

use std::path::{Path, PathBuf};

use crate::find_or_install;
use crate::python::on_path;

/// The program `clang`, which finds its linker and wasi-libc by itself.
#[must_use]
pub fn clang() -> PathBuf {
    let packages = ["clang", "lld", "wasi-libc", "libclang-rt-dev-wasm32"];
    find_or_install("clang for WebAssembly", &packages, || {
        // The last package has no file of a name that does not depend on the release.
        let documented = Path::new("/usr/share/doc");
        let complete = on_path("wasm-ld").is_some()
            && packages.iter().all(|package| documented.join(package).exists());
        on_path("clang").filter(|_| complete)
    })
}
