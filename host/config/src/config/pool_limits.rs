//! `guests.pools`: limits of the live instances of single pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_core::shard::SlotLimits;
use serde::{Deserialize, Serialize};

use crate::user_file::units;

/// The limits of one pool on this node. What is not set is not limited beyond what all pools share.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PoolLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_live_instances: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", with = "units::optional_size")]
    pub(super) max_live_memory: Option<u64>,
}

/// The limits of each pool that has some, for one of `sharing` workers. `all` are those of the node.
pub(super) fn shares(
    pools: &BTreeMap<String, PoolLimits>,
    all: SlotLimits,
    sharing: usize,
) -> BTreeMap<Arc<str>, SlotLimits> {
    let of_pool = |(pool, limits): (&String, &PoolLimits)| {
        let instances = limits.max_live_instances.map_or(all.instances, |most| most as usize);
        let memory = limits.max_live_memory.unwrap_or(all.memory);
        (Arc::from(pool.as_str()), SlotLimits { instances, memory }.share(sharing))
    };
    pools.iter().map(of_pool).collect()
}
