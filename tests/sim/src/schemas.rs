//! Revisions and schemas in the simulated clusters: what each redeployment says about its state, how entities are
//! migrated, and the check that no revision runs on state of another schema (R24).

use ostraca_core::ids::Entity;
use ostraca_core::records::{Head, RecordKey};
use ostraca_core::shard::{
    ActivationOutcome, EarlierRevision, Rollout, SchemaSupport, TurnOutput, TypeSettings,
};

use crate::guest::{Instance, SCHEMA_KEY};
use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// How many earlier revisions a type keeps.
const EARLIER: u64 = 16;

/// The schema of a revision: it rises with every second one, and each fifth one goes back.
fn schema_of(revision: u64) -> SchemaSupport {
    let steps = u32::try_from(revision / 2).unwrap_or(u32::MAX);
    let version = if revision.is_multiple_of(5) { steps.saturating_sub(1) } else { steps };
    SchemaSupport { version, newest: steps + 2 }
}

/// The settings of a deployment whose component has schemas. Each third one is rolled out to a half of the entities.
pub(crate) fn with_schemas(settings: TypeSettings) -> TypeSettings {
    let revision = settings.revision;
    let has_stop_hook = settings.has_stop_hook;
    let earlier = (revision.saturating_sub(EARLIER).max(1)..revision)
        .map(|revision| EarlierRevision { revision, schema: schema_of(revision), has_stop_hook });
    let rollout = Rollout { from: revision - 1, shards: 0, per_mille: 500 };
    TypeSettings {
        schema: schema_of(revision),
        earlier: earlier.collect(),
        rollout: revision.is_multiple_of(3).then_some(rollout),
        ..settings
    }
}

/// Runs a migration, which sometimes fails through the guest's fault or the node's.
pub(crate) fn migrate(rng: &mut Rng, instance: &mut Instance, revision: u64) -> ActivationOutcome {
    let failed = |retry_after| ActivationOutcome::Failed {
        code: "trap".into(),
        message: String::new(),
        retry_after,
    };
    match rng.range(0, 100) {
        0..15 => failed(None),
        15..20 => failed(Some(20)),
        20..30 => ActivationOutcome::Started(Instance::refusal()),
        _ => ActivationOutcome::Started(instance.migrate(schema_of(revision).version)),
    }
}

/// Whether a migration's outcome is the guest's refusal or failure.
pub(crate) fn is_refusal(outcome: &ActivationOutcome) -> bool {
    match outcome {
        ActivationOutcome::Failed { retry_after, .. } => retry_after.is_none(),
        ActivationOutcome::Started(TurnOutput { writes, .. }) => writes.is_empty(),
    }
}

/// A version that a revision wrote on state of another schema.
#[derive(Clone, Debug)]
pub struct WrongSchema {
    entity: Entity,
    version: u64,
    revision: u64,
    schema: u32,
    migrated_to: Option<u64>,
}

impl WrongSchema {
    /// Checks a commit that was applied: the head's revision has the head's schema, and a migration's effect on the
    /// state was committed with the head's schema.
    pub(crate) fn find(image: &Image, entity: &Entity, head: &Head) -> Option<Self> {
        let schema = head.schema().unwrap_or(u32::MAX);
        let key = (entity.clone(), RecordKey::State(SCHEMA_KEY.as_bytes().into()));
        let stored = image.records.get(&key).and_then(|value| value.as_ref().try_into().ok());
        let migrated_to = stored.map(u64::from_le_bytes);
        let agree = migrated_to.is_none_or(|it| it == u64::from(schema));
        if schema_of(head.revision).version == schema && agree {
            return None;
        }
        let (version, revision) = (head.version, head.revision);
        Some(Self { entity: entity.clone(), version, revision, schema, migrated_to })
    }

    /// The violation.
    pub(crate) fn judge(&self) -> Violation {
        let Self { entity, version, revision, schema, migrated_to } = self;
        ViolationKind::WrongSchema.because(format!(
            "version {version} of {entity} was written by revision {revision}, whose schema is {}; its head has schema {schema}, and its state was migrated to {migrated_to:?}",
            schema_of(*revision).version
        ))
    }
}
