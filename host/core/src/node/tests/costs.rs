//! The cost of a decision does not grow with unchanged state. The tests count examined chunks instead of time.

use super::cluster::Cluster;
use crate::node::Event;
use crate::pools::Pools;
use crate::rows::{Row, RowKey, SHARDS_PER_CHUNK, index_in_chunk};

const CHUNKS: u32 = 64;

/// Two idle nodes; the first is the manager.
fn at_rest() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.pools = Pools::one(CHUNKS * SHARDS_PER_CHUNK);
    cluster.start("a");
    cluster.start("b");
    cluster.run(20_000);
    for node in ["a", "b"] {
        assert!(cluster.node(node).owns.len() > 1_000, "{node} has its share");
        cluster.node(node).machine.take_visits();
    }
    cluster
}

fn examined_chunks(cluster: &mut Cluster, node: &str) -> usize {
    cluster.node(node).machine.take_visits()
}

#[test]
fn no_chunk_is_examined_while_nothing_changes() {
    let mut cluster = at_rest();
    cluster.run(5_000);
    assert_eq!((examined_chunks(&mut cluster, "a"), examined_chunks(&mut cluster, "b")), (0, 0));
}

#[test]
fn a_lost_shard_causes_only_its_own_chunk_to_be_examined() {
    let mut cluster = at_rest();
    let (shard, (epoch, _)) = cluster.node("b").owns.first_key_value().expect("a shard");
    let (shard, epoch) = (*shard, *epoch);
    cluster.handle("b", Event::ShardLost { shard, epoch, current_epoch: None });
    cluster.run(2_000);
    let row = &cluster.rows[&RowKey::for_shard(shard)].0;
    let Row::Assignments(row) = row else { panic!("{row:?}") };
    assert!(row.assignments[index_in_chunk(shard)].epoch > epoch, "it has an owner again");
    let examined = examined_chunks(&mut cluster, "a");
    assert!((1..=12).contains(&examined), "{examined}");
    let examined = examined_chunks(&mut cluster, "b");
    assert!((1..=3).contains(&examined), "{examined}");
}

#[test]
fn a_dead_node_causes_all_chunks_to_be_examined() {
    let mut cluster = at_rest();
    cluster.node("b").dead = true;
    cluster.run(20_000);
    assert_eq!(cluster.node("a").owns.len(), (CHUNKS * SHARDS_PER_CHUNK) as usize);
    let examined = examined_chunks(&mut cluster, "a");
    assert!((CHUNKS as usize..=12 * CHUNKS as usize).contains(&examined), "{examined}");
}
