//! `ostraca store`: accepts a PostgreSQL server that may lack acknowledged turns, or moves a stopped cluster's stores.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_node::transfer::{CopyStep, ItemKind};
use ostraca_node::{Config, CopiedStores, PostgresSettings, StorePlace};
use serde_json::json;

use super::config_file;
use super::init::absolute;
use crate::args::{Global, OutputFormat, Store, StoreCommand, StoreCopy, TlsMode};
use crate::failure::{Exit, Failure};
use crate::{output, quote};

pub(crate) fn run(global: &Global, args: &Store) -> Result<Exit, Failure> {
    match &args.what {
        StoreCommand::Accept { file } => accept(global, file),
        StoreCommand::Copy(args) => copy(global, args),
    }
}

fn accept(global: &Global, file: &Path) -> Result<Exit, Failure> {
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

fn copy(global: &Global, args: &StoreCopy) -> Result<Exit, Failure> {
    let (from, to) = (place(args, &args.from)?, place(args, &args.to)?);
    let bar = progress();
    let copied = ostraca_node::copy_stores(&from, &to, &mut |step, items, bytes| {
        let step = match step {
            CopyStep::Copying => "copying",
            CopyStep::ReadingSource => "reading the source again",
            CopyStep::ReadingTarget => "reading the copy",
        };
        bar.set_message(format!("{step}: {items} items, {}", output::size(bytes)));
        bar.tick();
    });
    bar.finish_and_clear();
    let copied = copied?;
    match global.output {
        OutputFormat::Table => print(args, &to, &copied),
        OutputFormat::Json => output::json(&as_json(&copied)),
    }
    Ok(Exit::Done)
}

fn place(args: &StoreCopy, text: &str) -> Result<StorePlace, Failure> {
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    if !is_url && !text.contains('=') {
        return Ok(StorePlace::Config(Config::load(&config_file(Path::new(text)))?.into()));
    }
    Ok(StorePlace::Postgres(PostgresSettings {
        url: text.into(),
        password_file: absolute(args.postgres_password_file.as_deref())?,
        tls: args.postgres_tls.map(|mode| mode == TlsMode::Verify),
        ca_file: absolute(args.postgres_ca_file.as_deref())?,
    }))
}

fn print(args: &StoreCopy, to: &StorePlace, copied: &CopiedStores) {
    let CopiedStores { destination, cluster_name, summary, .. } = copied;
    output::line(&format!(
        "moved the cluster {cluster_name} to {}, and compared the copy with its source",
        destination.place
    ));
    let counts = ItemKind::ALL.map(|kind| {
        let tally = summary.of(kind);
        (kind.name(), format!("{}, {}", tally.count, output::size(tally.bytes)))
    });
    output::pairs(&counts);
    output::line("no node can use the source any more; next, for every node:");
    match to {
        StorePlace::Postgres(settings) => {
            output::line(
                "  add this to its configuration, and remove `join` and the role `store`:",
            );
            output::line("");
            output::text(&settings.section());
        }
        StorePlace::Config(config) if config.has_rows_outside() => {
            output::line(
                "  name the same database in the section `postgres` of its configuration, and remove `join` and",
            );
            output::line("  the role `store`");
        }
        StorePlace::Config(config) => {
            output::line(
                "  remove the section `postgres` from its configuration; all nodes but this one need `join`, and",
            );
            output::line(
                "  must forget the store that they knew before: remove joined-store.witness, if they have it",
            );
            output::line("then, first:");
            let path = quote::shell_quote(&args.to);
            output::line(&format!("  ostraca run --config {path}    # node {}", config.node));
        }
    }
}

fn as_json(copied: &CopiedStores) -> serde_json::Value {
    let kinds = ItemKind::ALL.map(|kind| {
        let tally = copied.summary.of(kind);
        (kind.name().into(), json!({ "count": tally.count, "bytes": tally.bytes }))
    });
    json!({
        "cluster_id": copied.cluster.to_string(), "cluster_name": copied.cluster_name,
        "place": copied.destination.place, "store_id": format!("{:032x}", copied.destination.store_id),
        "copied": serde_json::Map::from_iter(kinds),
    })
}

fn progress() -> ProgressBar {
    // The template is a constant; if it is invalid the default style is shown.
    match ProgressStyle::with_template("{spinner} {msg}") {
        Ok(style) => ProgressBar::new_spinner().with_style(style),
        Err(_) => ProgressBar::new_spinner(),
    }
}
