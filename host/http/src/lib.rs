//! The HTTP gateway of a node: calls of entities, their channels, and operators' requests over HTTP/1.1 and HTTP/2,
//! with JSON; and the console.
//!
//! A request is authenticated by its token, and its message takes the same way as one that comes over QUIC: through
//! [`Service::handle_messages`](ostraca_wire::server::Service::handle_messages), with the same checks, budgets, retries
//! and outcomes. Callers of HTTP have no sessions, so the gateway keeps one for each principal: however many callers
//! there are, an entity knows them as one sender for each node (`session`).
//!
//! Confusing at first: an HTTP status says less than an outcome does. Whether the message ran is in `outcome` of the
//! problem document, or in the header `ostraca-outcome`.

mod admin;
mod app;
mod auth;
mod bounded;
mod calls;
mod channels;
mod dead_letters;
mod gateway;
mod guard;
mod health;
mod http3;
mod links;
mod login;
mod metrics;
mod openapi;
mod origin;
mod page;
mod path;
mod problem;
mod router;
mod sent;
mod serve;
mod session;
mod sessions;
mod settings;
mod stream;
mod webtransport;

pub use auth::ANONYMOUS;
pub use gateway::{HttpGateway, Probes};
pub use health::{Readiness, TypeWait};
pub use links::LoginLinks;
pub use metrics::{MetricsServer, MetricsSource};
pub use serve::BindError;
pub use settings::{HttpSettings, TlsFiles};
