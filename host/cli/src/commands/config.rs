//! `ostraca config`: shows and checks a node's configuration.

use std::path::Path;

use ostraca_node::Config;
use serde_json::{Value, json};

use super::config_file;
use crate::args::{self, ConfigCommand, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::output;

pub(crate) fn run(global: &Global, args: &args::Config) -> Result<Exit, Failure> {
    match &args.what {
        ConfigCommand::Show { file } => {
            let text = Config::load(&config_file(file))?.effective_toml();
            print(global, &text);
        }
        ConfigCommand::Check { file } => check(global, file)?,
        ConfigCommand::Default => print(global, Config::default_toml()),
    }
    Ok(Exit::Done)
}

fn print(global: &Global, text: &str) {
    match global.output {
        OutputFormat::Table => output::text(text),
        // The text is valid TOML: it was generated or is embedded.
        OutputFormat::Json => output::json(&toml_as_json(text)),
    }
}

fn toml_as_json(text: &str) -> Value {
    text.parse::<toml::Table>()
        .ok()
        .and_then(|table| serde_json::to_value(table).ok())
        .unwrap_or_default()
}

/// Checks only the file: what it names (certificates, the store) is checked when the node starts.
fn check(global: &Global, file: &Path) -> Result<(), Failure> {
    let config = Config::load(&config_file(file))?;
    match global.output {
        OutputFormat::Table => output::line(&format!("{}: valid", file.display())),
        OutputFormat::Json => output::json(&json!({ "node": config.node, "valid": true })),
    }
    Ok(())
}
