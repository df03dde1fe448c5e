//! `ostraca backup` and `ostraca restore`.

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, Client};
use ostraca_core::ids::ClusterId;
use ostraca_node::NodeError;
use ostraca_node::backup::{BackupWriter, Manifest, Section};
use ostraca_wire::proto::{BackupEnd, BackupPart, BackupSection};
use serde_json::json;

use super::store::{Bar, as_json, place, print_counts, print_next};
use crate::args::{Backup, Global, OutputFormat, Restore};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Backup) -> Result<Exit, Failure> {
    let mut writer = BackupWriter::new(&args.dir).map_err(NodeError::from)?;
    let client = connection::connect_to_store(global).await?;
    let received = receive(&client, &mut writer).await;
    connection::disconnect(client).await;
    let manifest = received?;
    let (chunks, bytes, new_bytes) = writer.written();
    let (sequence, cluster_name) = (manifest.sequence, manifest.cluster_name.clone());
    let name = writer.finish(manifest).map_err(NodeError::from)?;
    match global.output {
        OutputFormat::Table => {
            output::line(&format!("backed up the cluster {cluster_name} as {name}"));
            output::pairs(&[
                ("size", format!("{} in {chunks} chunks", output::size(bytes))),
                ("new", output::size(new_bytes)),
            ]);
        }
        OutputFormat::Json => output::json(&json!({
            "name": name, "cluster_name": cluster_name, "sequence": sequence,
            "chunks": chunks, "bytes": bytes, "new_bytes": new_bytes,
        })),
    }
    Ok(Exit::Done)
}

pub(crate) fn restore(global: &Global, args: &Restore) -> Result<Exit, Failure> {
    let to = place(&args.database, &args.to)?;
    let bar = Bar::new();
    let restored = ostraca_node::restore_backup(
        &args.dir,
        args.backup.as_deref(),
        &to,
        &mut |step, items, bytes| bar.show(step, items, bytes),
    );
    bar.end();
    let (restored, name) = restored?;
    match global.output {
        OutputFormat::Table => {
            output::line(&format!(
                "restored the backup {name} of the cluster {} to {}",
                restored.cluster_name, restored.destination.place
            ));
            print_counts(&restored);
            output::line("it is a store of its own: stop all nodes that still use the one before");
            print_next(&args.to, &to);
        }
        OutputFormat::Json => {
            let mut object = as_json(&restored);
            object["backup"] = name.into();
            output::json(&object);
        }
    }
    Ok(Exit::Done)
}

/// Writes the parts as they come.
async fn receive(client: &Client, writer: &mut BackupWriter) -> Result<Manifest, Failure> {
    let bar = progress();
    let mut parts = client.backup().await?;
    let mut chunk = Vec::new();
    while let Some(part) = parts.next().await? {
        let BackupPart { section, round, data, ends_chunk, end } = part;
        if let Some(end) = end {
            bar.finish_and_clear();
            return manifest(end);
        }
        chunk.extend_from_slice(&data);
        if !ends_chunk {
            continue;
        }
        let section = match BackupSection::try_from(section) {
            Ok(BackupSection::Shards) => Section::Shards,
            Ok(BackupSection::Round) => Section::Round(round),
            Ok(BackupSection::Component) => Section::Component,
            Ok(BackupSection::Rows) => Section::Rows,
            Ok(BackupSection::Unspecified) | Err(_) => {
                return Err(incomplete("an unknown section"));
            }
        };
        writer.add(section, &chunk).map_err(NodeError::from)?;
        chunk.clear();
        let (_, bytes, new) = writer.written();
        bar.set_message(format!("{} read, {} new", output::size(bytes), output::size(new)));
        bar.tick();
    }
    Err(incomplete("no end"))
}

fn incomplete(what: &str) -> Failure {
    AdminError::Connection(format!("the node sent {what} of the backup; use its release")).into()
}

fn manifest(end: BackupEnd) -> Result<Manifest, Failure> {
    let id = |bytes: &[u8]| bytes.try_into().map(u128::from_be_bytes);
    let (Ok(cluster), Ok(store_id)) = (id(&end.cluster_id), id(&end.store_id)) else {
        return Err(incomplete("no ids"));
    };
    Ok(Manifest {
        cluster: ClusterId(cluster),
        cluster_name: end.cluster_name,
        store_id,
        sequence: end.sequence,
        taken_unix_s: end.taken_unix_s,
        chunks: Vec::new(),
    })
}

fn progress() -> ProgressBar {
    // The template is a constant; if it is invalid the default style is shown.
    match ProgressStyle::with_template("{spinner} backing up: {msg}") {
        Ok(style) => ProgressBar::new_spinner().with_style(style),
        Err(_) => ProgressBar::new_spinner(),
    }
}
