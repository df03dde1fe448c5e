//! Logging to standard error, as text or as JSON.

use std::io::IsTerminal;

use ostraca_codes::codes;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, Command, LogFormat};
use crate::failure::Failure;

/// Starts logging with the filter from `--log` (or RUST_LOG), otherwise with one that suits the command.
pub(crate) fn start(args: &Args) -> Result<(), Failure> {
    let default = match (&args.command, args.global.verbose) {
        (_, 2..) => "debug,quinn=info,rustls=info,sled=info",
        (_, 1) => "info",
        (Command::Run(_), 0) => "info",
        // In development the guest's log lines matter.
        (Command::Dev(_), 0) => "warn,ostraca::guest=info",
        _ => "error",
    };
    let filter = match args.global.log.as_deref().filter(|filter| !filter.is_empty()) {
        Some(filter) => EnvFilter::try_new(filter).map_err(|error| {
            Failure::usage(
                codes::INVALID_LOG_FILTER,
                format!("invalid log filter {filter:?}: {error}"),
            )
            .help("use a level or per-module levels, such as `info,ostraca_gateway=debug`")
        })?,
        None => EnvFilter::new(default),
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // There is no other subscriber: this runs once per process.
    let _ = match args.global.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
    Ok(())
}
