//! Errors of the client library, or of a node that is the client of another one.

section! {
    class: Client,
    outcome: NotRun,
    codes: {
        NOT_CONNECTED = "not-connected" {
            outcome: NotRunOrUnknown,
            retry: Yes,
            happened: "There was no connection until the deadline. `not-run` if no copy was ever sent, otherwise `unknown`.",
            help: "See [`no-node-reachable`](#connecting).",
        }
        CONNECTION_LOST = "connection-lost" {
            outcome: Unknown,
            retry: Yes,
            happened: "The connection was lost before the reply, and the deadline passed: `unknown`. For an admin request: exit code 3.",
            help: "Resend it with the same id; repeat the command.",
        }
        NOT_SENT = "not-sent" {
            retry: Yes,
            happened: "Between nodes: the link was lost before the request or message was handed to it. The other node never received it.",
            help: "Nothing: the node reconnects.",
        }
        SESSION_MISMATCH = "session-mismatch" {
            retry: No,
            happened: "The id given with `send --id` belongs to another session.",
            help: "Use the id as it was printed, with its session.",
        }
        CLIENT_CLOSED = "client-closed" {
            outcome: NotRunOrUnknown,
            retry: No,
            happened: "The client was closed or dropped before the outcome. `not-run` if the message was never sent, otherwise `unknown`.",
            help: "Keep the client until its calls have completed.",
        }
        SESSION_FULL = "session-full" {
            retry: Yes,
            happened: "The session has reached its limit on unresolved calls. `not-run`.",
            help: "Wait for some of them.",
        }
        ALREADY_IN_FLIGHT = "already-in-flight" {
            retry: No,
            happened: "A message with this id is already in flight in this session. This call is `not-run`.",
            help: "Wait for the other call.",
        }
        UNEXPECTED_RESPONSE = "unexpected-response" {
            outcome: NoMessage,
            retry: No,
            happened: "The node sent a response that this client does not support.",
            help: "Use compatible versions of client and node.",
        }
    }
}
