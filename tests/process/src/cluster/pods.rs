//! The pods of a cluster with its rows in Kubernetes: the tests play the kubelet.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Cluster;

impl Cluster {
    /// Puts a node that does not run yet into a pod of its own, and lets the managers ask about it.
    pub(super) fn put_into_pod(&self, node: usize) -> Result<()> {
        fs::write(self.termination_log(node), "")?;
        self.report_pod(node, json!({ "state": { "running": {} } }))?;
        self.members[node].home.set(&format!(
            "[kubernetes]\npod = {:?}\ntermination-log = {:?}\n[health-check]\nkind = \"kubernetes\"",
            self.name(node),
            self.termination_log(node)
        ))
    }

    /// Reports that the container of a node has terminated, with what its process has left in the termination log.
    ///
    /// # Errors
    /// If the cluster's rows are not in Kubernetes.
    pub fn report_terminated(&self, node: usize) -> Result<()> {
        let message = fs::read_to_string(self.termination_log(node))?;
        let ended = json!({ "terminated": {
            "exitCode": 137, "reason": "Error", "containerID": "containerd://1",
            "finishedAt": "2026-01-01T00:00:00Z", "message": message,
        } });
        // The next run of the container has a log of its own.
        fs::write(self.termination_log(node), "")?;
        self.report_pod(node, json!({ "lastState": ended, "state": { "running": {} } }))
    }

    fn termination_log(&self, node: usize) -> PathBuf {
        self.members[node].home.dir().with_file_name("termination-log")
    }

    fn report_pod(&self, node: usize, status: Value) -> Result<()> {
        let server = self.servers.kubernetes.as_ref().context("no rows in Kubernetes")?;
        let mut status = status;
        status["name"] = "ostraca".into();
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": self.name(node), "uid": format!("uid-{node}") },
            "status": { "phase": "Running", "containerStatuses": [status] },
        });
        server.objects(|objects| objects.put("pods", "default", pod));
        Ok(())
    }
}
