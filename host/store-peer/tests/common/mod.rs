//! A store served to nodes `a` and `b` within one process, over links that break when a test requests it.
#![allow(dead_code, reason = "each test uses only part of it")]

pub(crate) mod net;
pub(crate) mod quic;
pub(crate) mod remote;
pub(crate) mod retrying;

use std::sync::Arc;

use ostraca_core::ids::{Entity, Epoch, Incarnation, NodeId, ShardId, ShardPath, TurnId};
use ostraca_core::records::{Claim, Commit, Head};
use ostraca_core::rows::Member;
use ostraca_store::conformance::CLUSTER;

pub(crate) fn member(node: &str) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter: 1, nonce: 11 } }
}

pub(crate) fn shard() -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) }
}

pub(crate) fn claim(node: &str, number: u64) -> Claim {
    Claim {
        cluster: CLUSTER,
        shard: shard(),
        epoch: Epoch(1),
        owner: Member {
            node: NodeId::from(node),
            incarnation: Incarnation { counter: 1, nonce: 11 },
        },
        number,
        extensions: Default::default(),
    }
}

pub(crate) fn turn(claim: &Claim, id: &str, from: u64) -> Commit {
    let turn = TurnId { nonce: 11, shard: 1, epoch: claim.epoch, number: from };
    Commit {
        claim: Arc::new(claim.clone()),
        entity: Entity::new("counter", id),
        expected_version: from,
        head: Head { version: from + 1, revision: 1, turn, ..Head::default() },
        writes: vec![],
        extensions: Default::default(),
    }
}
