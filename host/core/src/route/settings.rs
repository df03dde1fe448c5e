//! Settings of a gateway's router.

use serde::{Deserialize, Serialize};

/// Bounds of a router. Times are in milliseconds.
///
/// In the worst case it holds `buffered_bytes`, plus `link_bytes` for each node that it sends to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Maximum number of messages buffered per shard (K19). Default 10,000.
    pub buffered_messages: usize,
    /// Maximum total size of the messages buffered for all shards, in bytes (K19). Default 64 MiB.
    pub buffered_bytes: usize,
    /// How long a message may be buffered in total, and how long a hand-off buffers messages before the known route
    /// is tried again (R12). Default 10,000.
    pub buffer_timeout: u64,
    /// The longest pause before a message that was not accepted is sent again (S12). The first pause is a sixteenth
    /// of it, and each further one is twice as long. Default 100.
    pub max_backoff: u64,
    /// Maximum number of messages in flight to each other node. Default 4,096.
    pub link_messages: usize,
    /// Maximum total size of the messages in flight to each other node, in bytes; a larger message is sent alone.
    /// Default 32 MiB.
    pub link_bytes: usize,
    /// Rules that tests disable to check that the oracle fails. Ignored without the feature `testing`.
    pub mutations: Vec<Mutation>,
}

impl Settings {
    /// Whether a test disabled a rule. Without the feature `testing`, all rules apply.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn has_mutation(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }

    #[cfg(not(any(test, feature = "testing")))]
    pub(super) const fn has_mutation(&self, _: Mutation) -> bool {
        false
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            buffered_messages: 10_000,
            buffered_bytes: 64 << 20,
            buffer_timeout: 10_000,
            max_backoff: 100,
            link_messages: 4_096,
            link_bytes: 32 << 20,
            mutations: Vec::new(),
        }
    }
}

/// A rule of the router that a test can disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mutation {
    /// A message whose earlier copy may have run ends as not run (R16).
    ForgetInDoubt,
    /// A message that is in flight when the node stops ends as not run (R16).
    CloseWithoutInDoubt,
    /// Messages buffered for a shard are dropped when its route moves, and never answered (A11).
    DropBuffered,
    /// A message that is sent only once is sent again like any other (K18).
    ResendOnce,
    /// A route may move to lower epochs (R13).
    AcceptLowerEpochs,
}
