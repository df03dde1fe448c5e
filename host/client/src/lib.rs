//! Sends messages to entities: sessions, retries under the same id, deadlines, pipelining, reconnects.
//!
//! This page is for programs that connect to a cluster. To run a node inside a program, see the crate `ostraca-node`;
//! to write an entity, see `ostraca-sdk`. This crate contains no WebAssembly engine and no store.
//!
//! # Example
//!
//! This example needs a running node with the type `counter` from `examples/counter`, and a profile: the addresses of
//! nodes and a certificate. `ostraca dev` and `ostraca ca issue client` write profiles.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use ostraca_client::{CallError, CallOptions, Client, Entity, Profile};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // $OSTRACA_PROFILE, or .ostraca/profile.toml here or in a directory above.
//!     let client = Client::connect(Profile::find(None)?).await?;
//!     let session = client.session();
//!     let alice = Entity::new("counter", "alice");
//!
//!     // Both are queued when `command` returns, and run in this order. Awaiting a call only waits for its outcome.
//!     let first = session.command(&alice, "add", "1");
//!     let second = session.command(&alice, "add", "2");
//!     println!("version {} after the first", first.await?.version);
//!     println!("{}", String::from_utf8_lossy(&second.await?.body));
//!
//!     let options = CallOptions { timeout: Duration::from_secs(2), ..CallOptions::default() };
//!     match session.send(&alice, "add", "3", &options).await {
//!         Ok(reply) => println!("{}", String::from_utf8_lossy(&reply.body)),
//!         Err(CallError::Application { code, message, .. }) => println!("{code}: {message}"),
//!         Err(CallError::NotRun { code, retry_after, .. }) => {
//!             println!("no effect ({code}): may be called again, after {retry_after:?}");
//!         }
//!         Err(CallError::Unknown { id, .. }) => {
//!             // Do not send it as a new message: under its own id, it runs at most once, however often it is sent.
//!             let again = CallOptions { resend: Some(id), ..CallOptions::default() };
//!             let reply = session.send(&alice, "add", "3", &again).await?;
//!             println!("{}", String::from_utf8_lossy(&reply.body));
//!         }
//!         Err(other) => return Err(other.into()),
//!     }
//!     client.close().await;
//!     Ok(())
//! }
//! ```
//!
//! # Sessions
//!
//! A [`Session`] is a sender's series of numbered messages (R17). Messages to the same entity run in the order of the
//! calls, each at most once however often the client sends it. Messages of different sessions are not ordered, nor are
//! messages of one session to different entities.
//!
//! One session can be used for any number of entities, and clones of it are the same session. An entity remembers each
//! session that sent it commands, so do not create a session for each message. A node accepts 256 unanswered messages
//! per session by default, and the client keeps the others in memory. A session has at most 65,536 calls and 64 MiB of
//! bodies without an outcome; beyond that, calls fail immediately with `session-full`. To continue a session in another
//! process, save [`Session::id`] and [`Session::next_sequence`], and call [`Client::session_with_id`].
//!
//! # Retries
//!
//! The client resends a message automatically until the call's deadline, always under the same id: when its connection
//! breaks, when the cluster refuses the message for now (a shard moves, a mailbox is full), and when a node does not
//! know whether it ran. The pauses grow from 10 ms to 1 s, or to what a node asks for. A copy of a message that ran
//! gets the recorded reply and does not run again.
//!
//! The client re-establishes a broken connection, to any of the profile's addresses. It also leaves a node that is
//! reachable if no message gets through for [`ConnectOptions::stall_timeout`]. So a profile should name several nodes.
//! Only a failed first connection is left to the caller to retry: [`Client::connect`] tries each address once.
//!
//! # Channels
//!
//! [`Client::subscribe`] follows a channel of an entity: items that its turns emit.
//!
//! # Deadlines
//!
//! [`CallOptions::timeout`], 10 s by default, is how long the caller waits (R22). It includes the wait for a
//! connection. After it, the message does not start any more, but a turn that is already running is not interrupted.
//! Dropping a [`Call`] does not cancel the message.
//!
//! # Errors
//!
//! A call ends in one of these ways (R16). All of them carry the message's id. The errors also carry a stable code:
//! one of [`codes`], or the application's own. `docs/errors.md` in the repository has a row for each.
//!
//! | Outcome | What happened | What the caller may do |
//! |---|---|---|
//! | [`Reply`] | it ran, and its effects are durable | |
//! | [`CallError::Application`] | the method refused; the entity's state is as before | nothing: the refusal is final |
//! | [`CallError::ReplyDropped`] | it ran, and its reply is no longer kept | query the entity |
//! | [`CallError::NotRun`] | no effect, now or later | call it again; `retry_after` says whether that may help |
//! | [`CallError::Unknown`] | it may have run, or may still run | send it again under its id ([`CallOptions::resend`]) |
//! | [`CallError::Unanswered`] | a query got no answer | query again: a query has no effect |
//!
//! # Internals
//!
//! [`ledger`] decides all this, without a clock or sockets; the rest of the crate carries it out. [`Client`] also has
//! what operators need: deployments, status, drains, events.

mod admin;
mod call;
mod cluster_clock;
mod connect;
mod connection_state;
mod driver;
mod entity_export;
mod gateway_switch;
pub mod ledger;
mod namespace;
mod profile;
mod session;
mod subscription;
mod typed;

pub use admin::{AdminError, Update, Updates};
pub use call::{CallError, MessageId, Reply, SessionId};
pub use connect::{Client, ConnectError, ConnectOptions};
pub use entity_export::{decode_export, encode_export};
pub use ostraca_codes::{Code, codes};
pub use ostraca_core::ids::Entity;
pub use ostraca_core::shard::{DeadLetterAction, MAX_DEAD_LETTERS};
pub use ostraca_wire::proto::{
    AwakeReason, ChannelDetail, ChannelSubscriptions, ClusterStatus, CopiedType, DeadLetter,
    DeadLetters, DeadLettersRequest, DelayedTellDetail, DeployResult, Deployment, DrainProgress,
    DryRun, DryRunEntity, DryRunResult, Entities, EntitiesRequest, EntityActivity, EntityDetail,
    EntityExport, EntityInfo, Event, Events, FailedMigration, Figures, ForgetResult, HotEntity,
    JournalDetail, LastFailure, LiveEntities, MessageKind, Method, Methods, MoveShardsProgress,
    NamespaceInfo, NamespaceQuotas, NamespaceUsage, NewLimit, NewPool, NodeFigures, NodeInfo,
    NodeIssue, NodeState, NodeStatus, Nodes, PinInfo, PlacementInfo, PlacementRequest,
    PlacementState, PoolCopyEnd, PoolCopyProgress, PoolCopyStep, PoolInfo, PoolPlacement, Problem,
    QuotaChanges, RebalancePlan, RebalanceProgress, Rollout, ShardAtNode, ShardFigures, ShardInfo,
    ShardMove, ShardPause, ShardRange, ShardState, ShardStatistics, StateChange, StateKey, Status,
    StatusProblem, StoredEntities, SubscriptionDetail, TellDetail, TimerDetail, TypePermissions,
    UndeployResult, WhoAmI, WorkFigures,
};
pub use profile::{LocatedProfile, Profile, ProfileError};
pub use session::{Call, CallOptions, RestartedEntity, Session};
pub use subscription::{ChannelEvent, ChannelItem, SubscribeError, SubscribeFrom, Subscription};
pub use typed::InvokeError;
