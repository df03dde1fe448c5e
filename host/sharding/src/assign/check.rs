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
