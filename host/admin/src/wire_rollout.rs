//! Rollouts in requests and responses.

use ostraca_catalog::rollout::StoredRollout;
use ostraca_wire::proto;

/// A rollout that a command begins at this time of the cluster's UTC.
pub(crate) fn from_wire(from: u64, wanted: &proto::Rollout, utc: u64) -> StoredRollout {
    let begun = StoredRollout {
        from,
        shards: 0,
        per_mille: 0,
        rate: 0,
        since: utc,
        advanced_at: utc,
        stopped: String::new(),
    };
    changed(&begun, wanted, utc)
}

/// A rollout that a command changes.
pub(crate) fn changed(current: &StoredRollout, wanted: &proto::Rollout, utc: u64) -> StoredRollout {
    let per_mille = wanted.per_mille.map(|of| u16::try_from(of).unwrap_or(1_000));
    StoredRollout {
        from: current.from,
        shards: wanted.shards.unwrap_or(current.shards),
        per_mille: per_mille.unwrap_or(current.per_mille),
        rate: wanted.rate,
        since: utc,
        advanced_at: utc,
        stopped: String::new(),
    }
}

/// A rollout for `ostraca deployments`.
pub(crate) fn to_wire(rollout: &StoredRollout) -> proto::Rollout {
    proto::Rollout {
        per_mille: Some(rollout.per_mille.into()),
        shards: Some(rollout.shards),
        rate: rollout.rate,
        from: rollout.from,
        stopped: rollout.stopped.clone(),
    }
}
