//! Arguments of `ostraca namespace`.

use clap::Subcommand;
use ostraca_node::user_file::units::parse_size;

const QUOTA: &str = "\
A quota that is not named stays as it is; `none` removes one. Turns are messages and firings of timers; beyond the quota,
messages are refused for a moment (quota-turns). Entities and state are counted once a second, so a namespace may exceed
its quota by what it adds in a second or two. Then no entity is created (quota-entities), or no state grows (quota-state),
until some are deleted. Counting reads the heads of all entities once after each start.";

#[derive(Debug, clap::Args)]
pub(crate) struct NamespaceArgs {
    #[command(subcommand)]
    pub(crate) what: NamespaceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NamespaceCommand {
    /// List the namespaces, their quotas, and what they use of them
    List,
    /// Create a namespace; one that exists is left as it is
    Create {
        /// The namespace's name: lower-case letters, digits and `-`
        name: String,
    },
    /// Limit what the entities of a namespace may use on all nodes together
    Quota(SetQuotas),
}

#[derive(Debug, clap::Args)]
#[command(after_help = QUOTA)]
#[group(id = "quotas", required = true, multiple = true, args = ["entities", "state", "turns"])]
pub(crate) struct SetQuotas {
    /// The namespace
    pub(crate) name: String,
    /// Maximum number of entities
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) entities: Option<Limit>,
    /// Maximum size of the state of all entities, such as "10 GiB"
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) state: Option<Limit>,
    /// Maximum number of turns a second
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) turns: Option<Limit>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(pub(crate) Option<u64>);

fn limit(
    text: &str,
    parse: impl FnOnce(&str) -> Option<u64>,
    example: &str,
) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        _ => parse(text)
            .map(|limit| Limit(Some(limit)))
            .ok_or_else(|| format!("use {example}, or `none`")),
    }
}

fn number(text: &str) -> Result<Limit, String> {
    limit(text, |text| text.parse().ok(), "a number such as 1000")
}

fn size(text: &str) -> Result<Limit, String> {
    limit(text, parse_size, "a size such as \"10 GiB\"")
}
