//! The numbers with which connections are closed and streams are reset.
//!
//! QUIC carries a number and, for a connection, a reason in words. Numbers are never given out anew.

use quinn::VarInt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a connection was closed or a stream reset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum CloseCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl CloseCode {
            /// Every code, by rising number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code's stable name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// The sender has no more use for it.
    Done = 0x00, "done";
    /// The node stops or drains; connect to another one, or to this one again later.
    ShuttingDown = 0x01, "shutting-down";
    /// The first stream of the connection did not begin with a hello.
    InvalidHello = 0x02, "invalid-hello";
    /// No hello came in time.
    HelloTimeout = 0x03, "hello-timeout";
    /// There is no protocol version that both sides speak.
    UnsupportedProtocol = 0x04, "unsupported-protocol";
    /// The other side requires a feature that this one does not know; the reason names it.
    UnknownFeature = 0x05, "unknown-feature";
    /// The other side belongs to another cluster.
    ClusterMismatch = 0x06, "cluster-mismatch";
    /// The node has as many connections as it takes.
    TooManyConnections = 0x07, "too-many-connections";
    /// This protocol is for nodes: the certificate is a client's; the reason names it.
    NodesOnly = 0x08, "nodes-only";
    /// The other side is another node than it says, or than was expected; the reason names both.
    NodeMismatch = 0x09, "node-mismatch";
    /// The other node counts other shards; the reason has both numbers.
    ShardCountMismatch = 0x0a, "shard-count-mismatch";
    /// The other node puts entities into shards by another hash; the reason names both.
    HashMismatch = 0x0b, "hash-mismatch";
    /// A frame's announced length is beyond the limit.
    FrameTooLarge = 0x10, "frame-too-large";
    /// A frame is not the message that belongs there.
    InvalidFrame = 0x11, "invalid-frame";
    /// A frame began and did not end in time.
    FrameTimeout = 0x12, "frame-timeout";
    /// A stream was opened and its first frame did not come in time.
    OpenTimeout = 0x13, "open-timeout";
    /// A frame that has no place there: a second hello, a session id that is not 16 bytes.
    UnexpectedFrame = 0x14, "unexpected-frame";
    /// The stream ended within a frame.
    TruncatedFrame = 0x15, "truncated-frame";
    /// Replies waited and the other side took nothing of them in time.
    ReplyTimeout = 0x16, "reply-timeout";
    /// The principal has as many streams open as it may.
    TooManyStreams = 0x17, "too-many-streams";
    /// The next piece of a component, or the last one, did not come in time.
    UploadTimeout = 0x18, "upload-timeout";
}

impl CloseCode {
    /// The code of a number, if it is one of these.
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
        f.write_str(self.name())
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
