//! `ostraca activate TYPE REVISION` and `ostraca rollback TYPE`: change which revision of a type is active.

use super::deploy;
use crate::args::Global;
use crate::connection;
use crate::failure::{Exit, Failure};

/// Activates a revision; `None` for the one before the current revision.
pub(crate) async fn run(
    global: &Global,
    entity_type: &str,
    revision: Option<u64>,
) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let activating = client.activate(entity_type, revision);
    let spinner = format!("activating {entity_type}");
    let deployed = connection::with_spinner(&spinner, activating).await?;
    connection::disconnect(client).await;
    deploy::show(global, &deployed, "active");
    Ok(Exit::Done)
}
