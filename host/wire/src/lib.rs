//! Ostraca's protocol: messages, framing, TLS identities and the QUIC endpoint.
//!
//! `docs/protocol.md` says what crosses the wire; this crate is its implementation for both sides.
//! From the bottom up: [`proto`] (generated messages), [`frame`] (bytes to frames, sans-IO),
//! [`framed`] (the same over QUIC streams), [`check`], [`budget`] and [`envelope`] (whether a message is taken, and as what),
//! [`outcome`] (how it ends), [`identity`] and [`tls`] (who is who), [`endpoint`]
//! (sockets and bounds), [`dial`] (a client's side of a connection), [`server`] (a node's side), [`peer`]
//! (nodes among themselves).
//!
//! What is confusing: a *connection* is one QUIC connection; a *session* is a sender's series of
//! numbered messages, which outlives connections (R17). On a connection, each session has a stream.

pub mod budget;
pub mod clock;
pub mod close_code;
pub mod dial;
pub mod endpoint;
pub mod envelope;
mod error;
pub mod frame;
pub mod framed;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod hello;
pub mod identity;
pub mod limits;
mod message_stream;
pub mod outcome;
pub mod peer;
pub mod private_file;
pub mod server;
pub mod tls;
pub mod validate;

pub use error::{Error, decode_error_message, problem};
pub use limits::{Limits, PeerLimits};

/// The messages of `host/wire/proto`, as prost makes them.
#[allow(missing_docs, reason = "generated; what the .proto files say is all there is")]
#[allow(clippy::large_enum_variant, reason = "generated; a stream's first frame is not kept")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/ostraca.v1.rs"));
}

/// The TLS application protocol of clients.
pub const ALPN_CLIENT: &[u8] = b"ostraca-client/1";

/// The TLS application protocol of nodes among themselves: messages and the EntityStore.
pub const ALPN_PEER: &[u8] = b"ostraca-peer/1";

/// The TLS application protocol of nodes among themselves: leases, rows and what the manager says.
pub const ALPN_CONTROL: &[u8] = b"ostraca-control/1";
