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
        ConfigCommand::Check { file, offline } => check(global, file, *offline)?,
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

/// Checks the file, and the stores that are outside the nodes. Everything else that the file names is checked when the
/// node starts.
fn check(global: &Global, file: &Path, offline: bool) -> Result<(), Failure> {
    let config = Config::load(&config_file(file))?;
    let stores = match offline {
        true => Vec::new(),
        false => ostraca_node::probe_stores(&config)?,
    };
    match global.output {
        OutputFormat::Table => {
            output::line(&format!("{}: valid", file.display()));
            let cells = stores.iter().map(|store| {
                let identity = &store.identity;
                let (id, name) = (identity.store_id, &identity.cluster_name);
                (store.holds, format!("store {id:032x} of the cluster {name}, in {}", store.place))
            });
            output::pairs(&cells.collect::<Vec<_>>());
        }
        OutputFormat::Json => {
            let stores = stores.iter().map(|store| {
                json!({
                    "holds": store.holds, "place": store.place,
                    "store_id": format!("{:032x}", store.identity.store_id),
                    "cluster_id": store.identity.cluster.to_string(),
                    "cluster_name": store.identity.cluster_name,
                })
            });
            let stores: Vec<_> = stores.collect();
            output::json(&json!({ "node": config.node, "valid": true, "stores": stores }));
        }
    }
    Ok(())
}
