//! Actions: what each of them asks of the store, the sandbox or the network.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_sharding::ids::{Entity, ShardKey, TurnId};
use ostraca_sharding::message::{Kind, Message, Outcome, Token};
use ostraca_sharding::shard::{Action, StartReason, StopReason};
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use ostraca_wasm::{Identity, Instance, MessageContext, Spec, StateError, StateSource};

use super::done::{Done, Started};
use super::{Live, Report, Worker};
use crate::stats::Stats;

/// Records and bytes of state that are read at once.
const STATE_PAGE: (usize, usize) = (1_000, 1 << 20);

impl Worker {
    pub(super) fn act(&mut self, slot: usize, action: Action) {
        match action {
            Action::Claim(claim) => self.claims.push((slot, claim)),
            Action::Commit(commit) => self.commits.push((slot, *commit)),
            Action::Load { entity, generation } => self.loads.push((slot, entity, generation)),
            Action::WantSlot { entity, generation } => {
                self.cap.want((self.shard(slot), entity), generation);
            }
            Action::FreeSlot { entity, generation } => {
                self.cap.free(&(self.shard(slot), entity), generation);
            }
            Action::Busy { entity } => self.cap.refused(&(self.shard(slot), entity)),
            Action::Idle { entity } => self.cap.idle((self.shard(slot), entity)),
            Action::Activate { entity, generation, reason, .. } => {
                self.activate(slot, entity, generation, reason);
            }
            Action::Run { generation, turn, version, message } => {
                self.run(slot, generation, turn, version, message);
            }
            Action::Stop { entity, generation, turn, reason } => {
                self.stop(slot, entity, generation, turn, reason);
            }
            Action::Drop { entity, generation } => self.drop_instance(slot, &entity, generation),
            Action::Reply { token, outcome } => self.reply(slot, token, outcome),
            Action::Lost { standing, message } => {
                let owner = Box::new(self.slots[slot].machine.owner().clone());
                // Nobody to hear it: the node is going down.
                let _ = self.parts.reports.send(Report::Lost(owner, standing, message));
            }
            Action::Stopped => self.slots[slot].stopped = true,
        }
    }

    fn shard(&self, slot: usize) -> ShardKey {
        self.slots[slot].machine.owner().shard.clone()
    }

    /// Sends everything that this round asks of the store, as one batch of a kind.
    pub(super) fn ask_store(&mut self) {
        if !self.claims.is_empty() {
            let claims = std::mem::take(&mut self.claims);
            let asked = claims.iter().map(|(_, claim)| (**claim).clone()).collect();
            let answer = self.parts.store.claim(asked);
            self.tasks.push(answer.map(|outcomes| Done::Claims(claims, outcomes)).boxed_local());
        }
        if !self.commits.is_empty() {
            let mut names = Vec::with_capacity(self.commits.len());
            let mut asked = Vec::with_capacity(self.commits.len());
            for (slot, commit) in self.commits.drain(..) {
                names.push((slot, commit.entity.clone(), commit.head.turn));
                asked.push(commit);
            }
            self.parts.stats.commits.fetch_add(asked.len() as u64, Ordering::Relaxed);
            let answer = self.parts.store.commit(asked);
            self.tasks.push(answer.map(|outcomes| Done::Commits(names, outcomes)).boxed_local());
        }
        if !self.loads.is_empty() {
            let loads = std::mem::take(&mut self.loads);
            let asked =
                loads.iter().map(|(slot, entity, _)| (self.shard(*slot), entity.clone())).collect();
            let answer = self.parts.store.load(asked);
            self.tasks.push(answer.map(|results| Done::Loads(loads, results)).boxed_local());
        }
    }

    fn activate(&mut self, slot: usize, entity: Entity, generation: u64, reason: StartReason) {
        Stats::count(&self.parts.stats.activations);
        let shard = self.shard(slot);
        let state = &mut self.slots[slot];
        state.instances.insert(entity.clone(), (generation, Live::Starting));
        state.running += 1;
        let Some(entry) = self.types.get(&entity.kind).cloned() else {
            // The machine asks for a type only after it was told of it.
            let done = Done::Started(slot, entity, generation, Started::NoType);
            return self.tasks.push(std::future::ready(done).boxed_local());
        };
        let source = Source {
            store: self.parts.store.clone(),
            shard: shard.clone(),
            entity: entity.clone(),
        };
        let identity = Identity {
            namespace: shard.namespace,
            entity_type: entity.kind.clone(),
            id: entity.id.clone(),
            revision: entry.revision,
        };
        let reason = match reason {
            StartReason::FirstMessage => ostraca_wasm::StartReason::FirstMessage,
            StartReason::Message => ostraca_wasm::StartReason::Message,
        };
        self.tasks.push(
            async move {
                let spec = Spec { identity, state: Box::new(source) };
                let started = match entry.program.instantiate(spec).await {
                    Ok(mut instance) => {
                        let turn = instance.start(reason).await;
                        Started::Yes(Box::new(instance), turn)
                    }
                    Err(error) => Started::No(error),
                };
                Done::Started(slot, entity, generation, started)
            }
            .boxed_local(),
        );
    }

    /// Takes the idle instance out, to run it.
    fn take(&mut self, slot: usize, entity: &Entity, generation: u64) -> Option<Box<Instance>> {
        let shard = self.shard(slot);
        self.cap.busy(&(shard, entity.clone()));
        let state = self.slot_mut(slot);
        let (held, live) = state.instances.get_mut(entity)?;
        // Pekko #1463: a message must not reach another's sandbox, nor another life of the same one.
        if *held != generation || !matches!(live, Live::Idle(_)) {
            return None;
        }
        match std::mem::replace(live, Live::Starting) {
            Live::Idle(instance) => {
                *live = Live::Busy(instance.interrupt_handle());
                state.running += 1;
                Some(instance)
            }
            other => {
                *live = other;
                None
            }
        }
    }

    fn run(
        &mut self,
        slot: usize,
        generation: u64,
        turn: TurnId,
        version: u64,
        message: Arc<Message>,
    ) {
        Stats::count(&self.parts.stats.turns);
        let entity = message.target.clone();
        let Some(mut instance) = self.take(slot, &entity, generation) else {
            let done = Done::Turn(slot, entity, generation, turn, None, None);
            return self.tasks.push(std::future::ready(done).boxed_local());
        };
        let now = self.parts.clock.now().mono;
        let context = MessageContext {
            session: u128::from_be_bytes(message.id.session.0),
            sequence: message.id.sequence,
            kind: match message.kind {
                Kind::Command => ostraca_wasm::Kind::Command,
                Kind::Query => ostraca_wasm::Kind::Query,
            },
            principal: message.context.principal.clone(),
            content_type: message.context.content_type.clone(),
            traceparent: message.context.traceparent.clone(),
            remaining: message.deadline.map(|at| Duration::from_millis(at.saturating_sub(now))),
            version,
        };
        self.tasks.push(
            async move {
                let result = instance.message(context, &message.method, message.body.clone()).await;
                Done::Turn(slot, entity, generation, turn, Some(instance), Some(result))
            }
            .boxed_local(),
        );
    }

    fn stop(
        &mut self,
        slot: usize,
        entity: Entity,
        generation: u64,
        turn: TurnId,
        reason: StopReason,
    ) {
        let Some(mut instance) = self.take(slot, &entity, generation) else {
            let done = Done::Turn(slot, entity, generation, turn, None, None);
            return self.tasks.push(std::future::ready(done).boxed_local());
        };
        let reason = match reason {
            StopReason::Idle => ostraca_wasm::StopReason::Idle,
            StopReason::Evicted => ostraca_wasm::StopReason::Evicted,
            StopReason::Passivated => ostraca_wasm::StopReason::Passivated,
            StopReason::HandedOff => ostraca_wasm::StopReason::HandedOff,
            StopReason::Redeployed => ostraca_wasm::StopReason::Redeployed,
        };
        self.tasks.push(
            async move {
                let result = instance.stop(reason).await;
                Done::Turn(slot, entity, generation, turn, Some(instance), Some(result))
            }
            .boxed_local(),
        );
    }

    fn drop_instance(&mut self, slot: usize, entity: &Entity, generation: u64) {
        let instances = &mut self.slot_mut(slot).instances;
        if instances.get(entity).is_some_and(|(held, _)| *held == generation)
            && let Some((_, Live::Busy(interrupt))) = instances.remove(entity)
        {
            interrupt.interrupt();
        }
    }

    fn reply(&mut self, slot: usize, token: Token, outcome: Outcome) {
        let Some((ticket, kind)) = self.tickets.remove(&token) else { return };
        match &outcome {
            Outcome::NotRun { .. } => Stats::count(&self.parts.stats.not_run),
            Outcome::Unknown { .. } => Stats::count(&self.parts.stats.unknown),
            Outcome::Final { .. } => {}
        }
        let epoch = self.slots[slot].machine.owner().epoch;
        ticket.answer(crate::service::reply(outcome, kind, epoch));
    }
}

/// Reads an entity's state when its instance first looks at it (E16).
struct Source {
    store: Arc<dyn EntityStore>,
    shard: ShardKey,
    entity: Entity,
}

impl StateSource for Source {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        let store = self.store.clone();
        let (shard, entity) = (self.shard.clone(), self.entity.clone());
        async move {
            let mut state = Vec::new();
            let mut after = None;
            loop {
                let scan = Scan {
                    shard: shard.clone(),
                    kind: ScanKind::State(entity.clone()),
                    after,
                    limit: STATE_PAGE.0,
                    limit_bytes: STATE_PAGE.1,
                };
                let page = store.scan(scan).await.map_err(|error| StateError(error.to_string()))?;
                state.extend(page.records.into_iter().filter_map(|record| match record {
                    ScannedRecord::State(key, value) => Some((key, value)),
                    ScannedRecord::Head(..) => None,
                }));
                after = page.next;
                if after.is_none() {
                    return Ok(state);
                }
            }
        }
        .boxed()
    }
}
