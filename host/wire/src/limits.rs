//! What a side accepts from its peer: every limit of the protocol that is a setting, with its default. The fixed limits
//! on the lengths of an envelope's fields are in `validate.rs`.

use std::time::Duration;

use crate::proto;

/// Limits of an endpoint. Each has a default, and errors name the limit that was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of an envelope's body in bytes. Default 1 MiB. Memory: `session_in_flight_bytes` per session.
    pub max_message: u32,
    /// Maximum size of a frame in bytes, checked before any of it is stored. Default `max_message` plus 64 KiB.
    pub max_frame: u32,
    /// Maximum number of unanswered messages per session. Default 256.
    pub session_in_flight_messages: u32,
    /// Maximum total size in bytes of a session's unanswered messages. Default 8 MiB. Reading continues to the end of
    /// the message that crosses the limit, so a session holds at most this plus one frame.
    pub session_in_flight_bytes: u64,
    /// Maximum number of bytes held for a connection: its unanswered messages, and replies not yet handed to QUIC.
    /// Default 32 MiB. At the limit, nothing more is read from the connection; if replies alone reach it, no further
    /// reply is made. Memory: at worst twice this, plus `send_window`. The next two limits work in the same way, except
    /// that at the limit messages are read and refused.
    pub connection_bytes: u64,
    /// Maximum number of bytes held for all connections of a principal, and for what other nodes forward for it.
    /// Default 128 MiB.
    pub principal_bytes: u64,
    /// Maximum number of bytes held for all principals. Default 512 MiB.
    pub node_bytes: u64,
    /// How long a reply may wait for the peer to read any of it. Default 1 min.
    pub reply_timeout: Duration,
    /// Maximum number of streams per connection. Default 100.
    pub max_streams: u32,
    /// Maximum number of streams per principal, over all of its connections. Default 5,000.
    pub principal_streams: usize,
    /// Maximum number of client connections per node. Default 1,000.
    pub max_connections: usize,
    /// Maximum number of connections per principal. Default 250.
    pub principal_connections: usize,
    /// Connections reserved for principals that have none; at most a quarter of `max_connections`. Default 50.
    pub reserved_connections: usize,
    /// Maximum size of a deployed component in bytes. Default 64 MiB.
    pub max_component: u64,
    /// Maximum number of concurrent component uploads to a node. Default 4. Memory: `max_component` each.
    pub max_uploads: usize,
    /// Maximum number of concurrent component uploads per principal. Default 2.
    pub principal_uploads: usize,
    /// How long a further deploy waits, unread, for another one to end before it is refused. Default 1 s.
    pub upload_queue_timeout: Duration,
    /// Maximum time from one fragment of a component to the next. Default 20 s.
    pub upload_fragment_timeout: Duration,
    /// Maximum time from a deploy's request to the last fragment of its component. Default 5 min.
    pub upload_timeout: Duration,
    /// Timeout of the handshake and of the hello: on the accepting side for each, on the dialling side for both
    /// together. Default 10 s.
    pub hello_timeout: Duration,
    /// Maximum time from the opening of a stream to its first complete frame. Default 10 s.
    pub open_timeout: Duration,
    /// Maximum time from a frame's first byte to its last. Default 20 s.
    pub frame_timeout: Duration,
    /// Maximum number of unread bytes per stream. Default 2 MiB.
    pub stream_receive_window: u32,
    /// Maximum number of unread bytes per connection. Default 16 MiB.
    pub connection_receive_window: u32,
    /// Maximum number of unacknowledged bytes per connection, at the sender. Default 16 MiB. Further connections of a
    /// principal to a node get less, so that all of them together hold less than twice its budget.
    pub send_window: u64,
    /// Silence after which a keep-alive is sent. Default 5 s.
    pub keep_alive_interval: Duration,
    /// Silence after which a connection is considered lost. Default 30 s.
    pub idle_timeout: Duration,
    /// Size of the UDP socket's buffers in bytes, in each direction; the kernel may give less. Default 2 MiB.
    pub socket_buffer: usize,
    /// Limits between nodes.
    pub peers: PeerLimits,
}

/// Limits of connections between nodes. In errors, their names begin with `peers.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Maximum size of a frame in bytes. Default 20 MiB: a record of the largest size, with its head, fits into one
    /// frame. Memory: one frame per stream that is being received.
    pub max_frame: u32,
    /// Maximum number of unanswered requests per stream. Default 4,096.
    pub in_flight_requests: u32,
    /// Maximum total size in bytes of a stream's unanswered requests. Default 64 MiB. The frame that crosses the limit
    /// is still accepted, so a stream holds at most this plus one frame of requests, on each side.
    pub in_flight_request_bytes: u64,
    /// Maximum number of unanswered messages per stream. Default 8,192.
    pub in_flight_messages: u32,
    /// Maximum total size in bytes of a stream's unanswered messages, and also of the replies queued on it. Default
    /// 64 MiB. Each side may hold one more frame. Principals share the part for replies.
    pub in_flight_message_bytes: u64,
    /// Maximum number of connections from nodes, in addition to the `max_connections` from clients. Default 128.
    pub max_connections: usize,
    /// Silence after which the node that dialled sends a keep-alive. Default 500 ms.
    pub keep_alive_interval: Duration,
    /// Silence after which both sides consider a connection lost. Default 3 s.
    pub idle_timeout: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            max_frame: 20 << 20,
            in_flight_requests: 4_096,
            in_flight_request_bytes: 64 << 20,
            in_flight_messages: 8_192,
            in_flight_message_bytes: 64 << 20,
            max_connections: 128,
            keep_alive_interval: Duration::from_millis(500),
            idle_timeout: Duration::from_secs(3),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 1 << 20,
            max_frame: (1 << 20) + (64 << 10),
            session_in_flight_messages: 256,
            session_in_flight_bytes: 8 << 20,
            connection_bytes: 32 << 20,
            principal_bytes: 128 << 20,
            node_bytes: 512 << 20,
            reply_timeout: Duration::from_secs(60),
            max_streams: 100,
            principal_streams: 5_000,
            max_connections: 1_000,
            principal_connections: 250,
            reserved_connections: 50,
            max_component: 64 << 20,
            max_uploads: 4,
            principal_uploads: 2,
            upload_queue_timeout: Duration::from_secs(1),
            upload_fragment_timeout: Duration::from_secs(20),
            upload_timeout: Duration::from_secs(300),
            hello_timeout: Duration::from_secs(10),
            open_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(20),
            stream_receive_window: 2 << 20,
            connection_receive_window: 16 << 20,
            send_window: 16 << 20,
            keep_alive_interval: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            socket_buffer: 2 << 20,
            peers: PeerLimits::default(),
        }
    }
}

impl Limits {
    /// The limits announced in a hello between a client and a node.
    #[must_use]
    pub fn announced(&self) -> proto::Limits {
        proto::Limits {
            max_frame: self.max_frame,
            max_message: self.max_message,
            session_in_flight_messages: self.session_in_flight_messages,
            session_in_flight_bytes: self.session_in_flight_bytes,
            max_streams: self.max_streams,
            max_component: self.max_component,
            ..proto::Limits::default()
        }
    }

    /// The limits announced in a hello between nodes.
    #[must_use]
    pub fn announced_to_peers(&self) -> proto::Limits {
        proto::Limits {
            max_frame: self.peers.max_frame,
            max_message: self.max_message,
            max_streams: self.max_streams,
            peer_in_flight_requests: self.peers.in_flight_requests,
            peer_in_flight_request_bytes: self.peers.in_flight_request_bytes,
            peer_in_flight_messages: self.peers.in_flight_messages,
            peer_in_flight_message_bytes: self.peers.in_flight_message_bytes,
            ..proto::Limits::default()
        }
    }
}
