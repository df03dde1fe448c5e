//! `ostraca`: the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ostraca_cli::main()
}
