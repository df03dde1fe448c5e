//! What the machine says, done: told to workers, gateway and other nodes, or asked of the stores.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ostraca_core::ids::ShardId;
use ostraca_core::node::{Action, Notice};
use ostraca_core::rows::Member;
use ostraca_core::shard::Ownership;

use super::run::Running;
use crate::gateway::Gateway;
use crate::ownership::shard_key;
use crate::worker;

/// Renewals between two writes of cluster time and of the store's witness. Time that a crash takes with it only
/// makes lanes live longer.
const BETWEEN_NOTES: u64 = 8;

impl Running {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::ListRows => self.list(),
            Action::ReadRow(key) => self.read(key),
            Action::WriteRow { request_id: number, key, expected, row } => {
                self.write(number, &key, expected, &row)
            }
            Action::Send { to, message: talk } => {
                if let Some(me) = self.parts.machine.member() {
                    self.talkers.say(&to, &me, &talk);
                }
            }
            Action::Registered(member) => {
                tracing::info!(%member, "registered");
                (self.parts.registered)(&member);
                self.parts.gateway.set_me(Some(member));
                self.read_format();
            }
            Action::LeaseRenewed { sent_at: sent, lease } => {
                self.parts.stats.renewed.store(sent, Ordering::Relaxed);
                self.parts.stats.lease.store(lease, Ordering::Relaxed);
                self.all_workers(|| worker::Input::Renewed(sent, lease));
                self.renewals += 1;
                if self.renewals.is_multiple_of(BETWEEN_NOTES) {
                    self.keep_notes();
                }
            }
            Action::Suspend => self.all_workers(|| worker::Input::Suspend),
            Action::Resume => self.all_workers(|| worker::Input::Resume),
            Action::ReadClaims { request_id: number, shards } => self.read_claims(number, shards),
            Action::StartShard { shard, epoch, member } => {
                let Member { node, incarnation } = member;
                let (cluster, key) = (self.parts.cluster, shard_key(shard));
                let owner = Ownership { cluster, shard: key, epoch, node, incarnation };
                self.worker(shard, worker::Input::Adopt(Box::new(owner)));
            }
            Action::StopShard { shard, epoch, reason } => {
                self.worker(shard, worker::Input::StopShard { shard, epoch, reason });
            }
            Action::DropShard { shard, epoch } => {
                self.worker(shard, worker::Input::Forget { shard, epoch });
            }
            Action::UpdateRoute { shard, epoch, owner, hand_off_in_progress: moving } => {
                self.parts.gateway.route(shard, epoch, owner, moving);
            }
            Action::BufferShard { shard, epoch } => self.parts.gateway.hold(shard, epoch),
            Action::UpdatePeer { member, alive, addresses } => {
                self.parts.gateway.links.node(&member, alive, &addresses);
                if self.parts.machine.node() != &member.node {
                    self.talkers.node(&member, alive, addresses);
                }
                if !alive {
                    self.parts.gateway.lost(&member);
                }
            }
            Action::Notify(notice) => self.note(notice),
            Action::Fenced => {
                tracing::warn!("this life of the node is over: another one registers");
                self.parts.gateway.set_me(None);
            }
            Action::Left => {
                self.parts.gateway.set_me(None);
                self.parts.view.send_modify(|view| Arc::make_mut(view).left = true);
            }
        }
    }

    /// Something happened that operators may want to know.
    fn note(&self, notice: Notice) {
        match &notice {
            Notice::ShardAssigned { .. } | Notice::HandOffStarted { .. } => {
                tracing::debug!("{notice}");
            }
            Notice::NodeNameInUse(member) => tracing::error!(
                %member,
                "another process renews this node's lease, so this one cannot register: is its folder a copy?"
            ),
            _ => tracing::info!("{notice}"),
        }
        self.parts.events.put(self.parts.clock.now().cluster_time, notice);
    }

    fn all_workers(&self, input: impl Fn() -> worker::Input) {
        for worker in &self.parts.workers {
            // A worker that has ended serves nothing, and has said so.
            let _ = worker.send(input());
        }
    }

    fn worker(&self, shard: ShardId, input: worker::Input) {
        let at = Gateway::worker_of(shard, self.parts.workers.len());
        if let Some(worker) = self.parts.workers.get(at) {
            // A worker that has ended serves nothing, and has said so.
            let _ = worker.send(input);
        }
    }
}
