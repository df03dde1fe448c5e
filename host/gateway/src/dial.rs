//! Connects to another node: tries its addresses in turn, and paces the attempts.

use std::net::SocketAddr;
use std::time::Duration;

/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The first and the longest pause before a broken link is re-established.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The pauses of one link. Each is twice the previous one, until a link is established.
pub struct Backoff(Duration);

impl Default for Backoff {
    /// The shortest pause is the next one.
    fn default() -> Self {
        Self(PAUSE.0)
    }
}

impl Backoff {
    /// A link was established: the next pause is the shortest again.
    pub fn reset(&mut self) {
        self.0 = PAUSE.0;
    }

    /// Waits for the next pause.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(PAUSE.1);
    }
}

/// Returns the result for the first address at which the attempt succeeds, else the last one's error.
///
/// # Errors
/// The address and what went wrong there.
pub async fn connect_first<T, F>(
    addresses: &[String],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, String>
where
    F: Future<Output = Result<T, ostraca_wire::Error>>,
{
    let mut last = "it advertises no address".to_owned();
    for address in addresses {
        let made = async {
            let found = resolve(address).await?;
            attempt(found).await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(ATTEMPT, made).await {
            Ok(Ok(made)) => return Ok(made),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: no response within {ATTEMPT:?}"),
        }
    }
    Err(last)
}

/// Resolves an address with a port, by name or by number, to the first result.
async fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the name resolves to no address".into())
}
