//! An allocation strategy of one's own: fills one host after the other.

use ostraca_node::assign::{AllocationStrategy, AllocationView, Move};
use ostraca_node::ids::ShardId;

/// Uses as few hosts as possible: the first host in the order of names gets shards until it has `per_host` of them, then
/// the next one. For clusters in which a host without shards can be switched off. When all hosts are full, the last one
/// gets the rest.
#[derive(Debug)]
pub struct Packed {
    /// How many shards a host has before the next one gets any; at least 1.
    pub per_host: usize,
}

impl Packed {
    /// The host that should have each shard.
    ///
    /// A strategy is a pure function of the view: it keeps nothing between calls. So a new manager decides like the last
    /// one, and moves come to an end.
    fn homes(&self, view: &AllocationView) -> Vec<Option<usize>> {
        // Only hosts of the latest version may be given shards.
        let latest = view.hosts.iter().map(|host| host.version).max();
        let mut hosts: Vec<_> =
            (0..view.hosts.len()).filter(|at| Some(view.hosts[*at].version) == latest).collect();
        hosts.sort_by_key(|at| &view.hosts[*at].node);
        let place = |number: usize| (number / self.per_host.max(1)).min(hosts.len().max(1) - 1);
        (0..view.shards.len()).map(|number| hosts.get(place(number)).copied()).collect()
    }

    /// The moves to their homes of the shards that this function selects by their owner. Pinned shards, and those that are
    /// moving, are not for a strategy to move.
    fn moves(
        &self,
        view: &AllocationView,
        wanted: impl Fn(Option<usize>, usize) -> bool,
    ) -> impl Iterator<Item = Move> {
        let homes = self.homes(view).into_iter().zip(view.shards.clone());
        let steps = (1..).zip(homes).filter_map(move |(number, (home, place))| {
            let to = home.filter(|to| wanted(place.owner, *to))?;
            let may_move = !place.hand_off_in_progress && !place.pinned;
            may_move.then_some(Move { shard: ShardId(number), to })
        });
        steps.collect::<Vec<_>>().into_iter()
    }
}

impl AllocationStrategy for Packed {
    fn name(&self) -> &'static str {
        "packed"
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        self.moves(view, |owner, _| owner.is_none()).collect()
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        if view.hosts.windows(2).any(|pair| pair[0].version != pair[1].version) {
            return Vec::new(); // A rolling update is in progress.
        }
        self.moves(view, |owner, home| owner.is_some_and(|owner| owner != home))
            .take(limit)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_node::assign::{Host, ShardPlacement};

    use super::*;

    fn view(hosts: &[&str], shards: usize) -> AllocationView {
        let hosts = hosts.iter().map(|name| Host::new((*name).into(), 1)).collect();
        let shards = vec![ShardPlacement::default(); shards];
        AllocationView { hosts, shards, seed: 1, measured: true }
    }

    fn carry_out(view: &mut AllocationView, moves: Vec<Move>) {
        for Move { shard, to } in moves {
            view.shards[shard.0 as usize - 1].owner = Some(to);
        }
    }

    #[test]
    fn hosts_are_filled_in_the_order_of_their_names() {
        let packed = Packed { per_host: 4 };
        let mut view = view(&["b", "a", "c"], 10);
        let moves = packed.allocate(&view);
        carry_out(&mut view, moves);
        let owners: Vec<_> = view.shards.iter().filter_map(|place| place.owner).collect();
        assert_eq!(owners, [1, 1, 1, 1, 0, 0, 0, 0, 2, 2]);
        assert_eq!(packed.rebalance(&view, 9), [], "it is at rest");
        // A host that comes first takes over, a few shards at a time.
        view.hosts[2].node = "0".into();
        assert_eq!(packed.rebalance(&view, 3).len(), 3);
        view.shards[0].pinned = true;
        assert!(packed.rebalance(&view, 9).iter().all(|step| step.shard != ShardId(1)));
    }

    #[test]
    fn the_last_host_gets_what_is_left() {
        let view = view(&["a", "b"], 10);
        let moves = Packed { per_host: 2 }.allocate(&view);
        assert_eq!(moves.iter().filter(|step| step.to == 1).count(), 8);
    }
}
