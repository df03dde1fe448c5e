//! The health check of this node (S7): what others need to find this process, and whom it asks about theirs.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::Config;
use ostraca_config::config::{HealthCheckSettings, PodHealthSettings};
use ostraca_core::rows::{HostProcess, PodProcess};
use ostraca_health::{
    CheckOutcome, CheckRunner, CommandCheck, HealthCheck, HttpCheck, Suspect, describe_this_process,
};
use ostraca_store_kubernetes::{PodHealth, ProcessState};
use tokio::runtime::Handle;

use crate::error::NodeError;

/// The pauses before further attempts to mark this process, if Kubernetes does not answer the first one.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
    Duration::from_millis(2_700),
];

/// The check of other processes, and what the checks of others need to find this one.
pub(crate) struct Health {
    pub(crate) checks: CheckRunner,
    /// Only with Kubernetes; `None` if it does not answer now: then the lease alone decides about this process.
    pub(crate) pod: Option<PodProcess>,
    /// Only with other checks.
    pub(crate) host: Option<HostProcess>,
}

/// Sets up the health check: `supplied`, or the configured one. `None` if there is neither.
///
/// # Errors
/// [`NodeError::HealthCheck`] if it cannot be used, and [`NodeError::OpenKubernetes`] if the pod, the permission or the
/// termination log is missing.
pub(crate) async fn start(
    config: &Config,
    supplied: Option<Arc<dyn HealthCheck>>,
) -> Result<Option<Health>, NodeError> {
    let (mut pod, mut host) = (None, None);
    let check: Arc<dyn HealthCheck> = match (supplied, config.health_check()) {
        (Some(supplied), _) => {
            host = describe();
            supplied
        }
        (None, None) => return Ok(None),
        (None, Some(HealthCheckSettings::Kubernetes(settings))) => {
            let health = PodHealth::new(settings.options.clone())?;
            pod = mark(&health, &settings).await?;
            Arc::new(PodCheck(health))
        }
        (None, Some(HealthCheckSettings::Command(settings))) => {
            host = describe();
            Arc::new(CommandCheck::new(settings)?)
        }
        (None, Some(HealthCheckSettings::Http(settings))) => {
            host = describe();
            Arc::new(HttpCheck::new(settings)?)
        }
    };
    let checks = CheckRunner::new(check, config.health_check_timeout(), Handle::current());
    Ok(Some(Health { checks, pod, host }))
}

fn describe() -> Option<HostProcess> {
    match describe_this_process() {
        Ok(process) => Some(process),
        Err(error) => {
            tracing::warn!(%error, "cannot describe this process, so health checks know only its node and incarnation");
            None
        }
    }
}

/// Marks this process, so that the others can find out that it has ended.
async fn mark(
    health: &PodHealth,
    settings: &PodHealthSettings,
) -> Result<Option<PodProcess>, NodeError> {
    let mut pauses = PAUSES.iter();
    loop {
        match health.mark_this_process(&settings.pod, &settings.termination_log).await {
            Ok(process) => {
                let (pod, uid) = (&process.pod, &process.uid);
                tracing::info!(pod, uid, "marked this process for health checks");
                return Ok(Some(process));
            }
            Err(error) if error.is_retryable() => match pauses.next() {
                Some(pause) => tokio::time::sleep(*pause).await,
                None => {
                    tracing::warn!(%error, "this process has no mark, so the others wait for its lease if it ends; a restart tries again");
                    return Ok(None);
                }
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// Asks Kubernetes about the pods of other nodes.
struct PodCheck(PodHealth);

impl HealthCheck for PodCheck {
    fn check<'a>(&'a self, suspect: &'a Suspect) -> BoxFuture<'a, CheckOutcome> {
        let checking = async {
            let Some(process) = &suspect.pod else {
                let why = "it has registered without a mark".into();
                return CheckOutcome::NotKnown { why };
            };
            match self.0.check(process).await {
                ProcessState::Ended { exit_code } => {
                    let pod = &process.pod;
                    let how = format!("its container in the pod {pod} ended with {exit_code}");
                    CheckOutcome::Ended { how }
                }
                ProcessState::Unproven { why } => CheckOutcome::NotKnown { why },
            }
        };
        checking.boxed()
    }
}
