//! Why a health check cannot be set up.

use std::path::PathBuf;

/// Why a health check cannot be set up. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum HealthCheckError {
    /// The command's program cannot be run.
    #[error("cannot run {} (`health-check.command`): {why}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The reason.
        why: String,
    },
    /// The server's address cannot be used.
    #[error("cannot ask {url:?} (`health-check.url`): {why}")]
    Url {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
    /// A file with certificates cannot be used.
    #[error("cannot use the certificates in {} (`health-check.ca-file`): {why}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// TLS cannot be used.
    #[error("cannot use TLS for health checks: {0}")]
    Tls(#[from] rustls::Error),
}
