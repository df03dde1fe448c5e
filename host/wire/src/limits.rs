//! What a side takes from the other: every bound of the protocol, with its default.

use std::time::Duration;

use crate::proto;

/// Bounds of an endpoint. Each has a default, and the errors name the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an envelope's body. Default 1 MiB. Memory: `session_bytes` a session.
    pub max_message: u32,
    /// Bytes of a frame, checked before anything of it is kept. Default `max_message` and 64 KiB.
    pub max_frame: u32,
    /// Messages of a session without a reply. Default 256.
    pub session_in_flight_messages: u32,
    /// Bytes of a session's messages without a reply. Default 8 MiB. A session's reader goes on
    /// to the end of the message that passes it, so a session holds at most this and one frame.
    pub session_in_flight_bytes: u64,
    /// Bytes of a connection: its messages without a reply, and replies that were not handed to QUIC. Default
    /// 32 MiB. Beyond it nothing more of the connection is read, and beyond as much of replies alone none is made.
    /// Memory: at worst twice this, and `send_window`. The next two are the same.
    pub connection_bytes: u64,
    /// Bytes of all connections of a principal, and of what other nodes pass on for it. Default 128 MiB.
    pub principal_bytes: u64,
    /// Bytes of all principals. Default 512 MiB.
    pub node_bytes: u64,
    /// How long a reply may wait for the other side to take any of it. Default 1 min.
    pub reply_timeout: Duration,
    /// Streams of a connection. Default 100.
    pub max_streams: u32,
    /// Streams of a principal, on all of its connections. Default 5,000.
    pub principal_streams: usize,
    /// Connections of a node. Default 1,000.
    pub max_connections: usize,
    /// Connections of a principal. Default 250.
    pub principal_connections: usize,
    /// Connections that are kept for principals that have none; at most a quarter of `max_connections`. Default 50.
    pub reserved_connections: usize,
    /// Bytes of a component in a deploy. Default 64 MiB.
    pub max_component: u64,
    /// Deploys of a node that are received at the same time. Default 4. Memory: `max_component` each.
    pub max_uploads: usize,
    /// The same of a principal. Default 2.
    pub principal_uploads: usize,
    /// How long a deploy beyond those waits, unread, until one ends; then it is refused. Default 1 s.
    pub upload_queue_timeout: Duration,
    /// From one piece of a component to the next. Default 20 s.
    pub upload_fragment_timeout: Duration,
    /// From a deploy's request to the last piece of its component. Default 5 min.
    pub upload_timeout: Duration,
    /// From the first packet to the end of the hello. Default 10 s.
    pub hello_timeout: Duration,
    /// From a stream's opening to its first whole frame. Default 10 s.
    pub open_timeout: Duration,
    /// From a frame's first byte to its last. Default 20 s.
    pub frame_timeout: Duration,
    /// Bytes that may wait unread on one stream. Default 2 MiB.
    pub stream_receive_window: u32,
    /// Bytes that may wait unread on one connection. Default 16 MiB.
    pub connection_receive_window: u32,
    /// Bytes that may wait unacknowledged at the sender, a connection. Default 16 MiB. A principal's further
    /// connections to a node have less, so that all of them stay within its budget.
    pub send_window: u64,
    /// Silence after which a keep-alive is sent. Default 5 s.
    pub keep_alive_interval: Duration,
    /// Silence after which a connection is given up. Default 30 s.
    pub idle_timeout: Duration,
    /// Bytes of the UDP socket's buffers, each way; the kernel may give less. Default 2 MiB.
    pub socket_buffer: usize,
    /// What nodes take from each other.
    pub peers: PeerLimits,
}

/// Bounds of connections between nodes. In errors their names begin with `peer_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Bytes of a frame. Default 20 MiB: a record of the largest size with its head, in one frame.
    /// Memory: one frame a stream that is being received.
    pub max_frame: u32,
    /// Calls of a stream without an answer. Default 4,096.
    pub in_flight_requests: u32,
    /// Bytes of a stream's calls without an answer. Default 64 MiB. The frame that passes it is still
    /// taken, so a stream holds at most this and one frame of calls, at each side.
    pub in_flight_request_bytes: u64,
    /// Events of a stream that may wait for whoever asked for them. Default 1,024. Beyond it the
    /// stream is not read. Memory: `max_frame` each at the very most; events are of rows, and small.
    pub pushes: usize,
    /// Messages of a stream without a reply. Default 8,192.
    pub in_flight_messages: u32,
    /// Bytes of a stream's messages without a reply, and of replies that wait on it. Default 64 MiB, and one frame,
    /// at each side. Principals share the replies' part.
    pub in_flight_message_bytes: u64,
    /// Connections from nodes, beside the `max_connections` of clients. Default 128.
    pub max_connections: usize,
    /// Silence after which a keep-alive is sent, by the node that dialled. Default 500 ms.
    pub keep_alive_interval: Duration,
    /// Silence after which a connection is given up, at both sides. Default 3 s.
    pub idle_timeout: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            max_frame: 20 << 20,
            in_flight_requests: 4_096,
            in_flight_request_bytes: 64 << 20,
            pushes: 1_024,
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
    /// What of them is announced in a hello.
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

    /// What of them is announced in a hello between nodes.
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
