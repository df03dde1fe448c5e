//! What a strategy proposes, checked: an application may bring its own, and the manager acts on nothing else.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Move, View};

/// What was asked of the strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Owners for shards without one.
    Place,
    /// At most so many moves of shards that have an owner.
    Rebalance(usize),
}

/// Why a proposed move is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Misproposal {
    /// No shard has that number.
    UnknownShard,
    /// No host has that index.
    UnknownHost,
    /// The shard is named a second time.
    Twice,
    /// A hand-off of the shard is under way.
    Busy,
    /// A placement of a shard that has an owner, or a move of one that has none.
    NotAsked,
    /// A move to the owner that the shard has.
    SameOwner,
    /// More moves than were asked for.
    BeyondLimit,
}

impl fmt::Display for Misproposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownShard => "of an unknown shard",
            Self::UnknownHost => "to an unknown host",
            Self::Twice => "of a shard named before",
            Self::Busy => "of a shard that is being handed off",
            Self::NotAsked => "of a shard that was not asked about",
            Self::SameOwner => "to the present owner",
            Self::BeyondLimit => "beyond the limit",
        })
    }
}

/// The proposed moves that can be made, in their order, and how many cannot for which reason.
pub(crate) fn checked(
    view: &View,
    proposed: Vec<Move>,
    asked: Asked,
) -> (Vec<Move>, BTreeMap<Misproposal, usize>) {
    let limit = match asked {
        Asked::Place => view.shards.len(),
        Asked::Rebalance(limit) => limit.min(view.shards.len()),
    };
    let mut named = vec![false; view.shards.len()];
    let mut wrong = BTreeMap::new();
    let mut moves = Vec::new();
    for step in proposed {
        match misproposal(view, &named, step, asked) {
            Some(why) => *wrong.entry(why).or_insert(0) += 1,
            None if moves.len() >= limit => {
                *wrong.entry(Misproposal::BeyondLimit).or_insert(0) += 1
            }
            None => {
                named[step.shard.0 as usize - 1] = true;
                moves.push(step);
            }
        }
    }
    (moves, wrong)
}

fn misproposal(view: &View, named: &[bool], step: Move, asked: Asked) -> Option<Misproposal> {
    let at = (step.shard.0 as usize).checked_sub(1);
    let Some((at, place)) = at.and_then(|at| Some((at, view.shards.get(at)?))) else {
        return Some(Misproposal::UnknownShard);
    };
    let owner = place.owner.filter(|owner| *owner < view.hosts.len());
    if step.to >= view.hosts.len() {
        Some(Misproposal::UnknownHost)
    } else if named[at] {
        Some(Misproposal::Twice)
    } else if place.busy {
        Some(Misproposal::Busy)
    } else if owner.is_some() != matches!(asked, Asked::Rebalance(_)) {
        Some(Misproposal::NotAsked)
    } else {
        (owner == Some(step.to)).then_some(Misproposal::SameOwner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::{Host, Place};
    use crate::ids::ShardId;

    #[test]
    fn wrong_moves_are_counted_by_what_is_wrong() {
        let host = |name: &str| Host { node: name.into(), version: 1 };
        // The owner of the third shard is no host of the view any more: it needs one.
        let owners = [Some(0), None, Some(2)];
        let shards = owners.map(|owner| Place { owner, busy: false }).to_vec();
        let view = View { hosts: vec![host("a"), host("b")], shards, seed: 1 };
        let to = |shard, to| Move { shard: ShardId(shard), to };
        let proposed = vec![to(1, 1), to(9, 0), to(0, 0), to(2, 1), to(3, 0), to(4, 0), to(2, 2)];
        let (moves, wrong) = checked(&view, proposed, Asked::Place);
        assert_eq!(moves, [to(2, 1), to(3, 0)]);
        let counts = [
            (Misproposal::UnknownShard, 3),
            (Misproposal::UnknownHost, 1),
            (Misproposal::NotAsked, 1),
        ];
        assert_eq!(wrong, BTreeMap::from(counts));

        let shards = vec![Place { owner: Some(0), busy: false }; 4];
        let view = View { shards, ..view };
        let proposed = (1..=4).map(|shard| to(shard, 1)).collect();
        let (moves, wrong) = checked(&view, proposed, Asked::Rebalance(1));
        assert_eq!(moves, [to(1, 1)]);
        assert_eq!(wrong, BTreeMap::from([(Misproposal::BeyondLimit, 3)]));
        assert_eq!(Misproposal::BeyondLimit.to_string(), "beyond the limit");
    }
}
