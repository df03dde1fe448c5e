//! The sessions of all principals that call over HTTP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ostraca_codes::codes;
use ostraca_wire::server::{Server, Service};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;
use crate::session::CallSession;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

/// How long a session is kept without a request, and how often idle ones are looked for.
const IDLE: Duration = Duration::from_secs(600);
const PURGE: Duration = Duration::from_secs(60);
/// How many principals' bodies fit into what may be received at once.
const SHARES: u32 = 4;

/// A session for each principal, opened at its first request.
pub(crate) struct Sessions<S: Service> {
    server: Arc<Server<S>>,
    principal_requests: usize,
    principal_body_bytes: u32,
    ending: CancellationToken,
    known: Mutex<Known<S>>,
}

struct Known<S: Service> {
    by_principal: HashMap<Arc<str>, Entry<S>>,
    purged: Instant,
}

struct Entry<S: Service> {
    session: Arc<CallSession<S>>,
    requests: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    used: Instant,
}

/// The right to make one request.
pub(crate) struct Place<S: Service> {
    pub(crate) session: Arc<CallSession<S>>,
    pub(crate) permit: OwnedSemaphorePermit,
    /// The bytes of bodies that the principal may have received at once.
    pub(crate) bodies: Arc<Semaphore>,
}

impl<S: Service> Sessions<S> {
    /// Once `ending` is cancelled, all calls end.
    pub(crate) fn new(
        server: Arc<Server<S>>,
        principal_requests: usize,
        max_body_bytes: u32,
        ending: CancellationToken,
    ) -> Self {
        // One body always fits.
        let principal_body_bytes = (max_body_bytes / SHARES).max(server.limits().max_message);
        let known = Known { by_principal: HashMap::new(), purged: Instant::now() };
        let known = Mutex::new(known);
        Self { server, principal_requests, principal_body_bytes, ending, known }
    }

    /// The principal's session, with a place for one request.
    ///
    /// # Errors
    /// `too-many-requests`.
    pub(crate) fn enter(&self, principal: &Arc<str>) -> Result<Place<S>, Problem> {
        let mut known = self.known();
        let now = Instant::now();
        if now.duration_since(known.purged) > PURGE {
            known.purged = now;
            known.by_principal.retain(|_, entry| {
                now.duration_since(entry.used) < IDLE
                    || entry.requests.available_permits() < self.principal_requests
            });
        }
        let entry = known.by_principal.entry(Arc::clone(principal)).or_insert_with(|| {
            let client = self.server.local_client(principal, vec![principal.to_string()]);
            Entry {
                session: Arc::new(CallSession::open(&self.server, client, self.ending.clone())),
                requests: Arc::new(Semaphore::new(self.principal_requests)),
                bodies: Arc::new(Semaphore::new(self.principal_body_bytes as usize)),
                used: now,
            }
        });
        entry.used = now;
        let Ok(permit) = Arc::clone(&entry.requests).try_acquire_owned() else {
            let text = format!(
                "`{principal}` has {} requests in progress (`http.principal-requests`)",
                self.principal_requests
            );
            let code = codes::TOO_MANY_REQUESTS;
            return Err(Problem::refused(StatusCode::TOO_MANY_REQUESTS, code, text)
                .help("send the next request when another one has ended"));
        };
        Ok(Place { session: Arc::clone(&entry.session), permit, bodies: Arc::clone(&entry.bodies) })
    }

    fn known(&self) -> MutexGuard<'_, Known<S>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
