//! Drains that operators requested on this node: each is written to the drained node's own row (R12).

use super::{
    Context, Manager, NodeId, NodeRow, NodeStatus, ObservedCluster, Row, RowKey, WritePurpose,
};

impl Manager {
    pub(in super::super) fn request_drain(&mut self, node: NodeId, draining: bool) {
        self.drains.insert(node, draining);
    }

    /// Writes the missing drain marks, each once the node's row is known and no such write is pending.
    pub(in super::super) fn drive_drains(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        if context.mono() < self.write_retry_at {
            return;
        }
        self.drains.retain(|node, draining| {
            let Some((row, revision)) = observed.node(node) else { return true };
            if row.draining == *draining || row.status != NodeStatus::Live {
                return false;
            }
            let purpose = WritePurpose::Drain(node.clone());
            if !context.requests.any_write(|pending| *pending == purpose) {
                let row = NodeRow { draining: *draining, ..row.clone() };
                let key = RowKey::Node(node.clone());
                context.write(purpose, key, Some(*revision), Row::Node(row));
            }
            true
        });
    }
}
