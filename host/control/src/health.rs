//! Checks whether the processes of other nodes have ended (S7).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_core::node::Event;
use ostraca_core::rows::{Member, PodProcess};

use super::event_loop::ControlLoop;

/// Finds out whether a process is *known* to have ended. Whatever else it finds, such as an error, is `false`.
pub type HealthCheck = Arc<dyn Fn(PodProcess) -> BoxFuture<'static, bool> + Send + Sync>;

impl ControlLoop {
    /// Checks the process of an incarnation, unless the last check of it is still running.
    pub(super) fn check_process(&mut self, member: Member) {
        let Some(check) = self.deps.health_check.clone() else { return };
        let mut nodes = self.deps.machine.nodes();
        let row = nodes
            .find(|(node, row)| **node == member.node && row.incarnation == member.incarnation);
        let Some(process) = row.and_then(|(_, row)| row.process()) else { return };
        if !self.checking.insert(member.clone()) {
            return;
        }
        let checking = async move {
            match check(process).await {
                true => {
                    tracing::info!(%member, "the process of a node is known to have ended");
                    (member.clone(), Event::ProcessEnded { member })
                }
                false => (member, Event::Tick),
            }
        };
        self.checks.push(checking.boxed());
    }
}
