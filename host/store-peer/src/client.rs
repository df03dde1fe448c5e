//! The client side: [`PeerEntityStore`] and [`PeerClusterStore`], each over its own reconnecting link.

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
