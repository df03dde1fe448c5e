//! The arguments of the commands about who may do what.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct Policy {
    #[command(subcommand)]
    pub(crate) what: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the policy in force
    Show {
        #[command(flatten)]
        node: AsNode,
    },
    /// Check a policy, and show what a principal may do under it
    Check {
        /// A file with a policy [default: the policy in force]
        file: Option<PathBuf>,
        /// Show what this principal may do, such as client/alice
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
    },
    /// Replace the policy
    Set {
        /// A file with the new policy
        file: PathBuf,
        /// Replace it only if this is its current revision; 0 if none was set yet
        #[arg(long, value_name = "N")]
        expect_revision: Option<u64>,
        /// Also set a policy under which you could not change it again
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        node: AsNode,
    },
}

/// Whom to connect as.
#[derive(Debug, clap::Args)]
pub(crate) struct AsNode {
    /// Connect to the node on this machine with the node's own identity, which may do everything: for when nobody may
    /// change the policy any more. CONFIG is its configuration, or a directory with an ostraca.toml
    #[arg(long = "as-node", id = "as_node", value_name = "CONFIG", conflicts_with = "profile")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Revoke {
    /// A principal (client/NAME, token/ISSUER/SUBJECT), a certificate (certificate/FINGERPRINT) or a token
    /// (token-id/ISSUER/ID); may be repeated
    #[arg(value_name = "CREDENTIAL", required_unless_present = "certificate")]
    pub(crate) credentials: Vec<String>,
    /// Revoke the certificate in this PEM file; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Vec<PathBuf>,
    /// Why; shown by `ostraca revocations`
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        conflicts_with = "undo"
    )]
    pub(crate) reason: String,
    /// Accept the credentials again
    #[arg(long)]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) node: AsNode,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Revocations {
    #[command(flatten)]
    pub(crate) node: AsNode,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Audit {
    /// Only what was asked for in this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Only what this principal asked for, such as client/alice
    #[arg(long, value_name = "NAME")]
    pub(crate) principal: Option<String>,
    #[command(flatten)]
    pub(crate) node: AsNode,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    pub(crate) what: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Issue a token for token/ostraca/NAME and print it
    Issue(IssueToken),
    /// Print the section with which a policy accepts the authority's tokens
    Key(TokenKey),
}

#[derive(Debug, clap::Args)]
pub(crate) struct IssueToken {
    /// The holder's name
    pub(crate) name: String,
    /// Directory of the authority, with ca.pem and token.key; the key is created if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
    /// How long the token is valid; the policy limits it (`token-ttl`)
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// Write NAME.token and a profile, NAME.toml, to this directory instead of printing the token
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// With --out: a node's address for the profile; may be repeated
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7411", requires = "out", value_parser = super::host_and_port)]
    pub(crate) address: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenKey {
    /// Directory of the authority, with ca.pem and token.key; the key is created if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,
}
