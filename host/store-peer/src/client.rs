//! The asking side: [`PeerEntityStore`] and [`PeerClusterStore`], each over a line of its own.

mod cluster;
mod entity;
mod known;
mod line;
mod link;
mod watch;

pub use cluster::PeerClusterStore;
pub use entity::PeerEntityStore;
pub use known::Known;
pub use line::Driver;
