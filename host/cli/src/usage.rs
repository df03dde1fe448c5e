//! Errors that clap finds in a command line. Clap prints them as text; with `--output json` they are printed like all
//! other errors.

use std::ffi::OsString;
use std::process::ExitCode;

use ostraca_codes::codes;

use crate::args::OutputFormat;
use crate::failure::{Exit, Failure};

/// Prints clap's help or error, and returns the exit code.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    let refused = error.use_stderr();
    if refused && wants_json(std::env::args_os().skip(1)) {
        let failure = failure(&error.render().to_string());
        eprint!("{}", failure.render(OutputFormat::Json, false));
        return failure.exit.into();
    }
    // A reader that closed the pipe is not an error.
    let _ = error.print();
    if refused { Exit::Usage.into() } else { Exit::Done.into() }
}

/// Whether the arguments ask for JSON, as far as that can be told from arguments that do not parse.
fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut json = false;
    let mut args = args.take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        if arg == "--output=json" {
            json = true;
        } else if arg == "--output" {
            json = args.next().is_some_and(|value| value == "json");
        }
    }
    json
}

/// Converts clap's message: its first paragraph says what is wrong, the rest how to fix it.
fn failure(text: &str) -> Failure {
    let text = text.strip_prefix("error: ").unwrap_or(text).trim();
    let (message, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    Failure::usage(codes::USAGE, message).help(rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_in_arguments_that_do_not_parse() {
        let wants = |args: &[&str]| wants_json(args.iter().map(OsString::from));
        assert!(wants(&["sendd", "--output", "json"]));
        assert!(wants(&["--output=json", "status", "--no-such"]));
        assert!(!wants(&["send", "a/b", "m", "--output", "table"]));
        assert!(!wants(&["send", "a/b", "--", "--output", "json"]));
        assert!(!wants(&["send", "json", "--output"]));
    }
}
