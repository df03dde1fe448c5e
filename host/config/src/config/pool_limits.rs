//! `guests.pools`: limits of the live instances of single pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_core::pools::check_name;
use ostraca_core::shard::SlotLimits;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::user_file::{SourceText, units};

/// Maximum number of live instances that can be set.
const MAX_INSTANCES: u32 = 1_000_000;
const MIN_MEMORY: u64 = 1 << 20;

/// The limits of one pool on this node. What is not set is not limited beyond what all pools share.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PoolLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_live_instances: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", with = "units::optional_size")]
    max_live_memory: Option<u64>,
}

/// Checks the names of pools and their limits.
pub(super) fn check(
    pools: &BTreeMap<String, PoolLimits>,
    input: &SourceText<'_>,
) -> Result<(), ConfigError> {
    for (pool, limits) in pools {
        let at = ["guests", "pools", pool];
        check_name(pool).map_err(|why| {
            let help = "write the name of a pool, as in `ostraca pool list`";
            input.at(&at, format!("the name of a pool {why}"), Some(help.into()))
        })?;
        let refused = |setting: &str, why: String| {
            let path = ["guests", "pools", pool, setting];
            Err(input.at(&path, format!("`{setting}` of the pool `{pool}` {why}"), None))
        };
        if limits.max_live_instances.is_some_and(|most| !(1..=MAX_INSTANCES).contains(&most)) {
            return refused("max-live-instances", format!("must be 1 to {MAX_INSTANCES}"));
        }
        if limits.max_live_memory.is_some_and(|most| most < MIN_MEMORY) {
            return refused("max-live-memory", "must be at least 1 MiB".into());
        }
    }
    Ok(())
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
