//! What a test gets instead of a result.

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The method refused: the entity's state is as before.
    #[error("{code}: {message}")]
    Application {
        /// The guest's own code.
        code: String,
        /// The guest's own text.
        message: String,
    },
    /// The message did not run, for example because the turn trapped, or the type has no such method.
    #[error("not run: {code}: {message}")]
    NotRun {
        /// The stable code: see `docs/errors.md`.
        code: String,
        /// What happened.
        message: String,
    },
    /// There is no reply, although time has passed until the call's deadline.
    #[error("no reply: {message}")]
    NoReply {
        /// What happened.
        message: String,
    },
}

impl CallError {
    /// The code of an application error or of a refusal; empty if there was no reply.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Application { code, .. } | Self::NotRun { code, .. } => code,
            Self::NoReply { .. } => "",
        }
    }
}

/// Why a type cannot be deployed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The manifest is invalid.
    #[error("the manifest is invalid: {0}")]
    Manifest(String),
    /// Cargo failed, or did not run.
    #[error("the component was not built: {0}")]
    Build(String),
    /// The sandbox refuses the component.
    #[error("the component is refused: {0}")]
    Component(String),
}
