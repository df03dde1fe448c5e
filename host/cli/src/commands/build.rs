//! `ostraca build`: compiles an entity to a component.

use serde_json::json;

use crate::args::{Build, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::project::{Project, compile};

pub(crate) async fn run(global: &Global, args: &Build) -> Result<Exit, Failure> {
    let project = Project::load(&args.dir)?;
    let built = compile::build(&project).await?;
    if global.output == OutputFormat::Json {
        let methods: Vec<_> = built
            .methods
            .iter()
            .map(|(name, kind)| json!({ "name": name, "kind": kind }))
            .collect();
        output::json(&json!({
            "type": project.manifest.entity_type, "component": project.component(),
            "size": built.size, "methods": methods,
        }));
        return Ok(Exit::Done);
    }
    output::line(&built.summary(&project));
    Ok(Exit::Done)
}
