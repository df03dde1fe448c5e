//! Members of the cluster, and what is known about a shard's owner, on the wire.

use ostraca_core::ids::{Epoch, Incarnation};
use ostraca_core::message::OwnerHint;
use ostraca_core::rows::Member;

use crate::proto;

impl From<Incarnation> for proto::Incarnation {
    fn from(Incarnation { counter, nonce }: Incarnation) -> Self {
        Self { counter, nonce }
    }
}

impl From<proto::Incarnation> for Incarnation {
    fn from(proto::Incarnation { counter, nonce }: proto::Incarnation) -> Self {
        Self { counter, nonce }
    }
}

impl From<&OwnerHint> for proto::OwnerHint {
    fn from(hint: &OwnerHint) -> Self {
        let owner = hint.owner.as_ref().map(|owner| proto::Member {
            node: owner.node.to_string(),
            incarnation: Some(owner.incarnation.into()),
        });
        Self { epoch: hint.epoch.0, owner }
    }
}

impl From<&proto::OwnerHint> for OwnerHint {
    /// An owner without an incarnation counts as unknown: only an incarnation owns shards (R7).
    fn from(hint: &proto::OwnerHint) -> Self {
        let owner = hint.owner.as_ref().and_then(|owner| {
            let incarnation = owner.incarnation?.into();
            Some(Member { node: owner.node.as_str().into(), incarnation })
        });
        Self { epoch: Epoch(hint.epoch), owner }
    }
}
