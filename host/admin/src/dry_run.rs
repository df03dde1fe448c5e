//! `ostraca deploy --dry-run`: what a deployment would do to entities, tried on copies of them (R24).
//!
//! A copy is what the store has of an entity. It is migrated if its schema differs, started, and asked a query, each on
//! an instance of the new component. Nothing is committed, no message leaves, and asks and HTTP calls are refused.

mod copy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca_catalog::pool::path;
use ostraca_catalog::rows;
use ostraca_catalog::types::schema_of;
use ostraca_codes::codes;
use ostraca_config::Manifest;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::names;
use ostraca_core::pools::Pools;
use ostraca_core::records::LoadedEntity;
use ostraca_core::shard::{SchemaSupport, TurnRecords};
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use ostraca_wasm::{
    GuestTurnOutput, Instance, InstanceSpec, MessageContext, MessageKind, MethodSchema, Program,
    StartReason, StateError, StateSource, TurnResult,
};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{DryRun, DryRunEntity, DryRunResult, Problem, StateChange};
use ostraca_wire::server::Upload;
use ostraca_workers::{StoredState, guest_types};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use self::copy::Copy;
use super::catalog_problem::to_problem;
use super::deploy::{Deployer, check_pool, check_schema, damaged, refused};
use super::pools::unknown_pool;

/// Number of entities that are tried if the request names none.
const SAMPLE: u32 = 20;
/// How long a dry run tries entities. The rest is reported as not tried.
const TIME: Duration = Duration::from_secs(60);
/// Maximum number of changes to the state that are shown for each entity, and maximum number of bytes of each key and
/// value.
const SHOWN: (usize, usize) = (8, 200);
/// What those see of a component's failure who may not read state.
const HIDDEN: &str = "the component failed; `read-state` on the type is needed to see its text";
/// Maximum number of heads that one scan reads.
const PAGE: (usize, usize) = (100, 1 << 20);
/// How often a copy is read again because its entity had a turn meanwhile.
const ATTEMPTS: usize = 3;

/// A dry run's request, and what it needs to know about the cluster.
pub(crate) struct DryRunContext {
    pub(crate) wanted: DryRun,
    /// What the principal that asks for it may do.
    pub(crate) permissions: Permissions,
    /// The principal that asks for it.
    pub(crate) principal: String,
    /// The cluster's pools.
    pub(crate) pools: Arc<Pools>,
    /// The cluster's UTC in milliseconds.
    pub(crate) utc: u64,
}

/// The copies of one dry run.
struct Trial<'a> {
    store: &'a Arc<dyn EntityStore>,
    program: Arc<Program>,
    revision: u64,
    schema: SchemaSupport,
    query: Option<String>,
    /// Whether the result may contain values of the state.
    shows_state: bool,
    context: &'a DryRunContext,
}

/// What happened to one copy.
#[derive(Default)]
struct Tried {
    version: u64,
    schema: u32,
    failed_in: &'static str,
    failure: String,
    /// Whether the failure's text is the component's, which has read the state.
    guest_failed: bool,
    writes: Vec<(Bytes, Option<Bytes>)>,
    before: BTreeMap<Bytes, Bytes>,
    result: Bytes,
}

impl Tried {
    fn guest_fails(&mut self, at: &'static str, why: String) {
        (self.failed_in, self.failure, self.guest_failed) = (at, why, true);
    }
}

impl Deployer {
    /// Checks an upload like a deployment, and tries it on copies of entities.
    pub(crate) async fn dry_run(
        &self,
        upload: Upload,
        context: DryRunContext,
    ) -> Result<DryRunResult, Problem> {
        let manifest = self.checked_manifest(&upload.manifest)?;
        self.check_namespace(names::namespace(&manifest.entity_type)).await?;
        check_pool(&context.pools, &manifest)?;
        self.check_binding(&manifest).await?;
        let program = self.compile(&upload, &manifest).await?;
        let schemas = self.wasm.schemas(&program).await.map_err(|error| refused(&error))?;
        drop(upload.permit);
        let kind = manifest.entity_type.as_str();
        let query = query(&program, &schemas, &context.wanted.query)?;
        let shows_state = context.permissions.allow_on(Permission::ReadState, kind);
        let current = self.current_deployment(&rows::type_key(kind)).await?;
        let row = current.map(|it| it.row);
        let schema = schema_of(&program);
        let version = schema.version;
        let mut result = DryRunResult {
            r#type: kind.into(),
            schema: version,
            query: query.clone().unwrap_or_default(),
            ..DryRunResult::default()
        };
        let Some(row) = row else { return Ok(result) };
        let before = row.schema().map_err(damaged)?;
        check_schema(&row, before, kind, schema)?;
        (result.current_revision, result.current_schema) = (row.revision, before.version);
        let names = |all: Vec<&str>, other: Vec<&str>| {
            all.into_iter().filter(|name| !other.contains(name)).map(str::to_owned).collect()
        };
        let old = || row.methods.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        let new = || program.methods().iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        result.added_methods = names(new(), old());
        result.removed_methods = names(old(), new());
        // Instances outside of the workers: one at a time.
        let _one_at_a_time = self.dry_runs.lock().await;
        let entities = self.entities_to_try(&manifest, &context).await?;
        let trial = Trial {
            store: &self.entity_store,
            program: program.clone(),
            revision: row.revision + 1,
            schema,
            query,
            shows_state,
            context: &context,
        };
        let end = Instant::now() + TIME;
        for (shard, entity) in entities {
            match timeout_at(end, trial.entity(shard, &entity)).await {
                Ok(tried) => result.entities.push(tried?),
                Err(_) => result.not_tried += 1,
            }
        }
        Ok(result)
    }

    /// The named entities, or a sample of the type's, spread over the shards.
    async fn entities_to_try(
        &self,
        manifest: &Manifest,
        context: &DryRunContext,
    ) -> Result<Vec<(ShardId, Entity)>, Problem> {
        let DryRun { ids, sample, .. } = &context.wanted;
        let pools = &context.pools;
        let Some(pool) = pools.home(&manifest.pool) else {
            return Err(unknown_pool(pools, &manifest.pool));
        };
        let kind = manifest.entity_type.as_str();
        if !ids.is_empty() {
            let place = |id: &String| {
                let shard = pool.shard_of(manifest.shard_key.shard_key(id));
                (shard, Entity::new(kind, id.as_str()))
            };
            return Ok(ids.iter().map(place).collect());
        }
        let wanted = if *sample == 0 { SAMPLE } else { *sample } as usize;
        let each = wanted.div_ceil(pool.shards.max(1) as usize);
        let mut found = Vec::new();
        for shard in (pool.first.0..=pool.last().0).map(ShardId) {
            let mut in_shard = 0;
            let mut after = None;
            while in_shard < each && found.len() < wanted {
                let (max_records, max_bytes) = PAGE;
                let kind_of = ScanKind::Heads;
                let scan = Scan {
                    shard: path(pools, shard),
                    kind: kind_of,
                    after,
                    max_records,
                    max_bytes,
                };
                let page = self.entity_store.scan(scan).await.map_err(|e| to_problem(e.into()))?;
                for record in page.records {
                    let ScannedRecord::Head(entity, head) = record else { continue };
                    let fits = *entity.entity_type == *kind && !head.deleted;
                    if fits && in_shard < each && found.len() < wanted {
                        in_shard += 1;
                        found.push((shard, entity));
                    }
                }
                after = page.next_cursor;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// The query that each copy is asked: the named one, or the first one that takes no arguments.
fn query(
    program: &Program,
    schemas: &[MethodSchema],
    wanted: &str,
) -> Result<Option<String>, Problem> {
    let mut queries = program.methods().iter().filter(|it| it.kind == MessageKind::Query);
    if wanted.is_empty() {
        let takes_nothing =
            |name: &str| schemas.iter().any(|it| it.method == name && accepts_null(&it.arguments));
        return Ok(queries.find(|it| takes_nothing(&it.name)).map(|it| it.name.clone()));
    }
    if queries.any(|it| it.name == wanted) {
        return Ok(Some(wanted.to_owned()));
    }
    let text = format!("the component has no query `{wanted}`");
    Err(problem(codes::UNKNOWN_METHOD, text, "name a query that takes no arguments"))
}

/// Whether a method with this schema needs no arguments.
fn accepts_null(schema: &str) -> bool {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    match &schema["type"] {
        Value::String(of) => of == "null",
        Value::Array(of) => of.iter().any(|it| it == "null"),
        _ => false,
    }
}

impl Trial<'_> {
    async fn entity(&self, shard: ShardId, entity: &Entity) -> Result<DryRunEntity, Problem> {
        let mut tried = self.copy(shard, entity).await?;
        for _ in 1..ATTEMPTS {
            // What was read in several steps may be of several turns.
            let version = self.load(shard, entity).await?.head.map_or(0, |head| head.version);
            if version == tried.version {
                break;
            }
            tried = self.copy(shard, entity).await?;
        }
        let shows = self.shows_state;
        let cut = |bytes: &Bytes| bytes.slice(..bytes.len().min(SHOWN.1));
        let change = |(key, after): &(Bytes, Option<Bytes>)| {
            let before = tried.before.get(key);
            StateChange {
                key: cut(key),
                before: before.filter(|_| shows).map(cut),
                after: after.as_ref().filter(|_| shows).map(cut),
                before_size: before.map(|it| it.len() as u64),
                after_size: after.as_ref().map(|it| it.len() as u64),
            }
        };
        Ok(DryRunEntity {
            id: entity.id.to_string(),
            version: tried.version,
            schema: tried.schema,
            failed_in: tried.failed_in.into(),
            failure: if shows || !tried.guest_failed { tried.failure } else { HIDDEN.into() },
            changes: tried.writes.iter().take(SHOWN.0).map(change).collect(),
            change_count: tried.writes.len() as u64,
            result: if shows { cut(&tried.result) } else { Bytes::new() },
        })
    }

    async fn load(&self, shard: ShardId, entity: &Entity) -> Result<LoadedEntity, Problem> {
        match self.store.load(vec![(path(&self.context.pools, shard), entity.clone())]).await.pop()
        {
            Some(loaded) => loaded.map_err(|error| to_problem(error.into())),
            None => Err(problem(codes::STORE_UNAVAILABLE, "the store did not respond", "")),
        }
    }

    /// Tries the component on one copy.
    async fn copy(&self, shard: ShardId, entity: &Entity) -> Result<Tried, Problem> {
        let loaded = self.load(shard, entity).await?;
        let mut tried = Tried::default();
        let Some(head) = loaded.head.clone().filter(|head| !head.deleted) else {
            (tried.failed_in, tried.failure) = ("load", format!("{entity} does not exist"));
            return Ok(tried);
        };
        (tried.version, tried.schema) = (head.version, head.schema().map_err(damaged)?);
        let mut records = TurnRecords::of_loaded(loaded).map_err(damaged)?;
        let stored =
            StoredState::new(self.store.clone(), path(&self.context.pools, shard), entity.clone());
        let mut copy = Copy::new(stored);
        if tried.schema != self.schema.version {
            if !self.schema.migrates_from(tried.schema) {
                let newest = self.schema.newest;
                tried.failed_in = "migrate";
                tried.failure = format!("the component migrates from no schema above {newest}");
                return Ok(tried);
            }
            let before = match copy.load().await {
                Ok(state) => state,
                Err(StateError(why)) => return Err(problem(codes::STORE_UNAVAILABLE, why, "")),
            };
            tried.before = before.into_iter().collect();
            let output = match self.instance(shard, entity, copy.clone(), &records).await {
                Ok(mut instance) => instance.migrate(tried.schema).await,
                Err(why) => {
                    tried.guest_fails("migrate", why);
                    return Ok(tried);
                }
            };
            if let Some(why) = failure(&output) {
                tried.guest_fails("migrate", why);
                return Ok(tried);
            }
            copy.migrate(&tried.before, &output, &mut records.journal, tried.version + 1);
            tried.writes = output.writes;
        }
        let mut instance = match self.instance(shard, entity, copy, &records).await {
            Ok(instance) => instance,
            Err(why) => {
                tried.guest_fails("start", why);
                return Ok(tried);
            }
        };
        let started = instance.start(StartReason::Message).await;
        if let Some(why) = failure(&started) {
            tried.guest_fails("start", why);
            return Ok(tried);
        }
        if let Some(query) = &self.query {
            let output =
                instance.message(self.question(tried.version, &records), query, Bytes::new()).await;
            match (failure(&output), output.result) {
                (Some(why), _) => tried.guest_fails("query", why),
                (None, TurnResult::Ok(result)) => tried.result = result,
                (None, _) => {}
            }
        }
        Ok(tried)
    }

    async fn instance(
        &self,
        shard: ShardId,
        entity: &Entity,
        copy: Copy,
        records: &TurnRecords,
    ) -> Result<Instance, String> {
        let spec = InstanceSpec {
            identity: guest_types::identity(
                path(&self.context.pools, shard),
                entity,
                self.revision,
            ),
            state: Box::new(copy),
            values: guest_types::hook_values(self.context.utc),
            records: guest_types::turn_records(records.clone()),
        };
        self.program.instantiate(spec).await.map_err(|error| error.to_string())
    }

    fn question(&self, version: u64, records: &TurnRecords) -> MessageContext {
        MessageContext {
            session: 0,
            sequence: 1,
            kind: MessageKind::Query,
            principal: self.context.principal.as_str().into(),
            content_type: "application/json".into(),
            traceparent: "".into(),
            tracestate: "".into(),
            origin: "".into(),
            remaining: None,
            version,
            values: guest_types::hook_values(self.context.utc),
            records: Some(Box::new(guest_types::turn_records(records.clone()))),
        }
    }
}

/// Why a turn failed, with the code.
fn failure(output: &GuestTurnOutput) -> Option<String> {
    match &output.result {
        TurnResult::Ok(_) => None,
        TurnResult::Application { code, message } => Some(format!("{code}: {message}")),
        TurnResult::Failed(failure) => Some(format!("{}: {}", failure.code, failure.message)),
    }
}
