//! Arguments of the commands for types: deployments and typed clients.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
pub(crate) struct Deploy {
    /// A manifest, or a directory with an entity.toml
    #[arg(default_value = ".")]
    pub(crate) manifest: PathBuf,
    /// Deploy only if this is the current revision; 0 if the type is not deployed yet
    #[arg(long, value_name = "N")]
    pub(crate) expect_revision: Option<u64>,
    /// Build the component first
    #[arg(long)]
    pub(crate) build: bool,
    /// Store the revision without activating it
    #[arg(long, conflicts_with = "expect_revision")]
    pub(crate) inactive: bool,
    /// Change nothing: check the deployment, and migrate, start and query copies of entities
    #[arg(long, conflicts_with_all = ["inactive", "expect_revision"])]
    pub(crate) dry_run: bool,
    /// With --dry-run: an entity to try; can be repeated, up to 100 times
    #[arg(long = "id", value_name = "ID", requires = "dry_run", conflicts_with = "sample")]
    pub(crate) ids: Vec<String>,
    /// With --dry-run: how many entities to try
    #[arg(long, value_name = "N", requires = "dry_run", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) sample: u32,
    /// With --dry-run: the query to ask, without arguments; by default the first one that takes none
    #[arg(long, value_name = "METHOD", requires = "dry_run")]
    pub(crate) query: Option<String>,
}

/// Parses a percentage with up to one decimal place, into per mille.
fn parse_percent(text: &str) -> Result<u32, String> {
    let percent: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("must be 0 to 100".into());
    }
    Ok((percent * 10.0).round() as u32)
}

#[derive(Debug, clap::Args)]
pub(crate) struct Activate {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The revision, as in `ostraca deployments TYPE`; one that was active before gets a new number
    pub(crate) revision: u64,
    /// Only for this share of the entities, in percent: the others run the revision before it
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) share: Option<u32>,
    /// Only for the entities in the shards 1 to N, and for those that --share selects
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<u32>,
    /// Raise that number by N shards a minute, until all entities run it or one cannot be migrated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rollback {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Deployments {
    /// List the stored revisions of this type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Methods {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TypedClient {
    /// The entity type
    #[arg(value_name = "TYPE")]
    pub(crate) entity_type: String,
    /// The language
    #[arg(long = "lang", value_name = "LANG", value_enum)]
    pub(crate) language: ClientLanguage,
    /// The file to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// The language of typed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientLanguage {
    /// TypeScript, for the package in host/client/typescript
    Ts,
    /// Python, for the package in host/client/python
    Python,
    /// Rust, for the crate ostraca-client
    Rust,
}
