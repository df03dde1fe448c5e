//! Nodes among themselves: who the other one is, links to it, and what goes over them.
//!
//! [`calls`] and [`serve`] are the two halves of a stream of calls (the stores' and the manager's),
//! which the caller's own bytes go over.
//!
//! What is confusing: a link has a direction. The node that dialled opens streams, the other one serves
//! them; two nodes that both have something to ask have two connections (of each ALPN) between them.

pub mod calls;
pub mod serve;

use std::net::SocketAddr;

use ostraca_sharding::rows::{Member, Roles};
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;
use crate::proto;

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
    /// Its software, for logs.
    pub software: String,
    /// What both take.
    pub bounds: Bounds,
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
    /// Events of a stream that may wait at the one who asked for them (`peer_pushes`).
    pub pushes: usize,
}

impl Bounds {
    /// From this side's own limits and what the other side announced; 0 there stands for "not announced".
    #[must_use]
    pub fn agreed(own: &Limits, theirs: &proto::Limits) -> Self {
        let own = &own.peers;
        let smaller = |own: u64, theirs: u64| if theirs == 0 { own } else { own.min(theirs) };
        let small = |own: u32, theirs: u32| if theirs == 0 { own } else { own.min(theirs) };
        Self {
            frame: small(own.max_frame, theirs.max_frame),
            calls: small(own.calls, theirs.peer_calls),
            call_bytes: smaller(own.call_bytes, theirs.peer_call_bytes),
            messages: small(own.messages, theirs.peer_messages),
            message_bytes: smaller(own.message_bytes, theirs.peer_message_bytes),
            pushes: own.pushes,
        }
    }
}
