//! `ostraca forget NODE`: a node that is gone for good is no problem any more.

use serde_json::json;

use crate::args::{Forget, Format, Global};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global, args: &Forget) -> Result<Exit, Failure> {
    let client = dial::connect(global).await?;
    let done = dial::patiently("asking the node", client.forget(&args.node)).await?;
    dial::part(client).await;
    let name = &args.node;
    if global.output == Format::Json {
        output::json(&json!({ "node": name, "unchanged": done.unchanged }));
    } else if done.unchanged {
        output::line(&format!("{name} had left already: nothing was changed"));
    } else {
        output::line(&format!(
            "{name} is forgotten; if it is started again after all, it joins as ever"
        ));
    }
    Ok(Exit::Done)
}
