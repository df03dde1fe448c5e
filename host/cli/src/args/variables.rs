//! The arguments of the commands about secrets and settings of types.

use std::path::PathBuf;

use clap::Subcommand;

use super::AsNode;

#[derive(Debug, clap::Args)]
pub(crate) struct Secret {
    #[command(subcommand)]
    pub(crate) what: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set a secret to the text on standard input
    Set {
        #[command(flatten)]
        name: VariableName,
        /// Keep a trailing line break
        #[arg(long)]
        raw: bool,
        #[command(flatten)]
        node: AsNode,
    },
    /// List secrets, without their text
    List {
        #[command(flatten)]
        list: ListVariables,
    },
    /// Remove a secret
    Remove {
        #[command(flatten)]
        name: VariableName,
        #[command(flatten)]
        node: AsNode,
    },
    /// Create the file secret.key in the authority's directory, unless it exists
    Key {
        /// Directory of the authority, with ca.pem and ca.key
        #[arg(long, value_name = "DIR")]
        ca: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Setting {
    #[command(subcommand)]
    pub(crate) what: SettingCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SettingCommand {
    /// Set a setting
    Set {
        #[command(flatten)]
        name: VariableName,
        /// Its text
        value: String,
        #[command(flatten)]
        node: AsNode,
    },
    /// List settings
    List {
        #[command(flatten)]
        list: ListVariables,
    },
    /// Remove a setting
    Remove {
        #[command(flatten)]
        name: VariableName,
        #[command(flatten)]
        node: AsNode,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct VariableName {
    /// The entity type, which need not be deployed yet
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The name, as the manifest grants it
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListVariables {
    /// The entity type [default: all types, deployed or not]
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: Option<String>,
    #[command(flatten)]
    pub(crate) node: AsNode,
}
