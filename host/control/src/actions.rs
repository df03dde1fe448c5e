//! Executes the machine's actions: informs the workers, the gateway and other nodes, and calls the stores.

use std::sync::Arc;

use ostraca_core::ids::ShardId;
use ostraca_core::node::{Action, Notice};
use ostraca_core::shard::Ownership;
use ostraca_workers as worker;

use super::event_loop::ControlLoop;
use crate::Error;

/// Number of renewals between two writes of cluster time and of the store's witness. If a crash loses some cluster
/// time, the only effect is that lanes expire later.
const RENEWALS_PER_PERSIST: u64 = 8;

impl ControlLoop {
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            Action::ListRows => self.list(),
            Action::ReadRow(key) => self.read(key),
            Action::WriteRow { request_id: number, key, expected, row } => {
                self.write(number, &key, expected, &row)
            }
            Action::Send { to, message } => {
                if let Some(me) = self.deps.machine.member() {
                    self.control_links.send(&to, &me, &message);
                }
            }
            Action::Registered(member) => {
                tracing::info!(%member, "registered");
                (self.deps.registered)(&member);
                self.deps.gateway.set_local_member(Some(member));
                self.read_format();
            }
            Action::LeaseRenewed { sent_at: sent, lease } => {
                self.deps.stats.lease_renewed(sent, lease, self.deps.clock.now().mono);
                self.all_workers(|| worker::Input::LeaseRenewed(sent, lease));
                self.renewals += 1;
                if self.renewals.is_multiple_of(RENEWALS_PER_PERSIST) {
                    self.persist_time_and_witness();
                }
            }
            Action::ShardLeaseRenewed { shard, epoch, sent_at, lease } => {
                let renewed = worker::Input::ShardLeaseRenewed { shard, epoch, sent_at, lease };
                self.worker(shard, renewed);
            }
            Action::Suspend => self.all_workers(|| worker::Input::Suspend),
            Action::Resume => self.all_workers(|| worker::Input::Resume),
            Action::ReadClaims { request_id: number, shards } => self.read_claims(number, shards),
            Action::StartShard { shard, epoch, member } => {
                let (cluster, key) = (self.deps.cluster, self.deps.gateway.pools.path(shard));
                let owner = Ownership { cluster, shard: key, epoch, owner: member };
                self.worker(shard, worker::Input::Adopt(Box::new(owner)));
            }
            Action::StopShard { shard, epoch, reason } => {
                self.worker(shard, worker::Input::StopShard { shard, epoch, reason });
            }
            Action::DropShard { shard, epoch } => {
                self.worker(shard, worker::Input::DropShard { shard, epoch });
            }
            Action::UpdateRoute { shard, epoch, owner, hand_off_in_progress: moving } => {
                self.deps.gateway.update_route(shard, epoch, owner, moving);
            }
            Action::BufferShard { shard, epoch } => self.deps.gateway.buffer_shard(shard, epoch),
            Action::UpdatePeer { member, alive, addresses } => {
                self.deps.gateway.update_node(&member, alive, &addresses);
                if self.deps.machine.node() != &member.node {
                    self.control_links.update_node(&member, alive, addresses);
                }
                if !alive {
                    self.deps.gateway.on_member_lost(&member);
                }
            }
            Action::CheckProcess { member } => self.check_process(member),
            Action::Notify(notice) => self.record_event(notice),
            Action::Fenced => {
                tracing::warn!("this incarnation has been fenced; registering a new one");
                self.deps.gateway.set_local_member(None);
            }
            Action::ArbitrationLost { number, winner } => {
                // Nobody receives the error if the node is already stopping.
                let _ = self.deps.failures.send(Error::ArbitrationLost { number, winner });
            }
            Action::Left => {
                self.deps.gateway.set_local_member(None);
                self.deps.view.send_modify(|view| Arc::make_mut(view).has_left = true);
            }
        }
    }

    /// Logs a notice and keeps it as an event for operators.
    pub(super) fn record_event(&self, notice: Notice) {
        match &notice {
            Notice::ShardAssigned { .. } | Notice::HandOffStarted { .. } => {
                tracing::debug!("{notice}");
            }
            Notice::ArbitrationLost { .. } => tracing::error!("{notice}"),
            Notice::ArbitrationDecided { .. } => tracing::warn!("{notice}"),
            Notice::NodeNameInUse(member) => tracing::error!(
                %member,
                "another process renews this node's lease, so this one cannot register: is its data directory a copy?"
            ),
            _ => tracing::info!("{notice}"),
        }
        self.deps.events.put(self.deps.clock.now().cluster_time, notice);
    }

    fn all_workers(&self, input: impl Fn() -> worker::Input) {
        for worker in &self.deps.workers {
            // A worker that has ended serves nothing, and its end has been reported.
            let _ = worker.send(input());
        }
    }

    fn worker(&self, shard: ShardId, input: worker::Input) {
        let at = worker::worker_of(shard, self.deps.workers.len());
        if let Some(worker) = self.deps.workers.get(at) {
            // A worker that has ended serves nothing, and its end has been reported.
            let _ = worker.send(input);
        }
    }
}
