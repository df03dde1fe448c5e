//! `ostraca pool copy`: copies the state of a pool to another one while the cluster runs (K4, M1).

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, Client, PoolCopyEnd, PoolCopyProgress, PoolCopyStep};
use serde_json::json;

use crate::args::{CopyPool, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(super) async fn run(global: &Global, args: &CopyPool) -> Result<Exit, Failure> {
    let client = connection::connect_to_store(global).await?;
    let copied = follow(&client, args).await;
    connection::disconnect(client).await;
    let copied = copied?;
    match global.output {
        OutputFormat::Table => print(args, &copied),
        OutputFormat::Json => output::json(&json!({
            "from": args.from, "to": args.to, "was_done": copied.was_done,
            "types": copied.types.iter().map(|it| json!({
                "type": it.r#type, "entities": it.entities, "records": it.records, "bytes": it.bytes,
            })).collect::<Vec<_>>(),
        })),
    }
    Ok(Exit::Done)
}

/// Shows the progress until the copy ends.
async fn follow(client: &Client, args: &CopyPool) -> Result<PoolCopyEnd, Failure> {
    let bar = match ProgressStyle::with_template("{spinner} {msg}") {
        Ok(style) => ProgressBar::new_spinner().with_style(style),
        Err(_) => ProgressBar::new_spinner(),
    };
    let mut updates = client.copy_pool(&args.from, &args.to, args.release_timeout).await?;
    while let Some(progress) = updates.next().await? {
        if let Some(end) = progress.end {
            bar.finish_and_clear();
            return Ok(end);
        }
        bar.set_message(describe(&progress));
        bar.tick();
    }
    Err(AdminError::Connection("the node did not say how the copy ended".into()).into())
}

fn describe(progress: &PoolCopyProgress) -> String {
    let PoolCopyProgress { shards, all_shards, items, bytes, .. } = progress;
    let step = match progress.step() {
        PoolCopyStep::Checking => "checking the old pool",
        PoolCopyStep::Releasing => {
            return format!("the hosts have given up {shards} of {all_shards} shards");
        }
        PoolCopyStep::Marking => return format!("claiming {all_shards} shards"),
        PoolCopyStep::Copying => "copying",
        PoolCopyStep::ReadingOld => "reading the old pool again",
        PoolCopyStep::ReadingNew => "reading the new pool",
        PoolCopyStep::Finishing => {
            return format!("releasing the new pool: {shards} of {all_shards} shards");
        }
        PoolCopyStep::Removing => {
            return format!("removing what is left: {shards} of {all_shards} shards");
        }
        PoolCopyStep::Unspecified => "working",
    };
    let size = output::size(*bytes);
    format!("{step}: {shards} of {all_shards} shards, {items} records, {size}")
}

fn print(args: &CopyPool, copied: &PoolCopyEnd) {
    let CopyPool { from, to, .. } = args;
    if copied.was_done {
        output::line(&format!("the pool {from} was copied to {to} before"));
        return;
    }
    output::line(&format!(
        "copied the pool {from} to {to}, and compared both; its types are in {to} now, on nodes with the role {}",
        copied.role
    ));
    let rows = copied.types.iter().map(|it| {
        let size = output::size(it.bytes);
        [it.r#type.clone(), it.entities.to_string(), it.records.to_string(), size]
    });
    output::table(["TYPE", "ENTITIES", "RECORDS", "SIZE"], rows.collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_step_shards_and_size() {
        let now = |step: PoolCopyStep| {
            describe(&PoolCopyProgress {
                step: step.into(),
                shards: 3,
                all_shards: 8,
                items: 40,
                bytes: 9,
                end: None,
            })
        };
        assert_eq!(now(PoolCopyStep::Copying), "copying: 3 of 8 shards, 40 records, 9 B");
        assert_eq!(now(PoolCopyStep::Releasing), "the hosts have given up 3 of 8 shards");
        assert_eq!(now(PoolCopyStep::Marking), "claiming 8 shards");
        assert_eq!(now(PoolCopyStep::Removing), "removing what is left: 3 of 8 shards");
    }
}
