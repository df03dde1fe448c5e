//! The health check of a cluster in Kubernetes (S7): the mark of this process, and the pods of others.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use ostraca_config::Config;
use ostraca_control::HealthCheck;
use ostraca_core::rows::PodProcess;
use ostraca_store_kubernetes::{PodHealth, ProcessState};

use crate::error::NodeError;

/// The pauses before further attempts to mark this process, if Kubernetes does not answer the first one.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
    Duration::from_millis(2_700),
];

/// The check of other processes, and the mark of this one.
pub(crate) struct Health {
    pub(crate) check: HealthCheck,
    /// `None` if Kubernetes does not answer now: then the lease alone decides about this process.
    pub(crate) process: Option<PodProcess>,
}

/// Marks this process, so that others can find out that it has ended; `None` without a health check.
///
/// # Errors
/// [`NodeError::OpenKubernetes`] if the pod, the permission or the termination log is missing.
pub(crate) async fn start(config: &Config) -> Result<Option<Health>, NodeError> {
    let Some(settings) = config.pod_health() else { return Ok(None) };
    let health = PodHealth::new(settings.options)?;
    let mut pauses = PAUSES.iter();
    let process = loop {
        match health.mark_this_process(&settings.pod, &settings.termination_log).await {
            Ok(process) => {
                tracing::info!(
                    pod = process.pod,
                    uid = process.uid,
                    "marked this process for health checks"
                );
                break Some(process);
            }
            Err(error) if error.is_retryable() => match pauses.next() {
                Some(pause) => tokio::time::sleep(*pause).await,
                None => {
                    tracing::warn!(%error, "this process has no mark, so the others wait for its lease if it ends; a restart tries again");
                    break None;
                }
            },
            Err(error) => return Err(error.into()),
        }
    };
    let check: HealthCheck = Arc::new(move |process| {
        let health = health.clone();
        async move {
            let found = health.check(&process).await;
            tracing::debug!(pod = process.pod, ?found, "checked the process of a node");
            matches!(found, ProcessState::Ended { .. })
        }
        .boxed()
    });
    Ok(Some(Health { check, process }))
}
