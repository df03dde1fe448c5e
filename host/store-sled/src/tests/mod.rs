//! Tests that replace the disk or inspect the directory.

mod backups;
mod directory;
mod faults;
mod fragments;
mod order;

use std::path::Path;
use std::sync::Arc;

use futures::executor::block_on;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, NodeId, ShardId, ShardPath, TurnId,
};
use ostraca_core::records::{Claim, ClaimOutcome, Commit, Head, RecordKey, RecordWrite};
use ostraca_core::rows::Member;
use ostraca_store::EntityStore;

use crate::{Options, SledStore};

pub(crate) const CLUSTER: ClusterId = ClusterId(7);

fn create(dir: &Path, options: &Options) -> SledStore {
    SledStore::create(dir, options, CLUSTER, "test").unwrap()
}

pub(crate) fn shard() -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) }
}

pub(crate) fn claim() -> Arc<Claim> {
    Arc::new(Claim {
        cluster: CLUSTER,
        shard: shard(),
        epoch: Epoch(1),
        owner: Member { node: NodeId::from("a"), incarnation: Incarnation::default() },
        number: 1,
        extensions: Default::default(),
    })
}

fn claimed(store: &SledStore) -> Arc<Claim> {
    let claim = claim();
    assert_eq!(block_on(store.claim(vec![(*claim).clone()])), [ClaimOutcome::Granted]);
    claim
}

pub(crate) fn turn(claim: &Arc<Claim>, id: &str, from: u64) -> Commit {
    let turn = TurnId { nonce: 1, shard: 1, epoch: claim.epoch, number: from };
    let head = Head { version: from + 1, turn, ..Head::default() };
    Commit {
        claim: claim.clone(),
        entity: Entity::new("counter", id),
        expected_version: from,
        head,
        writes: vec![],
        extensions: Default::default(),
    }
}

pub(crate) fn set(key: Vec<u8>, value: Vec<u8>) -> RecordWrite {
    RecordWrite { key: RecordKey::State(key.into()), value: Some(value.into()) }
}
