//! The numeric codes with which connections are closed and streams are reset.
//!
//! QUIC carries a number and, for a connection, a reason as text. Numbers are never reused.

use ostraca_codes::{Code, codes};
use quinn::VarInt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $code:ident;)*) => {
        /// Why a connection was closed or a stream reset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum CloseCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl CloseCode {
            /// All codes, in ascending order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The row for this code in the table of error codes, which holds its stable name.
            #[must_use]
            pub fn code(self) -> Code {
                match self {
                    $(Self::$name => codes::$code,)*
                }
            }
        }
    };
}

codes! {
    /// The sender no longer needs the connection or stream.
    Done = 0x00, DONE;
    /// The node is stopping or draining: connect to another one, or to this one again later.
    ShuttingDown = 0x01, SHUTTING_DOWN;
    /// The first stream of the connection did not begin with a hello.
    InvalidHello = 0x02, INVALID_HELLO;
    /// No hello arrived in time.
    HelloTimeout = 0x03, HELLO_TIMEOUT;
    /// The two sides support no common protocol version.
    UnsupportedProtocol = 0x04, UNSUPPORTED_PROTOCOL;
    /// The peer requires a feature that this side does not know; the reason names it.
    UnknownFeature = 0x05, UNKNOWN_FEATURE;
    /// The peer belongs to another cluster.
    ClusterMismatch = 0x06, CLUSTER_MISMATCH;
    /// A limit on connections is reached.
    TooManyConnections = 0x07, TOO_MANY_CONNECTIONS;
    /// This protocol is for nodes, but the certificate is a client's; the reason names the client.
    NodesOnly = 0x08, NODES_ONLY;
    /// The peer is not the node that it claims to be, or not the one that was expected; the reason names both.
    NodeMismatch = 0x09, NODE_MISMATCH;
    /// The two nodes have different numbers of shards; the reason states both.
    ShardCountMismatch = 0x0a, SHARD_COUNT_MISMATCH;
    /// The two nodes map entities to shards with different hashes; the reason names both.
    HashMismatch = 0x0b, HASH_MISMATCH;
    /// The announced length of a frame exceeds the limit.
    FrameTooLarge = 0x10, FRAME_TOO_LARGE;
    /// A frame does not decode as the expected message.
    InvalidFrame = 0x11, INVALID_FRAME;
    /// A frame was not complete in time.
    FrameTimeout = 0x12, FRAME_TIMEOUT;
    /// The first frame of a stream did not arrive in time.
    OpenTimeout = 0x13, OPEN_TIMEOUT;
    /// A frame is not allowed where it appears, such as a second hello, or a session id that is not 16 bytes long.
    UnexpectedFrame = 0x14, UNEXPECTED_FRAME;
    /// The stream ended in the middle of a frame.
    TruncatedFrame = 0x15, TRUNCATED_FRAME;
    /// The peer did not read any pending reply in time.
    ReplyTimeout = 0x16, REPLY_TIMEOUT;
    /// The principal has reached its limit on open streams.
    TooManyStreams = 0x17, TOO_MANY_STREAMS;
    /// A fragment of a component, or the last one, did not arrive in time.
    UploadTimeout = 0x18, UPLOAD_TIMEOUT;
    /// The client's credential was revoked; the reason names it.
    Revoked = 0x19, REVOKED;
    /// The client showed neither a certificate nor a token.
    Unauthenticated = 0x1a, UNAUTHENTICATED;
    /// The client's token is not accepted; the reason says why.
    InvalidToken = 0x1b, INVALID_TOKEN;
    /// The client's token has expired since the connection was opened.
    TokenExpired = 0x1c, TOKEN_EXPIRED;
    /// The node cannot check the client's token now; the reason says why.
    NotReady = 0x1d, NOT_READY;
}

impl CloseCode {
    /// The code with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| u64::from(*code as u32) == number)
    }
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}

impl std::fmt::Display for CloseCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_number() {
        for code in CloseCode::ALL {
            assert_eq!(CloseCode::from_number(u64::from(*code as u32)), Some(*code));
        }
        assert_eq!(CloseCode::from_number(0xdead), None);
    }
}
