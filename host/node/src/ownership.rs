//! Who this node is, and which shards it owns: registration, the lease, and assignment.
//!
//! With one node and its store in one process, the directory's lock is the proof that no former life of
//! this node still runs (R7). The manager's part is here in its smallest form: it takes a term, rewrites
//! every row of assignments under it and raises each shard's epoch by compare-and-set (R5, R10).

use std::sync::Arc;

use ostraca_sharding::ids::{Epoch, Incarnation, NodeId, ShardId, ShardKey};
use ostraca_sharding::shard::Owner;
use ostraca_store::{ClusterStore, StoreIdentity};

use crate::error::NodeError;
use crate::rows::{
    self, CHUNK, ClusterRow, ManagerRow, NodeRow, PoolRow, ShardRow, ShardsRow, TimeRow,
};

/// The one namespace of 0.1.
pub(crate) const NAMESPACE: &str = "default";
/// The one pool of 0.1.
pub(crate) const POOL: &str = "default";
/// The one hash of 0.1 (M1).
pub(crate) const HASH: &str = "murmur3_x86_32";
/// The record format that this program writes.
const FORMAT: u32 = 1;

/// Writes the rows that are fixed for the cluster's life.
///
/// # Errors
/// [`NodeError::Store`], [`NodeError::Conflict`] if the cluster has them already.
pub async fn found(store: &dyn ClusterStore, shards: u32) -> Result<(), NodeError> {
    rows::write(store, "cluster", None, &ClusterRow { format: FORMAT }).await?;
    rows::write(store, &format!("pools/{POOL}"), None, &PoolRow { hash: HASH.into(), shards })
        .await?;
    rows::write(store, "time", None, &TimeRow(0)).await?;
    Ok(())
}

/// A registered node.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) shards: u32,
    /// Cluster time at registration.
    pub(crate) time: u64,
    term: u64,
    row: NodeRow,
    revision: u64,
}

impl Registration {
    /// Registers a new life of the node and takes the manager's term.
    pub(crate) async fn take(
        store: &dyn ClusterStore,
        node: NodeId,
        addresses: Vec<String>,
    ) -> Result<Self, NodeError> {
        let (cluster, _) =
            rows::read::<ClusterRow>(store, "cluster").await?.ok_or_else(not_founded)?;
        if cluster.format > FORMAT {
            return Err(NodeError::Row(format!(
                "the cluster's record format is {}, and this program reads {FORMAT}: use a newer one",
                cluster.format
            )));
        }
        let (pool, _) = rows::read::<PoolRow>(store, &format!("pools/{POOL}"))
            .await?
            .ok_or_else(not_founded)?;
        if pool.hash != HASH {
            return Err(NodeError::Row(format!(
                "pool `{POOL}` hashes by `{}`, not by {HASH}",
                pool.hash
            )));
        }
        let (TimeRow(time), _) = rows::read(store, "time").await?.ok_or_else(not_founded)?;

        let key = format!("nodes/{node}");
        let before = rows::read::<NodeRow>(store, &key).await?;
        let counter = before.as_ref().map_or(0, |(row, _)| row.incarnation.counter) + 1;
        let incarnation = Incarnation { counter, nonce: rand::random() };
        let row = NodeRow { incarnation, renewals: 0, dead: false, stopped: false, addresses };
        let revision = rows::write(store, &key, before.map(|(_, revision)| revision), &row).await?;

        let manager = rows::read::<ManagerRow>(store, "manager").await?;
        let term = manager.as_ref().map_or(0, |(row, _)| row.term) + 1;
        let taken = ManagerRow { term, node: node.clone(), incarnation };
        rows::write(store, "manager", manager.map(|(_, revision)| revision), &taken).await?;
        Ok(Self { node, incarnation, shards: pool.shards, time, term, row, revision })
    }

    /// Assigns every shard of the pool to this incarnation, each with a higher epoch than before.
    pub(crate) async fn assign(
        &self,
        store: &dyn ClusterStore,
        identity: &StoreIdentity,
    ) -> Result<Vec<Owner>, NodeError> {
        let mut owners = Vec::new();
        for chunk in 0..self.shards.div_ceil(CHUNK) {
            let key = format!("shards/{POOL}/{chunk:05}");
            let before = rows::read::<ShardsRow>(store, &key).await?;
            let (mut row, revision) = before.map_or_else(Default::default, |(r, at)| (r, Some(at)));
            let count = CHUNK.min(self.shards - chunk * CHUNK);
            row.term = self.term;
            row.shards.resize(count as usize, ShardRow::default());
            for (at, shard) in row.shards.iter_mut().enumerate() {
                shard.epoch = Epoch(shard.epoch.0 + 1);
                shard.owner = Some((self.node.clone(), self.incarnation));
                let number = chunk * CHUNK + u32::try_from(at).unwrap_or(0) + 1;
                owners.push(self.owner(identity, ShardId(number), shard.epoch));
            }
            rows::write(store, &key, revision, &row).await?;
        }
        Ok(owners)
    }

    /// Assigns one shard again, above an epoch that the store was found to know (R5).
    pub(crate) async fn assign_above(
        &self,
        store: &dyn ClusterStore,
        identity: &StoreIdentity,
        shard: ShardId,
        above: Epoch,
    ) -> Result<Owner, NodeError> {
        let index = shard.0.saturating_sub(1);
        let key = format!("shards/{POOL}/{:05}", index / CHUNK);
        let (mut row, revision) =
            rows::read::<ShardsRow>(store, &key).await?.ok_or_else(not_founded)?;
        let entry = row.shards.get_mut((index % CHUNK) as usize).ok_or_else(not_founded)?;
        entry.epoch = Epoch(entry.epoch.0.max(above.0) + 1);
        entry.owner = Some((self.node.clone(), self.incarnation));
        let epoch = entry.epoch;
        row.term = self.term;
        rows::write(store, &key, Some(revision), &row).await?;
        Ok(self.owner(identity, shard, epoch))
    }

    fn owner(&self, identity: &StoreIdentity, shard: ShardId, epoch: Epoch) -> Owner {
        Owner {
            cluster: identity.cluster,
            shard: ShardKey { namespace: NAMESPACE.into(), pool: POOL.into(), shard },
            epoch,
            node: self.node.clone(),
            incarnation: self.incarnation,
        }
    }

    /// Renews the lease. A row that somebody else changed means that this incarnation is dead (R7).
    pub(crate) async fn renew(&mut self, store: &dyn ClusterStore) -> Result<(), NodeError> {
        self.row.renewals += 1;
        self.write(store).await
    }

    /// Says goodbye, so that nobody waits for the lease to lapse.
    pub(crate) async fn leave(&mut self, store: &dyn ClusterStore) -> Result<(), NodeError> {
        self.row.stopped = true;
        self.write(store).await
    }

    async fn write(&mut self, store: &dyn ClusterStore) -> Result<(), NodeError> {
        let key = format!("nodes/{}", self.node);
        self.revision = rows::write(store, &key, Some(self.revision), &self.row).await?;
        Ok(())
    }
}

/// Moves cluster time on.
pub(crate) async fn write_time(store: &dyn ClusterStore, millis: u64) -> Result<(), NodeError> {
    if let Some((TimeRow(before), revision)) = rows::read(store, "time").await?
        && before < millis
    {
        rows::write(store, "time", Some(revision), &TimeRow(millis)).await?;
    }
    Ok(())
}

fn not_founded() -> NodeError {
    NodeError::Row("the store holds no cluster: create one with `ostraca init`".into())
}

/// What several threads need of the store.
pub(crate) type Cluster = Arc<dyn ClusterStore>;
