//! A model of a small cluster whose actors are the production core: three nodes, two of which can be the manager, and
//! one or two shards. stateright explores all of its states.
//!
//! Real parts: each node's [`Machine`](ostraca_core::node::Machine), its strategy, and the rule by which one claim
//! supersedes another. Simplified parts: the `ClusterStore` (linearizable compare-and-set, a watch, answers), the
//! `EntityStore`'s claims, a shard's machine (it claims, serves and stops, each in a separate step), and messages
//! between nodes, which stay in order on each link.
//!
//! Two of the nodes can also be the hosts of a pool without a manager ([`stateless`]): then a shard's machine answers only
//! under the shard's own lease.
//!
//! A model is sound only if its simplifications are harmless. They are:
//! - The current time is constant: as time passes, all stored times are moved back instead. Revisions and renewal
//!   counts are renumbered in order. Both are sound, since the machine only compares these numbers. Everything older
//!   than every lease is equally old, and everything due is equally due. Random numbers are not part of a state.
//! - Revisions are counted per row, not per store: the machine compares only revisions of the same row.
//! - All clocks run at the same rate, and time passes in steps of one renewal interval. A lease lasts 3 intervals, and
//!   the margin is 1. The simulator tests drift.
//! - Time passes only when everything in transit has arrived, unless a fault in the budget delays it: a cut, a lagging
//!   watch, a paused process, a copy, or a late request. So slowness alone never spans an interval.
//! - A renewal of a node's lease, its response and its notification are one step if nothing is queued before them. A
//!   lagging watch delivers only the last of several renewals, of nodes' leases and of shards' leases.
//! - A control message is not queued twice. A report to a node that does not know yet that it is the manager is not
//!   sent, as if it were lost.
//! - A node makes its calls to the `ClusterStore` one at a time.
//! - Hand-offs do not time out, and no rebalance is requested: only joins, leaves and drains move shards. With two
//!   shards and three nodes, there is nothing to balance. The `EntityStore` always answers, and manager silence never
//!   lasts so long that an incarnation ends itself.
//!
//! Reductions, which merge equivalent states without loss:
//! - State that no node will ever read again is discarded: in machines, on links, and in the history that rules examine
//!   ([`pruning`]). This relies on numbers that only rise (revisions, epochs, terms), and on things that never return
//!   (an incarnation, an epoch that was given up). It is also checked: [`proof`] runs each machine alongside one that
//!   discards nothing, and redelivers the discarded messages in every later step.
//! - Whether a manager has new information to decide on is not part of a state. If the manager would act at its next
//!   event although nothing else changes, such an event is a separate step, a nudge.
//! - A copy is created when its original is delivered or lost. A copy created sooner would only add a pending message,
//!   and a copy delivered first would take the role of the original, since the two are equal.
//! - A lost request is a late one that never arrives: nothing in the model waits for it.
//! - Not used: symmetry, since no two of the three nodes are alike (one cannot be the manager, one is the manager, one
//!   can succeed it); and partial-order reduction, since a crash may happen between any two steps.
//!
//! [`rules`] defines what is checked. Most rules are checked in the step that could violate them, so no state carries
//! more history than they need. A cluster at rest, which the next interval does not change, must serve every shard:
//! this detects a missing step, but not a livelock of several states.

pub mod faults;
pub mod hosted;
pub mod model;
pub mod proof;
pub mod pruning;
pub mod rules;
pub mod run;
pub mod scope;
pub mod state;
pub mod stateless;
pub mod step;
pub mod tells;
pub mod time;
pub mod world;
