//! Connections between nodes: identities, links, and what the links carry.
//!
//! [`descriptor`] says who a node is and what two nodes must agree on. [`dial`] opens links to other nodes, and
//! [`PeerService`] serves theirs. [`forwarding`] carries clients' messages to the node that runs them.
//! [`rpc_client`] and [`rpc_server`] are the two halves of a stream of requests, whose bodies are defined by
//! the stores and by the manager.
//!
//! A link has a direction: the node that dialled opens streams, and the other one serves them. Two nodes that
//! both send requests have two connections (of each ALPN) between them. All of them share one UDP socket and
//! its task, on the endpoint's runtime. A control connection has its own streams, windows and serving tasks.

pub mod descriptor;
pub mod dial;
pub mod forwarding;
pub mod inspect;
mod pending;
pub mod rpc_client;
pub mod rpc_server;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use ostraca_core::rows::{Member, Roles};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use descriptor::PeerDescriptor;
pub use dial::{PeerDialer, PeerLink};

use crate::budget::Budgets;
use crate::close_code::CloseCode;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::limits::Limits;
use crate::proto::{self, peer_open};
use crate::{ALPN_CONTROL, ALPN_PEER};

/// The versions of the control messages and store calls that this release supports. Two nodes use the highest version
/// that both support. Version 1 was never released.
pub const PEER_PROTOCOL_VERSIONS: std::ops::RangeInclusive<u32> = 2..=2;

/// Bytes of a frame in addition to its body: two field headers and a tag, rounded up.
const FRAME_OVERHEAD: usize = 32;

/// The two protocols between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// Messages and the EntityStore.
    Bulk,
    /// Leases, rows and control messages: never behind bulk traffic.
    Control,
}

impl Alpn {
    /// The protocol's name in TLS.
    #[must_use]
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Bulk => ALPN_PEER,
            Self::Control => ALPN_CONTROL,
        }
    }

    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        [Self::Bulk, Self::Control].into_iter().find(|alpn| alpn.name() == name)
    }
}

impl fmt::Display for Alpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.name()))
    }
}

/// The kinds of streams between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Messages for this node to run, and their replies: [`forwarding::serve`].
    Forwarding {
        /// The limit on unanswered messages that the peer asks for.
        max_in_flight_messages: u32,
        /// The limit on the bytes of unanswered messages that the peer asks for.
        max_in_flight_bytes: u64,
    },
    /// Calls to the EntityStore.
    EntityStore,
    /// Calls to the ClusterStore, and watches of it.
    ClusterStore,
    /// Control messages.
    Control,
    /// What the other node has in memory, requested for an operator.
    Inspect,
}

impl StreamKind {
    /// The protocol whose connections carry this kind of stream.
    #[must_use]
    pub fn alpn(self) -> Alpn {
        match self {
            Self::Forwarding { .. } | Self::EntityStore | Self::Inspect => Alpn::Bulk,
            Self::ClusterStore | Self::Control => Alpn::Control,
        }
    }

    fn open(self) -> peer_open::Stream {
        use peer_open::Stream;
        match self {
            Self::Forwarding { max_in_flight_messages: messages, max_in_flight_bytes: bytes } => {
                Stream::Forwarding(proto::ForwardingOpen {
                    max_in_flight_messages: messages,
                    max_in_flight_bytes: bytes,
                })
            }
            Self::EntityStore => Stream::EntityStore(proto::EntityStoreOpen {}),
            Self::ClusterStore => Stream::ClusterStore(proto::ClusterStoreOpen {}),
            Self::Control => Stream::Control(proto::ControlOpen {}),
            Self::Inspect => Stream::Inspect(proto::InspectOpen {}),
        }
    }

    /// The kind that a stream's first frame names, if a connection of `alpn` may carry it.
    pub(crate) fn opened(stream: Option<peer_open::Stream>, alpn: Alpn) -> Result<Self, Error> {
        use peer_open::Stream;
        let kind = match stream {
            Some(Stream::Forwarding(proto::ForwardingOpen {
                max_in_flight_messages: messages,
                max_in_flight_bytes: bytes,
            })) => {
                Self::Forwarding { max_in_flight_messages: messages, max_in_flight_bytes: bytes }
            }
            Some(Stream::EntityStore(_)) => Self::EntityStore,
            Some(Stream::ClusterStore(_)) => Self::ClusterStore,
            Some(Stream::Control(_)) => Self::Control,
            Some(Stream::Inspect(_)) => Self::Inspect,
            Some(Stream::Hello(_)) => {
                return Err(Error::violation(CloseCode::UnexpectedFrame, "a second hello"));
            }
            None => {
                let text = "unknown stream type";
                return Err(Error::violation(CloseCode::InvalidFrame, text));
            }
        };
        if kind.alpn() == alpn {
            return Ok(kind);
        }
        let text = format!("a stream of {kind} is not allowed on {alpn}");
        Err(Error::violation(CloseCode::UnexpectedFrame, text))
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forwarding { .. } => "messages",
            Self::EntityStore => "store calls",
            Self::ClusterStore => "calls on the cluster's rows",
            Self::Control => "control messages",
            Self::Inspect => "inspections",
        })
    }
}

/// Serves the streams of other nodes.
pub trait PeerService: Send + Sync + 'static {
    /// Serves a stream to its end. The future is polled on the [`PeerService::runtime`] of its connection. When the
    /// connection breaks, `reader` and `writer` fail. When the node stops, [`forwarding::serve`] and
    /// [`rpc_server::serve_rpc`] end automatically; anything else gets the node's grace period.
    fn serve_stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()>;

    /// The runtime that serves connections of this protocol after their handshake.
    fn runtime(&self, alpn: Alpn) -> Handle;
}

/// The identity of the node at the other end of a connection, from its certificate and its hello.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// The node's name, from its certificate, and its incarnation.
    pub member: Member,
    /// The node's roles.
    pub roles: Roles,
    /// The addresses at which the node accepts clients and nodes, as it announced them.
    pub addresses: Vec<String>,
    /// The address of the connection's other end.
    pub remote: SocketAddr,
    /// The identity of its `EntityStore` (R5); 0 if not announced.
    pub store_id: u128,
    /// Number of shards of the pool `default`; 0 if the node does not know it yet.
    pub shards: u32,
    /// The hash that maps entities to shards; empty if the node does not know it yet.
    pub hash: String,
    /// The highest record format that the node can read; 0 if not announced.
    pub format: u32,
    /// The highest version in [`PEER_PROTOCOL_VERSIONS`] that both nodes support.
    pub version: u32,
    /// The node's software, for logs.
    pub software: String,
    /// The limits that both nodes accept.
    pub limits: NegotiatedLimits,
    /// The budgets for the principals whose messages this peer forwards.
    pub(crate) budgets: Arc<Budgets>,
    /// Cancelled when this node stops: streams accept nothing new.
    pub(crate) stopping: CancellationToken,
}

/// The negotiated limits of a connection: the smaller of the two sides' values, except for `max_message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedLimits {
    /// Maximum size of a frame that this side sends, in bytes.
    pub max_frame: u32,
    /// Maximum number of unanswered requests per stream.
    pub in_flight_requests: u32,
    /// Maximum total size of unanswered requests per stream, in bytes.
    pub in_flight_request_bytes: u64,
    /// Maximum number of unanswered messages per stream.
    pub in_flight_messages: u32,
    /// Maximum total size of unanswered messages per stream, in bytes.
    pub in_flight_message_bytes: u64,
    /// Maximum size of a message body that this side accepts, in bytes.
    pub max_message: u32,
}

impl NegotiatedLimits {
    /// Computes the limits from this side's and those that the peer announced, where 0 stands for "not announced".
    #[must_use]
    pub fn negotiate(own: &Limits, theirs: &proto::Limits) -> Self {
        let message = own.max_message;
        let own = &own.peers;
        let smaller = |own: u64, theirs: u64| if theirs == 0 { own } else { own.min(theirs) };
        let small = |own: u32, theirs: u32| if theirs == 0 { own } else { own.min(theirs) };
        Self {
            max_frame: small(own.max_frame, theirs.max_frame),
            in_flight_requests: small(own.in_flight_requests, theirs.peer_in_flight_requests),
            in_flight_request_bytes: smaller(
                own.in_flight_request_bytes,
                theirs.peer_in_flight_request_bytes,
            ),
            in_flight_messages: small(own.in_flight_messages, theirs.peer_in_flight_messages),
            in_flight_message_bytes: smaller(
                own.in_flight_message_bytes,
                theirs.peer_in_flight_message_bytes,
            ),
            max_message: message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misplaced_stream_is_described_in_plain_words() {
        let kind = StreamKind::Forwarding { max_in_flight_messages: 1, max_in_flight_bytes: 2 };
        let error = StreamKind::opened(Some(kind.open()), Alpn::Control).expect_err("bulk");
        let text = "unexpected-frame: a stream of messages is not allowed on ostraca-control/1";
        assert_eq!(error.to_string(), text);
    }
}
