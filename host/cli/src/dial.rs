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

/// Waits, and shows that it does if it takes longer than a second and a person looks on.
pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    if !std::io::stderr().is_terminal() {
        eprintln!("{what} …");
        return work.await;
    }
    let spinner = ProgressBar::new_spinner().with_message(format!("{what} …"));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let done = work.await;
    spinner.finish_and_clear();
    done
}
