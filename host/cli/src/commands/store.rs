//! `ostraca store accept`: goes on with a PostgreSQL server that may lack acknowledged turns.

use ostraca_node::Config;
use serde_json::json;

use super::config_file;
use crate::args::{Global, OutputFormat, Store, StoreCommand};
use crate::failure::{Exit, Failure};
use crate::output;

pub(crate) fn run(global: &Global, args: &Store) -> Result<Exit, Failure> {
    let StoreCommand::Accept { file } = &args.what;
    let store = ostraca_node::accept_database(&Config::load(&config_file(file))?)?;
    let name = &store.identity.cluster_name;
    match global.output {
        OutputFormat::Table => output::line(&format!(
            "accepted {} as it is, for the cluster {name}; turns that it lacks are lost",
            store.place
        )),
        OutputFormat::Json => output::json(&json!({
            "place": store.place, "cluster_name": name,
            "store_id": format!("{:032x}", store.identity.store_id),
        })),
    }
    Ok(Exit::Done)
}
