//! A pool without a manager (E3 to E8): its hosts take numbers, and own each shard under a lease of its own.

use ostraca_core::assign::{BuiltinStrategy, contiguous_range};
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::rows::{
    Assignment, AssignmentsRow, Member, NumberHolder, NumbersRow, Row, RowKey, ShardLease,
};

use crate::rules;
use crate::scope::Scope;
use crate::state::{Hosted, NOW, Process, State};

/// The pool's name, and what follows `host.` in the role of its hosts.
pub const POOL: &str = "free";

/// The pool of this many shards, behind one that nobody hosts.
pub fn pools(shards: u32) -> Pools {
    let mut pools = Pools::one(1);
    let mut free = Pool::new(POOL, shards, &pools);
    free.role = Some(POOL.into());
    free.strategy = Some(BuiltinStrategy::Stateless);
    let added = pools.add(free);
    assert_eq!(added, Ok(()), "its shards follow the first one");
    pools
}

impl Hosted {
    /// Whether the owner relies on the shard's lease now.
    pub fn has_lease(&self) -> bool {
        self.lease_until > NOW
    }
}

/// Checks a row of numbers before the store applies it. Who has one decides nothing: a host that loses its number
/// although it lives takes one again.
pub fn check_numbers(state: &mut State, row: &NumbersRow) {
    let follow = |pair: &[NumberHolder]| pair[0].number < pair[1].number;
    if !row.holders.windows(2).all(follow) {
        state.break_rule(rules::ONE_NUMBER);
    }
}

/// Checks a change of a shard's row before the store applies it.
pub fn check_owner(state: &mut State, shard: ShardId, before: &Assignment, after: &Assignment) {
    let Some(was) = &before.owner else { return };
    let Some(hosted) = hosted(state, was, shard, before.epoch) else { return };
    let serves = hosted.phase.serves();
    let (has_lease, is_released) = (hosted.has_lease(), after.owner.is_none());
    if serves && has_lease && after.epoch != before.epoch {
        state.break_rule(rules::LAPSED);
    }
    if serves && is_released {
        state.break_rule(rules::STOPPED);
    }
}

/// The shard's machine of this incarnation in this epoch.
fn hosted<'a>(
    state: &'a State,
    owner: &Member,
    shard: ShardId,
    epoch: Epoch,
) -> Option<&'a Hosted> {
    let process = state.nodes[State::number(&owner.node)].as_ref()?;
    let hosted = process.hosted.get(&shard)?;
    (hosted.claim.epoch == epoch && hosted.claim.owner == *owner).then_some(hosted)
}

/// Whether the pool's hosts have numbers, each owns its range, and all that it owns is served under a lease. A draining
/// host owns nothing if there is another one.
pub fn rests_well(scope: &Scope, state: &State) -> bool {
    let drains = |process: &Process| {
        let member = process.machine.member();
        member.is_some_and(|member| match state.rows.get(&RowKey::Node(member.node)) {
            Some((Row::Node(row), _)) => row.draining,
            _ => false,
        })
    };
    let running = || state.nodes.iter().flatten();
    let hosts = |draining: bool| running().filter(move |process| drains(process) == draining);
    let expected: Vec<_> = match hosts(false).count() {
        0 => hosts(true).filter_map(|it| it.machine.member()).collect(),
        _ => hosts(false).filter_map(|it| it.machine.member()).collect(),
    };
    if expected.is_empty() {
        return true;
    }
    let Some((Row::Numbers(numbers), _)) = state.rows.get(&RowKey::Numbers(POOL.into())) else {
        return false;
    };
    let holders: Vec<_> = numbers.holders.iter().map(|it| it.member.clone()).collect();
    holders.len() == expected.len()
        && expected.iter().all(|member| holders.contains(member))
        && holders.iter().enumerate().all(|(place, member)| {
            let range = contiguous_range(place, holders.len(), scope.shards);
            scope.all_shards().enumerate().all(|(at, shard)| {
                let is_served = epoch_of(state, member, shard).is_some_and(|epoch| {
                    hosted(state, member, shard, epoch)
                        .is_some_and(|it| it.phase.serves() && it.has_lease())
                });
                is_served == range.contains(&(at as u32))
            })
        })
}

/// The epoch in which an incarnation owns a shard, by its row.
fn epoch_of(state: &State, member: &Member, shard: ShardId) -> Option<Epoch> {
    let Some((Row::Assignments(row), _)) = state.rows.get(&RowKey::for_shard(shard)) else {
        return None;
    };
    let row = row.assignments.get(ostraca_core::rows::index_in_chunk(shard))?;
    (row.owner.as_ref() == Some(member)).then_some(row.epoch)
}

/// Whether two rows of owners differ at most in how often leases were renewed.
pub fn same_owners(one: &AssignmentsRow, other: &AssignmentsRow) -> bool {
    let without_counts = |row: &AssignmentsRow| {
        let mut row = row.clone();
        for owned in &mut row.assignments {
            let lease = owned.lease().map(|lease| ShardLease { renewals: 0, ..lease });
            // It replaces one that had space.
            let _ = owned.set_lease(lease);
        }
        row
    };
    without_counts(one) == without_counts(other)
}

/// Records until when an owner relies on a shard's lease.
pub fn renewed(process: &mut Process, shard: ShardId, epoch: Epoch, until: u64) {
    if let Some(hosted) = process.hosted.get_mut(&shard)
        && hosted.claim.epoch == epoch
    {
        hosted.lease_until = until;
    }
}
