//! What a run prints with `TRACE=1`: each event of a node's machine that caused actions, with those actions; what
//! operators, faults and clients did; and, if the run fails, the pending work of each process. With `TRACE_SHARD=n`
//! also each event of that shard's machines, with its actions.

use ostraca_core::ids::ShardId;
use ostraca_core::node::{Action, ControlMessage, Event};
use ostraca_core::rows::Row;
use ostraca_core::shard::Action as ShardAction;

use super::World;
use super::process::Pid;

impl World {
    /// Prints a line if tracing is on.
    #[expect(clippy::print_stdout, reason = "a trace is printed on request, for people to read")]
    pub(super) fn print(&self, line: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>6} {}", self.now, line());
        }
    }

    pub(super) fn trace_shard(
        &self,
        pid: Pid,
        shard: ShardId,
        event: &str,
        actions: &[ShardAction],
    ) {
        let it = &self.processes[pid];
        self.print(|| format!("{}/{pid} [{}] shard {shard}: {event}", it.node, it.mono(self.now)));
        for action in actions {
            self.print(|| format!("    -> {action:?}"));
        }
    }

    pub(super) fn trace_node(&self, pid: Pid, event: &Event, actions: &[Action]) {
        let it = &self.processes[pid];
        let loud = |action: &&Action| match action {
            Action::LeaseRenewed { .. } | Action::ShardLeaseRenewed { .. } | Action::ReadRow(_) => {
                false
            }
            Action::WriteRow { row: Row::Node(row), .. } => row.renewals == 0,
            Action::Send { message, .. } => !matches!(message, ControlMessage::Report(_)),
            _ => true,
        };
        let told: Vec<_> = actions.iter().filter(loud).collect();
        if told.is_empty() {
            return;
        }
        let event = match event {
            Event::RowsListed(_) => "Listed".into(),
            other => format!("{other:?}").chars().take(400).collect::<String>(),
        };
        self.print(|| format!("{}/{pid} [{}] {event}", it.node, it.mono(self.now)));
        for action in told {
            self.print(|| format!("    -> {action:?}"));
        }
    }

    /// Prints each process's pending work.
    pub(super) fn trace_stuck(&self) {
        for it in self.processes.iter().filter(|it| it.alive) {
            self.print(|| format!("{} {:?}: {:?}", it.node, it.member, it.gateway.router.stats()));
            self.print(|| format!("    open {:?}, asked {:?}", it.gateway.open, it.askers));
            self.print(|| format!("    {:?}", it.cap));
            for (shard, hosted) in &it.shards {
                self.print(|| format!("    {shard} {:?} {:?}", hosted.epoch, hosted.machine));
            }
        }
    }
}
