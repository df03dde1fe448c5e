//! A deploy completes when every live host runs the revision or has reported that it cannot (R24), or at the timeout.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ostraca_core::rows::{Member, NodeRow, NodeStatus};
use ostraca_gateway::Gateway;
use ostraca_wire::proto::{DeployResult, InspectedType, NodeIssue};
use tokio::time::Instant;

use super::AdminService;

/// Interval at which hosts are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl AdminService {
    /// Waits for the live hosts to compile the deployment, and lists those that failed or have not finished.
    pub(super) async fn wait_for_hosts(
        &self,
        gateway: &Gateway,
        mut deployed: DeployResult,
    ) -> DeployResult {
        let until = Instant::now() + self.deploy_wait_timeout;
        let mut hosts = self.live_hosts(&deployed.r#type);
        loop {
            let (name, revision) = (deployed.r#type.as_str(), deployed.revision);
            let requests = hosts.iter().map(|host| gateway.inspect_type(host, name));
            let responses = join_all(requests).await;
            let mut waiting = Vec::new();
            let mut pending = Vec::new();
            for (host, answer) in hosts.into_iter().zip(responses) {
                let node = host.node.to_string();
                match answer.map(|at| progress(&at, revision)) {
                    Ok(Progress::Done) => continue,
                    Ok(Progress::Failed(why)) => {
                        deployed.failed_hosts.push(NodeIssue { node, reason: why });
                        continue;
                    }
                    Ok(Progress::Pending) => {
                        let why = format!(
                            "compilation did not finish within {:?}",
                            self.deploy_wait_timeout
                        );
                        pending.push(NodeIssue { node, reason: why });
                    }
                    Err(why) => pending.push(why),
                }
                waiting.push(host);
            }
            if waiting.is_empty() || Instant::now() >= until {
                deployed.pending_hosts = pending;
                return deployed;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            // Do not wait for hosts that have left or died in the meantime.
            let live = self.live_hosts(&deployed.r#type);
            hosts = waiting.into_iter().filter(|host| live.contains(host)).collect();
        }
    }

    /// The live hosts of a type's pool. All hosts, if the type is not known here.
    pub(super) fn live_hosts(&self, entity_type: &str) -> Vec<Member> {
        let view: Arc<_> = self.current_view();
        let pool = self.gateway.types.get(entity_type);
        let pool = pool.and_then(|entry| self.home(&entry.manifest.pool).ok());
        let is_host =
            |row: &NodeRow| pool.as_ref().map_or_else(|| row.is_host(), |pool| row.hosts(pool));
        let hosts = view
            .nodes
            .iter()
            .filter(|(_, row)| is_host(row) && row.status == NodeStatus::Live)
            .map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation });
        hosts.collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done,
    Pending,
    Failed(String),
}

fn progress(at: &InspectedType, revision: u64) -> Progress {
    if at.revision >= revision {
        Progress::Done
    } else if at.failed_revision >= revision {
        Progress::Failed(at.failure_reason.clone())
    } else {
        Progress::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_failed_an_older_revision_is_waited_for() {
        let at = |revision, broken_revision| InspectedType {
            revision,
            failed_revision: broken_revision,
            failure_reason: "it does not compile".into(),
            ..InspectedType::default()
        };
        let failed = Progress::Failed("it does not compile".into());
        assert_eq!(progress(&at(0, 0), 2), Progress::Pending);
        assert_eq!(progress(&at(1, 0), 2), Progress::Pending);
        assert_eq!(progress(&at(0, 1), 2), Progress::Pending);
        assert_eq!(progress(&at(1, 2), 2), failed);
        assert_eq!(progress(&at(2, 0), 2), Progress::Done);
        assert_eq!(progress(&at(3, 0), 2), Progress::Done);
    }
}
