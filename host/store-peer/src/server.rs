//! The serving side: a store's calls, as they come over a link.
//!
//! Every call of the store is *made* while its frame is handled, in the order of frames; only its answer is waited
//! for. So calls of one link take effect in the order in which they were sent.

mod blobs;
mod cluster;
mod entity;
mod fence;
mod watches;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_sharding::ids::ClusterId;

use crate::protocol::{self, Answer, Hello, Reply};

pub use cluster::{ClusterLink, ClusterServer};
pub use entity::{EntityLink, EntityServer};

/// The bytes of a reply; a link whose replies cannot be encoded ends itself by empty ones, which no client takes.
fn reply(sequence: u64, answer: Answer) -> Bytes {
    protocol::encode(&Reply { sequence, answer }).unwrap_or_default()
}

/// Nothing of the call was done.
fn refused(why: impl ToString) -> BoxFuture<'static, Bytes> {
    ready(reply(0, Answer::Refused(why.to_string()))).boxed()
}

/// Whether a hello is for this store.
fn check_cluster(hello: &Hello, cluster: ClusterId, name: &str) -> Result<(), String> {
    if hello.cluster == cluster {
        return Ok(());
    }
    Err(format!(
        "the store belongs to cluster {cluster} (\"{name}\"), not to cluster {}",
        hello.cluster
    ))
}
