//! `ostraca pool copy`: copies the state of a pool to another one, in a stopped cluster (K4, M1).

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_node::{Config, CopiedPool, PoolCopyProgress, PoolCopyStep};
use serde_json::json;

use super::config_file;
use super::repair::wait_text;
use crate::args::{CopyPool, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::output;

pub(super) fn run(global: &Global, args: &CopyPool) -> Result<Exit, Failure> {
    let config = Config::load(&config_file(&args.file))?;
    let bar = match ProgressStyle::with_template("{spinner} {msg}") {
        Ok(style) => ProgressBar::new_spinner().with_style(style),
        Err(_) => ProgressBar::new_spinner(),
    };
    let copied = ostraca_node::copy_pool(
        &config,
        (&args.from, &args.to),
        &|wait| eprintln!("{}", wait_text(wait)),
        &mut |progress| {
            bar.set_message(describe(progress));
            bar.tick();
        },
    );
    bar.finish_and_clear();
    let copied = copied?;
    match global.output {
        OutputFormat::Table => print(args, &copied),
        OutputFormat::Json => output::json(&json!({
            "place": copied.place, "cluster_name": copied.cluster_name,
            "from": args.from, "to": args.to, "was_done": copied.was_done,
            "types": copied.types.iter().map(|it| json!({
                "type": it.name, "entities": it.entities, "records": it.records, "bytes": it.bytes,
            })).collect::<Vec<_>>(),
        })),
    }
    Ok(Exit::Done)
}

fn describe(progress: PoolCopyProgress) -> String {
    let PoolCopyProgress { step, shards, all_shards, items, bytes } = progress;
    let step = match step {
        PoolCopyStep::Checking => "checking the old pool",
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
    };
    let size = output::size(bytes);
    format!("{step}: {shards} of {all_shards} shards, {items} records, {size}")
}

fn print(args: &CopyPool, copied: &CopiedPool) {
    let CopyPool { from, to, .. } = args;
    if copied.was_done {
        output::line(&format!("the pool {from} was copied to {to} before"));
        return;
    }
    output::line(&format!(
        "copied the pool {from} to {to} in {}, and compared both; its types are in {to} now",
        copied.place
    ));
    let rows = copied.types.iter().map(|it| {
        let size = output::size(it.bytes);
        [it.name.clone(), it.entities.to_string(), it.records.to_string(), size]
    });
    output::table(["TYPE", "ENTITIES", "RECORDS", "SIZE"], rows.collect());
    output::line(&format!("next: start the nodes; those with the role {} host {to}", copied.role));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_step_shards_and_size() {
        let now = |step| {
            describe(PoolCopyProgress { step, shards: 3, all_shards: 8, items: 40, bytes: 9 })
        };
        assert_eq!(now(PoolCopyStep::Copying), "copying: 3 of 8 shards, 40 records, 9 B");
        assert_eq!(now(PoolCopyStep::Marking), "claiming 8 shards");
        assert_eq!(now(PoolCopyStep::Removing), "removing what is left: 3 of 8 shards");
    }
}
