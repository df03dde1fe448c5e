//! Where operators and outside programs want shards: the rows of pins and of placements (E9).

use std::collections::BTreeMap;

use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::pools::Pool;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::rows::PLACEMENTS;

/// `pins`: the shards that operators have pinned to nodes. Missing if none ever was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinsRow {
    /// In the order of their shards, each of which occurs once.
    pub pins: Vec<PinEntry>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for PinsRow {
    const NAME: &'static str = "PinsRow";
}

/// One pinned shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinEntry {
    /// The shard.
    pub shard: ShardId,
    /// The node to which it is pinned.
    pub node: String,
    /// When it was pinned, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who pinned it.
    pub by: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for PinEntry {
    const NAME: &'static str = "PinEntry";
}

impl PinsRow {
    /// The node of each pinned shard.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<ShardId, NodeId> {
        self.pins.iter().map(|pin| (pin.shard, NodeId::from(pin.node.as_str()))).collect()
    }

    /// Pins a shard, in place of an earlier pin of it.
    pub fn pin(&mut self, pin: PinEntry) {
        match self.pins.binary_search_by_key(&pin.shard, |known| known.shard) {
            Ok(at) => self.pins[at] = pin,
            Err(at) => self.pins.insert(at, pin),
        }
    }

    /// Ends the pin of a shard, if there is one.
    pub fn unpin(&mut self, shard: ShardId) {
        self.pins.retain(|pin| pin.shard != shard);
    }
}

/// `placements/<pool>`: where an outside program wants the shards of a pool. Missing if it has never said anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRow {
    /// Raised each time that the program says something: then the row changes even if nothing else does.
    pub count: u64,
    /// The nodes that it names.
    pub nodes: Vec<String>,
    /// For each shard of the pool, in order, the place of its node in `nodes`, from 1 on; 0 if it names none.
    pub shards: Vec<u32>,
    /// When it said that, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who it is.
    pub by: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for PlacementRow {
    const NAME: &'static str = "PlacementRow";
}

impl PlacementRow {
    /// The node that is wanted for each shard of the pool, as far as the row names one.
    #[must_use]
    pub fn wishes(&self, pool: &Pool) -> BTreeMap<ShardId, NodeId> {
        let nodes: Vec<_> = self.nodes.iter().map(|name| NodeId::from(name.as_str())).collect();
        let node = |place: u32| nodes.get((place as usize).checked_sub(1)?).cloned();
        let shards = (pool.first.0..=pool.last().0).zip(&self.shards);
        shards.filter_map(|(shard, place)| Some((ShardId(shard), node(*place)?))).collect()
    }
}

/// Checks what a program wants: as many shards as the pool has, and only nodes that are named.
///
/// # Errors
/// [`Error::InvalidRow`] says what is wrong.
pub fn check_placement(pool: &Pool, nodes: &[String], shards: &[u32]) -> Result<(), Error> {
    let (has, given) = (pool.shards as usize, shards.len());
    if has != given {
        let text = format!("the pool `{}` has {has} shards, and {given} were placed", pool.name);
        return Err(Error::InvalidRow(text));
    }
    match shards.iter().find(|place| **place as usize > nodes.len()) {
        Some(place) => {
            let named = nodes.len();
            Err(Error::InvalidRow(format!("node {place} of {named} does not exist")))
        }
        None => Ok(()),
    }
}

/// The key of the placement of a pool.
#[must_use]
pub fn placement_key(pool: &str) -> String {
    format!("{PLACEMENTS}{pool}")
}

/// The pool whose placement has this key.
#[must_use]
pub fn placed_pool(key: &str) -> Option<&str> {
    key.strip_prefix(PLACEMENTS).filter(|pool| !pool.is_empty())
}

#[cfg(test)]
mod tests {
    use ostraca_core::pools::Pools;

    use super::*;

    fn pin(shard: u32, node: &str) -> PinEntry {
        let (at_ms, by) = (7, "client/ops".into());
        let shard = ShardId(shard);
        PinEntry { shard, node: node.into(), at_ms, by, extensions: Extensions::default() }
    }

    #[test]
    fn a_shard_has_at_most_one_pin() {
        let mut row = PinsRow::default();
        for (shard, node) in [(5, "b"), (2, "a"), (5, "c"), (9, "a")] {
            row.pin(pin(shard, node));
        }
        row.unpin(ShardId(9));
        row.unpin(ShardId(77));
        let nodes: Vec<_> = row.nodes().into_iter().map(|(at, node)| (at.0, node.0)).collect();
        assert_eq!(nodes, [(2, "a".into()), (5, "c".into())]);
        assert!(row.pins.is_sorted_by_key(|pin| pin.shard));
    }

    #[test]
    fn a_placement_names_shards_by_their_place_in_the_pool() {
        let mut pools = Pools::one(4);
        pools.add(Pool::new("orders", 3, &pools)).expect("a pool");
        let orders = pools.get("orders").expect("it");
        let row = PlacementRow {
            nodes: vec!["a".into(), "b".into()],
            // A row of a later release may have more shards, or nodes that it does not name.
            shards: vec![2, 0, 1, 9],
            ..PlacementRow::default()
        };
        let wishes: Vec<_> = row.wishes(orders).into_iter().map(|(at, it)| (at.0, it.0)).collect();
        assert_eq!(wishes, [(5, "b".into()), (7, "a".into())]);
    }

    #[test]
    fn an_incomplete_placement_is_refused_by_name() {
        let pools = Pools::one(3);
        let pool = pools.get("default").expect("it");
        let error = |nodes: &[&str], shards: &[u32]| {
            let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            check_placement(pool, &nodes, shards).map_err(|error| error.to_string())
        };
        assert_eq!(error(&["a"], &[1, 0, 1]), Ok(()));
        assert!(error(&["a"], &[1, 1]).is_err_and(|why| why.contains("has 3 shards, and 2")));
        assert!(error(&["a"], &[1, 2, 0]).is_err_and(|why| why.contains("node 2 of 1")));
    }

    #[test]
    fn keys_name_their_pool() {
        assert_eq!(placed_pool(&placement_key("orders")), Some("orders"));
        assert_eq!([placed_pool("placements/"), placed_pool("pins")], [None, None]);
    }
}
