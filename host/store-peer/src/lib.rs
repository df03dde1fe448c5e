//! The cluster's store, reached over the peer protocol.
//!
//! One node carries the store and serves it ([`server`]); the others have it through [`PeerEntityStore`] and
//! [`PeerClusterStore`], which are the two traits over a link that is made again whenever it breaks. The two are
//! apart because their links are: state goes over the bulk connection, rows over the control connection, which has a
//! thread of its own.
//!
//! What a broken link means, in one place:
//!
//! - Nothing is ever sent twice (R1, decision 0008). What may have been sent and was not answered is told as not
//!   known: a commit is `Unknown`, a claim `Failed`, a compare-and-set and a read `Unavailable`. The shard's machine then
//!   claims again under the next number and loads, after which nothing is unknown any more (R3).
//! - What was certainly not sent has no effect and never will: a commit is `Refused`, which its caller may hear as
//!   *not run*. So while there is no link, calls are answered at once, and nobody is told `unknown`.
//! - A call that is not answered within [`Options::call_timeout`] ends its link.
//! - The first call of a link is a hello, and the server takes nothing from a client's older links after it: what
//!   is still under way on them comes too late by that alone. Calls take effect in the order in which they were made, or not at all.
//! - A hello names the store. Another one, a fork, or one that went back is refused, and stays so until somebody
//!   has seen to it (R5); [`Known`] remembers, over restarts too.
//!
//! From the bottom up: [`protocol`] (what is said), [`channel`] (a link, as this crate needs it), `client`, [`server`],
//! [`wire`] (links over QUIC).

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
