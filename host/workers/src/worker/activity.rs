//! Converts what a machine has in memory about an entity to its protobuf form, for other nodes and for operators.

use ostraca_core::shard::{AwakeReason, EntityActivity, OnFailure};
use ostraca_wire::proto;

pub(super) fn to_wire(activity: EntityActivity) -> proto::EntityActivity {
    let EntityActivity { awake, on_failure, stopped_by, start_pause, failed_starts } = activity;
    proto::EntityActivity {
        awake: awake.iter().map(reason_to_wire).collect(),
        on_failure: on_failure.map_or("", OnFailure::name).into(),
        stopped_by: stopped_by.map(|why| why.to_string()).unwrap_or_default(),
        start_pause_ms: start_pause,
        failed_starts,
    }
}

fn reason_to_wire(reason: &AwakeReason) -> proto::AwakeReason {
    proto::AwakeReason {
        reason: reason.name().into(),
        count: reason.count(),
        ends_in_ms: reason.ends_in(),
    }
}
