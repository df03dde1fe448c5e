//! What all handlers share.

use std::sync::Arc;

use ostraca_stats::Stats;
use ostraca_wire::server::{Server, Service};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::guard::Hosts;
use crate::health::{Readiness, TypeWait};
use crate::links::LoginLinks;
use crate::sessions::Sessions;
use crate::settings::HttpSettings;

/// What the handlers share.
pub(crate) struct App<S: Service> {
    pub(crate) server: Arc<Server<S>>,
    pub(crate) auth: Authenticator<S>,
    /// Cancelled when the gateway stops: then responses that go on end.
    pub(crate) stop: CancellationToken,
    pub(crate) sessions: Sessions<S>,
    pub(crate) hosts: Hosts,
    /// The name of the console's cookie.
    pub(crate) cookie: String,
    pub(crate) links: Arc<LoginLinks>,
    pub(crate) readiness: Readiness,
    pub(crate) type_wait: TypeWait,
    pub(crate) stats: Arc<Stats>,
    pub(crate) settings: HttpSettings,
    /// Maximum size of a body in bytes.
    pub(crate) max_message: u32,
    /// The bytes of bodies that may be received at once.
    pub(crate) bodies: Arc<Semaphore>,
    /// Places for descriptions of types that are being sent.
    pub(crate) documents: Arc<Semaphore>,
}
