//! Follows the partition list of another system, such as a message queue (E9).
//!
//! The list says which consumer has which partition. Where the consumers run beside nodes of Ostraca, an entity should
//! live on the node whose consumer reads its messages. So entities are assigned to shards as messages are to partitions,
//! with as many shards as there are partitions or a multiple of that, and this program tells the cluster where each
//! shard belongs.

use std::collections::BTreeMap;
use std::fmt;

use ostraca_client::{PoolInfo, PoolPlacement};

/// The node of each partition, by the partition's number, from 0 on.
pub type Partitions = BTreeMap<u32, String>;

/// Why a list cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidList {
    /// The line, from 1 on; 0 for the list as a whole.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for InvalidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "the list {}", self.why),
            line => write!(f, "line {line} of the list {}", self.why),
        }
    }
}

impl std::error::Error for InvalidList {}

/// Reads a list with a line `PARTITION NODE` for each partition. Empty lines and those that begin with `#` are ignored.
///
/// # Errors
/// [`InvalidList`] names the line.
pub fn parse(text: &str) -> Result<Partitions, InvalidList> {
    let mut partitions = Partitions::new();
    for (line, content) in (1..).zip(text.lines().map(str::trim)) {
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| InvalidList { line, why: why.into() };
        let (number, node) =
            content.split_once(char::is_whitespace).ok_or_else(|| wrong("names no node"))?;
        let number = number.parse().map_err(|_| wrong("does not begin with a number"))?;
        if partitions.insert(number, node.trim().into()).is_some() {
            return Err(wrong("names a partition once more"));
        }
    }
    match partitions.last_key_value() {
        None => Err(InvalidList { line: 0, why: "names no partition".into() }),
        Some((last, _)) if *last as usize + 1 != partitions.len() => {
            Err(InvalidList { line: 0, why: format!("lacks a partition below {last}") })
        }
        Some(_) => Ok(partitions),
    }
}

/// Where each shard of the pool belongs: shard number `n` of the pool to the node of partition `n mod partitions`.
#[must_use]
pub fn placement(pool: &PoolInfo, partitions: &Partitions) -> PoolPlacement {
    let mut nodes: Vec<&String> = partitions.values().collect();
    nodes.sort();
    nodes.dedup();
    let count = partitions.len().max(1);
    let place = |shard: u32| {
        let partition = shard as usize % count;
        let node = u32::try_from(partition).ok().and_then(|number| partitions.get(&number));
        let place = node.and_then(|node| nodes.binary_search(&node).ok());
        place.map_or(0, |place| u32::try_from(place + 1).unwrap_or(0))
    };
    let shards = (0..pool.shards).map(place).collect();
    PoolPlacement { pool: pool.name.clone(), shards, nodes: nodes.into_iter().cloned().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_follow_their_partitions() {
        let partitions = parse("# queue\n1 b\n0 a\n\n2  a\n").expect("a list");
        let pool = PoolInfo { name: "orders".into(), shards: 7, ..PoolInfo::default() };
        let placement = placement(&pool, &partitions);
        assert_eq!(placement.nodes, ["a", "b"]);
        assert_eq!(placement.shards, [1, 2, 1, 1, 2, 1, 1]);
    }

    #[test]
    fn an_incomplete_list_is_refused() {
        let cases = [
            ("", "the list names no partition"),
            ("0 a\nx b", "line 2 of the list does not begin with a number"),
            ("0", "line 1 of the list names no node"),
            ("0 a\n0 b", "line 2 of the list names a partition once more"),
            ("0 a\n2 b", "the list lacks a partition below 2"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).expect_err("refused").to_string(), expected);
        }
    }
}
