//! Deployments: checked, compiled, stored, and only then shown to the workers (R24).
//!
//! A deploy is idempotent by digest: the same manifest and component again change nothing. Revisions only rise;
//! going back is a new, higher revision with the old component.

use std::sync::Arc;

use bytes::Bytes;
use ostraca_sharding::ids::{ShardId, ShardKey};
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use ostraca_wire::proto::{Deployed, Problem};
use ostraca_wire::server::Upload;
use tokio::sync::{Mutex, mpsc};

use crate::error::NodeError;
use crate::manifest::Manifest;
use crate::ownership::{Cluster, NAMESPACE, POOL};
use crate::rows::{self, TypeRow};
use crate::service::problem;
use crate::types::{Type, Types};
use crate::worker::Input;

/// What deploying needs. One deploy at a time.
pub(crate) struct Deployer {
    pub(crate) cluster: Cluster,
    pub(crate) store: Arc<dyn EntityStore>,
    pub(crate) wasm: ostraca_wasm::Host,
    pub(crate) types: Types,
    pub(crate) workers: Vec<mpsc::UnboundedSender<Input>>,
    pub(crate) shards: u32,
    pub(crate) turn: Mutex<()>,
}

impl Deployer {
    /// Reads what is deployed, and compiles it: called at start, before anything is served.
    pub(crate) async fn restore(&self) -> Result<(), NodeError> {
        let (stored, _) = self.cluster.list(&format!("types/{NAMESPACE}/")).await?;
        for row in stored {
            let standing: TypeRow = rows::decode(&row)?;
            let manifest = Manifest::parse(&standing.manifest, &row.key)
                .map_err(|error| NodeError::Row(format!("`{}`: {error}", row.key)))?;
            let component = self.store.blob(standing.component).await?.ok_or_else(|| {
                NodeError::Row(format!("the component of `{}` is not in the store", row.key))
            })?;
            let program = self
                .wasm
                .prepare(component.to_vec(), manifest.wasm_limits())
                .await
                .map_err(|error| NodeError::Row(format!("`{}`: {error}", row.key)))?;
            let entry = Type::new(
                standing.revision,
                manifest,
                program,
                standing.component,
                standing.component_size,
            );
            self.show(entry);
        }
        Ok(())
    }

    /// Deploys what was uploaded.
    pub(crate) async fn deploy(&self, by: &str, upload: Upload) -> Result<Deployed, Problem> {
        let manifest = Manifest::parse(&upload.manifest, "entity.toml").map_err(|error| {
            problem(error.code(), error.to_string(), "`ostraca deploy` marks the line")
        })?;
        if manifest.pool != POOL {
            return Err(problem(
                "unknown-pool",
                format!("there is no pool `{}`; this cluster has `{POOL}`", manifest.pool),
                "leave `pool` out of the manifest",
            ));
        }
        let _one_at_a_time = self.turn.lock().await;
        let key = format!("types/{NAMESPACE}/{}", manifest.kind);
        let standing = rows::read::<TypeRow>(&*self.cluster, &key).await.map_err(store_problem)?;
        let revision = standing.as_ref().map_or(0, |(row, _)| row.revision);
        if let Some((row, _)) = &standing
            && row.component == upload.digest
            && row.manifest == upload.manifest
        {
            return Ok(deployed(&manifest.kind, revision, upload.digest, true));
        }
        if let Some(expected) = upload.expected_revision
            && expected != revision
        {
            let text = format!("revision {revision} of `{}` stands, not {expected}", manifest.kind);
            return Err(problem(
                "revision-changed",
                text,
                "look at `ostraca deployments`, then deploy again",
            ));
        }
        self.check_binding(&manifest).await?;
        let program =
            self.wasm.prepare(upload.component.to_vec(), manifest.wasm_limits()).await.map_err(
                |error| {
                    let mut problem = problem(error.code(), error.to_string(), "");
                    problem.retryable = error.retryable();
                    problem
                },
            )?;
        let component_size = upload.component.len() as u64;
        let component: Bytes = upload.component;
        self.store.put_blob(component).await.map_err(|error| store_problem(error.into()))?;
        let row = TypeRow {
            revision: revision + 1,
            manifest: upload.manifest,
            component: upload.digest,
            component_size,
        };
        rows::write(&*self.cluster, &key, standing.map(|(_, at)| at), &row)
            .await
            .map_err(store_problem)?;
        tracing::info!(r#type = manifest.kind, revision = row.revision, by, "deployed");
        let answer = deployed(&manifest.kind, row.revision, upload.digest, false);
        self.show(Type::new(row.revision, manifest, program, upload.digest, component_size));
        Ok(answer)
    }

    /// Workers hear of a type before the door lets messages for it through.
    fn show(&self, entry: Type) {
        let entry = Arc::new(entry);
        for worker in &self.workers {
            // A worker that has ended serves nothing.
            let _ = worker.send(Input::Type(entry.clone()));
        }
        self.types.put(entry);
    }

    /// R23: what says where a type's entities live is fixed while there are any.
    async fn check_binding(&self, manifest: &Manifest) -> Result<(), Problem> {
        let types = self.types.now();
        let Some(standing) = types.get(manifest.kind.as_str()) else { return Ok(()) };
        let (old, new) = (&standing.manifest, manifest);
        if old.pool == new.pool && old.shard_key == new.shard_key {
            return Ok(());
        }
        if !self.has_entities(&manifest.kind).await.map_err(|error| store_problem(error.into()))? {
            return Ok(());
        }
        Err(problem(
            "binding-fixed",
            format!(
                "`{}` has entities, so its `pool` and `shard-key` cannot change",
                manifest.kind
            ),
            "keep them, or deploy under another type name",
        ))
    }

    async fn has_entities(&self, kind: &str) -> Result<bool, ostraca_store::StoreError> {
        for shard in 1..=self.shards {
            let shard =
                ShardKey { namespace: NAMESPACE.into(), pool: POOL.into(), shard: ShardId(shard) };
            let mut after = None;
            loop {
                let scan = Scan {
                    shard: shard.clone(),
                    kind: ScanKind::Heads,
                    after,
                    limit: 1_000,
                    limit_bytes: 1 << 20,
                };
                let page = self.store.scan(scan).await?;
                let found = page.records.iter().any(
                    |record| matches!(record, ScannedRecord::Head(entity, _) if *entity.kind == *kind),
                );
                if found {
                    return Ok(true);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(false)
    }
}

fn deployed(kind: &str, revision: u64, digest: [u8; 32], unchanged: bool) -> Deployed {
    Deployed { r#type: kind.into(), revision, digest: digest.to_vec().into(), unchanged }
}

fn store_problem(error: NodeError) -> Problem {
    let help = "try again; `ostraca status` says how the store does";
    let mut problem = problem(error.code(), error.to_string(), help);
    problem.retryable = error.is_retryable();
    problem
}
