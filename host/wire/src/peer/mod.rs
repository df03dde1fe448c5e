//! Nodes among themselves: who the other one is, links to it, and what goes over them.
//!
//! [`facts`] says who a node is and what two nodes must agree in; [`dial`] makes links to others, and
//! [`PeerService`] takes theirs. [`messages`] are what clients sent and another node runs; [`calls`] and
//! [`serve`] are the two halves of a stream of calls: the stores' and the manager's, whose bytes are their
//! own business.
//!
//! What is confusing: a link has a direction. The node that dialled opens streams, the other one serves
//! them; two nodes that both have something to ask have two connections (of each ALPN) between them.
//! All of them share one UDP socket and its task, on the endpoint's runtime: what a control connection
//! has to itself is its streams, its windows and the tasks that serve it.

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

/// The versions of what nodes say to each other that this release speaks: control messages and store calls. Two nodes
/// speak the highest that both have. Version 1 was never released.
pub const PEER_PROTOCOL_VERSIONS: std::ops::RangeInclusive<u32> = 2..=2;

/// Bytes of a frame beside its body: two fields' heads and a tag, rounded up.
const FRAME_OVERHEAD: usize = 32;

/// Which of the two protocols between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// Messages and the EntityStore.
    Bulk,
    /// Leases, rows, and what the manager says: never behind bulk.
    Control,
}

impl Alpn {
    /// As TLS knows it.
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

/// What a stream between nodes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Messages that this node should run, and their replies: [`messages::serve`].
    Forwarding {
        /// Messages without a reply that the other side wants at most.
        max_in_flight_messages: u32,
        /// Bytes of them.
        max_in_flight_bytes: u64,
    },
    /// Calls of the EntityStore.
    EntityStore,
    /// Calls and watches of the ClusterStore.
    ClusterStore,
    /// What node and manager tell each other.
    Control,
    /// What the other node has in memory, asked for an operator.
    Inspect,
}

impl StreamKind {
    /// Where it belongs.
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

    /// What a stream's first frame says, on a connection of `alpn`.
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
                let text = "a stream for nothing that is known";
                return Err(Error::violation(CloseCode::InvalidFrame, text));
            }
        };
        if kind.alpn() == alpn {
            return Ok(kind);
        }
        let text = format!("a stream of {kind} has no place on {alpn}");
        Err(Error::violation(CloseCode::UnexpectedFrame, text))
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forwarding { .. } => "messages",
            Self::EntityStore => "calls of the store",
            Self::ClusterStore => "calls of the cluster's rows",
            Self::Control => "control messages",
            Self::Inspect => "questions of what is in memory",
        })
    }
}

/// What a node does with other nodes' streams.
pub trait PeerService: Send + Sync + 'static {
    /// Serves a stream to its end. It is polled on [`PeerService::runtime`] of its connection. When the
    /// connection breaks, its reader and writer fail; when the node stops, [`messages::serve`] and
    /// [`serve::serve_calls`] end by themselves, and anything else is given the node's grace.
    fn serve_stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()>;

    /// Where connections of this protocol are served once their handshake is done.
    fn runtime(&self, alpn: Alpn) -> Handle;
}

/// Who is at the other end of a connection between nodes: what its certificate and its hello say.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Which life of which node; the name is its certificate's.
    pub member: Member,
    /// What it does.
    pub roles: Roles,
    /// Where it takes clients and nodes, as it says.
    pub addresses: Vec<String>,
    /// Where it is.
    pub remote: SocketAddr,
    /// The identity of its `EntityStore` (R5); 0: it has not said.
    pub store_id: u128,
    /// Shards of the pool `default`; 0: it does not know yet.
    pub shards: u32,
    /// The hash that puts entities into shards; empty: it does not know yet.
    pub hash: String,
    /// The highest format of records that it reads; 0: it has not said.
    pub format: u32,
    /// The version that both speak, of [`VERSIONS`].
    pub version: u32,
    /// Its software, for logs.
    pub software: String,
    /// What both take.
    pub limits: NegotiatedLimits,
    /// What this node holds for those whose messages come from there.
    pub(crate) budgets: Arc<Budgets>,
    /// This node stops: streams take nothing new.
    pub(crate) stopping: CancellationToken,
}

/// What the two nodes of a connection agreed to: of each bound the smaller one of both sides'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedLimits {
    /// Bytes of a frame that the other side takes (`peer_max_frame`).
    pub max_frame: u32,
    /// Calls of a stream without an answer (`peer_calls`).
    pub in_flight_requests: u32,
    /// Bytes of them (`peer_call_bytes`).
    pub in_flight_request_bytes: u64,
    /// Messages of a stream without a reply (`peer_messages`).
    pub in_flight_messages: u32,
    /// Bytes of them (`peer_message_bytes`).
    pub in_flight_message_bytes: u64,
    /// Bytes of a message's body that this side takes (`max_message`).
    pub max_message: u32,
    /// Events of a stream that may wait at the one who asked for them (`peer_pushes`).
    pub pushes: usize,
}

impl NegotiatedLimits {
    /// From this side's own limits and what the other side announced; 0 there stands for "not announced".
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
            pushes: own.pushes,
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
        let told = "unexpected-frame: a stream of messages has no place on ostraca-control/1";
        assert_eq!(error.to_string(), told);
    }
}
