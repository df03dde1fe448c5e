//! How a command fails: a stable code, what happened, how to fix it, and the exit code.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};
use ostraca_client::{
    AdminError, CallError, ConnectError, MessageId, Problem, ProfileError, SubscribeError,
};
use ostraca_codes::{Code, codes};
use ostraca_node::NodeError;
use ostraca_node::config::ConfigError;
use ostraca_wasm::text::{printable, printable_lines};
use serde_json::{Map, Value, json};

use crate::args::OutputFormat;

/// Help for errors that the cluster may have caused.
pub(crate) const STATUS: &str = "`ostraca status` shows whether the cluster is healthy";

/// Exit codes of the process; `--help` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Unexpected = 1,
    Usage = 2,
    Unreachable = 3,
    Application = 4,
    NotRun = 5,
    Unknown = 6,
    NodeFailed = 7,
    Unhealthy = 8,
    /// The node lost an arbitration (E13).
    ArbitrationLost = 9,
    /// The shell convention: 128 plus the number of SIGINT.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    code: String,
    message: String,
    help: Option<String>,
    details: Map<String, Value>,
    place: Option<Box<dyn Diagnostic + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: Code, text: impl Into<String>) -> Self {
        Self::received(exit, code, text)
    }

    /// An error with a code that a node sent. The code may be from an application or from another release.
    fn received(exit: Exit, code: impl Into<String>, text: impl Into<String>) -> Self {
        // Guests may put control characters into them: escape these before they reach the terminal.
        let code = printable(&code.into()).into_owned();
        let text = printable_lines(&text.into()).into_owned();
        Self { exit, code, message: text, help: None, details: Map::new(), place: None }
    }

    pub(crate) fn usage(code: Code, text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, code, text)
    }

    pub(crate) fn unexpected(code: Code, text: impl Into<String>) -> Self {
        Self::new(Exit::Unexpected, code, text)
    }

    /// A file that could not be read or written.
    pub(crate) fn file(action: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let text = format!("cannot {action} {}: {error}", path.display());
        Self::new(Exit::Usage, codes::FILE_ERROR, text).help("check the path and its permissions")
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        let help = printable_lines(&help.into()).into_owned();
        self.help = Some(help).filter(|help| !help.is_empty());
        self
    }

    /// A node's machine-readable details.
    pub(crate) fn details(mut self, details: BTreeMap<String, String>) -> Self {
        self.details.extend(details.into_iter().map(|(name, text)| (name, text.into())));
        self
    }

    /// A query without an answer. It has no effect, so nothing is in doubt; `why` is a code.
    pub(crate) fn unanswered(id: MessageId, why: &str, message: &str) -> Self {
        let text = format!("the query got no reply and changed nothing: {why}: {message}");
        let help = match advice(why) {
            "" => format!("send it again, or increase --timeout; {STATUS}"),
            help => help.into(),
        };
        Self::new(Exit::NotRun, codes::QUERY_UNANSWERED, text)
            .help(help)
            .detail("id", id.to_string())
            .detail("cause", why)
    }

    /// Adds one machine-readable detail.
    pub(crate) fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }

    /// Adds a place in a file, to be shown with the error.
    pub(crate) fn place(mut self, place: impl Diagnostic + Send + Sync + 'static) -> Self {
        self.place = Some(Box::new(place));
        self
    }

    /// The whole error, as printed to standard error.
    pub(crate) fn render(&self, format: OutputFormat, colour: bool) -> String {
        if format == OutputFormat::Json {
            let error = json!({
                "code": self.code, "message": self.message, "help": self.help,
                "details": self.details, "exit": self.exit as u8,
            });
            return format!("{}\n", json!({ "error": error }));
        }
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
        let handler =
            GraphicalReportHandler::new_themed(theme).with_wrap_lines(false).with_context_lines(1);
        let mut text = String::new();
        match handler.render_report(&mut text, self) {
            Ok(()) => text,
            Err(_) => format!("{}: {}\n", self.code, self.message),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl Diagnostic for Failure {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref()?.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.place.as_ref()?.labels()
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let help = error.help_text().unwrap_or_default().to_owned();
        Self::usage(error.code(), error.to_string()).help(help).place(error)
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let exit = match error.exit_code() {
            2 => Exit::Usage,
            9 => Exit::ArbitrationLost,
            _ => Exit::NodeFailed,
        };
        let help = error.help_text().unwrap_or_default();
        let failure = Self::new(exit, error.code(), error.to_string()).help(help);
        match error {
            NodeError::Config(error) => failure.place(error),
            _ => failure,
        }
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        let (code, help) = match &error {
            ProfileError::NotFound { .. } => (
                codes::NO_PROFILE,
                "name one with --profile FILE or OSTRACA_PROFILE=FILE: `ostraca init` and `ostraca ca issue client` create profiles",
            ),
            ProfileError::File { .. } => (
                codes::INVALID_PROFILE,
                "check --profile and OSTRACA_PROFILE; `ostraca ca issue client NAME --ca DIR` creates a new profile",
            ),
            ProfileError::Invalid { .. } => (
                codes::INVALID_PROFILE,
                "`ostraca ca issue client NAME --ca DIR` creates a new profile",
            ),
            // Their messages say how to fix the error.
            _ => (codes::INVALID_PROFILE, ""),
        };
        let exit = match &error {
            // No cluster was named, and no file is wrong.
            ProfileError::NotFound { .. } => Exit::Unreachable,
            _ => Exit::Usage,
        };
        Self::new(exit, code, error.to_string()).help(help)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Profile(error) => error.into(),
            error => Self::new(Exit::Unreachable, error.code(), error.to_string()),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match Code::named(&problem.code).and_then(|code| code.row().exit) {
            Some(1) => Exit::Unexpected,
            Some(2) => Exit::Usage,
            _ => Exit::NotRun,
        };
        Self::received(exit, problem.code, printable(&problem.message))
            .help(problem.help)
            .details(problem.details)
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Refused(problem) => (*problem).into(),
            AdminError::Connection(text) => {
                Self::new(Exit::Unreachable, codes::CONNECTION_LOST, text)
                    .help("repeat the command: this is safe")
            }
        }
    }
}

impl From<SubscribeError> for Failure {
    fn from(error: SubscribeError) -> Self {
        (*error.0).into()
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        match error {
            CallError::Application { code, message, version, .. } => {
                let text = format!("the entity refused: {}", printable(&message));
                Self::received(Exit::Application, code, text).detail("version", version)
            }
            CallError::ReplyDropped { code, message, version, .. } => {
                Self::received(Exit::Unexpected, code, message)
                    .help("read the entity's state if the result matters")
                    .detail("version", version)
            }
            CallError::NotRun { code, message, help, details, retry_after, .. } => {
                let help = match (help.is_empty(), retry_after) {
                    (true, Some(after)) if after.is_zero() => {
                        format!("it may succeed later: retry; {STATUS}")
                    }
                    (true, Some(after)) => {
                        format!("it may succeed later: retry in {after:?}; {STATUS}")
                    }
                    // Rust's standard library reports this where there is no clock.
                    (true, None) if message.contains("time not implemented on this platform") => {
                        "the standard library has no clock here: use `ostraca_sdk::clock`, and deploy the entity again"
                            .into()
                    }
                    (true, None) => advice(&code).into(),
                    _ => help.into(),
                };
                Self::received(Exit::NotRun, code, format!("not run: {}", printable(&message)))
                    .help(help)
                    .details(*details)
            }
            CallError::Unanswered { id, cause: why, message } => {
                Self::unanswered(id, &why, &message)
            }
            CallError::Unknown { id, code, .. } => {
                let help = if code == codes::TOO_OLD {
                    "the entity no longer remembers the session: read its state to see whether the message ran"
                } else {
                    ""
                };
                Self::received(Exit::Unknown, code, text).help(help).detail("id", id.to_string())
            }
        }
    }
}

/// How to fix an error for which the node reports only what happened, since the node does not know who reads it.
fn advice(code: &str) -> &'static str {
    let Some(code) = Code::named(code) else { return "" };
    match code {
        codes::STATE_DOES_NOT_DECODE => {
            "deploy the previous component again to make the entities respond (no stored state was changed); then deploy one that can read their state"
        }
        codes::STATE_DOES_NOT_ENCODE => {
            "fix the entity and deploy it again: it may store only values that decode to themselves"
        }
        codes::PANICKED | codes::TRAP => {
            "fix the entity and deploy it again; the backtrace is in the node's log"
        }
        codes::DEADLINE_EXCEEDED => {
            "increase --timeout; `ostraca status` shows whether the cluster is healthy"
        }
        codes::TURN_TIME_LIMIT => {
            "do less in one message, or raise `turn-time` in [limits] of entity.toml and deploy it again"
        }
        codes::ACTIVATION_TIME_LIMIT => {
            "do less in the start hook, or raise `activation-time` in [limits] of entity.toml and deploy it again"
        }
        codes::MEMORY_LIMIT => {
            "use less memory, or raise `memory` in [limits] of entity.toml and deploy it again"
        }
        codes::TABLE_LIMIT => {
            "raise `table-elements` in [limits] of entity.toml and deploy it again"
        }
        codes::STACK_OVERFLOW => {
            "limit the recursion, or raise `wasm-stack` in [guests] of every node's configuration"
        }
        codes::STATE_TOO_LARGE => {
            "store less, or raise `state` in [limits] of entity.toml and deploy it again"
        }
        codes::TOO_MANY_KEYS => {
            "store more under each key, or raise `keys` in [limits] of entity.toml and deploy it again"
        }
        codes::TOO_MANY_TIMERS => {
            "cancel timers that are not needed, or raise `timers` in [limits] of entity.toml and deploy it again"
        }
        codes::TIMERS_TOO_LARGE => {
            "put less into timers, or raise `timer-bytes` in [limits] of entity.toml and deploy it again"
        }
        codes::TIMER_INTERVAL_TOO_SHORT => {
            "use a longer interval, or lower `timer-interval` in [limits] of entity.toml and deploy it again"
        }
        codes::NO_TIMER_HANDLER => {
            "add a timer handler to the entity (`#[timer]`) and deploy it again"
        }
        codes::TURN_TOO_LARGE => {
            "write less in one message, or raise `turn-keys` or `turn-bytes` in [limits] of entity.toml and deploy it again"
        }
        codes::REPLY_TOO_LARGE => {
            "return less, or raise `reply` in [limits] of entity.toml and deploy it again"
        }
        codes::VALUE_TOO_LARGE => {
            "pass less in one call, or raise `state`, `turn-bytes`, `reply` or `outbox-bytes` in [limits] of entity.toml and deploy it again"
        }
        codes::ENTITY_EXISTS => {
            "import under another id, or with --replace, which keeps what it replaces in a file"
        }
        codes::MESSAGE_TOO_LARGE => {
            "send a smaller message, or raise `max-message` in [network] of every node's configuration and `message` in [limits] of entity.toml"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn not_run(code: &str, message: &str, retry_after: Option<Duration>) -> String {
        let id = "00000000000000000000000000000001-1@1".parse().expect("an id");
        let (code, message, help) = (code.into(), message.into(), "".into());
        let details = BTreeMap::new();
        let details = Box::new(details);
        let error = CallError::NotRun { id, code, message, help, details, retry_after };
        Failure::from(error).render(OutputFormat::Table, false)
    }

    #[test]
    fn errors_that_the_cluster_may_cause_point_to_status() {
        for (code, retry_after) in [
            ("rebalancing", Some(Duration::ZERO)),
            ("store-unavailable", Some(Duration::from_millis(50))),
            ("deadline-exceeded", None),
        ] {
            let text = not_run(code, "some reason", retry_after);
            assert!(text.contains("`ostraca status`"), "{text}");
        }
        let text = not_run("write-in-query", "a query wrote", None);
        assert!(!text.contains("status"), "{text}");
    }

    #[test]
    fn a_guest_clock_panic_explains_that_guests_have_no_clock() {
        let text = "panicked at library/std/src/sys/time/unsupported.rs:13: time not implemented on this platform";
        assert!(not_run("panicked", text, None).contains("use `ostraca_sdk::clock`"));
        assert!(!not_run("panicked", "oh no", None).contains("clock"));
    }
}
