//! Checks the moves that a strategy proposes: an application may supply its own strategy, and the manager makes only
//! valid moves.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{AllocationView, Move};

/// What the strategy was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveKind {
    /// Owners for shards without one.
    Allocate,
    /// At most this many moves of shards that have an owner.
    Rebalance(usize),
}

/// Why a proposed move is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum InvalidMove {
    /// No shard has this number.
    UnknownShard,
    /// No host has this index.
    UnknownHost,
    /// The shard has another move in the same result.
    DuplicateShard,
    /// A hand-off of the shard is in progress.
    HandOffInProgress,
    /// A placement of a shard that has an owner, or a move of a shard that has none.
    NotRequested,
    /// A move to the shard's current owner.
    SameOwner,
    /// More moves than requested.
    LimitExceeded,
    /// An operator has pinned the shard.
    Pinned,
}

impl fmt::Display for InvalidMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownShard => "of an unknown shard",
            Self::UnknownHost => "to an unknown host",
            Self::DuplicateShard => "of a shard that has another move",
            Self::HandOffInProgress => "of a shard that is being handed off",
            Self::NotRequested => "of a shard outside the request",
            Self::SameOwner => "to the current owner",
            Self::LimitExceeded => "beyond the limit",
            Self::Pinned => "of a pinned shard",
        })
    }
}

/// Returns the valid moves, in their order, and the number of invalid ones for each reason.
pub(crate) fn filter_valid_moves(
    view: &AllocationView,
    proposed: Vec<Move>,
    request: MoveKind,
) -> (Vec<Move>, BTreeMap<InvalidMove, usize>) {
    let limit = match request {
        MoveKind::Allocate => view.shards.len(),
        MoveKind::Rebalance(limit) => limit.min(view.shards.len()),
    };
    let mut named = vec![false; view.shards.len()];
    let mut wrong = BTreeMap::new();
    let mut moves = Vec::new();
    for step in proposed {
        match validate_move(view, &named, step, request) {
            Some(why) => *wrong.entry(why).or_insert(0) += 1,
            None if moves.len() >= limit => {
                *wrong.entry(InvalidMove::LimitExceeded).or_insert(0) += 1
            }
            None => {
                named[step.shard.0 as usize - 1] = true;
                moves.push(step);
            }
        }
    }
    (moves, wrong)
}

fn validate_move(
    view: &AllocationView,
    named: &[bool],
    step: Move,
    request: MoveKind,
) -> Option<InvalidMove> {
    let at = (step.shard.0 as usize).checked_sub(1);
    let Some((at, place)) = at.and_then(|at| Some((at, view.shards.get(at)?))) else {
        return Some(InvalidMove::UnknownShard);
    };
    let owner = place.owner.filter(|owner| *owner < view.hosts.len());
    if step.to >= view.hosts.len() {
        Some(InvalidMove::UnknownHost)
    } else if named[at] {
        Some(InvalidMove::DuplicateShard)
    } else if place.hand_off_in_progress {
        Some(InvalidMove::HandOffInProgress)
    } else if place.pinned {
        Some(InvalidMove::Pinned)
    } else if owner.is_some() != matches!(request, MoveKind::Rebalance(_)) {
        Some(InvalidMove::NotRequested)
    } else {
        (owner == Some(step.to)).then_some(InvalidMove::SameOwner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::{Host, ShardPlacement};
    use crate::ids::ShardId;

    #[test]
    fn invalid_moves_are_counted_by_reason() {
        let host = |name: &str| Host::new(name.into(), 1);
        // The owner of the third shard is no longer a host of the view, so the shard needs an owner.
        let owners = [Some(0), None, Some(2)];
        let shards =
            owners.map(|owner| ShardPlacement { owner, ..ShardPlacement::default() }).to_vec();
        let view =
            AllocationView { hosts: vec![host("a"), host("b")], shards, seed: 1, measured: true };
        let to = |shard, to| Move { shard: ShardId(shard), to };
        let proposed = vec![to(1, 1), to(9, 0), to(0, 0), to(2, 1), to(3, 0), to(4, 0), to(2, 2)];
        let (moves, wrong) = filter_valid_moves(&view, proposed, MoveKind::Allocate);
        assert_eq!(moves, [to(2, 1), to(3, 0)]);
        let counts = [
            (InvalidMove::UnknownShard, 3),
            (InvalidMove::UnknownHost, 1),
            (InvalidMove::NotRequested, 1),
        ];
        assert_eq!(wrong, BTreeMap::from(counts));

        let shards = vec![ShardPlacement::owned_by(0); 4];
        let view = AllocationView { shards, ..view };
        let proposed = (1..=4).map(|shard| to(shard, 1)).collect();
        let (moves, wrong) = filter_valid_moves(&view, proposed, MoveKind::Rebalance(1));
        assert_eq!(moves, [to(1, 1)]);
        assert_eq!(wrong, BTreeMap::from([(InvalidMove::LimitExceeded, 3)]));
        assert_eq!(InvalidMove::LimitExceeded.to_string(), "beyond the limit");
    }
}
