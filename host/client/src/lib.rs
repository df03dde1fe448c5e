//! Sends messages to entities: sessions, retries under the same id, deadlines, pipelining, reconnects.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use ostraca_client::{Client, Entity, Profile};
//!
//! let client = Client::connect(Profile::find(None)?).await?;
//! let session = client.session();
//! let answer = session.command(&Entity::new("counter", "alice"), "add", "1").await?;
//! println!("{:?}", answer.body);
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! A [`Session`] is a sender's series of numbered messages (R17). Those to one entity run in the order of the
//! calls, each at most once however often the client sends it. A call ends in one of three ways (R16): final
//! ([`Reply`] or [`CallError::Application`]), [`CallError::NotRun`], or [`CallError::Unknown`]. A message sent
//! as a query has no effect, so where a command would be in doubt it is only [`CallError::Unanswered`].
//! [`ledger`] decides all this, without clock or socket; the rest of the crate carries it out.

mod admin;
mod call;
mod cluster_clock;
mod connect;
mod driver;
mod gateway_switch;
pub mod ledger;
mod profile;
mod session;

pub use admin::{AdminError, Update, Updates};
pub use call::{CallError, MessageId, Reply, SessionId};
pub use connect::{Client, ConnectError, ConnectOptions};
pub use ostraca_core::ids::Entity;
pub use ostraca_wire::proto::{
    ClusterStatus, DeployResult, Deployment, DrainProgress, Entities, EntitiesRequest,
    EntityDetail, EntityInfo, Event, Events, ForgetResult, LastFailure, MessageKind, Method,
    Methods, NodeInfo, NodeIssue, NodeState, NodeStatus, Nodes, Problem, RebalancePlan,
    RebalanceProgress, ShardInfo, ShardMove, ShardState, StateKey, Status, StatusProblem,
};
pub use profile::{LocatedProfile, Profile, ProfileError};
pub use session::{Call, CallOptions, Session};
