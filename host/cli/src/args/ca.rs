//! Arguments of `ostraca ca`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::{AsNode, host_and_port};

#[derive(Debug, clap::Args)]
pub(crate) struct Ca {
    #[command(subcommand)]
    pub(crate) what: CaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Issue a certificate with its key
    Issue(Issue),
    /// Replace the authority while the cluster runs: first both are trusted, with --finish only the new one
    Rotate(Rotate),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rotate {
    /// Directory of the authority, with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// End the trust in the former authority: shuts out clients whose certificates it issued
    #[arg(long)]
    pub(crate) finish: bool,
    /// Certify the keys of the nodes without asking
    #[arg(long, conflicts_with = "finish")]
    pub(crate) yes: bool,
    /// With --finish: even if nodes, or you, still have certificates that the former authority issued
    #[arg(long, requires = "finish")]
    pub(crate) force: bool,
    /// How long to wait until all live nodes have new certificates
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration, conflicts_with = "finish")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) node: AsNode,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Issue {
    /// Subject of the certificate
    #[arg(value_enum)]
    pub(crate) kind: CertificateKind,
    /// Name of the client or node
    pub(crate) name: String,
    /// Directory of the authority, with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// Output directory for NAME.pem and NAME.key, and for a client its profile NAME.toml
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// A node's address for the client's profile; may be repeated
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7411", value_parser = host_and_port)]
    pub(crate) address: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CertificateKind {
    /// A client, which sends messages and deploys
    Client,
    /// A node of the cluster
    Node,
}
