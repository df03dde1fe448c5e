//! Refusals by a shard's owner, or by a router on the way to the owner.

section! {
    class: Shard,
    outcome: NotRun,
    codes: {
        MAILBOX_FULL = "mailbox-full" {
            retry: Yes,
            happened: "The entity's mailbox has reached `limits.mailbox`.",
            help: "Send more slowly; spread the load over more entities; raise the limit.",
        }
        ENTITY_BACKOFF = "entity-backoff" {
            retry: Yes,
            happened: "The entity failed to start several times in a row, and the next attempt comes after the message's deadline. The text has the last failure, and the time until the next attempt (`entities.start-backoff`, doubled each time).",
            help: "Fix the guest; a deployment ends the pause. Or send again later.",
        }
        ENTITY_STOPPED = "entity-stopped" {
            retry: No,
            happened: "A turn or a start of the entity failed, and its type's manifest has `on-failure = \"stop\"`: the entity stays without an instance. The text has the failure.",
            help: "Fix the cause, then run `ostraca restart-entity TYPE/ID`, or deploy another revision.",
        }
        TOO_MANY_SENDERS = "too-many-senders" {
            retry: Yes,
            happened: "The tell is the first one of its sending entity, and the target remembers as many sending entities as it may (`entities.max-lanes`). It asks them which ones it can forget.",
            help: "Nothing: the tell stays in the sender's outbox. If it lasts, spread the tells over more targets, or raise the limit.",
        }
        TOO_MANY_SUBSCRIBERS = "too-many-subscribers" {
            retry: Yes,
            happened: "As many subscribers as the owner allows wait for items of the entity's channels (`entities.max-channel-reads`).",
            help: "Subscribe less often, or raise the limit. For many subscribers, let entities of their own pass the items on.",
        }
        ASK_CYCLE = "ask-cycle" {
            retry: No,
            happened: "The ask would have waited for itself: its target already waits, directly or through other entities, for the asking entity. The text shows the chain. If several asks wait for each other, the youngest one gets this error.",
            help: "Have one of the entities send a tell instead of an ask, or pass the data in the message.",
        }
        ASK_TOO_DEEP = "ask-too-deep" {
            retry: No,
            happened: "The chain of entities that would wait for this ask is longer than `entities.max-ask-depth`.",
            help: "Shorten the chain of asks, or raise the setting.",
        }
        UNKNOWN_DEAD_LETTER = "unknown-dead-letter" {
            retry: No,
            happened: "The entity has none of the given dead letters: they were already resent or dropped, or the numbers are wrong.",
            help: "Run `ostraca dead-letters list TYPE/ID` to see those that remain.",
        }
        ENTITY_EXISTS = "entity-exists" {
            retry: No,
            happened: "An entity can be imported only where none exists.",
            help: "Choose another id, or use `ostraca import --replace`, which deletes the entity first and keeps a copy of it in a file.",
        }
        INVALID_IMPORT = "invalid-import" {
            retry: No,
            happened: "What was to be imported is not what an export returns. The text says what is wrong.",
            help: "Export the entity again.",
        }
        ENTITY_CHANGING = "entity-changing" {
            retry: Yes,
            happened: "The entity changed each time that it was read for an export.",
            help: "Try again while it handles fewer commands.",
        }
        EXPORT_TOO_LARGE = "export-too-large" {
            retry: No,
            happened: "State, journal and channels of the entity have more than 64 MiB in all, with 100 bytes for each record.",
            help: "Let the entity snapshot and truncate its journal or keep fewer items, or read its state with its own queries. An import is smaller still: `network.max-message`, up to 32 MiB.",
        }
        UNKNOWN_ENTITY = "unknown-entity" {
            retry: No,
            happened: "The entity to delete does not exist: it never had a turn, or was deleted before.",
            help: "Check the type and the id: `ostraca entities TYPE` lists the entities.",
        }
        NOT_REMEMBERED = "not-remembered" {
            retry: No,
            happened: "The entity is not remembered, so it cannot be forgotten. It may have been forgotten already.",
            help: "Nothing: without a message or a timer, it is not started again. `ostraca inspect TYPE/ID` shows whether an entity is remembered.",
        }
        OUT_OF_ORDER = "out-of-order" {
            retry: Yes,
            happened: "The message that must run before this one in its session did not arrive within `entities.order-timeout`, or was refused.",
            help: "Nothing: the client resends both, in order.",
        }
        SUPERSEDED = "superseded" {
            retry: No,
            happened: "A later message of the session has run, and no reply to this one is recorded: it was settled, or it is a query whose reply was lost. This copy did not run.",
            help: "A query: send it again with a new id. A command: if this was its only copy, it did not run. Otherwise the client reports `unknown`, and only the entity's state shows whether it ran.",
        }
        ID_REUSED = "id-reused" {
            retry: No,
            happened: "The id was used before with another target, method or body.",
            help: "Give each message its own id. Never use one session in two processes.",
        }
        IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused" {
            retry: No,
            happened: "The `Idempotency-Key` was used before for another method or body of this entity.",
            help: "Give each request its own key, such as a random UUID, and send a request again without changing it.",
        }
        TOO_MANY_IDEMPOTENCY_KEYS = "too-many-idempotency-keys" {
            retry: No,
            happened: "The entity keeps replies for as many `Idempotency-Key`s as it may (`entities.idempotency-keys`, `entities.idempotency-bytes`), each for `entities.idempotency-ttl`. A principal may use as many as are left, so one alone may use half of them.",
            help: "Send the request without a key, or spread the requests over more entities. The operator can raise the limits, or keep replies for a shorter time.",
        }
        TOO_OLD = "too-old" {
            outcome: NotRunOrUnknown,
            retry: No,
            happened: "The entity no longer remembers the message's session (`entities.max-lanes`, `entities.lane-ttl`), and by its creation time it may be a copy of a message that ran before.",
            help: "The client restamps it automatically if no copy of it is in doubt. Otherwise it can no longer be determined whether it ran: read the entity's state.",
        }
        CREATED_IN_FUTURE = "created-in-future" {
            retry: Yes,
            happened: "The message's creation time is further ahead of the cluster's time than `entities.max-clock-skew` allows.",
            help: "Wait, or use a new session, which is stamped with the current time. Sessions that were open before a cluster was restored from a backup get this error.",
        }
        REPLY_DROPPED = "reply-dropped" {
            outcome: Final,
            retry: No,
            happened: "Final, exit code 1: the message ran, but its reply is no longer kept. The entity keeps `entities.unsettled-bytes` of replies and drops the oldest first.",
            help: "Read the entity's state if the result matters. No copy will run.",
        }
        TOO_MANY_COPIES = "too-many-copies" {
            retry: Yes,
            happened: "The copies of this message that wait for its outcome have reached `entities.max-copies`.",
            help: "Wait for one of them.",
        }
        QUERY_UNANSWERED = "query-unanswered" {
            retry: No,
            happened: "A query got no reply within its deadline; `cause` in the details has the last error. Nothing is in doubt: a query has no effect. Exit code 5.",
            help: "Send it again, with a longer timeout.",
        }
        DEADLINE_EXCEEDED = "deadline-exceeded" {
            outcome: NotRunOrUnknown,
            retry: No,
            happened: "The sender's deadline (`gateway.default-timeout` if it set none, at most `gateway.max-timeout`) passed before the turn could start. From the client: no reply arrived in time; the outcome is `unknown` if a copy was sent.",
            help: "Use a longer timeout, or find out why the entity is slow (`ostraca status`).",
        }
        NOT_OWNER = "not-owner" {
            retry: Yes,
            happened: "The shard belongs to another node, or this node has just lost it and claims it again.",
            help: "Nothing: the client resends the message.",
        }
        NO_OWNER = "no-owner" {
            outcome: NotRunOrUnknown,
            retry: Yes,
            happened: "The shard had no live owner for `gateway.buffer-timeout`, or its owner could not be reached or did not accept the message. If an earlier copy may have run, the outcome is `unknown` and the exit code 6.",
            help: "If this persists, check `ostraca status`: no node can own the shard, or none reaches the store.",
        }
        REBALANCING = "rebalancing" {
            retry: Yes,
            happened: "The shard is being released because the node is stopping, or it was moving to another node for `gateway.buffer-timeout`.",
            help: "Nothing: it is resent when a node serves the shard.",
        }
        STORE_UNAVAILABLE = "store-unavailable" {
            retry: Yes,
            happened: "The store did not respond, the shard's claim or the entity could not be read, or the node's lease was not renewed in time for a query.",
            help: "If this persists, check `ostraca status` and the disk.",
        }
        STORE_FULL = "store-full" {
            retry: Yes,
            happened: "The store refused the turn: its queue is full (`store.queue-…`), free disk space is low (`store.low-water-bytes`), the disk of PostgreSQL is full, or it has stopped. The text says which.",
            help: "Free disk space, on the machine of PostgreSQL if the text names it; see [`store-stopped`](#what-ostraca-status-reports).",
        }
        QUOTA_TURNS = "quota-turns" {
            retry: Yes,
            happened: "The entities of the namespace get more messages and firings a second than its quota allows (`ostraca namespace quota`).",
            help: "Send less, or ask an operator for a higher quota. Clients wait for as long as the refusal says and try again.",
        }
        QUOTA_ENTITIES = "quota-entities" {
            retry: Yes,
            happened: "The message would create an entity, and the namespace has as many as its quota allows (`ostraca namespace quota`). Existing entities go on.",
            help: "Delete entities, or ask an operator for a higher quota.",
        }
        QUOTA_STATE = "quota-state" {
            retry: Yes,
            happened: "The entity's state would grow, and the entities of the namespace store as many bytes as its quota allows (`ostraca namespace quota`). A state may shrink.",
            help: "Delete entities or keys, or ask an operator for a higher quota.",
        }
        COMMIT_REFUSED = "commit-refused" {
            retry: Yes,
            happened: "An earlier turn, on which this one had built or which a query had read, was not committed. This one has no effect.",
            help: "Nothing: it runs again on the stored state.",
        }
        REVISION_TOO_LOW = "revision-too-low" {
            retry: Yes,
            happened: "The entity was last written by a higher revision than this node runs.",
            help: "Deploy a higher revision. To go back, deploy the old component again: it gets a new revision.",
        }
        SCHEMA_TOO_HIGH = "schema-too-high" {
            retry: Yes,
            happened: "The entity's state has a schema from which the deployed component does not migrate: a component with a higher schema wrote it.",
            help: "Deploy a component with that schema or a higher one, or one whose `newest-schema` is that schema or higher.",
        }
        MIGRATION_FAILED = "migration-failed" {
            retry: Yes,
            happened: "The component's `migrate` trapped or refused the entity's state, and the node has no earlier revision that can run on it.",
            help: "Deploy a component that can migrate the state, or run `ostraca restart-entity TYPE/ID` to retry the migration. `ostraca inspect` shows the reason.",
        }
        OVERLOADED = "overloaded" {
            outcome: NotRunOrUnknown,
            retry: Yes,
            happened: "A limit on load was reached; the text names it. Live instances: no slot became free within `entities.instance-slot-timeout`; their number and their memory are limited by `guests.max-live-instances` and `guests.max-live-memory`, and for single pools by those in `guests.pools`. Messages buffered for their shards: `gateway.buffered-messages`, `gateway.buffered-bytes`. Messages in flight to one node: `gateway.link-messages`, `gateway.link-bytes`. Bytes of messages without a reply and of unread replies: `network.connection-bytes`, `network.principal-bytes`, `network.node-bytes`, or the principal's share of `peers.in-flight-message-bytes` on a link between nodes; then the turn did not start, or a reply was dropped (for a command as `unknown`: its next copy gets the reply). Pages of channels: half of `network.connection-bytes`, `network.principal-bytes` or `network.node-bytes`; then the subscription ended, and the client opens it again. Deployments being received: `network.max-uploads`, `network.principal-uploads`. Requests or messages in flight between nodes: the setting in the text.",
            help: "Read replies as they arrive, keep fewer messages in flight, send to fewer entities at once, or raise the setting that the text names, or `guests.max-live-instances` or `guests.max-live-memory`.",
        }
        UNKNOWN = "unknown" {
            outcome: Unknown,
            retry: Yes,
            happened: "(Outcome `unknown`, exit code 6.) The sync failed, or the store's response was lost. Whether the turn was committed shows when the shard is claimed again.",
            help: "Resend it with the same id.",
        }
        ABANDONED = "abandoned" {
            outcome: Unknown,
            retry: Yes,
            happened: "(Outcome `unknown`, exit code 6.) The node dropped the message, for example when it was killed.",
            help: "Resend it with the same id.",
        }
    }
}
