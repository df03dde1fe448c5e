//! The sessions of all principals that call over HTTP.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use ostraca_client::SessionId;
use ostraca_codes::codes;
use ostraca_core::ids::session_of_idempotency_key;
use ostraca_wire::server::{ClientInfo, Server, Service};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;
use crate::session::CallSession;
use crate::settings::HttpSettings;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

/// How long a session is kept without a request, and how often idle ones are looked for.
const IDLE: Duration = Duration::from_secs(600);
const PURGE: Duration = Duration::from_secs(60);
/// How many principals' bodies fit into what may be received at once.
const SHARES: u32 = 4;
/// How many descriptions of types a principal may have sent to it at once.
const DOCUMENTS: usize = 2;

/// A session for each principal, opened at its first request.
pub(crate) struct Sessions<S: Service> {
    server: Arc<Server<S>>,
    limits: HttpSettings,
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
    client: Arc<ClientInfo>,
    requests: Arc<Semaphore>,
    /// `None` without a limit.
    rate: Option<DefaultDirectRateLimiter>,
    bodies: Arc<Semaphore>,
    documents: Arc<Semaphore>,
    used: Instant,
}

/// The right to make one request.
pub(crate) struct Place<S: Service> {
    pub(crate) session: Arc<CallSession<S>>,
    pub(crate) permit: OwnedSemaphorePermit,
    /// The bytes of bodies that the principal may have received at once.
    pub(crate) bodies: Arc<Semaphore>,
    /// Places for the descriptions of types that the principal may have sent to it at once.
    pub(crate) documents: Arc<Semaphore>,
}

impl<S: Service> Sessions<S> {
    /// Once `ending` is cancelled, all calls end.
    pub(crate) fn new(
        server: Arc<Server<S>>,
        limits: HttpSettings,
        ending: CancellationToken,
    ) -> Self {
        // One body always fits.
        let principal_body_bytes =
            (limits.max_body_bytes / SHARES).max(server.limits().max_message);
        let known = Known { by_principal: HashMap::new(), purged: Instant::now() };
        let known = Mutex::new(known);
        Self { server, limits, principal_body_bytes, ending, known }
    }

    /// The principal's session, or that of an idempotency key, with a place for one request.
    ///
    /// # Errors
    /// `too-many-requests`, `rate-limited`.
    pub(crate) fn enter(
        &self,
        principal: &Arc<str>,
        key: Option<&str>,
    ) -> Result<Place<S>, Problem> {
        let mut known = self.known();
        let now = Instant::now();
        if now.duration_since(known.purged) > PURGE {
            known.purged = now;
            known.by_principal.retain(|_, entry| {
                now.duration_since(entry.used) < IDLE
                    || entry.requests.available_permits() < self.limits.principal_requests
            });
        }
        let entry = known.by_principal.entry(Arc::clone(principal)).or_insert_with(|| {
            let client = self.server.local_client(principal, vec![principal.to_string()]);
            Entry {
                session: Arc::new(self.open(Arc::clone(&client), SessionId::random())),
                client,
                requests: Arc::new(Semaphore::new(self.limits.principal_requests)),
                rate: NonZeroU32::new(self.limits.principal_rate)
                    .map(|rate| RateLimiter::direct(Quota::per_second(rate))),
                bodies: Arc::new(Semaphore::new(self.principal_body_bytes as usize)),
                documents: Arc::new(Semaphore::new(DOCUMENTS)),
                used: now,
            }
        });
        entry.used = now;
        if let Some(Err(early)) = entry.rate.as_ref().map(|rate| rate.check()) {
            let text = format!(
                "`{principal}` sends more than {} requests a second (`http.principal-rate`)",
                self.limits.principal_rate
            );
            let wait = early.wait_time_from(DefaultClock::default().now());
            let refused =
                Problem::refused(StatusCode::TOO_MANY_REQUESTS, codes::RATE_LIMITED, text);
            return Err(refused.retry_after(wait));
        }
        let Ok(permit) = Arc::clone(&entry.requests).try_acquire_owned() else {
            let text = format!(
                "`{principal}` has {} requests in progress (`http.principal-requests`)",
                self.limits.principal_requests
            );
            let code = codes::TOO_MANY_REQUESTS;
            return Err(Problem::refused(StatusCode::TOO_MANY_REQUESTS, code, text)
                .help("send the next request when another one has ended"));
        };
        let session = match key {
            Some(key) => {
                let id = SessionId(session_of_idempotency_key(key));
                Arc::new(self.open(Arc::clone(&entry.client), id))
            }
            None => Arc::clone(&entry.session),
        };
        let (bodies, documents) = (Arc::clone(&entry.bodies), Arc::clone(&entry.documents));
        Ok(Place { session, permit, bodies, documents })
    }

    fn open(&self, client: Arc<ClientInfo>, id: SessionId) -> CallSession<S> {
        CallSession::open(&self.server, client, id, self.ending.clone())
    }

    fn known(&self) -> MutexGuard<'_, Known<S>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
