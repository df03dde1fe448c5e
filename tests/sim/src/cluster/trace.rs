//! What a run prints with `TRACE=1`: each event of a node's machine that led to something, and what it led to.

use ostraca_sharding::node::{Action, Event};
use ostraca_sharding::rows::Row;

use super::World;
use super::process::Pid;

impl World {
    pub(super) fn trace_node(&self, pid: Pid, event: &Event, actions: &[Action]) {
        let it = &self.processes[pid];
        let quiet = |action: &&Action| match action {
            Action::Renewed { .. } | Action::Read(_) => false,
            Action::Write { row: Row::Node(row), .. } => row.renewals == 0,
            Action::Say { talk, .. } => !matches!(talk, ostraca_sharding::node::Talk::Report(_)),
            _ => true,
        };
        let told: Vec<_> = actions.iter().filter(quiet).collect();
        if told.is_empty() {
            return;
        }
        let event = match event {
            Event::Listed(_) => "Listed".into(),
            other => {
                let mut text = format!("{other:?}");
                text.truncate(400);
                text
            }
        };
        println!("{:>6} {}/{pid} [{}] {event}", self.now, it.node, it.mono(self.now));
        for action in told {
            println!("           -> {action:?}");
        }
    }
}
