//! The arguments of `ostraca upgrade`.

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct Upgrade {
    #[command(subcommand)]
    pub(crate) what: UpgradeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpgradeCommand {
    /// Show which nodes run which version, and which node comes next
    Status,
}
