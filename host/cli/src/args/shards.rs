//! The arguments of `ostraca shards`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct Shards {
    /// Print one line per shard instead of the map
    #[arg(long)]
    pub(crate) list: bool,
    /// Print what shards do and hold, by pool, type and shard, from their owners
    #[arg(long, conflicts_with = "list")]
    pub(crate) stats: bool,
    /// With --stats: the time over which rates are averages
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration, requires = "stats")]
    pub(crate) interval: Duration,
    #[command(subcommand)]
    pub(crate) what: Option<ShardsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ShardsCommand {
    /// Move shards to a node, once; later moves may take them elsewhere
    Move(MoveShards),
    /// Pin shards to a node: they move there, and stay as long as it can own them
    Pin(PinShards),
    /// End the pins of shards, which then are spread like others
    Unpin(UnpinShards),
    /// List the pinned shards, and what outside programs want
    Pins,
    /// Say where the shards of a pool with the strategy `external` are wanted; repeat it before it is outdated
    Place(PlaceShards),
}

#[derive(Debug, clap::Args)]
pub(crate) struct MoveShards {
    /// The shards: N, or FIRST-LAST
    #[arg(value_name = "SHARDS")]
    pub(crate) shards: ShardNumbers,
    /// The node that gets them
    #[arg(long, value_name = "NODE")]
    pub(crate) to: String,
    /// How long to wait until all of them are there
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PinShards {
    /// The shards: N, or FIRST-LAST
    #[arg(value_name = "SHARDS")]
    pub(crate) shards: ShardNumbers,
    /// The node to which they are pinned
    #[arg(long, value_name = "NODE")]
    pub(crate) to: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UnpinShards {
    /// The shards: N, or FIRST-LAST
    #[arg(value_name = "SHARDS")]
    pub(crate) shards: ShardNumbers,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceShards {
    /// The pool
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) pool: String,
    /// A file with a line `SHARDS NODE` for each range of shards that are wanted at a node; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// A range of shards, as `FIRST-LAST` or one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardNumbers {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl FromStr for ShardNumbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse().ok().filter(|number| *number > 0);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "`{text}` is not a range of shards: write N, or FIRST-LAST, as in 1-128"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_a_number_or_a_range() {
        let parse = |text: &str| text.parse::<ShardNumbers>().map(|it| (it.first, it.last));
        assert_eq!(parse("7"), Ok((7, 7)));
        assert_eq!(parse("3-9"), Ok((3, 9)));
        for text in ["", "0", "0-4", "9-3", "a", "1-", "-1", "1-2-3", "99999999999"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
