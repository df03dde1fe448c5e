//! `ostraca activate TYPE REVISION` and `ostraca rollback TYPE`: change which revision of a type is active.

use ostraca_client::Rollout;

use super::deploy;
use crate::args::{Activate, Global};
use crate::connection;
use crate::failure::{Exit, Failure};

/// The part of the entities that runs the revision; `None` for all of them.
pub(crate) fn rollout(it: &Activate) -> Option<Rollout> {
    let part = it.share.is_some() || it.shards.is_some() || it.rate.is_some();
    part.then(|| Rollout {
        per_mille: it.share,
        shards: it.shards,
        rate: it.rate.unwrap_or_default(),
        ..Rollout::default()
    })
}

/// Activates a revision; `None` for the one before the current revision.
pub(crate) async fn run(
    global: &Global,
    entity_type: &str,
    revision: Option<u64>,
    rollout: Option<Rollout>,
) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let activating = client.roll_out(entity_type, revision, rollout);
    let spinner = format!("activating {entity_type}");
    let deployed = connection::with_spinner(&spinner, activating).await?;
    connection::disconnect(client).await;
    deploy::show(global, &deployed, "active");
    Ok(Exit::Done)
}
