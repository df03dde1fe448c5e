//! Measures this node's shards at an interval, for the manager (A4).

use ostraca_workers::Input as WorkerInput;
use tokio::sync::oneshot;

use super::Input;
use super::event_loop::ControlLoop;

impl ControlLoop {
    /// Asks every worker; their answers come back as one input.
    pub(super) fn measure_loads(&self) {
        let asked: Vec<_> = self
            .deps
            .workers
            .iter()
            .map(|worker| {
                let (answer, figures) = oneshot::channel();
                // A worker that has ended does not answer.
                let _ = worker.send(WorkerInput::MeasureShards { count_stored: false, answer });
                figures
            })
            .collect();
        let own = self.own.clone();
        tokio::spawn(async move {
            let mut all = Vec::new();
            for figures in asked {
                all.extend(figures.await.unwrap_or_default());
            }
            // The receiver is dropped only when the node is stopping.
            let _ = own.send(Input::Measured(all));
        });
    }
}
