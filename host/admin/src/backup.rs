//! Backs the node's own store up: everything that it holds, as of one moment.

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_store::StoreError;
use ostraca_store::backup::{Manifest, Section};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{BackupEnd, BackupPart, BackupSection, Problem};
use ostraca_wire::server::{AdminOutput, AdminUpdate, update_channel};
use tokio::sync::mpsc::Sender;

use super::{AdminService, store_failed};

/// Size of a part in bytes.
const PART_BYTES: usize = 256 << 10;

type Parts = Sender<Result<AdminUpdate, Problem>>;

impl AdminService {
    pub(super) fn backup(&self) -> Result<AdminOutput, Problem> {
        let Some(store) = self.status.local_store.clone() else { return Err(self.no_store()) };
        if let Some(rows) = &self.status.rows_store {
            let text = format!("the rows of this cluster are not in the store, but in {rows}");
            let help = "this release backs up only stores that have both state and rows";
            return Err(problem(codes::NO_STORE, text, help));
        }
        let (parts, answer) = update_channel();
        // It ends when the client goes away: then nothing more can be sent.
        tokio::task::spawn_blocking(move || {
            let ended = store.back_up(&mut |section, chunk| send_chunk(&parts, section, chunk));
            let last = match ended {
                Ok(manifest) => Ok(AdminUpdate::Backup(end(manifest))),
                Err(error) => Err(store_failed(&error)),
            };
            // The client may have gone.
            let _ = parts.blocking_send(last);
        });
        Ok(answer)
    }

    pub(super) fn no_store(&self) -> Problem {
        match &self.status.database {
            Some(database) => problem(
                codes::NO_STORE,
                format!("the stores of this cluster are in {database}"),
                "back them up there: docs/stores.md says how",
            ),
            None => problem(
                codes::NO_STORE,
                "this node does not have the cluster's store",
                "connect to the node with the role `store`: `ostraca nodes` shows it",
            ),
        }
    }
}

fn send_chunk(parts: &Parts, section: Section, chunk: Vec<u8>) -> Result<(), StoreError> {
    let (section, round) = match section {
        Section::Shards => (BackupSection::Shards, 0),
        Section::Round(round) => (BackupSection::Round, round),
        Section::Component => (BackupSection::Component, 0),
        Section::Rows => (BackupSection::Rows, 0),
    };
    let mut rest = Bytes::from(chunk);
    loop {
        let data = rest.split_to(rest.len().min(PART_BYTES));
        let ends_chunk = rest.is_empty();
        let section = section.into();
        let part = BackupPart { section, round, data, ends_chunk, end: None };
        let sent = parts.blocking_send(Ok(AdminUpdate::Backup(part)));
        sent.map_err(|_| StoreError::Unavailable("the client has gone".into()))?;
        if ends_chunk {
            return Ok(());
        }
    }
}

fn end(manifest: Manifest) -> BackupPart {
    let Manifest { cluster, cluster_name, store_id, sequence, taken_unix_s, .. } = manifest;
    let end = BackupEnd {
        cluster_id: cluster.0.to_be_bytes().to_vec().into(),
        cluster_name,
        store_id: store_id.to_be_bytes().to_vec().into(),
        sequence,
        taken_unix_s,
    };
    BackupPart { end: Some(end), ..BackupPart::default() }
}
