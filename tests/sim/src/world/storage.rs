//! The connection to the store: delays, duplicate deliveries, and connections that are given up.

use std::sync::Arc;

use ostraca_core::ids::{Entity, Incarnation};
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_core::shard::{ActivationOutcome, Event};

use super::event::SimEvent;
use super::{World, load_key};
use crate::guest::Instance;
use crate::store;
use crate::store::{Request, Response, StoreMutation};

/// The suffix of an entity's type after its keys moved.
const MOVED: &str = "~";

impl World {
    pub(super) fn ask(&mut self, node: usize, mut request: Request) {
        if self.options.rebind && self.revisions[0] > 1 {
            // As if the entity's id now mapped to another shard: its keys there do not exist yet.
            request = request
                .renamed(|entity| Entity::new(format!("{}{MOVED}", entity.entity_type), entity.id));
        }
        self.tags += 1;
        let tag = self.tags;
        let it = &mut self.nodes[node];
        it.asked.insert(tag, request.clone());
        let (incarnation, connection) = (it.incarnation, it.connection);
        let slow = self.rng.chance(3);
        let delay = self.rng.range(1, if slow { 300 } else { 6 });
        // Requests keep their order on one connection, but not across two.
        let last = self.last_request.entry((node, connection)).or_default();
        let when = (self.now + delay).max(*last);
        *last = when;
        let happening = SimEvent::AtStore { node, incarnation, connection, tag, request };
        self.at(when - self.now, happening);
    }

    pub(super) fn at_store(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        mut request: Request,
    ) {
        if let Request::Commit(commits) = &mut request
            && connection == u64::MAX
            && !self.options.store_mutations.contains(&StoreMutation::RefusalsPass)
        {
            commits.retain(|commit| !self.refused.contains(&commit.head.turn));
        }
        if !self.store_up {
            let answer = store::refusal(&request, "the store is down");
            return self.at(
                1,
                SimEvent::FromStore { node, incarnation, connection, tag, response: answer },
            );
        }
        if matches!(request, Request::Commit(_)) && self.rng.chance(self.options.refused_calls) {
            // A record is too large, or a queue is full: these commits are refused, and later ones proceed without
            // them.
            self.tally.count("fault: one commit refused for a limit");
            let answer = store::refusal(&request, "full");
            return self.at(
                1,
                SimEvent::FromStore { node, incarnation, connection, tag, response: answer },
            );
        }
        let late = self.nodes[node].connection != connection
            || self.nodes[node].incarnation != incarnation;
        if late && matches!(request, Request::Commit(_)) {
            self.tally.count("fault: commit arrives late, from a dropped connection");
        }
        self.asked.insert(tag, (node, incarnation, connection));
        if let Request::Commit(_) = request
            && self.rng.chance(self.options.repeated_calls)
        {
            // The request is delivered twice; nobody waits for the second answer.
            self.tags += 1;
            let tag = self.tags;
            let delay = self.rng.range(1, 400);
            let request = request.clone();
            self.at(
                delay,
                SimEvent::AtStore { node, incarnation, connection: u64::MAX, tag, request },
            );
        }
        let idle = !self.store.needs_sync();
        if matches!(request, Request::Commit(_)) && self.rng.chance(3) {
            // The first answer is lost, and the connection repeats the call before any other.
            self.tags += 1;
            let lost_response = self.store.request(self.tags, request.clone());
            self.deliver(lost_response);
        }
        let answers = self.store.request(tag, request);
        self.deliver(answers);
        if idle && self.store.needs_sync() {
            let delay = self.rng.range(1, 8);
            self.at(delay, SimEvent::Sync);
        }
    }

    pub(super) fn sync(&mut self) {
        if !self.store_up || !self.store.needs_sync() {
            return;
        }
        if std::mem::take(&mut self.sync_fails) {
            self.tally.count("fault: sync failed");
            let answers = self.store.fail_sync(&mut self.rng);
            self.deliver(answers);
            self.store_up = false;
            let delay = self.rng.range(5, 400);
            return self.at(delay, SimEvent::StoreUp);
        }
        let answers = self.store.sync();
        self.deliver(answers);
    }

    pub(super) fn deliver(&mut self, answers: Vec<(u64, Response)>) {
        for (tag, answer) in answers {
            if let Response::Commit(outcomes) = &answer {
                let refused = outcomes.iter().filter(|o| matches!(o.2, CommitOutcome::Refused(_)));
                self.refused.extend(refused.map(|(_, turn, _)| *turn));
            }
            let Some((node, incarnation, connection)) = self.asked.remove(&tag) else { continue };
            let delay = self.rng.range(1, 6);
            self.at(
                delay,
                SimEvent::FromStore { node, incarnation, connection, tag, response: answer },
            );
        }
    }

    pub(super) fn store_responded(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        answer: Response,
    ) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation || it.connection != connection {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(
                delay,
                SimEvent::FromStore { node, incarnation, connection, tag, response: answer },
            );
        }
        let Some(asked) = self.nodes[node].asked.remove(&tag) else { return };
        // As in a worker, the result of an earlier machine's claim is ignored.
        let own = |claim: &Arc<Claim>| {
            self.nodes[node].machine.as_ref().is_some_and(|machine| machine.claim() == &**claim)
        };
        if !matches!(&asked, Request::Claim(claim) if !own(claim)) {
            self.answered(node, answer);
        }
    }

    pub(super) fn answered(&mut self, node: usize, answer: Response) {
        let answer = answer.renamed(|entity| match entity.entity_type.strip_suffix(MOVED) {
            Some(kind) => Entity::new(kind, entity.id),
            None => entity,
        });
        let Some(machine) = &self.nodes[node].machine else { return };
        match answer {
            Response::Claim(outcome) => {
                let number = machine.claim().number;
                self.tally.claim(number, &outcome);
                if outcome == ClaimOutcome::Granted {
                    self.nodes[node].granted = Some(machine.ownership().epoch);
                }
                self.handle_event(node, Event::ClaimResult { number, outcome });
            }
            Response::Commit(outcomes) => {
                for (_, _, outcome) in &outcomes {
                    self.tally.count(match outcome {
                        CommitOutcome::Committed => "transition: commit done",
                        CommitOutcome::AlreadyCommitted => "transition: commit already",
                        CommitOutcome::Refused(CommitRefusal::ClaimMismatch { .. }) => {
                            "transition: commit refused for its claim"
                        }
                        CommitOutcome::Refused(CommitRefusal::VersionMismatch { .. }) => {
                            "transition: commit refused for its version"
                        }
                        CommitOutcome::Refused(CommitRefusal::LimitReached(_)) => {
                            "transition: commit refused for a limit"
                        }
                        CommitOutcome::Refused(CommitRefusal::TooLarge(_)) => {
                            "transition: commit refused as too large"
                        }
                        CommitOutcome::Unknown(_) => "transition: commit unknown",
                    });
                }
                self.handle_event(node, Event::CommitResults(outcomes));
            }
            Response::Load(entity, result) => {
                let generation = self.nodes[node].starting.remove(&load_key(&entity)).unwrap_or(0);
                self.handle_event(node, Event::Loaded { entity, generation, result });
            }
            Response::Wakes(number, page) => {
                self.handle_event(node, Event::WakesScanned { number, page });
            }
            // Nobody counts, or reads a channel.
            Response::Heads(..) | Response::Channel(..) => {}
            Response::Remembered(number, page) => {
                self.handle_event(node, Event::RememberedScanned { number, page });
            }
            Response::Keys(entity, generation, page) => {
                self.handle_event(node, Event::KeysScanned { entity, generation, page });
            }
            Response::State(entity, result) => {
                let Some(generation) = self.nodes[node].starting.remove(&entity) else { return };
                let result = match result {
                    Ok(state) => {
                        let mut instance = Instance::new(generation, state);
                        let turn = instance.hook("starts", &*entity.entity_type == "starter");
                        if !turn.writes.is_empty() {
                            self.tally.count("transition: start turn with effects");
                        }
                        self.nodes[node].instances.insert(entity.clone(), instance);
                        ActivationOutcome::Started(turn)
                    }
                    Err(why) => ActivationOutcome::Failed {
                        code: "store-unavailable".into(),
                        message: why,
                        retry_after: Some(20),
                    },
                };
                self.handle_event(node, Event::ActivationResult { entity, generation, result });
            }
        }
    }
}
