//! Failures of the guest, or of the host while the guest ran.

section! {
    class: Guest,
    outcome: NotRun,
    codes: {
        PANICKED = "panicked" {
            retry: No,
            happened: "The guest panicked. The message, file and line are in the text.",
            help: "Fix the guest.",
        }
        STATE_DOES_NOT_DECODE = "state-does-not-decode" {
            retry: No,
            happened: "The stored state does not fit the entity's type: the schema changed, and this entity was written before. `ostraca status` counts such entities, `ostraca inspect` shows what does not fit.",
            help: "Deploy the previous component again: no stored state was changed. Then give new fields `#[serde(default)]`, keep old names with `#[serde(alias = \"…\")]`, and deploy that.",
        }
        STATE_DOES_NOT_ENCODE = "state-does-not-encode" {
            retry: No,
            happened: "The new state could not be decoded again: it has a number that is NaN or infinite, or a field that is skipped when it is written and required when it is read. Nothing was changed.",
            help: "Fix the guest.",
        }
        TRAP = "trap" {
            retry: No,
            happened: "The guest trapped (unreachable, out of bounds, division by zero), or called `exit`.",
            help: "Fix the guest.",
        }
        TURN_TIME_LIMIT = "turn-time-limit" {
            retry: No,
            happened: "A message, a timer or the stop hook took longer than `limits.turn-time` in the guest. Time in the host does not count; sleeping through WASI does.",
            help: "Do less in a turn, or raise the limit.",
        }
        ACTIVATION_TIME_LIMIT = "activation-time-limit" {
            retry: No,
            happened: "Instantiation and start together took longer than `limits.activation-time`.",
            help: "Do less in `start`, or raise the limit.",
        }
        MEMORY_LIMIT = "memory-limit" {
            retry: No,
            exit: 2,
            happened: "The guest aborted after it was denied memory beyond `limits.memory`. At a deployment: its initial memories are larger.",
            help: "Use less memory, or raise the limit.",
        }
        TABLE_LIMIT = "table-limit" {
            retry: No,
            exit: 2,
            happened: "Its tables needed more elements than `limits.table-elements`.",
            help: "Raise the limit.",
        }
        STACK_OVERFLOW = "stack-overflow" {
            retry: No,
            happened: "Its calls exceeded `guests.wasm-stack`.",
            help: "Limit the recursion, or raise the setting.",
        }
        STATE_TOO_LARGE = "state-too-large" {
            retry: No,
            happened: "The entity's keys and values, 100 bytes for each key included, would exceed `limits.state`. A state that already exceeds it may shrink.",
            help: "Store less, split the entity, or raise the limit.",
        }
        TOO_MANY_KEYS = "too-many-keys" {
            retry: No,
            happened: "The entity would have more keys than `limits.keys`.",
            help: "Store more under each key, split the entity, or raise the limit.",
        }
        TOO_MANY_TIMERS = "too-many-timers" {
            retry: No,
            happened: "The entity would have more timers than `limits.timers`.",
            help: "Cancel timers that are not needed, use one timer for several purposes, or raise the limit.",
        }
        TIMERS_TOO_LARGE = "timers-too-large" {
            retry: No,
            happened: "Names and payloads of the entity's timers, 100 bytes for each timer included, would exceed `limits.timer-bytes`.",
            help: "Keep the data in the state and only a key in the payload, or raise the limit.",
        }
        TIMER_INTERVAL_TOO_SHORT = "timer-interval-too-short" {
            retry: No,
            happened: "A timer was set to fire more often than `limits.timer-interval` allows.",
            help: "Use a longer interval, or lower the limit.",
        }
        OUTBOX_FULL = "outbox-full" {
            retry: No,
            happened: "The entity's outbox would have more tells than `limits.outbox`, dead letters included: its targets cannot keep up, or refuse them.",
            help: "`ostraca inspect` shows queued tells and dead letters. Fix the targets, then run `ostraca dead-letters resend` or `drop`; or send less, or raise the limit.",
        }
        OUTBOX_TOO_LARGE = "outbox-too-large" {
            retry: No,
            happened: "Methods and bodies of the tells in the entity's outbox, dead letters included, would exceed `limits.outbox-bytes`.",
            help: "Send fewer or smaller tells, resend or drop dead letters (`ostraca dead-letters`), or raise the limit.",
        }
        JOURNAL_TOO_LARGE = "journal-too-large" {
            retry: No,
            happened: "Events and snapshot of the entity's journal, 100 bytes for each included, would exceed `limits.journal`.",
            help: "Save a snapshot and truncate the journal, append smaller events, or raise the limit.",
        }
        ITEM_TOO_LARGE = "item-too-large" {
            retry: No,
            happened: "The guest emitted an item that is larger than `limits.item`.",
            help: "Emit a smaller item that names where the rest is, or raise the limit.",
        }
        TOO_MANY_CHANNELS = "too-many-channels" {
            retry: No,
            happened: "The entity would have emitted on more channels than `limits.channels`. Channels are never removed.",
            help: "Use fewer channels, with a field in the items that tells them apart, or raise the limit.",
        }
        TOO_MANY_SUBSCRIPTIONS = "too-many-subscriptions" {
            retry: No,
            happened: "An entity subscribed to a channel of an entity that has `limits.subscriptions` subscriptions. The subscription became a dead letter of its sender.",
            help: "Raise the limit in the manifest of the publishing type, or publish through several entities. Then resend the dead letter.",
        }
        SUBSCRIPTION_NOT_GRANTED = "subscription-not-granted" {
            retry: No,
            happened: "An entity subscribed to a channel of an entity whose type may not send tells to it. The subscription became a dead letter of its sender.",
            help: "Add the subscriber's type to `[grants] tell` of the publishing type, and resend the dead letter.",
        }
        ASK_NOT_GRANTED = "ask-not-granted" {
            retry: No,
            happened: "The guest asked an entity of a type that its manifest does not grant.",
            help: "Name the type under `[grants] ask`, and deploy again.",
        }
        ASK_OUTSIDE_TURN = "ask-outside-turn" {
            retry: No,
            happened: "The guest asked another entity in `start`, `stop` or `methods`. Only the turn of a message or of a timer's firing can ask.",
            help: "Ask in a method, or set a timer in `start` and ask when the timer fires.",
        }
        TOO_MANY_ASKS = "too-many-asks" {
            retry: No,
            happened: "One turn started more asks than `limits.asks`.",
            help: "Ask fewer entities in one turn, or raise the limit.",
        }
        ASKS_TOO_LARGE = "asks-too-large" {
            retry: No,
            happened: "The methods, bodies and answers of one turn's asks would exceed `limits.ask-bytes`.",
            help: "Send fewer or smaller asks, ask for smaller answers, or raise the limit.",
        }
        HTTP_NOT_GRANTED = "http-not-granted" {
            retry: No,
            happened: "The guest called an HTTP server that its manifest does not grant. The text names the host and the port.",
            help: "Name the host under `[grants] http`, with its port unless it is the scheme's default port, and deploy again.",
        }
        SECRET_NOT_GRANTED = "secret-not-granted" {
            retry: No,
            happened: "The guest read a secret that its manifest does not grant. The text names it.",
            help: "Name it under `[grants] secrets`, and deploy again.",
        }
        SETTING_NOT_GRANTED = "setting-not-granted" {
            retry: No,
            happened: "The guest read a setting that its manifest does not grant. The text names it.",
            help: "Name it under `[grants] settings`, and deploy again.",
        }
        HTTP_IN_QUERY = "http-in-query" {
            retry: No,
            happened: "A query made an HTTP call.",
            help: "Make the method a command (`&mut self`).",
        }
        HTTP_OUTSIDE_TURN = "http-outside-turn" {
            retry: No,
            happened: "The guest made an HTTP call in `start`, `stop` or `methods`. Only the turn of a command or of a timer's firing can make one.",
            help: "Call in a method, or set a timer in `start` and call when the timer fires.",
        }
        TOO_MANY_HTTP_CALLS = "too-many-http-calls" {
            retry: No,
            happened: "One turn made more HTTP calls than `limits.http-calls`.",
            help: "Make fewer calls in one turn, or raise the limit.",
        }
        HTTP_TOO_LARGE = "http-too-large" {
            retry: No,
            happened: "The HTTP requests of one turn, with the responses so far, would exceed `limits.http-bytes`, or a request has more than 16 KiB of headers. A response that would exceed it is an error that the guest receives.",
            help: "Send less in one turn, or raise the limit.",
        }
        TELL_NOT_GRANTED = "tell-not-granted" {
            retry: No,
            happened: "The guest sent a tell to a type that its manifest does not grant.",
            help: "Name the type under `[grants] tell`, and deploy again.",
        }
        NO_TIMER_HANDLER = "no-timer-handler" {
            retry: No,
            happened: "The entity set a timer, or a timer fired, but its component does not export `timer-handler`.",
            help: "Write a method with `#[timer]`, or export `timer-handler`.",
        }
        TURN_TOO_LARGE = "turn-too-large" {
            retry: No,
            happened: "One turn would write or delete more keys than `limits.turn-keys`, or write more bytes than `limits.turn-bytes`. Or the store refused the turn, since it is too large for any store of the cluster: a key with its entity's id beyond 960 bytes, a record beyond 16 MiB, a turn beyond 18 MiB.",
            help: "Write in several turns; raise the limit.",
        }
        REPLY_TOO_LARGE = "reply-too-large" {
            outcome: NotRunOrUnknown,
            retry: No,
            happened: "The result, or an error's text, is larger than `limits.reply`. If it only exceeds the client's limit: outcome `unknown`; a command has been committed.",
            help: "Return less, in pages; raise the limit; in the second case raise the client's `max_frame`.",
        }
        VALUE_TOO_LARGE = "value-too-large" {
            retry: No,
            happened: "In one call the guest passed to the host, or returned, more bytes than 64 KiB plus the largest of `limits.state`, `limits.turn-bytes`, `limits.reply`, `limits.ask-bytes` and `limits.outbox-bytes`. They were not copied.",
            help: "Pass less in one call, or raise the limit concerned.",
        }
        WRITE_IN_QUERY = "write-in-query" {
            retry: No,
            happened: "A query, or the start of an instance that runs only queries, tried to change state, a timer or the outbox.",
            help: "Make the method a command (`&mut self`).",
        }
        INVALID_HOST_CALL = "invalid-host-call" {
            retry: No,
            happened: "A host function was called with an invalid argument, such as a key that is empty or longer than 512 bytes, a page limit that is not 1 to 1,000, or an invalid name of a timer.",
            help: "Fix the guest.",
        }
        INVALID_GUEST_VALUE = "invalid-guest-value" {
            retry: No,
            happened: "The guest passed or returned a value that does not fit its type: a pointer outside its memory, text that is not UTF-8.",
            help: "Fix the guest or its bindings.",
        }
        HANDLE_LIMIT = "handle-limit" {
            retry: No,
            happened: "The guest holds more than 1,000 WASI handles: streams, pollables.",
            help: "Drop handles, or hold fewer at once.",
        }
        INVALID_ERROR_CODE = "invalid-error-code" {
            retry: No,
            happened: "An application error's code was empty, longer than 128 bytes, or has a control character.",
            help: "Fix the guest.",
        }
        MIGRATION_REFUSED = "migration-refused" {
            retry: No,
            happened: "The guest's `migrate` returned an error. The entity stays on its revision; the text has the reason.",
            help: "Deploy a component whose `migrate` accepts the state.",
        }
        START_FAILED = "start-failed" {
            retry: No,
            happened: "The start hook returned an error, which is in the text.",
            help: "Fix the guest, or the state that it refuses.",
        }
        INTERRUPTED = "interrupted" {
            retry: Yes,
            happened: "The owner interrupted the running instance: its shard's stop deadline passed.",
            help: "Nothing: the client resends the message.",
        }
        STATE_UNAVAILABLE = "state-unavailable" {
            retry: Yes,
            happened: "The entity's state could not be read from the store.",
            help: "See `store-unavailable`.",
        }
        VARIABLE_UNAVAILABLE = "variable-unavailable" {
            retry: Yes,
            happened: "The guest read a secret that this node cannot open: the node has no key for secrets, or lacks the one that sealed it, or the sealed text is damaged. Or the node cannot read the row with the type's secrets and settings.",
            help: "Give all nodes the same file `ca/secret.key` and restart them, or set the secret again. If a later release wrote the row or the secret, update this node.",
        }
        HOST_PANICKED = "host-panicked" {
            outcome: NotRunOrUnknown,
            retry: Yes,
            happened: "The node's own code panicked during the turn or a store call. The turn had no effect, or its outcome is unknown; other entities are not affected. If a shard's machine panicked, its commands end as unknown and the shard is assigned again.",
            help: "Report it as a bug, with the node's log.",
        }
        CALLER_GONE = "caller-gone" {
            retry: Yes,
            happened: "The connection from which a query came was closed before the query ran.",
            help: "Nothing: no caller waits for it.",
        }
        INSTANCE_DROPPED = "instance-dropped" {
            retry: Yes,
            happened: "The instance was dropped before the turn could run on it.",
            help: "Nothing: the client resends the message.",
        }
        INSTANCE_LIMIT = "instance-limit" {
            retry: Yes,
            happened: "The limit on live instances was reached.",
            help: "See `overloaded`.",
        }
    }
}
