//! Where operators and outside programs want shards: pins, moves on request, and placements (E9).
//!
//! Pins and placements are rows, which every node watches: the manager follows them. A move is only a message to the
//! manager: nothing remembers it.

use std::collections::BTreeMap;

use ostraca_catalog::audit::{Change, Log};
use ostraca_catalog::placement::{
    PinEntry, PinsRow, PlacementRow, check_placement, placed_pool, placement_key,
};
use ostraca_catalog::rows::{self, PINS, PLACEMENTS};
use ostraca_codes::codes;
use ostraca_control::view::ClusterView;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::node::Event;
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::rows::NodeStatus;
use ostraca_store::cluster::MAX_ROW_VALUE_BYTES;
use ostraca_wire::identity::check_name;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    PinInfo, PlacementInfo, PlacementRequest, PlacementState, PoolPlacement, Problem, ShardAtNode,
};
use ostraca_wire::server::AdminOutput;

use super::catalog_problem::to_problem;
use super::pools::unknown_pool;
use super::{AdminService, store_failed, unknown_node};

/// Maximum size of the name of who pinned a shard, as the row keeps it, in bytes.
const MAX_BY: usize = 64;
/// How often a row is written again that changes concurrently.
const ATTEMPTS: usize = 8;

impl AdminService {
    pub(super) async fn placement(
        &self,
        principal: &str,
        request: PlacementRequest,
    ) -> Result<AdminOutput, Problem> {
        let (_, pools) = self.read_pools().await?;
        let view = self.current_view();
        for it in &request.pins {
            check_shard(&pools, it)?;
            if !it.node.is_empty() {
                check_host(&view, &pools, it, false)?;
            }
        }
        let pins = match request.moves.is_empty() {
            true => PinsRow::default(),
            false => {
                let store = &*self.deployer.cluster_store;
                let found = rows::read::<PinsRow>(store, PINS).await.map_err(to_problem)?;
                found.map(|(row, _)| row).unwrap_or_default()
            }
        };
        for it in &request.moves {
            check_shard(&pools, it)?;
            check_host(&view, &pools, it, true)?;
            check_not_pinned(&pins, it)?;
        }
        if let Some(wanted) = &request.placement {
            check_wanted(&pools, wanted)?;
        }
        if !request.pins.is_empty() {
            self.set_pins(principal, &request.pins).await?;
        }
        if let Some(wanted) = request.placement {
            self.set_placement(principal, wanted).await?;
        }
        for ShardAtNode { shard, node } in request.moves {
            let (shard, to) = (ShardId(shard), NodeId::from(node.as_str()));
            self.send_event(Event::MoveShard { shard, to });
        }
        self.placement_state(&view, &pools).await.map(AdminOutput::Placement)
    }

    async fn set_pins(&self, principal: &str, pins: &[ShardAtNode]) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        for _ in 0..ATTEMPTS {
            let found = rows::read::<PinsRow>(store, PINS).await.map_err(to_problem)?;
            let (mut row, revision) = found.map_or_else(
                || (PinsRow::default(), None),
                |(row, revision)| (row, Some(revision)),
            );
            for ShardAtNode { shard, node } in pins {
                let shard = ShardId(*shard);
                match node.as_str() {
                    "" => row.unpin(shard),
                    node => row.pin(PinEntry {
                        shard,
                        node: node.into(),
                        at_ms: self.gateway.clock.now().utc,
                        by: truncated(principal),
                        extensions: Extensions::default(),
                    }),
                }
            }
            check_pins(&row, self.max_pins)?;
            match rows::write(store, PINS, revision, &row).await {
                Ok(_) => return Ok(()),
                Err(ostraca_catalog::Error::RowConflict(_)) => {}
                Err(error) => return Err(to_problem(error)),
            }
        }
        Err(to_problem(ostraca_catalog::Error::RowConflict(PINS.into())))
    }

    /// Writes what a program wants. The row changes each time, so that every node knows that the program still runs; the
    /// audit log gets only what is new.
    async fn set_placement(&self, principal: &str, wanted: PoolPlacement) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        let key = placement_key(&wanted.pool);
        for _ in 0..ATTEMPTS {
            let found = rows::read::<PlacementRow>(store, &key).await.map_err(to_problem)?;
            let (before, revision) = found.map_or_else(
                || (PlacementRow::default(), None),
                |(row, revision)| (row, Some(revision)),
            );
            let row = PlacementRow {
                count: before.count + 1,
                nodes: wanted.nodes.clone(),
                shards: wanted.shards.clone(),
                at_ms: self.gateway.clock.now().utc,
                by: truncated(principal),
                extensions: before.extensions.clone(),
            };
            check_size(&row)?;
            let is_news =
                (&before.nodes, &before.shards, &before.by) != (&row.nodes, &row.shards, &row.by);
            if is_news {
                let placed = row.shards.iter().filter(|place| **place > 0).count();
                let details = format!("{placed} shards on {} nodes", row.nodes.len());
                let target = wanted.pool.clone();
                let change = Change { action: "shards place", target, details };
                let logged = self.audit.append(Log::Cluster, principal, vec![change]).await;
                logged.map_err(to_problem)?;
            }
            match rows::write(store, &key, revision, &row).await {
                Ok(_) => return Ok(()),
                Err(ostraca_catalog::Error::RowConflict(_)) => {}
                Err(error) => return Err(to_problem(error)),
            }
        }
        Err(to_problem(ostraca_catalog::Error::RowConflict(key)))
    }

    async fn placement_state(
        &self,
        view: &ClusterView,
        pools: &Pools,
    ) -> Result<PlacementState, Problem> {
        let store = &*self.deployer.cluster_store;
        let pins = rows::read::<PinsRow>(store, PINS).await.map_err(to_problem)?;
        let pins = pins.map_or_else(Vec::new, |(row, _)| row.pins);
        let pins = pins.into_iter().map(|pin| PinInfo {
            shard: pin.shard.0,
            node: pin.node,
            created_unix_ms: pin.at_ms,
            created_by: pin.by,
        });
        let (stored, _) = store.list(PLACEMENTS).await.map_err(|error| store_failed(&error))?;
        let mut placements = BTreeMap::new();
        for row in &stored {
            let Some(pool) = placed_pool(&row.key).and_then(|name| pools.get(name)) else {
                continue;
            };
            let row = rows::decode::<PlacementRow>(row).map_err(to_problem)?;
            placements.insert(pool.name.clone(), self.placement_info(view, pool, &row));
        }
        Ok(PlacementState { pins: pins.collect(), placements: placements.into_values().collect() })
    }

    fn placement_info(&self, view: &ClusterView, pool: &Pool, row: &PlacementRow) -> PlacementInfo {
        let wishes = row.wishes(pool);
        let is_there = |(shard, node): &(&ShardId, &NodeId)| {
            view.owner(**shard).is_some_and(|owner| owner.node == **node)
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let external = BuiltinStrategy::External.name();
        PlacementInfo {
            pool: pool.name.clone(),
            wanted: count(wishes.len()),
            in_place: count(wishes.iter().filter(is_there).count()),
            said_unix_ms: row.at_ms,
            said_by: row.by.clone(),
            has_effect: pool.strategy.map_or(&*self.strategy, |of| of.name()) == external,
        }
    }
}

/// What a row keeps of a principal's name.
fn truncated(principal: &str) -> String {
    principal[..principal.floor_char_boundary(MAX_BY)].into()
}

/// Refuses more pins than `rebalance.max-pins`, or than one row has space for.
fn check_pins(row: &PinsRow, max: usize) -> Result<(), Problem> {
    let pins = row.pins.len();
    if pins > max {
        let text = format!("{pins} pinned shards, at most {max} (`rebalance.max-pins`)");
        return Err(invalid(text, "`ostraca shards unpin` ends pins"));
    }
    let bytes = rows::encode_value(row).map_err(to_problem)?.len();
    if bytes > MAX_ROW_VALUE_BYTES {
        let text = format!(
            "{pins} pinned shards need {bytes} bytes, and the row of all pins has at most {MAX_ROW_VALUE_BYTES}"
        );
        return Err(invalid(text, "`ostraca shards unpin` ends pins"));
    }
    Ok(())
}

/// Refuses a placement that no store can keep.
fn check_size(row: &PlacementRow) -> Result<(), Problem> {
    let bytes = rows::encode_value(row).map_err(to_problem)?.len();
    if bytes <= MAX_ROW_VALUE_BYTES {
        return Ok(());
    }
    let (shards, nodes) = (row.shards.len(), row.nodes.len());
    let text = format!(
        "the placement of {shards} shards on {nodes} nodes needs {bytes} bytes, at most {MAX_ROW_VALUE_BYTES}"
    );
    Err(invalid(text, "use a pool with fewer shards, or name fewer nodes"))
}

fn check_not_pinned(pins: &PinsRow, wanted: &ShardAtNode) -> Result<(), Problem> {
    let ShardAtNode { shard, node } = wanted;
    let found = pins.pins.binary_search_by_key(&ShardId(*shard), |pin| pin.shard);
    match found.ok().map(|at| &pins.pins[at]).filter(|pin| pin.node != *node) {
        None => Ok(()),
        Some(pin) => {
            let text = format!("shard {shard} is pinned to `{}`", pin.node);
            Err(invalid(text, "end the pin first: `ostraca shards unpin`"))
        }
    }
}

fn check_shard(pools: &Pools, wanted: &ShardAtNode) -> Result<(), Problem> {
    let ShardAtNode { shard, node } = wanted;
    match pools.of(ShardId(*shard)) {
        // It may have been pinned before its pool was copied.
        Some(pool) if pool.is_left() && node.is_empty() => Ok(()),
        Some(pool) => check_pool(pools, pool),
        None => {
            let text = format!("the cluster has no shard {shard}: it has {}", pools.shard_count());
            Err(invalid(text, "`ostraca shards` lists them"))
        }
    }
}

/// Refuses a pool in which nobody can choose the node of a shard.
fn check_pool(pools: &Pools, pool: &Pool) -> Result<(), Problem> {
    if pool.is_stateless() {
        return Err(without_manager(pool));
    }
    match pools.home(&pool.name) {
        Some(home) if pool.is_left() => {
            let text = format!(
                "no shard of pool `{}` can be pinned, moved or placed: its entities are in pool `{}` since a copy",
                pool.name, home.name
            );
            Err(invalid(text, "name shards of that pool: `ostraca pool list` shows which it has"))
        }
        _ => Ok(()),
    }
}

/// The hosts of such a pool compute from their numbers which of them owns which shard.
fn without_manager(pool: &Pool) -> Problem {
    let text = format!(
        "no shard of pool `{}` can be pinned, moved or placed: its strategy is `stateless`",
        pool.name
    );
    invalid(text, "use a pool with another strategy; `ostraca drain` moves all shards of a node")
}

/// Checks that a node may have a shard. A pin may name a node that is not running now.
fn check_host(
    view: &ClusterView,
    pools: &Pools,
    wanted: &ShardAtNode,
    now: bool,
) -> Result<(), Problem> {
    let ShardAtNode { shard, node } = wanted;
    let Some(row) = view.nodes.get(&NodeId::from(node.as_str())) else {
        return Err(unknown_node(view, node));
    };
    let pool = pools.of(ShardId(*shard));
    if let Some(pool) = pool.filter(|pool| pool.is_closed()) {
        let pool = &pool.name;
        let text = format!(
            "shard {shard} has no owner now: a copy of pool `{pool}`, or to it, is unfinished"
        );
        return Err(invalid(
            text,
            "repeat the command after the copy: `ostraca pool list` shows it",
        ));
    }
    if let Some(pool) = pool.filter(|pool| !row.hosts(pool)) {
        let (pool, role) = (&pool.name, pool.host_role());
        let text = format!(
            "node `{node}` cannot own shard {shard}: pool `{pool}` needs the role `{role}`"
        );
        return Err(invalid(text, "`ostraca nodes` shows the roles of nodes"));
    }
    let why = match row.status {
        _ if !now => None,
        NodeStatus::Live if row.is_draining_or_leaving() => Some("is being drained"),
        NodeStatus::Live if !row.store_available => Some("gets no response from the store"),
        NodeStatus::Live => None,
        NodeStatus::Dead | NodeStatus::Left => Some("is not live"),
    };
    match why {
        None => Ok(()),
        Some(why) => {
            let text = format!("shard {shard} cannot move to node `{node}`: it {why}");
            Err(invalid(text, "`ostraca nodes` shows the status of nodes"))
        }
    }
}

/// Checks what a program wants. It may name nodes that are not there any more, or not yet: the list that it follows may
/// be ahead of the cluster, and the other shards must not wait for that.
fn check_wanted(pools: &Pools, wanted: &PoolPlacement) -> Result<(), Problem> {
    let pool = pools.get(&wanted.pool).ok_or_else(|| unknown_pool(pools, &wanted.pool))?;
    check_pool(pools, pool)?;
    check_placement(pool, &wanted.nodes, &wanted.shards)
        .map_err(|error| invalid(error.to_string(), "`ostraca pool list` shows the pools"))?;
    match wanted.nodes.iter().find_map(|name| check_name(name).err()) {
        Some(error) => Err(invalid(
            format!("no node has such a name: {error}"),
            "`ostraca nodes` lists the nodes",
        )),
        None => Ok(()),
    }
}

fn invalid(text: String, help: &str) -> Problem {
    problem(codes::INVALID_PLACEMENT, text, help)
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::Incarnation;
    use ostraca_core::rows::{NodeRow, Roles};

    use super::*;

    fn pinned(pins: u32, node: &str) -> PinsRow {
        let mut row = PinsRow::default();
        for shard in 1..=pins {
            row.pin(PinEntry {
                shard: ShardId(shard),
                node: node.into(),
                at_ms: 1 << 40,
                by: "client/admin".into(),
                extensions: Extensions::default(),
            });
        }
        row
    }

    #[test]
    fn more_pins_than_the_setting_permits_are_refused() {
        assert_eq!(check_pins(&pinned(512, "node-1"), 512), Ok(()));
        let problem = check_pins(&pinned(513, "node-1"), 512).expect_err("too many");
        assert_eq!(problem.code, codes::INVALID_PLACEMENT.as_str());
        assert!(problem.message.contains("513 pinned shards, at most 512"), "{}", problem.message);
        assert!(problem.message.contains("`rebalance.max-pins`"), "{}", problem.message);
    }

    fn at(shard: u32, node: &str) -> ShardAtNode {
        ShardAtNode { shard, node: node.into() }
    }

    fn on(pool: &str, nodes: &[&str], shards: &[u32]) -> PoolPlacement {
        let nodes = nodes.iter().map(ToString::to_string).collect();
        PoolPlacement { pool: pool.into(), nodes, shards: shards.to_vec() }
    }

    /// Pools of four shards: the entities of `default` are in `third`, through `second`.
    fn copied_twice() -> Pools {
        let mut pools = Pools::one(4);
        for name in ["second", "third"] {
            pools.add(Pool::new(name, 4, &pools)).expect("a pool");
        }
        for (from, to) in [("default", "second"), ("second", "third")] {
            pools.set_copied(from, to, true).expect("two pools");
        }
        pools
    }

    #[test]
    fn shards_of_a_copied_pool_can_only_be_unpinned() {
        let pools = copied_twice();
        let placement = |pool: &str| on(pool, &[], &[0; 4]);
        for (shard, pool) in [(1, "default"), (8, "second")] {
            let place = check_wanted(&pools, &placement(pool));
            for refused in [check_shard(&pools, &at(shard, "node-1")), place] {
                let problem = refused.expect_err(pool);
                assert_eq!(problem.code, codes::INVALID_PLACEMENT.as_str());
                let names = [pool, "third"].map(|name| format!("pool `{name}`"));
                let names_both = names.iter().all(|name| problem.message.contains(name));
                assert!(names_both, "{}", problem.message);
            }
            assert_eq!(check_shard(&pools, &at(shard, "")), Ok(()));
        }
        assert_eq!(check_shard(&pools, &at(9, "node-1")), Ok(()));
        assert_eq!(check_wanted(&pools, &placement("third")), Ok(()));
    }

    #[test]
    fn e9_a_placement_may_name_a_node_before_its_first_start() {
        let pools = Pools::one(4);
        let check = |names: &[&str]| check_wanted(&pools, &on("default", names, &[1, 2, 0, 2]));
        assert_eq!(check(&["node-1", "later.example_2"]), Ok(()));
        for name in ["", "a/b", "-a", &"n".repeat(65)] {
            let problem = check(&["node-1", name]).expect_err(name);
            assert_eq!(problem.code, codes::INVALID_PLACEMENT.as_str());
            assert!(problem.message.contains(&format!("{name:?}")), "{}", problem.message);
        }
        let problem = check(&["node-1"]).expect_err("too few names");
        assert!(problem.message.contains("node 2 of 1"), "{}", problem.message);
    }

    #[test]
    fn a_move_to_a_node_that_cannot_own_the_shard_is_refused() {
        let row = NodeRow::for_tests(Incarnation { counter: 1, nonce: 1 });
        let rows = [
            ("good", row.clone()),
            ("drained", NodeRow { draining: true, ..row.clone() }),
            ("cut-off", NodeRow { store_available: false, ..row.clone() }),
            ("dead", NodeRow { status: NodeStatus::Dead, ..row.clone() }),
            ("gateway", NodeRow { roles: Roles::default(), ..row }),
        ];
        let nodes = rows.map(|(name, row)| (NodeId::from(name), row)).into();
        let view = ClusterView { nodes, ..ClusterView::default() };
        let mut pools = Pools::one(4);
        pools.add(Pool::new("second", 4, &pools)).expect("a pool");
        let check = |pools: &Pools, node, now| check_host(&view, pools, &at(1, node), now);
        for (node, why) in [
            ("drained", "is being drained"),
            ("cut-off", "gets no response from the store"),
            ("dead", "is not live"),
        ] {
            let problem = check(&pools, node, true).expect_err(node);
            assert_eq!(problem.code, codes::INVALID_PLACEMENT.as_str());
            assert!(problem.message.contains(why), "{}", problem.message);
            assert_eq!(check(&pools, node, false), Ok(()), "a pin waits");
        }
        let problem = check(&pools, "gateway", false).expect_err("no host");
        assert!(problem.message.contains("needs the role `host`"), "{}", problem.message);
        assert_eq!(check(&pools, "good", true), Ok(()));
        pools.set_copied("default", "second", false).expect("two pools");
        let problem = check(&pools, "good", true).expect_err("a copy runs");
        assert!(problem.message.contains("copy of pool `default`"), "{}", problem.message);
    }

    #[test]
    fn pins_that_no_row_can_hold_are_refused() {
        let problem = check_pins(&pinned(1_000, &"n".repeat(64)), 4_096).expect_err("too large");
        assert!(problem.message.contains("at most 65536"), "{}", problem.message);
    }
}
