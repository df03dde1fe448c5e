//! The program of a later release: it reads and can write formats up to `OSTRACA_FORMAT`, and does what `ostraca`
//! does otherwise.

use std::process::ExitCode;

use ostraca_core::format;

fn main() -> ExitCode {
    match std::env::var("OSTRACA_FORMAT").map(|format| format.parse()) {
        Ok(Ok(newest)) if newest > format::newest() => format::know(newest),
        other => {
            eprintln!("OSTRACA_FORMAT must be a format after {}: {other:?}", format::newest());
            return ExitCode::FAILURE;
        }
    }
    ostraca_cli::main()
}
