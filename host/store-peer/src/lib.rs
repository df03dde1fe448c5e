//! The cluster's store, used over the peer protocol.
//!
//! One node runs the store and serves it ([`server`]). The others use it through [`PeerEntityStore`] and
//! [`PeerClusterStore`], which implement the two traits over a link that is re-established whenever it breaks. The two
//! clients are separate because their links are: state is sent over the bulk connection, and rows over the control
//! connection, which has a dedicated thread.
//!
//! What a broken link means:
//!
//! - Nothing is ever sent twice (R1, decision 0008). If a call may have been sent and was not answered, its outcome
//!   is unknown: a commit is `Unknown`, a claim `Failed`, a compare-and-set and a read `Unavailable`. The shard's
//!   machine then claims the shard again under the next number and loads, which resolves every unknown outcome (R3).
//! - A call that is known not to have been sent has no effect and never will: a commit is `Refused`, which its caller
//!   may report as *not run*. So while there is no link, calls fail immediately and no outcome is `unknown`.
//! - A call that is not answered within [`ClientOptions::call_timeout`] completes with an unknown outcome. Its link is
//!   dropped only if a subsequent ping also remains unanswered for that time.
//! - The first call on a link is a hello. After it, the server accepts nothing from the client's older links, so
//!   calls still in transit on them have no effect. Calls take effect in the order in which they were made, or not
//!   at all.
//! - A hello identifies the store. A different, forked or rolled-back store is refused until an operator intervenes
//!   (R5); [`StoreVerifier`] remembers the store, even across restarts.
//!
//! From the bottom up: [`protocol`] (messages), [`channel`] (a link from this crate's point of view), `client`,
//! [`server`], [`wire`] (links over QUIC).

pub mod channel;
mod client;
mod error;
mod options;
pub mod protocol;
pub mod server;
pub mod wire;

pub use channel::{Channel, ChannelError, Connect};
pub use client::{Driver, PeerClusterStore, PeerEntityStore, StoreVerifier};
pub use error::ConnectError;
pub use options::{ClientOptions, ServerOptions};
pub use server::{ClusterServer, EntityServer};
pub use wire::QuicChannel;
