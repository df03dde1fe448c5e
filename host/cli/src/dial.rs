//! Connecting as the profile says, and showing that something takes long.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;
use ostraca_client::{Client, Profile};

use crate::args::Global;
use crate::failure::Failure;

/// Nobody wants to see a spinner for less.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connects to the cluster of the profile.
pub(crate) async fn connect(global: &Global) -> Result<Client, Failure> {
    let profile = Profile::find(global.profile.as_deref())?;
    Ok(patiently("connecting", Client::connect(profile)).await?)
}

/// Says goodbye. It is on its way at once; what is not waited for is the silence after it, in which QUIC would
/// answer late packets: a tenth of a second for each command that is typed.
pub(crate) async fn part(client: Client) {
    let _ = tokio::time::timeout(Duration::from_millis(20), client.close()).await;
}

/// Waits, and shows that it does if it takes longer than a second and a person looks on.
pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let spinner = ProgressBar::new_spinner().with_message(format!("{what} …"));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let done = work.await;
    spinner.finish_and_clear();
    done
}
