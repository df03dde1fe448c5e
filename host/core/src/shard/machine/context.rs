//! The context of each call to a part of the machine: the time, the settings, and a queue for its actions.

use std::collections::VecDeque;

use super::super::action::Action;
use super::super::settings::{Mutation, Settings};
use crate::message::{Now, Outcome, ReplyToken};

#[derive(Clone, Debug)]
pub(super) struct Context {
    /// The time of the event that is being handled.
    pub(super) now: Now,
    pub(super) settings: Settings,
    actions: VecDeque<Action>,
    /// The number of entities that were examined, for tests.
    #[cfg(test)]
    pub(super) visits: usize,
}

impl Context {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            now: Now::default(),
            settings,
            actions: VecDeque::new(),
            #[cfg(test)]
            visits: 0,
        }
    }

    pub(super) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn reply(&mut self, token: ReplyToken, outcome: Outcome) {
        self.push(Action::Reply { token, outcome });
    }

    /// The node's clock in milliseconds.
    pub(super) fn mono(&self) -> u64 {
        self.now.mono
    }

    pub(super) fn has_mutation(&self, mutation: Mutation) -> bool {
        self.settings.has_mutation(mutation)
    }
}
