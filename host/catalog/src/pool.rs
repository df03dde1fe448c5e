//! The only namespace, pool and hash of this release, which row keys and shard paths contain.

use ostraca_core::ids::{ShardId, ShardPath};

/// The only namespace of 0.1.
pub use ostraca_wire::envelope::NAMESPACE;

/// The only pool of 0.1.
pub const POOL: &str = "default";

/// The only hash of 0.1 (M1).
pub const HASH: &str = "murmur3_x86_32";

/// Path of a shard in that pool.
pub fn shard_key(shard: ShardId) -> ShardPath {
    ShardPath { namespace: NAMESPACE.into(), pool: POOL.into(), shard }
}
