//! `ostraca store`: accepts a PostgreSQL server that may lack acknowledged turns, adds databases, or copies a stopped
//! cluster's stores.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_node::transfer::{CopyStep, ItemKind};
use ostraca_node::{Config, CopiedStores, PostgresSettings, ProbedStore, StorePlace};
use serde_json::json;

use super::init::absolute;
use super::{config_file, store_move};
use crate::args::{DatabaseAccess, Global, OutputFormat, Store, StoreCommand, StoreCopy, TlsMode};
use crate::failure::{Exit, Failure};
use crate::{output, quote};

pub(crate) async fn run(global: &Global, args: &Store) -> Result<Exit, Failure> {
    match &args.what {
        StoreCommand::Add { file } => add(global, file),
        StoreCommand::Move(args) => store_move::run(global, args).await,
        StoreCommand::Accept { file, restored } => accept(global, file, *restored),
        StoreCommand::Copy(args) => copy(global, args),
    }
}

fn accept(global: &Global, file: &Path, restored: bool) -> Result<Exit, Failure> {
    let config = Config::load(&config_file(file))?;
    let store = match restored {
        false => ostraca_node::accept_database(&config)?,
        true => ostraca_node::renew_database(&config)?,
    };
    let name = &store.identity.cluster_name;
    match global.output {
        OutputFormat::Table => {
            output::line(&format!(
                "accepted {} as it is, for the cluster {name}; turns that it lacks are lost",
                store.place
            ));
            if restored {
                output::line(
                    "it is another store now: remove postgres.witness from the directory of every node",
                );
            }
        }
        OutputFormat::Json => output::json(&json!({
            "place": store.place, "cluster_name": name,
            "store_id": format!("{:032x}", store.identity.store_id),
        })),
    }
    Ok(Exit::Done)
}

fn add(global: &Global, file: &Path) -> Result<Exit, Failure> {
    let added = ostraca_node::add_databases(&Config::load(&config_file(file))?)?;
    let id = |store: &ProbedStore| format!("{:032x}", store.identity.store_id);
    match global.output {
        OutputFormat::Table => {
            for (store, is_new) in &added {
                let did = if *is_new { "created" } else { "exists already:" };
                output::line(&format!("{did} store {} in {}", id(store), store.place));
            }
            output::line(
                "next: name the same databases in the configuration of every node, and restart the nodes;",
            );
            output::line("  then move shards: ostraca store move --shards FIRST-LAST --to ID");
        }
        OutputFormat::Json => {
            let one = |(store, is_new): &(ProbedStore, bool)| json!({ "store_id": id(store), "place": store.place, "created": is_new });
            output::json(&json!({ "databases": added.iter().map(one).collect::<Vec<_>>() }));
        }
    }
    Ok(Exit::Done)
}

fn copy(global: &Global, args: &StoreCopy) -> Result<Exit, Failure> {
    let from = place(&args.database, &args.from)?;
    let to = place(&args.database, &args.to)?;
    let bar = Bar::new();
    let copied = ostraca_node::copy_stores(&from, &to, &mut |step, items, bytes| {
        bar.show(step, items, bytes);
    });
    bar.end();
    let copied = copied?;
    match global.output {
        OutputFormat::Table => {
            output::line(&format!(
                "moved the cluster {} to {}, and compared the copy with its source",
                copied.cluster_name, copied.destination.place
            ));
            print_counts(&copied);
            output::line("no node can use the source any more");
            print_next(&args.to, &to);
        }
        OutputFormat::Json => output::json(&as_json(&copied)),
    }
    Ok(Exit::Done)
}

/// A place of stores: a connection string, or the configuration of a node.
pub(super) fn place(database: &DatabaseAccess, text: &str) -> Result<StorePlace, Failure> {
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    if !is_url && !text.contains('=') {
        return Ok(StorePlace::Config(Config::load(&config_file(Path::new(text)))?.into()));
    }
    Ok(StorePlace::Postgres(PostgresSettings {
        url: text.into(),
        password_file: absolute(database.postgres_password_file.as_deref())?,
        tls: database.postgres_tls.map(|mode| mode == TlsMode::Verify),
        ca_file: absolute(database.postgres_ca_file.as_deref())?,
    }))
}

pub(super) fn print_counts(copied: &CopiedStores) {
    let counts = ItemKind::ALL.map(|kind| {
        let tally = copied.summary.of(kind);
        (kind.name(), format!("{}, {}", tally.count, output::size(tally.bytes)))
    });
    output::pairs(&counts);
}

/// What to do so that the nodes use the stores at their new place.
pub(super) fn print_next(to: &str, place: &StorePlace) {
    match place {
        StorePlace::Postgres(settings) => {
            output::line("next, for every node:");
            output::line(
                "  add this to its configuration, and remove `join` and the role `store`:",
            );
            output::text(&settings.section());
        }
        StorePlace::Config(config) if config.has_rows_outside() => {
            output::line("next, for every node:");
            output::line(
                "  name the same database in the section `postgres` of its configuration, and remove `join`",
            );
            output::line("  and the role `store`");
        }
        StorePlace::Config(config) => {
            output::line("next, for every other node:");
            output::line(
                "  remove the section `postgres` from its configuration, if it has one, and name a node under",
            );
            output::line(
                "  `join`; remove its file joined-store.witness, which is of the store before",
            );
            output::line("then:");
            let path = quote::shell_quote(to);
            output::line(&format!("  ostraca run --config {path}    # node {}", config.node));
        }
    }
}

pub(super) fn as_json(copied: &CopiedStores) -> serde_json::Value {
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

/// Shows what a copy is doing, on a terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        // The template is a constant; if it is invalid the default style is shown.
        Self(match ProgressStyle::with_template("{spinner} {msg}") {
            Ok(style) => ProgressBar::new_spinner().with_style(style),
            Err(_) => ProgressBar::new_spinner(),
        })
    }

    pub(super) fn show(&self, step: CopyStep, items: u64, bytes: u64) {
        let step = match step {
            CopyStep::Copying => "copying",
            CopyStep::ReadingSource => "reading the source again",
            CopyStep::ReadingTarget => "reading the copy",
        };
        self.0.set_message(format!("{step}: {items} items, {}", output::size(bytes)));
        self.0.tick();
    }

    pub(super) fn end(self) {
        self.0.finish_and_clear();
    }
}
