//! The program of a later release: it reads and can write formats up to `OSTRACA_FORMAT`, says that its version is the
//! number `OSTRACA_VERSION` (that of this release if it is not set), and does what `ostraca` does otherwise.

use std::process::ExitCode;

use ostraca_core::format;
use ostraca_node::release;

fn main() -> ExitCode {
    if let Ok(version) = std::env::var("OSTRACA_VERSION") {
        match version.parse() {
            Ok(version) => release::become_version(version),
            Err(error) => {
                eprintln!("OSTRACA_VERSION must be a number: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    match std::env::var("OSTRACA_FORMAT").map(|format| format.parse()) {
        Ok(Ok(newest)) if newest > format::newest() => format::know(newest),
        other => {
            eprintln!("OSTRACA_FORMAT must be a format after {}: {other:?}", format::newest());
            return ExitCode::FAILURE;
        }
    }
    ostraca_cli::main()
}
