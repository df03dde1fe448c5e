//! Whether the process of a node is known to have ended (S7, R9).
//!
//! Only one thing proves it: the kubelet reports, for the pod with this uid, a terminated container that has left this
//! process's mark. A process writes its mark, a random text, into the file from which the kubelet reads the
//! termination message of the process's container. So a report on an earlier run of the same container proves nothing
//! about the next one, although both are in the same pod. A pod that is not ready, unknown or failed proves nothing,
//! since controllers set that when a machine is cut off and its containers still run. Nor does a deleted pod: a forced
//! deletion removes the object, not the container.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use ostraca_core::rows::PodProcess;

use crate::api::{Api, Pod, Terminated};
use crate::error::OpenError;
use crate::options::Options;

/// The reasons with which a container's end was seen. Others, such as `ContainerStatusUnknown`, say that it was not found.
const SEEN: &[&str] = &["Completed", "Error", "OOMKilled"];

/// What Kubernetes knows of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It has ended.
    Ended {
        /// The exit code of its container.
        exit_code: i32,
    },
    /// Nothing proves that it has ended.
    Unproven {
        /// What was found instead.
        why: String,
    },
}

/// Asks the API server about processes in pods. It needs the verb `get` on pods.
#[derive(Clone)]
pub struct PodHealth {
    api: Api,
}

impl fmt::Debug for PodHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodHealth").finish_non_exhaustive()
    }
}

impl PodHealth {
    /// Asks about pods in the namespace of these options.
    ///
    /// # Errors
    /// [`OpenError`] if the options are invalid.
    pub fn new(options: Options) -> Result<Self, OpenError> {
        Ok(Self { api: Api::new(Arc::new(options.resolved()?))? })
    }

    /// Leaves this process's mark in the termination log of its container, and returns how others find the process.
    ///
    /// # Errors
    /// [`OpenError::UnnamedPod`] if the name is empty; [`OpenError::Pod`] if there is no such pod;
    /// [`OpenError::TerminationLog`]; those of a request.
    pub async fn mark_this_process(&self, pod: &str, log: &Path) -> Result<PodProcess, OpenError> {
        if pod.is_empty() {
            return Err(OpenError::UnnamedPod);
        }
        let found = self.api.pod(pod).await.map_err(|error| error.into_open_error())?;
        let uid = found.map(|found| found.metadata.uid).filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(|| OpenError::Pod {
            namespace: self.api.namespace().into(),
            pod: pod.into(),
        })?;
        let mark = format!("ostraca process {:032x}", rand::random::<u128>());
        // The kubelet has created the file; another one at its place would never be read.
        let written = OpenOptions::new().write(true).truncate(true).open(log);
        written.and_then(|mut log| log.write_all(mark.as_bytes())).map_err(|error| {
            OpenError::TerminationLog { path: log.display().to_string(), why: error.to_string() }
        })?;
        Ok(PodProcess { pod: pod.into(), uid, mark })
    }

    /// Asks about a process. Every failure proves nothing.
    pub async fn check(&self, process: &PodProcess) -> ProcessState {
        match self.api.pod(&process.pod).await {
            Ok(Some(pod)) => judge(&pod, process),
            Ok(None) => unproven("the pod does not exist"),
            Err(error) => unproven(&error.into_open_error().to_string()),
        }
    }
}

fn unproven(why: &str) -> ProcessState {
    ProcessState::Unproven { why: why.into() }
}

fn judge(pod: &Pod, process: &PodProcess) -> ProcessState {
    if pod.metadata.uid.is_empty() || pod.metadata.uid != process.uid {
        return unproven("another pod has the name");
    }
    let statuses = pod.status.container_statuses.iter();
    // A container that was started again has the end of its last run in its last state.
    let mut ends = statuses
        .flat_map(|it| [&it.state.terminated, &it.last_state.terminated])
        .flatten()
        .filter(|end| !process.mark.is_empty() && end.message.trim_end() == process.mark);
    match ends.next() {
        None => unproven("no container has terminated and left the mark of the process"),
        Some(Terminated { reason, .. }) if !SEEN.contains(&reason.as_str()) => {
            unproven("nobody has seen the container end")
        }
        Some(end) if end.finished_at.is_none() || end.container_id.is_empty() => {
            unproven("the kubelet has not seen the container end")
        }
        Some(end) => ProcessState::Ended { exit_code: end.exit_code },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: Value) -> ProcessState {
        let pod = json!({ "metadata": { "name": "n1", "uid": "u1" }, "status": status });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let process = PodProcess { pod: "n1".into(), uid: "u1".into(), mark: "m1".into() };
        for other in [
            PodProcess { uid: "u2".into(), ..process.clone() },
            PodProcess { mark: "m2".into(), ..process.clone() },
            PodProcess { mark: String::new(), ..process.clone() },
        ] {
            let found = judge(&pod, &other);
            assert!(matches!(found, ProcessState::Unproven { .. }), "{other:?}: {found:?}");
        }
        judge(&pod, &process)
    }

    fn container(name: &str, state: Value) -> Value {
        json!({ "name": name, "ready": false, "state": state })
    }

    fn ended() -> Value {
        json!({ "terminated": {
            "exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://1", "message": "m1",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"
        } })
    }

    #[test]
    fn s7_a_terminated_container_with_the_mark_proves_the_end() {
        let sidecar = container("proxy", json!({ "running": {} }));
        let found = state(json!({ "containerStatuses": [sidecar, container("node", ended())] }));
        assert_eq!(found, ProcessState::Ended { exit_code: 137 });
        let restarted = json!({ "name": "node", "lastState": ended(), "state": { "running": {} } });
        let found = state(json!({ "containerStatuses": [restarted] }));
        assert_eq!(found, ProcessState::Ended { exit_code: 137 }, "and runs again");
    }

    #[test]
    fn s7_nothing_else_proves_the_end() {
        let without = |field: &str| {
            let mut state = ended();
            state["terminated"].as_object_mut().expect("fields").remove(field);
            state
        };
        let with = |field: &str, value: &str| {
            let mut state = ended();
            state["terminated"][field] = value.into();
            state
        };
        let last = |state: Value| json!({ "name": "node", "lastState": state, "state": { "running": {} } });
        let one = |state: Value| json!({ "containerStatuses": [container("node", state)] });
        let conditions =
            json!([{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }]);
        for (status, case) in [
            (json!({}), "no status"),
            (json!({ "phase": "Failed", "reason": "NodeLost" }), "a failed pod without containers"),
            (json!({ "phase": "Unknown", "conditions": conditions }), "an unknown pod"),
            (one(json!({})), "no state"),
            (one(json!({ "running": {} })), "running, not ready"),
            (one(json!({ "waiting": { "reason": "CrashLoopBackOff" } })), "waiting"),
            (one(with("reason", "ContainerStatusUnknown")), "not found by the kubelet"),
            (one(with("reason", "Unknown")), "not found by the container runtime"),
            (one(without("reason")), "no reason"),
            (one(without("finishedAt")), "no time of its end"),
            (one(without("containerID")), "no container"),
            (one(without("message")), "without a mark: it may be an earlier run"),
            (one(with("message", "m1 and more")), "another mark"),
            (json!({ "containerStatuses": [last(without("message"))] }), "an earlier run"),
            (json!({ "initContainerStatuses": [container("node", ended())] }), "an init container"),
        ] {
            let found = state(status);
            assert!(matches!(found, ProcessState::Unproven { .. }), "{case}: {found:?}");
        }
    }
}
