//! Connects to the profile's cluster, and shows a spinner for slow operations.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;
use ostraca_client::{Client, Profile};
use ostraca_codes::codes;
use tokio::time::Instant;

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};

/// Faster operations show no spinner.
const SPINNER_DELAY: Duration = Duration::from_secs(1);

/// Connects to the cluster of the profile.
pub(crate) async fn connect(global: &Global) -> Result<Client, Failure> {
    connect_to(profile(global)?).await
}

/// Connects to the node with the store, if a node has it.
pub(crate) async fn connect_to_store(global: &Global) -> Result<Client, Failure> {
    let client = connect(global).await?;
    let nodes = client.nodes().await?.nodes;
    let has_store = |roles: &[String]| roles.iter().any(|role| role == "store");
    let Some(node) = nodes.into_iter().find(|node| has_store(&node.roles)) else {
        return Ok(client);
    };
    if client.node().await?.node == node.name {
        return Ok(client);
    }
    disconnect(client).await;
    let profile = profile(global)?;
    connect_to(Profile { addresses: node.addresses, ..profile }).await
}

/// Connects to the addresses of a profile.
pub(crate) async fn connect_to(profile: Profile) -> Result<Client, Failure> {
    Ok(with_spinner("connecting", Client::connect(profile)).await?)
}

/// Connects to the cluster of the profile, within a deadline for the whole command.
pub(crate) async fn connect_by(global: &Global, deadline: Deadline) -> Result<Client, Failure> {
    let profile = profile(global)?;
    let addresses = profile.addresses.join(", ");
    let connecting = with_spinner("connecting", Client::connect(profile));
    match tokio::time::timeout_at(deadline.at, connecting).await {
        Ok(connected) => Ok(connected?),
        Err(_) => {
            let text = format!("no node at {addresses} responded within {:?}", deadline.whole);
            Err(Failure::new(Exit::Unreachable, codes::NO_NODE_REACHABLE, text)
                .help("nothing was sent: increase --timeout, or fix the addresses in the profile"))
        }
    }
}

/// When a command must have its result, including the time to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    whole: Duration,
}

impl Deadline {
    pub(crate) fn after(whole: Duration) -> Self {
        let now = Instant::now();
        // A year, if that is beyond the clock's range.
        let at = now.checked_add(whole).unwrap_or(now + Duration::from_secs(31_536_000));
        Self { at, whole }
    }

    /// The remaining time.
    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

/// The profile. Warns if an environment variable takes precedence over the profile of this directory and they
/// differ: the user expects the directory's cluster.
pub(crate) fn profile(global: &Global) -> Result<Profile, Failure> {
    let found = Profile::locate(global.profile.as_deref())?;
    tracing::info!(profile = %found.path.display(), cluster = found.profile.cluster_id, "profile");
    if let (Some(other), OutputFormat::Table) = (&found.shadowed, global.output) {
        eprintln!(
            "note: using the profile {} (OSTRACA_PROFILE), not {}",
            found.path.display(),
            other.display()
        );
    }
    let mut profile = found.profile;
    if let Some(namespace) = &global.namespace {
        profile.namespace.clone_from(namespace);
    }
    Ok(profile)
}

/// Closes the connection. The close is sent immediately. This does not wait out QUIC's draining period, which would
/// cost each command a tenth of a second.
pub(crate) async fn disconnect(client: Client) {
    let _ = tokio::time::timeout(Duration::from_millis(20), client.close()).await;
}

/// Waits, and shows a spinner on a terminal if it takes longer than a second.
pub(crate) async fn with_spinner<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(SPINNER_DELAY, &mut work).await {
        return done;
    }
    let spinner = ProgressBar::new_spinner().with_message(format!("{what} …"));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let done = work.await;
    spinner.finish_and_clear();
    done
}
