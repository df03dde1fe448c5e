//! Codes with which a connection is closed or a stream is reset. `ostraca_wire::CloseCode` has their numbers.

section! {
    class: Closing,
    outcome: NoMessage,
    codes: {
        DONE = "done" {
            retry: Yes,
            happened: "The peer no longer needs it.",
            help: "Nothing.",
        }
        SHUTTING_DOWN = "shutting-down" {
            retry: Yes,
            happened: "The node is stopping.",
            help: "Nothing: the client connects to another address, or waits.",
        }
        INVALID_HELLO = "invalid-hello" {
            retry: No,
            happened: "The connection's first stream did not start with a valid hello.",
            help: "Fix the client.",
        }
        HELLO_TIMEOUT = "hello-timeout" {
            retry: No,
            happened: "No hello within `network.hello-timeout`.",
            help: "Fix the client, or check the network.",
        }
        UNSUPPORTED_PROTOCOL = "unsupported-protocol" {
            retry: No,
            happened: "The two sides have no common protocol version.",
            help: "Use compatible versions.",
        }
        UNKNOWN_FEATURE = "unknown-feature" {
            retry: No,
            happened: "A required feature is unknown; the reason names it.",
            help: "Use compatible versions.",
        }
        CLUSTER_MISMATCH = "cluster-mismatch" {
            retry: No,
            happened: "The peer belongs to another cluster.",
            help: "Check address and profile.",
        }
        TOO_MANY_CONNECTIONS = "too-many-connections" {
            retry: Yes,
            happened: "The node has reached `network.max-connections`, or the principal `network.principal-connections`, or the remaining connections are reserved for others (`network.reserved-connections`). The reason names the setting.",
            help: "Use fewer connections: one carries many sessions. Try another node; raise the setting.",
        }
        NODES_ONLY = "nodes-only" {
            retry: No,
            happened: "A client's certificate was used on a protocol for nodes; the reason names the client.",
            help: "Give the node its own certificate: `ostraca ca issue node NAME --ca DIR`.",
        }
        NODE_MISMATCH = "node-mismatch" {
            retry: No,
            happened: "The peer is not the node that it claims to be, or not the expected one; the reason names both.",
            help: "Check the addresses in `join` and `advertise`, and `[identity]` of that node.",
        }
        SHARD_COUNT_MISMATCH = "shard-count-mismatch" {
            retry: No,
            happened: "Two nodes of one cluster have different numbers of shards; the reason has both.",
            help: "A cluster's number of shards is fixed: fix `shards` of the joining node.",
        }
        HASH_MISMATCH = "hash-mismatch" {
            retry: No,
            happened: "Two nodes of one cluster use different hashes; the reason names both.",
            help: "Use the release that the cluster runs, and remove `cluster.hash` from the configuration.",
        }
        FRAME_TOO_LARGE = "frame-too-large" {
            retry: No,
            happened: "A frame's announced length is beyond the limit; or a request, response or message between nodes is larger than `peers.max-frame`.",
            help: "Send less at once.",
        }
        INVALID_FRAME = "invalid-frame" {
            retry: No,
            happened: "A frame is not the expected message.",
            help: "Fix the client.",
        }
        FRAME_TIMEOUT = "frame-timeout" {
            retry: No,
            happened: "A frame was not complete within `network.frame-timeout`.",
            help: "Fix the client, or check the network.",
        }
        OPEN_TIMEOUT = "open-timeout" {
            retry: No,
            happened: "A stream was opened without a first frame within `network.open-timeout`.",
            help: "Fix the client.",
        }
        UNEXPECTED_FRAME = "unexpected-frame" {
            retry: No,
            happened: "An unexpected frame: a second hello, a session id that is not 16 bytes, a fragment of a component too many.",
            help: "Fix the client.",
        }
        TRUNCATED_FRAME = "truncated-frame" {
            retry: No,
            happened: "The stream ended within a frame or a component, or was empty.",
            help: "Fix the client.",
        }
        REPLY_TIMEOUT = "reply-timeout" {
            retry: No,
            happened: "The peer read no waiting reply for `network.reply-timeout`.",
            help: "Read replies as they arrive.",
        }
        TOO_MANY_STREAMS = "too-many-streams" {
            retry: No,
            happened: "The principal has reached `network.principal-streams`.",
            help: "Use fewer sessions; end unused ones.",
        }
        UPLOAD_TIMEOUT = "upload-timeout" {
            retry: No,
            happened: "The next fragment of a component did not arrive within `network.upload-fragment-timeout`, or the whole within `network.upload-timeout`.",
            help: "Check the network; deploy again.",
        }
        REVOKED = "revoked" {
            retry: No,
            happened: "The client's principal, certificate or token was revoked; the reason names which.",
            help: "Get another credential from an operator of the cluster. `ostraca revocations` shows who revoked it, when and why.",
        }
        UNAUTHENTICATED = "unauthenticated" {
            retry: No,
            happened: "The client showed neither a certificate of the cluster nor a token.",
            help: "Name a certificate and its key, or a token, in the profile: `ostraca ca issue client NAME --ca DIR`, `ostraca token issue NAME --ca DIR`.",
        }
        INVALID_TOKEN = "invalid-token" {
            retry: No,
            happened: "The client's token is not accepted: it has expired or lasts longer than the policy's `token-ttl`, is for another cluster, or its issuer or its key is not in the policy. The reason says which.",
            help: "Get a new token. `ostraca policy show` lists the issuers.",
        }
        TOKEN_EXPIRED = "token-expired" {
            retry: Yes,
            happened: "The client's token has expired since the connection was opened.",
            help: "Nothing, if the file that the profile names has a new token by now: the client reads it again when it reconnects.",
        }
        NOT_READY = "not-ready" {
            retry: Yes,
            happened: "The node cannot check the client's token now: it is starting, or does not know the cluster's policy. The reason says which.",
            help: "Nothing: the client connects to another address, or waits. `ostraca status` on the node shows whether it reaches its store.",
        }
    }
}
