//! Completions: results of the store and the sandbox, passed to the machines.

use std::sync::Arc;

use ostraca_catalog::clock::wall_millis;
use ostraca_codes::{Code, codes};
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, LoadedEntity};
use ostraca_core::shard::{ActivationOutcome, Event, TurnOutput, TurnResult};
use ostraca_stats::Stats;
use ostraca_store::StoreError;
use ostraca_wasm::Instance;
use ostraca_wasm::text::printable;
use ostraca_wire::server::BudgetExceeded;

use super::Worker;
use super::machines::{InstanceState, MachineEntry, MachineId};
use super::panics::Panicked;
use crate::guest_types::{self, TurnOrigin};

/// The result of one of the worker's futures.
pub(super) enum Completion {
    Claims(Vec<(MachineId, Arc<Claim>)>, Vec<ClaimOutcome>),
    Commits(Vec<(MachineId, Entity, TurnId)>, Vec<CommitOutcome>),
    Loads(Vec<(MachineId, Entity, u64)>, Vec<Result<LoadedEntity, StoreError>>),
    /// The result of a scan of the shard's records.
    Scanned(MachineId, Box<Event>),
    Heads(MachineId, Box<Event>),
    Started(MachineId, Entity, u64, StartOutcome),
    /// The instance and the turn's result; `None` if the instance did not exist.
    Turn(MachineId, Entity, u64, TurnId, Option<TurnCompletion>),
    /// The reply to a query that was about to run is no longer awaited.
    Abandoned(MachineId, Entity, u64, TurnId),
}

/// The result of a turn.
pub(super) enum Ran {
    Turn(Box<ostraca_wasm::GuestTurnOutput>, TurnOrigin),
    /// The turn did not start: the sender's budget has no space for a reply.
    Refused(BudgetExceeded),
}

/// A turn's result, with its instance.
pub(super) type TurnCompletion = Result<(Box<Instance>, Ran), Panicked>;

/// The commit results that are passed to a machine.
type Outcomes = Vec<(Entity, TurnId, CommitOutcome)>;

/// The result of an activation.
pub(super) enum StartOutcome {
    Started(Box<Instance>, Box<ostraca_wasm::GuestTurnOutput>, TurnOrigin),
    Failed(ostraca_wasm::Error),
    UnknownType,
    Panicked(Panicked),
}

/// The code of a turn that was ended by a panic in the host's own code, and the milliseconds after which it may be
/// retried.
const PANICKED: (Code, u32) = (codes::HOST_PANICKED, 1_000);

impl Worker {
    pub(super) fn handle_completion(&mut self, done: Completion) {
        self.start_asks();
        self.update_calls();
        match done {
            Completion::Claims(requested, outcomes) => {
                for ((id, claim), outcome) in requested.into_iter().zip(outcomes) {
                    let Some(slot) = self.machines.get_mut(id) else { continue };
                    slot.pending_store_calls = slot.pending_store_calls.saturating_sub(1);
                    if *slot.machine.claim() == *claim {
                        self.handle_event(id, Event::ClaimResult { number: claim.number, outcome });
                    }
                    self.remove_if_finished(id);
                }
            }
            Completion::Commits(requested, outcomes) => self.committed(requested, outcomes),
            Completion::Loads(requested, results) => {
                for ((id, entity, generation), result) in requested.into_iter().zip(results) {
                    let Some(slot) = self.machines.get_mut(id) else { continue };
                    slot.pending_store_calls = slot.pending_store_calls.saturating_sub(1);
                    let result = result.map_err(|error| error.to_string());
                    self.handle_event(id, Event::Loaded { entity, generation, result });
                }
            }
            Completion::Scanned(id, event) => {
                let Some(slot) = self.machines.get_mut(id) else { return };
                slot.pending_store_calls = slot.pending_store_calls.saturating_sub(1);
                self.handle_event(id, *event);
            }
            Completion::Heads(id, event) => self.heads_read(id, *event),
            Completion::Started(id, entity, generation, started) => {
                self.started(id, entity, generation, started);
            }
            Completion::Turn(id, entity, generation, turn, turned) => {
                self.turned(id, entity, generation, turn, turned);
            }
            Completion::Abandoned(id, entity, generation, turn) => {
                self.handle_event(id, Event::QueryAbandoned { entity, generation, turn });
            }
        }
    }

    /// Sends one event to each machine: the results of its commits, in the order in which they were requested.
    fn committed(
        &mut self,
        requested: Vec<(MachineId, Entity, TurnId)>,
        outcomes: Vec<CommitOutcome>,
    ) {
        let mut of_slot: Vec<(MachineId, Outcomes)> = Vec::new();
        for ((id, entity, turn), outcome) in requested.into_iter().zip(outcomes) {
            match of_slot.iter_mut().find(|(other, _)| *other == id) {
                Some((_, outcomes)) => outcomes.push((entity, turn, outcome)),
                None => of_slot.push((id, vec![(entity, turn, outcome)])),
            }
        }
        for (id, outcomes) in of_slot {
            let Some(slot) = self.machines.get_mut(id) else { continue };
            slot.pending_store_calls = slot.pending_store_calls.saturating_sub(outcomes.len());
            self.handle_event(id, Event::CommitResults(outcomes));
        }
    }

    fn started(&mut self, id: MachineId, entity: Entity, generation: u64, started: StartOutcome) {
        let Some(state) = self.machines.get_mut(id) else { return };
        state.running = state.running.saturating_sub(1);
        let held = state.instance_mut(&entity, generation);
        let result = match started {
            StartOutcome::Started(instance, turn, origin) => {
                if let Some(live) = held {
                    *live = InstanceState::Idle(instance);
                }
                ActivationOutcome::Started(self.turn(id, (&entity, generation), *turn, &origin))
            }
            StartOutcome::Failed(error) => {
                if !error.is_retryable() {
                    self.failed(id, &entity, error.code(), &error.to_string());
                }
                ActivationOutcome::Failed {
                    code: error.code().into(),
                    message: error.to_string(),
                    retry_after: error.is_retryable().then_some(50),
                }
            }
            StartOutcome::Panicked(panicked) => ActivationOutcome::Failed {
                code: PANICKED.0.into(),
                message: panicked.to_string(),
                retry_after: Some(PANICKED.1),
            },
            StartOutcome::UnknownType => ActivationOutcome::Failed {
                code: codes::UNKNOWN_TYPE.into(),
                message: format!("no type `{}` is deployed", entity.entity_type),
                retry_after: None,
            },
        };
        self.handle_event(id, Event::ActivationResult { entity, generation, result });
    }

    fn turned(
        &mut self,
        id: MachineId,
        entity: Entity,
        generation: u64,
        turn: TurnId,
        turned: Option<TurnCompletion>,
    ) {
        let Some(state) = self.machines.get_mut(id) else { return };
        let shard = state.shard();
        let result = match turned {
            Some(Ok((instance, result))) => {
                state.running = state.running.saturating_sub(1);
                if let Some(live) = state.instance_mut(&entity, generation) {
                    *live = InstanceState::Idle(instance);
                }
                match result {
                    #[cfg(feature = "stepped")]
                    Ran::Turn(..) if self.traps.remove(&entity) => {
                        TurnOutput::without_effects(TurnResult::Failed {
                            code: codes::TRAP.into(),
                            message: "the test made this turn trap".into(),
                            retry_after: None,
                        })
                    }
                    Ran::Turn(result, origin) => {
                        if !matches!(result.result, ostraca_wasm::TurnResult::Failed(_)) {
                            self.deps.stats.failing_entities.record_success(shard, &entity);
                        }
                        let output = self.turn(id, (&entity, generation), *result, &origin);
                        if origin.tracestate.is_some() {
                            self.turn_trace = Some((turn, origin));
                        }
                        output
                    }
                    Ran::Refused(full) => TurnOutput::without_effects(TurnResult::Refused {
                        code: BudgetExceeded::CODE.into(),
                        message: format!("the turn did not start: {full}"),
                        retry_after: BudgetExceeded::RETRY_AFTER,
                    }),
                }
            }
            Some(Err(panicked)) => {
                state.running = state.running.saturating_sub(1);
                failed_turn(PANICKED.0, panicked.to_string(), PANICKED.1)
            }
            None => {
                let text = format!("the instance of {entity} has been dropped");
                failed_turn(codes::INSTANCE_DROPPED, text, 10)
            }
        };
        self.handle_event(id, Event::TurnDone { entity, generation, turn, result });
        self.turn_trace = None;
    }

    /// Records that an entity failed, unless its shard has left this worker in the meantime.
    fn failed(&self, id: MachineId, entity: &Entity, code: Code, message: &str) {
        let Some(shard) = self.machines.get(id).map(MachineEntry::shard) else { return };
        if self.by_shard.get(&shard) == Some(&id) {
            self.deps.stats.failing_entities.record_failure(
                shard,
                entity,
                code,
                message,
                wall_millis(),
            );
        }
    }

    fn turn(
        &mut self,
        id: MachineId,
        (entity, generation): (&Entity, u64),
        turn: ostraca_wasm::GuestTurnOutput,
        origin: &TurnOrigin,
    ) -> TurnOutput {
        if let ostraca_wasm::TurnResult::Failed(failure) = &turn.result {
            Stats::count(&self.deps.stats.failed_turns);
            // The sandbox has logged the failure, with its backtrace.
            let name = printable(&entity.to_string()).into_owned();
            tracing::debug!(
                entity = name,
                code = failure.code.as_str(),
                "a turn failed: {}",
                failure.message
            );
            if !failure.is_retryable() {
                self.failed(id, entity, failure.code, &failure.message);
            }
        }
        if let Some(bytes) = turn.new_size
            && let Some(state) = self.machines.get(id)
        {
            let shard = state.machine.ownership().shard.clone();
            self.instance_slots.report_size(&(shard, entity.clone()), generation, bytes);
        }
        guest_types::turn_output(turn, origin)
    }
}

fn failed_turn(code: Code, message: String, retry_after: u32) -> TurnOutput {
    let retry_after = Some(retry_after);
    TurnOutput::without_effects(TurnResult::Failed { code: code.into(), message, retry_after })
}
