//! Which revision of its type an entity runs, and the migration of its state between schemas (R24).
//!
//! A revision is a deployment's number, which only rises. A schema is what the guest calls the layout of its state. A
//! new revision with another schema migrates an entity before its next start: a temporary instance runs the guest's
//! `migrate` as a turn. When the turn is durable, the entity is loaded again, and starts like any other. If the guest
//! traps or refuses, nothing is stored, and the entity runs the last earlier revision of its own schema until the next
//! deployment, or until an operator asks for another attempt.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Action, Entity, Head, Machine, Mutation, Outcome, codes};
use crate::ids::TurnId;
use crate::message::Message;
use crate::records::GuestReply;
use crate::shard::entity::Stage;
use crate::shard::{
    ActivationOutcome, EarlierRevision, OperatorCommand, SchemaSupport, StopReason, TurnOutput,
    TurnResult, TypeSettings,
};

/// Maximum number of entities whose failed migrations are remembered. An entity beyond it is migrated again at its next
/// start.
const FAILURES: usize = 1_024;

/// What an entity's next instance does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It runs this revision, whose schema is the second number.
    Run(u64, u32),
    /// It migrates the state.
    Migrate { revision: u64, from_schema: u32, to_schema: u32 },
    /// No revision that this node knows can run on the state.
    Refuse(Outcome),
}

/// Whether an entity has no state yet, so that it takes the schema of the first revision that it runs. Its head may
/// exist: an answer to a tell, for example, is committed without the guest.
fn is_new(head: &Head) -> bool {
    head.revision == 0 || head.deleted
}

/// The entities that could not be migrated, each with the revision that failed and the reason.
#[derive(Clone, Debug, Default)]
pub(super) struct FailedMigrations(BTreeMap<Entity, (u64, Arc<str>)>);

impl FailedMigrations {
    fn add(&mut self, entity: &Entity, revision: u64, why: Arc<str>) {
        // Which one goes makes no difference.
        if self.0.len() >= FAILURES && !self.0.contains_key(entity) {
            self.0.pop_first();
        }
        self.0.insert(entity.clone(), (revision, why));
    }

    /// Forgets an entity's failure. Returns whether there was one.
    pub(super) fn remove(&mut self, entity: &Entity) -> bool {
        self.0.remove(entity).is_some()
    }

    /// The reason, if the migration to this revision failed.
    fn of(&self, entity: &Entity, revision: u64) -> Option<&Arc<str>> {
        let failed = self.0.get(entity).filter(|(failed, _)| *failed == revision);
        failed.map(|(_, why)| why)
    }

    /// Forgets the failures of a type's other revisions.
    fn keep_only(&mut self, entity_type: &str, revision: u64) {
        self.0.retain(|entity, (failed, _)| {
            *entity.entity_type != *entity_type || *failed == revision
        });
    }
}

impl Machine {
    /// The revision that the entity's next instance runs, according to its head.
    pub(super) fn choose_revision(&self, entity: &Entity) -> Choice {
        let Some(state) = self.residents.get(entity) else { return Choice::Run(0, 0) };
        let head = &state.head;
        let settings = self.types.of(entity);
        let (newest, last) = (settings.map_or(0, |it| it.revision), head.revision);
        if last > newest && !self.context.has_mutation(Mutation::RunOlderRevision) {
            let text = format!(
                "{entity} was last written by revision {last}, but this node runs {newest}: deploy a higher revision"
            );
            return Choice::Refuse(Outcome::not_run_retryable(
                codes::REVISION_TOO_LOW,
                text,
                5_000,
            ));
        }
        let Some(settings) = settings else { return Choice::Run(0, 0) };
        let schema = match head.schema() {
            Ok(schema) => schema,
            Err(error) => {
                let text = format!("the schema of {entity} cannot be read: {error}");
                let outcome = Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, text, 5_000);
                return Choice::Refuse(outcome);
            }
        };
        let (revision, support) = self.reached_revision(entity, settings, last);
        if is_new(head) || schema == support.version {
            return Choice::Run(revision, support.version);
        }
        if self.context.has_mutation(Mutation::SkipMigration) {
            return Choice::Run(revision, schema);
        }
        let failure = self.failed_migrations.of(entity, revision);
        if failure.is_none() && support.migrates_from(schema) {
            return Choice::Migrate { revision, from_schema: schema, to_schema: support.version };
        }
        if failure.is_none() {
            let text = format!(
                "the state of {entity} has schema {schema}; revision {revision} has schema {} and migrates from no schema above {}: deploy a component that does",
                support.version, support.newest
            );
            return Choice::Refuse(Outcome::not_run_retryable(codes::SCHEMA_TOO_HIGH, text, 5_000));
        }
        let able = |it: &&EarlierRevision| it.schema.version == schema && it.revision >= last;
        match settings.earlier.iter().rev().find(able) {
            Some(earlier) => Choice::Run(earlier.revision, schema),
            None => {
                let why = failure.map_or("", |why| why);
                let text = format!(
                    "{entity} cannot be migrated from schema {schema} to revision {revision}, and no earlier revision with that schema can be run: {why}"
                );
                Choice::Refuse(Outcome::not_run_retryable(codes::MIGRATION_FAILED, text, 5_000))
            }
        }
    }

    /// The newest revision that the rollout has reached for the entity, and its schema. An entity that ran the newest
    /// one remains on it.
    fn reached_revision(
        &self,
        entity: &Entity,
        settings: &TypeSettings,
        last: u64,
    ) -> (u64, SchemaSupport) {
        let shard = self.claim.ownership().shard.shard;
        let waits = settings
            .rollout
            .filter(|rollout| rollout.from >= last && !rollout.includes(shard, &entity.id));
        let earlier = waits.and_then(|it| settings.earlier.iter().find(|e| e.revision == it.from));
        earlier.map_or((settings.revision, settings.schema), |it| (it.revision, it.schema))
    }

    /// Whether the entity's instance runs another revision than a new one would.
    pub(super) fn runs_another_revision(&self, entity: &Entity) -> bool {
        let Some(state) = self.residents.get(entity) else { return false };
        let runs = match state.stage {
            Stage::Migrating(_, revision, _) => revision,
            _ => state.revision,
        };
        match self.choose_revision(entity) {
            Choice::Run(revision, _) | Choice::Migrate { revision, .. } => runs != revision,
            Choice::Refuse(_) => false,
        }
    }

    /// Refuses the messages of an entity that no known revision can run.
    pub(super) fn refuse_revision(&mut self, entity: &Entity, outcome: &Outcome) {
        // A higher revision reads the marks again.
        if let Some(state) = self.residents.get_mut(entity)
            && std::mem::take(&mut state.must_start)
        {
            self.recovery.pass_over(entity);
        }
        self.give_up(entity, outcome);
    }

    /// Handles the result of a migration's turn. Its instance is dropped: the entity starts from what is durable.
    pub(super) fn on_migrated(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        (revision, schema): (u64, u32),
        result: ActivationOutcome,
    ) {
        let from_schema = self.residents.get(entity).map_or(0, |it| it.head.schema().unwrap_or(0));
        let (code, message, retry_after) = match result {
            ActivationOutcome::Started(
                output @ TurnOutput { result: TurnResult::Replied(GuestReply::Result(_)), .. },
            ) => {
                let Some(state) = self.residents.get_mut(entity) else { return };
                (state.revision, state.schema) = (revision, schema);
                state.migration = Some((turn, revision, from_schema));
                self.commit_hook(entity, turn, output);
                self.drop_instance(entity);
                return self.advance(entity);
            }
            ActivationOutcome::Started(TurnOutput { result, .. }) => match result {
                TurnResult::Replied(GuestReply::Error { code, message }) => {
                    (code.into(), message, None)
                }
                // A migration has no recorded reply that could have been dropped.
                TurnResult::Replied(_) => (codes::MIGRATION_FAILED.into(), String::new(), None),
                TurnResult::Failed { code, message, retry_after } => (code, message, retry_after),
                TurnResult::Refused { code, message, retry_after } => {
                    (code, message, Some(retry_after))
                }
            },
            ActivationOutcome::Failed { code, message, retry_after } => {
                (code, message, retry_after)
            }
        };
        if retry_after.is_none() {
            let why = format!("{code}: {message}");
            return self.give_up_migration(entity, revision, from_schema, &why);
        }
        let (owner_hint, suggested_created_ms) = (None, None);
        let outcome =
            Outcome::NotRun { code, message, retry_after, owner_hint, suggested_created_ms };
        self.give_up(entity, &outcome);
    }

    /// Handles a migration that failed through the guest's fault, or whose turn no store accepts. The entity is loaded
    /// again, and runs an earlier revision.
    pub(super) fn give_up_migration(
        &mut self,
        entity: &Entity,
        revision: u64,
        from_schema: u32,
        why: &str,
    ) {
        let why: Arc<str> = why.into();
        self.failed_migrations.add(entity, revision, why.clone());
        let report = Action::MigrationFailed { entity: entity.clone(), revision, from_schema, why };
        self.context.push(report);
        self.drop_instance(entity);
        self.advance(entity);
    }

    /// Stops an instance of an earlier revision whose entity can be migrated again. Returns whether it has stopped or
    /// runs its stop hook.
    pub(super) fn stop_for_migration(&mut self, entity: &Entity) -> bool {
        if !self.runs_another_revision(entity) {
            return false;
        }
        match self.residents.get_mut(entity) {
            Some(state) if state.stage == Stage::Idle => {
                self.begin_stop(entity, StopReason::Redeployed);
                true
            }
            Some(state) if state.stage.has_instance() => {
                state.pending_stop = Some(StopReason::Redeployed);
                false
            }
            _ => false,
        }
    }

    /// Runs a waiting request to restart an entity that no known revision can run because its migration failed: it
    /// cannot wait until the entity can run.
    pub(super) fn restart_before_migration(&mut self, entity: &Entity) {
        let is_restart = |it: &&Arc<Message>| {
            OperatorCommand::of_method(&it.method) == Some(OperatorCommand::RestartEntity)
        };
        let Some(state) = self.residents.get(entity) else { return };
        let messages = state.entries.values().map(|entry| &entry.message);
        let waiting: Vec<_> = messages.filter(is_restart).cloned().collect();
        for message in waiting {
            self.restart_entity(entity, &message);
        }
    }

    /// Forgets the failures of a type's earlier revisions.
    pub(super) fn forget_failed_migrations(&mut self, entity_type: &str) {
        if let Some(revision) = self.types.revision(entity_type) {
            self.failed_migrations.keep_only(entity_type, revision);
        }
    }

    /// The revision that an entity's instance runs, if it has one.
    #[must_use]
    pub fn running_revision(&self, entity: &Entity) -> Option<u64> {
        let state = self.residents.get(entity)?;
        let runs = state.stage.has_instance() && !matches!(state.stage, Stage::Migrating(..));
        runs.then_some(state.revision)
    }

    /// The revision to which an entity could not be migrated, and the reason.
    #[must_use]
    pub fn failed_migration(&self, entity: &Entity) -> Option<(u64, Arc<str>)> {
        let revision = self.types.of(entity)?.revision;
        let why = self.failed_migrations.of(entity, revision)?;
        Some((revision, why.clone()))
    }
}
