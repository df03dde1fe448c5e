//! `ostraca undeploy TYPE`: undeploys a type of which nothing is left, or deletes what is left first.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_client::{
    AdminError, CallError, CallOptions, Client, EntitiesRequest, Entity, SessionId, UndeployResult,
};
use ostraca_codes::codes;
use serde_json::json;
use tokio::task::JoinSet;

use super::inspect::many;
use crate::args::{Global, OutputFormat, Undeploy};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// Number of entities that are listed at once.
const PAGE: u32 = 500;
/// Number of entities that are deleted at the same time.
const CONCURRENT: usize = 32;
/// How soon to look again whether deleted entities have been removed.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn run(global: &Global, args: &Undeploy) -> Result<Exit, Failure> {
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let mut deleted = BTreeSet::new();
    let undeployed = connection::with_spinner("undeploying the type", async {
        loop {
            if args.delete_state {
                delete_entities(&client, &args.name, deadline, &mut deleted).await?;
            }
            match client.undeploy(&args.name).await {
                // Deleted entities are removed in the background, and messages may create new ones.
                Err(error)
                    if args.delete_state
                        && may_change(&error)
                        && !deadline.remaining().is_zero() =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                result => return result.map_err(Failure::from),
            }
        }
    })
    .await;
    connection::disconnect(client).await;
    show(global, args, &undeployed?, deleted.len() as u64);
    Ok(Exit::Done)
}

fn may_change(error: &AdminError) -> bool {
    matches!(error, AdminError::Refused(problem) if problem.code == codes::TYPE_IN_USE)
}

/// Deletes the type's entities. Those that no longer exist are passed over.
async fn delete_entities(
    client: &Client,
    name: &str,
    deadline: connection::Deadline,
    deleted: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    let mut request = EntitiesRequest { r#type: name.into(), limit: PAGE, ..Default::default() };
    loop {
        let page = client.entities(request.clone()).await?;
        let mut running = JoinSet::new();
        for info in page.entities {
            if running.len() >= CONCURRENT
                && let Some(done) = running.join_next().await
            {
                deleted.extend(finished(done)?);
            }
            let session = client.session_with_id(SessionId::random(), 1);
            let options = CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
            running.spawn(async move {
                let entity = Entity::new(info.r#type.as_str(), info.id.as_str());
                match session.delete_entity(&entity, &options).await {
                    Ok(_) => Ok(Some(info.id)),
                    Err(error) if error.code() == codes::UNKNOWN_ENTITY => Ok(None),
                    Err(error) => Err(error),
                }
            });
        }
        while let Some(done) = running.join_next().await {
            deleted.extend(finished(done)?);
        }
        if page.next_cursor.is_empty() {
            return Ok(());
        }
        request.cursor = page.next_cursor;
    }
}

fn finished(
    done: Result<Result<Option<String>, CallError>, tokio::task::JoinError>,
) -> Result<Option<String>, Failure> {
    match done {
        Ok(outcome) => outcome.map_err(|error| {
            Failure::from(error).help("repeat the command: it continues with what is left")
        }),
        // The task was not cancelled, so it panicked.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn show(global: &Global, args: &Undeploy, it: &UndeployResult, deleted: u64) {
    if global.output == OutputFormat::Json {
        return output::json(&json!({
            "type": it.r#type, "revision": it.revision, "deleted_entities": deleted, "left": it.left,
        }));
    }
    if args.delete_state {
        output::line(&format!("{} deleted", many(deleted, "entity", "entities")));
    }
    output::line(&match it.revision {
        0 => format!("{} was not deployed; its secrets and settings are removed", it.r#type),
        revision => format!("{} is undeployed; its last revision was {revision}", it.r#type),
    });
    if it.left > 0 {
        let left = many(it.left, "entity was", "entities were");
        output::line(&format!(
            "{left} created meanwhile; deploy the type again to reach what is left"
        ));
    }
}
