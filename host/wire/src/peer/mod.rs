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

pub mod calls;
pub mod dial;
pub mod facts;
pub mod look;
pub mod messages;
mod pending;
pub mod serve;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use ostraca_core::rows::{Member, Roles};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use dial::{PeerDialer, PeerLink};
pub use facts::Facts;

use crate::budget::Budgets;
use crate::code::Code;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::limits::Limits;
use crate::proto::{self, peer_open};
use crate::{ALPN_CONTROL, ALPN_PEER};

/// The versions of what nodes say to each other that this release speaks: control messages and store calls. Two nodes
/// speak the highest that both have. Version 1 was never released.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 2..=2;

/// Bytes of a frame beside its body: two fields' heads and a tag, rounded up.
const HEAD: usize = 32;

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
    Messages {
        /// Messages without a reply that the other side wants at most.
        messages: u32,
        /// Bytes of them.
        bytes: u64,
    },
    /// Calls of the EntityStore.
    Store,
    /// Calls and watches of the ClusterStore.
    Cluster,
    /// What node and manager tell each other.
    Talk,
    /// What the other node has in memory, asked for an operator.
    Look,
}

impl StreamKind {
    /// Where it belongs.
    #[must_use]
    pub fn alpn(self) -> Alpn {
        match self {
            Self::Messages { .. } | Self::Store | Self::Look => Alpn::Bulk,
            Self::Cluster | Self::Talk => Alpn::Control,
        }
    }

    fn open(self) -> peer_open::Stream {
        use peer_open::Stream;
        match self {
            Self::Messages { messages, bytes } => {
                Stream::Messages(proto::MessagesOpen { messages, bytes })
            }
            Self::Store => Stream::Store(proto::StoreOpen {}),
            Self::Cluster => Stream::Cluster(proto::ClusterOpen {}),
            Self::Talk => Stream::Talk(proto::TalkOpen {}),
            Self::Look => Stream::Look(proto::LookOpen {}),
        }
    }

    /// What a stream's first frame says, on a connection of `alpn`.
    pub(crate) fn opened(stream: Option<peer_open::Stream>, alpn: Alpn) -> Result<Self, Error> {
        use peer_open::Stream;
        let kind = match stream {
            Some(Stream::Messages(proto::MessagesOpen { messages, bytes })) => {
                Self::Messages { messages, bytes }
            }
            Some(Stream::Store(_)) => Self::Store,
            Some(Stream::Cluster(_)) => Self::Cluster,
            Some(Stream::Talk(_)) => Self::Talk,
            Some(Stream::Look(_)) => Self::Look,
            Some(Stream::Hello(_)) => {
                return Err(Error::violation(Code::UnexpectedFrame, "a second hello"));
            }
            None => {
                let text = "a stream for nothing that is known";
                return Err(Error::violation(Code::BadFrame, text));
            }
        };
        if kind.alpn() == alpn {
            return Ok(kind);
        }
        let text = format!("a stream of {kind} has no place on {alpn}");
        Err(Error::violation(Code::UnexpectedFrame, text))
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages { .. } => "messages",
            Self::Store => "calls of the store",
            Self::Cluster => "calls of the cluster's rows",
            Self::Talk => "control messages",
            Self::Look => "questions of what is in memory",
        })
    }
}

/// What a node does with other nodes' streams.
pub trait PeerService: Send + Sync + 'static {
    /// Serves a stream to its end. It is polled on [`PeerService::runtime`] of its connection. When the
    /// connection breaks, its reader and writer fail; when the node stops, [`messages::serve`] and
    /// [`serve::serve_calls`] end by themselves, and anything else is given the node's grace.
    fn stream(
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
    pub store: u128,
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
    pub bounds: Bounds,
    /// What this node holds for those whose messages come from there.
    pub(crate) budgets: Arc<Budgets>,
    /// This node stops: streams take nothing new.
    pub(crate) stopping: CancellationToken,
}

/// What the two nodes of a connection agreed to: of each bound the smaller one of both sides'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a frame that the other side takes (`peer_max_frame`).
    pub frame: u32,
    /// Calls of a stream without an answer (`peer_calls`).
    pub calls: u32,
    /// Bytes of them (`peer_call_bytes`).
    pub call_bytes: u64,
    /// Messages of a stream without a reply (`peer_messages`).
    pub messages: u32,
    /// Bytes of them (`peer_message_bytes`).
    pub message_bytes: u64,
    /// Bytes of a message's body that this side takes (`max_message`).
    pub message: u32,
    /// Events of a stream that may wait at the one who asked for them (`peer_pushes`).
    pub pushes: usize,
}

impl Bounds {
    /// From this side's own limits and what the other side announced; 0 there stands for "not announced".
    #[must_use]
    pub fn agreed(own: &Limits, theirs: &proto::Limits) -> Self {
        let message = own.max_message;
        let own = &own.peers;
        let smaller = |own: u64, theirs: u64| if theirs == 0 { own } else { own.min(theirs) };
        let small = |own: u32, theirs: u32| if theirs == 0 { own } else { own.min(theirs) };
        Self {
            frame: small(own.max_frame, theirs.max_frame),
            calls: small(own.calls, theirs.peer_calls),
            call_bytes: smaller(own.call_bytes, theirs.peer_call_bytes),
            messages: small(own.messages, theirs.peer_messages),
            message_bytes: smaller(own.message_bytes, theirs.peer_message_bytes),
            message,
            pushes: own.pushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_out_of_place_is_told_in_plain_words() {
        let kind = StreamKind::Messages { messages: 1, bytes: 2 };
        let error = StreamKind::opened(Some(kind.open()), Alpn::Control).expect_err("bulk");
        let told = "unexpected-frame: a stream of messages has no place on ostraca-control/1";
        assert_eq!(error.to_string(), told);
    }
}
