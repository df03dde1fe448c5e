//! What ends a call into the guest other than the guest's own trap. [`host_trap`](crate::host_trap) says what becomes
//! of it.

/// Why the host ended a call into the guest. Host functions and the meter raise it, and wasmtime carries it.
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
