//! The context that each part of the machine receives with a call: the time, the settings, the node's identity, and the
//! queue of emitted actions.

use std::collections::VecDeque;

use super::NodeIdentity;
use super::requests::{Requests, WritePurpose};
use crate::ids::NodeId;
use crate::message::Now;
use crate::node::{Action, ControlMessage, Mutation, Notice, Settings};
use crate::rows::{HostProcess, PodProcess, Row, RowKey};

#[derive(Clone, Debug)]
pub(super) struct Context {
    /// The time of the event that is being handled.
    pub(super) now: Now,
    pub(super) settings: Settings,
    pub(super) identity: NodeIdentity,
    /// The driver's wall clock, as last set: rows show it to people, and no decision depends on it.
    pub(super) unix_ms: Option<u64>,
    /// How a health check in Kubernetes finds this process.
    pub(super) process: Option<PodProcess>,
    /// How other health checks find it.
    pub(super) host_process: Option<HostProcess>,
    pub(super) requests: Requests,
    actions: VecDeque<Action>,
    /// Messages from this node to itself. The machine delivers them when the part that sent them returns.
    local_messages: VecDeque<ControlMessage>,
    /// The number of chunks examined, for tests.
    #[cfg(test)]
    pub(super) visits: usize,
}

impl Context {
    pub(super) fn new(settings: Settings, identity: NodeIdentity) -> Self {
        Self {
            now: Now::default(),
            settings,
            identity,
            unix_ms: None,
            process: None,
            host_process: None,
            requests: Requests::default(),
            actions: VecDeque::new(),
            local_messages: VecDeque::new(),
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

    pub(super) fn notify(&mut self, notice: Notice) {
        self.push(Action::Notify(notice));
    }

    pub(super) fn read(&mut self, key: RowKey) {
        self.push(Action::ReadRow(key));
    }

    pub(super) fn write(
        &mut self,
        purpose: WritePurpose,
        key: RowKey,
        expected: Option<u64>,
        row: Row,
    ) {
        let request_id = self.requests.begin_write(purpose);
        self.push(Action::WriteRow { request_id, key, expected, row });
    }

    /// Sends a message to a node, which may be this one.
    pub(super) fn send(&mut self, to: &NodeId, message: ControlMessage) {
        if *to == self.identity.node {
            self.local_messages.push_back(message);
        } else {
            self.push(Action::Send { to: to.clone(), message });
        }
    }

    pub(super) fn take_local_message(&mut self) -> Option<ControlMessage> {
        self.local_messages.pop_front()
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.requests.draw(self.identity.seed)
    }

    /// The time on the node's clock, in milliseconds.
    pub(super) fn mono(&self) -> u64 {
        self.now.mono
    }

    pub(super) fn has_mutation(&self, mutation: Mutation) -> bool {
        self.settings.has_mutation(mutation)
    }
}
