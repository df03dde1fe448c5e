//! Moves of single shards, to and from this store (R26).

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot::channel;
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, HeadFloor};
use ostraca_store::transfer::{Item, ItemPage};
use ostraca_store::{MovableShards, ShardMoveError, StoreError, StoreFuture};

use crate::read_queue::ReadOp;
use crate::shard_op::ShardOp;
use crate::write_op::WriteOp;
use crate::{FAILED, SledStore};

impl SledStore {
    fn move_step(&self, step: ShardOp) -> StoreFuture<Result<bool, ShardMoveError>> {
        let (to, answer) = channel();
        self.write(vec![WriteOp::MoveShard(Box::new(step), to)]);
        let lost = || Err(StoreError::Stopped(FAILED.into()).into());
        answer.map(move |answer| answer.unwrap_or_else(|_| lost())).boxed()
    }
}

impl MovableShards for SledStore {
    fn shard_page(
        &self,
        shard: ShardPath,
        cursor: Option<Bytes>,
    ) -> StoreFuture<Result<ItemPage, StoreError>> {
        self.read(|to| ReadOp::Contents(shard, cursor, to), Err)
    }

    fn write_incoming(
        &self,
        incoming: Claim,
        items: Vec<Item>,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        self.move_step(ShardOp::Write { incoming, items }).map(|done| done.map(drop)).boxed()
    }

    fn remove_absent(&self, claim: Claim) -> StoreFuture<Result<bool, ShardMoveError>> {
        self.move_step(ShardOp::Remove { absent: claim })
    }

    fn finish_incoming(
        &self,
        incoming: Claim,
        claim: Claim,
        floor: Option<HeadFloor>,
        last_sequence: u64,
    ) -> StoreFuture<Result<(), ShardMoveError>> {
        let step = ShardOp::Finish { incoming, claim, floor, last_sequence };
        self.move_step(step).map(|done| done.map(drop)).boxed()
    }
}
