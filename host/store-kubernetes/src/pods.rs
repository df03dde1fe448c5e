//! Whether the process of a node is known to have ended (S7, R9).
//!
//! Only one thing proves it: the kubelet reports, for the pod with this uid, that the process's container has
//! terminated. A pod that is not ready, unknown or failed proves nothing, since controllers set that when a machine is
//! cut off and its containers still run. Nor does a deleted pod: a forced deletion removes the object, not the
//! container.

use std::fmt;
use std::sync::Arc;

use crate::api::{Api, Pod};
use crate::error::OpenError;
use crate::options::Options;

/// The reasons of containers that the kubelet did not find: it does not say that they ended.
const NOT_FOUND: &[&str] = &["ContainerStatusUnknown"];

/// A container in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: another pod may get the same name.
    pub uid: String,
    /// The name of the container in which the process runs. Other containers of the pod end on their own.
    pub container: String,
}

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
    let mut statuses =
        pod.status.container_statuses.iter().filter(|it| it.name == process.container);
    let (Some(status), None) = (statuses.next(), statuses.next()) else {
        return unproven("the kubelet has not reported the container");
    };
    let state = &status.state;
    match &state.terminated {
        None => unproven("the container has not terminated"),
        Some(_) if state.running.is_some() || state.waiting.is_some() => {
            unproven("the container has several states")
        }
        Some(ended) if NOT_FOUND.contains(&ended.reason.as_str()) => {
            unproven("the kubelet did not find the container")
        }
        Some(ended) if ended.finished_at.is_none() || ended.container_id.is_empty() => {
            unproven("the kubelet has not seen the container end")
        }
        Some(ended) => ProcessState::Ended { exit_code: ended.exit_code },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: Value) -> ProcessState {
        let pod = json!({ "metadata": { "name": "n1", "uid": "u1" }, "status": status });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let process = PodProcess { pod: "n1".into(), uid: "u1".into(), container: "node".into() };
        let other = PodProcess { uid: "u2".into(), ..process.clone() };
        assert!(matches!(judge(&pod, &other), ProcessState::Unproven { .. }), "another uid");
        judge(&pod, &process)
    }

    fn container(name: &str, state: Value) -> Value {
        json!({ "name": name, "ready": false, "state": state })
    }

    fn ended() -> Value {
        json!({ "terminated": {
            "exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://1",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"
        } })
    }

    #[test]
    fn s7_a_terminated_container_proves_the_end() {
        let sidecar = container("proxy", json!({ "running": {} }));
        let found = state(json!({ "containerStatuses": [sidecar, container("node", ended())] }));
        assert_eq!(found, ProcessState::Ended { exit_code: 137 });
    }

    #[test]
    fn s7_nothing_else_proves_the_end() {
        let without = |field: &str| {
            let mut state = ended();
            state["terminated"].as_object_mut().expect("fields").remove(field);
            state
        };
        let mut not_found = ended();
        not_found["terminated"]["reason"] = "ContainerStatusUnknown".into();
        let mut contradictory = ended();
        contradictory["running"] = json!({});
        let restarted = json!({ "name": "node", "lastState": ended(), "state": { "running": {} } });
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
            (one(not_found), "not found by the kubelet"),
            (one(without("finishedAt")), "no time of its end"),
            (one(without("containerID")), "no container"),
            (one(contradictory), "two states"),
            (json!({ "containerStatuses": [restarted] }), "restarted: an earlier run ended"),
            (json!({ "containerStatuses": [container("proxy", ended())] }), "another container"),
            (json!({ "initContainerStatuses": [container("node", ended())] }), "an init container"),
        ] {
            let found = state(status);
            assert!(matches!(found, ProcessState::Unproven { .. }), "{case}: {found:?}");
        }
    }
}
