//! Arguments of `ostraca send` and `tell`.

use std::time::Duration;

use ostraca_client::MessageId;

#[derive(Debug, clap::Args)]
pub(crate) struct Send {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The method to call
    pub(crate) method: String,
    /// The arguments; - reads them from standard input
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) json: Option<String>,
    /// Resend the message with this id; returns the recorded outcome if it already ran
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<MessageId>,
    /// Timeout for the outcome, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// Fail unless the method is a command
    #[arg(long, conflicts_with = "query")]
    pub(crate) command: bool,
    /// Fail unless the method is a query
    #[arg(long)]
    pub(crate) query: bool,
    /// The caller's W3C trace context; the node traces the message if it is sampled
    #[arg(long, value_name = "TRACEPARENT", env = "TRACEPARENT", hide_env_values = true)]
    pub(crate) traceparent: Option<String>,
    /// Send the arguments without comparing them with the method's schema
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Send it only once: at most once instead of exactly once; if the reply is lost, its outcome is unknown
    #[arg(long)]
    pub(crate) no_retry: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Tell {
    /// The entity, as in counter/alice
    #[arg(value_name = "TYPE/ID")]
    pub(crate) entity: String,
    /// The method to call; must be a command
    pub(crate) method: String,
    /// The arguments; - reads them from standard input
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) json: Option<String>,
    /// Resend the command with this id; it runs only if it has not run yet
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<MessageId>,
    /// Timeout for the acknowledgement, including connecting
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// The caller's W3C trace context; the node traces the message if it is sampled
    #[arg(long, value_name = "TRACEPARENT", env = "TRACEPARENT", hide_env_values = true)]
    pub(crate) traceparent: Option<String>,
    /// Send the arguments without comparing them with the method's schema
    #[arg(long)]
    pub(crate) no_check: bool,
}
