//! The client side: [`PeerEntityStore`] and [`PeerClusterStore`], each over a reconnecting link of its own.

mod cluster;
mod entity;
mod link;
mod reconnecting_link;
mod verifier;
mod watch;

pub use cluster::PeerClusterStore;
pub use entity::PeerEntityStore;
pub use reconnecting_link::Driver;
pub use verifier::StoreVerifier;
