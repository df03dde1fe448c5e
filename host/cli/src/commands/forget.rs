//! `ostraca forget NODE`: marks a permanently lost node as removed.

use serde_json::json;

use crate::args::{Forget, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Forget) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let done = connection::with_spinner("contacting the node", client.forget(&args.node)).await?;
    connection::disconnect(client).await;
    let name = &args.node;
    if global.output == OutputFormat::Json {
        output::json(&json!({ "node": name, "unchanged": done.unchanged }));
    } else if done.unchanged {
        output::line(&format!("{name} had already left: nothing changed"));
    } else {
        output::line(&format!(
            "{name} is marked as removed; if it starts again it rejoins the cluster"
        ));
    }
    Ok(Exit::Done)
}
