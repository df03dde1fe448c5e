//! The manifest of a backup: what it is of, and the digests of its chunks.

use std::fmt::Write as _;

use ostraca_core::ids::ClusterId;

const FIRST_LINE: &str = "ostraca backup 1";

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// Claims and floors of shards, as of the cut.
    Shards,
    /// Heads and other records, as read in this round, counted from 0.
    Round(u32),
    /// One component, as it is.
    Component,
    /// Rows, as of the cut.
    Rows,
}

/// What a backup is of, and where its chunks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The cluster.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// The id of the store.
    pub store_id: u128,
    /// The sequence of the store at the cut.
    pub sequence: u64,
    /// The time of the cut, in seconds since 1970, by the clock of the store's machine.
    pub taken_unix_s: u64,
    /// The chunks, by section, in the order in which they were read.
    pub chunks: Vec<(Section, [u8; 32])>,
}

impl Manifest {
    /// The manifest as a text. Its last line has the digest of all lines before it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self { cluster, cluster_name, store_id, sequence, taken_unix_s, chunks } = self;
        let name: String = cluster_name.chars().filter(|it| !it.is_control()).collect();
        let mut text = format!(
            "{FIRST_LINE}\ncluster {:032x} {name}\nstore {store_id:032x} {sequence}\ntaken {taken_unix_s}\n",
            cluster.0
        );
        for (section, digest) in chunks {
            let section = match section {
                Section::Shards => "shards".into(),
                Section::Round(round) => format!("round-{round}"),
                Section::Component => "component".into(),
                Section::Rows => "rows".into(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{section} {}", blake3::Hash::from(*digest));
        }
        let digest = blake3::hash(text.as_bytes());
        let _ = writeln!(text, "end {digest}");
        text
    }

    /// Parses a manifest; `None` if it is not a complete one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (body, end) = text.rsplit_once("end ")?;
        if blake3::hash(body.as_bytes()).to_hex().as_str() != end.strip_suffix('\n')? {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let (cluster, cluster_name) = lines.next()?.strip_prefix("cluster ")?.split_once(' ')?;
        let (store, sequence) = lines.next()?.strip_prefix("store ")?.split_once(' ')?;
        let taken = lines.next()?.strip_prefix("taken ")?;
        let chunk = |line: &str| {
            let (section, digest) = line.split_once(' ')?;
            let section = match section {
                "shards" => Section::Shards,
                "component" => Section::Component,
                "rows" => Section::Rows,
                round => Section::Round(round.strip_prefix("round-")?.parse().ok()?),
            };
            Some((section, *blake3::Hash::from_hex(digest).ok()?.as_bytes()))
        };
        Some(Self {
            cluster: ClusterId(u128::from_str_radix(cluster, 16).ok()?),
            cluster_name: cluster_name.into(),
            store_id: u128::from_str_radix(store, 16).ok()?,
            sequence: sequence.parse().ok()?,
            taken_unix_s: taken.parse().ok()?,
            chunks: lines.map(chunk).collect::<Option<_>>()?,
        })
    }
}
