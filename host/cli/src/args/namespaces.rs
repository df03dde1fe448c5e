//! Arguments of `ostraca namespace`.

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct NamespaceArgs {
    #[command(subcommand)]
    pub(crate) what: NamespaceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List the namespaces
    List,
    /// Create a namespace; one that exists is left as it is
    Create {
        /// The namespace's name: lower-case letters, digits and `-`
        name: String,
    },
}
