//! Refusals by a node before the message reaches an entity.

section! {
    class: Gateway,
    outcome: NotRun,
    codes: {
        INVALID_MESSAGE = "invalid-message" {
            retry: No,
            happened: "The envelope cannot be decoded, or its fields are inconsistent: a session other than its stream's, `after` or `settled` beyond the sequence, an unknown kind, a type or method that is empty or longer than 255 bytes, text that is not UTF-8, fields nested too deeply.",
            help: "Fix the client; the text names the field.",
        }
        INVALID_ENTITY_ID = "invalid-entity-id" {
            retry: No,
            happened: "The entity id is empty or longer than 512 bytes.",
            help: "Use another id.",
        }
        MESSAGE_TOO_LARGE = "message-too-large" {
            retry: No,
            happened: "The body is larger than the node's `network.max-message`, or than `limits.message` in the type's manifest. Clients check the node's limits before they send.",
            help: "Send a smaller message, or raise the limit that the text names.",
        }
        NOT_JSON = "not-json" {
            retry: No,
            happened: "The body of an HTTP request is not JSON, or does not say that it is (`content-type: application/json`).",
            help: "Send the method's arguments as JSON, or no body if it has none.",
        }
        UNKNOWN_PATH = "unknown-path" {
            retry: No,
            happened: "The HTTP gateway has nothing at the path, or cannot decode it.",
            help: "Calls are at `/v1/NAMESPACE/TYPE/ID/call/METHOD`. In an id, write `/` as `%2F`.",
        }
        WRONG_METHOD = "wrong-method" {
            retry: No,
            happened: "An HTTP request to the path has another method than it may have.",
            help: "Send calls with `POST`, queries also with `GET`.",
        }
        WRONG_HOST = "wrong-host" {
            retry: No,
            happened: "An HTTP request is addressed to a host that is not the gateway's, or to several.",
            help: "Use the gateway's address, or name the host in `http.hosts` of the node's configuration.",
        }
        WRONG_ORIGIN = "wrong-origin" {
            retry: No,
            happened: "An HTTP request comes from a web page whose origin is neither the gateway's own nor in the policy's `web-origins`; or one with the console's log-in from another page than the gateway's own.",
            help: "If the page may call entities, add its origin to `web-origins` (`ostraca policy set`).",
        }
        INVALID_HEADER = "invalid-header" {
            retry: No,
            happened: "A header of an HTTP request has an invalid value, or a stream of WebTransport does not begin with a valid head. The text names it.",
            help: "Fix the client.",
        }
        INVALID_QUERY_STRING = "invalid-query-string" {
            retry: No,
            happened: "An HTTP request has a parameter that the path does not have, or one that cannot be decoded.",
            help: "A query has the parameter `args`, with the arguments as percent-encoded JSON; what follows a channel has `from` instead.",
        }
        TRUNCATED_BODY = "truncated-body" {
            retry: No,
            happened: "The body of an HTTP request ended early, or has an invalid form.",
            help: "Fix the client.",
        }
        BODY_TIMEOUT = "body-timeout" {
            retry: Yes,
            happened: "The body of an HTTP request did not arrive within `http.body-timeout`, or waited that long for `http.max-body-bytes`.",
            help: "Send the body without pauses; with many large ones at the same time, raise `http.max-body-bytes`.",
        }
        TOO_MANY_REQUESTS = "too-many-requests" {
            retry: Yes,
            happened: "The principal has `http.principal-requests` HTTP requests in progress on this node, or a connection has 16 sessions of WebTransport.",
            help: "Send the next request when another one has ended.",
        }
        RATE_LIMITED = "rate-limited" {
            retry: Yes,
            happened: "The principal sends more than `http.principal-rate` HTTP requests a second to this node.",
            help: "Send the request again after `retry-after`.",
        }
        UNKNOWN_NAMESPACE = "unknown-namespace" {
            retry: No,
            happened: "The cluster has no namespace of that name.",
            help: "`ostraca namespace list` lists the namespaces. Without one, a type is in `default`.",
        }
        UNKNOWN_TYPE = "unknown-type" {
            retry: No,
            happened: "No type of that name is deployed. The help has the nearest name.",
            help: "`ostraca deployments` lists the deployed types; fix the name, or deploy it.",
        }
        NO_GATEWAY = "no-gateway" {
            retry: No,
            happened: "The node does not accept client messages: it lacks the role `gateway`. It still responds to operators.",
            help: "Send to a node that has the role: `ostraca nodes` lists the roles.",
        }
        ACCESS_DENIED = "access-denied" {
            retry: No,
            happened: "The cluster's policy does not permit the principal to do this, or the type's manifest does not let it send to the type. The text says which.",
            help: "Change the policy (`ostraca policy`), or `[access] send` in the manifest, or use another identity. `ostraca policy check --principal NAME` shows what a principal may do.",
        }
        ACCESS_UNKNOWN = "access-unknown" {
            retry: Yes,
            happened: "The node does not know who may do what: it has not read the cluster's policy and revocations yet, or not for longer than the policy's `revocation-staleness`, or the policy is of a later release.",
            help: "Nothing: the client can use another node. `ostraca status` on this one shows whether it reaches its store.",
        }
        UNKNOWN_METHOD = "unknown-method" {
            retry: No,
            happened: "The type has no such method. The help lists its methods.",
            help: "Fix the name (`ostraca methods TYPE`).",
        }
        WRONG_KIND = "wrong-kind" {
            retry: No,
            happened: "A command was sent as a query, or vice versa.",
            help: "Send it as its declared kind, or omit the kind.",
        }
    }
}
