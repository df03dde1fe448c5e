//! Reasons to end a call into the guest other than the guest's own trap. [`host_trap`](crate::host_trap) converts them
//! into failures.

/// Why the host ended a call into the guest. Host functions and the meter raise it, and wasmtime passes it on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostTrap {
    #[error("the instance was interrupted")]
    Interrupted,
    #[error("the guest exceeded its time limit")]
    TimeLimitExceeded,
    #[error("{0} where state must not change")]
    WriteInQuery(&'static str),
    #[error("the state would grow to {would} bytes, limit is {limit}")]
    StateTooLarge { would: u64, limit: u64 },
    #[error("the entity would have more keys than limits.keys ({limit})")]
    TooManyKeys { limit: u64 },
    #[error("one turn would write more {what} than `{setting}` ({limit})")]
    TurnTooLarge { what: &'static str, setting: &'static str, limit: u64 },
    #[error("the entity would have more timers than limits.timers ({limit})")]
    TooManyTimers { limit: u64 },
    #[error("the entity's timers would grow to {would} bytes, limits.timer-bytes is {limit}")]
    TimersTooLarge { would: u64, limit: u64 },
    #[error("a timer was set to fire every {interval} ms, limits.timer-interval is {least} ms")]
    TimerIntervalTooShort { interval: u64, least: u64 },
    #[error("the entity's outbox is full: limits.outbox is {limit}, dead letters included")]
    OutboxFull { limit: u64 },
    #[error("the entity's outbox would grow to {would} bytes, limits.outbox-bytes is {limit}")]
    OutboxTooLarge { would: u64, limit: u64 },
    #[error("the entity's journal would grow to {would} bytes, limits.journal is {limit}")]
    JournalTooLarge { would: u64, limit: u64 },
    #[error("an item of {bytes} bytes was emitted, limits.item is {limit}")]
    ItemTooLarge { bytes: u64, limit: u64 },
    #[error("the entity would have more channels than limits.channels ({limit})")]
    TooManyChannels { limit: u64 },
    #[error("a tell was sent to the type {0:?}, which the manifest does not grant ([grants] tell)")]
    TellNotGranted(String),
    #[error("an ask was sent to the type {0:?}, which the manifest does not grant ([grants] ask)")]
    AskNotGranted(String),
    #[error("an entity was asked outside a message's turn or a timer's firing")]
    AskOutsideTurn,
    #[error("one turn would start more asks than limits.asks ({limit})")]
    TooManyAsks { limit: u64 },
    #[error("the turn's asks and answers would grow to {would} bytes, limits.ask-bytes is {limit}")]
    AsksTooLarge { would: u64, limit: u64 },
    #[error("an HTTP call was made to {0:?}, which the manifest does not grant ([grants] http)")]
    HttpNotGranted(String),
    #[error("the secret {0:?} was read, which the manifest does not grant ([grants] secrets)")]
    SecretNotGranted(String),
    #[error("the setting {0:?} was read, which the manifest does not grant ([grants] settings)")]
    SettingNotGranted(String),
    #[error("{name:?} cannot be read: {why}")]
    VariableUnavailable { name: String, why: String },
    #[error("an HTTP call was made in a query")]
    HttpInQuery,
    #[error("an HTTP call was made outside a message's turn or a timer's firing")]
    HttpOutsideTurn,
    #[error("one turn would make more HTTP calls than limits.http-calls ({limit})")]
    TooManyCalls { limit: u64 },
    #[error("the turn's HTTP requests and responses would exceed limits.http-bytes ({limit})")]
    CallsTooLarge { limit: u64 },
    #[error("a timer was set, but the component does not export `timer-handler`")]
    NoTimerHandler,
    #[error("{0}")]
    InvalidHostCall(String),
    #[error("{0}")]
    StateUnavailable(String),
}

/// What a guest reported with `log.report-panic` before it trapped.
pub(crate) struct Panic {
    pub(crate) message: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}
